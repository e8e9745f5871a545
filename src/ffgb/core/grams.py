"""The Gram matrix of all clients' features, or a sketch of it: what a shared geometry is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, final

import numpy as np
from scipy.linalg import solve_triangular

from ffgb.core import cholesky
from ffgb.core.geometry import SHIFT, Blocks, Geometry, Nystrom, Spectrum, _lower_half, _root, pack, unpack
from ffgb.core.maps import FeatureMap
from ffgb.core.moments import check_bounds, moments_of
from ffgb.core.points import Points
from ffgb.core.questions import ROUNDING, Ask, Here, Question, Sum
from ffgb.core.seeds import stream
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option
from ffgb.hardware import one_blas_thread
from ffgb.settings import METHOD, Setting

ROUNDED = 2.0**-30
"""By how much a number in 32 bits is rounded at most, of its bound."""


def random_basis(rows: int, columns: int, seed: int) -> Array:
    """Ω: orthonormal columns, the same at every client."""
    with one_blas_thread():
        omega, _ = np.linalg.qr(stream(seed, "sketch").standard_normal((rows, columns)))
    return omega


@final
@dataclass(frozen=True, eq=False)
class GramOf(Question):
    """The Gram of the features about a centre, block by block, and their mean from there.

    By Cauchy and Schwarz no entry, and no sum of parts of it, exceeds the product of two deviations.  In 32 bits it is
    therefore finer than a sum in float32.
    """

    what: ClassVar[str] = "the Gram"
    by_rows: ClassVar[bool] = False
    features: FeatureMap
    sizes: tuple[int, ...]
    tied: int
    centre: Array
    deviation: Array
    """Of each feature, about the centre; of groups that are tied, the root mean square."""

    @cached_property
    def sums(self) -> Mapping[str, Sum]:
        bounds = [pack(np.outer(s, s)) for s in (self.deviation[a:b] for a, b in _ranges(self.sizes))]
        bound = np.concatenate(bounds)
        spread = np.tile(self.deviation, self.tied) * math.sqrt(self.tied)
        return {"mean": Sum((len(self.centre),), spread), "gram": Sum((len(bound),), bound, 32)}

    def part(self, here: Here) -> Tensors:
        mean, halves = np.zeros(len(self.centre)), list[Array]()
        for rows, block in here.points.blocks(self.features):
            z = block - self.centre.astype(np.float32)
            mean += here.share * here.points.sum(z, rows)
            more = [half.astype(np.float64) for half in self._products(here.points, z, rows)]
            halves = [half + own for half, own in zip(halves, more, strict=True)] if halves else more
        return {"mean": mean, "gram": np.concatenate(halves) * (here.share / self.tied)}

    def _products(self, points: Points, z: Array, rows: slice) -> Iterator[Array]:
        """The packed blocks of Σ_j z_j z_j' over some rows."""
        for start, end in _ranges(self.sizes):
            gram = np.zeros((end - start, end - start), np.float32)
            for k in range(self.tied):
                group = z[:, start + k * sum(self.sizes) : end + k * sum(self.sizes)]
                gram += group.T @ points.weighted(group, rows)
            yield pack(gram)

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        variance = self._variance(own)
        # of groups that are tied only the mean variance is known, and so of means and bounds the mean squares
        about, bounds, mean = (
            np.sqrt(np.square(a).reshape(self.tied, -1).mean(axis=0))
            for a in (own["mean"], self.features.bounds, own["mean"] + self.centre)
        )
        variance = variance - np.square(about)
        if (variance < -(ROUNDING + ROUNDED / part) * np.square(self.deviation)).any():
            raise FFGBError("its Gram has a negative variance: it is no sum of squares")
        check_bounds(bounds, mean, np.maximum(variance, 0.0))
        rounding = self.sums["gram"].rounding(part)
        for (half, size), (units, _), (start, end) in zip(
            self._halves(own["gram"]), self._halves(rounding), _ranges(self.sizes), strict=True
        ):
            diagonal = np.cumsum(np.arange(1, size + 1)) - 1
            # variances and covariances are rounded: four times the variance's is enough for both
            least = 2.0**-24 * np.square(self.deviation[start:end]) + 4.0 * units[diagonal]
            deviation = np.sqrt(np.maximum(half[diagonal], 0.0) + least) * (1.0 + ROUNDING)
            for first, last, some in _rows(half, size):
                if (np.abs(some) > np.outer(deviation[first:last], deviation[:last])).any():
                    raise FFGBError(
                        "its Gram has a covariance larger than its variances allow: it is no Gram of any points"
                    )

    def certify(self, own: Tensors, part: float = 1.0) -> None:
        rounding = self.sums["gram"].rounding(part)
        for (half, size), (units, _) in zip(self._halves(own["gram"]), self._halves(rounding), strict=True):
            rounded = math.sqrt(2.0) * float(np.linalg.norm(units))  # no eigenvalue is off by more
            if not _semidefinite(unpack(half.astype(np.float32), size), rounded):
                raise FFGBError("its Gram is not positive semi-definite: it is no Gram of any points")

    def spread(self, own: Tensors) -> tuple[Array, Array]:
        variance = np.tile(self._variance(own), self.tied) - np.square(own["mean"])
        return own["mean"] + self.centre, np.maximum(variance, 0.0)

    def _variance(self, own: Tensors) -> Array:
        """The diagonal of all blocks."""
        halves = self._halves(own["gram"])
        return np.concatenate([half[np.cumsum(np.arange(1, size + 1)) - 1] for half, size in halves])

    def _halves(self, gram: Array) -> Iterator[tuple[Array, int]]:
        """The packed blocks, and how many features each has."""
        at = 0
        for size in self.sizes:
            half = gram[at : at + size * (size + 1) // 2]
            at += len(half)
            yield half, size

    def total(self, sums: Tensors) -> tuple[Array, tuple[Array, ...]]:
        """The mean of all points' features, and the blocks of their centred Gram."""
        blocks, away = [], sums["mean"].reshape(self.tied, -1)
        for (half, size), (start, end) in zip(self._halves(sums["gram"]), _ranges(self.sizes), strict=True):
            lower = unpack(half, size)
            shifts = away[:, start:end]
            blocks.append(lower + np.tril(lower, -1).T - shifts.T @ shifts / self.tied)
        return sums["mean"] + self.centre, tuple(blocks)


@final
@dataclass(frozen=True, eq=False)
class SketchOf(Question):
    """Variances and a sketch GΩ of the Gram about a centre, and the mean from there: r numbers a feature, not D/2."""

    what: ClassVar[str] = "a sketch of the Gram"
    by_rows: ClassVar[bool] = False
    features: FeatureMap
    rank: int
    seed: int
    centre: Array
    deviation: Array

    @property
    def sums(self) -> Mapping[str, Sum]:
        d, whole = len(self.centre), float(np.sqrt(np.square(self.deviation).sum()))
        bound = np.broadcast_to((self.deviation * whole)[:, None], (d, self.rank))
        return {
            "mean": Sum((d,), self.deviation),
            "variance": Sum((d,), np.square(self.deviation), 32),
            "sketch": Sum((d, self.rank), bound, 32),
        }

    @cached_property
    def _omega(self) -> Array:
        return random_basis(self.features.dimension, self.rank, self.seed)

    def part(self, here: Here) -> Tensors:
        omega, points = self._omega.astype(np.float32), here.points
        mean, variance, sketch = (np.zeros(shape) for shape in (omega.shape[:1], omega.shape[:1], omega.shape))
        for rows, block in points.blocks(self.features):
            z = block - self.centre.astype(np.float32)
            sketch += points.weighted(z, rows).T @ (z @ omega)
            mean += points.sum(z, rows)
            variance += points.sum(np.square(z), rows)
        return {"mean": here.share * mean, "variance": here.share * variance, "sketch": here.share * sketch}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        mean, variance = self.spread(own)
        if (own["variance"] < 0).any():
            raise FFGBError("its sketch has a negative variance: it is no sum of squares")
        check_bounds(self.features.bounds, mean, variance)
        # Of a Gram G with GΩ = Y, the part Y (Ω'Y)⁻¹ Y' that the sketch sees is at most G itself.
        rounding = self.sums["sketch"].rounding(part)
        level = SHIFT * max(float(own["variance"].sum()), 1e-300) + 4.0 * float(np.linalg.norm(rounding))
        shifted = own["sketch"] + level * self._omega
        middle = self._omega.T @ shifted
        fault = "its sketch is not positive semi-definite, or larger than its variances: it is no sketch of any Gram"
        if np.abs(middle - middle.T).max() > level or (root := _root(middle)) is None:
            raise FFGBError(fault)
        seen = np.square(solve_triangular(root, shifted.T, lower=True, check_finite=False)).sum(axis=0)
        if not (seen <= (1.0 + ROUNDING) * own["variance"] + 2.0 * level).all():
            raise FFGBError(fault)

    def spread(self, own: Tensors) -> tuple[Array, Array]:
        return own["mean"] + self.centre, np.maximum(own["variance"] - np.square(own["mean"]), 0.0)

    def total(self, sums: Tensors) -> tuple[Array, Array, Array]:
        """The mean, the variances and the sketch of the centred Gram of all points' features."""
        away = sums["mean"]
        variance = np.maximum(sums["variance"] - np.square(away), 0.0)
        return away + self.centre, variance, sums["sketch"] - np.outer(away, away @ self._omega)


def _rows(half: Array, size: int) -> Iterator[tuple[int, int, Array]]:
    """The lower half as a matrix, some rows at a time: from which to which, and those rows, zero above the diagonal."""
    some = max(1, 2**17 // size)  # as many as fit the cache
    for start in range(0, size, some):
        end = min(start + some, size)
        rows = np.zeros((end - start, end), half.dtype)
        rows[_lower_half(size)[start:end, :end]] = half[start * (start + 1) // 2 : end * (end + 1) // 2]
        yield start, end, rows


def _semidefinite(lower: Array, rounded: float) -> bool:
    """Is a symmetric matrix positive semi-definite, up to rounding?  Of its lower half in float32, which is lost.

    The certificate is a Cholesky factorisation, after a small multiple of the trace was added to the diagonal, and by
    how much eigenvalues may be `rounded`.
    """
    largest = lower.diagonal().max()
    if not max(lower.max(), -lower.min()) <= largest * np.float32(1.0 + ROUNDING) + rounded:
        return False  # no entry is larger than the largest on the diagonal
    if largest <= 0.0:
        return True
    lower /= largest
    shift = SHIFT * np.trace(lower, dtype=np.float64) + rounded / float(largest)
    lower[np.diag_indices_from(lower)] += np.float32(shift)
    return cholesky.positive_definite(lower)


def _ranges(sizes: Iterable[int]) -> Iterable[tuple[int, int]]:
    return pairwise(np.cumsum([0, *sizes]).tolist())


GRAMS = ("exact", "blocks", "tied", "nystrom")


def share_geometry(
    ask: Ask, features: FeatureMap, kind: str, ridge: float | None, *, rank: int = 256, seed: int = 0
) -> Geometry:
    """The geometry of all clients' points: the mean and deviation of each feature first, and then the Gram.

    Without a ridge, the Gram is given in the basis of its eigenvectors, for a prior that fits itself.
    """
    d, groups = features.dimension, features.blocks
    if kind not in GRAMS:
        raise FFGBError(f"there is no geometry {kind!r}; choose {', '.join(GRAMS)}")
    if ridge is None and kind != "exact":
        raise FFGBError(f"a prior that fits itself needs {option('gram', 'exact')}; choose it, or a {option('ridge')}")
    if kind == "tied" and len(set(groups)) > 1:
        raise FFGBError(
            f"the groups of these features differ, so their blocks cannot be tied; choose {option('gram', 'blocks')}"
        )
    moments = moments_of(ask, features, by_rows=False, alike=True)
    centre = moments.mean.astype(np.float32).astype(np.float64)  # as clients take it off
    # a bit more than what was measured, which is rounded; and a feature that is constant has some, too
    spread = np.sqrt(moments.variance)
    deviation = spread * (1.0 + ROUNDING) + 1e-6 * (np.abs(centre) + spread.max(initial=1e-30))
    if kind == "nystrom" and ridge is not None:
        rank = min(rank, d)
        mean, variance, sketch = ask(SketchOf(features, rank, seed, centre, deviation))
        return Nystrom.of(mean, sketch, random_basis(d, rank, seed), variance, ridge)
    tied = len(groups) if kind == "tied" else 1
    sizes = {"exact": (d,), "blocks": groups, "tied": groups[:1]}[kind]
    deviation = np.sqrt(np.square(deviation).reshape(tied, -1).mean(axis=0))
    mean, blocks = ask(GramOf(features, sizes, tied, centre, deviation))
    return Spectrum.of(mean, *blocks) if ridge is None else Blocks.of(mean, blocks, ridge, tied)


SETTINGS = (
    Setting(
        "geometry",
        "text",
        "shared: fit in L² of all clients' points; local: of each client's own.",
        METHOD,
        unset="by learner",
        common=True,
        choices=("local", "shared"),
    ),
    Setting(
        "gram",
        "text",
        "Part of the Gram matrix that clients share.",
        METHOD,
        unset="tied for patches, else exact",
        choices=GRAMS,
    ),
    Setting("rank", "whole", "Rank of the nystrom sketch.", METHOD, 256, least=1),
)
