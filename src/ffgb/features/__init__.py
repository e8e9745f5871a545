"""Feature maps that all clients share: pure functions of a seed, settings and aggregated statistics.

No map ever depends on anyone's rows.  What it takes from the data are totals over all clients (aggregates.py); the
function that makes a map asks for them.  Maps compose: one feeds another (`inner`), or several stand side by side
(`Concatenate`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np

from ffgb.aggregates import Moments
from ffgb.functions import Array

Result = TypeVar("Result")


TURN = 2.0 * math.pi


class FeatureMap(ABC):
    """x (n, ...) to features (n, D), float32."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @abstractmethod
    def __call__(self, x: Array) -> Array: ...

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of consecutive groups of features; a cheap geometry takes groups to be uncorrelated."""
        return (self.dimension,)

    @property
    def metric(self) -> FeatureMap:
        """The map to s in R^d where distances are taken and derivatives by; these features are smooth functions of
        s."""
        return self

    def jacobian(self, s: Array) -> tuple[Array, Array]:
        """Features (m, D) at places s (m, d) of the metric space, and their derivatives (m, d, D)."""
        m, d = s.shape
        return s.astype(np.float32), np.broadcast_to(np.eye(d, dtype=np.float32), (m, d, d))

    def lipschitz(self, weight: Array) -> float:
        """A bound on the Lipschitz constant of s ↦ Φ(s) W, for W (D, c), that holds everywhere."""
        return spectral_norm(weight)

    @cached_property
    def fingerprint(self) -> str:
        """The same for two maps that are the same function."""
        return hashlib.sha256(_content(self)).hexdigest()


class After(FeatureMap):
    """A map of another map's features."""

    inner: FeatureMap

    @abstractmethod
    def after(self, z: Array) -> Array:
        """The features, from those of the inner map."""

    def __call__(self, x: Array) -> Array:
        return self.after(self.inner(x))


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


def spectral_norm(matrix: Array) -> float:
    """The largest singular value."""
    return float(np.linalg.norm(matrix.astype(np.float64), 2)) if matrix.size else 0.0


def _content(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, tuple):
        return b"(" + b",".join(_content(v) for v in value) + b")"
    if dataclasses.is_dataclass(value):
        fields = b",".join(_content(getattr(value, f.name)) for f in dataclasses.fields(value))
        return type(value).__name__.encode() + b"(" + fields + b")"
    return repr(value).encode()


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


@final
class Points:
    """A client's points (x, y), and the features of x under the map that was asked for last.

    Maps are pure functions, so what is forgotten here costs time and changes nothing.
    """

    def __init__(self, i: int, x: Array, y: Array) -> None:
        self.i, self.x, self.y = i, x, y
        self._key, self._z = "", np.empty(0)

    def __len__(self) -> int:
        return len(self.y)

    def features(self, features: FeatureMap) -> Array:
        """Φ(x), computed once: set-up and training ask for the same features again and again."""
        key = features.fingerprint
        if key != self._key:
            # a map of another map's features starts from those, which may be at hand
            z = features.after(self.features(features.inner)) if isinstance(features, After) else features(self.x)
            self._key, self._z = key, z
        return self._z

    @property
    def cached(self) -> int:
        """Bytes of the features that are kept."""
        return self._z.nbytes

    def forget(self) -> None:
        """Give back the memory of the features."""
        self._key, self._z = "", np.empty(0)
