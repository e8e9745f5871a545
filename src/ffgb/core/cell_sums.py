"""The questions of additive models: sums of gradients and Hessians by cell, and how gradients change along a step.

The curvature of the loss in the terms of all columns is a matrix over pairs of cells.  Nobody asks for it: many pairs
of cells have one row only.  The server asks what the matrix does to a direction (`CurvatureAlong`), which is a sum over
all rows of a cell, and puts the matrix together from several of these (core/additive.py).  Each row is rounded to a
whole multiple of a public unit before it is added (exact_sums.py), so a total has the same bits over any split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.draws import Draws
from ffgb.core.exact_sums import EXACT, SHORT, counted, weighed, whole
from ffgb.core.folds import Folds
from ffgb.core.histograms import Histograms, HistogramsOf, Units
from ffgb.core.merged_cells import MergedHistograms
from ffgb.core.questions import Here, RoundQuestion, Sum, known
from ffgb.core.splits import Splits
from ffgb.core.tree_growth import GRADIENT, HESSIAN, ROWS
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError


class ByCell(NamedTuple):
    """Sums over rows, for each output: of all rows first, and then of each cell."""

    gradient: Array
    """(outputs, 1 + cells)."""
    curvature: Array
    """(outputs, 1 + cells)."""
    rows: Array
    """(outputs, 1 + cells)."""
    square: Array
    """Σ g², (outputs,)."""


@final
@dataclass(frozen=True, eq=False)
class CellSums(RoundQuestion):
    """Sums of gradients, Hessians and rows in each cell of some columns."""

    what: ClassVar[str] = "sums by bins of single columns"
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
    draws: Draws | None = None
    """Of the rows, for each output; None: all."""

    @cached_property
    def _merged(self) -> HistogramsOf | MergedHistograms:
        return self.single if self.heads is None else MergedHistograms(self.single, self.heads)

    @cached_property
    def single(self) -> HistogramsOf:
        """The sums by one column: a tree without splits for each output."""
        trees = np.arange(len(self.outputs), dtype=np.int32)
        columns, roots = np.tile(self.columns, (len(trees), 1)), np.stack([trees, 0 * trees], axis=1)
        none, number = Splits.of([], [], [], self.width), np.zeros(0, np.int16)
        return HistogramsOf(
            self.units, self.cells, self.outputs, columns, number, none, roots, True, self.folds, self.draws
        )

    @property
    def sums(self) -> Mapping[str, Sum]:
        return self._merged.sums

    def part(self, here: Here) -> Tensors:
        return self._merged.part(here)

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self._merged.check(own, rows, part)

    def total(self, sums: Tensors) -> ByCell:
        histograms: Histograms = self._merged.total(sums)
        by_cell = self.with_all(np.stack(list(histograms.nodes)))  # (outputs, 3, 1 + cells)
        assert histograms.square is not None
        return ByCell(by_cell[:, GRADIENT], by_cell[:, HESSIAN], by_cell[:, ROWS], histograms.square)

    def with_all(self, by_cell: Array) -> Array:
        """Sums by cell, (…, cells), with the sum of all rows before them."""
        everyone = by_cell[..., : int(self.cells[self.columns[0]])].sum(axis=-1, keepdims=True)
        return np.concatenate([everyone, by_cell], axis=-1)

    @cached_property
    def places(self) -> tuple[Array, Array]:
        """Of the cells of all outputs: those that have sums, and which of these each cell is merged into."""
        if isinstance(self._merged, MergedHistograms):
            return self._merged.merged
        every = np.arange(self.single.cells_of_nodes)
        return every, every


@final
@dataclass(frozen=True, eq=False)
class CurvatureAlong(RoundQuestion):
    """Σ h ⟨direction, row⟩ over the rows of each cell: by how much the gradient changes along a direction.

    h is the Hessian of the row, and ⟨direction, row⟩ the sum of the direction's numbers at the row's cells.
    """

    what: ClassVar[str] = "curvature along a step"
    of: CellSums
    directions: Array
    """Of each output, for the constant and each cell: (outputs, 1 + cells).  At no row they add up to more than 1."""

    def __post_init__(self) -> None:
        if self.directions.shape != (len(self.of.outputs), 1 + int(self._sizes.sum())):
            raise FFGBError("a direction is not of the cells that are asked about")

    @property
    def _sizes(self) -> Array:
        sizes: Array = self.of.cells[self.of.columns].astype(np.int64)
        return sizes

    @property
    def _units(self) -> Array:
        """Of each output: the sum of all Hessians fits in these, and so does that of their products with numbers up
        to 1."""
        units: Array = self.of.units.hessian[self.of.outputs] * (SHORT / EXACT if self.of.units.bits == 32 else 1.0)
        return units

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"along": counted(self.of.places[0].shape)}

    def part(self, here: Here) -> Tensors:
        assert here.family is not None
        assert here.loss is not None
        sizes = self._sizes
        first = np.cumsum(sizes) - sizes
        z = here.points.features(here.family.features)[:, self.of.columns] + first
        f, y = known(here.f), known(here.y)
        h = np.ones(f.shape) if self.of.units.flat else weighed(here, here.loss.curvature(f, y))
        found = np.zeros((len(self.of.outputs), int(sizes.sum())))
        each = zip(found, self.of.outputs, self.directions, self._units, strict=True)
        for tree, (own, output, direction, unit) in enumerate(each):
            along = np.full(len(z), direction[0])
            for cells in z.T:  # column by column, so that no row depends on the others
                along += direction[1 + cells]
            values = whole(h[:, output] * along, unit)
            for outside in self._outside(here, tree, int(output), f.shape[1]):
                values[outside] = 0.0
            own += np.bincount(z.ravel(), np.repeat(values, z.shape[1]), len(own))
        places, merged = self.of.places
        return {"along": np.bincount(merged, found.ravel(), len(places))}

    def _outside(self, here: Here, tree: int, output: int, outputs: int) -> Iterator[Array]:
        """The rows that the version of an output is trained without, and those that its draw leaves out."""
        folds, draws = self.of.folds, self.of.draws
        if folds is not None:
            outside = folds.outside(here.points, output // (outputs // len(folds.without)))
            yield from () if outside is None else (outside,)
        if draws is not None:
            left_out = draws.left_out(here.points, here.round, [tree])
            yield from () if left_out is None else left_out

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        sums = np.add.reduceat(self._spread(own["along"]), np.cumsum(self._sizes) - self._sizes, axis=1)
        if (sums != sums[:, :1]).any():
            raise FFGBError("its sums along a step differ from column to column")

    def _spread(self, sums: Array) -> Array:
        """Sums of merged cells, all at one of those that are merged: (outputs, cells)."""
        found = np.zeros(self.of.places[1].shape)
        found[self.of.places[0]] = sums
        return found.reshape(len(self.of.outputs), -1)

    def total(self, sums: Tensors) -> Array:
        """(outputs, 1 + cells), the sum over all rows first."""
        return self.of.with_all(self._spread(sums["along"]) * self._units[:, None])
