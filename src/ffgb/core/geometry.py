"""The geometry of L²(α), α the distribution of all clients' points together, on functions h = Φ·W + β.

The paper's trouble with clients that differ is that client i projects onto its own L²(α_i).  In a closed family the
inner product of L²(α) is a matrix, G = Σ_i p_i Φ_i'Φ_i/n_i (centred: the intercept takes care of means), which clients
can add up once before training.  It holds no labels and no rows.  A `Geometry` is made of that sum, or of something
cheaper, and does the two things the oracle needs: solve (G + λI) W = b and apply G.  docs/geometry.md says why the mean
of the clients' answers is then exactly the oracle's answer to the global gradient.

Covectors and weights are (D+1, c) arrays; the last row belongs to the intercept, which is not penalised.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np
from scipy.linalg import solve_triangular

from ffgb.core import cholesky
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option
from ffgb.hardware import one_blas_thread

log = logging.getLogger("ffgb")

SHIFT = 1e-5
"""What is added to a Gram's diagonal before it is tested, of its trace: rounding in float32 makes it indefinite."""


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
    def scale(self) -> Array:
        """The root mean square of each feature, and of the constant: (D+1,)."""

    @property
    @abstractmethod
    def freedom(self) -> float | None:
        """tr(H)²/tr(H²), H = (G + λI)⁻¹G: how many directions a solution can use; None if this G is not exact."""


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
        trace = tied * sum(float(np.trace(block)) for block in some)
        level = max(ridge * trace, 1e-12)
        try:
            factors = _factors(some, level)
        except np.linalg.LinAlgError:
            # by as much as parts that pass for Grams may be indefinite, so that no single one can end the run
            level = max(level, 10.0 * SHIFT * trace)
            try:
                factors = _factors(some, level)
            except np.linalg.LinAlgError as error:
                raise FFGBError(
                    f"the Gram plus {option('ridge', ridge)} is not positive definite; raise {option('ridge')}"
                ) from error
            log.warning("the Gram plus --ridge %g is not positive definite; λ is %g of its trace", ridge, 10.0 * SHIFT)
        return Blocks(mean, factors, tuple(len(b) for b in some), level, tied)

    @cached_property
    def _lower(self) -> list[tuple[slice, Array]]:
        lower, start, at = [], 0, 0
        for size in self.sizes:
            half = self.factors[at : at + size * (size + 1) // 2]
            # by columns, as LAPACK has matrices: it would copy any other at each solution
            lower.append((slice(start, start + size), np.asfortranarray(unpack(half, size))))
            start, at = start + size, at + len(half)
        return [(slice(r.start + k * start, r.stop + k * start), block) for k in range(self.tied) for r, block in lower]

    def solve(self, b: Array) -> Array:
        own = centred(self.mean, b)
        w = np.empty_like(own)
        for rows, lower in self._lower:
            w[rows] = cholesky.solve(lower, own[rows])
        return _with_intercept(self.mean, w, b)

    def apply(self, w: Array) -> Array:
        g = np.empty((len(w) - 1, w.shape[1]))
        with one_blas_thread():
            for rows, lower in self._lower:
                g[rows] = lower @ (lower.T @ w[:-1][rows]) - self.ridge * w[:-1][rows]
        return _uncentred(self.mean, g, w)

    @cached_property
    def scale(self) -> Array:
        square = np.square(self.mean)
        for rows, lower in self._lower:
            square[rows] += np.maximum(np.square(lower).sum(axis=1) - self.ridge, 0.0)
        return np.append(np.sqrt(square), 1.0)

    @cached_property
    def freedom(self) -> float | None:
        if len(self.sizes) * self.tied > 1:
            return None
        # H = I − λ(G + λI)⁻¹
        ((_, lower),) = self._lower
        inverse_trace, squares = cholesky.inverse_sums(lower)
        trace = len(lower) - self.ridge * inverse_trace
        # and the intercept, which is free
        below = 1.0 + 2.0 * trace - len(lower) + self.ridge * self.ridge * squares
        return (1.0 + trace) * (1.0 + trace) / below if below > 0.0 else None


@final
@dataclass(frozen=True, eq=False)
class Spectrum(Geometry):
    """G itself, in the basis of its eigenvectors: G + λI is then solved for any λ at once (core/prior.py)."""

    mean: Array
    values: Array
    """Eigenvalues, (D,)."""
    vectors: Array
    """Eigenvectors as columns, (D, D)."""

    @staticmethod
    def of(mean: Array, gram: Array) -> Spectrum:
        """From the centred Gram."""
        whole = _checked(gram)
        if len(whole) != len(mean):
            raise FFGBError(f"the Gram has {len(whole)} features, their mean {len(mean)}")
        with one_blas_thread():
            values, vectors = np.linalg.eigh(whole)
        return Spectrum(mean, np.maximum(values, 0.0), vectors)

    def into(self, w: Array) -> Array:
        """Weights, or centred inner products, (D, c), in the basis of eigenvectors."""
        with one_blas_thread():
            found: Array = self.vectors.T @ w
        return found

    def back(self, w: Array) -> Array:
        """From the basis of eigenvectors."""
        with one_blas_thread():
            found: Array = self.vectors @ w
        return found

    def solve(self, b: Array) -> Array:
        """With λ at the level of rounding."""
        level = max(SHIFT * float(self.values.sum()), 1e-12)
        w = self.back(self.into(centred(self.mean, b)) / (self.values + level)[:, None])
        return _with_intercept(self.mean, w, b)

    def apply(self, w: Array) -> Array:
        return _uncentred(self.mean, self.back(self.values[:, None] * self.into(w[:-1])), w)

    @cached_property
    def scale(self) -> Array:
        variance = np.square(self.vectors) @ self.values
        return np.append(np.sqrt(variance + np.square(self.mean)), 1.0)

    @property
    def freedom(self) -> float:
        """Of λ at the level of rounding: all directions that points have, and the intercept."""
        return 1.0 + float(np.count_nonzero(self.values > SHIFT * self.values.sum()))


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
        for share in (1e-7, 10.0 * SHIFT):  # the second by as much as parts that pass for sketches may be indefinite
            shift = share * max(trace, 1e-12)
            shifted = sketch + shift * omega
            with one_blas_thread():
                root = _root(omega.T @ shifted)
            if root is not None:
                break
        else:
            raise FFGBError(f"the sketch of the Gram is not positive definite; choose {option('gram', 'exact')}")
        with one_blas_thread():
            half = solve_triangular(root, shifted.T, lower=True, check_finite=False).T
            try:
                u, singular, _ = np.linalg.svd(half, full_matrices=False)
            except np.linalg.LinAlgError as error:
                raise FFGBError(
                    f"the sketch of the Gram has no singular values; choose {option('gram', 'exact')}"
                ) from error
        basis = u * np.sqrt(np.maximum(np.square(singular) - shift, 0.0))
        level = max(ridge * trace, 1e-12)
        rest = np.maximum(diagonal - np.square(basis).sum(axis=1), 0.0)
        return Nystrom(mean, basis, rest + level, level)

    @cached_property
    def _woodbury(self) -> tuple[Array, Array]:
        with one_blas_thread():
            scaled = self.basis / self.rest[:, None]
            inside = np.eye(self.basis.shape[1]) + self.basis.T @ scaled
            return scaled, cholesky.factor(inside)

    def solve(self, b: Array) -> Array:
        scaled, inside = self._woodbury
        own = centred(self.mean, b)
        with one_blas_thread():
            w = own / self.rest[:, None] - scaled @ cholesky.solve(inside, scaled.T @ own)
        return _with_intercept(self.mean, w, b)

    def apply(self, w: Array) -> Array:
        v = w[:-1]
        with one_blas_thread():
            g = self.basis @ (self.basis.T @ v) + (self.rest - self.ridge)[:, None] * v
        return _uncentred(self.mean, g, w)

    @cached_property
    def scale(self) -> Array:
        variance = np.square(self.basis).sum(axis=1) + self.rest - self.ridge
        return np.append(np.sqrt(np.maximum(variance, 0.0) + np.square(self.mean)), 1.0)

    @property
    def freedom(self) -> None:
        return None


def centred(mean: Array, b: Array) -> Array:
    """Inner products with Φ − mean, from those with Φ and with 1."""
    found: Array = b[:-1] - np.outer(mean, b[-1])
    return found


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


def _root(symmetric: Array) -> Array | None:
    """The Cholesky factor of a matrix that is symmetric up to rounding, or None if it is not positive definite."""
    try:
        with one_blas_thread():
            return np.linalg.cholesky((symmetric + symmetric.T) / 2)
    except np.linalg.LinAlgError:
        return None


def _factors(blocks: Iterable[Array], level: float) -> Array:
    """The packed Cholesky factors of blocks plus a multiple of the identity."""
    factors = []
    for block in blocks:
        shifted = np.array(block, np.float64)
        shifted[np.diag_indices_from(shifted)] += level
        factors.append(pack(cholesky.factor(shifted)))
    return np.concatenate(factors)
