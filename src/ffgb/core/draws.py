"""Each tree is grown from a share of the rows, and nobody but the site knows which.

Sums of two trees over nearly the same rows would tell, by their difference, something about the few rows in which they
differ.  So each tree leaves out some rows of its own.  Which ones follows from the values of a row, the round, the
number of the tree, and a secret of the site where the row is: what a difference is over, no one else can say.  In a
simulation there is no secret, and the draws follow from the seed alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.folds import hashes_of_rows, ranks
from ffgb.core.points import Points
from ffgb.core.types import Array
from ffgb.errors import FFGBError

THOUSAND = 1000


@final
@dataclass(frozen=True)
class Draws:
    """Which rows each tree of a round is grown from."""

    seed: int
    thousandths: int
    """The share of the rows, in thousandths: a whole number, which a site compares with what its owner agreed to."""
    first: bool = False
    """In the first round alone; later, trees have all rows."""

    def __post_init__(self) -> None:
        if not 0 < self.thousandths <= THOUSAND:
            raise FFGBError("a tree is grown from a share of the rows that is above 0, and at most 1")

    @staticmethod
    def of(share: float, seed: int) -> Draws | None:
        """None if trees have all rows."""
        thousandths = max(1, round(THOUSAND * share))
        return None if thousandths == THOUSAND else Draws(seed, thousandths)

    def left_out(self, points: Points, round: int, trees: Sequence[int]) -> Array | None:
        """The rows that trees of these numbers leave out, (trees, n), bool; None: they have all."""
        if self.thousandths == THOUSAND or (self.first and round > 0):
            return None
        hashed = points.once(f"draws {self.seed}", lambda: _of_rows(points.x, self.seed))
        limit = np.uint64((THOUSAND - self.thousandths) * (2**64 // THOUSAND))
        return np.stack([_mixed(hashed ^ self._key(points.secret, round, tree)) < limit for tree in trees])

    def _key(self, secret: bytes, round: int, tree: int) -> np.uint64:
        """What the draw of a tree depends on, besides the rows."""
        label = f"ffgb draw {self.seed} {self.first} {round} {tree}".encode()
        return np.uint64(int.from_bytes(hashlib.blake2b(label, key=secret, digest_size=8).digest(), "big"))


def _of_rows(x: Array, seed: int) -> Array:
    """A number for each row; equal rows of a client have different ones."""
    hashed = hashes_of_rows(x.reshape(len(x), -1), seed)
    return _mixed(hashed + ranks(hashed) * np.uint64(0x9E3779B97F4A7C15))


def _mixed(h: Array) -> Array:
    """Steele's splitmix64, entry by entry."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h
