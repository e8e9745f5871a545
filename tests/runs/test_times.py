"""Boosting times until an event, `--target days,died`: every learner of totals, under masks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ffgb
from ffgb.core.concordance import c_index, concordance
from ffgb.core.losses.cox import times_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate
from ffgb.runs.model import Model
from ffgb.runs.training import train

NAMES = ("north", "south", "west")


def table(rng: np.random.Generator, n: int, baseline: float) -> pd.DataFrame:
    rows = pd.DataFrame({"age": rng.normal(60, 10, n).round(), "treated": rng.integers(0, 2, n)})
    days = rng.exponential(baseline * np.exp(-0.06 * (rows.age - 60) + 0.9 * rows.treated))
    return rows.assign(days=np.minimum(days, 1000).round() + 1, died=(days < 1000).astype(int))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    for name, baseline in zip(NAMES, (800, 400, 1500), strict=True):
        table(rng, 150, baseline).to_csv(tmp_path / f"{name}.csv", index=False)
    return tuple(str(tmp_path / f"{name}.csv") for name in NAMES)


def coefficients(model: Model, x: Array) -> Array:
    """Of f, as a line in the columns."""
    design = np.column_stack([np.ones(len(x)), x])
    found: Array = np.linalg.lstsq(design, model.decision(x)[:, 0], rcond=None)[0][1:]
    return found


@pytest.mark.parametrize("learner", ["linear", "additive"])
def test_a_line_is_that_of_coxs_model(learner: str, files: tuple[str, ...]) -> None:
    """Up to the shrinkage that the evidence asks for."""
    model = train(Config(data=files, target="days,died", learner=learner), workers=0).model
    known = ffgb.cox(files, "age + treated", time="days", event="died", ties="breslow")
    x = np.concatenate([pd.read_csv(file)[["age", "treated"]].to_numpy(np.float32) for file in files])
    assert np.abs(coefficients(model, x) - known.coefficients).max() < 0.15 * np.abs(known.coefficients).max()
    assert np.all(np.abs(coefficients(model, x) - known.coefficients) < 3.0 * known.standard_errors)


@pytest.mark.parametrize("learner", ["auto", "trees", "linear", "features"])
def test_new_rows_are_ordered_and_masks_change_no_bit(learner: str, files: tuple[str, ...]) -> None:
    config = {"data": files, "target": "days,died", "learner": learner, "rounds": 3}
    result = train(Config(**config), workers=0)
    hidden = train(Config(**config, secure="on"), workers=0)
    ours, theirs = result.model.f.tensors(), hidden.model.f.tensors()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    new = table(np.random.default_rng(1), 500, 600)
    f = result.model.predict(new[["age", "treated"]].to_numpy(np.float32))
    found = c_index(concordance(new.days.to_numpy(), new.died.to_numpy() > 0, f))
    assert found is not None
    assert found > 0.62  # 0.68 for the truth
    assert result.summary["test_concordance"] > 0.5
    assert "test_rmse" not in result.summary


def test_no_sum_of_times_is_asked_for(files: tuple[str, ...]) -> None:
    """Only gradients depend on them: doubling all times changes nothing."""
    twice = []
    for file in files:
        pd.read_csv(file).assign(days=lambda rows: rows.days * 2).to_csv(f"{file}.2.csv", index=False)
        twice.append(f"{file}.2.csv")
    one, two = (train(Config(data=tuple(some), target="days,died", rounds=2), workers=0) for some in (files, twice))
    assert one.summary["learner"] == "additive"
    assert [line["train_loss"] for line in one.metrics] == [line["train_loss"] for line in two.metrics]
    tensors = one.model.f.tensors()
    assert all(np.array_equal(tensors[name], array) for name, array in two.model.f.tensors().items())


def test_a_run_is_evaluated_by_site(files: tuple[str, ...], tmp_path: Path) -> None:
    result = train(Config(data=files, target="days,died", rounds=2), tmp_path / "run", workers=0)
    found = evaluate(Run.open(tmp_path / "run"))
    assert set(found) == {"all", *NAMES}
    rows = sum(found[name]["rows"] for name in NAMES)
    mean = sum(found[name]["rows"] * found[name]["concordance"] for name in NAMES) / rows
    assert result.summary["test_concordance"] == pytest.approx(mean)
    clients = Run.open(tmp_path / "run").clients
    assert clients is not None
    held = [row["test"]["concordance"] for row in clients["clients"]]
    assert held == pytest.approx([found[name]["concordance"] for name in NAMES])


def test_events_are_held_out_in_proportion(files: tuple[str, ...]) -> None:
    dataset = load_data(Config(data=files, target="days,died"))
    shares = [times_of(y)[1].mean() for y in (dataset.y, dataset.y_test)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        ({}, {"target": "days,dead"}, "no column 'dead'"),
        ({}, {"target": "days,died,age"}, "neither one column nor"),
        ({"died": 2}, {}, "values other than 0 and 1"),
        ({"days": -1.0}, {}, "count times from the start"),
        ({}, {"loss": "square"}, "knows of no events"),
        ({}, {"learner": "blend"}, "a blend sets rows aside"),
        ({}, {"weights": "age"}, "cannot be combined with"),
        ({}, {"task": "classification"}, "no class"),
    ],
)
def test_what_cannot_be_is_said(
    change: dict[str, float], given: dict[str, str], words: str, files: tuple[str, ...]
) -> None:
    pd.read_csv(files[0]).assign(**change).to_csv(files[0], index=False)
    with pytest.raises(FFGBError, match=words):
        train(Config(**{"data": files, "target": "days,died", "rounds": 1, **given}), workers=0)
