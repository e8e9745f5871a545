"""Tables of counts in which no cell has few rows, also none that follows from others by subtraction.

Cells are not blanked out, because a blank is what is left when all others are subtracted from the whole.  Groups of few
rows are joined until each has enough.  Tables of several columns are published together only if no difference of theirs
counts few rows (`differences_tell`).
"""

from __future__ import annotations

import numpy as np

from ffgb.core.types import Array

LEAST = 10
"""Rows of a cell, if no one says."""
MOST_GROUPS = 9
"""Of a table: more are joined, the smallest first."""
MOST_TRIED = 12
"""Groups of the smaller of two tables whose differences are tried: all of their unions."""


def joined(counts: Array, least: int, most: int = MOST_GROUPS) -> list[list[int]] | None:
    """Groups of `counts`, (groups, cells), that have at least so many rows in every cell, and the others joined.

    Groups with enough rows stay alone, in their order.  All others are joined, with as many of the smallest as it
    takes; they come last.  None if even all rows together have a cell of fewer.

    >>> joined(np.array([[50, 40], [30, 3], [20, 30], [12, 11]]), 10)
    [[0], [2], [1, 3]]
    """
    if (counts.sum(axis=0) < least).any():
        return None
    order = sorted(range(len(counts)), key=lambda k: (-int(counts[k].min()), k))
    alone = [k for k in order if counts[k].min() >= least][: most if len(order) <= most else most - 1]
    rest = [k for k in order if k not in alone]
    while rest and (counts[rest].sum(axis=0) < least).any():
        rest.insert(0, alone.pop())
    return [[k] for k in sorted(alone)] + ([sorted(rest)] if rest else [])


def ordered_cells(counts: Array, least: int, apart: int | None = None) -> list[int]:
    """Where merged cells begin if neighbours are merged until each has so many rows of every kind: (cells, kinds).

    No merged cell has rows on both sides of the cell `apart`, unless there are too few of a kind on one side.

    >>> ordered_cells(np.array([[5, 0], [6, 1], [4, 12], [9, 9], [3, 20], [8, 30]]), 10)
    [0, 3]
    """
    if (
        apart is not None
        and (counts[:apart].sum(axis=0) >= least).all()
        and (counts[apart:].sum(axis=0) >= least).all()
    ):
        return [
            *ordered_cells(counts[:apart], least),
            *(apart + start for start in ordered_cells(counts[apart:], least)),
        ]
    starts, begin, here = list[int](), 0, np.zeros(counts.shape[1])
    for k, cell in enumerate(counts):
        here = here + cell
        if (here >= least).all():
            starts.append(begin)
            begin, here = k + 1, np.zeros(counts.shape[1])
    return starts or [0]  # what is left at the end belongs to the last


def differences_tell(first: Array, second: Array, kinds: Array, least: int) -> bool:
    """Does subtracting groups of one table from groups of another tell of few rows of a kind?

    What is left of a union of groups of one table without those groups of the other that lie within it has no rows,
    or enough of every kind.  Whole groups have enough, so the largest such part is what has to be looked at; and the
    same differences are found from either table.  Two tables of many groups are not tried: that counts as telling.

    Parameters
    ----------
    first, second
        The group of each row in either table, (n,), whole numbers from 0.
    kinds
        The kind of each row, (n,): counts are published by group and kind.
    least
        Rows that a count must have.
    """
    outer, inner = (first, second) if first.max(initial=0) <= second.max(initial=0) else (second, first)
    groups, number = int(outer.max(initial=0)) + 1, int(kinds.max(initial=0)) + 1
    cross = np.zeros((groups, int(inner.max(initial=0)) + 1, number), np.int64)
    np.add.at(cross, (outer, inner, kinds), 1)
    if (cross.sum(axis=2) > 0).all() and (cross.sum(axis=1) >= least).all():
        return False  # no group lies within others, so nothing can be subtracted
    if groups > MOST_TRIED:
        return True
    whole = cross.sum(axis=(0, 2))
    unions = (np.arange(1, 2**groups - 1)[:, None] >> np.arange(groups)) & 1
    within = np.tensordot(unions, cross, axes=1)  # (unions, inner groups, kinds)
    beyond = within.sum(axis=2) < whole
    left = (within * beyond[:, :, None]).sum(axis=1)
    return bool(((left.sum(axis=1) > 0) & (left < least).any(axis=1)).any())
