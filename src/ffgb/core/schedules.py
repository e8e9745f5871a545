"""Step sizes η^{k,t}: local step k = 1 … K of round t = 0 … T−1.

A step above 1/μ would flip the sign of the old function (1 − μη < 0) and break the boundedness and Lipschitz
inductions of the proofs; 4/(μ(tK+k+1)) does so at its first step.  Every algorithm therefore takes `capped` steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

from ffgb.errors import FFGBError, option
from ffgb.settings import METHOD, Setting, Values

SCHEDULES = ("search", "power", "constant", "theorem1", "theorem2")


class Schedule(ABC):
    """η^{k,t}, given K."""

    @abstractmethod
    def __call__(self, k: int, t: int, K: int) -> float: ...


def capped(eta: float, mu: float) -> float:
    """min(η, 1/μ)."""
    return min(eta, 1.0 / mu) if mu > 0 else eta


@final
@dataclass(frozen=True)
class Theorem(Schedule):
    """numerator / (μ(tK + k + 1)): numerator 2 in Theorem 1 (FFGB), 4 in Theorems 2 and 3 (FFGB.C, FFGB.L)."""

    mu: float
    numerator: float = 2.0

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise FFGBError(
                f"the theorems' step size 2/(μ(tK+k+1)) needs μ > 0; set {option('mu')} or choose another schedule"
            )

    def __call__(self, k: int, t: int, K: int) -> float:
        return self.numerator / (self.mu * (t * K + k + 1))


@final
@dataclass(frozen=True)
class Power(Schedule):
    """η₀ / (Kt + k + 1)^p, the paper's experiments (p = 1).

    With offset "t+1" the denominator is K(t+1) + k: what the authors' code computes (it counts k from 0 and adds a
    round), whose first step is much smaller.
    """

    eta0: float
    p: float = 1.0
    offset: Literal["t", "t+1"] = "t"

    def __post_init__(self) -> None:
        _check_positive(self.eta0)

    def __call__(self, k: int, t: int, K: int) -> float:
        steps = K * t + k + 1 if self.offset == "t" else K * (t + 1) + k
        return self.eta0 / math.pow(steps, self.p)


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """η^{k,t} = η."""

    eta: float

    def __post_init__(self) -> None:
        _check_positive(self.eta)

    def __call__(self, k: int, t: int, K: int) -> float:
        return self.eta


def _check_positive(eta: float) -> None:
    if not (eta > 0 and math.isfinite(eta)):
        raise FFGBError(f"the step size must be a positive number, not {eta}")


SETTINGS = (
    Setting(
        "schedule",
        "text",
        "search: the best length along the mean step; power: η₀/(Kt+k+1)^p; constant; theorem1: 2/(μ(tK+k+1)); "
        "theorem2: 4/(…).",
        METHOD,
        unset="by learner",
        choices=SCHEDULES,
    ),
    Setting("step_size", "number", "η₀, or the constant step.", METHOD, unset="by learner", common=True, above=0.0),
    Setting("step_power", "number", "p of the power schedule.", METHOD, 1.0, least=0.0),
    Setting(
        "step_offset",
        "text",
        "t: the paper's Kt+k+1; t+1: its authors' code, K(t+1)+k.",
        METHOD,
        "t",
        choices=("t", "t+1"),
    ),
)


def make_schedule(config: Values) -> Schedule:
    """The step sizes that settings name; `search` starts from the constant step."""
    match config.schedule:
        case "theorem1":
            return Theorem(config.mu, 2.0)
        case "theorem2":
            return Theorem(config.mu, 4.0)
        case "power":
            return Power(config.step_size, config.step_power, "t" if config.step_offset == "t" else "t+1")
    return Constant(config.step_size)
