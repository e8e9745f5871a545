"""Folds of rows: who judges a function that was trained without them.

A fold number follows from the values of a row, so that it does not matter which client holds it; equal rows of a client
are dealt out one after the other.  No one sends these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.exact_sums import counted, whole
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion, Sum, known
from ffgb.core.seeds import stream
from ffgb.core.types import Array, Tensors
from ffgb.core.versions import Versions
from ffgb.errors import FFGBError

AT_ONCE = 2**22
"""Cells of rows that are hashed together."""
VALUES_AT_ONCE = 2**20
"""Values of candidates that are computed together."""
FINEST, LARGEST = 2.0**-16, 2.0**10
"""What losses of single rows are counted in, and up to which size."""


@final
@dataclass(frozen=True, eq=False)
class Folds:
    """So many folds, and which of them each version of f is trained without."""

    number: int
    seed: int
    without: Array
    """Of each version a fold; −1: trained with all rows: (versions,), int16."""

    def of(self, points: Points) -> Array:
        """The fold of each row, (n,), int16."""
        return points.once(f"folds {self.number} {self.seed}", lambda: self._dealt(points.x))

    def _dealt(self, x: Array) -> Array:
        hashed = hashes_of_rows(x.reshape(len(x), -1), self.seed)
        return ((hashed % np.uint64(self.number) + ranks(hashed)) % np.uint64(self.number)).astype(np.int16)

    def outside(self, points: Points, version: int) -> Array | None:
        """Which rows a version is trained without, (n,), bool; None: it is trained with all of them."""
        fold = int(self.without[version])
        return None if fold < 0 else self.of(points) == fold


def ranks(hashed: Array) -> Array:
    """The place of each row among the client's rows with the same number, (n,), uint64.

    >>> ranks(np.array([7, 5, 7, 7, 5], np.uint64))
    array([0, 0, 1, 2, 1], dtype=uint64)
    """
    order = np.argsort(hashed, kind="stable")
    ordered = hashed[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(hashed)])
    rank = np.empty(len(hashed), np.uint64)
    rank[order] = np.arange(len(hashed)) - np.repeat(first, np.diff(np.append(first, len(hashed))))
    return rank


def hashes_of_rows(x: Array, seed: int) -> Array:
    """A number for each row that follows from its values, as float32 has them: (n,), uint64."""
    factors = stream(seed, "folds").integers(1, 2**63, size=x.shape[1], dtype=np.int64).astype(np.uint64) * 2 + 1
    found = np.empty(len(x), np.uint64)
    rows = max(1, AT_ONCE // max(1, x.shape[1]))
    for start in range(0, len(x), rows):
        some = np.ascontiguousarray(x[start : start + rows], np.float32) + np.float32(0.0)
        some[np.isnan(some)] = np.nan  # all of them alike
        mixed = some.view(np.uint32).astype(np.uint64) * factors  # modulo 2^64
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        found[start : start + rows] = mixed.sum(axis=1, dtype=np.uint64)
    found ^= found >> np.uint64(31)
    return found


class Judged(NamedTuple):
    """What rows say of versions of f that were trained without them."""

    losses: Array
    """Mean loss at those rows of each candidate, in the order of the question."""
    rows: float
    """Their weight."""


@final
@dataclass(frozen=True, eq=False)
class HeldOut(RoundQuestion):
    """Losses of candidates at the rows that their versions were trained without.

    A candidate is start + Σ_k weights_k (f_k − start), where f_k is the k-th strand's version without that row.
    """

    what: ClassVar[str] = "losses at rows set aside"
    folds: Folds
    strands: int
    """Versions are those of the first strand, then those of the second, and so on."""
    start: Array
    """f⁰, (c,)."""
    weights: Array
    """(candidates, strands)."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"losses": counted((len(self.weights),)), "weight": counted((1,))}

    def part(self, here: Here) -> Tensors:
        f, y = known(here.f), known(here.y)
        loss = here.loss.inner if isinstance(here.loss, Versions) else here.loss
        assert loss is not None
        fold, each = self.folds.of(here.points), f.reshape(len(f), -1, loss.outputs)  # (n, versions, c)
        count = len(self.folds.without) // self.strands
        version, left_out = np.full(self.folds.number, -1), self.folds.without[:count]
        version[left_out[left_out >= 0]] = np.flatnonzero(left_out >= 0)
        rows = np.flatnonzero(version[fold] >= 0)
        ones = np.ones(len(rows)) if here.points.weights is None else here.points.weights[rows]
        losses, weight = np.zeros(len(self.weights)), np.array([float(whole(ones, FINEST).sum())])
        at_once = max(1, VALUES_AT_ONCE // (len(self.weights) * loss.outputs))
        for start in range(0, len(rows), at_once):
            some_rows = rows[start : start + at_once]
            own = version[fold[some_rows]][:, None] + count * np.arange(self.strands)
            moved = each[some_rows[:, None], own] - self.start  # (rows, strands, c)
            # entry by entry, so that no value depends on how many rows there are
            each_strand = zip(self.weights.T, np.moveaxis(moved, 1, 0), strict=True)
            values: Array = sum((w[:, None, None] * m for w, m in each_strand), np.zeros(())) + self.start
            value = loss.value(values.reshape(-1, loss.outputs), np.concatenate([y[some_rows]] * len(self.weights)))
            bounded = np.clip(np.nan_to_num(value.reshape(len(self.weights), -1), nan=LARGEST), -LARGEST, LARGEST)
            losses += whole(bounded * ones[start : start + at_once], FINEST).sum(axis=1)
        return {"losses": losses, "weight": weight}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if own["weight"][0] < 0:
            raise FFGBError("its rows set aside have a negative weight")

    def total(self, sums: Tensors) -> Judged:
        weight = float(sums["weight"][0])
        if not weight > 0:
            raise FFGBError("no rows are set aside; bring more rows")
        return Judged(sums["losses"] / weight, weight * FINEST)
