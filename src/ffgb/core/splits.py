"""Trees over binned columns, as lists of splits.

A column's value is a *cell*, a whole number from 0 to 255: a bin, or the cell of missing values after the last bin.  A
split looks at one column and sends a set of cells to the left.  Thresholds, missing values with a learnt direction and
sets of categories are all such sets.

Split s divides the node `node[s]` into the nodes 2s + 1 (left) and 2s + 2 (right); node 0 holds all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ffgb.core.kernels import compiled
from ffgb.core.types import Array
from ffgb.errors import FFGBError

MOST_CELLS = 256
"""Of a column: a cell is one byte."""


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """The columns that trees split, as all clients have binned them."""

    bins: Array
    """Bins of each column, (C,)."""
    missing: Array
    """Whether a column has a cell for missing values, after its bins: (C,), bool."""
    categorical: Array
    """Whether a column's bins have no order: (C,), bool."""

    @cached_property
    def cells(self) -> Array:
        """Cells of each column, (C,)."""
        cells: Array = self.bins.astype(np.int64) + self.missing
        return cells

    @property
    def usable(self) -> Array:
        """The columns that can be split at all."""
        return np.flatnonzero(self.cells > 1)

    @property
    def width(self) -> int:
        """Bytes that hold a set of any column's cells."""
        return (int(self.cells.max(initial=1)) + 7) // 8


@final
@dataclass(frozen=True, eq=False)
class Splits:
    """Some splits, in order."""

    node: Array
    """The node that each divides, (S,), int32; −1: none, where a list is filled up to a length."""
    column: Array
    """(S,), int32."""
    left: Array
    """The cells that go left, a bit each, (S, bytes), int8."""

    def __len__(self) -> int:
        return len(self.node)

    def __getitem__(self, some: slice) -> Splits:
        return Splits(self.node[some], self.column[some], self.left[some])

    @cached_property
    def goes_left(self) -> Array:
        """The same as a table, (S, cells), bool."""
        return np.unpackbits(self.left.view(np.uint8), axis=1, bitorder="little").astype(bool)

    @cached_property
    def of_node(self) -> Array:
        """The split of each node; −1 for a leaf."""
        table = np.full(2 * len(self) + 1, -1, np.int64)
        used = np.flatnonzero(self.node >= 0)
        table[self.node[used]] = used
        return table

    def check(self, columns: int) -> None:
        """Raise an FFGBError if this is no tree: it may come from elsewhere."""
        check_trees(self.node[None], self.column[None], columns)

    @staticmethod
    def of(nodes: list[int], columns: list[int], left: list[Array], width: int) -> Splits:
        """From sets of cells as tables of truth values."""
        sets = np.zeros((len(nodes), 8 * width), bool)
        for s, cells in enumerate(left):
            sets[s, : len(cells)] = cells
        packed = np.packbits(sets, axis=1, bitorder="little").reshape(len(nodes), width).view(np.int8)
        return Splits(np.array(nodes, np.int32), np.array(columns, np.int32), packed)

    def padded(self, length: int) -> Splits:
        """With so many splits, the last of which divide nothing."""
        more = length - len(self)
        return Splits(
            np.concatenate([self.node, np.full(more, -1, np.int32)]),
            np.concatenate([self.column, np.zeros(more, np.int32)]),
            np.concatenate([self.left, np.zeros((more, self.left.shape[1]), np.int8)]),
        )


def check_trees(node: Array, column: Array, columns: int) -> None:
    """Raise an FFGBError unless the splits of each row, (trees, S), are those of a tree."""
    used = node >= 0
    named = np.where(used, node, -1 - np.arange(node.shape[1]))  # those that divide nothing have names of their own
    twice = (np.diff(np.sort(named, axis=1), axis=1) == 0).any()
    if (node > 2 * np.arange(node.shape[1])).any() or twice or (used[:, 1:] > used[:, :-1]).any():
        raise FFGBError("a tree's splits are not in order")
    if ((column < 0) | (column >= columns)).any():
        raise FFGBError(f"a tree looks at columns other than 0 … {columns - 1}")
    tree, inside = np.nonzero(node > 0)
    if not used[tree, (node[tree, inside] - 1) // 2].all():
        raise FFGBError("a tree divides a node that it does not have")


def route(splits: Splits, z: Array, position: Array) -> Array:
    """The leaf that each row comes to, from the node that it is in: rows of cells z (n, C), positions (n,)."""
    position = position.copy()
    fast = compiled(len(z))
    if fast is not None:
        fast.route(by_column(z), position, splits.of_node, splits.column, splits.goes_left.view(np.uint8))
        return position
    of_node, goes_left = splits.of_node, splits.goes_left
    rows: Array | slice = slice(None)
    here = position
    while True:
        # nodes that came after these splits are leaves
        split = np.where(here < len(of_node), of_node[np.minimum(here, len(of_node) - 1)], -1)
        going = np.flatnonzero(split >= 0)
        if not len(going):
            return position
        rows = going if isinstance(rows, slice) else rows[going]
        split = split[going]
        here = 2 * split + 2 - goes_left[split, z[rows, splits.column[split]]]
        position[rows] = here


def by_column(z: Array) -> Array:
    """Cells (C, n), each column's in one piece: no copy of those that `Bins` has made."""
    return np.ascontiguousarray(z.T)
