"""Cholesky factors whose bits do not depend on the number of cores.

LAPACK on several threads splits a factorisation by their number, so that the last bits of a model would depend on the
machine that the server runs on; and for matrices of a few hundred rows the threads spend more time waiting for each
other than they save.  So BLAS has one thread here.  A matrix of up to `LARGE` rows is left to LAPACK.  A larger one is
cut into tiles of a fixed size, which all cores work on: each tile is computed by one core, in one order, whatever their
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, lapack

from ffgb.core.types import Array
from ffgb.hardware import on_all_cores, one_blas_thread

LARGE = 2048
"""Rows of a matrix up to which one core factors it alone: in a tenth of a second."""
TILE = 256
"""Rows and columns of a tile."""


def factor(a: Array) -> Array:
    """The lower Cholesky factor of a symmetric matrix, of which the lower half is read; it may be overwritten.

    What is above the diagonal of the result means nothing.  A LinAlgError says that the matrix is not positive
    definite.

    >>> np.tril(factor(np.array([[4.0, 2.0], [2.0, 10.0]])))
    array([[2., 0.],
           [1., 3.]])
    """
    with one_blas_thread():
        if len(a) <= LARGE:
            lower, _ = cho_factor(a, lower=True, overwrite_a=True, check_finite=False)
            return np.asarray(lower)
        return _factor_in_tiles(a)


def positive_definite(a: Array) -> bool:
    """Is a symmetric matrix, of which the lower half is read, positive definite?  It is overwritten."""
    if len(a) <= LARGE:
        with one_blas_thread():
            # what is the lower half by rows is the upper half by columns, as LAPACK has them
            _, failed = _of(a, lapack, "potrf")(a.T, lower=False, clean=False, overwrite_a=True)
        return not failed
    try:
        factor(a)
    except np.linalg.LinAlgError:
        return False
    return True


def solve(lower: Array, b: Array) -> Array:
    """(LL')⁻¹ b, by the lower factor L; nothing is copied if that lies by columns (Fortran order)."""
    with one_blas_thread():
        return np.asarray(cho_solve((lower, True), b, check_finite=False))


def inverse_sums(lower: Array) -> tuple[float, float]:
    """The trace of (LL')⁻¹, and the sum of the squares of its entries.

    >>> trace, squares = inverse_sums(np.array([[2.0, 0.0], [1.0, 3.0]]))  # of [[10, −2], [−2, 4]]/36
    >>> round(36 * trace), round(36**2 * squares)
    (14, 124)
    """
    with one_blas_thread():
        if len(lower) > LARGE:
            return _inverse_sums_in_tiles(lower)
        inverse, _ = lapack.dpotri(lower, lower=True)
        diagonal = np.diag(inverse)
        squares = 2.0 * float(np.square(np.tril(inverse, -1)).sum()) + float(np.square(diagonal).sum())
        return float(diagonal.sum()), squares


def _factor_in_tiles(a: Array) -> Array:
    """One column of tiles after the other: what is left of it is taken off, then it is divided by its own factor."""
    potrf, trsm = _of(a, lapack, "potrf"), _of(a, blas, "trsm")
    for now in _tiles(len(a)):
        done, diagonal = slice(0, now.start), a[now, now]

        def subtract(rows: slice, now: slice = now, done: slice = done) -> None:
            a[rows, now] -= a[rows, done] @ a[now, done].T

        on_all_cores(subtract, list(_tiles(len(a), now.start)))
        diagonal[:], failed = potrf(diagonal, lower=True)
        if failed:
            raise np.linalg.LinAlgError(f"the leading minor of order {now.start + failed} is not positive definite")
        if now.stop < len(a):
            a[now.stop :, now] = trsm(1.0, diagonal, a[now.stop :, now].T, lower=True).T
    return a


def _inverse_sums_in_tiles(lower: Array) -> tuple[float, float]:
    """With X = L⁻¹ the inverse is X'X, and its trace the sum of the squares of X."""
    trtri = _of(lower, lapack, "trtri")
    tiles = list(_tiles(len(lower)))
    diagonal = [np.tril(trtri(lower[rows, rows], lower=True)[0]) for rows in tiles]
    x = np.zeros_like(lower, order="C")

    def invert(j: int) -> float:
        """A column of tiles of X, from LX = I; the sum of its squares."""
        first = tiles[j]
        x[first, first] = diagonal[j]
        for rows, inverse in zip(tiles[j + 1 :], diagonal[j + 1 :], strict=True):
            above = slice(first.start, rows.start)
            x[rows, first] = -inverse @ (lower[rows, above] @ x[above, first])
        return float(np.square(x[first.start :, first]).sum())

    def multiply(j: int) -> float:
        """The sum of the squares of a row of tiles of X'X, in both of its halves."""
        rows = tiles[j]
        part = x[rows.start :, rows].T @ x[rows.start :, : rows.stop]
        return 2.0 * float(np.square(part[:, : rows.start]).sum()) + float(np.square(part[:, rows.start :]).sum())

    columns = range(len(tiles))
    return sum(on_all_cores(invert, columns)), sum(on_all_cores(multiply, columns))


def _tiles(size: int, start: int = 0) -> Iterator[slice]:
    return (slice(at, min(at + TILE, size)) for at in range(start, size, TILE))


def _of(a: Array, library: ModuleType, name: str) -> Callable[..., Any]:
    """A routine of BLAS or LAPACK for the precision of this matrix."""
    routine: Callable[..., Any] = getattr(library, ("s" if a.dtype == np.float32 else "d") + name)
    return routine
