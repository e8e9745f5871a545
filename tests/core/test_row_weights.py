"""A loss whose rows have weights: bounds hold, and a row of weight 2 is the row twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss
from ffgb.core.row_weights import WeightedRows
from ffgb.core.types import Array
from ffgb.errors import FFGBError

LOSSES: list[Loss] = [CrossEntropy(3), Logistic(), Huber(2, 0.5)]


def rows(loss: Loss, seed: int, n: int = 12) -> tuple[Array, Array, Array]:
    """Values of f, targets and weights."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, max(2, loss.outputs), n) if loss.classification else rng.standard_normal((n, loss.outputs))
    return 3.0 * rng.standard_normal((n, loss.outputs)), y, rng.uniform(0.1, 9.0, n)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@given(seed=st.integers(0, 2**32 - 1))
def test_bounds_hold(loss: Loss, seed: int) -> None:
    f, y, weights = rows(loss, seed)
    weighted = WeightedRows(loss, weights)
    g = f + np.random.default_rng(seed).standard_normal(f.shape)
    change = np.linalg.norm(weighted.gradient(f, y) - weighted.gradient(g, y), axis=1)
    assert (change <= weighted.smoothness * np.linalg.norm(f - g, axis=1) * (1 + 1e-9)).all()
    assert np.linalg.norm(weighted.gradient(f, y), axis=1).max() <= weighted.bound * (1 + 1e-12)
    assert np.abs(weighted.gradient(f, y)).max() <= weighted.entry_bound * (1 + 1e-12)
    assert weighted.curvature(f, y).max() <= weighted.smoothness * (1 + 1e-12)


def test_bounds_are_those_of_the_heaviest_row() -> None:
    weighted = WeightedRows(Huber(1, 0.5), np.array([1.0, 3.0]))
    assert (weighted.smoothness, weighted.bound, weighted.entry_bound) == (1.5, 0.75, 0.75)
    y, near, far = np.zeros((2, 1)), np.full((2, 1), 0.1), np.full((2, 1), 9.0)
    assert weighted.curvature(near, y).max() == weighted.smoothness  # and they are reached
    assert weighted.gradient(far, y).max() == weighted.bound


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_row_of_weight_2_is_the_row_twice(loss: Loss) -> None:
    f, y, _ = rows(loss, 0, 3)
    weighted, twice = WeightedRows(loss, np.array([1.0, 2.0, 1.0])), [0, 1, 1, 2]
    assert weighted.value(f, y).mean() == pytest.approx(loss.value(f[twice], y[twice]).mean())
    # the gradient in L² of the three points, at the second: twice that of a row, over the mean weight
    np.testing.assert_allclose(weighted.gradient(f, y)[1], 1.5 * loss.gradient(f, y)[1])
    for name in ("outputs", "classification", "least"):
        assert getattr(weighted, name) == getattr(loss, name)


def test_targets_are_checked_by_the_loss_within() -> None:
    with pytest.raises(FFGBError, match="class labels must"):
        WeightedRows(CrossEntropy(3), np.ones(2)).check(np.array([0.5, 1.0]))
