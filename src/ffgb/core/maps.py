"""Feature maps: functions of a point that all clients share."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from ffgb.core.types import Array

POINTS_AT_A_TIME = 2**14
"""Of which features are computed, and sums of their products.  A constant, because the last bits follow from it."""


WIDE, BYTES_AT_A_TIME = 2**13, 2**26
"""Of more features than this, points are taken so that their features have so many bytes."""


def in_blocks(points: int, features: int = 0) -> Iterator[slice]:
    """So many points, some at a time: fewer if they have very many features."""
    size = POINTS_AT_A_TIME if features <= WIDE else max(1, BYTES_AT_A_TIME // (4 * features))
    return (slice(a, min(a + size, points)) for a in range(0, points, size))


class FeatureMap(ABC):
    """x (n, ...) to features (n, D), float32."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @abstractmethod
    def __call__(self, x: Array) -> Array: ...

    def of_many(self, x: Array) -> Array:
        """The same of many points, some at a time: the bits of a row do not depend on how much memory there is."""
        if len(x) <= POINTS_AT_A_TIME:
            return self(x)
        first = self(x[:POINTS_AT_A_TIME])
        found = np.empty((len(x), *first.shape[1:]), first.dtype)
        for rows in in_blocks(len(x)):
            found[rows] = self(x[rows]) if rows.start else first
        return found

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of consecutive groups of features; a cheap geometry takes groups to be uncorrelated."""
        return (self.dimension,)

    @property
    def bounds(self) -> Array:
        """(D,): the size that each feature never exceeds, whatever the point; infinite if there is none."""
        return np.full(self.dimension, np.inf)

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
        return hashlib.sha256(content_of(self)).hexdigest()


class After(FeatureMap):
    """A map of another map's features."""

    inner: FeatureMap

    @abstractmethod
    def after(self, z: Array) -> Array:
        """The features, from those of the inner map."""

    def __call__(self, x: Array) -> Array:
        return self.after(self.inner(x))


def spectral_norm(matrix: Array) -> float:
    """The largest singular value."""
    return float(np.linalg.norm(matrix.astype(np.float64), 2)) if matrix.size else 0.0


def content_of(value: Any) -> bytes:
    """Bytes that are the same for two values that say the same: arrays, tuples, and dataclasses of these."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, tuple):
        return b"(" + b",".join(content_of(v) for v in value) + b")"
    if dataclasses.is_dataclass(value):
        fields = b",".join(content_of(getattr(value, f.name)) for f in dataclasses.fields(value))
        return type(value).__name__.encode() + b"(" + fields + b")"
    return repr(value).encode()
