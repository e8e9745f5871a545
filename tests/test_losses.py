"""Losses: gradients against finite differences, bounds that hold and are reached, targets that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad
from sklearn.metrics import log_loss

from ffgb.errors import FFGBError
from ffgb.losses import CrossEntropy, Huber, Logistic, Loss, Square

LOSSES: list[Loss] = [CrossEntropy(4), Logistic(), Square(1), Square(3), Huber(1), Huber(3, delta=0.5)]


def targets(loss: Loss, n: int, rng: np.random.Generator) -> np.ndarray:
    if loss.classification:
        return rng.integers(0, 2 if isinstance(loss, Logistic) else loss.outputs, n)
    return rng.standard_normal((n, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(n)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(loss: Loss, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    y = targets(loss, 1, rng)
    f = scale * rng.standard_normal(loss.outputs)
    error = check_grad(
        lambda v: float(loss.value(v[None], y)[0]), lambda v: loss.gradient(v[None], y)[0], f, epsilon=1e-6
    )
    assert error < 1e-4 * (1 + scale)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_gradient_is_smooth_and_monotone(loss: Loss, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    y = targets(loss, 20, rng)
    f, g = scale * rng.standard_normal((2, 20, loss.outputs))
    gradient = loss.gradient(f, y)
    assert np.linalg.norm(gradient, axis=1).max() <= loss.bound * (1 + 1e-12)
    assert np.abs(gradient).max() <= loss.entry_bound * (1 + 1e-12)
    change = gradient - loss.gradient(g, y)
    assert (np.einsum("ij,ij->i", change, f - g) >= -1e-9).all()  # convexity
    distance = np.linalg.norm(f - g, axis=1)
    assert (np.linalg.norm(change, axis=1) <= loss.smoothness * distance * (1 + 1e-9) + 1e-12).all()


def test_the_bounds_are_reached() -> None:
    f = np.array([[50.0, -50.0, 0.0, 0.0]])
    gradient = CrossEntropy(4).gradient(f, np.array([1]))
    assert np.linalg.norm(gradient) == pytest.approx(CrossEntropy(4).bound) == pytest.approx(math.sqrt(2))
    assert np.abs(gradient).max() == pytest.approx(1.0)
    assert np.abs(Logistic().gradient(np.array([[50.0]]), np.array([0]))).max() == pytest.approx(1.0)
    assert np.linalg.norm(Huber(3, 0.5).gradient(np.full((1, 3), 9.0), np.zeros((1, 3)))) == pytest.approx(
        Huber(3, 0.5).bound
    )


def test_cross_entropy_equals_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.standard_normal((50, 4)), rng.integers(0, 4, 50)
    loss = CrossEntropy(4)
    assert loss.value(f, y).mean() == pytest.approx(log_loss(y, loss.probability(f), labels=range(4)))


def test_logistic_is_cross_entropy_with_one_score_fixed_at_zero() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.standard_normal((50, 1)), rng.integers(0, 2, 50)
    both = np.hstack([np.zeros_like(f), f])
    np.testing.assert_allclose(Logistic().value(f, y), CrossEntropy(2).value(both, y))
    np.testing.assert_allclose(Logistic().gradient(f, y)[:, 0], CrossEntropy(2).gradient(both, y)[:, 1])
    np.testing.assert_allclose(Logistic().probability(f), CrossEntropy(2).probability(both))


def test_large_scores_do_not_overflow() -> None:
    f = np.array([[1e4, -1e4]])
    assert CrossEntropy(2).value(f, np.array([1]))[0] == pytest.approx(2e4)
    assert Logistic().value(np.array([[1e4]]), np.array([0]))[0] == pytest.approx(1e4)


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        (CrossEntropy(3), np.array([0, 3]), "must lie in 0 … 2"),
        (CrossEntropy(3), np.array([0.5, 1.0]), "one integer a row"),
        (Logistic(), np.array([0, 2]), "must lie in 0 … 1"),
        (Square(2), np.zeros(3), "2 number"),
        (Square(1), np.array([1.0, np.nan]), "1 target value"),
        (Huber(1), np.array([np.inf]), "remove those rows"),
    ],
)
def test_wrong_targets_are_refused(loss: Loss, y: np.ndarray, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        loss.check(y)


def test_regression_gives_no_probabilities() -> None:
    with pytest.raises(FFGBError, match="no probabilities"):
        Square(1).probability(np.zeros((1, 1)))
