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
