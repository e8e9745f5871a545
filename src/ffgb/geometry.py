"""The geometry of L²(α), α the distribution of all clients' points together, on functions h = Φ·W + β.

The paper's trouble with clients that differ is that client i projects onto its own L²(α_i).  In a closed family the
inner product of L²(α) is a matrix, G = Σ_i p_i Φ_i'Φ_i/n_i (centred: the intercept takes care of means), which clients
can add up once before training.  It holds no labels and no rows.  A `Geometry` is made of that sum, or of something
cheaper, and does the two things the oracle needs: solve (G + λI) W = b and apply G.  docs/geometry.md says why the mean
of the clients' answers is then exactly the oracle's answer to the global gradient.

Covectors and weights are (D+1, c) arrays; the last row belongs to the intercept, which is not penalised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri

from ffgb.aggregates import Ask, Statistic, Tensors
from ffgb.errors import FFGBError
from ffgb.features import FeatureMap, Points
from ffgb.functions import Array
from ffgb.seeds import stream


class Geometry(ABC):
    """G, or what stands for it: final, frozen dataclasses made of arrays, so that they can be sent and stored."""

    @abstractmethod
    def solve(self, b: Array) -> Array:
        """(G + λI)⁻¹ b: the member whose inner products with the family are nearest to b."""

    @abstractmethod
    def apply(self, w: Array) -> Array:
        """G w: the inner products of a member with the family."""

    @property
    @abstractmethod
    def freedom(self) -> float | None:
        """tr(H)²/tr(H²), H = (G + λI)⁻¹G: how many directions a solution can use; None if this G is not exact."""


@final
@dataclass(frozen=True)
class AtServer(Geometry):
    """The server has the geometry and clients need not: a client's answer is its covector b_i as it is.

    (G + λI)⁻¹ is linear, so solving the mean of covectors is the mean of the solutions.  One local step needs no more.
    """

    def solve(self, b: Array) -> Array:
        return b

    def apply(self, w: Array) -> Array:
        return w

    @property
    def freedom(self) -> None:
        return None


@final
@dataclass(frozen=True, eq=False)
class Blocks(Geometry):
    """Block-diagonal over groups of features.  One block is the exact geometry.

    Blocks may be *tied*: every group then has the same block, the mean over groups.  The cells of an image see it
    through the same filters, and with much the same statistics.
    """

    mean: Array
    """Of the features; the factors are those of the centred Gram."""
    factors: Array
    """Cholesky factors of each block of G + λI: the lower halves by rows, one after the other."""
    sizes: tuple[int, ...]
    ridge: float
    """λ."""
    tied: int = 1
    """How often the blocks are repeated."""

    @staticmethod
    def of(mean: Array, blocks: Iterable[Array], ridge: float, tied: int = 1) -> Blocks:
        """From the blocks of the centred Gram, and λ relative to its trace."""
        some = [_checked(block) for block in blocks]
        if (size := tied * sum(len(block) for block in some)) != len(mean):
            raise FFGBError(f"the Gram has {size} features, their mean {len(mean)}")
        level = max(ridge * tied * sum(float(np.trace(block)) for block in some), 1e-12)
        factors = []
        for block in some:
            block = np.array(block, np.float64)
            block[np.diag_indices_from(block)] += level
            try:
                lower, _ = cho_factor(block, lower=True, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError as error:
                raise FFGBError(f"the Gram plus --ridge {ridge} is not positive definite; raise --ridge") from error
            factors.append(pack(lower))
        return Blocks(mean, np.concatenate(factors), tuple(len(b) for b in some), level, tied)

    @cached_property
    def _lower(self) -> list[tuple[slice, Array]]:
        lower, start, at = [], 0, 0
        for size in self.sizes:
            half = self.factors[at : at + size * (size + 1) // 2]
            lower.append((slice(start, start + size), unpack(half, size)))
            start, at = start + size, at + len(half)
        return [(slice(r.start + k * start, r.stop + k * start), block) for k in range(self.tied) for r, block in lower]

    def solve(self, b: Array) -> Array:
        centred = _centred(self.mean, b)
        w = np.empty_like(centred)
        for rows, lower in self._lower:
            w[rows] = cho_solve((lower, True), centred[rows], check_finite=False)
        return _with_intercept(self.mean, w, b)

    def apply(self, w: Array) -> Array:
        g = np.empty((len(w) - 1, w.shape[1]))
        for rows, lower in self._lower:
            g[rows] = lower @ (lower.T @ w[:-1][rows]) - self.ridge * w[:-1][rows]
        return _uncentred(self.mean, g, w)

    @cached_property
    def freedom(self) -> float | None:
        if len(self.sizes) * self.tied > 1:
            return None
        # H = I − λ(G + λI)⁻¹
        ((_, lower),) = self._lower
        inverse, _ = dpotri(lower, lower=True)
        diagonal = np.diag(inverse)
        squares = 2.0 * float(np.square(np.tril(inverse, -1)).sum()) + float(np.square(diagonal).sum())
        trace = len(lower) - self.ridge * float(diagonal.sum())
        # and the intercept, which is free
        return (1.0 + trace) ** 2 / (1.0 + 2.0 * trace - len(lower) + self.ridge**2 * squares)


@final
@dataclass(frozen=True, eq=False)
class Nystrom(Geometry):
    """Low rank plus diagonal: G ≈ UΛU' + diag(rest), from a sketch GΩ with few columns.

    The sketch is that of Nyström (Frangella, Tropp, Udell, "Randomized Nyström preconditioning", SIAM J. Matrix Anal.
    Appl. 44, 2023); the diagonal makes up for what it misses, since every feature's own variance is known.
    """

    mean: Array
    basis: Array
    """U √Λ, (D, r)."""
    rest: Array
    """The diagonal that the low rank does not explain, plus λ."""
    ridge: float

    @staticmethod
    def of(mean: Array, sketch: Array, omega: Array, diagonal: Array, ridge: float) -> Nystrom:
        """From GΩ, Ω and the diagonal of the centred Gram G, and λ relative to G's trace."""
        trace = float(diagonal.sum())
        # A small shift keeps Ω'GΩ positive definite under rounding; it is taken off the eigenvalues again.
        shift = 1e-7 * max(trace, 1e-12)
        shifted = sketch + shift * omega
        middle = omega.T @ shifted
        try:
            root = np.linalg.cholesky((middle + middle.T) / 2)
        except np.linalg.LinAlgError as error:
            raise FFGBError("the sketch of the Gram is not positive definite; choose --gram exact") from error
        half = solve_triangular(root, shifted.T, lower=True, check_finite=False).T
        u, singular, _ = np.linalg.svd(half, full_matrices=False)
        basis = u * np.sqrt(np.maximum(np.square(singular) - shift, 0.0))
        level = max(ridge * trace, 1e-12)
        rest = np.maximum(diagonal - np.square(basis).sum(axis=1), 0.0)
        return Nystrom(mean, basis, rest + level, level)

    @cached_property
    def _woodbury(self) -> tuple[Array, tuple[Array, bool]]:
        scaled = self.basis / self.rest[:, None]
        inside = np.eye(self.basis.shape[1]) + self.basis.T @ scaled
        return scaled, cho_factor(inside, lower=True, check_finite=False)

    def solve(self, b: Array) -> Array:
        scaled, inside = self._woodbury
        centred = _centred(self.mean, b)
        w = centred / self.rest[:, None] - scaled @ cho_solve(inside, scaled.T @ centred, check_finite=False)
        return _with_intercept(self.mean, w, b)

    def apply(self, w: Array) -> Array:
        v = w[:-1]
        return _uncentred(self.mean, self.basis @ (self.basis.T @ v) + (self.rest - self.ridge)[:, None] * v, w)

    @property
    def freedom(self) -> None:
        return None


def _centred(mean: Array, b: Array) -> Array:
    """Inner products with Φ − mean, from those with Φ and with 1."""
    centred: Array = b[:-1] - np.outer(mean, b[-1])
    return centred


def _with_intercept(mean: Array, w: Array, b: Array) -> Array:
    """(Φ − mean) w + b₀ as a function of Φ and 1: in centred features the constant is orthogonal to all others."""
    return np.concatenate([w, (b[-1] - mean @ w)[None]])


def _uncentred(mean: Array, g: Array, w: Array) -> Array:
    constant = mean @ w[:-1] + w[-1]
    return np.concatenate([g + np.outer(mean, constant), constant[None]])


def _checked(block: Array) -> Array:
    if block.ndim != 2 or block.shape[0] != block.shape[1]:
        raise FFGBError(f"a Gram is a square matrix, not an array of shape {block.shape}")
    if not np.isfinite(block).all():
        raise FFGBError("the Gram has values that are not finite")
    if np.abs(block - block.T).max() > 1e-6 * max(np.abs(np.diag(block)).max(), 1e-300):
        raise FFGBError("the Gram is not symmetric")
    return block


@lru_cache(maxsize=4)
def _lower_half(size: int) -> Array:
    return np.tri(size, dtype=bool)


def pack(square: Array) -> Array:
    """The lower half of a square matrix, by rows: D(D+1)/2 numbers."""
    half: Array = square[_lower_half(len(square))]
    return half


def unpack(half: Array, size: int) -> Array:
    """The lower half as a matrix; above the diagonal it is zero."""
    square = np.zeros((size, size), half.dtype)
    square[_lower_half(size)] = half
    return square


def random_basis(rows: int, columns: int, seed: int) -> Array:
    """Ω: orthonormal columns, the same at every client."""
    omega, _ = np.linalg.qr(stream(seed, "sketch").standard_normal((rows, columns)))
    return omega


@final
@dataclass(frozen=True)
class GramOf(Statistic):
    """Mean and centred Gram of the features, block by block, each client about its own mean.

    Float32 halves up; summed in float64, with what the clients' means differ added by the server.
    """

    what: ClassVar[str] = "the Gram"
    features: FeatureMap
    sizes: tuple[int, ...]
    tied: int = 1

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        halves = sum(size * (size + 1) // 2 for size in self.sizes)
        return {
            "mean": ((self.tied * sum(self.sizes),), "float64"),
            "gram": ((halves,), "float32"),
        }

    def of(self, points: Points) -> Tensors:
        z = points.features(self.features)
        mean = z.mean(axis=0, dtype=np.float64)
        halves = []
        for start, end in _ranges(self.sizes):
            gram = np.zeros((end - start, end - start), np.float32)
            for k in range(self.tied):
                group = slice(start + k * sum(self.sizes), end + k * sum(self.sizes))
                centred = z[:, group] - mean[group].astype(np.float32)
                gram += centred.T @ centred
            gram /= np.float32(len(z) * self.tied)
            halves.append(pack(gram))
        return {"mean": mean, "gram": np.concatenate(halves)}

    def total(self, parts: Iterable[tuple[float, Tensors]]) -> tuple[Array, list[Array]]:
        """The mean of all points' features, and the blocks of their centred Gram."""
        blocks = [np.zeros((size, size)) for size in self.sizes]
        weight, mean = 0.0, np.zeros(self.tied * sum(self.sizes))
        for p, part in parts:
            shift, both, at = part["mean"] - mean, weight + p, 0
            for (start, end), block in zip(_ranges(self.sizes), blocks, strict=True):
                half = part["gram"][at : at + (end - start) * (end - start + 1) // 2]
                at += len(half)
                shifts = shift.reshape(self.tied, -1)[:, start:end] / np.sqrt(self.tied)
                _add(block, half, p, shifts, weight * p / both)
            mean, weight = mean + shift * (p / both), both
        for block in blocks:
            block /= weight
            lower = np.tril(block, -1)
            np.copyto(block, lower + lower.T + np.diag(np.diag(block)))
        return mean, blocks


@final
@dataclass(frozen=True)
class SketchOf(Statistic):
    """Mean, variances and a sketch GΩ of the centred Gram: r numbers a feature instead of D/2."""

    what: ClassVar[str] = "a sketch of the Gram"
    features: FeatureMap
    rank: int
    seed: int

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        d = self.features.dimension
        return {
            "mean": ((d,), "float64"),
            "variance": ((d,), "float32"),
            "sketch": ((d, self.rank), "float32"),
        }

    @cached_property
    def _omega(self) -> Array:
        return random_basis(self.features.dimension, self.rank, self.seed)

    def of(self, points: Points) -> Tensors:
        z = points.features(self.features)
        mean = z.mean(axis=0, dtype=np.float64)
        centred = z - mean.astype(np.float32)
        sketch = centred.T @ (centred @ self._omega.astype(np.float32)) / np.float32(len(z))
        variance = np.square(centred).mean(axis=0, dtype=np.float32)
        return {"mean": mean, "variance": variance, "sketch": sketch}

    def total(self, parts: Iterable[tuple[float, Tensors]]) -> tuple[Array, Array, Array]:
        """The mean, the variances and the sketch of the centred Gram of all points' features."""
        d, omega = self.features.dimension, self._omega
        weight, mean, variance, sketch = 0.0, np.zeros(d), np.zeros(d), np.zeros((d, self.rank))
        for p, part in parts:
            if (part["variance"] < 0).any():
                raise FFGBError("its sketch has a negative variance: it is no sum of squares")
            shift, both = part["mean"] - mean, weight + p
            variance += p * part["variance"] + (weight * p / both) * shift**2
            sketch += p * part["sketch"] + np.outer((weight * p / both) * shift, shift @ omega)
            mean, weight = mean + shift * (p / both), both
        return mean, variance / weight, sketch / weight


def _add(block: Array, half: Array, p: float, shifts: Array, factor: float) -> None:
    """block += p · half + factor · Σ shift shift', the lower half of it, if `half` can be a Gram at all."""
    size = len(block)
    variance = half[np.cumsum(np.arange(1, size + 1)) - 1]
    if (variance < 0).any():
        raise FFGBError("its Gram has a negative variance: it is no sum of squares")
    deviation = np.sqrt(variance) * np.float32(1.001) + np.float32(1e-12)
    some = max(1, 2**17 // size)  # rows at a time, as many as fit the cache
    for start in range(0, size, some):
        end = min(start + some, size)
        rows = np.zeros((end - start, end), half.dtype)
        rows[_lower_half(size)[start:end, :end]] = half[start * (start + 1) // 2 : end * (end + 1) // 2]
        if (np.abs(rows) > np.outer(deviation[start:end], deviation[:end])).any():
            raise FFGBError("its Gram has a covariance larger than its variances allow: it is no Gram of any points")
        block[start:end, :end] += np.float64(p) * rows + factor * (shifts[:, start:end].T @ shifts[:, :end])


def _ranges(sizes: Iterable[int]) -> Iterable[tuple[int, int]]:
    return pairwise(np.cumsum([0, *sizes]).tolist())


GRAMS = ("exact", "blocks", "tied", "nystrom")


def aggregate(ask: Ask, features: FeatureMap, kind: str, ridge: float, *, rank: int = 256, seed: int = 0) -> Geometry:
    """The geometry of all clients' points, by one exchange."""
    d, groups = features.dimension, features.blocks
    if kind == "nystrom":
        mean, variance, sketch = ask(SketchOf(features, min(rank, d), seed))
        return Nystrom.of(mean, sketch, random_basis(d, min(rank, d), seed), variance, ridge)
    if kind not in GRAMS:
        raise FFGBError(f"there is no geometry {kind!r}; choose {', '.join(GRAMS)}")
    if kind == "tied" and len(set(groups)) > 1:
        raise FFGBError("the groups of these features differ, so their blocks cannot be tied; choose --gram blocks")
    tied = len(groups) if kind == "tied" else 1
    sizes = {"exact": (d,), "blocks": groups, "tied": groups[:1]}[kind]
    mean, blocks = ask(GramOf(features, sizes, tied))
    return Blocks.of(mean, blocks, ridge, tied)
