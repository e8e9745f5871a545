"""Curves from counts by cell: those of the rows themselves, where cells are fine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_curve, roc_auc_score

from ffgb.core.probability_cells import GRID, ProbabilityCells
from ffgb.core.types import Array


def drawn(rows: int = 500, seed: int = 0) -> tuple[Array, Array]:
    """Probabilities in the middle of cells of the grid, and classes."""
    rng = np.random.default_rng(seed)
    middle = (GRID[:-1] + GRID[1:]) / 2
    p = rng.choice(middle[40:120], rows)
    return p, (rng.random(rows) < p).astype(np.int64)


@pytest.mark.parametrize(("least", "close"), [(1, 0.004), (10, 0.02)])
def test_the_area_under_the_curve_is_the_auc(least: int, close: float) -> None:
    p, y = drawn(1500)
    roc = ProbabilityCells.of(p, y, least=least).roc()
    area = np.trapezoid(roc["true_positive_rate"], roc["false_positive_rate"])
    assert area == pytest.approx(roc_auc_score(y, p), abs=close)


def test_precision_and_recall_are_those_of_scikit_learn() -> None:
    p, y = drawn()
    cells = ProbabilityCells.of(p, y, least=10)
    found = cells.precision_recall()
    precision, recall, thresholds = precision_recall_curve(y, p)
    assert len(found["threshold"]) == len(cells.thresholds) > 10
    for threshold, r, q in zip(found["threshold"], found["recall"], found["precision"], strict=True):
        at = int(np.searchsorted(thresholds, threshold))
        exact = threshold in cells.edges or threshold == 0.0
        assert (r, q) == pytest.approx((recall[at], precision[at]), abs=1e-9 if exact else 0.04)


@pytest.mark.parametrize("threshold", [0.4, 0.5])
def test_calls_and_net_benefits_are_those_of_the_rows(threshold: float) -> None:
    p, y = drawn()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(p))
    cells = ProbabilityCells.of(p, y, weights, least=10, threshold=threshold)
    assert (cells.rows >= 10).all()
    assert threshold in cells.edges
    ends = [0.0, *cells.edges, 1.0]
    for low, high, counts in zip(ends[:-1], ends[1:], cells.rows, strict=True):
        inside = (p >= low) & (p < high)
        assert counts.tolist() == [(inside & (y == k)).sum() for k in (0, 1)]
    curve = cells.decision_curve()
    highest = min(own.edges.max() for own in cells.kinds)
    inside = (cells.thresholds > 0.0) & (cells.thresholds <= min(highest, 0.95))
    assert curve["threshold"] == sorted(cells.thresholds[inside].tolist())
    for t, net, everyone in zip(curve["threshold"], curve["model"], curve["all"], strict=True):
        mass, above = weights / weights.sum(), p >= t
        expected = mass @ (above & (y == 1)) - mass @ (above & (y == 0)) * t / (1 - t)
        assert net == pytest.approx(expected, abs=1e-9 if t in cells.edges else 0.03)
        assert everyone == pytest.approx(mass @ (y == 1) - mass @ (y == 0) * t / (1 - t))


def test_calibration_says_what_came_of_what_was_predicted() -> None:
    p, y = drawn(2000)
    cells = ProbabilityCells.of(p, y, least=10)
    found = cells.calibration()
    assert len(found) == 7
    assert sum(group["rows"] for group in found) == 2000
    assert sum(group["rows"] * group["predicted"] for group in found) == pytest.approx(p.sum())
    assert sum(group["rows"] * group["observed"]["value"] for group in found) == pytest.approx(y.sum())
    assert all(g["observed"]["low"] < g["predicted"] < g["observed"]["high"] for g in found[:6])


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(40, 300), least=st.integers(1, 12))
def test_no_cell_has_few_rows_of_a_class(seed: int, rows: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.3, 1.0, rows)
    y = (rng.random(rows) < p).astype(np.int64)
    cells = ProbabilityCells.of(p, y, least=least, most=12)
    assert cells.holds(least) == ((cells.rows >= least).all() and min(np.bincount(y, minlength=2)) >= least)
    assert len(cells.rows) <= 12
    for k, own in enumerate(cells.kinds):
        np.testing.assert_array_equal(np.bincount(own.cell_of(p[y == k]), minlength=len(own.rows)), own.rows)
        assert len(own.rows) <= 12
        assert not cells.holds(least) or (own.rows >= least).all()
        assert set(cells.edges) <= set(own.edges)


def test_cells_by_hand() -> None:
    p, y = np.array([0.1, 0.2, 0.3, 0.6, 0.7, 0.9]), np.array([0, 0, 1, 0, 1, 1])
    found = ProbabilityCells.of(p, y, least=1).to_json()
    assert [(cell["rows"], round(cell["predicted"], 6)) for cell in found["cells"]] == [
        ([2, 1], 0.2),
        ([1, 2], 0.733333),
    ]
    assert (found["cells"][0]["from"], found["cells"][0]["to"], found["cells"][1]["to"]) == (0.0, 0.5, 1.0)
    assert (found["negatives"]["rows"], found["positives"]["rows"]) == ([1, 1, 1], [1, 1, 1])
    roc = found["roc"]
    assert roc["threshold"][0] is None
    assert (roc["false_positive_rate"][0], roc["true_positive_rate"][0]) == (0.0, 0.0)
    assert (roc["false_positive_rate"][-1], roc["true_positive_rate"][-1]) == (1.0, 1.0)
    assert found["best_threshold"] in roc["threshold"]
    at = roc["threshold"].index(0.5)
    assert roc["false_positive_rate"][at] == pytest.approx(1 / 3)
    assert roc["true_positive_rate"][at] == pytest.approx(2 / 3)


def test_groups_of_calibration_are_ten_at_most() -> None:
    rng = np.random.default_rng(3)
    p = rng.uniform(0.02, 0.98, 40_000)
    cells = ProbabilityCells.of(p, (rng.random(40_000) < p).astype(np.int64), least=10)
    found = cells.calibration()
    assert len(found) == 10
    assert all(3000 < group["rows"] < 5000 for group in found)


def test_a_best_threshold_is_where_the_rates_are_farthest_apart() -> None:
    p, y = drawn()
    cells = ProbabilityCells.of(p, y, least=10)
    best = cells.best_threshold
    assert best is not None
    gain = [(p[y == 1] >= t).mean() - (p[y == 0] >= t).mean() for t in cells.edges]
    mine = (p[y == 1] >= best).mean() - (p[y == 0] >= best).mean()
    assert mine >= max(gain) - 0.03
    assert ProbabilityCells.of(np.array([0.3, 0.3]), np.array([0, 1]), least=2).best_threshold is None


def test_one_threshold_is_the_best() -> None:
    p, y = np.array([0.1, 0.2, 0.7, 0.9]), np.array([0, 0, 1, 1])
    cells = ProbabilityCells.of(p, np.array([0, 1, 0, 1]), least=1)
    assert cells.best_threshold == 0.5
    assert len(cells.thresholds) >= 2
    two = ProbabilityCells.of(np.repeat([0.3, 0.6], 2), np.array([0, 1, 0, 1]), least=1)
    assert len(two.thresholds) == 2
    assert two.best_threshold == 0.5
    assert ProbabilityCells.of(p, y, least=2).best_threshold is None  # no cell has both
