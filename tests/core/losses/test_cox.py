"""The Cox loss: against finite differences, the partial likelihood, lifelines, and its majorant; refusals."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifelines import CoxPHFitter

from ffgb.core.losses import Cox
from ffgb.core.losses.cox import targets_of, times_of
from ffgb.core.regression.survival import Stratum
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError

SEEDS = st.integers(0, 2**32 - 1)


def draw(rng: np.random.Generator, n: int) -> Array:
    return targets_of(rng.integers(0, 6, n) * 1.0, rng.random(n) < 0.6)


@given(seed=SEEDS, n=st.integers(1, 12), scale=st.floats(0.01, 3))
def test_the_gradient_is_that_of_the_sum_and_the_curvature_bounds_it(seed: int, n: int, scale: float) -> None:
    rng, loss = np.random.default_rng(seed), Cox()
    y, f = draw(rng, n), scale * rng.standard_normal((n, 1))
    step = 1e-5

    def shifted(k: int, by: float) -> Array:
        return f + by * np.eye(n)[:, k : k + 1]

    slopes = [(loss.value(shifted(k, step), y).sum() - loss.value(shifted(k, -step), y).sum()) / (2 * step)
              for k in range(n)]  # fmt: skip
    np.testing.assert_allclose(loss.gradient(f, y)[:, 0], slopes, atol=1e-6)
    second = np.stack([(loss.gradient(shifted(k, step), y) - loss.gradient(shifted(k, -step), y))[:, 0] / (2 * step)
                       for k in range(n)])  # fmt: skip
    assert np.linalg.eigvalsh(second).min() > -1e-6  # convex
    bound = np.diag(loss.curvature(f, y)[:, 0])
    assert np.linalg.eigvalsh(bound - second).min() > -1e-6


@given(seed=SEEDS, n=st.integers(1, 20))
def test_it_is_breslows_partial_likelihood(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y, f = draw(rng, n), rng.standard_normal((n, 1))
    time, event = times_of(y)
    stratum = Stratum.of(time, event, f, np.ones(1), "breslow")
    assert Cox().value(f, y).sum() == pytest.approx(-stratum.loglik, abs=1e-9)
    assert (Cox().value(f, y) >= -1e-12).all()
    np.testing.assert_allclose(Cox().gradient(f, y).sum(), 0.0, atol=1e-9)  # a constant changes nothing
    np.testing.assert_allclose(Cox().value(f + 3.0, y), Cox().value(f, y), atol=1e-9)


def test_the_gradient_vanishes_at_lifelines_fit() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    time = rng.exponential(np.exp(-x @ [0.7, -0.4]))
    event = time < 2.0
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "time": np.minimum(time, 2.0), "event": event})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = CoxPHFitter().fit(frame, "time", "event", fit_options={"precision": 1e-12})
    f = x @ fitted.params_.to_numpy()
    y = targets_of(frame.time.to_numpy(), event)  # without ties, Efron's and Breslow's ways are the same
    np.testing.assert_allclose(x.T @ Cox().gradient(f[:, None], y), 0.0, atol=1e-5)
    assert -Cox().value(f[:, None], y).sum() == pytest.approx(fitted.log_likelihood_, abs=1e-6)
    score = Cox().scores(f[:, None], y)["concordant"] / len(y)
    assert score == pytest.approx(fitted.concordance_index_, abs=1e-12)


def test_what_has_no_pair_is_even_and_weights_are_refused() -> None:
    f, y = np.zeros((2, 1)), np.array([-1.0, -2.0])
    assert Cox().scores(f, y) == {"concordant": 1.0}
    np.testing.assert_array_equal(Cox().value(f, y), 0.0)
    with pytest.raises(FFGBError, match="no weights"):
        Cox().scores(f, y, weights=np.ones(2))


def test_targets_are_times_with_a_sign() -> None:
    time, event = np.array([0.0, 0.0, 2.0]), np.array([True, False, False])
    found = times_of(targets_of(time, event))
    np.testing.assert_array_equal(found[0], time)
    np.testing.assert_array_equal(found[1], event)
    assert Cox().scaling(Moments.of(np.array([1.0, 2.0]))) is None


def test_it_has_no_bounds_and_large_values_are_finite() -> None:
    loss = Cox()
    assert (loss.bound, loss.entry_bound, loss.smooth, loss.alone) == (math.inf, math.inf, False, False)
    y = np.array([1.0, 2.0, -3.0])
    assert np.isfinite(loss.value(np.array([[1e3], [-1e3], [0.0]]), y)).all()


@pytest.mark.parametrize(
    ("classes", "outputs", "words"), [(2, 1, "does not fit classification"), (0, 2, "one time a row")]
)
def test_it_is_made_for_one_time(classes: int, outputs: int, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        Cox.of(classes=classes, outputs=outputs)
