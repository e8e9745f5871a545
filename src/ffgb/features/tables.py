"""Feature maps for tables: steps, random oblivious trees, and random waves on ranks.

All of them see a column through its quantiles, so that scale, skew and outliers do not matter.  Quantiles come from
counts: clients are asked how many of their values lie in each of some intervals, a few times, and the intervals are
narrowed where the values are.  Only totals over clients are used.

A difference of two totals is a total over the rows in between.  So at least `least` rows of all clients together lie
between two neighbouring thresholds of a column, and on either side of every threshold.  The same holds for the rows
that are in none of a column's categories, for those in an interval that are not missing, and for the leaf of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np

from ffgb.core.maps import FeatureMap, in_blocks
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.seeds import stream
from ffgb.core.sparse_rows import SparseRows, sparse
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.features.basic import cosines

EDGES = 128
"""Where values are counted, in each column."""

REFINEMENTS = 3
"""How often the edges are moved to where the values are."""

ENOUGH_STEPS, MANY_FEATURES = 8, 4096
"""Steps of a column at least, unless all columns together have more than so many: a Gram of D features takes 33 D²
bytes."""

LEAST = 10
"""Rows of all clients together that every interval, category, flag and leaf has, unless a setting says otherwise."""

CLOSE = 0.01
"""Ends of a column are so close, in parts of the distance between them."""

MISSING = "missing"
"""The column "age missing" says which values of the column "age" are missing."""

HEAVY = 0.05
"""A value that more than this share of the rows has (the zeros of a column of gains) counts as if only these had it:
else all quantiles would fall on it."""


@final
@dataclass(frozen=True, eq=False)
class Histogram(Question):
    """How many values of each column lie below the first edge, between any two, and above the last."""

    what: ClassVar[str] = "counts"
    edges: Array
    """(columns, edges), ascending."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        columns, edges = self.edges.shape
        return {"counts": Sum((columns, edges + 1), 2.0**31 - 1, 32, "count")}

    def part(self, here: Here) -> Tensors:
        rows = sparse(here.points.x)
        if rows is not None:
            return {"counts": np.array([self._of_entries(rows, j) for j in range(len(self.edges))], np.float64)}
        x = np.asarray(here.points.x, np.float32).reshape(len(here.points), -1)
        counts = [
            np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
            for column, edges in zip(x.T, self.edges, strict=True)
        ]
        return {"counts": np.array(counts, np.float64)}

    def _of_entries(self, x: SparseRows, j: int) -> Array:
        """Counts of a column's values, most of which are 0."""
        edges, values = self.edges[j], x.entries(j).values
        counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
        counts[np.searchsorted(edges, np.float32(0.0))] += len(x) - len(values)
        return counts

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        counts = own["counts"]
        if (counts < 0).any():
            raise FFGBError("its counts are negative")
        # a missing value is counted, too: after the last edge
        found = counts.sum(axis=1)
        if (wrong := found != rows).any():
            raise FFGBError(f"its column {np.argmax(wrong)} has {found[wrong][0]:g} values, and the client {rows} rows")

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


@final
@dataclass(frozen=True, eq=False)
class Columns:
    """What maps know of a table's columns: thresholds at the quantiles, and which columns are one category's."""

    cuts: Array
    """(columns, most): ascending thresholds between values that occur, filled up with infinity."""
    groups: tuple[int, ...]
    """The group of each column: those of a category, coded one-hot, share one."""

    @cached_property
    def count(self) -> Array:
        """Thresholds of each column; none if the column is constant."""
        count: Array = np.isfinite(self.cuts).sum(axis=1)
        return count

    @cached_property
    def units(self) -> list[Array]:
        """Columns that belong together, constant ones left out."""
        groups = np.asarray(self.groups)
        units = [np.flatnonzero((groups == g) & (self.count > 0)) for g in np.unique(groups)]
        return [unit for unit in units if len(unit)]

    def ranks(self, x: Array) -> Array:
        """Each column as its place among its thresholds, from 0 to 1."""
        flat = np.ascontiguousarray(x, np.float32).reshape(len(x), len(self.cuts))
        ranks = np.zeros(flat.shape, np.float32)
        for j in np.flatnonzero(self.count):
            cuts = self.cuts[j, : self.count[j]]
            ranks[:, j] = (
                flat[:, j] > cuts[0]
                if len(cuts) == 1
                else np.interp(flat[:, j], cuts, np.linspace(0.0, 1.0, len(cuts)))
            )
        return ranks


@final
@dataclass(frozen=True, eq=False)
class Seen:
    """What counts of all clients' values tell about a table."""

    columns: Columns
    low: Array
    high: Array
    """(columns,), float32: as many rows as it takes are at or below the one, and as many above the other; both are 0
    for columns that have too few rows apart from their most common value."""


def look(ask: Ask, moments: Moments, names: Sequence[str], least: int = LEAST) -> Seen:
    """Find thresholds by counts of all clients' values.  Names like "job=nurse" and "job=clerk" make one category."""
    inputs, spread = len(moments.mean), np.sqrt(moments.variance)[:, None]
    # at first far out and dense at the mean, as nothing else is known
    edges = moments.mean[:, None] + spread * np.sinh(np.linspace(-4.0, 4.0, EDGES))
    rounds: list[tuple[Array, Array]] = []
    for _ in range(REFINEMENTS + 1):
        edges = _ascending(edges)
        counts = ask(Histogram(edges))
        rounds.append((edges, np.cumsum(counts, axis=1)))
        refined = _ascending(_refined(edges, counts))
        edges = np.array([_where_many(e, _of_column(rounds, j), least) for j, e in enumerate(refined)])
    found = [_of_column(rounds, j) for j in range(inputs)]
    flags = _flags(names, inputs)
    cuts = [_cuts(counted, least) for counted in found]
    missing = {j: _above(found[flag], cuts[flag]) for j, flag in flags.items() if len(cuts[flag])}
    cuts = [_cuts(found[j], least, missing[j]) if j in missing else own for j, own in enumerate(cuts)]
    known: dict[str, int] = {}
    named = [names[j].partition("=")[0] if j < len(names) and "=" in names[j] else f"#{j}" for j in range(inputs)]
    groups = tuple(known.setdefault(name, len(known)) for name in named)
    members: list[list[int]] = [[] for _ in known]
    for j, g in enumerate(groups):
        members[g].append(j)
    for unit in members:
        for j in _joining_the_rest({j: _above(found[j], cuts[j]) for j in unit}, found[0].rows, least):
            cuts[j] = np.empty(0)
    most = max(1, *(len(c) for c in cuts))
    padded = np.array([np.concatenate([c, np.full(most - len(c), np.inf)]) for c in cuts], np.float32)
    ends = [_ends(counted, least) if len(c) else (0.0, 0.0) for counted, c in zip(found, cuts, strict=True)]
    low, high = np.array(ends, np.float32).T
    return Seen(Columns(padded, groups), low, high)


def _ascending(edges: Array) -> Array:
    """As float32, in which values are compared, and ascending."""
    return np.maximum.accumulate(edges.astype(np.float32), axis=1)


def _refined(edges: Array, counts: Array) -> Array:
    """Edges with about equally many values between any two, heavy values counted in part."""
    rows = counts.sum(axis=1, keepdims=True)
    mass = np.minimum(counts, HEAVY * rows)
    level = np.cumsum(mass, axis=1)
    refined = np.empty(edges.shape)
    targets = (np.arange(EDGES) + 0.5) / EDGES
    for j in range(len(edges)):
        refined[j] = np.interp(targets * level[j, -1], level[j, :-1], edges[j].astype(np.float64))
    return refined


@final
@dataclass(frozen=True, eq=False)
class _Counted:
    """One column: where its values were counted, and how many are at or below each of these edges."""

    edges: Array
    below: Array
    last: Array
    """Which of them are of the last round."""
    rows: int


def _of_column(rounds: Sequence[tuple[Array, Array]], j: int) -> _Counted:
    """All rounds' edges, the last round's first."""
    edges = np.concatenate([e[j] for e, _ in reversed(rounds)]).astype(np.float64)
    below = np.concatenate([b[j, :-1] for _, b in reversed(rounds)])
    return _Counted(edges, below, np.arange(len(edges)) < EDGES, int(rounds[0][1][j, -1]))


def _where_many(edges: Array, counted: _Counted, least: int) -> Array:
    """Edges that may split an interval with enough rows for two; others move to where was counted before.

    A smaller interval would be merged again.  To count in it would only tell where single values lie.
    """
    order = np.argsort(counted.edges, kind="stable")
    known, below = counted.edges[order], counted.below[order]
    place = np.searchsorted(known, edges.astype(np.float64))
    rows = np.diff(below, prepend=0.0, append=counted.rows)[place]
    moved = known[np.minimum(place, len(known) - 1)].astype(np.float32)
    return np.where(rows >= 2 * least, edges, moved)


def _cuts(counted: _Counted, least: int, missing: int = 0) -> Array:
    """Of edges that separate the same rows, the middle one; none that separates too few.

    The last edges have the quantiles; earlier ones tell apart values that those have lost, the most rows first.
    """
    below, rows = counted.below, counted.rows
    levels = _merged(np.unique(below[(below > 0) & (below < rows)]), rows, least, missing)
    last = np.isin(levels, below[counted.last])
    known = np.concatenate([[0.0], levels[last], [rows]])
    place = np.searchsorted(known, levels)
    gap = np.minimum(levels - known[place - 1], known[place] - levels)
    gap[last] = np.inf
    levels = np.sort(levels[np.argsort(-gap, kind="stable")[:EDGES]])
    same = [counted.edges[below == level] for level in levels]
    return np.array([0.5 * (e.min() + e.max()) for e in same])


def _merged(levels: Array, rows: int, least: int, missing: int) -> Array:
    """As many of these levels as can be, from both ends on, with enough rows below, between and above them.

    If rows are missing their values, these all lie in one interval, and a column of its own tells who they are.  So in
    an interval with more rows than these there must be enough others.
    """

    def enough(gap: float) -> bool:
        return gap >= least and not missing < gap < missing + least

    middle = int(np.searchsorted(levels, 0.5 * rows))
    low, high = [0.0], [float(rows)]
    for level in levels[:middle].tolist():
        if enough(level - low[-1]):
            low.append(level)
    for level in levels[middle:][::-1].tolist():
        if enough(high[-1] - level):
            high.append(level)
    ends = [*low, *reversed(high)]
    while len(ends) > 2:  # where the two meet, intervals may be too small
        gaps = np.diff(ends).tolist()
        small = [k for k, gap in enumerate(gaps) if not enough(gap)]
        if not small:
            break
        k = min(small, key=lambda k: gaps[k])
        left = k == len(gaps) - 1 or (k > 0 and gaps[k - 1] <= gaps[k + 1])
        del ends[k if left else k + 1]
    return np.array(ends[1:-1])


def _flags(names: Sequence[str], inputs: int) -> dict[int, int]:
    """For each column that has one, the column that says which of its values are missing."""
    places = {name: j for j, name in enumerate(names[:inputs])}
    return {j: places[flag] for name, j in places.items() if (flag := f"{name} {MISSING}") in places}


def _above(counted: _Counted, cuts: Array) -> int:
    """Rows above the last threshold: those of a category, or with a flag; none if the column has no threshold."""
    return int(counted.rows - counted.below[counted.edges <= cuts[-1]].max()) if len(cuts) else 0


def _joining_the_rest(rows: Mapping[int, int], total: int, least: int) -> list[int]:
    """Categories of one column, by their rows, that must count as none of the known ones, the smallest first.

    Rows that are in none of the others are no fewer than it takes; or there are none at all.
    """
    left = sorted((j for j in rows if rows[j]), key=lambda j: (rows[j], j))
    rest, joining = total - sum(rows.values()), list[int]()
    while 0 < rest < least and len(left) > 1:
        joining.append(left.pop(0))
        rest += rows[joining[-1]]
    return joining


def _ends(counted: _Counted, least: int) -> tuple[float, float]:
    """The outermost edges that enough rows reach: at or below the first, and above the second.

    If no row lies beyond the next edge, and that is close, it is taken instead: a value that many rows have stays as it
    is.
    """
    edges, below, above = counted.edges, counted.below, counted.rows - counted.below
    low, high = float(edges[below >= least].min()), float(edges[above >= least].max())
    if low >= high:
        return 0.0, 0.0
    before, behind = (edges < low) & (below == 0), (edges > high) & (above == 0)
    near = max(CLOSE * (high - low), float(np.spacing(np.float32(max(-low, high)))))  # nothing is between two numbers
    first = edges[before].max() if before.any() else -np.inf
    last = edges[behind].min() if behind.any() else np.inf
    return float(first) if low - first <= near else low, float(last) if last - high <= near else high


@final
@dataclass(frozen=True, eq=False)
class Steps(FeatureMap):
    """Indicators x_j > t at thresholds of each column: a linear function of them is a sum of step functions."""

    columns: Columns
    most: int
    """Of a column."""

    @staticmethod
    def about(columns: Columns, features: int) -> Steps:
        """As many as make up about so many features, but enough of each column; of very many columns few of each."""
        several = max(int((columns.count > 1).sum()), 1)
        enough = min(ENOUGH_STEPS, MANY_FEATURES // several)
        return Steps(columns, int(min(EDGES, max(enough if enough > 1 else 0, features // several))))

    @cached_property
    def _tests(self) -> tuple[Array, Array]:
        column, threshold = [], []
        for j, count in enumerate(self.columns.count):
            chosen: Array = np.unique(np.linspace(0, max(count - 1, 0), min(count, self.most)).round().astype(np.intp))
            column += [j] * len(chosen)
            threshold += [float(self.columns.cuts[j, i]) for i in chosen]
        return np.array(column, np.intp), np.array(threshold, np.float32)

    @property
    def dimension(self) -> int:
        return len(self._tests[0])

    @property
    def bounds(self) -> Array:
        return np.full(self.dimension, self._height)

    @property
    def _height(self) -> float:
        """Of a step, so that all together have about the variance of one column."""
        return 2.0 / math.sqrt(max(self.dimension, 1))

    def __call__(self, x: Array) -> Array:
        column, threshold = self._tests
        flat = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)
        return (flat[:, column] > threshold) * np.float32(self._height)


@final
@dataclass(frozen=True, eq=False)
class ObliviousTrees(FeatureMap):
    """The leaves of random trees, one-hot; all nodes of a level make the same test, so `depth` tests name a leaf.

    A test is x_j > t with a random threshold, or, for a category, membership in a random half of its values.  Leaves
    with few rows are joined: then one of them stands for all, and the features of the others are 0.
    """

    columns: Columns
    trees: int
    depth: int
    seed: int
    joined: Array | None = None
    """(trees, 2^depth), int64: the leaf that stands for each; None: each for itself."""

    @property
    def dimension(self) -> int:
        return self.trees << self.depth

    @property
    def bounds(self) -> Array:
        return np.full(self.dimension, 1.0 / math.sqrt(self.trees))

    @cached_property
    def _tests(self) -> list[tuple[Array, float]]:
        """Each test as columns whose sum is compared with a threshold."""
        rng, units, tests = stream(self.seed, "features"), self.columns.units, []
        if not units:  # all columns are constant: every row is in the first leaf
            return [(np.empty(0, np.intp), 0.0)] * (self.trees * self.depth)
        for _ in range(self.trees):
            some = rng.choice(len(units), self.depth, replace=len(units) < self.depth)
            for unit in (units[k] for k in some):
                if len(unit) == 1:
                    j = int(unit[0])
                    tests.append((unit, float(self.columns.cuts[j, rng.integers(self.columns.count[j])])))
                else:
                    size = int(rng.integers(1, len(unit)))
                    tests.append((np.sort(rng.choice(unit, size, replace=False)), 0.5))
        return tests

    def leaves(self, x: Array) -> Array:
        """(n, trees): the leaf of each point in each tree, before any are joined."""
        flat = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)
        leaves = np.zeros((len(x), self.trees), np.intp)
        for k, (unit, threshold) in enumerate(self._tests):
            tree = k // self.depth
            leaves[:, tree] = 2 * leaves[:, tree] + (flat[:, unit].sum(axis=1) > threshold)
        return leaves

    def __call__(self, x: Array) -> Array:
        leaves, trees = self.leaves(x), np.arange(self.trees)
        if self.joined is not None:
            leaves = self.joined[trees, leaves]
        z = np.zeros((len(x), self.trees, 2**self.depth), np.float32)
        z[np.arange(len(x))[:, None], trees, leaves] = 1.0 / np.sqrt(self.trees)
        return z.reshape(len(x), self.dimension)


@final
@dataclass(frozen=True, eq=False)
class LeavesOf(Question):
    """How many rows each leaf of each tree has."""

    what: ClassVar[str] = "rows of leaves"
    trees: ObliviousTrees

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"counts": Sum((self.trees.trees, 2**self.trees.depth), 2.0**31 - 1, 32, "count")}

    def part(self, here: Here) -> Tensors:
        x, size = here.points.x, 2**self.trees.depth
        counts = np.zeros((self.trees.trees, size))
        for rows in in_blocks(len(x), x.shape[1]):
            leaves = self.trees.leaves(np.asarray(x[rows], np.float32))
            counts += [np.bincount(tree, minlength=size) for tree in leaves.T]
        return {"counts": counts}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        counts = own["counts"]
        if (counts < 0).any() or (counts.sum(axis=1) != rows).any():
            raise FFGBError(f"its rows do not each have a leaf in every tree: it has {rows} rows")

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


def with_full_leaves(ask: Ask, trees: ObliviousTrees, least: int) -> ObliviousTrees:
    """The same trees, with leaves joined until each has enough rows of all clients together."""
    counts = ask(LeavesOf(trees))
    return replace(trees, joined=np.array([_joined(tree, trees.depth, least) for tree in counts], np.int64))


def _joined(counts: Array, depth: int, least: int) -> list[int]:
    """Which leaf stands for each: the one with the fewest rows joins the smallest that differs in one test, the last
    test that tells it from any."""
    stands, rows = list(range(len(counts))), dict(enumerate(counts.tolist()))
    while len(rows) > 1:
        small = min(rows, key=lambda leaf: (rows[leaf], leaf))
        if rows[small] >= least:
            break
        own = [leaf for leaf, other in enumerate(stands) if other == small]
        beside = ({stands[leaf ^ (1 << level)] for leaf in own} - {small} for level in range(depth))
        other = min(next(filter(None, beside)), key=lambda leaf: (rows[leaf], leaf))
        kept, gone = min(small, other), max(small, other)
        rows[kept] += rows.pop(gone)
        stands = [kept if leaf == gone else leaf for leaf in stands]
    return stands


@final
@dataclass(frozen=True, eq=False)
class RankWaves(FeatureMap):
    """Random Fourier features of two or three columns' ranks at a time: smooth interactions of few columns.

    The kernel is a mean over pairs and triples of columns of Laplace kernels on ranks, in [0, 1], with scale 1/4; the
    values of a category have random phases.
    """

    columns: Columns
    count: int
    seed: int
    scale: float = 0.25

    @property
    def dimension(self) -> int:
        return self.count

    @property
    def bounds(self) -> Array:
        return np.full(self.count, math.sqrt(2.0 / self.count))

    @cached_property
    def _draw(self) -> tuple[Array, Array]:
        count = self.columns.count
        units = tuple(tuple(unit.tolist()) for unit in self.columns.units)
        two = tuple(len(unit) > 1 or int(count[unit[0]]) == 1 for unit in units)
        return _waves(self.seed, self.count, self.scale, len(self.columns.cuts), units, two)

    def __call__(self, x: Array) -> Array:
        frequencies, phases = self._draw
        z = cosines(self.columns.ranks(x), frequencies, phases)
        z *= np.float32(np.sqrt(2.0 / self.count))
        return z


@lru_cache(maxsize=16)
def _waves(
    seed: int, count: int, scale: float, columns: int, units: tuple[tuple[int, ...], ...], two: tuple[bool, ...]
) -> tuple[Array, Array]:
    """Frequencies (columns, count) and phases.  Kept, for all copies of a map that arrive."""
    rng = stream(seed, "features")
    frequencies = np.zeros((columns, count), np.float32)
    for i in range(count):
        together = min(len(units), int(rng.integers(2, 4)))
        stretch = 1.0 / np.sqrt(rng.chisquare(1))  # a normal over this is Cauchy: the Laplace kernel's spectrum
        for k in rng.choice(len(units), together, replace=False):
            width = np.pi / 2 if two[k] else stretch / scale  # values 0 and 1, whatever their distance
            frequencies[list(units[k]), i] = width * rng.standard_normal(len(units[k]))
    phases = rng.uniform(0.0, 2.0 * np.pi, count).astype(np.float32)
    for array in (frequencies, phases):
        array.setflags(write=False)
    return frequencies, phases
