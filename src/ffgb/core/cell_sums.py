"""The question of additive models: gradients and Hessians by cell, and rows by pairs of cells of two columns.

The pairs are the Gram matrix of the cells' indicators.  Hessians by pairs are not asked for: one of a pair with a
single row would tell f at this row, and f tells the row's other cells.  They follow from rows by pairs and the mean
Hessians of the two cells (core/additive.py).  Each row is rounded to a whole multiple of a public unit before it is
added (exact_sums.py), so a total has the same bits over any split of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.additive import Sums
from ffgb.core.exact_sums import counted
from ffgb.core.folds import Folds
from ffgb.core.histograms import Histograms, HistogramsOf, Units
from ffgb.core.merged_cells import MergedHistograms
from ffgb.core.questions import Here, RoundQuestion, Sum
from ffgb.core.splits import Splits
from ffgb.core.tree_growth import GRADIENT, HESSIAN, ROWS
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True, eq=False)
class CellSums(RoundQuestion):
    """Sums of gradients, Hessians and rows in each cell of some columns, and rows in each pair of cells."""

    what: ClassVar[str] = "sums by bins and pairs of bins"
    units: Units
    cells: Array
    """Of each column of the table, (C,), int16."""
    columns: Array
    """Those that are asked about, ascending, (k,), int32."""
    width: int
    """Bytes of a set of cells."""
    outputs: Array
    """The entries of f that are asked about, int32."""
    folds: Folds | None = None
    """Versions of f are trained without some rows each; the first is trained with all."""
    heads: Array | None = None
    """Of each cell of each output, the cell of the same column that has its sums (merged_cells.py); None: its own."""

    @cached_property
    def _merged(self) -> HistogramsOf | MergedHistograms:
        return self.single if self.heads is None else MergedHistograms(self.single, self.heads)

    @cached_property
    def single(self) -> HistogramsOf:
        """The sums by one column: a tree without splits for each output."""
        trees = np.arange(len(self.outputs), dtype=np.int32)
        columns, roots = np.tile(self.columns, (len(trees), 1)), np.stack([trees, 0 * trees], axis=1)
        none, number = Splits.of([], [], [], self.width), np.zeros(0, np.int16)
        return HistogramsOf(self.units, self.cells, self.outputs, columns, number, none, roots, True, self.folds)

    @property
    def sums(self) -> Mapping[str, Sum]:
        size = sum(a * b for _, _, a, b in self._pairs())
        return {**self._merged.sums, "pairs": counted((size,), self.units.bits)}

    def _pairs(self) -> Iterator[tuple[int, int, int, int]]:
        """Two columns, as places in the list, and their cells."""
        sizes = self.cells[self.columns].tolist()
        for i, a in enumerate(sizes):
            for j in range(i + 1, len(sizes)):
                yield i, j, a, sizes[j]

    def part(self, here: Here) -> Tensors:
        assert here.family is not None
        z = here.points.features(here.family.features)
        found = list[Array]()
        for i, j, a, b in self._pairs():
            key = z[:, self.columns[i]].astype(np.int64) * b + z[:, self.columns[j]]
            found.append(np.bincount(key, None, a * b))
        return {**self._merged.part(here), "pairs": np.concatenate([np.empty(0), *found])}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self._merged.check({name: own[name] for name in self._merged.sums}, rows, part)
        pairs = own["pairs"]
        if (pairs < 0).any():
            raise FFGBError("its sums over pairs of bins are negative")
        if not len(pairs):
            return
        ends = np.cumsum([a * b for _, _, a, b in self._pairs()])
        sums = np.add.reduceat(pairs, np.concatenate([[0], ends[:-1]]))
        if (sums != sums[0]).any() or sums[0] > rows:
            raise FFGBError("its sums over pairs of bins differ from one pair of columns to another")

    def total(self, sums: Tensors) -> tuple[Sums, Array]:
        """What the posterior needs, the constant first; and the rows of each cell."""
        histograms: Histograms = self._merged.total({name: sums[name] for name in self._merged.sums})
        by_cell = np.stack(list(histograms.nodes))  # (c, 3, cells)
        whole = by_cell[:, :, : int(self.cells[self.columns[0]])].sum(axis=2, keepdims=True)
        by_cell = np.concatenate([whole, by_cell], axis=2)
        rows = by_cell[0, ROWS].copy()
        # the cell of the constant holds all rows: its pairs are the diagonal
        gram = np.zeros((len(rows), len(rows)))
        gram[1:, 1:] = self._gram(sums["pairs"])
        if self.heads is not None and len(self.columns) > 1:  # pairs are not of merged cells, and no rows of a cell are
            rows[1:] = gram[1:, 1:].sum(axis=1) / (len(self.columns) - 1)
        gram[0], gram[:, 0] = rows, rows
        gram[np.diag_indices_from(gram)] = rows
        assert histograms.square is not None
        square = histograms.square[self.outputs]
        return Sums(by_cell[:, GRADIENT], by_cell[:, HESSIAN], gram, square, float(rows[0])), rows[1:]

    def _gram(self, pairs: Array) -> Array:
        """The matrix, the cells of one column after another's, without the blocks of one column."""
        first = np.concatenate([[0], np.cumsum(self.cells[self.columns].astype(np.int64))])
        gram, at = np.zeros((first[-1], first[-1])), 0
        for i, j, a, b in self._pairs():
            block = pairs[at : at + a * b].reshape(a, b)
            at += a * b
            gram[first[i] : first[i + 1], first[j] : first[j + 1]] = block
            gram[first[j] : first[j + 1], first[i] : first[i + 1]] = block.T
        return gram
