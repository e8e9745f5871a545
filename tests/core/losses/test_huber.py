"""Huber's loss: against finite differences, torch and statsmodels; bounds, scaling, scores, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.losses import Huber, Square
from ffgb.core.losses.links import Identity
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Huber(1), Huber(3, delta=0.5)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Huber) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        return rng.standard_normal((n, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(n)

    return draw


def sample(loss: Huber, n: int = 200) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), rng.standard_normal((n, loss.outputs))


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(loss: Huber, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(loss: Huber, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


def test_the_bounds_are_reached() -> None:
    loss = Huber(3, 0.5)
    assert np.linalg.norm(loss.gradient(np.full((1, 3), 9.0), np.zeros((1, 3)))) == pytest.approx(loss.bound)
    assert math.isfinite(loss.bound)
    assert loss.entry_bound == 0.5
    assert loss.curvature(np.zeros((1, 3)), np.zeros((1, 3))).max() == loss.smoothness


@EACH
def test_curvature_equals_second_differences(loss: Huber) -> None:
    f, y = sample(loss)
    away = (np.abs(np.abs(f - y) - loss.delta) > 1e-3).all(axis=1)  # from where it jumps
    assert away.sum() > 100
    checks.curvature_equals_second_differences(loss, f[away], y[away])
    assert set(np.unique(loss.curvature(f, y))) == {0.0, 1.0}


@EACH
def test_it_equals_torch(loss: Huber) -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return torch.nn.functional.huber_loss(f, y, reduction="none", delta=loss.delta).sum(axis=1)

    checks.equals_torch(loss, *sample(loss), value)


@EACH
def test_it_equals_statsmodels(loss: Huber) -> None:
    norm = sm.robust.norms.HuberT(t=loss.delta)
    f, y = sample(loss)
    np.testing.assert_allclose(loss.value(f, y), norm.rho(f - y).sum(axis=1))
    np.testing.assert_allclose(loss.gradient(f, y), norm.psi(f - y))


def test_without_a_limit_it_is_the_square_loss() -> None:
    f, y = sample(Huber(1))
    np.testing.assert_allclose(Huber(1, math.inf).value(f, y), Square(1).value(f, y))
    np.testing.assert_array_equal(Huber(1, math.inf).gradient(f, y), Square(1).gradient(f, y))


def test_targets_are_standardised_and_zero_is_the_best_constant_of_symmetric_targets() -> None:
    y = np.array([-4.0, -1.0, 0.0, 1.0, 4.0]) + 7.0
    for ours, squares in zip(checks.scaled(Huber(), y), checks.scaled(Square(), y), strict=True):
        np.testing.assert_array_equal(ours, squares)
    checks.zero_is_the_best_constant(Huber(), y)


@EACH
def test_scores_are_squared_errors_in_own_units(loss: Huber) -> None:
    f, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, 3 + 2 * y)
    predicted = loss.unscaled(f, mean, scale)
    score = loss.scores(f, scaled, mean, scale)
    assert score == {"squared_error": pytest.approx(np.square(predicted - (3 + 2 * y)).sum())}
    checks.weights_repeat_rows(loss, f, scaled, mean, scale)


def test_the_link_is_the_identity() -> None:
    assert Huber().link == Identity()


def test_it_is_made_for_the_number_of_columns_with_a_delta() -> None:
    assert Huber.of(classes=0, outputs=3) == Huber(3)
    assert Huber.of(classes=0, outputs=3, delta=0.5) == Huber(3, 0.5)
    with pytest.raises(FFGBError, match="huber does not fit classification"):
        Huber.of(classes=2, outputs=2)


@pytest.mark.parametrize("delta", [0.0, -1.0, math.nan])
def test_a_delta_that_is_not_positive_is_refused(delta: float) -> None:
    with pytest.raises(FFGBError, match="delta of the huber loss must be positive"):
        Huber(1, delta)


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(FFGBError, match=r"1 target value.*remove those rows"):
        Huber(1).check(np.array([np.inf]))
