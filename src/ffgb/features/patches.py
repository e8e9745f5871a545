"""Convolutional patch features for images: one layer of filters, a two-sided rectifier, pooling.

    every 6 × 6 patch, brightness and contrast normalised  →  whitened  →  F filters  →  max(s − a, 0), max(−s − a, 0)
    →  means over 2 × 2 cells of the image: 8F features

Whitening takes the mean and covariance of all clients' patches; filters are found by k-means over whitened patches, of
which clients share sums only.  Coates & Ng, "Learning feature representations with k-means", 2012; the
normalisation and encoder are those of Coates, Lee, Ng, "An analysis of single-layer networks", AISTATS 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, final

import numpy as np

from ffgb.core.maps import FeatureMap, spectral_norm
from ffgb.core.questions import ROUNDING, Ask, Here, Question, Sum
from ffgb.core.seeds import stream
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option
from ffgb.features.named import Making, NamedMap
from ffgb.hardware import one_blas_thread

FILTERS_AT_ONCE = 128
"""A block of responses at all positions of one image then stays in the cache of one core."""

CONTRAST = 0.15
"""Patches with a standard deviation far below this share of the pixels' own are taken for noise and not blown up."""

WHITENING = 0.1
"""Added to the eigenvalues of the patches' covariance, which are 1 on average."""

PATCHES = 50_000
"""How many patches k-means sees in all; four times as many gave no better filters."""

ITERATIONS = 3
"""Of k-means, from random centres.  CIFAR-10, a fifth of the images: 65.1, 67.5, 68.5, 69.2 and 68.7 % after 1, 2, 3, 5
and 8; each costs a dictionary up and one down."""


@final
@dataclass(frozen=True)
class Grid:
    """The patches of an image: of size × size pixels, at every position, brightness and contrast normalised."""

    shape: tuple[int, ...]
    size: int
    contrast: float

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape[1:]) < self.size:
            raise FFGBError(
                f"patch features need images (channels, height, width) of {self.size} × {self.size} pixels or more, "
                f"not points of shape {self.shape}; choose {option('map', 'fourier')}"
            )

    @property
    def pixels(self) -> int:
        """Numbers in a patch."""
        return self.shape[0] * self.size**2

    @property
    def rows(self) -> int:
        return self.shape[1] - self.size + 1

    @property
    def columns(self) -> int:
        return self.shape[2] - self.size + 1

    def patches(self, image: Array, out: Array) -> None:
        """All patches of an image, a column each, contrast normalised; brightness is left to who uses them."""
        image = image - image.mean()  # or the variance of a bright, flat patch would be lost in rounding
        windows = np.lib.stride_tricks.sliding_window_view(image, (self.size, self.size), axis=(1, 2))
        out.reshape(self.shape[0], self.size, self.size, self.rows, self.columns)[:] = windows.transpose(0, 3, 4, 1, 2)
        mean = out.mean(axis=0)
        square = np.einsum("ij,ij->j", out, out) / np.float32(self.pixels)
        spread = np.maximum(square - mean * mean, 0.0) + np.float32(self.contrast**2)
        out *= 1.0 / np.sqrt(spread)

    def some(self, x: Array, each: int, rng: np.random.Generator) -> Iterator[tuple[slice, Array]]:
        """Normalised patches of all images, `each` drawn from every image, some images at a time, and which these
        are."""
        for start in range(0, len(x), 256):
            images = np.asarray(x[start : start + 256], np.float32).reshape(-1, *self.shape)
            windows = np.lib.stride_tricks.sliding_window_view(images, (self.size, self.size), axis=(2, 3))
            n = len(images)
            image = np.repeat(np.arange(n), each)
            rows, columns = rng.integers(0, self.rows, n * each), rng.integers(0, self.columns, n * each)
            patches = windows[image, :, rows, columns].reshape(n * each, self.pixels)
            patches = patches - patches.mean(axis=1, keepdims=True)
            contrast = np.sqrt(np.square(patches).mean(axis=1, keepdims=True) + np.float32(self.contrast**2))
            yield slice(start, start + 256), patches / contrast


@final
@dataclass(frozen=True, eq=False)
class Patches(FeatureMap):
    """x (n, channels, height, width) to 2 · cells² · F pooled filter responses, ordered by cell, sign and filter."""

    grid: Grid
    filters: Array
    """(pixels, F): on normalised patches, whitening included."""
    offset: Array
    """(F,): what the mean patch gives, to be taken off."""
    threshold: float = 0.25
    cells: int = 2
    mirrored: bool = False
    """Take the mean with the features of the mirror image: for pictures whose meaning a mirror does not change."""

    @property
    def dimension(self) -> int:
        return 2 * self.cells**2 * int(self.filters.shape[1])

    @property
    def blocks(self) -> tuple[int, ...]:
        return (2 * self.filters.shape[1],) * self.cells**2

    @property
    def bounds(self) -> Array:
        # a patch that is normalised is at most √pixels long once its brightness, which filters do not see, is taken off
        filters = self.filters.astype(np.float64)
        length = np.linalg.norm(filters - filters.mean(axis=0), axis=0) * math.sqrt(self.grid.pixels)
        return np.tile(length + np.abs(self.offset), 2 * self.cells**2)

    @cached_property
    def _affine(self) -> Array:
        """(F, pixels + 1): filters and offset in one, for patches with a 1 appended; centred, against brightness."""
        filters = self.filters - self.filters.mean(axis=0)
        affine = np.concatenate([filters, -self.offset[None] - self.threshold]).T
        return np.ascontiguousarray(affine, np.float32)

    @cached_property
    def _pooling(self) -> Array:
        """(positions, cells²): the mean over each cell."""
        row = np.arange(self.grid.rows) * self.cells // self.grid.rows
        column = np.arange(self.grid.columns) * self.cells // self.grid.columns
        cell = (row[:, None] * self.cells + column[None]).ravel()
        pooling: Array = (cell[:, None] == np.arange(self.cells**2)).astype(np.float32)
        pooling /= pooling.sum(axis=0)
        return pooling

    def __call__(self, x: Array) -> Array:
        images = np.ascontiguousarray(x, np.float32).reshape(len(x), *self.grid.shape)
        z = self._pooled(images)
        if self.mirrored:
            z += self._pooled(images[:, :, :, ::-1])
            z *= np.float32(0.5)
        return z

    def _pooled(self, images: Array) -> Array:
        with one_blas_thread():  # products this small are slower on several threads
            return self._pooled_alone(images)

    def _pooled_alone(self, images: Array) -> Array:
        grid, affine, pooling, count = self.grid, self._affine, self._pooling, self.filters.shape[1]
        z = np.empty((len(images), self.cells**2, 2, count), np.float32)
        patches = np.ones((grid.pixels + 1, len(pooling)), np.float32)
        s = np.empty((min(count, FILTERS_AT_ONCE), len(pooling)), np.float32)
        r = np.empty_like(s)
        for image, out in zip(images, z, strict=True):
            grid.patches(image, patches[:-1])
            mean = affine @ (patches @ pooling)  # (F, cells²): the mean over each cell of s − a
            for start in range(0, count, FILTERS_AT_ONCE):
                block = slice(start, start + FILTERS_AT_ONCE)
                some = len(affine[block])
                above, size = s[:some], r[:some]
                # max(u, 0) = (u + |u|)/2, and the mean of u is known: |u| takes a third of the time of max(u, 0)
                np.matmul(affine[block], patches, out=above)  # s − a
                np.abs(above, out=size)
                out[:, 0, block] = (0.5 * (size @ pooling + mean[block])).T
                above += np.float32(2.0 * self.threshold)  # s + a
                np.abs(above, out=size)
                out[:, 1, block] = (0.5 * (size @ pooling - mean[block]) - np.float32(self.threshold)).T
        return z.reshape(len(images), self.dimension)


@final
@dataclass(frozen=True)
class PatchMoments(Question):
    """Mean and second moments of normalised patches, `each` drawn from every image."""

    what: ClassVar[str] = "patch moments"
    grid: Grid
    each: int
    seed: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        d = self.grid.pixels  # a patch that is normalised is at most √pixels long
        return {"mean": Sum((d,), math.sqrt(d)), "products": Sum((d * (d + 1) // 2,), float(d))}

    def part(self, here: Here) -> Tensors:
        points, pixels = here.points, self.grid.pixels
        total, products = np.zeros(pixels), np.zeros((pixels, pixels))
        for rows, patches in self.grid.some(points.x, self.each, stream(self.seed, "patches", points.i)):
            heavy = patches if points.weights is None else patches * np.repeat(points.weights[rows], self.each)[:, None]
            total += heavy.sum(axis=0, dtype=np.float64)
            products += heavy.T @ patches
        share = here.share / self.each
        return {"mean": share * total, "products": share * products[np.tril_indices(pixels)]}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        pixels = self.grid.pixels
        mean, covariance = self.total(own)
        if not np.trace(covariance) + mean @ mean <= pixels * (1.0 + ROUNDING):
            raise FFGBError("its patches have a larger variance than patches of any image")
        with one_blas_thread():
            least = np.linalg.eigvalsh(covariance)[0]
        if least < -ROUNDING * pixels:
            raise FFGBError("its moments are not the moments of any patches: a variance is negative")

    def total(self, sums: Tensors) -> tuple[Array, Array]:
        """Mean and covariance of all patches."""
        d, mean = self.grid.pixels, sums["mean"]
        second = np.zeros((d, d))
        second[np.tril_indices(d)] = sums["products"]
        return mean, second + np.tril(second, -1).T - np.outer(mean, mean)


@final
@dataclass(frozen=True, eq=False)
class NearestSums(Question):
    """A step of spherical k-means over whitened patches: for each centre the sum of the patches nearest to it.

    Nearest is by the size of the inner product, whatever its sign: the encoder uses both signs of a filter.
    """

    what: ClassVar[str] = "a step of k-means"
    grid: Grid
    mean: Array
    whitening: Array
    centres: Array
    each: int
    seed: int

    @cached_property
    def _longest(self) -> float:
        """Of a whitened patch."""
        return spectral_norm(self.whitening) * (math.sqrt(self.grid.pixels) + float(np.linalg.norm(self.mean)))

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"sums": Sum(self.centres.shape, self._longest, 32)}

    def part(self, here: Here) -> Tensors:
        points, sums = here.points, np.zeros(self.centres.shape)
        centres = np.ascontiguousarray(self.centres.T, np.float32)
        for rows, patches in self.grid.some(points.x, self.each, stream(self.seed, "patches", points.i)):
            white = ((patches - self.mean) @ self.whitening).astype(np.float32)
            inner = white @ centres
            nearest = np.abs(inner).argmax(axis=1)
            sign = np.sign(inner[np.arange(len(white)), nearest])
            if points.weights is not None:
                sign = sign * np.repeat(points.weights[rows], self.each)
            np.add.at(sums, nearest, sign[:, None] * white)
        return {"sums": here.share / self.each * sums}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        sums, centres = own["sums"], self.centres.astype(np.float64)
        lengths, sizes = np.linalg.norm(sums, axis=1), np.linalg.norm(centres, axis=1)
        rounding = float(self.sums["sums"].rounding(part)) * math.sqrt(centres.shape[1])  # the length of a sum's
        if not lengths.sum() <= self._longest * (1.0 + ROUNDING) + len(sums) * rounding:
            raise FFGBError(f"its sums are longer than those of {rows * self.each} patches can be")
        # every patch was added with the sign that makes its inner product with the centre positive
        inner = np.einsum("ij,ij->i", sums, centres)
        rounded = 2.0**-20 * self._longest + rounding * sizes
        if (inner < -ROUNDING * lengths * sizes - rounded).any():
            raise FFGBError("its sums point away from their centres, so they are not sums of the nearest patches")

    def total(self, sums: Tensors) -> Array:
        return sums["sums"]


def learn(
    ask: Ask,
    pixels: Moments,
    shape: tuple[int, ...],
    points: int,
    features: int,
    seed: int,
    iterations: int = ITERATIONS,
) -> Patches:
    """Whitening and filters from sums over all clients' patches; as many filters as make up these features.

    Without any iteration of k-means the filters are random directions: a dictionary that no one's patches went into.
    """
    if len(shape) != 3:
        raise FFGBError(f"patches are for images, not for points of shape {shape}; choose another {option('map')}")
    size, cells = (6, 2) if min(shape[1:]) >= 16 else (3, 2) if min(shape[1:]) >= 4 else (3, 1)
    filters = max(1, features // (2 * cells**2))
    # the spread of a pixel about the mean of all pixels: that of its own mean, and its own
    spread = math.sqrt(float(pixels.variance.mean() + pixels.mean.var()))
    grid = Grid(shape, size, CONTRAST * max(spread, 1e-6))
    each = min(max(1, round(PATCHES / points)), grid.rows * grid.columns)
    mean, covariance = ask(PatchMoments(grid, each, seed))
    with one_blas_thread():
        values, vectors = np.linalg.eigh(covariance)
        whitening = (vectors / np.sqrt(np.maximum(values, 0.0) + WHITENING)) @ vectors.T
    centres = _unit(stream(seed, "patches").standard_normal((filters, grid.pixels)))
    for _ in range(iterations):
        sums = ask(NearestSums(grid, mean, whitening.astype(np.float32), centres.astype(np.float32), each, seed))
        centres = _unit(np.where(sums.any(axis=1, keepdims=True), sums, centres))  # one that is nearest to none stays
    weights = whitening @ centres.T
    return Patches(grid, weights.astype(np.float32), (mean @ weights).astype(np.float32), cells=cells)


def _unit(rows: Array) -> Array:
    unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _make(iterations: int, mirrored: bool, making: Making, features: int) -> FeatureMap:
    space = making.space
    learned = making.once(
        ("patches", iterations, features),
        lambda: learn(making.ask, making.moments, space.shape, space.points, features, making.seed, iterations),
    )
    return replace(learned, mirrored=mirrored)


MAPS = (
    NamedMap("patches", partial(_make, ITERATIONS, False), 2048, tied=True),
    NamedMap("mirrored-patches", partial(_make, ITERATIONS, True), 2048, tied=True),
    NamedMap("random-patches", partial(_make, 0, False), 2048, tied=True),
)
