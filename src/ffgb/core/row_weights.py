"""A loss whose rows have weights."""

from __future__ import annotations

from typing import final

import numpy as np

from ffgb.core.losses import Loss
from ffgb.core.types import Array


@final
class WeightedRows(Loss):
    """A loss at a client's own rows, each with a weight relative to their mean.

    Its functional gradient in L²(α_i) is that of the weighted risk Σ_j v_j ℓ(f(x_j), y_j) / Σ_j v_j.
    """

    def __init__(self, inner: Loss, weights: Array) -> None:
        self.inner, self.weights = inner, weights / weights.mean()
        self.outputs, self.classification, self.least = inner.outputs, inner.classification, inner.least

    def value(self, f: Array, y: Array) -> Array:
        value: Array = self.weights * self.inner.value(f, y)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = self.weights[:, None] * self.inner.gradient(f, y)
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        curvature: Array = self.weights[:, None] * self.inner.curvature(f, y)
        return curvature

    @property
    def bound(self) -> float:
        return self.inner.bound * float(np.max(self.weights))

    @property
    def entry_bound(self) -> float:
        return self.inner.entry_bound * float(np.max(self.weights))

    @property
    def smoothness(self) -> float:
        return self.inner.smoothness * float(np.max(self.weights))

    def check(self, y: Array) -> None:
        self.inner.check(y)
