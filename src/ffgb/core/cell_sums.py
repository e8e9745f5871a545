"""The question of additive models: gradients and Hessians by cell, and Hessians by pairs of cells of two columns.

The pairs are the Gram matrix of the cells' indicators, weighted with the loss's second derivative at f^t.  Each row is
rounded to a whole multiple of a public unit before it is added (exact_sums.py), so a total has the same bits over any
split of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.additive import Sums
from ffgb.core.exact_sums import counted, whole
from ffgb.core.folds import Folds
from ffgb.core.histograms import Histograms, HistogramsOf, Units, derivatives
from ffgb.core.questions import Here, RoundQuestion, Sum
from ffgb.core.splits import Splits
from ffgb.core.tree_growth import GRADIENT, HESSIAN, ROWS
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True, eq=False)
class CellSums(RoundQuestion):
    """Sums of gradients, Hessians and rows in each cell of some columns, and of Hessians in each pair of cells."""

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
    together: int
    """Pairs are of the first so many of these."""
    folds: Folds | None = None
    """Versions of f are trained without some rows each; the first is trained with all."""

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
        return {**self.single.sums, "pairs": counted((size,), self.units.bits)}

    @property
    def unit(self) -> float:
        """Of Hessians added over outputs; sums of all rows fit."""
        if self.units.flat:
            return 1.0
        return float(self.units.hessian.max()) * 2.0 ** math.ceil(math.log2(self.together))

    def _pairs(self) -> Iterator[tuple[int, int, int, int]]:
        """Two columns, as places in the list, and their cells."""
        sizes = self.cells[self.columns].tolist()
        for i, a in enumerate(sizes):
            for j in range(i + 1, len(sizes)):
                yield i, j, a, sizes[j]

    def part(self, here: Here) -> Tensors:
        assert here.family is not None
        z = here.points.features(here.family.features)
        some = self.outputs[: self.together]
        weights = None if self.units.flat else whole(derivatives(here)[1][:, some].sum(axis=1), self.unit)
        found = list[Array]()
        for i, j, a, b in self._pairs():
            key = z[:, self.columns[i]].astype(np.int64) * b + z[:, self.columns[j]]
            found.append(np.bincount(key, weights, a * b))
        return {**self.single.part(here), "pairs": np.concatenate([np.empty(0), *found])}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self.single.check(own, rows, part)
        pairs = own["pairs"]
        if (pairs < 0).any():
            raise FFGBError("its sums over pairs of bins are negative")
        if not len(pairs):
            return
        ends = np.cumsum([a * b for _, _, a, b in self._pairs()])
        sums = np.add.reduceat(pairs, np.concatenate([[0], ends[:-1]]))
        if (sums != sums[0]).any() or (self.units.flat and sums[0] > rows):
            raise FFGBError("its sums over pairs of bins differ from one pair of columns to another")

    def total(self, sums: Tensors) -> tuple[Sums, Array]:
        """What the posterior needs, the constant first; and the rows of each cell."""
        histograms: Histograms = self.single.total(sums)
        by_cell = np.stack(list(histograms.nodes))  # (c, 3, cells)
        whole = by_cell[:, :, : int(self.cells[self.columns[0]])].sum(axis=2, keepdims=True)
        by_cell = np.concatenate([whole, by_cell], axis=2)
        # the cell of the constant holds all rows: its pairs are the diagonal
        diagonal = by_cell[: self.together, HESSIAN].sum(axis=0)
        gram = np.zeros((len(diagonal), len(diagonal)))
        gram[1:, 1:] = self._gram(sums["pairs"]) * (self.together if self.units.flat else 1.0)
        gram[0], gram[:, 0] = diagonal, diagonal
        gram[np.diag_indices_from(gram)] = diagonal
        assert histograms.square is not None
        rows = by_cell[0, ROWS]
        square = histograms.square[self.outputs]
        return Sums(by_cell[:, GRADIENT], by_cell[:, HESSIAN], gram, square, float(rows[0])), rows[1:]

    def _gram(self, pairs: Array) -> Array:
        """The matrix, the cells of one column after another's, without the blocks of one column."""
        first = np.concatenate([[0], np.cumsum(self.cells[self.columns].astype(np.int64))])
        gram, at = np.zeros((first[-1], first[-1])), 0
        for i, j, a, b in self._pairs():
            block = pairs[at : at + a * b].reshape(a, b) * self.unit
            at += a * b
            gram[first[i] : first[i + 1], first[j] : first[j + 1]] = block
            gram[first[j] : first[j + 1], first[i] : first[i + 1]] = block.T
        return gram
