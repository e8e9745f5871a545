"""The logistic loss: against finite differences, torch, cross entropy, statsmodels and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.losses import CrossEntropy, Logistic
from ffgb.core.losses.links import Logit
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

LOSS = Logistic()
SEEDS = st.integers(0, 2**32 - 1)


def draw(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(0, 2, n)


def sample(n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 1)), draw(rng, n)


@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(LOSS, draw, seed, scale)


@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(seed: int, scale: float) -> None:
    checks.bounded(LOSS, draw, seed, scale)
    checks.convex(LOSS, draw, seed, scale)


def test_the_bounds_are_reached() -> None:
    assert np.abs(LOSS.gradient(np.array([[50.0]]), np.array([0]))).max() == pytest.approx(1.0)
    assert LOSS.curvature(np.zeros((1, 1)), np.array([0]))[0, 0] == LOSS.smoothness


def test_curvature_equals_second_differences() -> None:
    checks.curvature_equals_second_differences(LOSS, *sample())


def test_it_equals_torch() -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y.double(), reduction="none")

    checks.equals_torch(LOSS, *sample(), value)


def test_it_is_cross_entropy_with_one_score_fixed_at_zero() -> None:
    f, y = sample()
    both = np.hstack([np.zeros_like(f), f])
    np.testing.assert_allclose(LOSS.value(f, y), CrossEntropy(2).value(both, y))
    np.testing.assert_allclose(LOSS.gradient(f, y)[:, 0], CrossEntropy(2).gradient(both, y)[:, 1])
    np.testing.assert_allclose(LOSS.probability(f), CrossEntropy(2).probability(both))
    np.testing.assert_allclose(LOSS.curvature(f, y)[:, 0], CrossEntropy(2).curvature(both, y)[:, 1])


def test_the_gradient_vanishes_at_the_fit_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    x = sm.add_constant(rng.standard_normal((200, 2)))
    y = (x.sum(axis=1) + rng.logistic(size=200) > 0).astype(int)
    fit = sm.GLM(y, x, family=sm.families.Binomial()).fit(tol=1e-12)
    f = (x @ fit.params)[:, None]
    np.testing.assert_allclose(x.T @ LOSS.gradient(f, y), 0.0, atol=1e-9)
    assert LOSS.value(f, y).sum() == pytest.approx(-fit.llf)


def test_large_scores_do_not_overflow() -> None:
    assert LOSS.value(np.array([[1e4]]), np.array([0]))[0] == pytest.approx(1e4)


def test_the_link_is_the_logit() -> None:
    f, _ = sample()
    assert LOSS.link == Logit()
    checks.link_equals_onnx(LOSS.link, 5 * f)
    np.testing.assert_array_equal(LOSS.mean(f)[:, 0], LOSS.probability(f)[:, 1])


def test_classes_are_not_scaled_and_predictions_are_probabilities() -> None:
    f, y = sample()
    assert LOSS.scaling(Moments.of(y)) is None
    np.testing.assert_array_equal(LOSS.unscaled(f), LOSS.probability(f))
    assert LOSS.unscaled(f).shape == (50, 2)


def test_scores_count_correct_predictions() -> None:
    f, y = sample()
    assert LOSS.scores(f, y) == {"correct": float(((f[:, 0] > 0) == y).sum())}
    checks.weights_repeat_rows(LOSS, f, y)


def test_it_is_made_for_two_classes() -> None:
    assert Logistic.of(classes=2, outputs=2) == Logistic()
    with pytest.raises(FFGBError, match="the targets have 3 classes, the logistic loss has two: use cross-entropy"):
        Logistic.of(classes=3, outputs=3)
    with pytest.raises(FFGBError, match="logistic does not fit regression"):
        Logistic.of(classes=0, outputs=1)
    with pytest.raises(FFGBError, match="one output"):
        Logistic(2)


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(FFGBError, match="must lie in 0 … 1"):
        LOSS.check(np.array([0, 2]))
