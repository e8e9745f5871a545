"""The Poisson loss: against finite differences, torch, scikit-learn, statsmodels and onnxruntime; exposure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_poisson_deviance, mean_squared_error

from ffgb.core.losses import Poisson
from ffgb.core.losses.links import Log
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Poisson(), Poisson(3)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Poisson) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        y: Array = rng.poisson(2.0, (n, loss.outputs)) / rng.choice([1.0, 2.0, 0.7])
        return y if loss.outputs > 1 else y[:, 0]

    return draw


def sample(loss: Poisson, n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), rng.poisson(3.0, (n, loss.outputs)).astype(float)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 1))
def test_gradient_equals_finite_differences(loss: Poisson, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_the_loss_is_convex(loss: Poisson, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


@EACH
def test_curvature_equals_second_differences(loss: Poisson) -> None:
    checks.curvature_equals_second_differences(loss, *sample(loss))


@EACH
def test_it_equals_torch(loss: Poisson) -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        return torch.nn.functional.poisson_nll_loss(f, y, log_input=True, reduction="none").sum(axis=1)

    checks.equals_torch(loss, *sample(loss), value)


def test_it_has_no_bounds_and_says_so() -> None:
    loss = Poisson()
    assert (loss.bound, loss.entry_bound, loss.least) == (math.inf, math.inf, -math.inf)
    assert not loss.smooth
    assert loss.curvature(np.zeros((1, 1)), np.zeros(1))[0, 0] == loss.smoothness == 1.0


def test_large_scores_are_infinite_without_a_warning() -> None:
    f = np.array([[1e4], [-1e4]])
    np.testing.assert_array_equal(Poisson().value(f, np.array([2.0, 2.0])), [np.inf, 2e4])
    np.testing.assert_array_equal(Poisson().gradient(f, np.array([2.0, 2.0])), [[np.inf], [-2.0]])


@EACH
def test_zero_is_the_best_constant(loss: Poisson) -> None:
    checks.zero_is_the_best_constant(loss, sample(loss)[1])


@EACH
@given(seed=SEEDS, s=st.floats(0.01, 100))
def test_scaled_targets_have_the_same_loss_up_to_a_factor_and_a_constant(loss: Poisson, seed: int, s: float) -> None:
    rng = np.random.default_rng(seed)
    f, y = rng.standard_normal((5, loss.outputs)), rng.poisson(3.0, (5, loss.outputs))
    other = loss.value(f + math.log(s), s * y) + (s * y * math.log(s)).sum(axis=1)
    np.testing.assert_allclose(other, s * loss.value(f, y), rtol=1e-9, atol=1e-9 * (1 + s))
    np.testing.assert_allclose(loss.gradient(f + math.log(s), s * y), s * loss.gradient(f, y), rtol=1e-9, atol=1e-9)


def test_the_best_constant_and_its_deviance_are_those_of_statsmodels() -> None:
    _, y = sample(Poisson())
    scaled, mean, scale = checks.scaled(Poisson(), y)
    fit = sm.GLM(y[:, 0], np.ones(50), family=sm.families.Poisson()).fit(tol=1e-12)
    f = np.zeros((50, 1))
    np.testing.assert_allclose(Poisson().unscaled(f, mean, scale), np.exp(fit.params[0]), rtol=1e-9)
    assert Poisson().scores(f, scaled, mean, scale)["deviance"] == pytest.approx(fit.deviance)


def test_the_gradient_vanishes_at_the_fit_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    x = sm.add_constant(rng.standard_normal((200, 2)))
    y = rng.poisson(np.exp(x @ [0.5, 0.3, -0.4]))
    fit = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-12)
    np.testing.assert_allclose(x.T @ Poisson().gradient((x @ fit.params)[:, None], y), 0.0, atol=1e-8)


def test_exposure_is_a_weight_of_the_rate() -> None:
    rng = np.random.default_rng(0)
    f, exposure = rng.standard_normal((50, 1)), rng.uniform(0.1, 3.0, 50)
    y = rng.poisson(exposure * np.exp(f[:, 0])).astype(float)
    loss, offset, rate = Poisson(), np.log(exposure), y / exposure
    # with the offset the loss differs by −y log e, which does not depend on f
    np.testing.assert_allclose(exposure * loss.value(f, rate), loss.value(f + offset[:, None], y) + y * offset)
    np.testing.assert_allclose(exposure[:, None] * loss.gradient(f, rate), loss.gradient(f + offset[:, None], y))
    np.testing.assert_allclose(exposure[:, None] * loss.curvature(f, rate), loss.curvature(f + offset[:, None], y))
    weighted = loss.scores(f, rate, weights=exposure)["deviance"]
    assert weighted == pytest.approx(loss.scores(f + offset[:, None], y)["deviance"])
    fit = sm.GLM(y, np.ones(50), family=sm.families.Poisson(), exposure=exposure).fit(tol=1e-12)
    constant = np.full((50, 1), fit.params[0])
    assert (exposure @ loss.gradient(constant, rate)).item() == pytest.approx(0.0, abs=1e-8)
    assert loss.scores(constant, rate, weights=exposure)["deviance"] == pytest.approx(fit.deviance)


@EACH
def test_scores_equal_scikit_learns(loss: Poisson) -> None:
    f, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, y)
    predicted = loss.unscaled(f, mean, scale)
    np.testing.assert_array_equal(predicted, np.exp(f) * scale)
    assert loss.scores(f, scaled, mean, scale) == {
        "squared_error": pytest.approx(mean_squared_error(y, predicted) * y.size),
        "deviance": pytest.approx(mean_poisson_deviance(y.ravel(), predicted.ravel()) * y.size),
    }
    checks.weights_repeat_rows(loss, f, scaled, mean, scale)


def test_the_link_is_the_logarithm() -> None:
    f, _ = sample(Poisson(3))
    assert Poisson().link == Log()
    checks.link_equals_onnx(Poisson().link, 5 * f)


def test_targets_that_are_all_zero_are_refused() -> None:
    with pytest.raises(FFGBError, match="column 2 have a mean of 0, and the poisson loss predicts positive means"):
        Poisson(2).scaling(Moments.of(np.array([[1.0, 0.0], [2.0, 0.0]])))


def test_it_is_made_for_the_number_of_columns() -> None:
    assert Poisson.of(classes=0, outputs=2) == Poisson(2)
    with pytest.raises(FFGBError, match="poisson does not fit classification"):
        Poisson.of(classes=2, outputs=2)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.array([0.0, -1.0, -2.0]), "2 target value.* are negative.*choose the square loss"),
        (np.array([np.nan]), "remove those rows"),
        (np.zeros((2, 2)), "1 number"),
    ],
)
def test_wrong_targets_are_refused(y: Array, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        Poisson().check(y)


def test_fractions_and_zero_are_targets() -> None:
    Poisson().check(np.array([0.0, 0.3, 7.0]))
    Poisson().check(np.array([0, 3]))
