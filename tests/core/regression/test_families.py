"""Distributions of outcomes: likelihoods by scipy, and all else by the likelihood's own differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ffgb.core.regression.families import FAMILIES, GLMFamily, family_named
from ffgb.core.types import Array
from ffgb.errors import FFGBError

A = np.array([1.0, 2.0, 5.0, 4.0])
DISPERSION = 1.7
OUTCOMES: dict[str, Array] = {
    "gaussian": np.array([-1.5, 0.0, 0.3, 2.0]),
    "binomial": np.array([0.0, 0.5, 0.6, 1.0]),
    "poisson": np.array([0.0, 1.0, 3.0, 7.0]),
    "gamma": np.array([0.1, 1.0, 2.5, 6.0]),
}
ETA = np.array([0.2, -0.7, 0.9, 1.3])


def dispersion_of(family: GLMFamily) -> float:
    return DISPERSION if family.dispersed else 1.0


def logliks(family: GLMFamily, eta: Array) -> Array:
    return family.loglik(OUTCOMES[family.name], family.mean(eta), A, dispersion_of(family))


def by_scipy(name: str, y: Array, mu: Array) -> Array:
    match name:
        case "gaussian":
            found = stats.norm.logpdf(y, mu, np.sqrt(DISPERSION / A))
        case "binomial":
            found = stats.binom.logpmf(np.rint(A * y), A, mu)
        case "poisson":
            found = A * stats.poisson.logpmf(y, mu)
        case _:
            found = stats.gamma.logpdf(y, A / DISPERSION, scale=mu * DISPERSION / A)
    return np.asarray(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_likelihood_is_scipys(name: str) -> None:
    family = FAMILIES[name]
    expected = by_scipy(name, OUTCOMES[name], family.mean(ETA))
    np.testing.assert_allclose(logliks(family, ETA), expected, rtol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_score_information_and_deviance_are_those_of_the_likelihood(name: str) -> None:
    family, y, step = FAMILIES[name], OUTCOMES[name], 1e-5
    mu, unit = family.mean(ETA), dispersion_of(family) / A
    slope = (logliks(family, ETA + step) - logliks(family, ETA - step)) / (2 * step) * unit
    np.testing.assert_allclose(family.score(y, mu), slope, rtol=1e-6, atol=1e-8)
    bent = (family.score(y, family.mean(ETA + step)) - family.score(y, family.mean(ETA - step))) / (2 * step)
    np.testing.assert_allclose(family.observed(y, mu), -bent, rtol=1e-6)
    assert family.observed_differs == (not np.allclose(family.observed(y, mu), family.weight(mu)))
    # the expected information is that of y = μ, and μ'²/V
    np.testing.assert_allclose(family.weight(mu), family.observed(mu, mu), rtol=1e-12)
    by_eta = (family.mean(ETA + step) - family.mean(ETA - step)) / (2 * step)
    np.testing.assert_allclose(family.weight(mu), by_eta**2 / family.variance(mu), rtol=1e-6)
    best = family.loglik(y, np.clip(y, 1e-12, 1.0 - 1e-12) if name == "binomial" else np.where(y == 0, 1e-12, y), A,
                         dispersion_of(family))  # fmt: skip
    np.testing.assert_allclose(family.deviance(y, mu), 2.0 * unit * (best - logliks(family, ETA)), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_start_has_the_mean(name: str) -> None:
    family = FAMILIES[name]
    for mean in (0.1, 0.5, 0.8):
        assert family.mean(np.array([family.start(mean)]))[0] == pytest.approx(mean)


def test_means_that_no_coefficient_reaches() -> None:
    """Where all outcomes are alike training still begins somewhere, and no mean is 0, 1 or infinite."""
    binomial, poisson, gamma = FAMILIES["binomial"], FAMILIES["poisson"], FAMILIES["gamma"]
    assert binomial.start(0.0) == pytest.approx(-math.log(1e9))
    assert binomial.start(1.0) == pytest.approx(math.log(1e9))
    assert poisson.start(0.0) == pytest.approx(-300 * math.log(10.0))
    far = np.array([-1e4, 1e4])
    np.testing.assert_array_equal(binomial.mean(far), [2.0**-50, 1.0 - 2.0**-50])
    for family in (poisson, gamma):
        np.testing.assert_allclose(np.log(family.mean(far)), [-700.0, 700.0])


@pytest.mark.parametrize(
    ("name", "fine", "wrong"),
    [
        ("gaussian", [-1e9, 0.0], [np.nan, np.inf]),
        ("binomial", [0.0, 0.5, 1.0], [-0.01, 1.01, np.nan]),
        ("poisson", [0.0, 2.0], [-1.0, np.inf]),
        ("gamma", [1e-9, 2.0], [0.0, -1.0, np.inf]),
    ],
)
def test_outcomes_of_another_kind_are_refused(name: str, fine: list[float], wrong: list[float]) -> None:
    FAMILIES[name].check(np.array(fine))
    for value in wrong:
        with pytest.raises(FFGBError, match="the outcome has values"):
            FAMILIES[name].check(np.array([*fine, value]))


def test_families_by_name() -> None:
    assert family_named("poisson") is FAMILIES["poisson"]
    with pytest.raises(FFGBError, match="choose gaussian, binomial, poisson, gamma"):
        family_named("normal")
    assert {name for name, each in FAMILIES.items() if each.dispersed} == {"gaussian", "gamma"}
    assert {name for name, each in FAMILIES.items() if each.unbounded} == {"binomial", "poisson"}
