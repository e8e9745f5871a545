"""Feature maps for tables: steps, random oblivious trees, and random waves on ranks.

All of them see a column through its quantiles, so that scale, skew and outliers do not matter.  Quantiles come from
counts: clients are asked how many of their values lie in each of some intervals, a few times, and the intervals are
narrowed where the values are.  Only totals over clients are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.seeds import stream
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.features.basic import cosines

EDGES = 128
"""Where values are counted, in each column."""

REFINEMENTS = 3
"""How often the edges are moved to where the values are."""

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
        x = np.asarray(here.points.x, np.float32).reshape(len(here.points), -1)
        counts = [
            np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
            for column, edges in zip(x.T, self.edges, strict=True)
        ]
        return {"counts": np.array(counts, np.float64)}

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


def look(ask: Ask, moments: Moments, names: Sequence[str]) -> Columns:
    """Find thresholds by counts of all clients' values.  Names like "job=nurse" and "job=clerk" make one category."""
    inputs, spread = len(moments.mean), np.sqrt(moments.variance)[:, None]
    # at first far out and dense at the mean, as nothing else is known
    edges = moments.mean[:, None] + spread * np.sinh(np.linspace(-4.0, 4.0, EDGES))
    rounds = []
    for _ in range(REFINEMENTS + 1):
        edges = _ascending(edges)
        counts = ask(Histogram(edges))
        rounds.append((edges, np.cumsum(counts, axis=1)))
        edges = _refined(edges, counts)
    cuts = [_cuts([(e[j], below[j]) for e, below in reversed(rounds)]) for j in range(inputs)]
    most = max(1, *(len(c) for c in cuts))
    padded = np.array([np.concatenate([c, np.full(most - len(c), np.inf)]) for c in cuts], np.float32)
    known: dict[str, int] = {}
    named = [names[j].partition("=")[0] if j < len(names) and "=" in names[j] else f"#{j}" for j in range(inputs)]
    return Columns(padded, tuple(known.setdefault(name, len(known)) for name in named))


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


def _cuts(rounds: list[tuple[Array, Array]]) -> Array:
    """Of edges that separate the same rows, the middle one; none that separates nothing.

    The last edges (first in the list) have the quantiles; earlier ones tell apart values that those have lost, the
    most rows first.
    """
    edges = np.concatenate([e for e, _ in rounds]).astype(np.float64)
    below, rows = np.concatenate([b[:-1] for _, b in rounds]), rounds[0][1][-1]
    levels = np.unique(below[(below > 0) & (below < rows)])
    last = np.isin(levels, rounds[0][1][:-1])
    known = np.concatenate([[0.0], levels[last], [rows]])
    place = np.searchsorted(known, levels)
    gap = np.minimum(levels - known[place - 1], known[place] - levels)
    gap[last] = np.inf
    levels = np.sort(levels[np.argsort(-gap, kind="stable")[:EDGES]])
    same = [edges[below == level] for level in levels]
    return np.array([0.5 * (e.min() + e.max()) for e in same])


@final
@dataclass(frozen=True, eq=False)
class Steps(FeatureMap):
    """Indicators x_j > t at thresholds of each column: a linear function of them is a sum of step functions."""

    columns: Columns
    most: int
    """Of a column."""

    @staticmethod
    def about(columns: Columns, features: int) -> Steps:
        """As many as make up about so many features, but enough of each column."""
        several = int((columns.count > 1).sum())
        return Steps(columns, int(min(EDGES, max(8, features // max(several, 1)))))

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

    A test is x_j > t with a random threshold, or, for a category, membership in a random half of its values.
    """

    columns: Columns
    trees: int
    depth: int
    seed: int

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

    def __call__(self, x: Array) -> Array:
        flat = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)
        z = np.zeros((len(x), self.trees, 2**self.depth), np.float32)
        for tree in range(self.trees):
            leaf = np.zeros(len(x), np.intp)
            for unit, threshold in self._tests[tree * self.depth : (tree + 1) * self.depth]:
                leaf = 2 * leaf + (flat[:, unit].sum(axis=1) > threshold)
            z[np.arange(len(x)), tree, leaf] = 1.0 / np.sqrt(self.trees)
        return z.reshape(len(x), self.dimension)


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
        rng, units = stream(self.seed, "features"), self.columns.units
        frequencies = np.zeros((len(self.columns.cuts), self.count), np.float32)
        for i in range(self.count):
            together = min(len(units), int(rng.integers(2, 4)))
            stretch = 1.0 / np.sqrt(rng.chisquare(1))  # a normal over this is Cauchy: the Laplace kernel's spectrum
            for k in rng.choice(len(units), together, replace=False):
                unit = units[k]
                two = len(unit) > 1 or self.columns.count[unit[0]] == 1  # values 0 and 1, whatever their distance
                width = np.pi / 2 if two else stretch / self.scale
                frequencies[unit, i] = width * rng.standard_normal(len(unit))
        return frequencies, rng.uniform(0.0, 2.0 * np.pi, self.count).astype(np.float32)

    def __call__(self, x: Array) -> Array:
        frequencies, phases = self._draw
        z = cosines(self.columns.ranks(x), frequencies, phases)
        z *= np.float32(np.sqrt(2.0 / self.count))
        return z
