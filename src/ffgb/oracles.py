"""Weak-learning oracles: from a query φ, known at client i's points, to a weak learner h close to it.

Every call is measured.  γ = 1 − ‖h − φ‖/‖φ‖ in the oracle's own norm is the constant of the weak-learning assumption
(the paper's eq. weak_oracle_contraction); it is returned with h, logged and shown.

An oracle sees a query in a space of its own: as values at the client's points, or as inner products with the family.
Residuals Δ live there, so the algorithms' lines are the same for all oracles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import numpy as np

from ffgb.errors import FFGBError
from ffgb.functions import Array, Family, OnPoints
from ffgb.geometry import AtServer, Geometry
from ffgb.learners.linear import Linear


class Answer(NamedTuple):
    """What an oracle returns."""

    h: OnPoints
    seen: Array
    """h as the oracle sees it, to be taken off the query: what is left is the residual."""
    gamma: float | None
    """None if it cannot be known at the client: then the server measures it."""


class Oracle(ABC):
    """WO: a query to a weak learner."""

    @abstractmethod
    def sees(self, phi: Array) -> Array:
        """φ, given at the client's points, in the oracle's own space."""

    @abstractmethod
    def __call__(self, query: Array, rng: np.random.Generator) -> Answer: ...


@final
class WO2(Oracle):
    """WO²_{α_i}: least squares in L²(α_i), ‖h − φ‖_{α_i} ≤ (1 − γ)‖φ‖_{α_i}."""

    def __init__(self, family: Family, z: Array) -> None:
        self.family = family
        self.z = z
        self.fit = family.least_squares(z)

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        h = self.family.member(self.fit(query, rng))
        values = h.evaluate(self.z)
        if not np.isfinite(values).all():
            raise FFGBError(
                "the weak learner diverged to infinite values; choose a smaller --step-size or learning rate"
            )
        gamma = contraction(values, query)
        if gamma <= 0.0 and np.any(values):
            # h does not contract.  Among its multiples, ⟨h,φ⟩/‖h‖² · h is the closest to φ, and it does unless h ⊥ φ.
            best = float(np.vdot(values, query) / np.vdot(values, values))
            h, values = h * best, values * best
            gamma = contraction(values, query)
        return Answer(OnPoints(0.0, h, values), values, gamma)


@final
class SharedWO2(Oracle):
    """WO²_α in a closed family: least squares in L²(α), α all clients' points together, by their common geometry.

    It sees a query as its inner products with the family, b_i = [Φ_i, 1]'φ_i/n_i; the answer solves
    (G + λI) w = b_i, and what it leaves is b_i − G w.  γ is measured in the norm that goes with inner products, that
    of (G + λI)⁻¹.
    """

    def __init__(self, family: Linear, z: Array, geometry: Geometry) -> None:
        self.family, self.z, self.geometry = family, z, geometry

    def sees(self, phi: Array) -> Array:
        return self.family.covector(self.z, phi)

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        w = self.geometry.solve(query)
        h = self.family.member({"weight": w})
        seen = self.geometry.apply(w)
        left = query - seen
        size = max(float(np.vdot(query, w)), 0.0)
        gamma = 1.0 - np.sqrt(max(float(np.vdot(left, self.geometry.solve(left))), 0.0) / size) if size > 0 else 1.0
        return Answer(OnPoints(0.0, h, h.evaluate(self.z)), seen, float(gamma))


@final
class Covector(Oracle):
    """WO²_α when the server has the geometry: the client answers with b_i, the server solves for the mean of all b_i.

    What h is at the client's points is not known here, and with one local step not needed.
    """

    def __init__(self, family: Linear, z: Array) -> None:
        self.family, self.z = family, z

    def sees(self, phi: Array) -> Array:
        return self.family.covector(self.z, phi)

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        unknown = np.full((len(self.z), query.shape[1]), np.nan)
        return Answer(OnPoints(0.0, self.family.member({"weight": query}), unknown), query, None)


def shared_oracle(family: Family, z: Array, geometry: Geometry) -> Oracle:
    """The oracle in a geometry that all clients share."""
    if not isinstance(family, Linear):
        raise FFGBError("only a closed family, linear over features, can share a geometry; use --geometry local")
    return Covector(family, z) if isinstance(geometry, AtServer) else SharedWO2(family, z, geometry)


def contraction(h: Array, phi: Array) -> float:
    """γ = 1 − ‖h − φ‖/‖φ‖ in L²; 1 for the exact answer to the query 0."""
    size, error = float(np.linalg.norm(phi)), float(np.linalg.norm(h - phi))
    if size == 0.0:
        return 1.0 if error == 0.0 else -np.inf
    return 1.0 - error / size
