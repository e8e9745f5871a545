"""Random features of kernels: a linear function of them is a function of the kernel's space, up to sampling.

Frequencies and phases are drawn from the seed, so the map costs no traffic but the seed itself.
Rahimi & Recht, "Random features for large-scale kernel machines", NeurIPS 2007; Cho & Saul, "Kernel methods for deep
learning", NeurIPS 2009 (arc-cosine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

import numpy as np

from ffgb.core.maps import After, FeatureMap, spectral_norm
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Standardize, cosines
from ffgb.features.named import Making, NamedMap

KERNELS = ("gaussian", "laplace", "arc-cosine")


@final
@dataclass(frozen=True)
class RandomFourier(After):
    """D random features of a kernel k(x, x'), so that Φ(x)·Φ(x') ≈ k(x, x').

    gaussian: exp(−‖x − x'‖²/2σ²); laplace: Π_j exp(−|x_j − x'_j|/σ); arc-cosine, of first order, on (x/σ, 1):
    ‖u‖‖u'‖ (sin θ + (π − θ) cos θ)/π, the kernel of a wide layer of rectified units.
    """

    inner: FeatureMap
    count: int
    bandwidth: float
    seed: int
    kernel: str = "gaussian"

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise FFGBError(f"there is no kernel {self.kernel!r}; choose {', '.join(KERNELS)}")

    @property
    def dimension(self) -> int:
        return self.count

    @property
    def bounds(self) -> Array:
        return super().bounds if self.kernel == "arc-cosine" else np.full(self.count, math.sqrt(2.0 / self.count))

    @cached_property
    def _draw(self) -> tuple[Array, Array]:
        rng = stream(self.seed, "features", KERNELS.index(self.kernel))
        shape = (self.inner.dimension, self.count)
        # the spectral density of the kernel: normal, or Cauchy in each coordinate for the Laplace kernel
        frequencies = rng.standard_cauchy(shape) if self.kernel == "laplace" else rng.standard_normal(shape)
        phases = (
            rng.standard_normal(self.count)
            if self.kernel == "arc-cosine"
            else rng.uniform(0.0, 2.0 * math.pi, self.count)
        )
        return (frequencies / self.bandwidth).astype(np.float32), phases.astype(np.float32)

    def after(self, z: Array) -> Array:
        frequencies, phases = self._draw
        if self.kernel == "laplace":
            z = cosines(z, frequencies, phases)
        else:
            z = z @ frequencies
            z += phases
            np.maximum(z, 0.0, out=z) if self.kernel == "arc-cosine" else np.cos(z, out=z)
        z *= np.float32(math.sqrt(2.0 / self.count))
        return z

    @property
    def metric(self) -> FeatureMap:
        return self.inner

    def jacobian(self, s: Array) -> tuple[Array, Array]:
        frequencies, phases = self._draw
        s = s.astype(np.float32)
        angle = s @ frequencies + phases
        slope = (angle > 0).astype(np.float32) if self.kernel == "arc-cosine" else -np.sin(angle)
        slope *= np.float32(math.sqrt(2.0 / self.count))
        return self.after(s), slope[:, None, :] * frequencies

    def lipschitz(self, weight: Array) -> float:
        # ∇(Φ W) = Ω diag(a) W with entries |a_j| ≤ √(2/D)
        return math.sqrt(2.0 / self.count) * self._norm * spectral_norm(weight)

    @cached_property
    def _norm(self) -> float:
        return spectral_norm(self._draw[0])


def bandwidth(variance: Array, kernel: str = "gaussian") -> float:
    """σ from aggregated moments alone: half the typical distance between two random points, in the kernel's own norm.

    E‖x − x'‖² is twice the total variance; for the Laplace kernel Σ_j E|x_j − x'_j|, with normal x_j.
    """
    if kernel == "laplace":
        return 0.5 * max(float(np.sqrt(variance).sum()), 1e-6) * 2.0 / math.sqrt(math.pi)
    return 0.5 * math.sqrt(2.0 * max(float(variance.sum()), 1e-12))


def _make(kernel: str, making: Making, features: int) -> FeatureMap:
    # standardised inputs have unit variance each, but for constant ones; images keep their common scale
    inputs = making.clipped
    variance = np.isfinite(inputs.scale).astype(float) if isinstance(inputs, Standardize) else making.moments.variance
    return RandomFourier(inputs, features, bandwidth(variance, kernel), making.seed, kernel)


MAPS = (
    NamedMap("fourier", partial(_make, "gaussian"), 1024, smooth=True),
    *(NamedMap(kernel, partial(_make, kernel), 1024, smooth=True) for kernel in KERNELS),
)
