"""FFGB in the geometry of all clients' points together: gradient boosting, computed where the rows are.

In a closed family the inner product of L²(α), α all clients' points together, is a matrix that clients add up once.
The oracle's answer to the global gradient φ is then h = (G + λI)⁻¹⟨φ, ·⟩, and ⟨φ, ·⟩ is a sum over all rows.  So the
server runs the method, and asks for sums where a central program would compute them.  The result does not depend on how
rows are split between clients (docs/geometry.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Searched, Step, Totals
from ffgb.core.capabilities import InnerProducts
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.gradients import Gradient, GradientOf, SlopesOf, best_length
from ffgb.core.losses import Loss
from ffgb.core.questions import Ask
from ffgb.core.schedules import Schedule, capped
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

SLACK = 1.01
"""For what is rounded on the way to a bound."""
TINY = 1e-9
"""What is left when gradients vanish: units must not."""

MARGIN = 0.05
"""What a step may fit of noise, beyond what it explains.  With many points to a feature no step can fit much."""
SETTLED = 0.1
"""A step that moves weights by less, in squares of the posterior's own width, is the last one."""


@final
@dataclass(frozen=True)
class FFGBShared(Totals):
    """One step a round, along the oracle's answer to the gradient of all rows."""

    schedule: Schedule
    mu: float = 0.0
    search: bool = False
    """Take the best length along the step, by slopes, rather than the schedule's."""

    searches: ClassVar[bool] = True

    def check_sampling(self) -> None:
        if self.search:
            Searched().check_sampling()

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise FFGBError(f"the regularisation μ must not be negative, not {self.mu}")

    def eta(self, k: int, t: int) -> float:
        """η^{1,t}, never above 1/μ."""
        return capped(self.schedule(k, t, self.K), self.mu)

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        check_products(family)
        return self

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """Gradient, oracle, step.  With `stop` the step is 0 when h would fit more noise than it finds to learn."""
        assert geometry is not None
        most = ask.gradient_bound(loss.bound)
        phi: Gradient = ask(GradientOf(f.family, loss, SLACK * geometry.scale, most))
        w = geometry.solve(phi.covector)
        eta, decay = self.eta(1, t), self.decay(t)
        h = as_sent(f.family.member({"weight": -eta * w}))
        square = float(np.vdot(w, geometry.apply(w)))
        length = 1.0
        if self.search:
            slopes, measured = ask(SlopesOf(loss, decay, self.mu, eta * eta * square), h)
            square, length = measured / (eta * eta), best_length(slopes)
        gamma, explained = fit(float(np.vdot(phi.covector, w)), square, phi.square)
        found = {"gamma": gamma, "explained": explained, "noise": ask.noise(geometry.freedom)}
        if self.search and stop and spent(found):
            length = 0.0
        change = next_gradient(loss, phi.square, abs(length) * eta * math.sqrt(max(square, 0.0)), self.mu)
        # of a geometry that is not exact no one knows how large h is, unless clients have measured it
        bound = change if self.search or geometry.freedom is not None else loss.bound
        return Step(h, 1.0 + length * (decay - 1.0), length, self.search, found, bound)


def check_products(family: Family) -> None:
    """Refuse a family that has no inner products with a gradient."""
    if not isinstance(family, InnerProducts):
        raise FFGBError(
            f"only a closed family, linear over features, can share a geometry; use {option('geometry', 'local')}"
        )


def next_gradient(loss: Loss, square: float, step: float, mu: float) -> float:
    """A bound on ‖∇ℓ(f + Δ)‖ from ‖∇ℓ(f)‖² and ‖Δ‖: the gradient of an L-smooth loss changes by at most L‖Δ‖."""
    if not loss.smooth or mu != 0.0:  # with μ the step is not along h alone
        return loss.bound
    return min(loss.bound, SLACK * (math.sqrt(square) + loss.smoothness * step) + TINY)


def as_sent(f: Function) -> Function:
    """With parameters in the family's own precision, in which they travel."""
    spec = f.family.spec
    arrays = {name: a.astype(spec[name.removeprefix("parameters/")][1]) for name, a in f.tensors().items()}
    return f.family.member({name.removeprefix("parameters/"): a for name, a in arrays.items()})


def fit(inner: float, own: float, size: float) -> tuple[float, float]:
    """γ = 1 − ‖h − φ‖/‖φ‖ in L²(α), and the share of ‖φ‖² along h, from ⟨h, φ⟩, ‖h‖² and ‖φ‖².

    As for every oracle, an h that does not contract is measured by its best multiple: which length is taken is for the
    search to say.
    """
    if size <= 0.0 or own <= 0.0:
        return 1.0, 0.0
    explained = min(inner / own * (inner / size), 1.0)
    gamma = 1.0 - math.sqrt(max(own - 2.0 * inner + size, 0.0) / size)
    return (gamma if gamma > 0.0 else 1.0 - math.sqrt(1.0 - explained)), explained


def spent(metrics: Mapping[str, float | None]) -> bool:
    """Is there nothing left to learn but noise?

    So it is when the mean answer explains less of the gradient than it would of pure noise, by a twentieth of it; and
    with a prior, when what a step changes is small beside what the rows leave open.
    """
    if (remaining := metrics.get("remaining")) is not None:
        return remaining < SETTLED
    noise, explained = metrics.get("noise"), metrics.get("explained")
    return noise is not None and explained is not None and noise - explained > MARGIN
