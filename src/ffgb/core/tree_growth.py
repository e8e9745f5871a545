"""How a tree grows from sums: of gradients, Hessians and rows, by node, column and cell.  NumPy alone, no federation.

The best split of a node makes G_l²/(H_l + λ) + G_r²/(H_r + λ) largest, and a leaf's value is the Newton step
−G/(H + λ), as in every boosting library.  A `Growing` tree says which nodes' histograms it wants, takes them, and says
what it wants next, one level deeper each time; of two children it wants the smaller, and subtracts.

Best first in few exchanges: best-first growth divides the leaf with the largest gain, L − 1 times.  One exchange a
split would be too many.  Let m(v) be the least gain on the way from the root to v, v's own included.  Best-first growth
divides u before v if m(u) > m(v).  So a node with L − 1 others above it in m is never divided, and all others of a
level can be divided at once: some of them in vain, and those are cut off at the end.  The tree is exactly the one that
best-first growth finds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from ffgb.core.cells import heads, regrouped
from ffgb.core.splits import Layout, Splits
from ffgb.core.types import Array

GRADIENT, HESSIAN, ROWS = 0, 1, 2
"""The three sums of a cell."""

AT_ONCE = 2**21
"""Cells of padded histograms that are looked at together."""


@final
@dataclass(frozen=True)
class Growth:
    """How far a tree grows."""

    leaves: int = 31
    levels: int = 6
    least_rows: int = 20
    """Of a leaf."""
    least_hessian: float = 1e-3
    """Of a leaf."""
    ridge: float = 1.0
    """λ."""
    category_ridge: float = 300.0
    """What is added to λ where a split by a set of categories is judged: the set was chosen by the same sums."""
    smoothing: float = 100.0
    """What is added to each category's Hessians when categories are sorted by G/H: few rows say little."""
    by_level: bool = False
    """Level by level, the largest gains first, until there are `leaves`; otherwise best first."""

    def value(self, gradient: Array, hessian: Array, low: Array | float, high: Array | float) -> Array:
        """The Newton step of a leaf, within bounds."""
        below = hessian + self.ridge
        step: Array = np.clip(-gradient / np.where(below > 0.0, below, 1.0), low, high)
        return step


class Found(NamedTuple):
    """The best splits of some nodes; `gain` is 0 or less where there is none."""

    gain: Array
    column: Array
    left: Array
    """The cells that go left, (nodes, cells), bool."""
    sums: Array
    """G, H and rows of the left child, (nodes, 3)."""


@final
class Finder:
    """Finds the best splits of nodes by their histograms: the cells of some columns, one column after the other."""

    def __init__(self, columns: Array, layout: Layout, growth: Growth, monotone: Array | None = None) -> None:
        """`monotone` has 1 or −1 for each column whose values must not go down or up, (C,)."""
        self.growth, self.columns = growth, columns
        self.cells = layout.cells[columns]
        self.first = np.concatenate([[0], np.cumsum(self.cells)])
        """Where each column's cells begin."""
        bins, self.missing = layout.bins[columns], layout.missing[columns]
        nothing = int(self.first[-1])  # a cell that is always empty
        kinds = layout.categorical[columns]
        self.monotone = np.zeros(len(columns), np.int64) if monotone is None else monotone[columns]
        self.numeric, self.categorical = np.flatnonzero(~kinds), np.flatnonzero(kinds)
        self._bins = _places(self.numeric, self.first, bins, nothing)
        self._gone = np.where(self.missing, self.first[:-1] + bins, nothing)[self.numeric]
        self._categories = _places(self.categorical, self.first, self.cells, nothing)

    @property
    def size(self) -> int:
        """Cells of a histogram."""
        return int(self.first[-1])

    def __call__(self, histograms: Array, sums: Array, low: Array, high: Array) -> Found:
        """Of nodes with histograms (nodes, 3, cells), sums (nodes, 3), and bounds on their values."""
        nodes = len(histograms)
        sets = np.zeros((nodes, int(self.cells.max())), bool)
        found = Found(np.zeros(nodes), np.zeros(nodes, np.int64), sets, np.zeros_like(sums))
        padded = np.concatenate([histograms, np.zeros((nodes, 3, 1))], axis=2)
        for places, which, look in (
            (self._bins, self.numeric, self._ordered),
            (self._categories, self.categorical, self._single),
            (self._categories, self.categorical, self._sorted),
        ):
            some = max(1, AT_ONCE // max(1, nodes * places.shape[1]))
            for start in range(0, len(which), some):
                look(slice(start, start + some), padded, sums, low, high, found)
        return found

    def _ordered(self, some: slice, padded: Array, sums: Array, low: Array, high: Array, found: Found) -> None:
        """Thresholds, with missing values on the right and on the left.

        Columns are filled up with empty bins, whose gain is that of the last one: the first of equal gains is taken.
        """
        places, gone = self._bins[some], padded[:, :, self._gone[some]]
        up_to = np.cumsum(padded[:, :, places], axis=3)  # (nodes, 3, columns, bins)
        left = np.stack([up_to, up_to + gone[..., None]], axis=2)  # (nodes, 3, 2, columns, bins)
        gain = self._gain(left, sums, low, high, self.growth.ridge, self.monotone[self.numeric[some]][:, None])
        best = gain.reshape(len(gain), -1).argmax(axis=1)
        for i, (side, k, b) in enumerate(zip(*np.unravel_index(best, gain.shape[1:]), strict=True)):
            if not gain[i, side, k, b] > found.gain[i]:
                continue
            column = int(self.numeric[some][k])
            cells = np.arange(self.cells[column]) <= b
            if self.missing[column]:
                inside, rest = left[i, ROWS, side, k, b], sums[i, ROWS] - left[i, ROWS, side, k, b]
                cells[-1] = bool(side) if gone[i, ROWS, k] > 0 else inside >= rest
            _take(found, i, gain[i, side, k, b], column, cells, left[i, :, side, k, b])

    def _single(self, some: slice, padded: Array, sums: Array, low: Array, high: Array, found: Found) -> None:
        """One category against all others."""
        left = padded[:, :, self._categories[some]]  # (nodes, 3, columns, categories)
        gain = self._gain(left[:, :, None], sums, low, high, self.growth.ridge, np.zeros((left.shape[2], 1)))[:, 0]
        best = gain.reshape(len(gain), -1).argmax(axis=1)
        for i, (k, b) in enumerate(zip(*np.unravel_index(best, gain.shape[1:]), strict=True)):
            if gain[i, k, b] > found.gain[i]:
                column = int(self.categorical[some][k])
                self._take_set(found, i, gain[i, k, b], column, left[i, :, k, b], sums[i], left[i, ROWS, k] > 0, [b])

    def _sorted(self, some: slice, padded: Array, sums: Array, low: Array, high: Array, found: Found) -> None:
        """Sets of categories: the first of them in the order of G/H.  For a convex loss the best set is among these
        (Fisher, "On grouping for maximum homogeneity", Journal of the American Statistical Association 53, 1958)."""
        places = self._categories[some]
        values = padded[:, :, places]  # (nodes, 3, columns, categories)
        there = values[:, ROWS] > 0
        ratio = np.where(there, values[:, GRADIENT] / (values[:, HESSIAN] + self.growth.smoothing), np.inf)
        order = np.argsort(ratio, axis=2, kind="stable")
        left = np.cumsum(np.take_along_axis(values, order[:, None], axis=3), axis=3)
        ridge = self.growth.ridge + self.growth.category_ridge
        gain = self._gain(left[:, :, None], sums, low, high, ridge, np.zeros((len(places), 1)))[:, 0]
        best = gain.reshape(len(gain), -1).argmax(axis=1)
        for i, (k, b) in enumerate(zip(*np.unravel_index(best, gain.shape[1:]), strict=True)):
            if not gain[i, k, b] > found.gain[i]:
                continue
            column, inside = int(self.categorical[some][k]), order[i, k, : b + 1]
            self._take_set(found, i, gain[i, k, b], column, left[i, :, k, b], sums[i], there[i, k], inside)

    def _take_set(
        self,
        found: Found,
        i: int,
        gain: float,
        column: int,
        left: Array,
        sums: Array,
        there: Array,
        inside: Array | list[int],
    ) -> None:
        """A set of categories; those that no row of the node has go with more of its rows."""
        cells = ~there[: self.cells[column]] & (2.0 * left[ROWS] >= sums[ROWS])
        cells[inside] = True
        _take(found, i, gain, column, cells, left)

    def _gain(self, left: Array, sums: Array, low: Array, high: Array, ridge: float, monotone: Array) -> Array:
        """What each split gains, 0 where a child would be too small: left sums are (nodes, 3, …)."""
        growth, ones = self.growth, (1,) * (left.ndim - 2)
        whole, low, high = sums.reshape(-1, 3, *ones), low.reshape(-1, *ones), high.reshape(-1, *ones)
        right = whole - left
        judged = growth if ridge == growth.ridge else Growth(ridge=ridge)
        on_left = judged.value(left[:, GRADIENT], left[:, HESSIAN], low, high)
        on_right = judged.value(right[:, GRADIENT], right[:, HESSIAN], low, high)
        own = growth.value(whole[:, GRADIENT], whole[:, HESSIAN], low, high)
        gain: Array = _worth(left, on_left, ridge) + _worth(right, on_right, ridge) - _worth(whole, own, growth.ridge)
        fits = np.minimum(left[:, ROWS], right[:, ROWS]) >= growth.least_rows
        fits &= np.minimum(left[:, HESSIAN], right[:, HESSIAN]) >= growth.least_hessian
        fits &= monotone * (on_right - on_left) >= 0.0
        return np.where(fits, gain, 0.0)


def _worth(sums: Array, value: Array, ridge: float) -> Array:
    """By how much a leaf of this value lowers twice the loss, to second order: G²/(H + λ) at the Newton step."""
    worth: Array = -value * (2.0 * sums[:, GRADIENT] + value * (sums[:, HESSIAN] + ridge))
    return worth


def _places(which: Array, first: Array, counts: Array, nothing: int) -> Array:
    """The cells of some columns, a row each, filled up with one that is empty."""
    places = np.full((len(which), int(counts[which].max(initial=1))), nothing)
    for i, k in enumerate(which):
        places[i, : counts[k]] = first[k] + np.arange(counts[k])
    return places


def _take(found: Found, i: int, gain: float, column: int, cells: Array, sums: Array) -> None:
    found.gain[i], found.column[i], found.sums[i] = gain, column, sums
    found.left[i] = False
    found.left[i, : len(cells)] = cells


@final
@dataclass(eq=False)
class Node:
    """A node of a tree that grows."""

    sums: Array
    """G, H and rows."""
    depth: int
    low: float
    high: float
    parent: int = -1
    split: int = -1
    """The split that divides it; −1 as long as none does."""
    histogram: Array | None = None
    heads: Array | None = None
    """Of each cell, the one that has its sums, where cells with few rows are merged (merged_cells.py)."""
    counts: Array | None = None
    """Rows by cell, counted in the ways in which each cell has none or enough, (ways, cells)."""
    gain: float = 0.0
    worst: float = np.inf
    """m: the least gain on the way here."""
    column: int = 0
    left: Array = field(default_factory=lambda: np.zeros(0, bool))
    left_sums: Array = field(default_factory=lambda: np.zeros(3))


@final
@dataclass(frozen=True, eq=False)
class Grown:
    """A tree: its splits, and of each node its Newton step and its sums."""

    splits: Splits
    values: Array
    """(nodes,)."""
    sums: Array
    """(nodes, 3)."""

    @property
    def leaves(self) -> Array:
        """The nodes that are not divided."""
        return np.flatnonzero(self.splits.of_node < 0)


@final
class Growing:
    """A tree that wants histograms of some nodes, takes them, and grows."""

    def __init__(self, finder: Finder, layout: Layout) -> None:
        self.finder, self.growth, self.width = finder, finder.growth, layout.width
        self.nodes = [Node(np.zeros(3), 0, -np.inf, np.inf)]
        self.divided: list[int] = []
        """The node of each split."""
        self.wanted: list[int] = [0]
        """The nodes whose histograms it needs."""
        self._leaves = 1

    @property
    def splits(self) -> Splits:
        """So far."""
        return self._listed(self.divided, list(self.divided))

    def _listed(self, divided: Sequence[int], ids: list[int]) -> Splits:
        """Splits of these nodes, which are called so."""
        some = [self.nodes[i] for i in divided]
        columns = [int(self.finder.columns[n.column]) for n in some]
        return Splits.of(ids, columns, [n.left[: self.finder.cells[n.column]] for n in some], self.width)

    def merge(self, rows: Sequence[Array], layout: Layout, least: int) -> list[Array]:
        """Merge the cells of the nodes that are wanted, whose rows by cell these are; where each cell went.

        Rows may be counted in several ways, (ways, cells) of each node.
        """
        found = []
        for i, own in zip(self.wanted, rows, strict=True):
            node, everything = self.nodes[i], np.arange(self.finder.size)
            if node.parent < 0:
                node.heads = heads(own, np.zeros_like(own), everything, layout, self.finder.columns, least)
                node.counts = regrouped(own, node.heads)
            else:
                parent, sibling = self.nodes[node.parent], self.nodes[i + 1 if i % 2 else i - 1]
                assert parent.counts is not None
                assert parent.heads is not None
                at_heads = regrouped(own, parent.heads)
                rest = parent.counts - at_heads
                node.heads = heads(at_heads, rest, parent.heads, layout, self.finder.columns, least)
                sibling.heads = node.heads
                node.counts, sibling.counts = regrouped(at_heads, node.heads), regrouped(rest, node.heads)
                parent.counts = None
            found.append(node.heads)
        return found

    def take(self, histograms: Sequence[Array]) -> None:
        """Histograms (3, cells) of the nodes that were wanted, in that order."""
        take_all([(self, histograms)])

    def _placed(self, histograms: Sequence[Array]) -> list[int]:
        """The nodes whose histograms are known by these: those that were wanted, and their siblings."""
        fresh: list[int] = []
        for i, histogram in zip(self.wanted, histograms, strict=True):
            node = self.nodes[i]
            node.histogram = own = self._at_heads(histogram, node)
            fresh.append(i)
            if node.parent < 0:
                node.sums = own[:, : self.finder.cells[0]].sum(axis=1)
                continue
            parent, sibling = self.nodes[node.parent], i + 1 if i % 2 else i - 1
            assert parent.histogram is not None
            self.nodes[sibling].histogram = self._at_heads(parent.histogram, node) - own
            parent.histogram = None  # no one needs it any more
            fresh.append(sibling)
        return fresh

    def _grow(self, fresh: Sequence[int]) -> None:
        """Divide what may be divided of the nodes whose best splits have been found."""
        self.wanted = []
        (self._grow_level if self.growth.by_level else self._grow_best)(fresh)

    @staticmethod
    def _at_heads(histogram: Array, node: Node) -> Array:
        return histogram if node.heads is None else regrouped(histogram, node.heads)

    def _divisible(self, node: Node) -> bool:
        """May it be divided, as far as its size and depth go?"""
        growth = self.growth
        return (
            node.depth < growth.levels
            and growth.leaves > 1
            and node.sums[ROWS] >= 2 * growth.least_rows
            and node.sums[HESSIAN] >= 2.0 * growth.least_hessian
        )

    def _found(self, node: Node, found: Found, k: int) -> None:
        """A node's best split is the k-th of these."""
        above = self.nodes[node.parent].worst if node.parent >= 0 else np.inf
        node.gain, node.column, node.left_sums = float(found.gain[k]), int(found.column[k]), found.sums[k]
        node.left, node.worst = found.left[k], min(node.gain, above)
        if node.heads is not None:  # cells that were merged go together
            first, size = self.finder.first[node.column], self.finder.cells[node.column]
            node.left[:size] = node.left[node.heads[first : first + size] - first]

    def _grow_best(self, fresh: Sequence[int]) -> None:
        """Divide all nodes that best-first growth may still come to."""
        most = self.growth.leaves - 1
        worst = np.array([n.worst for n in self.nodes if n.gain > 0.0])
        for i in fresh:
            node = self.nodes[i]
            before = int((worst > node.worst).sum())
            if node.gain > 0.0 and before < most:
                self._divide(i, last=before + 1 >= most)

    def _grow_level(self, fresh: Sequence[int]) -> None:
        """Divide the nodes of this level with the largest gains, as many as there may be."""
        room = self.growth.leaves - self._leaves
        best = sorted((i for i in fresh if self.nodes[i].gain > 0.0), key=lambda i: (-self.nodes[i].gain, i))[:room]
        last = self._leaves + len(best) >= self.growth.leaves
        for i in sorted(best):
            self._divide(i, last=last)

    def _divide(self, i: int, *, last: bool) -> None:
        """Two children for a node; their histograms are wanted if they may be divided, and these are not the last."""
        node, growth = self.nodes[i], self.growth
        node.split = len(self.divided)
        self.divided.append(i)
        self._leaves += 1
        sides = node.left_sums, node.sums - node.left_sums
        values = [float(growth.value(s[GRADIENT], s[HESSIAN], node.low, node.high)) for s in sides]
        middle, sign = 0.5 * (values[0] + values[1]), int(self.finder.monotone[node.column])
        # below a split by a monotone column no leaf may cross the middle
        lows = node.low if sign >= 0 else middle, node.low if sign <= 0 else middle
        highs = node.high if sign <= 0 else middle, node.high if sign >= 0 else middle
        children = [Node(s, node.depth + 1, low, high, i) for s, low, high in zip(sides, lows, highs, strict=True)]
        if not last and any(map(self._divisible, children)):
            smaller = int(children[1].sums[ROWS] < children[0].sums[ROWS])
            self.wanted.append(len(self.nodes) + smaller)
        else:
            node.histogram = None
        self.nodes += children

    def grown(self) -> Grown:
        """The tree: best first, the L − 1 splits that best-first growth makes."""
        chosen = list(range(len(self.divided))) if self.growth.by_level else self._best()
        kept, names = [0], {0: 0}
        nodes = []
        for place, s in enumerate(chosen):
            nodes.append(names[self.divided[s]])
            for side in (1, 2):
                names[2 * s + side] = 2 * place + side
                kept.append(2 * s + side)
        some = [self.nodes[i] for i in kept]
        splits = self._listed([self.divided[s] for s in chosen], nodes)
        sums = np.stack([n.sums for n in some])
        low, high = np.array([n.low for n in some]), np.array([n.high for n in some])
        return Grown(splits, self.growth.value(sums[:, GRADIENT], sums[:, HESSIAN], low, high), sums)

    def _best(self) -> list[int]:
        """The splits of best-first growth, in its order."""
        chosen: list[int] = []
        heap = [(-self.nodes[0].gain, 0)]
        while heap and len(chosen) < self.growth.leaves - 1:
            gain, i = heapq.heappop(heap)
            if gain >= 0.0:
                break
            s = self.nodes[i].split
            assert s >= 0, "a node that best-first growth comes to is divided"
            chosen.append(s)
            for child in (2 * s + 1, 2 * s + 2):
                heapq.heappush(heap, (-self.nodes[child].gain, child))
        return chosen


def take_all(taken: Sequence[tuple[Growing, Sequence[Array]]]) -> None:
    """Trees take the histograms that they wanted, and grow; nodes of trees with one finder are looked at together."""
    fresh = [tree._placed(histograms) for tree, histograms in taken]
    looked = dict[int, list[tuple[Growing, Node]]]()
    for (tree, _), ids in zip(taken, fresh, strict=True):
        for i in ids:
            if tree._divisible(tree.nodes[i]):
                looked.setdefault(id(tree.finder), []).append((tree, tree.nodes[i]))
    for some in looked.values():
        finder = some[0][0].finder
        each = max(1, AT_ONCE // (3 * finder.size))
        for start in range(0, len(some), each):
            _look(finder, some[start : start + each])
    for (tree, _), ids in zip(taken, fresh, strict=True):
        tree._grow(ids)


def _look(finder: Finder, some: Sequence[tuple[Growing, Node]]) -> None:
    """Find the best splits of nodes."""
    histograms = np.stack([node.histogram for _, node in some if node.histogram is not None])
    low, high = (np.array([getattr(node, side) for _, node in some]) for side in ("low", "high"))
    found = finder(histograms, np.stack([node.sums for _, node in some]), low, high)
    for k, (tree, node) in enumerate(some):
        tree._found(node, found, k)
