"""FFGB: federated functional gradient boosting, for clients whose features are distributed alike.

Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", Algorithm 2.  With one client (N = 1) and no
residual it is restricted functional gradient descent (RFGD), that is, gradient boosting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, final

import numpy as np

from ffgb.algorithms import Algorithm, Functional, Length, Notes, Searched, Totals, Whole
from ffgb.algorithms.additive_shared import AdditiveShared
from ffgb.algorithms.blended import Blended
from ffgb.algorithms.ffgb_posterior import FFGBPosterior
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core.functions import Family, OnPoints
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.oracles import WO2, Oracle, SharedWO2
from ffgb.core.points import Points
from ffgb.core.schedules import Schedule, capped, make_schedule
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.learners.additive import Additive
from ffgb.learners.blend import Blend
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.settings import METHOD, Setting, Values

GROWN: Mapping[str, type[Totals]] = {
    BoostedTrees.name: TreesShared,
    Additive.name: AdditiveShared,
    Blend.name: Blended,
}
"""Procedures for learners that are grown from totals."""


@final
@dataclass(frozen=True)
class FFGB(Functional):
    """K local steps, Tikhonov regularisation μ, and the residual Δ that lets local steps converge."""

    name: ClassVar[str] = "ffgb"
    needs: ClassVar[str] = "least_squares"
    geometries: ClassVar[tuple[str, ...]] = ("shared", "local")
    searches: ClassVar[bool] = True

    schedule: Schedule
    K: int = 1
    mu: float = 0.0
    residual: bool = True
    length: Length = Whole()  # noqa: RUF009
    distill: bool = False
    """A client makes one weak learner of its K before it sends them (the paper's section 5)."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {"gamma_distilled": min, "residual": fmean}

    def __post_init__(self) -> None:
        if self.K < 1:
            raise FFGBError(f"a client takes at least one local step, not {self.K}")
        if not self.mu >= 0:
            raise FFGBError(f"the regularisation μ must not be negative, not {self.mu}")

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        """In a shared geometry one local step leaves the solve to the server; more need the geometry at clients."""
        if config.learner in GROWN:
            return GROWN[config.learner].configured(config)
        schedule, search = make_schedule(config), config.schedule == "search"
        if config.geometry == "shared" and config.local_steps == 1:
            if config.ridge is None:
                return FFGBPosterior()
            return FFGBShared(schedule, config.mu, search)
        length = Searched() if search else Whole()
        distill = config.distill == "clients"
        return cls(schedule, config.local_steps, config.mu, config.residual, length, distill)

    def eta(self, k: int, t: int) -> float:
        """η^{k,t}, never above 1/μ."""
        return capped(self.schedule(k, t, self.K), self.mu)

    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        z = points.features(family.features)
        return WO2(family, z) if geometry is None else SharedWO2(family, z, geometry)

    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        """Algorithm 2: g^{K+1,t} of one client, and the γ of each of its oracle calls."""
        Δ, g, gammas = np.zeros(()), f, []  # line 2
        for k in range(1, self.K + 1):  # line 3
            gradient = oracle.sees(loss.gradient(g.values, y))
            h, seen, gamma, _ = oracle(Δ + gradient, rng)  # line 4
            g = (1.0 - self.mu * self.eta(k, t)) * g - self.eta(k, t) * h  # line 5: g − η(h + μg)
            if self.residual:
                Δ = Δ + gradient - seen  # line 6
            if gamma is not None:
                gammas.append(gamma)
        notes = {"gamma": gammas}
        if self.residual and self.K > 1 and (size := float(np.linalg.norm(gradient))) > 0:
            notes["residual"] = [float(np.linalg.norm(Δ)) / size]  # what is left to explain, of the last gradient
        if not self.distill or self.K == 1:
            return g, notes  # line 8
        decay = self.decay(t)
        one, _, gamma, _ = oracle(g.values - decay * f.values, rng)
        return decay * f + one, notes | {"gamma_distilled": [] if gamma is None else [gamma]}


SETTINGS = (
    Setting("local_steps", "whole", "Local steps K.", METHOD, unset="by learner", common=True, least=1),
    Setting(
        "mu",
        "number",
        "Tikhonov regularisation μ.",
        METHOD,
        unset="0; ffgb-c: 0.001; ffgb-l: 1",
        common=True,
        least=0.0,
    ),
    Setting(
        "residual",
        "switch",
        "Carry the oracle's error Δ into the next local step.",
        METHOD,
        True,
        off="--no-residual",
    ),
    Setting(
        "distill",
        "text",
        "clients: each sends one learner for its K; server: it makes one of a round's N, at points of its own "
        "(distill_data); rounds: all make one of the ensemble after each round (ffgb).",
        METHOD,
        unset="no",
        choices=("clients", "server", "rounds"),
        users=("ffgb",),
    ),
    Setting(
        "distill_data",
        "names",
        "Files with the server's own points, without labels, for distill = server.",
        METHOD,
        (),
        users=("ffgb",),
    ),
    Setting(
        "distill_rounds",
        "whole",
        "Rounds of FedAvg that make one of the ensemble.",
        METHOD,
        20,
        least=1,
        users=("ffgb",),
    ),
)
