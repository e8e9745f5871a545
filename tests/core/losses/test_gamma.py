"""The gamma loss: against finite differences, torch, scikit-learn, statsmodels and onnxruntime; scaling; refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_gamma_deviance, mean_squared_error

from ffgb.core.losses import Gamma
from ffgb.core.losses.links import Log
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Gamma(), Gamma(3)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Gamma) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        y = rng.gamma(2.0, 1.5, (n, loss.outputs))
        return y if loss.outputs > 1 else y[:, 0]

    return draw


def sample(loss: Gamma, n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), rng.gamma(2.0, 1.5, (n, loss.outputs))


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 1))
def test_gradient_equals_finite_differences(loss: Gamma, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_the_loss_is_convex(loss: Gamma, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


@EACH
def test_curvature_equals_second_differences(loss: Gamma) -> None:
    checks.curvature_equals_second_differences(loss, *sample(loss))


@EACH
def test_it_equals_the_density_of_torch(loss: Gamma) -> None:
    """With the shape 1 the gamma distribution is the exponential one, and ℓ is minus its log density."""

    def value(torch: Any, f: Any, y: Any) -> Any:
        one = torch.ones((), dtype=f.dtype)
        return -torch.distributions.Gamma(one, torch.exp(-f)).log_prob(y).sum(axis=1)

    checks.equals_torch(loss, *sample(loss), value)


def test_it_has_no_bounds_and_says_so() -> None:
    loss = Gamma()
    assert (loss.bound, loss.entry_bound, loss.least) == (math.inf, math.inf, -math.inf)
    assert not loss.smooth
    scaled, _, _ = checks.scaled(loss, sample(loss)[1])
    assert loss.curvature(np.zeros((50, 1)), scaled).mean() == pytest.approx(loss.smoothness) == 1.0


def test_large_scores_are_infinite_without_a_warning() -> None:
    f = np.array([[1e4], [-1e4]])
    np.testing.assert_array_equal(Gamma().value(f, np.array([2.0, 2.0])), [1e4, np.inf])
    np.testing.assert_array_equal(Gamma().gradient(f, np.array([2.0, 2.0])), [[1.0], [-np.inf]])
    assert Gamma().scores(f[1:], np.array([2.0]))["deviance"] == np.inf


@EACH
def test_zero_is_the_best_constant(loss: Gamma) -> None:
    checks.zero_is_the_best_constant(loss, sample(loss)[1])


@EACH
@given(seed=SEEDS, s=st.floats(0.01, 100))
def test_scaled_targets_have_the_same_loss_up_to_a_constant(loss: Gamma, seed: int, s: float) -> None:
    rng = np.random.default_rng(seed)
    f, y = rng.standard_normal((5, loss.outputs)), rng.gamma(2.0, 1.5, (5, loss.outputs))
    other = loss.value(f + math.log(s), s * y) - loss.outputs * math.log(s)
    np.testing.assert_allclose(other, loss.value(f, y), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(loss.gradient(f + math.log(s), s * y), loss.gradient(f, y), rtol=1e-9, atol=1e-9)


def test_the_best_constant_and_its_deviance_are_those_of_statsmodels() -> None:
    _, y = sample(Gamma())
    scaled, mean, scale = checks.scaled(Gamma(), y)
    family = sm.families.Gamma(sm.families.links.Log())
    fit = sm.GLM(y[:, 0], np.ones(50), family=family).fit(tol=1e-12)
    f = np.zeros((50, 1))
    np.testing.assert_allclose(Gamma().unscaled(f, mean, scale), np.exp(fit.params[0]), rtol=1e-9)
    assert Gamma().scores(f, scaled, mean, scale)["deviance"] == pytest.approx(fit.deviance)


def test_the_gradient_vanishes_at_the_fit_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    x = sm.add_constant(rng.standard_normal((200, 2)))
    y = rng.gamma(2.0, np.exp(x @ [0.5, 0.3, -0.4]) / 2.0)
    fit = sm.GLM(y, x, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-12, maxiter=200)
    np.testing.assert_allclose(x.T @ Gamma().gradient((x @ fit.params)[:, None], y), 0.0, atol=1e-6)


@EACH
def test_scores_equal_scikit_learns(loss: Gamma) -> None:
    f, y = sample(loss)
    scaled, mean, scale = checks.scaled(loss, y)
    predicted = loss.unscaled(f, mean, scale)
    np.testing.assert_array_equal(predicted, np.exp(f) * scale)
    assert loss.scores(f, scaled, mean, scale) == {
        "squared_error": pytest.approx(mean_squared_error(y, predicted) * y.size),
        "deviance": pytest.approx(mean_gamma_deviance(y.ravel(), predicted.ravel()) * y.size),
    }
    checks.weights_repeat_rows(loss, f, scaled, mean, scale)


def test_the_link_is_the_logarithm() -> None:
    f, _ = sample(Gamma(3))
    assert Gamma().link == Log()
    checks.link_equals_onnx(Gamma().link, 5 * f)


def test_a_mean_that_is_not_positive_is_refused() -> None:
    with pytest.raises(FFGBError, match="column 1 have a mean of -1, and the gamma loss predicts positive means"):
        Gamma().scaling(Moments.of(np.array([-1.0])))


def test_it_is_made_for_the_number_of_columns() -> None:
    assert Gamma.of(classes=0, outputs=2) == Gamma(2)
    with pytest.raises(FFGBError, match="gamma does not fit classification"):
        Gamma.of(classes=2, outputs=2)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.array([1.0, 0.0, -2.0]), "2 target value.* are not positive.*choose the poisson loss"),
        (np.array([np.inf]), "remove those rows"),
        (np.ones((2, 2)), "1 number"),
    ],
)
def test_wrong_targets_are_refused(y: Array, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        Gamma().check(y)
