"""Scores by totals: those of the rows, by how much they are off, and what few rows and odd rows come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import average_precision_score, r2_score, roc_auc_score

from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.core.held_out_sums import CHANCES, ChanceRows, ChanceSums, ErrorSums
from ffgb.core.judgement import scores_of
from ffgb.core.losses import CrossEntropy, Logistic, Square
from ffgb.core.losses.cox import Cox
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion
from ffgb.core.schedules import Constant
from ffgb.core.types import Array
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.privacy.integers import add, from_integers, to_integers
from ffgb.protocol.job import Job, Target
from ffgb.runs.config import Config
from ffgb.runs.fit import fit
from ffgb.runs.fit_totals import fit_by_totals, summarised
from ffgb.runs.held_out import HeldOut
from ffgb.runs.model import Model
from ffgb.runs.training import train


@final
class Asked:
    """An `ask` over clients with these values of f and targets; what was asked is kept."""

    def __init__(self, job: Job, parts: Sequence[tuple[Array, Array]], weights: Array | None = None) -> None:
        self.job, self.parts, self.weights = job, parts, weights
        self.questions: list[RoundQuestion] = []

    def __call__(self, question: RoundQuestion) -> Any:
        self.questions.append(question)
        answers = []
        for i, (f, y) in enumerate(self.parts):
            here = Here(Points(i, f, y, self.weights), 1.0, self.job.loss, y, f)
            part = to_integers(question.part(here), question.sums)
            question.check(from_integers(part, question.sums), len(y))
            answers.append(part)
        return question.total(from_integers(add(answers, question.sums), question.sums))


def job(loss: Any, target: Target | None = None) -> Job:
    return Job(FFGB(Constant(1.0), K=1), Linear(Flatten(1), outputs=loss.outputs), loss, target, 0)


def two(rows: int = 1000, seed: int = 0, spread: float = 1.5) -> tuple[Array, Array]:
    """Log odds, and classes that are right about them but for a factor."""
    rng = np.random.default_rng(seed)
    z = spread * rng.standard_normal((rows, 1))
    return z, (rng.random(rows) < expit(0.7 * z[:, 0] - 0.2)).astype(np.int64)


def dealt(f: Array, y: Array, sites: int = 4) -> list[tuple[Array, Array]]:
    return [(f[k::sites], y[k::sites]) for k in range(sites)]


def values(found: dict[str, Any]) -> dict[str, float]:
    return {name: score["value"] for name, score in found["parts"]["all"]["scores"].items()}


@pytest.mark.parametrize("seed", range(8))
def test_scores_of_two_classes_are_those_of_the_rows(seed: int) -> None:
    f, y = two(seed=seed)
    loss = float(Logistic().value(f, y).mean())
    found = fit_by_totals(Asked(job(Logistic()), dealt(f, y)), job(Logistic()), ("no", "yes"), {"test_loss": loss})
    p, scores = expit(f[:, 0]), values(found)
    exact = scores_of(np.stack([1 - p, p], axis=1), y)
    assert scores["brier"] == pytest.approx(np.square(p - y).mean(), abs=1e-8)
    assert scores["accuracy"] == ((p >= 0.5) == y).mean()
    assert (scores["base_rate"], scores["loss"]) == (y.mean(), loss)
    assert scores["expected"] == pytest.approx(p.mean(), abs=1e-8)
    for name in ("calibration_intercept", "calibration_slope"):
        assert scores[name] == pytest.approx(exact[name], abs=1e-6)
    off = abs(scores["auc"] - roc_auc_score(y, p))
    assert off < 0.001
    assert off < found["auc_error_at_most"] < 0.007
    assert scores["average_precision"] == pytest.approx(average_precision_score(y, p), abs=0.005)
    calls = found["confusion"]["parts"]["all"]
    assert calls["true_positives"] == ((p >= 0.5) & (y == 1)).sum()
    best = found["confusion_at_best"]
    at = best["threshold"]
    assert best["parts"]["all"]["false_positives"] == ((p >= at) & (y == 0)).sum()
    told = summarised(found)
    assert told["test_auc"] == scores["auc"]
    assert {"test_brier", "test_average_precision", "test_base_rate", "test_calibration_slope"} <= told.keys()


def test_intervals_are_those_of_the_rows_but_for_the_cells() -> None:
    f, y = two(2000)
    model = Model(job(Logistic()), Linear(Flatten(1), outputs=1).zero(), (1,), ("no", "yes"))
    rows = HeldOut(f, y, ("all",), None)
    exact = fit(Shown(model, f), rows)["parts"]["all"]["scores"]  # type: ignore[arg-type]
    known = {"test_loss": exact["loss"]["value"]}
    found = fit_by_totals(Asked(job(Logistic()), dealt(f, y)), job(Logistic()), ("no", "yes"), known)
    for name, score in found["parts"]["all"]["scores"].items():
        if exact[name]["low"] is not None:
            width = exact[name]["high"] - exact[name]["low"]
            assert [score["low"], score["high"]] == pytest.approx(
                [exact[name]["low"], exact[name]["high"]], abs=0.05 * width
            ), name


@final
class Shown:
    """A model that says what its rows say."""

    def __init__(self, model: Model, f: Array) -> None:
        self.model, self.f = model, f

    def decision(self, x: Array) -> Array:
        return self.f

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def test_a_total_has_the_same_bits_over_any_split() -> None:
    f, y = two(700)
    known = {"test_loss": 0.5}
    for loss in (Logistic(), Square(1)):
        of = job(loss)
        names = ("no", "yes") if loss.classification else ()
        target = y if names else f[:, :1] + 0.1 * y[:, None]
        first, second = (fit_by_totals(Asked(of, dealt(f, target, sites)), of, names, known) for sites in (1, 7))
        assert json.dumps(first) == json.dumps(second)


def test_no_target_is_asked_for_in_a_cell_of_few_rows() -> None:
    """And all that is shown has as many rows of each class, however few rows a site's setting allows."""
    f, y = two(300)
    for least in (10, 25):
        asked = Asked(job(Logistic()), dealt(f, y))
        found = fit_by_totals(asked, asked.job, ("no", "yes"), {}, least=least)
        rows, sums = asked.questions[:2]
        assert isinstance(rows, ChanceRows)
        assert isinstance(sums, ChanceSums)
        cells = Asked(asked.job, dealt(f, y))(sums).rows
        assert cells.sum(axis=1).min() >= least
        assert [type(q).__name__ for q in asked.questions] == ["ChanceRows", "ChanceSums", *["CalibrationSums"] * 3]
        for cell in found["curves"]["cells"]:
            assert min(cell["rows"]) >= 10
        for kind in ("negatives", "positives"):
            assert min(found["curves"][kind]["rows"]) >= 10


@pytest.mark.parametrize("rows", [150, 1000, 20_000])
@pytest.mark.parametrize("shift", [0.0, -3.0])
def test_no_difference_of_what_is_shown_is_of_few_rows(rows: int, shift: float) -> None:
    """Calls are counted where cells of both classes end; groups of calibration are unions of cells."""
    f, y = two(rows, seed=1)
    f = f + shift
    y = (np.random.default_rng(2).random(rows) < expit(f[:, 0])).astype(np.int64)
    asked = Asked(job(Logistic()), [(f, y)])
    found = fit_by_totals(asked, asked.job, ("no", "yes"), {})
    ends = [{*found["curves"][kind]["edges"], 0.0, 1.0} for kind in ("negatives", "positives")]
    shared = [each["from"] for each in found["curves"]["cells"]]
    assert all(edge in ends[0] & ends[1] for edge in shared)
    shown = [found[name] for name in ("confusion", "confusion_at_best") if found.get(name)]
    assert shown or rows < 1000
    p = expit(f[:, 0])
    for calls in shown:
        assert calls["threshold"] in ends[0] & ends[1]
        assert calls["parts"]["all"]["true_positives"] == ((p >= calls["threshold"]) & (y == 1)).sum()
        assert min(v for v in calls["parts"]["all"].values() if isinstance(v, int)) >= 10


def test_fine_cells_give_the_auc_of_the_rows() -> None:
    """Where no two rows of different classes share a cell."""
    f, y = two(60)
    middle = np.round(f * 32) / 32 + 1 / 128  # of every second cell
    middle[y == 1] += 1 / 64
    asked = Asked(job(Logistic()), [(middle, y)])
    found = fit_by_totals(asked, asked.job, ("no", "yes"), {}, least=1)
    assert values(found)["auc"] == pytest.approx(roc_auc_score(y, middle[:, 0]), abs=1e-12)
    assert found["auc_error_at_most"] == 0.0


def test_several_classes_are_judged_by_the_most_probable_one() -> None:
    rng = np.random.default_rng(0)
    f = 1.5 * rng.standard_normal((800, 4))
    y = np.array([rng.choice(4, p=row) for row in CrossEntropy(4).probability(f)])
    asked = Asked(job(CrossEntropy(4)), dealt(f, y))
    p = CrossEntropy(4).probability(f)
    known = {"test_accuracy": float((p.argmax(axis=1) == y).mean()), "test_loss": 1.0}
    found = fit_by_totals(asked, asked.job, tuple("abcd"), known)
    assert values(found).keys() == {"accuracy", "loss", "brier"}
    assert values(found)["brier"] == pytest.approx(np.square(p - np.eye(4)[y]).sum(axis=1).mean(), abs=1e-8)
    groups = found["curves"]["calibration"]
    assert sum(g["rows"] for g in groups) == 800
    mean = sum(g["rows"] * g["observed"]["value"] for g in groups) / 800
    assert mean == pytest.approx(known["test_accuracy"])
    assert summarised(found) == {}


def numbers(loss: Any = None) -> tuple[Asked, Array, Array]:
    rng = np.random.default_rng(0)
    f = rng.standard_normal((900, 1))
    y = 1.1 * f + 0.1 + 0.4 * rng.standard_normal((900, 1))
    asked = Asked(job(Square(1), Target(np.array([5.0]), np.array([3.0]))), dealt(f, y))
    return asked, f[:, 0] * 3 + 5, y[:, 0] * 3 + 5


def test_scores_of_numbers_are_those_of_the_rows() -> None:
    asked, predicted, y = numbers()
    found = fit_by_totals(asked, asked.job, (), {})
    scores, error = values(found), predicted - y
    slope, intercept = np.polyfit(predicted, y, 1)
    expected = {
        "rmse": np.sqrt(np.square(error).mean()), "mean_absolute_error": np.abs(error).mean(), "bias": error.mean(),
        "r2": r2_score(y, predicted), "calibration_intercept": intercept, "calibration_slope": slope,
    }  # fmt: skip
    assert scores == pytest.approx(expected, abs=1e-7)
    groups = found["curves"]["calibration"]
    assert min(g["rows"] for g in groups) >= 90
    order = np.argsort(predicted)
    first = order[: groups[0]["rows"]]
    assert groups[0]["predicted"] == pytest.approx(predicted[first].mean())
    assert groups[0]["observed"]["value"] == pytest.approx(y[first].mean())
    for quantile in found["residuals"]:
        share = (error < quantile["value"]).mean()
        assert share == pytest.approx(quantile["level"], abs=0.01)
        assert min(share, 1 - share) * len(y) >= 10
    told = summarised(found)
    assert told["test_rmse_of_mean"] == pytest.approx(y.std())
    assert told["test_rmse_low"] < scores["rmse"] < told["test_rmse_high"]


def test_a_simulated_run_has_the_same_quantiles_of_errors(tmp_path: Path) -> None:
    train(Config(data="diabetes", clients=3, rounds=2, learner="linear"), tmp_path / "run", workers=0)
    found = json.loads((tmp_path / "run" / "fit.json").read_text())
    assert [q["level"] for q in found["residuals"]] == [0.25, 0.5, 0.75]


def test_odd_rows() -> None:
    """One class alone, constant predictions, few rows, weights, absurd errors, several targets, times."""
    ones = np.ones(50, np.int64)
    asked = Asked(job(Logistic()), [(two(50)[0], ones)])
    found = fit_by_totals(asked, asked.job, ("no", "yes"), {"test_loss": 0.1})
    assert values(found)["base_rate"] == 1.0
    assert values(found)["auc"] == 0.5
    assert "calibration_slope" not in values(found)
    assert found["curves"] is None
    assert found["confusion"] is None
    assert any("curves" in sentence for sentence in found["left_out"])
    json.dumps(found, allow_nan=False)

    f, y = two(200)
    asked = Asked(job(Logistic()), [(0.0 * f + 0.3, y)])
    found = fit_by_totals(asked, asked.job, ("no", "yes"), {})
    assert values(found)["auc"] == pytest.approx(0.5)
    assert "calibration_slope" not in values(found)
    json.dumps(found, allow_nan=False)
    asked = Asked(job(Square(1)), [(0.0 * f, f)])
    found = fit_by_totals(asked, asked.job, (), {})
    assert "calibration_slope" not in values(found)
    assert values(found)["r2"] == pytest.approx(0.0, abs=0.05)
    asked = Asked(job(Square(1)), [(f, 0.0 * f)])  # targets that are all alike
    found = fit_by_totals(asked, asked.job, (), {})
    assert "r2" not in values(found)
    assert "test_rmse_of_mean" not in summarised(found)
    json.dumps(found, allow_nan=False)

    with pytest.raises(FFGBError, match="19 rows are held out in all"):
        fit_by_totals(Asked(job(Logistic()), [(f[:19], y[:19])]), job(Logistic()), ("no", "yes"), {})
    with pytest.raises(FFGBError, match="these have weights"):
        fit_by_totals(Asked(job(Logistic()), [(f, y)], np.ones(200)), job(Logistic()), ("no", "yes"), {})
    with pytest.raises(FFGBError, match="absurdly far off"):
        fit_by_totals(Asked(job(Square(1)), [(1e9 * f, f)]), job(Square(1)), (), {})
    with pytest.raises(FFGBError, match="several targets"):
        fit_by_totals(Asked(job(Square(2)), []), job(Square(2)), (), {})
    with pytest.raises(FFGBError, match="times until an event"):
        fit_by_totals(Asked(job(Cox()), []), job(Cox()), (), {})


def test_separated_classes_have_no_line() -> None:
    f, _ = two(200)
    asked = Asked(job(Logistic()), [(f, (f[:, 0] > 0).astype(np.int64))])
    found = values(fit_by_totals(asked, asked.job, ("no", "yes"), {}))
    assert found["auc"] == pytest.approx(1.0, abs=1e-3)
    assert "calibration_slope" not in found


@pytest.mark.parametrize(
    ("question", "match"),
    [
        (lambda: ChanceSums(np.array([1, 5], np.int32), 1.0), "cells that are not there"),
        (lambda: ChanceSums(np.array([0, 5, 5], np.int32), 1.0), "cells that are not there"),
        (lambda: ChanceSums(np.array([0, 99_999], np.int32), 1.0), "cells that are not there"),
        (lambda: ErrorSums(np.array([0, -1], np.int32), np.ones(8)), "cells that are not there"),
        (lambda: ErrorSums(np.array([0], np.int32), np.ones(3)), "no unit for each sum"),
    ],
)
def test_questions_about_cells_that_are_not_there_are_refused(question: Any, match: str) -> None:
    with pytest.raises(FFGBError, match=match):
        question()


@pytest.mark.parametrize(
    ("tests", "options"),
    [
        (0, {}),
        (2, {"owners": [0, 1], "secure": True, "names": ["a", "b", "c", "d"], "minimum": 4}),
    ],
)
def test_without_rows_or_with_two_sites_that_hold_some_out_there_is_no_total(
    tests: int, options: dict[str, Any]
) -> None:
    """Of two sites each would know the other's part; all are in a total, or there is none."""
    f, y = two(60)
    holdings = [Holding(x, labels) for x, labels in [*dealt(f, y), *dealt(f, y, 2)[:tests]]]
    with local_engine(holdings, 0) as engine:
        server = Server(engine, [15] * 4, tests, **options)
        with pytest.raises(FFGBError, match="not all sites that hold out rows are in a total"):
            server.asking_held_out(cast(State, None), 30)


def test_parts_of_other_rows_are_refused() -> None:
    """Counts that are not those of the rows; and two totals of different rows."""
    f, y = two(60)
    asked = Asked(job(Logistic()), [(f, y)])
    counts = ChanceRows().sums["rows"].shape
    with pytest.raises(FFGBError, match="do not add up to its 60 rows"):
        ChanceRows().check({"rows": np.zeros(counts)}, 60)

    def lying(question: RoundQuestion) -> Any:
        found = asked(question)
        return found._replace(rows=found.rows[::-1]) if isinstance(question, ChanceSums) else found

    with pytest.raises(FFGBError, match="differ between two totals: a site has sent wrong numbers"):
        fit_by_totals(lying, asked.job, ("no", "yes"), {})


def test_the_result_is_judged_and_not_what_is_projected_onto_it() -> None:
    """FFGB.C's result is clipped at B, and f^t is not."""
    x, y = two(120)
    parts = [(x[k::2], y[k::2]) for k in (0, 1)]
    with local_engine([Holding(f, labels) for f, labels in [*parts, *parts]], 0) as engine:
        server = Server(engine, [60, 60], 2)
        algorithm = FFGBC(Constant(8.0), K=1, B=0.25)
        state = server.start(algorithm, lambda ask: (Linear(Flatten(1), outputs=1), None), Logistic())
        *_, (state, _) = server.rounds(state, 2)
        assert np.abs(state.f(x)).max() > 0.5
        counts = server.asking_held_out(state, 120)(ChanceRows())
    low, high = (int(np.searchsorted(CHANCES, expit(sign * 0.25), "right")) for sign in (-1, 1))
    assert counts[low - 1 : high + 2].sum() == counts.sum() == 120
