"""Feature maps that all clients share: pure functions of a seed, settings and aggregated statistics.

No map ever depends on anyone's rows.  What it takes from the data are sums over all clients (`Moments`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ffgb.functions import Array


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares of each input (flattened): what a client sends so that scales can be set."""

    count: float
    sum: Array
    squares: Array

    @staticmethod
    def of(x: Array) -> Moments:
        flat = np.asarray(x, np.float64).reshape(len(x), -1)
        return Moments(float(len(x)), flat.sum(axis=0), np.einsum("ij,ij->j", flat, flat))

    @staticmethod
    def total(parts: Iterable[Moments]) -> Moments:
        """The sum over clients, in the order given."""
        first, *rest = parts
        count, total, squares = first.count, first.sum.copy(), first.squares.copy()
        for part in rest:
            count += part.count
            total += part.sum
            squares += part.squares
        return Moments(count, total, squares)

    def tensors(self) -> dict[str, Array]:
        return {"count": np.array([self.count]), "sum": self.sum, "squares": self.squares}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Array]) -> Moments:
        return Moments(float(tensors["count"][0]), tensors["sum"], tensors["squares"])

    @property
    def mean(self) -> Array:
        mean: Array = self.sum / self.count
        return mean

    @property
    def variance(self) -> Array:
        variance: Array = np.maximum(self.squares / self.count - self.mean**2, 0.0)
        return variance


class FeatureMap(ABC):
    """x (n, ...) to features (n, D), float32."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @abstractmethod
    def __call__(self, x: Array) -> Array: ...


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
class Standardize(FeatureMap):
    """(x − mean) / scale, by aggregated moments."""

    mean: Array
    scale: Array

    @staticmethod
    def by(moments: Moments) -> Standardize:
        deviation = np.sqrt(moments.variance)
        # A column that is constant over all clients says nothing: it becomes 0 everywhere instead of 0/0.  The bound
        # is relative, because squares minus squared mean leaves rounding error in a constant column.
        constant = deviation <= 1e-6 * np.maximum(np.abs(moments.mean), 1e-30)
        scale = np.where(constant, np.inf, deviation)
        return Standardize(moments.mean.astype(np.float32), scale.astype(np.float32))

    @property
    def dimension(self) -> int:
        return len(self.mean)

    def __call__(self, x: Array) -> Array:
        flat = np.asarray(x, np.float32).reshape(len(x), self.dimension)
        z: Array = (flat - self.mean) / self.scale
        return z


@final
@dataclass(frozen=True)
class RandomFourier(FeatureMap):
    """Random Fourier features of the Gaussian kernel exp(−‖x − x'‖² / 2σ²), and a constant.

    Frequencies and phases are drawn from the seed, so the map costs no traffic but the seed itself.
    Rahimi & Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
    """

    inner: FeatureMap
    count: int
    bandwidth: float
    seed: int

    @property
    def dimension(self) -> int:
        return self.count + 1

    @cached_property
    def _draw(self) -> tuple[Array, Array]:
        rng = np.random.default_rng([self.seed, 0xFEA7])
        frequencies = rng.standard_normal((self.inner.dimension, self.count)) / self.bandwidth
        phases = rng.uniform(0.0, 2.0 * math.pi, self.count)
        return frequencies.astype(np.float32), phases.astype(np.float32)

    def __call__(self, x: Array) -> Array:
        frequencies, phases = self._draw
        z = np.empty((len(x), self.dimension), np.float32)
        angles = z[:, :-1]
        np.matmul(self.inner(x), frequencies, out=angles)
        angles += phases
        np.cos(angles, out=angles)
        angles *= np.float32(math.sqrt(2.0 / self.count))
        z[:, -1] = 1.0
        return z


def bandwidth(total_variance: float) -> float:
    """σ from the aggregated second moments: half the root mean square distance between two random points.

    E‖x − x'‖² is twice the total variance, so clients need to share nothing but moments.
    """
    return 0.5 * math.sqrt(2.0 * max(total_variance, 1e-12))
