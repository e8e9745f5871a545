"""The square loss: against finite differences, torch, scikit-learn and statsmodels; scaling, scores, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error

from ffgb.core.losses import Square
from ffgb.core.losses.links import Identity
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Square(1), Square(3)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Square) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        return rng.standard_normal((n, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(n)

    return draw


def sample(loss: Square, n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), 10 + 4 * rng.standard_normal((n, loss.outputs))


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(loss: Square, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(loss: Square, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


@EACH
def test_the_smoothness_is_reached(loss: Square) -> None:
    """Default steps are its inverse: a bound that is too large would make them too short."""
    f = np.ones((1, loss.outputs))
    change = loss.gradient(2.0 * f, f) - loss.gradient(f, f)
    assert np.linalg.norm(change) == pytest.approx(loss.smoothness * np.linalg.norm(f))


@EACH
def test_curvature_equals_second_differences(loss: Square) -> None:
    checks.curvature_equals_second_differences(loss, *sample(loss))


@EACH
def test_it_equals_torch(loss: Square) -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return 0.5 * torch.nn.functional.mse_loss(f, y, reduction="none").sum(axis=1)

    checks.equals_torch(loss, *sample(loss), value)


@EACH
def test_zero_is_the_best_constant(loss: Square) -> None:
    checks.zero_is_the_best_constant(loss, sample(loss)[1])


def test_the_mean_is_the_fit_of_statsmodels() -> None:
    _, y = sample(Square())
    scaled, mean, scale = checks.scaled(Square(), y)
    fit = sm.OLS(y[:, 0], np.ones(50)).fit()
    np.testing.assert_allclose(mean, fit.params)
    np.testing.assert_allclose(scale**2, fit.ssr / 50)
    assert Square().value(np.zeros((50, 1)), scaled).mean() == pytest.approx(0.5)


def test_constant_targets_keep_their_scale() -> None:
    _, mean, scale = checks.scaled(Square(), np.full(5, 3.0))
    assert (mean.item(), scale.item()) == (3.0, 1.0)


@EACH
def test_scores_are_squared_errors_in_own_units(loss: Square) -> None:
    f, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, y)
    predicted = loss.unscaled(f, mean, scale)
    np.testing.assert_array_equal(predicted, f * scale + mean)
    score = loss.scores(f, scaled, mean, scale)
    assert score == {"squared_error": pytest.approx(mean_squared_error(y, predicted) * y.size)}
    assert loss.scores(f, y) == {"squared_error": pytest.approx(2 * loss.value(f, y).sum())}
    checks.weights_repeat_rows(loss, f, scaled, mean, scale)


def test_the_link_is_the_identity() -> None:
    f, _ = sample(Square(3))
    assert Square().link == Identity()
    checks.link_equals_onnx(Square().link, f)


def test_it_teaches_values() -> None:
    f, _ = sample(Square(3))
    np.testing.assert_array_equal(Square(3).lessons(f), f)


def test_regression_gives_no_probabilities() -> None:
    with pytest.raises(FFGBError, match="no probabilities"):
        Square(1).probability(np.zeros((1, 1)))


def test_it_is_made_for_the_number_of_columns() -> None:
    assert Square.of(classes=0, outputs=3) == Square(3)
    with pytest.raises(FFGBError, match=r"square does not fit classification: .* the targets are classes"):
        Square.of(classes=2, outputs=2)


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [(Square(2), np.zeros(3), "2 number"), (Square(1), np.array([1.0, np.nan]), "1 target value.*remove those rows")],
)
def test_wrong_targets_are_refused(loss: Square, y: Array, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        loss.check(y)
