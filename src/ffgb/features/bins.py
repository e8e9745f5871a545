"""The columns of a table as bins, by counts of all clients' values: what trees are grown on.

Cuts between bins come from counts of values in intervals, which are narrowed a few times.  Intervals are those of
float32 numbers in their order, so that neither scale nor outliers matter, and nothing has to be known before.  Every
bin has at least so many rows of all clients together, and every count is the same over any split of the rows.

Columns "job=nurse" and "job=clerk" are one column of categories; a column "age missing" says where "age" is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.exact_sums import check_counts
from ffgb.core.maps import FeatureMap
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.sparse_rows import SparseRows, sparse
from ffgb.core.splits import MOST_CELLS, Layout
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option
from ffgb.hardware import available

EDGES = 256
"""Where values are counted, in each column, at a time."""
REFINEMENTS = 2
"""How often there are new edges where the values are."""
HEAVY = 0.05
"""An interval with more than this share of the rows counts as if it had these alone: it may be one value."""
MISSING = " missing"
"""The end of the name of a column that says where another one is missing."""
MOST_ROWS = 2.0**31 - 1
HALVES = 2**16
"""Of the bits of a float32 number."""


def keys(x: Array) -> Array:
    """Float32 numbers as whole numbers in the same order.

    >>> keys(np.array([-1.0, -0.0, 0.0, 1.0], np.float32))
    array([-1065353216,           0,           0,  1065353216])
    """
    bits = (np.ascontiguousarray(x, np.float32) + np.float32(0.0)).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits + 2**31))


def values(key: Array) -> Array:
    """The inverse of `keys`."""
    bits = np.where(key >= 0, key, -key - 2**31)
    return bits.astype(np.int32).view(np.float32)


def _first_edges() -> Array:
    """Powers of two, both signs, and 0."""
    sizes = np.concatenate([np.ldexp(1.0, np.arange(-30, 61)), 1.5 * np.ldexp(1.0, np.arange(36))]).astype(np.float32)
    places = np.concatenate([-keys(sizes), [-1, 0], keys(sizes)])
    return np.sort(places)


@final
@dataclass(frozen=True, eq=False)
class KeyCounts(Question):
    """How many values of each column lie below the first edge, between any two, and above the last; how many miss."""

    what: ClassVar[str] = "counts for bins"
    column: Array
    """Of the inputs, (K,), int32."""
    flag: Array
    """The input that says where it is missing, or −1: (K,), int32."""
    edges: Array
    """Ascending keys, (K, edges), int32."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        columns, edges = self.edges.shape
        return {"counts": Sum((columns, edges + 2), MOST_ROWS, 32, "count")}

    def part(self, here: Here) -> Tensors:
        x = rows_of(here.points.x)
        counts = np.zeros((len(self.column), self.edges.shape[1] + 2))
        for k, edges in enumerate(self.edges):
            if isinstance(x, SparseRows) and self.flag[k] < 0:
                counts[k] = _counts_of_entries(x, int(self.column[k]), edges)
                continue
            # sorting rows once is faster than a search for each
            there = np.sort(column_of(x, self.column[k])[~_gone(x, self.column[k], self.flag[k])])
            up_to = np.searchsorted(keys(there), edges, side="right")
            counts[k, :-1] = np.diff(up_to, prepend=0, append=len(there))
            counts[k, -1] = len(x) - len(there)
        return {"counts": counts}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        check_counts(own["counts"], rows)

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


@final
@dataclass(frozen=True, eq=False)
class CategoryCounts(Question):
    """How many rows have each category; and in how many rows a group of columns is no category at all."""

    what: ClassVar[str] = "counts of categories"
    column: Array
    """Of the inputs, (K,), int32."""
    group: Array
    """Of each, ascending from 0: (K,), int32."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        groups = int(self.group.max()) + 1
        shapes = {"counts": (len(self.column),), "odd": (groups,), "rows": (1,)}
        return {name: Sum(shape, MOST_ROWS, 32, "count") for name, shape in shapes.items()}

    def part(self, here: Here) -> Tensors:
        x = rows_of(here.points.x)
        counts, odd = np.zeros(len(self.column)), np.zeros(int(self.group.max()) + 1)
        for g in range(len(odd)):
            inside = self.group == g
            some = columns_of(x, self.column[inside])
            counts[inside] = (some == 1).sum(axis=0)
            odd[g] = (((some != 0) & (some != 1)).any(axis=1) | ((some == 1).sum(axis=1) > 1)).sum()
        return {"counts": counts, "odd": odd, "rows": np.full(1, float(len(x)))}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        for counts in own.values():
            if (counts < 0).any() or (counts > rows).any():
                raise FFGBError(f"its counts of categories are not from 0 to its {rows} rows")

    def total(self, sums: Tensors) -> tuple[Array, Array, float]:
        return sums["counts"], sums["odd"], float(sums["rows"][0])


def rows_of(x: Array) -> Array | SparseRows:
    """Rows of single numbers, or sparse ones as they are."""
    rows = sparse(x)
    return x.reshape(len(x), -1) if rows is None else rows


def column_of(x: Array | SparseRows, j: int) -> Array:
    """A column, (n,)."""
    return x.column(int(j)) if isinstance(x, SparseRows) else x[:, j]


def columns_of(x: Array | SparseRows, some: Array) -> Array:
    """Some columns in full, (n, k)."""
    return np.stack([x.column(int(j)) for j in some], axis=1) if isinstance(x, SparseRows) else x[:, some]


def _counts_of_entries(x: SparseRows, j: int, edges: Array) -> Array:
    """Counts of a column's values by edges of keys, and how many miss; most values are 0."""
    values = x.entries(j).values
    there = np.sort(keys(values[~np.isnan(values)]))
    zeros = len(x) - len(values)
    up_to = np.searchsorted(there, edges, side="right") + np.where(edges >= 0, zeros, 0)
    own = np.diff(up_to, prepend=0, append=len(there) + zeros)
    return np.append(own, len(values) - len(there))


def _gone(x: Array | SparseRows, column: int, flag: int) -> Array:
    """Where a column is missing."""
    gone: Array = np.isnan(column_of(x, column))
    return gone if flag < 0 else gone | (column_of(x, flag) == 1)


class Column(NamedTuple):
    """A column of trees, and its cells."""

    name: str
    inputs: Array
    flag: int
    cuts: Array
    """Of numbers; of categories the cell of each input."""
    categorical: bool
    bins: int
    missing: bool
    otherwise: int
    """The cell of values that are missing, or of categories that are none of these."""


@final
@dataclass(frozen=True, eq=False)
class Bins(FeatureMap):
    """Cells of columns, (n, C), uint8."""

    names: tuple[str, ...]
    inputs: Array
    """Those of all columns, one column's after another's, int32."""
    flag: Array
    """Of each column, the input that says where it is missing, or −1: (C,), int32."""
    cuts: Array
    """Those of all columns, float32; of categories the cell of each input."""
    first_input: Array
    """Where each column's inputs begin, and where the last one's end: (C + 1,), int32."""
    first_cut: Array
    """The same of its cuts, (C + 1,), int32."""
    bins: Array
    """(C,), int16."""
    missing: Array
    """(C,), bool."""
    categorical: Array
    """(C,), bool."""
    otherwise: Array
    """The cell of what is missing, or unknown: (C,), int16."""

    @staticmethod
    def of(columns: Sequence[Column]) -> Bins:
        def ends(sizes: list[int]) -> Array:
            return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)

        empty = np.empty(0)
        return Bins(
            tuple(c.name for c in columns),
            np.concatenate([empty, *(c.inputs for c in columns)]).astype(np.int32),
            np.array([c.flag for c in columns], np.int32),
            np.concatenate([empty, *(c.cuts for c in columns)]).astype(np.float32),
            ends([len(c.inputs) for c in columns]),
            ends([len(c.cuts) for c in columns]),
            np.array([c.bins for c in columns], np.int16),
            np.array([c.missing for c in columns], bool),
            np.array([c.categorical for c in columns], bool),
            np.array([c.otherwise for c in columns], np.int16),
        )

    def __post_init__(self) -> None:
        sizes = {len(a) for a in (self.names, self.flag, self.bins, self.missing, self.categorical, self.otherwise)}
        if sizes != {len(self.first_input) - 1} or sizes != {len(self.first_cut) - 1}:
            raise FFGBError("bins are not of as many columns as there are names")

    @property
    def dimension(self) -> int:
        return len(self.names)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.bins, self.missing, self.categorical)

    def inputs_of(self, c: int) -> Array:
        """The inputs of a column."""
        return self.inputs[self.first_input[c] : self.first_input[c + 1]]

    def cuts_of(self, c: int) -> Array:
        """The cuts of a column of numbers; of categories the cell of each input."""
        return self.cuts[self.first_cut[c] : self.first_cut[c + 1]]

    def of_many(self, x: Array) -> Array:
        return self(x)  # cells are exact, and a column's stay in one piece

    def __call__(self, x: Array) -> Array:
        flat = rows_of(x)
        if isinstance(flat, SparseRows):
            _check_cells(len(x) * self.dimension)
        else:
            flat = np.asarray(flat, np.float32)
        cells = np.empty((len(x), self.dimension), np.uint8, order="F")
        for c in range(self.dimension):
            cuts = self.cuts_of(c)
            if self.categorical[c]:
                some = columns_of(flat, self.inputs_of(c)) == 1
                cells[:, c] = np.where(some.any(axis=1), cuts.astype(np.uint8)[some.argmax(axis=1)], self.otherwise[c])
                continue
            column = int(self.inputs_of(c)[0])
            if isinstance(flat, SparseRows):
                rows, there = flat.entries(column)
                cells[:, c] = np.searchsorted(cuts, np.float32(0.0))
                cells[rows, c] = np.searchsorted(cuts, there)
            else:
                cells[:, c] = places(cuts, flat[:, column])
            if self.missing[c]:
                cells[_gone(flat, column, int(self.flag[c])), c] = self.otherwise[c]
        return cells


def _check_cells(cells: int) -> None:
    """Raise an FFGBError if the cells of sparse rows, a byte each, do not fit."""
    if cells > (have := available()) / 2:
        raise FFGBError(
            f"trees keep a byte for each cell of a table, sparse or not: {cells / 1e9:,.1f} GB, and "
            f"{have / 1e9:,.1f} GB are free; choose {option('learner', 'linear')}, or fewer columns"
        )


def places(cuts: Array, x: Array) -> Array:
    """How many cuts each float32 number is above; NaN is above all.

    The upper half of a number's bits says it for most: those with a cut in their half are searched for.
    """
    if len(x) < HALVES:
        searched: Array = np.searchsorted(cuts, x)
        return searched
    halves = np.arange(HALVES, dtype=np.uint32) << np.uint32(16)
    low = np.searchsorted(cuts, halves.view(np.float32))
    high = np.searchsorted(cuts, (halves | np.uint32(HALVES - 1)).view(np.float32))
    half = np.ascontiguousarray(x, np.float32).view(np.uint32) >> np.uint32(16)
    found: Array = low.astype(np.uint8)[half]
    unsure = np.flatnonzero((low != high)[half])
    found[unsure] = np.searchsorted(cuts, x[unsure])
    return found


def bins_of(ask: Ask, names: Sequence[str], inputs: int, most: int, least: int, a_row: float = math.inf) -> Bins:
    """Columns with up to `most` bins, each of which at least `least` rows of all clients are in.

    Where all columns would have more than `a_row` cells together for each row, bins have more rows.
    """
    if not 2 <= most < MOST_CELLS:
        raise FFGBError(f"a column has from 2 to {MOST_CELLS - 1} bins, not {most}")
    known = [names[j] if j < len(names) else f"x{j}" for j in range(inputs)]
    groups, flags, rows = _true_categories(ask, _groups(known), _flags(known))
    taken = {j for group in groups for j in group.columns} | set(flags.values())
    numeric = np.array([j for j in range(inputs) if j not in taken], np.int32)
    flag = np.array([flags.get(int(j), -1) for j in numeric], np.int32)
    counts = list(_counted(ask, numeric, flag)) if len(numeric) else []
    if counts:
        rows = counts[-1].rows + counts[-1].gone
    while True:
        found: dict[int, Column] = {}
        for j, f, counted in zip(numeric, flag, counts, strict=True):
            found[int(j)] = _of_numbers(known[j], int(j), int(f), counted, most, least)
        for group in groups:
            found[group.columns[0]] = _of_categories(group, rows, most, least)
        bins = Bins.of([found[j] for j in sorted(found)])
        cells = int(bins.layout.cells[bins.layout.usable].sum())
        if cells <= a_row * rows or 2 * least > rows:
            return bins
        least = math.ceil(1.25 * least)


class Group(NamedTuple):
    """Columns that are one category's."""

    name: str
    columns: list[int]
    counts: Array
    """Rows of each."""


class Counted(NamedTuple):
    """What is known of a column of numbers."""

    at: Array
    """Keys, ascending."""
    below: Array
    """How many rows are at or below each."""
    rows: float
    gone: float
    """Rows where it is missing."""


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Columns that are one category's, by its name."""
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        if "=" in name:
            groups.setdefault(name.partition("=")[0], []).append(j)
    return groups


def _flags(names: Sequence[str]) -> dict[int, int]:
    """The column that says where another one is missing, by that one's place."""
    place = {name: j for j, name in enumerate(names) if "=" not in name}
    ends = {j: name.removesuffix(MISSING) for j, name in enumerate(names) if name.endswith(MISSING)}
    return {place[name]: j for j, name in ends.items() if name in place}


def _true_categories(
    ask: Ask, groups: dict[str, list[int]], flags: dict[int, int]
) -> tuple[list[Group], dict[int, int], float]:
    """Groups of columns that are zeros and at most a one in every row, the same of flags, and the number of rows."""
    every = [*groups.values(), *([flag] for flag in flags.values())]
    if not every:
        return [], {}, 0.0
    group = np.repeat(np.arange(len(every), dtype=np.int32), [len(g) for g in every])
    counts, odd, rows = ask(CategoryCounts(np.concatenate(every).astype(np.int32), group))
    found = [Group(name, g, counts[group == k]) for k, (name, g) in enumerate(groups.items()) if not odd[k]]
    sound = {j: flag for k, (j, flag) in enumerate(flags.items()) if not odd[len(groups) + k]}
    return found, sound, rows


def _counted(ask: Ask, column: Array, flag: Array) -> list[Counted]:
    """Counts at edges that are moved to where the values are."""
    edges = np.tile(_first_edges(), (len(column), 1))
    found = [Counted(np.empty(0, np.int64), np.empty(0), 0.0, 0.0)] * len(column)
    for refinement in range(REFINEMENTS + 1):
        counts = ask(KeyCounts(column, flag, edges.astype(np.int32)))
        for k, before in enumerate(found):
            at, first = np.unique(np.concatenate([before.at, edges[k]]), return_index=True)
            below = np.concatenate([before.below, np.cumsum(counts[k, :-2])])[first]
            found[k] = Counted(at, below, float(counts[k, :-1].sum()), float(counts[k, -1]))
        if refinement < REFINEMENTS:
            edges = np.stack([_refined(each.at, each.below, each.rows) for each in found])
    return found


def _refined(at: Array, below: Array, rows: float) -> Array:
    """New edges, most where most rows are: an interval is divided into equal parts."""
    ends = np.concatenate([[-(2**31) + 1], at, [2**31 - 1]])
    mass = np.minimum(np.diff(np.concatenate([[0.0], below, [rows]])), HEAVY * rows)
    width = np.diff(ends)
    mass[width <= 1] = 0.0
    if not mass.sum() > 0.0:
        return np.full(EDGES, ends[-1])
    share = EDGES * mass / mass.sum()
    number = np.minimum(np.floor(share).astype(np.int64), width - 1)
    for i in np.argsort(number - share, kind="stable")[: EDGES - number.sum()]:
        number[i] += number[i] < width[i] - 1
    edges = [ends[i] + (np.arange(1, number[i] + 1) * width[i]) // (number[i] + 1) for i in np.flatnonzero(number)]
    found = np.concatenate(edges)
    return np.sort(np.concatenate([found, np.full(EDGES - len(found), found[-1])]))


def _of_numbers(name: str, column: int, flag: int, counted: Counted, most: int, least: int) -> Column:
    """A column of numbers: cuts in the middle between values, and a cell for missing ones if enough are."""
    at, below, rows, gone = counted
    levels = np.unique(below[(below > 0) & (below < rows)])
    first, last = np.searchsorted(below, levels), np.searchsorted(below, levels, side="right") - 1
    chosen = chosen_levels(levels, rows, most, least)
    low, high = values(at[first[chosen]]), values(at[last[chosen]])
    cuts = (0.5 * (low.astype(np.float64) + high)).astype(np.float32)
    missing = gone >= least
    bins = len(cuts) + 1
    return Column(name, np.array([column]), flag if missing else -1, cuts, False, bins, missing, bins)


def chosen_levels(levels: Array, rows: float, most: int, least: int) -> list[int]:
    """Which levels to cut at, given how many rows are below each: about equal bins, heavy values each in its own.

    >>> chosen_levels(np.array([10.0, 20.0, 30.0, 90.0]), 100.0, 3, 5)
    [2, 3]
    """
    mass = np.diff(np.concatenate([[0.0], levels, [rows]]))
    heavy = mass >= rows / most
    target = float(least)
    if len(levels) >= most:
        target = max(target, float(mass[~heavy].sum()) / max(1, most - int(heavy.sum())))
    while True:
        cuts: list[int] = []
        inside = 0.0
        for i in range(len(levels)):
            inside += mass[i]
            if inside >= target or (heavy[i + 1] and inside >= least):
                cuts.append(i)
                inside = 0.0
        while cuts and rows - levels[cuts[-1]] < least:
            cuts.pop()
        if len(cuts) < most:
            return cuts
        target *= 1.1
        heavy[:] = False


def _of_categories(group: Group, rows: float, most: int, least: int) -> Column:
    """A column of categories: those with too few rows are together in one cell, with all that is none of them."""
    name, columns, counts = group
    order = np.argsort(-counts, kind="stable")
    own = [int(k) for k in order[: most - 1] if counts[k] >= least]
    while own and 0 < rows - counts[own].sum() < least:
        own.pop()
    rest = rows - counts[own].sum() > 0
    cells = np.full(len(columns), len(own) if rest else 0)
    for cell, k in enumerate(sorted(own)):
        cells[k] = cell
    otherwise = len(own) if rest else int(cells[order[0]])
    if not rest:  # a category that no one has goes with the one that most have
        cells[[k for k in range(len(columns)) if k not in own]] = otherwise
    return Column(name, np.array(columns), -1, cells, True, len(own), rest, otherwise)
