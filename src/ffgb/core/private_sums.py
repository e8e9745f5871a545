"""The questions of the private additive model: histograms, two-way counts, and sums of residuals by cells.

In each of them a row is in one cell of each block, so that its norm does not depend on where cells begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import ClassVar, Literal, final

import numpy as np
from scipy.special import expit, softmax

from ffgb.core.maps import FeatureMap
from ffgb.core.private_question import PrivateQuestion, clipped
from ffgb.core.questions import Here
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

LEVELS = (16, 64, 256, 1024)
"""Cells of a column of numbers, each level within the one before."""
FINEST = LEVELS[-1]
HALF = 2
"""A row counts in four levels with half of a weight each: as much as in one cell with a whole one."""


@final
@dataclass(frozen=True, eq=False)
class ColumnCounts(PrivateQuestion):
    """Rows in each cell of each column: numbers at nested levels between public bounds, and public categories."""

    what: ClassVar[str] = "counts with noise"
    inputs: Array
    """Of all columns, one column's after another's, int32: of numbers one, of categories one each."""
    first_input: Array
    """Where each column's inputs begin, and where the last one's end: (C + 1,), int32."""
    flag: Array
    """The input that says where a column is missing, or −1: (C,), int32."""
    low: Array
    high: Array
    """Of numbers; of categories NaN: (C,), float64."""
    unit: float
    mu: float
    shares: int
    rows: int
    seed: int

    @property
    def weight(self) -> int:
        """Of a row in one cell, in units: an even number."""
        return HALF * max(round(1.0 / (HALF * self.unit)), 1)

    @property
    def square(self) -> int:
        return len(self.low) * self.weight**2

    @property
    def numbers(self) -> Array:
        """Columns of numbers."""
        return np.flatnonzero(~np.isnan(self.low))

    @property
    def categories(self) -> Array:
        """Columns of categories."""
        return np.flatnonzero(np.isnan(self.low))

    @cached_property
    def sizes(self) -> list[int]:
        """Cells of each column of categories, with one for what is none of them."""
        return [int(self.first_input[c + 1] - self.first_input[c]) + 1 for c in self.categories]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        levels = {f"level {cells}": (len(self.numbers), cells) for cells in LEVELS}
        return {**levels, "missing": (len(self.numbers),), "categories": (sum(self.sizes),)}

    def part(self, here: Here) -> Tensors:
        x = here.points.x.reshape(len(here.points), -1)
        found = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        for k, c in enumerate(self.numbers.tolist()):
            gone, cells = self._cells(x, c)
            found["missing"][k] = self.weight * gone.sum()
            for level in LEVELS:
                coarse = cells[~gone] // (FINEST // level)
                found[f"level {level}"][k] = self.weight // HALF * np.bincount(coarse, minlength=level)
        ends = np.cumsum(self.sizes).tolist()
        for c, size, end in zip(self.categories, self.sizes, ends, strict=True):
            some = x[:, self.inputs[self.first_input[c] : self.first_input[c + 1]]] == 1
            cell = np.where(some.any(axis=1), some.argmax(axis=1), size - 1)
            found["categories"][end - size : end] = self.weight * np.bincount(cell, minlength=size)
        return found

    def _cells(self, x: Array, c: int) -> tuple[Array, Array]:
        """Where a column is missing, and the finest cells of its values; bounds hold for those beyond them."""
        column = x[:, int(self.inputs[self.first_input[c]])].astype(np.float64)
        gone = np.isnan(column)
        if self.flag[c] >= 0:
            gone = gone | (x[:, self.flag[c]] == 1)
        place = (np.where(gone, 0.0, column) - self.low[c]) / (self.high[c] - self.low[c]) * FINEST
        return gone, np.clip(np.ceil(np.nan_to_num(place)) - 1.0, 0, FINEST - 1).astype(np.int64)

    def total(self, sums: Tensors) -> Tensors:
        """Counts of rows."""
        half = {f"level {cells}" for cells in LEVELS}
        return {name: a / (self.weight / HALF if name in half else self.weight) for name, a in sums.items()}


@final
@dataclass(frozen=True, eq=False)
class CellBlocks:
    """Cells of one column, or of pairs of two columns' groups of cells: a row is in one cell of each block."""

    columns: Array
    """(B, 2), int32; the second is −1 where there is one only."""
    sizes: Array
    """Groups of each, 1 where there is no second: (B, 2), int32."""
    groups: Array
    """Of each cell of the first column, then of the second: of all blocks, int16."""
    cells: Array
    """Of each column of the table, (C,), int16."""

    def __post_init__(self) -> None:
        if self.columns.shape != self.sizes.shape or self.columns.ndim != 2 or self.columns.shape[1] != 2:
            raise FFGBError("blocks of cells have two columns each")

    @staticmethod
    def of(parts: list[tuple[tuple[int, Array], ...]], cells: Array) -> CellBlocks:
        """From columns with the group of each of their cells, one or two a block."""
        columns = np.array([[a[0], b[0][0] if b else -1] for a, *b in parts], np.int32).reshape(-1, 2)
        sizes = np.array([[a[1].max() + 1, b[0][1].max() + 1 if b else 1] for a, *b in parts], np.int32).reshape(-1, 2)
        groups = np.concatenate([np.empty(0), *(g for part in parts for _, g in part)]).astype(np.int16)
        return CellBlocks(columns, sizes, groups, cells)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def of_each(self) -> Array:
        """Cells of each block."""
        found: Array = self.sizes.prod(axis=1)
        return found

    @property
    def starts(self) -> Array:
        """Where the cells of each block begin, and where the last one's end."""
        return np.concatenate([[0], np.cumsum(self.of_each)])

    def maps(self, block: int) -> tuple[Array, Array | None]:
        """The group of each cell of the first column, and of the second."""
        ends = np.concatenate(
            [[0], np.cumsum(np.where(self.columns < 0, 0, self.cells[self.columns]).astype(np.int64))]
        )
        a, b, c = ends[2 * block : 2 * block + 3]
        return self.groups[a:b], self.groups[b:c] if self.columns[block, 1] >= 0 else None

    def codes(self, z: Array) -> Iterator[tuple[int, int, Array]]:
        """Of each block where its cells begin, how many they are, and the cell of each row."""
        for k, (start, size) in enumerate(zip(self.starts, self.of_each.tolist(), strict=False)):
            first, second = self.maps(k)
            a, b = self.columns[k]
            # whatever a server says of cells, no row makes this fail: a failure would tell of it
            code = np.take(first, z[:, a], mode="clip").astype(np.int64)
            if second is not None:
                code = code * int(self.sizes[k, 1]) + np.take(second, z[:, b], mode="clip")
            yield int(start), size, np.clip(code, 0, size - 1)

    def joined(self, other: CellBlocks) -> CellBlocks:
        """These, and then others."""
        return CellBlocks(
            np.concatenate([self.columns, other.columns]),
            np.concatenate([self.sizes, other.sizes]),
            np.concatenate([self.groups, other.groups]),
            self.cells,
        )


@final
@dataclass(frozen=True, eq=False)
class PairCounts(PrivateQuestion):
    """Rows in each cell of each block: coarse counts of all pairs of columns."""

    what: ClassVar[str] = "two-way counts with noise"
    features: FeatureMap
    blocks: CellBlocks
    unit: float
    mu: float
    shares: int
    rows: int
    seed: int

    @property
    def weight(self) -> int:
        return max(round(1.0 / self.unit), 1)

    @property
    def square(self) -> int:
        return len(self.blocks) * self.weight**2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"counts": (int(self.blocks.starts[-1]),)}

    def part(self, here: Here) -> Tensors:
        z = here.points.features(self.features)
        counts = [np.bincount(code, minlength=size) for _, size, code in self.blocks.codes(z)]
        return {"counts": self.weight * np.concatenate([np.empty(0), *counts])}

    def total(self, sums: Tensors) -> Array:
        return sums["counts"] / self.weight


@final
@dataclass(frozen=True, eq=False)
class ResidualSums(PrivateQuestion):
    """Sums of residuals and of curvature in each cell of each block, at a model of such blocks."""

    what: ClassVar[str] = "sums of residuals with noise"
    features: FeatureMap
    blocks: CellBlocks
    """Those that are asked about."""
    task: Literal["binary", "classes", "numbers"]
    constant: Array
    """(c,)."""
    model: CellBlocks
    terms: Array
    """Of the cells of the model, (c, cells)."""
    centre: float
    scale: float
    """Targets that are numbers are trained on as (y − centre)/scale."""
    reach: float
    """Residuals of numbers are clipped here."""
    factor: float
    """What curvature is multiplied with, beside residuals."""
    norm: float
    """Of a row's residuals and curvature in one block: longer ones are clipped."""
    squares: float
    """What squared residuals are multiplied with; 0: they are not asked for."""
    unit: float
    mu: float
    shares: int
    rows: int
    seed: int

    @property
    def in_block(self) -> int:
        """The squared norm of what a row adds to one block, at most, in units."""
        return max(int((self.norm / self.unit) ** 2), 1)

    @property
    def in_squares(self) -> int:
        """The most that a row adds to the sum of squares, in units."""
        return int(self.squares * self.reach**2 / self.unit)

    @property
    def square(self) -> int:
        return len(self.blocks) * self.in_block + self.in_squares**2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        whole = (len(self.constant), int(self.blocks.starts[-1]))
        squares = {"squares": (1,)} if self.squares else {}
        return {"residual": whole, "curvature": whole, **squares}

    def part(self, here: Here) -> Tensors:
        z = here.points.features(self.features)
        residual, curvature = self.row_values(self.model_at(z), here.points.y)
        ints = clipped(np.concatenate([residual, self.factor * curvature], axis=1) / self.unit, self.in_block)
        found = self.by_cell(z, ints)
        if self.squares:
            of_row = self.squares * np.square(residual).sum(axis=1, keepdims=True) / self.unit
            found["squares"][0] = clipped(of_row, self.in_squares**2).sum()
        return found

    def by_cell(self, z: Array, ints: Array) -> dict[str, Array]:
        """Sums over rows, in their cells, of each row's residuals and curvature (n, 2c) as whole numbers."""
        found, c = {name: np.zeros(shape) for name, shape in self.shapes.items()}, len(self.constant)
        for start, size, code in self.blocks.codes(z):
            for k in range(c):
                found["residual"][k, start : start + size] = np.bincount(code, ints[:, k], size)
                found["curvature"][k, start : start + size] = np.bincount(code, ints[:, c + k], size)
        return found

    def model_at(self, z: Array) -> Array:
        """The model at the rows, (n, c)."""
        f = np.tile(self.constant.astype(np.float64), (len(z), 1))
        for start, _, code in self.model.codes(z):
            f += self.terms[:, start:][:, code].T
        return f

    def row_values(self, f: Array, y: Array) -> tuple[Array, Array]:
        """Residuals and curvature of each row, (n, c) each."""
        if self.task == "numbers":
            aim = (np.nan_to_num(np.asarray(y, np.float64)).reshape(len(f), 1) - self.centre) / self.scale
            return np.clip(f - np.clip(aim, -1.0, 1.0), -self.reach, self.reach), np.full(f.shape, self.reach)
        label = np.asarray(y).reshape(-1)
        if self.task == "binary":
            p = expit(f)
            return p - (label == 1)[:, None], p * (1.0 - p)
        p = softmax(f, axis=1)
        return p - (label[:, None] == np.arange(f.shape[1])), p * (1.0 - p)

    def total(self, sums: Tensors) -> tuple[Array, Array, float]:
        """Residuals and curvature in each cell, as they are, and the mean square times the rows."""
        # of numbers the curvature is 1
        one = self.factor * (self.reach if self.task == "numbers" else 1.0)
        mean = float(sums["squares"][0]) * self.unit / self.squares if self.squares else math.nan
        return sums["residual"] * self.unit, sums["curvature"] * self.unit / one, mean


def all_pairs(groups: list[Array], cells: Array) -> CellBlocks:
    """A block for each pair of columns, given the group of each of their cells."""
    return CellBlocks.of([((i, groups[i]), (j, groups[j])) for i, j in combinations(range(len(groups)), 2)], cells)
