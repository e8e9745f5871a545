"""A loss of several versions of f side by side: each is trained as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ffgb.core.losses import Loss
from ffgb.core.losses.base import Measure
from ffgb.core.losses.links import Link
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Versions(Loss):
    """The inner loss of each version; reports and predictions are those of the first.

    f has the entries of the first version, then those of the second, and so on.
    """

    inner: Loss
    number: int

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.inner.outputs * self.number

    @property
    def classification(self) -> bool:  # type: ignore[override]
        return self.inner.classification

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        return self.inner.measure

    @property
    def alone(self) -> bool:  # type: ignore[override]
        return self.inner.alone

    @property
    def dispersed(self) -> bool:  # type: ignore[override]
        return self.inner.dispersed

    @property
    def least(self) -> float:  # type: ignore[override]
        return self.inner.least

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.inner.smooth

    @classmethod
    def of(cls, classes: int, outputs: int, **settings: float) -> Any:
        raise FFGBError("versions are of another loss, and are made by an algorithm")

    def first(self, f: Array) -> Array:
        """The first version's values, (n, c)."""
        return f[:, : self.inner.outputs]

    def value(self, f: Array, y: Array) -> Array:
        return self.inner.value(self.first(f), y)

    def gradient(self, f: Array, y: Array) -> Array:
        return np.concatenate([self.inner.gradient(g, y) for g in self._each(f)], axis=1)

    def curvature(self, f: Array, y: Array) -> Array:
        return np.concatenate([self.inner.curvature(g, y) for g in self._each(f)], axis=1)

    def _each(self, f: Array) -> list[Array]:
        c = self.inner.outputs
        return [f[:, k * c : (k + 1) * c] for k in range(self.number)]

    @property
    def bound(self) -> float:
        return self.inner.bound * float(np.sqrt(self.number))

    @property
    def entry_bound(self) -> float:
        return self.inner.entry_bound

    @property
    def smoothness(self) -> float:
        return self.inner.smoothness

    def check(self, y: Array) -> None:
        self.inner.check(y)

    @property
    def link(self) -> Link:
        return self.inner.link

    def probability(self, f: Array) -> Array:
        return self.inner.probability(self.first(f))

    def scaling(self, moments: Moments) -> tuple[Array, Array] | None:
        return self.inner.scaling(moments)

    def unscaled(self, f: Array, mean: Array | None = None, scale: Array | None = None) -> Array:
        return self.inner.unscaled(self.first(f), mean, scale)

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        return self.inner.scores(self.first(f), y, mean, scale, weights)
