"""The inputs as they are, features that are clipped or standardised, and maps side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

from ffgb.core.maps import After, FeatureMap
from ffgb.core.statistics import Moments
from ffgb.core.types import Array

Result = TypeVar("Result")


TURN = 2.0 * math.pi


def cosines(z: Array, frequencies: Array, phases: Array) -> Array:
    """cos(z Ω + β), float32, with angles in float64: high frequencies would lose all digits otherwise."""
    out = np.empty((len(z), frequencies.shape[1]), np.float32)
    omega = frequencies.astype(np.float64)
    for start in range(0, len(z), 1024):
        angle = z[start : start + 1024].astype(np.float64) @ omega
        angle += phases
        angle -= TURN * np.rint(angle / TURN)
        np.cos(angle.astype(np.float32), out=out[start : start + 1024])
    return out


@final
@dataclass(frozen=True)
class Flatten(FeatureMap):
    """The inputs as they are, one row a point."""

    inputs: int

    @property
    def dimension(self) -> int:
        return self.inputs

    def __call__(self, x: Array) -> Array:
        return np.ascontiguousarray(x, np.float32).reshape(len(x), self.dimension)

    def of_many(self, x: Array) -> Array:
        return self(x)  # no copy


@final
@dataclass(frozen=True, eq=False)
class Clip(After):
    """Another map's features, each moved to the nearest number between its two ends."""

    inner: FeatureMap
    low: Array
    high: Array

    @property
    def dimension(self) -> int:
        return self.inner.dimension

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.inner.blocks

    @property
    def bounds(self) -> Array:
        ends: Array = np.maximum(np.abs(self.low), np.abs(self.high)).astype(np.float64)
        return ends

    def after(self, z: Array) -> Array:
        clipped: Array = np.clip(z, self.low.astype(np.float32), self.high.astype(np.float32))
        return clipped


@final
@dataclass(frozen=True, eq=False)
class Standardize(After):
    """(Φ(x) − mean) / scale of another map's features, by aggregated moments."""

    inner: FeatureMap
    mean: Array
    scale: Array

    @staticmethod
    def by(moments: Moments, inner: FeatureMap, *, total: float | None = None) -> Standardize:
        """Unit variance of each feature; or, given a total, equal variances that add up to it."""
        # A column that is constant over all clients says nothing: it becomes 0 everywhere instead of 0/0.
        scale = np.where(moments.constant, np.inf, np.sqrt(moments.variance))
        if total is not None:
            scale = scale * math.sqrt(max(np.isfinite(scale).sum(), 1) / total)
        return Standardize(inner, moments.mean, scale)

    @property
    def dimension(self) -> int:
        return self.inner.dimension

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.inner.blocks

    @property
    def bounds(self) -> Array:
        bounds, varies = np.zeros(self.dimension), np.isfinite(self.scale)
        bounds[varies] = (self.inner.bounds + np.abs(self.mean))[varies] / self.scale[varies]
        return bounds

    def after(self, z: Array) -> Array:
        out = np.empty(z.shape, np.float32)
        for start in range(0, len(z), 512):  # in float64, but never all of it at once
            rows = slice(start, start + 512)
            out[rows] = (z[rows].astype(np.float64) - self.mean) / self.scale
        return out


@final
@dataclass(frozen=True)
class Concatenate(FeatureMap):
    """Several maps side by side, each times a factor of its own."""

    parts: tuple[FeatureMap, ...]
    factors: tuple[float, ...]

    @property
    def dimension(self) -> int:
        return sum(part.dimension for part in self.parts)

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(size for part in self.parts for size in part.blocks)

    @property
    def bounds(self) -> Array:
        return np.concatenate([f * part.bounds for f, part in zip(self.factors, self.parts, strict=True)])

    @property
    def metric(self) -> FeatureMap:
        first, *others = (part.metric for part in self.parts)
        # parts that have different ideas of distance are taken for coordinates of one space
        return first if all(other.fingerprint == first.fingerprint for other in others) else self

    def jacobian(self, s: Array) -> tuple[Array, Array]:
        if self.metric is self:
            return super().jacobian(s)
        parts = [(f * z, f * dz) for f, (z, dz) in self._each(lambda part, columns: part.jacobian(s))]
        return np.concatenate([z for z, _ in parts], axis=1), np.concatenate([dz for _, dz in parts], axis=2)

    def lipschitz(self, weight: Array) -> float:
        if self.metric is self:
            return super().lipschitz(weight)
        return sum(f * bound for f, bound in self._each(lambda part, columns: part.lipschitz(weight[columns])))

    def _each(self, of: Callable[[FeatureMap, slice], Result]) -> Iterator[tuple[float, Result]]:
        """Something of every part, with its factor; columns are the part's own."""
        start = 0
        for part, factor in zip(self.parts, self.factors, strict=True):
            yield factor, of(part, slice(start, start + part.dimension))
            start += part.dimension

    def __call__(self, x: Array) -> Array:
        z, start = np.empty((len(x), self.dimension), np.float32), 0
        for part, factor in zip(self.parts, self.factors, strict=True):
            np.multiply(part(x), np.float32(factor), out=z[:, start : start + part.dimension])
            start += part.dimension
        return z
