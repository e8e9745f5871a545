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

from ffgb.algorithms import Algorithm, Notes
from ffgb.errors import FFGBError
from ffgb.features import Points
from ffgb.functions import Array, Family, Function, OnPoints
from ffgb.geometry import Geometry
from ffgb.losses import Loss
from ffgb.oracles import WO2, Oracle, shared_oracle
from ffgb.schedules import Schedule, capped


@final
@dataclass(frozen=True)
class FFGB(Algorithm):
    """K local steps, Tikhonov regularisation μ, and the residual Δ that lets local steps converge."""

    schedule: Schedule
    K: int = 1
    mu: float = 0.0
    residual: bool = True
    search: bool = False
    distill: bool = False
    """A client makes one weak learner of its K before it sends them (the paper's section 5)."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {"gamma_distilled": min, "residual": fmean}

    def __post_init__(self) -> None:
        if self.K < 1:
            raise FFGBError(f"a client takes at least one local step, not {self.K}")
        if not self.mu >= 0:
            raise FFGBError(f"the regularisation μ must not be negative, not {self.mu}")

    def eta(self, k: int, t: int) -> float:
        """η^{k,t}, never above 1/μ."""
        return capped(self.schedule(k, t, self.K), self.mu)

    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        z = points.features(family.features)
        return WO2(family, z) if geometry is None else shared_oracle(family, z, geometry)

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

    def project(self, f: Function) -> Function:
        return f  # C is all of L²(α)
