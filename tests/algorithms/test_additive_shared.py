"""Additive models from totals: against a dense solution, and over any split of the rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import roc_auc_score

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.algorithms import additive_shared
from ffgb.algorithms.additive_shared import AdditiveShared, centres, fits, safe_step
from ffgb.core.cell_sums import CellSums, CurvatureAlong
from ffgb.core.histograms import Units
from ffgb.core.losses import CrossEntropy, Gamma, Huber, Logistic, Loss, Poisson, Quantile, Square
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.splits import Layout
from ffgb.data.sources import load
from ffgb.errors import FFGBError
from ffgb.federation.state import State
from ffgb.learners.additive import terms_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.config import Config
from ffgb.runs.training import federate, train
from tests.algorithms.test_trees_shared import NAMES, learner, parts_of, same, signal, table, targets

Array = np.ndarray
LOSSES = [Logistic(), CrossEntropy(3), Square(1), Square(2), Poisson(1), Gamma(1), Huber(1), Quantile(1)]


def trained(loss: Loss, parts: list[tuple[Array, Array]], rounds: int = 2, workers: int = 0, **make: Any) -> State:
    names = make.pop("names", NAMES)
    made = learner(loss, names, parts[0][0].shape[1], **{"leaves": 9, **make})
    return federate(parts, made, loss, AdditiveShared(), rounds, workers=workers, by_size=True)[0]


def scaled(loss: Loss, x: Array, seed: int) -> Array:
    y = np.exp(targets(Square(1), x, seed) / 300.0) if isinstance(loss, Gamma) else targets(loss, x, seed)
    if y.dtype.kind != "f" or isinstance(loss, Poisson | Gamma):
        return y
    centred: Array = (y - y.mean(axis=0)) / y.std(axis=0)
    return centred


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{loss.outputs}")
def test_over_any_split_the_model_has_the_same_bits(loss: Loss) -> None:
    x = table(4, 400)
    y = scaled(loss, x, 4)
    whole = trained(loss, [(x, y)])
    for seed, clients in ((1, 3), (2, 20)):
        split = trained(loss, parts_of(x, y, seed, clients))
        assert same(whole.f, split.f)
        assert np.array_equal(whole.f(x), split.f(x))
    started = loss.value(trained(loss, [(x, y)], 0).f(x), y).mean()
    assert loss.value(whole.f(x), y).mean() < started


def test_worker_processes_change_nothing() -> None:
    x = table(5, 300)
    y = targets(Logistic(), x, 5)
    assert same(trained(Logistic(), [(x, y)]).f, trained(Logistic(), parts_of(x, y, 1, 20), workers=2).f)


def test_f_is_the_constant_and_a_term_of_each_column() -> None:
    x = table(6, 400)
    y = targets(Logistic(), x, 6)
    f = trained(Logistic(), [(x, y)]).f
    family = f.family
    assert isinstance(family, BoostedTrees)
    columns = family.layout.usable
    terms, z, at = terms_of(f, columns)[0], family.features(x), 1
    added = np.full(len(x), terms[0])
    for column in columns:
        own = terms[at : at + family.layout.cells[column]]
        added, at = added + own[z[:, column]], at + len(own)
    assert at == len(terms)
    assert np.array_equal(f(x)[:, 0], added)


def test_the_totals_are_gradient_and_curvature_in_one_hot_cells_and_along_a_direction() -> None:
    x = table(7, 300)
    y = targets(Logistic(), x, 7)
    loss, points = Logistic(), Points(0, x, y)
    state = trained(loss, [(x, y)], 1)
    family = state.f.family
    assert isinstance(family, BoostedTrees)
    f, columns, layout = state.f(x), family.layout.usable.astype(np.int32), family.layout
    units = Units.bounded(loss, len(x), 64, flat=False)
    assert units is not None
    question = CellSums(units, layout.cells.astype(np.int16), columns, layout.width, np.zeros(1, np.int32))
    here = Here(points, 1.0 / len(x), loss, y, f, family=family)
    by_cell = question.total({name: np.asarray(a) for name, a in question.part(here).items()})
    z = family.features(x)[:, columns]
    hot = np.concatenate([np.ones((len(x), 1)), *(np.eye(layout.cells[c])[z[:, k]] for k, c in enumerate(columns))], 1)
    h: Array = loss.curvature(f, y)[:, 0]
    assert np.allclose(by_cell.gradient[0], hot.T @ loss.gradient(f, y)[:, 0], atol=1e-9)
    assert np.allclose(by_cell.curvature[0], h @ hot, atol=1e-9)
    assert np.array_equal(by_cell.rows[0], hot.sum(axis=0))
    v = np.random.default_rng(0).uniform(-1.0, 1.0, (1, hot.shape[1])) / (1 + len(columns))
    look = CurvatureAlong(question, v)
    own = dict(look.part(here))
    assert np.allclose(look.total(own)[0], hot.T @ (h * (hot @ v[0])), atol=1e-9)
    look.check(own, len(x))
    own["along"][0] += 1.0
    with pytest.raises(FFGBError, match="differ from column to column"):
        look.check(own, len(x))


def test_columns_that_determine_one_another_do_not_make_steps_too_long() -> None:
    """As if columns were independent, a step would be as many times too long as there are copies."""
    rng = np.random.default_rng(3)
    first = rng.standard_normal((800, 1))
    y = np.sin(2.0 * first[:, 0]) + 0.1 * rng.standard_normal(800)
    one, many = (
        trained(Square(1), [(np.tile(first, copies).astype(np.float32), y)], 2, names=(), bins=32, least=10, leaves=64)
        for copies in (1, 8)
    )
    errors = [
        float(np.mean((s.f(np.tile(first, k).astype(np.float32))[:, 0] - y) ** 2)) for s, k in ((one, 1), (many, 8))
    ]
    assert errors[1] < 1.2 * errors[0] < 0.03


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_linear_trends_are_not_flattened(noise: float) -> None:
    """As good as ridge regression with the ridge that the evidence prefers, where everything is linear."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (2400, 6)).astype(np.float32)
    truth = x @ np.array([1.0, -0.5, 0.3, 0.0, 0.0, 0.0])
    y = truth + noise * rng.standard_normal(len(x))
    some = slice(0, 400)
    f = trained(Square(1), [(x[some], y[some])], 3, names=(), bins=64, least=10, leaves=64).f
    other = BayesianRidge().fit(x[some], y[some]).predict(x[400:])
    ours = float(np.mean((f(x[400:])[:, 0] - truth[400:]) ** 2))
    theirs = float(np.mean((other - truth[400:]) ** 2))
    assert ours < 2.0 * theirs + 1e-3  # bins are steps, so a little is lost where noise is small


def test_noise_is_not_learnt_and_steps_are_found() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2000, 5)).astype(np.float32)
    p = np.where(x[:, 0] > 0.5, 0.8, 0.2)
    y = (rng.random(len(x)) < p).astype(np.int64)
    state = trained(Logistic(), [(x[:1000], y[:1000])], 5, names=(), bins=64, least=20, leaves=64)
    found = state.job.loss.probability(state.f(x[1000:]))[:, 1]
    assert np.abs(found - p[1000:]).mean() < 0.06
    assert roc_auc_score(y[1000:], found) > 0.97 * roc_auc_score(y[1000:], p[1000:])


def test_columns_of_too_many_bins_are_refused() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 90)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    with pytest.raises(FFGBError, match="choose fewer"):
        trained(Logistic(), [(x, y)], 1, names=(), bins=64, least=5)


def test_a_start_is_what_training_goes_on_from() -> None:
    x = table(8, 400)
    y = targets(Logistic(), x, 8)
    make = learner(Logistic(), NAMES, 7, leaves=9)
    first, _ = federate([(x, y)], make, Logistic(), AdditiveShared(), 2, by_size=True)
    whole, _ = federate([(x, y)], make, Logistic(), AdditiveShared(), 4, by_size=True)
    family = first.f.family
    more, _ = federate([(x, y)], family, Logistic(), AdditiveShared(), 2, by_size=True, f0=first.f)
    assert np.allclose(more.f(x), whole.f(x), atol=1e-12)


def test_centres_of_bins() -> None:
    assert np.array_equal(centres(np.array([2.0])), [1.5, 2.5])
    assert np.array_equal(centres(np.array([1.0, 3.0, 4.0])), [0.0, 2.0, 3.5, 4.5])


def test_estimators_train_additive_models_with_weights() -> None:
    x = table(6, 400)
    y, site = targets(Logistic(), x, 6), np.arange(400) % 3
    model = FFGBClassifier(learner="additive", random_state=0).fit(x, y, clients=site)
    assert model.score(x, y) > 0.7
    heavy = FFGBClassifier(learner="additive", random_state=0)
    heavy.fit(x, y, clients=site, sample_weight=np.where(y, 3.0, 1.0))
    assert heavy.predict_proba(x)[:, 1].mean() > model.predict_proba(x)[:, 1].mean() + 0.1
    numbers = FFGBRegressor(learner="additive", random_state=0).fit(x, signal(x), clients=site)
    assert numbers.score(x, signal(x)) > 0.5
    with pytest.raises(FFGBError, match="huber"):
        FFGBRegressor(learner="additive", loss="huber").fit(x, signal(x), clients=site, sample_weight=1.0 + y)


@pytest.mark.parametrize("loss", [Poisson(1), Gamma(1)], ids=["poisson", "gamma"])
def test_steps_are_as_long_as_is_safe(loss: Loss) -> None:
    """A Newton step from the mean goes beyond e^20 here."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2000, 2)).astype(np.float32)
    mean = np.exp(1.6 * x[:, 0])
    y = rng.poisson(mean) / mean.mean() if isinstance(loss, Poisson) else rng.gamma(2.0, mean / 2.0) / mean.mean()
    losses = []
    for rounds in range(7):
        f = trained(loss, [(x, y)], rounds, names=(), bins=32).f
        losses.append(float(loss.value(f(x), y).mean()))
    assert (np.diff(losses) < 1e-3).all()
    assert losses[-1] < 0.2 + float(loss.value(np.log(mean / mean.mean())[:, None], y).mean())


def test_a_column_of_one_value_that_is_sometimes_missing_has_a_term(tmp_path: Path) -> None:
    """It has one bin and a cell of missing values, and no cut."""
    rng = np.random.default_rng(0)
    once = np.where(rng.random(200) < 0.3, np.nan, 1.0)
    y = np.where(np.isnan(once) ^ (rng.random(200) < 0.1), "yes", "no")
    pd.DataFrame({"once": once, "other": rng.standard_normal(200), "y": y}).to_csv(tmp_path / "a.csv", index=False)
    config = Config(data=(str(tmp_path / "a.csv"),), target="y", learner="additive", rounds=2)
    assert train(config, workers=0).summary["test_accuracy"] > 0.75


def test_columns_that_determine_one_another_do_not_let_a_step_go_astray(real_data: Path) -> None:
    """The indicators of Adult's categories as columns of their own: along some sums of them rows say little."""
    adult = load("adult")
    model = FFGBClassifier(learner="additive", rounds=4).fit(adult.x[:3000], adult.y[:3000])
    losses = [line["train_loss"] for line in model.history_]
    assert (np.diff(losses) < 0).all()
    assert losses[-1] < 0.3


def test_matrices_of_many_outputs_are_refused_and_a_blend_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has two matrices over pairs of bins for each output."""
    x = table(4, 400)
    y = targets(CrossEntropy(3), x, 4)
    monkeypatch.setattr(additive_shared, "MOST_NUMBERS", 10_000)
    with pytest.raises(FFGBError, match=r"an additive model of 3 outputs and \d+ bins needs .* GB at the server, and"):
        trained(CrossEntropy(3), [(x, y)])
    fitted = FFGBClassifier(learner="blend", rounds=1).fit(x, y)
    assert "share_additive" not in fitted.history_[-1]
    monkeypatch.setattr(additive_shared, "MOST_NUMBERS", 2**27)
    assert "share_additive" in FFGBClassifier(learner="blend", rounds=1).fit(x, y).history_[-1]


def test_a_step_is_looked_at_with_a_bound_on_its_slopes() -> None:
    """No |f| changes by more than the largest number times the columns and the constant."""
    sums = SimpleNamespace(
        gradient=np.array([[-3.0, 1.0, 1.0], [2.0, 0.0, 0.0]]), rows=16.0, square=np.array([4.0, 9.0])
    )
    found: Any = SimpleNamespace(sums=sums, step=np.array([[0.5, -2.0, 0.0], [0.25, 1.0, 0.0], [9.0, 9.0, 9.0]]))
    asked = list[Any]()

    def ask(question: Any, shown: Any) -> Any:
        asked.append((question, shown))
        return np.array([-1.0, 9.0, 0.2, *np.full(len(question.lengths) - 3, -0.5)])

    ask_any: Any = ask
    step = safe_step(found, 2, 16, ask_any, lambda some: some)  # type: ignore[arg-type, return-value]
    ((question, shown),) = asked
    np.testing.assert_array_equal(shown, found.step[:2])
    assert question.rows == 16
    assert question.most == pytest.approx(2.0 * 3 * (3.0 + 2.0 + 4.0 * 2.0 + 4.0 * 3.0 + 1.0))
    np.testing.assert_array_equal(step, 0.5 * found.step)  # half of the step does not go too far


@pytest.mark.parametrize(("cells", "rows", "fine"), [(2500, 3750, True), (2501, 9999, False), (2500, 3749, False)])
def test_a_table_has_few_enough_cells(cells: int, rows: int, fine: bool) -> None:
    bins = np.array([cells - 100, 100, 1], np.int16)
    assert fits(Layout(bins, np.zeros(3, bool), np.zeros(3, bool)), rows, 1) == fine
    assert not fits(Layout(bins[2:], np.zeros(1, bool), np.zeros(1, bool)), rows, 1)  # no column can be split
