"""Which cells of a node's histogram are merged, so that none has few rows: NumPy alone, no federation.

Merged cells are neighbours in a column of numbers, so that a split between two of them is a threshold.  Each is called
by one of its cells, its *head*; the others are empty where splits are sought.
"""

from __future__ import annotations

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
    found, first = before.copy(), 0
    counts = np.concatenate([np.atleast_2d(child), np.atleast_2d(rest)])
    for column in columns:
        here = slice(first, first + int(layout.cells[column]))
        order = own = np.unique(before[here])  # values that are missing come last
        if layout.categorical[column]:
            order = own[np.argsort(counts[:, own].min(axis=0), kind="stable")]
        new = np.arange(len(found))
        gone = here.stop - 1 if layout.missing[column] and not layout.categorical[column] else -1
        for together in _together(counts[:, order], least):
            if len(together) == 1:
                continue
            some = order[together]
            bins = some[some != gone]
            new[some] = bins.max() if len(bins) else gone
        found[here] = new[before[here]]
        first = here.stop
    return found


def _together(each: Array, least: int) -> list[Array]:
    """Which neighbours are merged, so that in each of several counts there are none or enough: (counts, cells)."""
    groups: list[list[int]] = []
    counts: list[tuple[float, ...]] = []
    nothing = (0.0,) * len(each)
    now, rows = list[int](), nothing
    for k, here in enumerate(zip(*each.tolist(), strict=True)):
        now.append(k)
        rows = tuple(map(add, rows, here))
        if _enough(rows, least) and sum(rows) > 0:
            groups.append(now)
            counts.append(rows)
            now, rows = [], nothing
    while now and groups and not (_enough(rows, least) and sum(rows) > 0):
        last, there = groups.pop(), counts.pop()
        now, rows = last + now, tuple(map(add, rows, there))
    return [np.array(some) for some in ([*groups, now] if now else groups)]


def _enough(rows: tuple[float, ...], least: int) -> bool:
    for each in rows:  # noqa: SIM110 - a generator takes twice the time
        if 0 < each < least:
            return False
    return True


def regrouped(histogram: Array, heads: Array) -> Array:
    """A histogram (3, cells) with every cell's sums at its head."""
    return np.stack([np.bincount(heads, sums, len(heads)) for sums in histogram])
