"""Which cells of a node's histogram are merged, so that none has few rows: NumPy alone, no federation.

Merged cells are neighbours in a column of numbers, so that a split between two of them is a threshold.  Each is called
by one of its cells, its *head*; the others are empty where splits are sought.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np

from ffgb.core.splits import Layout
from ffgb.core.types import Array


def heads(child: Array, rest: Array, before: Array, layout: Layout, columns: Array, least: int) -> Array:
    """The head of each cell of a node's child, and of the other child, whose rows by cell are these.

    Rows may be counted in several ways, (ways, cells): cells have none or enough in each.  `before` has the heads of
    the node, which has all rows of both at these.  A cell of numbers is merged with neighbours, values that are missing
    with the last bin, and categories by their rows.
    """
    counts = np.concatenate([np.atleast_2d(child), np.atleast_2d(rest)])
    everything = np.flatnonzero(np.bincount(before, minlength=len(before)))  # the heads of the node, in order
    new, ends = np.arange(len(before)), np.cumsum(layout.cells[columns])
    rows = counts[:, everything].T.tolist()
    start, stops = 0, np.searchsorted(everything, ends).tolist()
    for column, end, stop in zip(columns.tolist(), ends.tolist(), stops, strict=True):
        order, each = everything[start:stop].tolist(), rows[start:stop]  # values that are missing come last
        if layout.categorical[column]:
            by_rows = np.argsort([min(some) for some in each], kind="stable").tolist()
            order, each = [order[k] for k in by_rows], [each[k] for k in by_rows]
        gone = end - 1 if layout.missing[column] and not layout.categorical[column] else -1
        for first, last in _together(each, least):
            if last - first > 1:
                some = order[first:last]
                bins = [cell for cell in some if cell != gone]
                new[some] = max(bins) if bins else gone
        start = stop
    return new[before]


def _together(cells: Sequence[Sequence[float]], least: int) -> list[tuple[int, int]]:
    """Which neighbours are merged, so that in each of several counts there are none or enough: from where to where.

    `cells` has the counts of each cell.
    """
    groups = list[tuple[int, list[float]]]()
    nothing = [0.0] * len(cells[0]) if cells else []
    first, rows = 0, nothing
    for k, here in enumerate(cells):
        rows = list(map(add, rows, here))
        if _enough(rows, least):
            groups.append((first, rows))
            first, rows = k + 1, nothing
    while first < len(cells) and groups and not _enough(rows, least):
        first, there = groups.pop()
        rows = list(map(add, rows, there))
    starts = [start for start, _ in groups] + ([first] if first < len(cells) else [])
    return list(zip(starts, [*starts[1:], len(cells)], strict=True))


def _enough(rows: Sequence[float], least: int) -> bool:
    """Are there enough rows in one count at least, and none or enough in the others?"""
    some = False
    for each in rows:
        if each >= least:
            some = True
        elif each > 0:
            return False
    return some


def regrouped(histogram: Array, heads: Array) -> Array:
    """A histogram (3, cells) with every cell's sums at its head."""
    return np.stack([np.bincount(heads, sums, len(heads)) for sums in histogram])
