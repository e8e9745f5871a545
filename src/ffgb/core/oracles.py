"""Weak-learning oracles: from a query φ, known at client i's points, to a weak learner h close to it.

Every call is measured.  γ = 1 − ‖h − φ‖/‖φ‖ in the oracle's own norm is the constant of the weak-learning assumption
(the paper's eq. weak_oracle_contraction and the two like it); it is returned with h, logged and shown.  An h that
does not contract (γ ≤ 0) is replaced by its best multiple.

An oracle sees a query in a space of its own: as values at the client's points, as inner products with the family, or as
values and derivatives.  Residuals Δ live there, so the algorithms' lines are the same for all oracles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, final

import numpy as np

from ffgb.core.capabilities import InnerProducts, LeastSquares, Lipschitz, Minimax, lacks
from ffgb.core.functions import Family, OnPoints
from ffgb.core.geometry import Geometry
from ffgb.core.lipschitz import Extension, Pairs
from ffgb.core.points import Points
from ffgb.core.types import Array
from ffgb.errors import DivergedError, FFGBError, option

NEGLIGIBLE = 1e-3
"""A γ in the sup norm that is rounding, or worth as little."""
DERIVATIVES = 20_000
"""Numbers that the derivatives of one output may be, at a client."""


class Answer(NamedTuple):
    """What an oracle returns."""

    h: OnPoints
    seen: Array
    """h as the oracle sees it, to be taken off the query: what is left is the residual."""
    gamma: float | None
    """None if it cannot be known at the client: then the server measures it."""
    measured: Mapping[str, float] = {}
    """What else the oracle knows of this call."""


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
        if not isinstance(family, LeastSquares):
            raise lacks(family, "least-squares fit, which FFGB needs")
        self.family: Family = family
        self.z = z
        self.fit = family.least_squares(z)

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        h = self.family.member(self.fit(query, rng))
        values = _finite(h.evaluate(self.z))
        gamma = contraction(values, query)
        if gamma <= 0.0 and np.any(values):
            # h does not contract.  Among its multiples, ⟨h,φ⟩/‖h‖² · h is the closest to φ, and it does unless h ⊥ φ.
            best = float(np.vdot(values, query) / np.vdot(values, values))
            h, values = h * best, values * best
            gamma = contraction(values, query)
        return Answer(OnPoints(0.0, h, values), values, gamma)


@final
class WOInf(Oracle):
    """WO^∞_{α_i}: minimax, ‖h − φ‖_{α_i,∞} ≤ (1 − γ)‖φ‖_{α_i,∞}, the largest entry at any of the client's points."""

    def __init__(self, family: Family, z: Array) -> None:
        if not isinstance(family, Minimax):
            raise lacks(family, "minimax fit, which FFGB.C needs")
        self.family: Family = family
        self.z = z
        self.fit = family.minimax(z)

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        h = self.family.member(self.fit(query, rng))
        values = _finite(h.evaluate(self.z))
        gamma = contraction(values, query, sup)
        if gamma <= 0.0 and np.any(values):
            # beyond twice φ in size any multiple is worse than none
            best = _best_multiple(lambda s: sup(s * values - query), 2.0 * sup(query) / sup(values))
            h, values = h * best, values * best
            gamma = contraction(values, query, sup)
        if gamma > NEGLIGIBLE:
            return Answer(OnPoints(0.0, h, values), values, gamma)
        # Where labels differ at points that the family cannot tell apart, nothing contracts in this norm, and the best
        # answer is 0.  Least squares still has something to say: its answer is taken, and its γ ≤ 0 tells.
        plain = WO2(self.family, self.z)(query, rng)
        assert plain.gamma is not None
        return plain._replace(gamma=min(contraction(plain.seen, query, sup), 0.0), measured={"gamma_l2": plain.gamma})


@final
class WOLip(Oracle):
    """WO^lip_{α_i}: values and slopes, ‖h‖_lip ≤ ‖φ‖_lip, and h − φ smaller than φ by 1 − γ in both norms,
    ‖·‖_{α_i,∞} and ‖·‖_lip.

    It sees labels y as their Lipschitz extension u_i: its values at the client's points, and its derivatives at
    samples between them (the paper's Sobolev term is an integral over the space, and u_i has kinks just at the
    points).  The bound on h holds everywhere, by construction of the family; slopes of φ and of h − φ are measured at
    pairs of points.  That is enough for the paper's induction: an h that is nowhere steeper than φ is at pairs, and
    an error that contracts at pairs, keep all iterates L/γ-Lipschitz everywhere.

    The same query gets the same answer, computed once: then the sequence h^1 … h^K is the same in every round.
    """

    def __init__(self, family: Family, points: Points, L: float, extension: str, rng: np.random.Generator) -> None:
        if not isinstance(family, Lipschitz):
            raise lacks(family, "Lipschitz fit, which FFGB.L needs")
        self.family, self.steepness = family, family.lipschitz
        self.L, self.extension = L, extension
        self.z = points.features(family.features)
        self.s = points.features(family.metric).astype(np.float64)
        self.pairs = Pairs(self.s, rng)
        self.samples = between(self.s, rng)
        self.fit, self.jet = family.sobolev(self.s, self.samples)
        self.rng = rng
        self.answers: dict[bytes, Answer] = {}

    def sees(self, phi: Array) -> Array:
        u = Extension(self.s, phi, self.L, self.extension)
        slopes = u.gradient(self.samples)
        return np.concatenate([u(self.s), slopes.reshape(-1, slopes.shape[2])])

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        key = query.tobytes()
        if key not in self.answers:
            self.answers[key] = self._answer(query)
        return self.answers[key]

    def _answer(self, query: Array) -> Answer:
        n, phi = len(self.s), query[: len(self.s)]
        slope = self.pairs.slope(phi)
        parameters = self.fit(query, slope, self.rng)
        h, jet, steepness = (
            self.family.member(parameters),
            _finite(self.jet(parameters)),
            self.steepness(parameters),
        )
        # ‖h‖_lip ≤ ‖φ‖_lip; shrinking an h that contracts by 1 − γ leaves one that contracts by 1 − sγ at least
        allowed = min(1.0, slope / steepness) if steepness > 0 else 1.0

        best = allowed
        if contraction(best * jet[:n], phi, sup) <= 0.0:
            best = _best_multiple(lambda s: sup(s * jet[:n] - phi), allowed)
            if best == 0.0 and (square := float(np.vdot(jet[:n], jet[:n]))) > 0.0:
                # as WO^∞ does where nothing contracts: the best multiple in L², and γ tells
                best = float(np.clip(np.vdot(jet[:n], phi) / square, -allowed, allowed))
        values, seen = best * jet[:n], best * jet
        gammas = {
            "gamma_sup": contraction(values, phi, sup),
            "gamma_lip": 1.0 - _share(self.pairs.slope(values - phi), slope),
        }
        measured = {**gammas, "lipschitz": abs(best) * steepness}
        return Answer(OnPoints(0.0, h * best, values), seen, min(gammas.values()), measured)


def between(s: Array, rng: np.random.Generator) -> Array:
    """As many places as there are points, or as memory is meant for, each between two random points."""
    count = min(len(s), max(32, DERIVATIVES // s.shape[1]))
    a, b = rng.integers(len(s), size=(2, count))
    part = rng.random((count, 1))
    places: Array = part * s[a] + (1.0 - part) * s[b]
    return places


@final
class SharedWO2(Oracle):
    """WO²_α in a closed family: least squares in L²(α), α all clients' points together, by their common geometry.

    It sees a query as its inner products with the family, b_i = [Φ_i, 1]'φ_i/n_i; the answer solves
    (G + λI) w = b_i, and what it leaves is b_i − G w.  γ is measured in the norm that goes with inner products, that
    of (G + λI)⁻¹.
    """

    def __init__(self, family: Family, z: Array, geometry: Geometry) -> None:
        if not isinstance(family, InnerProducts):
            raise FFGBError(
                f"only a closed family, linear over features, can share a geometry; use {option('geometry', 'local')}"
            )
        self.family, self.covector = family, family.covector
        self.z, self.geometry = z, geometry

    def sees(self, phi: Array) -> Array:
        return self.covector(self.z, phi)

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        w = self.geometry.solve(query)
        h = self.family.member({"weight": w})
        seen = self.geometry.apply(w)
        left = query - seen
        size = max(float(np.vdot(query, w)), 0.0)
        gamma = 1.0 - np.sqrt(max(float(np.vdot(left, self.geometry.solve(left))), 0.0) / size) if size > 0 else 1.0
        return Answer(OnPoints(0.0, h, h.evaluate(self.z)), seen, float(gamma))


def l2(values: Array) -> float:
    """‖·‖_{α_i}, but for a factor."""
    return float(np.linalg.norm(values))


def sup(values: Array) -> float:
    """‖·‖_{α_i,∞}: the largest entry at any point."""
    return float(np.abs(values).max(initial=0.0))


def contraction(h: Array, phi: Array, norm: Callable[[Array], float] = l2) -> float:
    """γ = 1 − ‖h − φ‖/‖φ‖; 1 for the exact answer to the query 0."""
    return 1.0 - _share(norm(h - phi), norm(phi))


def _share(error: float, size: float) -> float:
    if size == 0.0:
        return 0.0 if error == 0.0 else np.inf
    return error / size


def _best_multiple(left: Callable[[float], float], largest: float) -> float:
    """The s of [−largest, largest] that leaves least: a convex function of s, so that a search by sections finds it."""
    from scipy.optimize import minimize_scalar  # here, because few processes need it and it takes time to import

    found = minimize_scalar(left, bounds=(-largest, largest), method="bounded", options={"xatol": 1e-6 * largest})
    s = float(found.x)
    return s if left(s) < left(0.0) else 0.0


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        raise DivergedError(
            f"the weak learner diverged to infinite values; choose a smaller {option('step_size')} or learning rate"
        )
    return values
