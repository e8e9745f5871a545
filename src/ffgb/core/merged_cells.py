"""Histograms of nodes without cells of few rows.

A bin has many rows of all clients together, and yet few of them may be in one node of a tree.  The gradient of a row
that is alone in a cell would be in the total.  So the server asks for the rows in each cell first (`NodeRows`), merges
cells until each has none or enough, and asks for gradients and Hessians by merged cells alone (`MergedHistograms`).
The sums of the other child of a node are a difference, so the cells of both children have enough rows.

Where versions of a tree are grown without some rows each (folds.py), the difference between two versions is a sum over
these rows.  So the rows that a version is grown without are counted in its cells too, and there must be none or enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.cells import heads
from ffgb.core.exact_sums import counted
from ffgb.core.histograms import SQUARES, Histograms, HistogramsOf
from ffgb.core.questions import Here, RoundQuestion, Sum
from ffgb.core.splits import Layout
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

LEFT_OUT = "rows left out"
"""The array of the rows that versions are grown without."""


@final
@dataclass(frozen=True, eq=False)
class NodeRows(RoundQuestion):
    """Rows in each cell of some nodes; and, of versions, the rows that would be there if they were not left out."""

    what: ClassVar[str] = "rows by bins"
    of: HistogramsOf

    @property
    def sums(self) -> Mapping[str, Sum]:
        rows = self.of.sums["rows"]
        return {"rows": rows, LEFT_OUT: rows} if self._twice else {"rows": rows}

    @property
    def _twice(self) -> bool:
        """Do versions differ by the rows of a fold alone?  Trees that draw their rows differ by many others."""
        return self.of.folds is not None and (self.of.draws is None or self.of.draws.first)

    def part(self, here: Here) -> Tensors:
        found = {"rows": self.of.rows(here)}
        return {**found, LEFT_OUT: self.of.rows(here, outside=True)} if self._twice else found

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        for counts in own.values():
            self.of.check({"rows": counts}, rows, part)

    def total(self, sums: Tensors) -> Sequence[Array]:
        """Of each node, (1, cells); with versions (2, cells)."""
        return self.of.by_node(np.stack([sums[name] for name in self.sums]))


@final
@dataclass(frozen=True, eq=False)
class MergedHistograms(RoundQuestion):
    """Sums of gradients, Hessians and rows in merged cells."""

    what: ClassVar[str] = "sums by bins"
    of: HistogramsOf
    heads: Array
    """Of each cell of the nodes that are asked about, one node after the other: the cell of the same column that has
    its sums, int16."""

    def __post_init__(self) -> None:
        cells, _ = self.of.columns_of_cells
        if self.heads.shape != cells.shape or (self.heads < 0).any() or (self.heads >= cells).any():
            raise FFGBError("a question merges cells that are not there")

    @cached_property
    def merged(self) -> tuple[Array, Array]:
        """The cells that have sums, and which of these each cell is merged into."""
        _, first = self.of.columns_of_cells
        return np.unique(first + self.heads, return_inverse=True)

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape, sums = self.merged[0].shape, self.of.sums
        return {name: each if name == SQUARES else counted(shape, self.of.units.bits) for name, each in sums.items()}

    def _spread(self, sums: Tensors) -> dict[str, Array]:
        """Sums as if they were of single cells, all in one of those that are merged."""
        found, (places, merged) = dict(sums), self.merged
        for name in sums.keys() - {SQUARES}:
            found[name] = np.zeros(len(merged), sums[name].dtype)
            found[name][places] = sums[name]
        return found

    def part(self, here: Here) -> Tensors:
        found, (places, merged) = dict(self.of.part(here)), self.merged
        for name in found.keys() - {SQUARES}:
            found[name] = np.bincount(merged, found[name], len(places))
        return found

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self.of.check(self._spread(own), rows, part)

    def total(self, sums: Tensors) -> Histograms:
        return self.of.total(self._spread(sums))


@final
@dataclass(frozen=True, eq=False)
class MergedColumns:
    """Merged cells of all rows, for each version of f."""

    heads: Array
    """Of each version and cell, the one that has its sums, (versions, cells)."""
    rows: Array
    """(versions, cells)."""
    within: Array
    """The heads as questions have them: places in their columns, one version after the other, int16."""

    @staticmethod
    def of(counts: Sequence[Array], layout: Layout, columns: Array, least: int) -> MergedColumns:
        """From the rows by cell of each version, and those that it is trained without: (2, cells)."""
        cells = layout.cells[columns]
        everything, first = np.arange(int(cells.sum())), np.repeat(np.cumsum(cells) - cells, cells)
        found = np.stack([heads(own, 0.0 * own, everything, layout, columns, least) for own in counts])
        return MergedColumns(found, np.stack([own[0] for own in counts]), (found - first).astype(np.int16).ravel())

    @cached_property
    def shares(self) -> Array:
        """Of each version and cell, its share of the rows that it is merged with, (versions, cells)."""
        together = [np.bincount(at, rows, len(at))[at] for at, rows in zip(self.heads, self.rows, strict=True)]
        shares: Array = self.rows / np.maximum(np.stack(together), 1.0)
        return shares

    def spread(self, sums: Array) -> Array:
        """Sums (versions, 1 + cells) of merged cells, shared out among these by rows; the first is of all rows."""
        found = sums.copy()
        found[:, 1:] = np.take_along_axis(sums[:, 1:], self.heads, axis=1) * self.shares
        return found

    def means(self, terms: Array) -> Array:
        """Terms (versions, 1 + cells) as the means of merged cells."""
        found = terms.copy()
        for own, at, share in zip(found, self.heads, self.shares, strict=True):
            own[1:] = np.bincount(at, own[1:] * share, len(at))[at]
        return found
