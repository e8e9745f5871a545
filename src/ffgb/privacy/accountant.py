"""What noise costs: Gaussian differential privacy (Dong, Roth and Su, 2022).

An answer with the Gaussian noise of deviation S/μ, where a row changes it by at most S, is μ-GDP.  Answers, each of
which may depend on those before, add up exactly: μ² = Σ μ_q².  And μ-GDP is (ε, δ)-DP for every ε with
δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

>>> round(mu_of(1.0, 1e-5), 4)
0.2681
>>> round(epsilon_of(mu_of(1.0, 1e-5), 1e-5), 9)
1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import scipy  # its parts are imported where they are first used: processes begin sooner
from scipy.special import log_ndtr, ndtr

from ffgb.errors import SettingError

LARGEST_MU = 100.0
"""μ is looked for up to here."""


def delta_of(epsilon: float, mu: float) -> float:
    """The least δ for an ε."""
    if mu <= 0.0:
        return 0.0
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-DP."""
    check_budget(epsilon, delta)
    return float(
        scipy.optimize.brentq(lambda mu: delta_of(epsilon, mu) - delta, 1e-9, LARGEST_MU, xtol=1e-14, rtol=1e-14)
    )


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε for a δ."""
    if mu <= 0.0 or delta_of(0.0, mu) <= delta:
        return 0.0
    most = mu * mu / 2 + mu * (2.0 * math.log(1.0 / delta)) ** 0.5 + 1.0
    found = scipy.optimize.brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0.0, most, xtol=1e-12, rtol=1e-12)
    return float(found)


def composed(costs: Iterable[float]) -> float:
    """The μ of several answers together."""
    return math.sqrt(math.fsum(mu * mu for mu in costs))


def check_budget(epsilon: float, delta: float) -> None:
    """Raise a SettingError unless these can be a privacy budget."""
    if not (math.isfinite(epsilon) and 1e-3 <= epsilon <= 50.0):
        raise SettingError("epsilon", f"is a number from 0.001 to 50, not {epsilon:g}")
    if not 1e-15 <= delta <= 1e-2:
        raise SettingError(
            "delta", f"is a number from 1e-15 to 0.01, smaller than one in the number of rows, not {delta:g}"
        )
