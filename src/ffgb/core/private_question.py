"""Questions whose answers have noise: how far one row can move an answer, and how much noise that takes.

Rows are rounded to whole multiples of a unit, and clipped as whole numbers: the squared Euclidean norm of what one row
adds to all arrays of an answer together is at most `square`, whatever the row is, and whatever the question says.  Each
client adds its share of discrete Gaussian noise before its answer leaves (privacy/release.py).

Nothing in a question is trusted.  A smaller `norm` clips more; a larger `mu` costs more of the budget that a site keeps
itself; `shares` is compared with what the site knows of the participants; the other numbers move no row farther.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, final

import numpy as np

from ffgb.core.questions import Question, Sum
from ffgb.core.types import Array
from ffgb.errors import FFGBError

MARGIN = 1.0 + 2.0**-10
"""By how much the variance is larger than Gaussian noise must have: it covers that noise is on a grid."""
SMALLEST_DEVIATION = 2**8
"""Of one client's share, in units: coarser noise is not close enough to Gaussian noise for the margin."""
FINE = 17
"""Units are chosen so that a share's deviation is about 2^FINE of them."""
COARSEST = 2.0**-4
"""Of units: those of numbers that are 1 at most."""
LARGEST_SUM = 2.0**60
EXACT = 2**53
"""Sums of whole numbers below this are exact in float64, so that a row adds to them what it adds, and nothing else."""


class PrivateQuestion(Question):
    """A question that is answered with noise alone: a final, frozen dataclass that implements these names."""

    mu: float
    """What an answer costs: it is μ-GDP (privacy/accountant.py)."""
    shares: int
    """The noise is complete without the shares of all clients but so many."""
    rows: int
    """Rows of one unit of privacy (a patient), at most."""
    seed: int
    """Of the run: the same question of another run has other noise."""

    private: ClassVar[bool] = True

    @property
    @abstractmethod
    def square(self) -> int:
        """The squared norm of what one row adds, at most, in units."""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the arrays."""

    @final
    @property
    def sums(self) -> dict[str, Sum]:
        return {name: Sum(shape, LARGEST_SUM, kind="count") for name, shape in self.shapes.items()}

    @final
    @property
    def deviation(self) -> int:
        """Of one client's share of the noise, in units."""
        if not (math.isfinite(self.mu) and 1e-6 < self.mu < 100.0 and self.shares >= 1 and self.rows >= 1):
            raise FFGBError("a question with noise does not say how much")
        found = math.ceil(self.rows * math.sqrt(self.square * MARGIN / self.shares) / self.mu)
        if found < SMALLEST_DEVIATION:
            raise FFGBError(f"a question with noise has too coarse a unit: a deviation is {found} of them")
        return found

    def check_rows(self, rows: int) -> None:
        """Raise an FFGBError if sums over so many rows might not be exact."""
        if rows * (math.isqrt(self.square) + 1) >= EXACT:
            raise FFGBError(f"a question with noise has too fine a unit for {rows} rows")


def unit_for(norm: float, mu: float, shares: int) -> float:
    """A unit for rows of this norm, a power of two: fine beside the noise, and coarse enough for whole numbers."""
    return min(2.0 ** round(math.log2(norm / (mu * math.sqrt(shares))) - FINE), COARSEST)


def clipped(parts: Array, square: int) -> Array:
    """Rows of whole numbers (n, c) as they may be added: with a squared norm of at most `square`.

    Values that are no numbers are zeros.  Longer rows are shortened, and rounded towards 0.

    >>> clipped(np.array([[3.2, 4.0], [30.0, -40.0], [np.nan, np.inf]]), 25)
    array([[ 3,  4],
           [ 3, -3],
           [ 0,  5]])
    """
    longest = math.isqrt(square)
    if square * max(parts.shape[1], 1) >= 2**62:
        # a sum of squares would overflow, and a row that is too long would pass; this does not depend on any row
        raise FFGBError("a question with noise has too fine a unit for so many numbers of a row")
    whole: Array = np.rint(np.clip(np.nan_to_num(parts, nan=0.0, posinf=longest, neginf=-longest), -longest, longest))
    found: Array = whole.astype(np.int64)
    long = np.flatnonzero((found * found).sum(axis=1) > square)
    if len(long):
        norm = np.sqrt(np.square(whole[long]).sum(axis=1, keepdims=True))
        found[long] = np.trunc(whole[long] * (longest / norm) * (1.0 - 2.0**-40)).astype(np.int64)
    return found
