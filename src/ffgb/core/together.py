"""Sums of all trees at once, for clients with few rows: there, a call of NumPy costs more than its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, final

import numpy as np

from ffgb.core.splits import Splits
from ffgb.core.types import Array

FEW_ROWS = 2000
"""Fewer rows than this are few."""
AT_ONCE = 2**19
"""Cells of rows that are added up together."""


class Asked(Protocol):
    """What a question about sums by cells says of trees and nodes (HistogramsOf, in core/histograms.py)."""

    @property
    def cells(self) -> Array: ...

    @property
    def outputs(self) -> Array: ...

    @property
    def columns(self) -> Array: ...

    @property
    def tree(self) -> Array: ...

    @property
    def splits(self) -> Splits: ...

    @property
    def asked(self) -> Array: ...

    @property
    def starts(self) -> Array: ...

    @property
    def cells_of_nodes(self) -> int: ...


@final
class Together:
    """Which node each of a client's few rows is in, for all trees: NumPy's indices have a dimension for trees."""

    def __init__(self, z: Array, outside: Sequence[Array | None], begin: Callable[[Sequence[int]], Array]) -> None:
        """`outside` are the rows that the version of each output is trained without; `begin` says where rows of some
        trees are before any split, (trees, n)."""
        none = np.zeros(len(z), bool)
        self.z, self.begin, self.outside = z, begin, np.stack([none if some is None else some for some in outside])
        self.outputs, self.tree = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self.node, self.column, self.left = np.zeros(0), np.zeros(0), np.zeros((0, 0))
        self.position = np.zeros((0, len(z)), np.int32)

    def move(self, question: Asked) -> None:
        """Put each row into the node of each tree that it belongs to."""
        splits, tree = question.splits, question.tree.astype(np.int64)
        if self._same(question, tree):
            return
        kept = self._kept(question, tree)
        position = np.zeros((len(question.outputs), len(self.z)), np.int32)
        position[kept] = self.position[kept]
        if len(fresh := np.setdiff1d(np.arange(len(position)), kept)):
            position[fresh] = self.begin(fresh.tolist())
        route_all(tree, splits, self.z, position)
        self.position, self.outputs, self.tree = position, question.outputs, tree
        self.node, self.column, self.left = splits.node, splits.column, splits.left

    def _same(self, question: Asked, tree: Array) -> bool:
        splits = question.splits
        pairs = (
            (self.outputs, question.outputs),
            (self.tree, tree),
            (self.node, splits.node),
            (self.column, splits.column),
            (self.left, splits.left),
        )
        return all(np.array_equal(a, b) for a, b in pairs)

    def _kept(self, question: Asked, tree: Array) -> Array:
        """Trees that begin with the splits that they had before."""
        trees, splits = len(question.outputs), question.splits
        if not np.array_equal(self.outputs, question.outputs):
            return np.zeros(0, np.int64)
        before = np.bincount(self.tree, minlength=trees)
        wrong = np.bincount(tree, minlength=trees) < before
        first = np.flatnonzero(_rank(tree, trees) < before[tree])
        there = ~wrong[self.tree]
        some = first[~wrong[tree[first]]]
        differs = (splits.node[some] != self.node[there]) | (splits.column[some] != self.column[there])
        differs |= (splits.left[some] != self.left[there]).any(axis=1)
        wrong[tree[some][differs]] = True
        return np.flatnonzero(~wrong)

    def sums(self, question: Asked, gradient: Array, hessian: Array | None) -> Array:
        """Sums of all nodes that are asked about, one after the other, (3, cells)."""
        found = np.zeros((3, question.cells_of_nodes))
        columns = question.columns.shape[1]
        for trees, rows, cells in self._cells(question, ~self.outside):
            output = question.outputs[trees]
            found[2] += np.bincount(cells, minlength=question.cells_of_nodes)
            for sums, values in ((found[0], gradient), (found[1], hessian)):
                if values is not None:
                    weights = np.repeat(values[output, rows].astype(np.float64), columns)
                    sums += np.bincount(cells, weights, question.cells_of_nodes)
        return found

    def rows(self, question: Asked, *, outside: bool) -> Array:
        """Rows in each cell, (cells,); `outside`: those that trees are grown without."""
        found = np.zeros(question.cells_of_nodes)
        for _, _, cells in self._cells(question, self.outside if outside else ~self.outside):
            found += np.bincount(cells, minlength=question.cells_of_nodes)
        return found

    def _cells(self, question: Asked, taken: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Tree and row, and the cells that the row is in, a column after the other: of rows that are taken."""
        asked, columns = question.asked, question.columns
        cells = question.cells.astype(np.int64)[columns]
        first = np.cumsum(cells, axis=1) - cells
        nodes = int(max(asked[:, 1].max(initial=0), self.position.max(initial=0))) + 1
        slot = np.full((len(columns), nodes), -1)
        slot[asked[:, 0], asked[:, 1]] = np.arange(len(asked))
        some = max(1, AT_ONCE // max(1, len(self.z) * columns.shape[1]))
        for start in range(0, len(columns), some):
            here = slice(start, start + some)
            node = np.take_along_axis(slot[here], self.position[here], axis=1)
            t, r = np.nonzero((node >= 0) & taken[question.outputs[here]])
            places = question.starts[node[t, r]][:, None] + first[here][t] + self.z[r[:, None], columns[here][t]]
            yield t + start, r, places.ravel()


def route_all(tree: Array, splits: Splits, z: Array, position: Array) -> None:
    """Move each row to the leaf of each tree that it comes to; `position`, (trees, n), changes.

    `tree` is that of each split, in order; z has the cells of the rows, (n, C).
    """
    rank = _rank(tree, len(position))
    split = np.full((len(position), 2 * int(rank.max(initial=-1)) + 4), -1)
    split[tree, splits.node] = np.arange(len(tree))
    t, r = (where.ravel() for where in np.indices(position.shape))
    here = position.ravel()
    while len(t):
        s = split[t, np.minimum(here, split.shape[1] - 1)]
        going = np.flatnonzero(s >= 0)
        t, r, s = t[going], r[going], s[going]
        here = 2 * rank[s] + 2 - splits.goes_left[s, z[r, splits.column[s]]]
        position[t, r] = here


def _rank(tree: Array, trees: int) -> Array:
    """Of splits that are sorted by their trees, the place of each in its tree."""
    counts = np.bincount(tree, minlength=trees)
    found: Array = np.arange(len(tree)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found
