"""Which learner is trained where none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb import Config, train
from ffgb.core.losses import LOSSES
from ffgb.data import Dataset
from ffgb.features.tables import MANY_FEATURES
from ffgb.learners.catalogue import LEARNERS
from ffgb.report.words import chosen_of
from ffgb.runs.choose_learner import AUTO, FEWEST_ROWS, MOST_CELLS, MOST_COLUMNS, MOST_COLUMNS_OF_TREES
from ffgb.runs.directory import Run


def table(rows: int = 400, columns: int = 3, classes: int = 2) -> Dataset:
    """A table of which only the shape is looked at: a row takes no memory."""
    x = np.broadcast_to(np.zeros(columns, np.float32), (rows, columns))
    y = np.arange(rows) % classes if classes else np.linspace(0.0, 1.0, rows)
    names = tuple(f"class{k}" for k in range(classes))
    task = "classification" if classes else "regression"
    return Dataset("table", task, x, y, x[:0], y[:0], names, tuple(f"x{j}" for j in range(columns)))


def resolved(dataset: Dataset, **settings: Any) -> Any:
    return Config(**{"data": ("table",), "clients": 4, "split": "iid", **settings}).resolved(dataset)


@pytest.mark.parametrize(
    ("dataset", "settings", "learner", "why"),
    [
        (table(), {}, "blend", "a table"),
        (table(classes=0), {}, "blend", "a table"),
        (table(classes=0), {"loss": "huber"}, "blend", "a table"),
        (table(), {"leaves": 8, "rounds": 3, "secure": "on"}, "blend", "a table"),
        (table(), {"client_weights": "size", "local_steps": 1}, "blend", "a table"),
        (table(classes=0), {"loss": "quantile"}, "trees", "quantile has no bound"),
        (table(classes=0), {"loss": "poisson"}, "trees", "poisson has no bound"),
        (table(), {"group": "patient"}, "trees", "keeps rows together"),
        (table(rows=MOST_CELLS // MOST_COLUMNS + 1, columns=MOST_COLUMNS), {}, "trees", "cells"),
        (table(columns=MOST_COLUMNS + 1), {}, "trees", "columns"),
        (table(rows=4_000, classes=41), {}, "trees", "classes"),
        (table(columns=MOST_COLUMNS_OF_TREES + 1), {}, "features", "columns"),
        (table(columns=MANY_FEATURES + 1), {}, "linear", "columns"),
        (table(rows=FEWEST_ROWS - 1), {}, "features", "rows"),
        (table(), {"participation": 0.5}, "features", "not all clients"),
        (table(), {"geometry": "local"}, "features", "not of all rows"),
        (table(), {"algorithm": "fedavg"}, "features", "grows no trees"),
        (table(), {"features": 32}, "features", "setting features"),
        (table(), {"validation": 0.2}, "features", "setting validation"),
        (table(), {"local_steps": 2}, "features", "setting local_steps"),
    ],
)
def test_what_is_trained_where_no_learner_is_named(
    dataset: Dataset, settings: dict[str, Any], learner: str, why: str
) -> None:
    assert Config().learner == AUTO
    found = resolved(dataset, **settings)
    assert found.learner == learner
    assert why in found.because
    assert "learner" not in found.asked
    assert found.resolved(dataset) == found


@pytest.mark.parametrize(("rows", "leaf", "rate"), [(999, 10, 0.4), (1_000, 20, 0.4), (10_000, 20, 0.8)])
def test_a_blend_suits_its_rows(rows: int, leaf: int, rate: float) -> None:
    found = resolved(table(rows=rows))
    assert (found.leaf_rows, found.tree_rate) == (leaf, rate)
    assert resolved(table(rows=rows), leaf_rows=15, tree_rate=0.1).leaf_rows == 15
    assert resolved(table(rows=rows), learner="trees").leaf_rows == 20


@pytest.mark.parametrize(
    ("rows", "columns", "rate", "bins", "leaves", "levels"),
    [
        (999, 4, 0.4, 255, 31, 6),
        (1_000, 8, 0.5, 150, 31, 6),
        (2_000, 40, 0.5, 100, 63, 7),
        (50_000, 4, 0.5, 255, 63, 7),
    ],
)
def test_a_blend_that_predicts_numbers_has_finer_bins_and_larger_trees(
    rows: int, columns: int, rate: float, bins: int, leaves: int, levels: int
) -> None:
    found = resolved(table(rows=rows, columns=columns, classes=0))
    assert (found.leaf_rows, found.tree_rate, found.bins) == (10, rate, bins)
    assert (found.leaves, found.levels, found.rounds) == (leaves, levels, 200)
    assert resolved(table(rows=rows, columns=columns, classes=0), learner="trees").leaves == 31


def test_images_keep_features() -> None:
    x = np.zeros((400, 1, 4, 4), np.float32)
    images = Dataset("images", "classification", x, np.arange(400) % 2, x[:0], np.zeros(0, int), ("a", "b"), image=True)
    found = resolved(images)
    assert found.learner == "features"
    assert "no table" in found.because


def test_every_loss_has_a_learner() -> None:
    for name, loss in LOSSES.items():
        found = resolved(table(classes=2 if loss.classification else 0), loss=name)
        assert found.learner in (("blend", "trees") if loss.alone else ("additive",))


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_that_is_named_is_trained(learner: str) -> None:
    if learner in ("cnn", "lipschitz"):
        pytest.skip("for images, and for another algorithm")
    found = resolved(table(), learner=learner)
    assert (found.learner, found.because) == (learner, "")


def test_a_run_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    config = Config(data=("diabetes",), clients=3, rounds=1)

    summary = train(config, tmp_path / "run", workers=0).summary
    assert summary["learner"] == "blend"
    said = chosen_of(summary)
    assert said.startswith("Learner blend was chosen: a table")
    for name in ("deep", "shallow", "additive"):
        assert summary["held_out"] <= summary[f"held_out_{name}"]
        assert f"{summary[f'held_out_{name}']:.4g}" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Learner blend was chosen: a table" in page
    assert f"{summary['held_out']:.4g}" in page
    again = train(Config.from_json(Run.open(tmp_path / "run").config), tmp_path / "run", resume=True, workers=0)
    assert {name: again.summary[name] for name in ("learner", "because")} == {
        name: summary[name] for name in ("learner", "because")
    }
