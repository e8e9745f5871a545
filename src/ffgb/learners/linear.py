"""The closed family: functions that are linear over a feature map all clients share, h(x) = Φ(x) W.

A weighted sum of members is the member of the weighted sum of their W: the whole ensemble, whatever T, N and K, is
one D × c array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ffgb.features import FeatureMap
from ffgb.functions import Array, Family, Fit, Parameters


@final
@dataclass(frozen=True)
class Linear(Family):
    """x ↦ Φ(x) W, W in R^{D×c}.  Its oracle is ridge regression, ridge relative to the mean size of the features."""

    closed: ClassVar[bool] = True
    features: FeatureMap
    outputs: int
    ridge: float = 1e-3

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"weight": ((self.features.dimension, self.outputs), "float32")}

    def prepare(self, x: Array) -> Array:
        return self.features(x)

    def members(self, stack: Parameters, z: Array) -> Array:
        values: Array = np.matmul(z, stack["weight"])
        return values

    def least_squares(self, z: Array) -> Fit:
        """min_W ‖ZW − φ‖²/n + λ‖W‖², λ = ridge · ‖Z‖²_F/n.

        One factorisation a client: of Z'Z + nλI, or, with fewer points than features, of the smaller ZZ' + nλI.
        Each query is then two thin products and two triangular solves.
        """
        n, d = z.shape
        dual = n < d
        gram = (z @ z.T if dual else z.T @ z).astype(np.float64)
        gram[np.diag_indices_from(gram)] += max(self.ridge * np.trace(gram), 1e-12)
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            if dual:
                weight = z.T @ cho_solve(factor, phi, check_finite=False).astype(np.float32)
            else:
                weight = cho_solve(factor, (z.T @ phi.astype(np.float32)).astype(np.float64), check_finite=False)
            return {"weight": weight.astype(np.float32)}

        return fit
