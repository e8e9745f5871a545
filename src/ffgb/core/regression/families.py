"""Families of generalised linear models: what one row contributes, given its linear predictor η.

With weight a, mean μ(η), variance function V(μ) and V's dispersion φ, a row's score in η is a (y − μ) μ'/V, over φ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.special import expit, gammaln, xlogy

from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

LOG_TWO_PI = float(np.log(2.0 * np.pi))
FARTHEST = 700.0
"""Linear predictors beyond this have no exponential."""
CLOSEST = 2.0**-50
"""Probabilities are not nearer to 0 and 1: their logarithms are finite."""


class GLMFamily(ABC):
    """A distribution with a link."""

    name: ClassVar[str]
    link: ClassVar[str]
    links: ClassVar[str]
    """What the coefficients are, as a user reads them."""
    dispersed: ClassVar[bool] = False
    """The dispersion φ is estimated; otherwise it is 1."""
    unbounded: ClassVar[bool] = True
    """Estimates may be infinite."""
    observed_differs: ClassVar[bool] = False
    """The observed information is not the expected one."""

    @abstractmethod
    def check(self, y: Array) -> None:
        """Raise an FFGBError if these are no outcomes of this family."""

    @abstractmethod
    def mean(self, eta: Array) -> Array:
        """μ(η)."""

    @abstractmethod
    def start(self, mean: float) -> float:
        """The η of this mean."""

    @abstractmethod
    def weight(self, mu: Array) -> Array:
        """μ'²/V: the expected information of a row of weight 1 about its η."""

    @abstractmethod
    def score(self, y: Array, mu: Array) -> Array:
        """(y − μ) μ'/V."""

    def observed(self, y: Array, mu: Array) -> Array:
        """−∂score/∂η: the observed information."""
        return self.weight(mu)

    @abstractmethod
    def variance(self, mu: Array) -> Array:
        """V(μ)."""

    @abstractmethod
    def deviance(self, y: Array, mu: Array) -> Array:
        """Twice what the log-likelihood lacks to that of μ = y, times φ."""

    @abstractmethod
    def loglik(self, y: Array, mu: Array, a: Array, dispersion: float) -> Array:
        """The log-likelihood of a row of weight a."""


def _exp(eta: Array) -> Array:
    found: Array = np.exp(np.clip(eta, -FARTHEST, FARTHEST))
    return found


def _must(fine: Array, name: str, kind: str) -> None:
    if not fine.all():
        raise FFGBError(
            f"the outcome has values that are not {kind}, and {option('family', name)} needs them; choose another "
            f"{option('family')}, or another outcome"
        )


@final
@dataclass(frozen=True)
class GaussianFamily(GLMFamily):
    """Numbers, with a variance that is the same everywhere."""

    name = "gaussian"
    link = "identity"
    links = "differences of the mean"
    dispersed = True
    unbounded = False

    def check(self, y: Array) -> None:
        _must(np.isfinite(y), self.name, "numbers")

    def mean(self, eta: Array) -> Array:
        return eta

    def start(self, mean: float) -> float:
        return mean

    def weight(self, mu: Array) -> Array:
        return np.ones_like(mu)

    def score(self, y: Array, mu: Array) -> Array:
        return y - mu

    def variance(self, mu: Array) -> Array:
        return np.ones_like(mu)

    def deviance(self, y: Array, mu: Array) -> Array:
        found: Array = np.square(y - mu)
        return found

    def loglik(self, y: Array, mu: Array, a: Array, dispersion: float) -> Array:
        found: Array = -0.5 * (a * np.square(y - mu) / dispersion + np.log(dispersion / a) + LOG_TWO_PI)
        return found


@final
@dataclass(frozen=True)
class BinomialFamily(GLMFamily):
    """Events, or shares of them (weights are then how many there were), by log odds."""

    name = "binomial"
    link = "logit"
    links = "log odds ratios"

    def check(self, y: Array) -> None:
        _must((y >= 0) & (y <= 1), self.name, "0 or 1 (or shares between them, with weights)")

    def mean(self, eta: Array) -> Array:
        found: Array = np.clip(expit(eta), CLOSEST, 1.0 - CLOSEST)
        return found

    def start(self, mean: float) -> float:
        inside = min(max(mean, 1e-9), 1.0 - 1e-9)
        return float(np.log(inside / (1.0 - inside)))

    def weight(self, mu: Array) -> Array:
        return mu * (1.0 - mu)

    def score(self, y: Array, mu: Array) -> Array:
        return y - mu

    def variance(self, mu: Array) -> Array:
        return mu * (1.0 - mu)

    def deviance(self, y: Array, mu: Array) -> Array:
        found: Array = 2.0 * (xlogy(y, y) - xlogy(y, mu) + xlogy(1.0 - y, 1.0 - y) - xlogy(1.0 - y, 1.0 - mu))
        return found

    def loglik(self, y: Array, mu: Array, a: Array, dispersion: float) -> Array:
        ways = gammaln(a + 1.0) - gammaln(a * y + 1.0) - gammaln(a * (1.0 - y) + 1.0)
        found: Array = ways + a * (xlogy(y, mu) + xlogy(1.0 - y, 1.0 - mu))
        return found


@final
@dataclass(frozen=True)
class PoissonFamily(GLMFamily):
    """Counts, by the logarithm of their mean."""

    name = "poisson"
    link = "log"
    links = "log rate ratios"

    def check(self, y: Array) -> None:
        _must((y >= 0) & np.isfinite(y), self.name, "from 0 on")

    def mean(self, eta: Array) -> Array:
        return _exp(eta)

    def start(self, mean: float) -> float:
        return float(np.log(max(mean, 1e-300)))

    def weight(self, mu: Array) -> Array:
        return mu

    def score(self, y: Array, mu: Array) -> Array:
        return y - mu

    def variance(self, mu: Array) -> Array:
        return mu

    def deviance(self, y: Array, mu: Array) -> Array:
        found: Array = 2.0 * (xlogy(y, y / mu) - (y - mu))
        return found

    def loglik(self, y: Array, mu: Array, a: Array, dispersion: float) -> Array:
        found: Array = a * (xlogy(y, mu) - mu - gammaln(y + 1.0))
        return found


@final
@dataclass(frozen=True)
class GammaFamily(GLMFamily):
    """Positive numbers whose deviation is in proportion to their mean, by its logarithm."""

    name = "gamma"
    link = "log"
    links = "log ratios of means"
    dispersed = True
    unbounded = False
    observed_differs = True

    def check(self, y: Array) -> None:
        _must((y > 0) & np.isfinite(y), self.name, "above 0")

    def mean(self, eta: Array) -> Array:
        return _exp(eta)

    def start(self, mean: float) -> float:
        return float(np.log(mean))

    def weight(self, mu: Array) -> Array:
        return np.ones_like(mu)

    def score(self, y: Array, mu: Array) -> Array:
        found: Array = y / mu - 1.0
        return found

    def observed(self, y: Array, mu: Array) -> Array:
        found: Array = y / mu
        return found

    def variance(self, mu: Array) -> Array:
        return np.square(mu)

    def deviance(self, y: Array, mu: Array) -> Array:
        ratio = y / mu
        found: Array = 2.0 * (ratio - 1.0 - np.log(ratio))
        return found

    def loglik(self, y: Array, mu: Array, a: Array, dispersion: float) -> Array:
        shape = a / dispersion
        found: Array = shape * np.log(shape * y / mu) - shape * y / mu - gammaln(shape) - np.log(y)
        return found


FAMILIES: dict[str, GLMFamily] = {
    each.name: each for each in (GaussianFamily(), BinomialFamily(), PoissonFamily(), GammaFamily())
}


def family_named(name: str) -> GLMFamily:
    if name not in FAMILIES:
        raise FFGBError(f"there is no {option('family', name)}; choose {', '.join(FAMILIES)}")
    return FAMILIES[name]
