"""The pinball loss: against finite differences, torch, scikit-learn and statsmodels; its curvature; refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss, mean_squared_error

from ffgb.core.losses import Quantile
from ffgb.core.losses.links import Identity
from ffgb.core.losses.quantile import WIDTH
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Quantile(), Quantile(level=0.9), Quantile(3, 0.2)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Quantile) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        return rng.standard_normal((n, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(n)

    return draw


def sample(loss: Quantile, n: int = 101) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), 5 + rng.exponential(2.0, (n, loss.outputs))


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(loss: Quantile, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(loss: Quantile, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


def test_the_bounds_are_reached_and_it_is_not_smooth() -> None:
    loss = Quantile(3, 0.2)
    gradient = loss.gradient(np.full((1, 3), 9.0), np.zeros((1, 3)))
    assert np.linalg.norm(gradient) == pytest.approx(loss.bound)
    assert np.abs(gradient).max() == loss.entry_bound == 0.8
    assert math.isfinite(loss.bound)
    assert not loss.smooth


@EACH
def test_it_equals_torch(loss: Quantile) -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return torch.maximum(loss.level * (y - f), (loss.level - 1) * (y - f)).sum(axis=1)

    checks.equals_torch(loss, *sample(loss), value)


def test_where_f_equals_y_the_subgradient_is_zero() -> None:
    np.testing.assert_array_equal(Quantile(level=0.9).gradient(np.ones((2, 1)), np.ones(2)), 0.0)


def test_precision_stays_that_of_the_values() -> None:
    f, y = np.zeros((2, 1), np.float32), np.ones(2, np.float32)
    assert Quantile().value(f, y).dtype == Quantile().gradient(f, y).dtype == Quantile().curvature(f, y).dtype
    assert Quantile().gradient(f, y).dtype == np.float32


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_a_parabola_with_the_curvature_lies_above_the_loss(loss: Quantile, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    y, (f, g) = scale * rng.standard_normal((20, loss.outputs)), scale * rng.standard_normal((2, 20, loss.outputs))
    curvature = loss.curvature(f, y)
    assert (curvature > 0).all()
    assert curvature.max() <= 0.5 / WIDTH
    parabola = loss.value(f, y) + (loss.gradient(f, y) * (g - f) + 0.5 * curvature * (g - f) ** 2).sum(axis=1)
    below = np.maximum(WIDTH - np.abs(f - y), 0.0).sum(axis=1)  # at most, and nowhere for rows further away
    assert (parabola + below >= loss.value(g, y) - 1e-9 * (1 + scale)).all()


@given(seed=SEEDS, level=st.floats(0.05, 0.95))
def test_newton_steps_lead_to_the_quantile(seed: int, level: float) -> None:
    loss, y = Quantile(level=level), np.random.default_rng(seed).standard_normal((101, 1))
    f = np.zeros_like(y)
    for _ in range(100):
        f = f - loss.gradient(f, y).sum() / loss.curvature(f, y).sum()
    best = loss.value(np.full_like(y, np.quantile(y, level)), y).mean()
    assert loss.value(f, y).mean() <= best + 1e-3


@EACH
def test_the_quantile_is_the_best_constant(loss: Quantile) -> None:
    _, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, y)
    assert loss.start_level == loss.level
    start = np.quantile(scaled, loss.start_level, axis=0)
    f = np.broadcast_to(start, scaled.shape)
    # zero lies between the sums of the subgradients on both sides of the kink
    assert (loss.gradient(f - 1e-9, scaled).sum(axis=0) <= 1e-9).all()
    assert (loss.gradient(f + 1e-9, scaled).sum(axis=0) >= -1e-9).all()
    least = loss.value(f, scaled).mean()
    assert all(loss.value(f + shift, scaled).mean() >= least - 1e-12 for shift in (-0.1, -1e-3, 1e-3, 0.1))
    np.testing.assert_allclose(loss.unscaled(f, mean, scale)[0], np.quantile(y, loss.level, axis=0))


def test_the_fit_of_statsmodels_is_not_bettered() -> None:
    rng = np.random.default_rng(0)
    x = sm.add_constant(rng.standard_normal((200, 2)))
    y = x @ [1.0, 0.5, -0.5] + rng.exponential(size=200)
    fit = sm.QuantReg(y, x).fit(q=0.8, max_iter=5000, p_tol=1e-10)
    loss = Quantile(level=0.8)
    least = loss.value((x @ fit.params)[:, None], y).sum()
    for shift in 0.05 * rng.standard_normal((20, 3)):
        assert loss.value((x @ (fit.params + shift))[:, None], y).sum() >= least - 1e-6


@EACH
def test_scores_equal_scikit_learns(loss: Quantile) -> None:
    f, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, y)
    predicted = loss.unscaled(f, mean, scale)
    np.testing.assert_array_equal(predicted, f * scale + mean)
    assert loss.scores(f, scaled, mean, scale) == {
        "squared_error": pytest.approx(mean_squared_error(y, predicted) * y.size),
        "pinball": pytest.approx(mean_pinball_loss(y, predicted, alpha=loss.level) * y.size),
    }
    checks.weights_repeat_rows(loss, f, scaled, mean, scale)


def test_the_link_is_the_identity() -> None:
    assert Quantile().link == Identity()


def test_it_is_made_for_the_number_of_columns_with_a_level() -> None:
    assert Quantile.of(classes=0, outputs=2) == Quantile(2, 0.5)
    assert Quantile.of(classes=0, outputs=1, level=0.9) == Quantile(1, 0.9)
    with pytest.raises(FFGBError, match="quantile does not fit classification"):
        Quantile.of(classes=2, outputs=2)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, math.nan])
def test_a_level_outside_zero_and_one_is_refused(level: float) -> None:
    with pytest.raises(FFGBError, match="level of the quantile loss must lie between 0 and 1"):
        Quantile(level=level)


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(FFGBError, match="remove those rows"):
        Quantile().check(np.array([np.nan]))
    with pytest.raises(FFGBError, match="1 number"):
        Quantile().check(np.zeros((2, 2)))
