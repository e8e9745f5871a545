"""Weak-learning oracles: from a query φ, known at client i's points, to a weak learner h close to it.

Every call is measured.  γ = 1 − ‖h − φ‖/‖φ‖ in the oracle's own norm is the constant of the weak-learning assumption
(the paper's eq. weak_oracle_contraction); it is returned with h, logged and shown.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ffgb.errors import FFGBError
from ffgb.functions import Array, Family, OnPoints


@final
class WO2:
    """WO²_{α_i}: least squares in L²(α_i), ‖h − φ‖_{α_i} ≤ (1 − γ)‖φ‖_{α_i}."""

    def __init__(self, family: Family, z: Array) -> None:
        self.family = family
        self.z = z
        self.fit = family.least_squares(z)

    def __call__(self, phi: Array, rng: np.random.Generator) -> tuple[OnPoints, float]:
        """h and its γ."""
        h = self.family.member(self.fit(phi, rng))
        values = h.evaluate(self.z)
        if not np.isfinite(values).all():
            raise FFGBError(
                "the weak learner diverged to infinite values; choose a smaller --step-size or learning rate"
            )
        gamma = contraction(values, phi)
        if gamma <= 0.0 and np.any(values):
            # h does not contract.  Among its multiples, ⟨h,φ⟩/‖h‖² · h is the closest to φ, and it does unless h ⊥ φ.
            best = float(np.vdot(values, phi) / np.vdot(values, values))
            h, values = h * best, values * best
            gamma = contraction(values, phi)
        return OnPoints(0.0, h, values), gamma


def contraction(h: Array, phi: Array) -> float:
    """γ = 1 − ‖h − φ‖/‖φ‖ in L²; 1 for the exact answer to the query 0."""
    size, error = float(np.linalg.norm(phi)), float(np.linalg.norm(h - phi))
    if size == 0.0:
        return 1.0 if error == 0.0 else -np.inf
    return 1.0 - error / size
