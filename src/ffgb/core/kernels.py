"""The inner loops of trees, compiled by numba where it is installed (the extra `fast`).

The functions below are plain Python over arrays.  Compiled, they take the place of NumPy in core/histograms.py,
core/splits.py and learners/boosted_trees.py.  Sums are whole numbers, and values of leaves are added tree by tree, so
both ways give the same bits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ffgb.core.types import Array

log = logging.getLogger("ffgb")

COMPILED_ROWS = 2000
"""For fewer rows than this NumPy is fast enough, and numba need not be imported."""
BLOCK = 2048
"""Rows whose gradients stay in the cache while one column after another is added up."""
ROWS_OF_A_TREE = 2**15
"""Rows whose cells stay in the cache while one tree after another is evaluated."""


class Compiled(NamedTuple):
    """The functions of this module as machine code."""

    route: Callable[..., None]
    sums: Callable[..., None]
    short_sums: Callable[..., None]
    add_leaves: Callable[..., None]


def compiled(rows: int) -> Compiled | None:
    """The compiled loops; None if numba is not installed, or if so many rows are not worth it."""
    return _compiled() if rows >= COMPILED_ROWS else None


@functools.cache
def _compiled() -> Compiled | None:
    try:
        import numba
    except ImportError:
        log.debug("numba is not installed, so trees are grown by NumPy; the extra 'fast' installs it")
        return None

    def jit(loop: Callable[..., None]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True)(loop)
        except RuntimeError:  # there is no folder where machine code can be kept for the next time
            return numba.njit(nogil=True)(loop)

    return Compiled(jit(route), jit(sums), jit(short_sums), jit(add_leaves))


def route(cells: Array, position: Array, of_node: Array, column: Array, goes_left: Array) -> None:
    """Move each row from the node that it is in to its leaf.

    cells (C, n); position (n,) changes; of_node is the split of each node, or −1; column and goes_left (S, cells),
    uint8, are of splits.
    """
    # unsigned numbers as places: there is no counting from the end, and so nothing to check
    nodes = np.uint32(len(of_node))
    for i in range(len(position)):
        r = np.uint32(i)
        at = np.uint32(position[r])
        while at < nodes:
            split = of_node[at]
            if split < 0:
                break
            s = np.uint32(split)
            at = np.uint32(2 * s + 2) - goes_left[s, cells[np.uint32(column[s]), r]]
        position[r] = at


def sums(
    cells: Array,
    position: Array,
    slots: Array,
    gradient: Array,
    hessian: Array,
    columns: Array,
    first: Array,
    size: int,
    out: Array,
) -> None:
    """Add the rows of some nodes to their histograms.

    slots says for each node which histogram is its own, or −1; first is where each column's cells begin in one, of
    `size` cells; out (histograms · size, 3) has gradients, Hessians and rows.  An empty `hessian` is not added.
    """
    row, base = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    g, h = np.empty(BLOCK, np.int64), np.zeros(BLOCK, np.int64)
    for start in range(0, len(position), BLOCK):
        m = 0
        for r in range(start, min(start + BLOCK, len(position))):
            slot = slots[np.uint32(position[r])]
            if slot >= 0:
                row[m], base[m], g[m] = r - start, slot * size, gradient[r]
                if len(hessian):
                    h[m] = hessian[r]
                m += 1
        for k in range(len(columns)):
            own, begin = cells[columns[k]][start:], np.uint32(first[k])
            for i in range(m):
                c = base[i] + begin + own[row[i]]
                out[c, 0] += g[i]
                out[c, 1] += h[i]
                out[c, 2] += 1


def short_sums(
    cells: Array,
    position: Array,
    slots: Array,
    gradient: Array,
    hessian: Array,
    columns: Array,
    first: Array,
    size: int,
    out: Array,
) -> None:
    """The same for sums of sizes up to 2^30: out (histograms · size, 2) has 2^32 · gradients + Hessians, and rows."""
    row, base, both = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.int64)
    for start in range(0, len(position), BLOCK):
        m = 0
        for r in range(start, min(start + BLOCK, len(position))):
            slot = slots[np.uint32(position[r])]
            if slot >= 0:
                row[m], base[m], both[m] = r - start, slot * size, np.int64(gradient[r]) << 32
                if len(hessian):
                    both[m] += hessian[r]
                m += 1
        for k in range(len(columns)):
            own, begin, i = cells[columns[k]][start:], np.uint32(first[k]), 0
            while i + 4 <= m:  # four at a time, so that the processor need not wait
                c0, c1 = base[i] + begin + own[row[i]], base[i + 1] + begin + own[row[i + 1]]
                c2, c3 = base[i + 2] + begin + own[row[i + 2]], base[i + 3] + begin + own[row[i + 3]]
                out[c0, 0] += both[i]
                out[c0, 1] += 1
                out[c1, 0] += both[i + 1]
                out[c1, 1] += 1
                out[c2, 0] += both[i + 2]
                out[c2, 1] += 1
                out[c3, 0] += both[i + 3]
                out[c3, 1] += 1
                i += 4
            for j in range(i, m):
                c0 = base[j] + begin + own[row[j]]
                out[c0, 0] += both[j]
                out[c0, 1] += 1


def add_leaves(
    cells: Array,
    of_node: Array,
    column: Array,
    left: Array,
    value: Array,
    output: Array,
    weights: Array,
    out: Array,
) -> None:
    """Add the value of each row's leaf, times the tree's weight, to the tree's output.

    of_node (m, nodes), column (m, S), left (m, S, cells), uint8, value (m, nodes), out (n, c).
    """
    nodes = np.uint32(of_node.shape[1])
    for start in range(0, len(out), ROWS_OF_A_TREE):
        for t in range(len(weights)):
            o, w, splits, columns, sets, values = output[t], weights[t], of_node[t], column[t], left[t], value[t]
            for i in range(start, min(start + ROWS_OF_A_TREE, len(out))):
                r, at = np.uint32(i), np.uint32(0)
                while at < nodes:
                    split = splits[at]
                    if split < 0:
                        break
                    s = np.uint32(split)
                    at = np.uint32(2 * s + 2) - sets[s, cells[np.uint32(columns[s]), r]]
                out[r, o] += w * values[at]
