"""Cross entropy: against finite differences, torch, scikit-learn and onnxruntime; bounds; refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss

from ffgb.core.losses import CrossEntropy
from ffgb.core.losses.links import Softmax
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

LOSS = CrossEntropy(4)
SEEDS = st.integers(0, 2**32 - 1)


def draw(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(0, 4, n)


def sample(n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 4)), draw(rng, n)


@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(LOSS, draw, seed, scale)


@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(seed: int, scale: float) -> None:
    checks.bounded(LOSS, draw, seed, scale)
    checks.convex(LOSS, draw, seed, scale)


def test_the_bounds_are_reached() -> None:
    gradient = LOSS.gradient(np.array([[50.0, -50.0, 0.0, 0.0]]), np.array([1]))
    assert np.linalg.norm(gradient) == pytest.approx(LOSS.bound) == pytest.approx(math.sqrt(2))
    assert np.abs(gradient).max() == pytest.approx(1.0)


def test_curvature_equals_second_differences() -> None:
    checks.curvature_equals_second_differences(LOSS, *sample())


def test_it_equals_torch() -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(f, y, reduction="none")

    checks.equals_torch(LOSS, *sample(), value)


def test_it_equals_scikit_learns() -> None:
    f, y = sample()
    assert LOSS.value(f, y).mean() == pytest.approx(log_loss(y, LOSS.probability(f), labels=range(4)))


def test_large_scores_do_not_overflow() -> None:
    assert CrossEntropy(2).value(np.array([[1e4, -1e4]]), np.array([1]))[0] == pytest.approx(2e4)


def test_the_gradient_vanishes_where_probabilities_are_shares() -> None:
    y = np.array([0, 0, 0, 1, 2, 3])
    f = np.log(np.bincount(y) / len(y))[None].repeat(len(y), axis=0)
    np.testing.assert_allclose(LOSS.gradient(f, y).sum(axis=0), 0.0, atol=1e-14)


def test_the_link_is_softmax() -> None:
    f, _ = sample()
    assert LOSS.link == Softmax()
    checks.link_equals_onnx(LOSS.link, 5 * f)
    np.testing.assert_array_equal(LOSS.mean(f), LOSS.probability(f))
    np.testing.assert_allclose(LOSS.probability(f).sum(axis=1), 1.0)


def test_classes_are_not_scaled_and_predictions_are_probabilities() -> None:
    f, y = sample()
    assert LOSS.scaling(Moments.of(y)) is None
    np.testing.assert_array_equal(LOSS.unscaled(f), LOSS.probability(f))


def test_scores_count_correct_predictions() -> None:
    f, y = sample()
    assert LOSS.scores(f, y) == {"correct": accuracy_score(y, f.argmax(axis=1), normalize=False)}
    checks.weights_repeat_rows(LOSS, f, y)


def test_it_is_made_for_the_number_of_classes() -> None:
    assert CrossEntropy.of(classes=7, outputs=7) == CrossEntropy(7)
    with pytest.raises(FFGBError, match=r"cross-entropy does not fit regression: .* the targets are numbers"):
        CrossEntropy.of(classes=0, outputs=1)


@pytest.mark.parametrize(
    ("y", "words"),
    [(np.array([0, 3]), "must lie in 0 … 2, found 0 … 3"), (np.array([0.5, 1.0]), "one integer a row")],
)
def test_wrong_targets_are_refused(y: Array, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        CrossEntropy(3).check(y)
