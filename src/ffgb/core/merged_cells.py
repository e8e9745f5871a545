"""Histograms of nodes without cells of few rows.

A bin has many rows of all clients together, and yet few of them may be in one node of a tree.  The gradient of a row
that is alone in a cell would be in the total.  So the server asks for the rows in each cell first (`NodeRows`), merges
cells until each has none or enough, and asks for gradients and Hessians by merged cells alone (`MergedHistograms`).
The sums of the other child of a node are a difference, so the cells of both children have enough rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.exact_sums import counted
from ffgb.core.histograms import SQUARES, Histograms, HistogramsOf
from ffgb.core.questions import Here, RoundQuestion, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True, eq=False)
class NodeRows(RoundQuestion):
    """Rows in each cell of some nodes."""

    what: ClassVar[str] = "rows by bins"
    of: HistogramsOf

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"rows": self.of.sums["rows"]}

    def part(self, here: Here) -> Tensors:
        return {"rows": self.of.rows(here)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self.of.check(own, rows, part)

    def total(self, sums: Tensors) -> Sequence[Array]:
        return self.of.by_node(sums["rows"])


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
    def _merged(self) -> tuple[Array, Array]:
        """The cells that have sums, and which of these each cell is merged into."""
        _, first = self.of.columns_of_cells
        return np.unique(first + self.heads, return_inverse=True)

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape, sums = self._merged[0].shape, self.of.sums
        return {name: each if name == SQUARES else counted(shape, self.of.units.bits) for name, each in sums.items()}

    def _spread(self, sums: Tensors) -> dict[str, Array]:
        """Sums as if they were of single cells, all in one of those that are merged."""
        found, (places, merged) = dict(sums), self._merged
        for name in sums.keys() - {SQUARES}:
            found[name] = np.zeros(len(merged), sums[name].dtype)
            found[name][places] = sums[name]
        return found

    def part(self, here: Here) -> Tensors:
        found, (places, merged) = dict(self.of.part(here)), self._merged
        for name in found.keys() - {SQUARES}:
            found[name] = np.bincount(merged, found[name], len(places))
        return found

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        self.of.check(self._spread(own), rows, part)

    def total(self, sums: Tensors) -> Histograms:
        return self.of.total(self._spread(sums))
