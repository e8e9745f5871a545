"""Which cells of a node's histogram are merged, so that none has few rows: NumPy alone, no federation.

Merged cells are neighbours in a column of numbers, so that a split between two of them is a threshold.  Each is called
by one of its cells, its *head*; the others are empty where splits are sought.
"""

from __future__ import annotations

import numpy as np

from ffgb.core.splits import Layout
from ffgb.core.types import Array


def heads(child: Array, rest: Array, before: Array, layout: Layout, columns: Array, least: int) -> Array:
    """The head of each cell of a node's child, and of the other child, whose rows by cell are these.

    `before` has the heads of the node, which has all rows of both at these.  A cell of numbers is merged with
    neighbours, values that are missing with the last bin, and categories by their rows.
    """
    found, first = before.copy(), 0
    for column in columns:
        here = slice(first, first + int(layout.cells[column]))
        order = own = np.unique(before[here])  # values that are missing come last
        if layout.categorical[column]:
            order = own[np.argsort(np.minimum(child[own], rest[own]), kind="stable")]
        new = np.arange(len(found))
        for together in _together(child[order], rest[order], least):
            some = order[together]
            gone = here.stop - 1 if layout.missing[column] and not layout.categorical[column] else -1
            bins = some[some != gone]
            new[some] = bins.max() if len(bins) else gone
        found[here] = new[before[here]]
        first = here.stop
    return found


def _together(a: Array, b: Array, least: int) -> list[Array]:
    """Which neighbours are merged, so that in each of two counts there are none or enough."""
    groups: list[list[int]] = []
    counts: list[tuple[float, float]] = []
    now, rows = list[int](), (0.0, 0.0)
    for k, pair in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        now.append(k)
        rows = rows[0] + pair[0], rows[1] + pair[1]
        if _enough(rows, least) and sum(rows) > 0:
            groups.append(now)
            counts.append(rows)
            now, rows = [], (0.0, 0.0)
    while now and groups and not (_enough(rows, least) and sum(rows) > 0):
        last, there = groups.pop(), counts.pop()
        now, rows = last + now, (rows[0] + there[0], rows[1] + there[1])
    return [np.array(some) for some in ([*groups, now] if now else groups)]


def _enough(rows: tuple[float, float], least: int) -> bool:
    return all(not 0 < each < least for each in rows)


def regrouped(histogram: Array, heads: Array) -> Array:
    """A histogram (3, cells) with every cell's sums at its head."""
    return np.stack([np.bincount(heads, sums, len(heads)) for sums in histogram])
