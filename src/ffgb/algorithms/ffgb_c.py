"""FFGB.C: federated functional gradient boosting with clipping, for clients whose features differ.

Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", Algorithm 3 in the corrected form of its
appendix: it starts from g¹ = f^t without a clip, and the step is η(Π_{G²}(h) + μg).  Off a client's own points
nothing is known of a weak learner but the clip; so no function ever leaves the ball of radius 2G/(μγ), and the error
that other clients' points add is bounded by the total variation between the clients' distributions (Theorem 2).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms import Algorithm, Functional, Length, Notes, Task, Whole
from ffgb.core.functions import Family, Function, OnPoints, OpenSum
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.oracles import Oracle, WOInf
from ffgb.core.points import Points
from ffgb.core.questions import Ask
from ffgb.core.schedules import Schedule, capped, make_schedule
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option
from ffgb.settings import METHOD, Setting, Values

ROUNDING = 1e-9
"""Radii are made for a γ smaller by this share, so that rounding alone never makes a clip bite."""
DIGITS = 1e-5
"""What B may be below 2G/(μγ), relatively, before that is worth a warning: the warning prints six digits."""

log = logging.getLogger("ffgb")


def least_ball(mu: float, G: float, gamma: float) -> float:
    """2G/(μγ): the radius of the ball that no iterate leaves, and the least B of Theorem 2.

    >>> least_ball(0.5, 1.0, 0.25)
    16.0
    """
    return 2.0 * G / (mu * gamma)


def radii(gamma: float, G: float) -> tuple[float, float]:
    """G¹ = (1−γ)G/γ for the residual, G² = (2−γ)G/γ for the weak learner; no clip if γ ≤ 0 promises nothing.

    >>> "{:.6f} {:.6f}".format(*radii(0.5, 1.0))
    '1.000000 3.000000'
    """
    if gamma <= 0.0:
        return math.inf, math.inf
    gamma *= 1.0 - ROUNDING
    return (1.0 - gamma) / gamma * G, (2.0 - gamma) / gamma * G


@final
@dataclass(frozen=True)
class FFGBC(Functional):
    """K local steps with the oracle WO^∞, each term clipped at G², the residual at G¹."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {
        "clipped": sum,
        "clipped_residual": sum,
        "uncovered": sum,
    }
    length: ClassVar[Length] = Whole()  # type: ignore[misc]  # a step beyond η would leave the ball

    name: ClassVar[str] = "ffgb-c"
    needs: ClassVar[str] = "minimax"
    terms: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"mu": 1e-3, "regression_loss": "huber"}

    schedule: Schedule
    K: int = 1
    mu: float = 0.01
    gamma: float | None = None
    """γ that the radii are made for.  None: the least that this client measured in this round so far."""
    B: float = math.inf
    """Radius of the ball that the result is projected onto.  With B ≥ 2G/(μγ) it is in there anyway."""
    residual: bool = True
    G: float | None = None
    """The largest entry of the loss's gradient; found at set-up."""

    def __post_init__(self) -> None:
        if self.K < 1:
            raise FFGBError(f"a client takes at least one local step, not {self.K}")
        if not self.mu > 0:
            raise FFGBError(
                f"FFGB.C keeps functions bounded by the regularisation μ > 0, not {self.mu}; set {option('mu')}"
            )
        if self.gamma is not None and not 0 < self.gamma <= 1:
            raise FFGBError(f"γ lies in (0, 1], not {self.gamma}: with γ ≤ 0 an oracle promises nothing to clip by")
        if not self.B > 0:
            raise FFGBError(f"the ball's radius B must be positive, not {self.B}")

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        B = math.inf if config.bound is None else config.bound
        return cls(make_schedule(config), config.local_steps, config.mu, config.gamma, B, config.residual)

    @classmethod
    def check(cls, config: Values, task: Task) -> None:
        super().check(config, task)
        if not task.classes and config.loss not in ("auto", "huber"):
            raise FFGBError(
                f"ffgb-c needs a loss with a bounded gradient; for regression leave {option('loss')} out, or use huber"
            )

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        if not math.isfinite(loss.entry_bound):
            raise FFGBError(
                f"FFGB.C needs a loss with a bounded gradient, and that of {type(loss).__name__} has none; "
                f"for regression choose {option('loss', 'huber')}"
            )
        if self.gamma is not None:
            self._warn(least_ball(self.mu, loss.entry_bound, self.gamma), self.gamma)
        return replace(self, G=loss.entry_bound)

    def pooled(self, f: Function, mean: Function, share: float) -> Function:
        """The mean as it is.  If γ is measured, the round in which it first needs a larger ball than B is warned of."""
        if self.gamma is None and self.G is not None and not self._too_small(self._ball(f)):
            needed = self._ball(mean)
            self._warn(needed, 2.0 * self.G / (self.mu * max(needed, 1e-300)))
        return mean

    def _ball(self, f: Function) -> float:
        """2G/(μγ) for the least γ that a term of f was clipped for, by its radius G² = (2−γ)G/γ; 0 without terms."""
        if self.G is None or not isinstance(f, OpenSum):
            return 0.0
        finite = [float(radius) for block in f.blocks for radius in block.radii if np.isfinite(radius)]
        return (max(finite) + self.G) / self.mu if finite else 0.0

    def _too_small(self, needed: float) -> bool:
        return (1.0 - DIGITS) * needed > self.B

    def _warn(self, needed: float, gamma: float) -> None:
        if self._too_small(needed):
            log.warning(
                "--bound %g is less than 2G/(μγ) = %.6g, which Theorem 2 needs for γ = %.3g: training may leave the "
                "ball, and the projection back need not come near the best function in it; raise --bound to %.6g, or "
                "raise --mu",
                *(self.B, needed, gamma, needed),
            )

    def eta(self, k: int, t: int) -> float:
        """η^{k,t}, never above 1/μ."""
        return capped(self.schedule(k, t, self.K), self.mu)

    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        if geometry is not None:
            raise FFGBError(
                f"FFGB.C fits in the sup norm of each client's own points; use {option('geometry', 'local')}"
            )
        return WOInf(family, points.features(family.features))

    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        """Algorithm 3, as corrected: g^{K+1,t} of one client, its γ, and how many entries at its points were clipped.

        By the paper's lemma none is, as long as γ is what the oracle achieves: clips act where the client cannot see.
        """
        G, least, measured = loss.entry_bound, self.gamma, list[float]()
        Δ, g = np.zeros(()), f  # line 2
        notes: Notes = {name: [] for name in ("gamma", *self.totals)}
        for k in range(1, self.K + 1):  # line 3
            gradient = oracle.sees(loss.gradient(g.values, y))
            h, seen, gamma, more = oracle(Δ + gradient, rng)  # line 4
            assert gamma is not None
            if self.gamma is None:
                # A call that does not contract in the sup norm promises nothing.  Its γ in L² stands in for the
                # promise: then clips may act at the client's own points too, and are counted.
                measured.append(gamma if gamma > 0.0 else more.get("gamma_l2", 0.0))
                least = min((m for m in measured if m > 0.0), default=0.0)
            G1, G2 = radii(least or 0.0, G)
            clipped = h.clip(G2)
            g = (1.0 - self.mu * self.eta(k, t)) * g - self.eta(k, t) * clipped  # line 5: g − η(Π_{G²}(h) + μg)
            if self.residual:
                left = Δ + gradient - seen
                Δ = np.clip(left, -G1, G1)  # line 6
                notes["clipped_residual"].append(float(np.count_nonzero(left != Δ)))
            notes["gamma"].append(gamma)
            notes["uncovered"].append(float(gamma <= 0.0))
            notes["clipped"].append(float(np.count_nonzero(clipped.values != h.values)))
        return g, notes  # line 8

    def zero(self, family: Family) -> Function:
        """The empty sum, of terms: a clipped sum of members of a closed family is no longer a member."""
        return OpenSum(family, ())

    def optional(self) -> frozenset[str]:
        return frozenset()

    def seen(self, values: Array) -> Array:
        return values if math.isinf(self.B) else np.clip(values, -self.B, self.B)

    def project(self, f: Function) -> Function:
        return f if math.isinf(self.B) else f.clip(self.B)  # C is the ball of radius B in L^∞


SETTINGS = (
    Setting("gamma", "number", "γ that clips are made for (ffgb-c).", METHOD, unset="as measured", users=("ffgb-c",)),
    Setting(
        "bound",
        "number",
        "B: ball to project onto (ffgb-c), or that labels must keep (ffgb-l).",
        METHOD,
        unset="none",
        above=0.0,
        users=("ffgb-c", "ffgb-l"),
    ),
)
