"""Questions about f^t that trees are grown from: sums of gradients, Hessians and rows by node, column and cell.

Each row's gradient and Hessian is rounded to a whole multiple of a public unit before it is added (exact_sums.py), so a
total has the same bits over any split of the rows.  A question carries the trees as they are so far.  A client that has
kept which node each of its rows is in moves them by the newest splits alone; one that has lost it starts from the root,
and comes to the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np

from ffgb.core.draws import Draws
from ffgb.core.exact_sums import (
    EXACT,
    ORDERS,
    SHORT,
    Sizes,
    check_counts,
    counted,
    orders,
    unit_for,
    weighed,
    whole,
)
from ffgb.core.folds import Folds
from ffgb.core.kernels import Compiled, compiled
from ffgb.core.losses import Loss
from ffgb.core.maps import content_of
from ffgb.core.questions import Ask, Here, Question, RoundQuestion, Sum, known
from ffgb.core.splits import Splits, by_column, route
from ffgb.core.together import FEW_ROWS, Together
from ffgb.core.types import Array, Tensors
from ffgb.errors import DivergedError, FFGBError, option

SQUARES = "squares"
"""The array of Σ g²: it is of no cell."""
NOWHERE = 4096
"""A node that no tree has: rows that a tree is grown without are there."""
CARRY = 2.0**32
"""Where the count of rows begins in a sum of both: sums are at most 2^30."""
AT_ONCE = 2**17
"""Rows that NumPy adds up at a time: with their count in it, a sum is exact in float64."""
COARSEST = 2.0**-8
"""A unit of 32-bit sums may be this part of the median gradient; if it is larger, 64 bits are taken."""


@final
@dataclass(frozen=True, eq=False)
class Units:
    """What gradients and Hessians are counted in, for each output: powers of two."""

    gradient: Array
    hessian: Array
    bits: Literal[32, 64]
    flat: bool = False
    """Every row's Hessian is 1, so that counts of rows are sums of Hessians."""

    @staticmethod
    def of(gradient: Sizes, hessian: Sizes, rows: int, bits: Literal[32, 64] | None, *, flat: bool) -> Units:
        """Units in which the sums of all rows fit; with 32 bits if these are fine enough, where nothing is said."""

        def units(sizes: Sizes, most: float) -> Array:
            return np.array([unit_for(total, rows, most) for total in sizes.total])

        if bits is None:
            short = rows < SHORT / 2
            fine = short and bool((units(gradient, SHORT) <= COARSEST * gradient.median).all())
            bits = 32 if fine and (units(hessian, SHORT) <= COARSEST * hessian.median).all() else 64
        most = SHORT if bits == 32 else EXACT
        return Units(units(gradient, most), units(hessian, most), bits, flat)

    @staticmethod
    def bounded(loss: Loss, rows: int, bits: Literal[32, 64] | None, *, flat: bool) -> Units | None:
        """From what the loss says of its gradients; None if that is nothing.  Every row has the weight 1."""
        if not (math.isfinite(loss.entry_bound) and loss.smooth):
            return None
        ones = np.ones(loss.outputs)
        # no diagonal entry of the second derivative is larger than its largest eigenvalue
        gradient, hessian = loss.entry_bound * ones, loss.smoothness * ones
        return Units.of(Sizes(rows * gradient, gradient / 4), Sizes(rows * hessian, hessian / 4), rows, bits, flat=flat)


@final
@dataclass(frozen=True, eq=False)
class GradientOrders(RoundQuestion):
    """How many rows have a gradient, and a Hessian, of each order of magnitude."""

    what: ClassVar[str] = "orders of magnitude of gradients"
    outputs: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape = (self.outputs, ORDERS + 1)
        return {"gradients": counted(shape), "hessians": counted(shape)}

    def part(self, here: Here) -> Tensors:
        g, h = derivatives(here)
        return {"gradients": orders(g), "hessians": orders(h)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        for counts in own.values():
            check_counts(counts, rows)

    def total(self, sums: Tensors) -> tuple[Sizes, Sizes]:
        return Sizes.of(sums["gradients"]), Sizes.of(sums["hessians"])


@final
@dataclass(frozen=True, eq=False)
class RowCounts(Question):
    """How many rows there are, of each class if there are classes, and how many have a weight other than 1."""

    what: ClassVar[str] = "numbers of rows"
    classes: int
    """0: targets are numbers."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"rows": counted((max(self.classes, 1),)), "weighted": counted((1,))}

    def part(self, here: Here) -> Tensors:
        points = here.points
        rows = np.bincount(points.y, minlength=self.classes) if self.classes else np.full(1, len(points))
        weighted = 0.0 if points.weights is None else float((points.weights != 1.0).sum())
        return {"rows": rows.astype(np.float64), "weighted": np.full(1, weighted)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        check_counts(own["rows"], rows)
        if not 0 <= own["weighted"][0] <= rows:
            raise FFGBError(f"it counts {own['weighted'][0]:g} rows with weights, and has {rows}")

    def total(self, sums: Tensors) -> tuple[Array, float]:
        return sums["rows"], float(sums["weighted"][0])


@final
@dataclass(frozen=True, eq=False)
class WeightOrders(Question):
    """How many rows have a weight of each order of magnitude."""

    what: ClassVar[str] = "orders of magnitude of weights"

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"weights": counted((1, ORDERS + 1))}

    def part(self, here: Here) -> Tensors:
        return {"weights": orders(weighed(here, np.ones((len(here.points), 1))))}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        check_counts(own["weights"], rows)

    def total(self, sums: Tensors) -> float:
        return float(Sizes.of(sums["weights"]).total[0])


@final
@dataclass(frozen=True, eq=False)
class ClassWeights(Question):
    """The weight of all rows of each class."""

    what: ClassVar[str] = "weights of the classes"
    classes: int
    unit: float

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"weights": counted((self.classes,))}

    def part(self, here: Here) -> Tensors:
        weights = whole(weighed(here, np.ones((len(here.points), 1))), self.unit)[:, 0]
        return {"weights": np.bincount(here.points.y, weights, self.classes)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["weights"] < 0).any():
            raise FFGBError("its rows of a class have a negative weight")

    def total(self, sums: Tensors) -> Array:
        weights: Array = sums["weights"] * self.unit
        return weights


def weights_of_classes(ask: Ask, classes: int) -> Array:
    """Of all rows of each class, the same bits over any split of the rows."""
    found: Array = ask(ClassWeights(classes, unit_for(ask(WeightOrders()), EXACT / 4, EXACT)))
    return found


class Histograms(NamedTuple):
    """Total sums of the nodes that were asked about."""

    nodes: Sequence[Array]
    """Of each node (3, cells): gradients, Hessians and rows, the cells of one of its tree's columns after another's."""
    square: Array | None
    """Σ g² over the rows of each tree, if it was asked for."""


@final
@dataclass(frozen=True, eq=False)
class HistogramsOf(RoundQuestion):
    """Sums of gradients, Hessians and rows in each cell of some columns, for some nodes of the trees so far."""

    what: ClassVar[str] = "sums by bins"
    units: Units
    cells: Array
    """Of each column, (C,), int16."""
    outputs: Array
    """Of each tree, which entry of f it adds to, (trees,), int32."""
    columns: Array
    """Of each tree, (trees, k), int32."""
    tree: Array
    """Of each split, (S,), int16."""
    splits: Splits
    """Of all trees, those of the first one first."""
    asked: Array
    """Tree and node, (nodes, 2), int32."""
    square: bool = False
    """Σ g² is wanted, too."""
    folds: Folds | None = None
    """Versions of f are trained without some rows each (core/folds.py); None: there is one, trained with all."""
    draws: Draws | None = None
    """Each tree is grown from a share of the rows; None: from all."""

    @cached_property
    def _sizes(self) -> Array:
        """Cells of each node that is asked about."""
        sizes: Array = self.cells.astype(np.int64)[self.columns].sum(axis=1)
        return sizes[self.asked[:, 0]]

    @cached_property
    def _starts(self) -> Array:
        """Where each column's cells begin, of each node that is asked about."""
        cells = self.cells.astype(np.int64)[self.columns[self.asked[:, 0]]].ravel()
        starts: Array = np.cumsum(cells) - cells
        return starts

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape, bits = (int(self._sizes.sum()),), self.units.bits
        names = ("gradients", "rows") if self.units.flat else ("gradients", "hessians", "rows")
        found = {name: counted(shape, bits) for name in names}
        if self.square:
            found[SQUARES] = counted((len(self.outputs),))
        return found

    def part(self, here: Here) -> Tensors:
        work = _Work.of(here, self)
        flat = work.sums(self)
        found = {"gradients": flat[0], "rows": flat[2]}
        if not self.units.flat:
            found["hessians"] = flat[1]
        if self.square:
            found[SQUARES] = work.squares(self)
        return found

    def rows(self, here: Here, *, outside: bool = False) -> Array:
        """A client's rows in each cell, one node after the other; `outside`: those that it is grown without."""
        work = _Work.of(here, self)
        if not outside:
            counts: Array = work.sums(self)[2]
            return counts
        if work.together is not None:
            return work.together.rows(self, outside=True)
        found: Array = self._flat(lambda k: work.rows_outside(self, k))[2]
        return found

    def _flat(self, of_tree: Callable[[int], list[Array]]) -> Array:
        """Sums of all nodes, (3, cells), from those of each tree."""
        parts = [of_tree(k) for k in range(len(self.outputs))]
        order = np.argsort(np.argsort(self.asked[:, 0], kind="stable"), kind="stable")
        nodes = [node for part in parts for node in part]  # by tree
        return np.concatenate([nodes[k] for k in order], axis=1)

    @property
    def columns_of_cells(self) -> tuple[Array, Array]:
        """Of each cell, one node after the other: how many cells its column has, and where the first of them is."""
        cells = self.cells.astype(np.int64)[self.columns[self.asked[:, 0]]].ravel()
        first = np.cumsum(cells) - cells
        return np.repeat(cells, cells), np.repeat(first, cells)

    @property
    def cells_of_nodes(self) -> int:
        """Cells of all nodes."""
        return int(self._sizes.sum())

    @cached_property
    def starts(self) -> Array:
        """Where the cells of each node begin."""
        starts: Array = np.cumsum(self._sizes) - self._sizes
        return starts

    def by_node(self, flat: Array) -> list[Array]:
        """Sums of cells, (…, cells), node by node."""
        return np.split(flat, np.cumsum(self._sizes)[:-1], axis=-1)

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        counts = own["rows"]
        if (counts < 0).any() or (own.get("hessians", counts) < 0).any():
            raise FFGBError("its counts of rows, or its sums of Hessians, are negative")
        found = np.add.reduceat(counts, self._starts).reshape(len(self.asked), -1)
        if (found != found[:, :1]).any():
            raise FFGBError("its counts of a node's rows differ from column to column")
        inside = np.bincount(self.asked[:, 0], found[:, 0])
        if (inside > rows).any():
            raise FFGBError(f"it counts {inside.max():g} rows in the nodes of a tree, and has {rows}")

    def total(self, sums: Tensors) -> Histograms:
        # powers of two: nothing is rounded
        output = np.repeat(self.outputs[self.asked[:, 0]], self._sizes)
        gradient = sums["gradients"] * self.units.gradient[output]
        hessian = sums["rows"] if self.units.flat else sums["hessians"] * self.units.hessian[output]
        flat = np.stack([gradient, hessian, sums["rows"]])
        square = sums[SQUARES] * self._square_units if self.square else None
        return Histograms(self.by_node(flat), square)

    @cached_property
    def _square_units(self) -> Array:
        """Of each tree.  Σ g² ≤ (Σ |g|)², and that is at most this many units of the gradient, squared."""
        most = SHORT if self.units.bits == 32 else EXACT
        units: Array = np.square(self.units.gradient) * most * (most / EXACT)
        return units[self.outputs]


def derivatives(here: Here) -> tuple[Array, Array]:
    """Gradient and Hessian of each row at f^t, times its weight: (n, c) each."""
    assert here.loss is not None
    f, y = known(here.f), known(here.y)
    return weighed(here, here.loss.gradient(f, y)), weighed(here, here.loss.curvature(f, y))


@final
class _Work:
    """What a client has computed for the trees of a round.  All of it follows from f^t and the question."""

    def __init__(self, here: Here, units: Units, folds: Folds | None, draws: Draws | None) -> None:
        assert here.family is not None
        self.f, self.units, self.draws = here.f, units, draws
        self.points, self.round = here.points, here.round
        self.z = here.points.features(here.family.features)
        g, h = derivatives(here)
        self.gradient = _as_integers(whole(g, units.gradient), units.bits)
        self.hessian = None if units.flat else _as_integers(whole(h, units.hessian), units.bits)
        self.splits: dict[int, Splits] = {}
        self.position: dict[int, Array] = {}
        self.output: dict[int, int] = {}
        """Of each tree."""
        self.outside: list[Array | None] = [None] * len(self.gradient)
        """Of each output the rows that its version is trained without, if there are any."""
        if folds is not None:
            self._leave_out(here, folds)
        self._sums: tuple[str, Array] | None = None
        """What all that it follows from is called, and the sums of the last question."""
        self.together = Together(self.z, self.outside, self._begin) if len(self.z) < FEW_ROWS else None

    def _leave_out(self, here: Here, folds: Folds) -> None:
        """Rows that a version is trained without add nothing."""
        each = len(self.gradient) // len(folds.without)
        for version in range(len(folds.without)):
            outside = folds.outside(here.points, version)
            if outside is not None:
                outputs = slice(version * each, (version + 1) * each)
                self.outside[outputs] = [outside] * each
                self.gradient[outputs, outside] = 0

    @staticmethod
    def of(here: Here, question: HistogramsOf) -> _Work:
        """What was kept from the last question of the round, or all of it anew."""
        kept, units = here.points.aside, question.units
        same = (
            isinstance(kept, _Work)
            and kept.f is here.f
            and kept.units.bits == units.bits
            and np.array_equal(kept.units.gradient, units.gradient)
            and np.array_equal(kept.units.hessian, units.hessian)
            and kept.draws == question.draws
        )
        work = kept if same else _Work(here, units, question.folds, question.draws)
        assert isinstance(work, _Work)
        here.points.aside = work
        if work.together is not None:
            work.together.move(question)
            return work
        for k in range(len(question.outputs)):
            some = question.tree == k
            splits = Splits(question.splits.node[some], question.splits.column[some], question.splits.left[some])
            work.move(k, int(question.outputs[k]), splits)
        return work

    @property
    def nbytes(self) -> int:
        """Without the cells, which the points keep."""
        kept = None if self._sums is None else self._sums[1]
        arrays = (self.gradient, self.hessian, kept, *self.position.values())
        return sum(array.nbytes for array in arrays if array is not None)

    def _begin(self, trees: Sequence[int]) -> Array:
        """Where each row is before any split, for trees of these numbers, (trees, n)."""
        place = np.zeros((len(trees), len(self.z)), np.int32)
        left_out = None if self.draws is None else self.draws.left_out(self.points, self.round, trees)
        if left_out is not None:
            place[left_out] = NOWHERE
        return place

    def move(self, k: int, output: int, splits: Splits) -> None:
        """Put each row into the node of tree k, of an output, that it belongs to."""
        before = self.splits.get(k) if self.output.get(k) == output else None
        if before is None or len(before) > len(splits) or not _equal(before, splits[: len(before)]):
            self.position[k], self.output[k] = self._begin([k])[0], output
        elif len(before) == len(splits):
            return
        self.position[k] = route(splits, self.z, self.position[k])
        self.splits[k] = splits

    def sums(self, question: HistogramsOf) -> Array:
        """Sums of all nodes, (3, cells): rows by cell are asked for first, and then, by the same, all of them."""
        name = hashlib.sha256(content_of(question)).hexdigest()
        if self._sums is None or self._sums[0] != name:
            if self.together is not None:
                found = self.together.sums(question, self.gradient, self.hessian)
            else:
                found = question._flat(lambda k: self.histograms(question, k))
            self._sums = name, found
        return self._sums[1]

    def histograms(self, question: HistogramsOf, k: int) -> list[Array]:
        """Of the nodes of tree k that are asked about: (3, cells) each."""
        hessian = None if self.hessian is None else self.hessian[question.outputs[k]]
        return self._added(question, k, hessian, self.outside[question.outputs[k]])

    def rows_outside(self, question: HistogramsOf, k: int) -> list[Array]:
        """The same, of the rows alone that the tree is grown without."""
        left_out = self.outside[question.outputs[k]]
        if left_out is None:
            nodes = int((question.asked[:, 0] == k).sum())
            size = int(question.cells.astype(np.int64)[question.columns[k]].sum())
            return [np.zeros((3, size)) for _ in range(nodes)]
        return self._added(question, k, None, ~left_out)

    def _added(self, question: HistogramsOf, k: int, hessian: Array | None, left_out: Array | None) -> list[Array]:
        """Sums over the rows that are not left out."""
        nodes = question.asked[question.asked[:, 0] == k, 1]
        if not len(nodes):
            return []
        slots = np.full(NOWHERE + 1, -1, np.int64)
        slots[nodes] = np.arange(len(nodes))
        output, columns = question.outputs[k], question.columns[k]
        cells = question.cells.astype(np.int64)[columns]
        position = self.position[k] if left_out is None else np.where(left_out, np.int32(NOWHERE), self.position[k])
        rows = Rows(self.z, position, self.gradient[output], hessian)
        return list(sums_of_rows(rows, slots, len(nodes), columns, cells, short=self.units.bits == 32))

    def squares(self, question: HistogramsOf) -> Array:
        """Σ g² over the rows of each tree, each row rounded to a unit."""
        found = np.zeros(len(question.outputs))
        for k, (output, unit) in enumerate(zip(question.outputs, question._square_units, strict=True)):
            position = self.position[k] if self.together is None else self.together.position[k]
            g = self.gradient[output] * self.units.gradient[output]
            found[k] = np.rint(np.square(g[position != NOWHERE]) / unit).sum()
        return found


class Rows(NamedTuple):
    """What a tree sees of a client's rows."""

    z: Array
    """Cells, (n, C)."""
    position: Array
    """The node that each is in, (n,)."""
    gradient: Array
    """(n,), whole numbers."""
    hessian: Array | None


def sums_of_rows(rows: Rows, slots: Array, nodes: int, columns: Array, cells: Array, *, short: bool) -> Array:
    """Histograms (nodes, 3, cells) of the nodes that have a slot.  `short`: no sum of sizes is beyond 2^30."""
    size, first = int(cells.sum()), np.cumsum(cells) - cells
    fast = compiled(len(rows.z))
    if fast is not None:
        return _fast_sums(fast, rows, slots, (nodes, size), columns, first, short=short)
    out = np.zeros((nodes, size, 3), np.int64)
    for start in range(0, len(rows.z), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        hessian = None if rows.hessian is None else rows.hessian[some]
        block = Rows(rows.z[some], rows.position[some], rows.gradient[some], hessian)
        _add_block(block, slots, columns, first, out, short=short)
    return out.transpose(0, 2, 1).astype(np.float64)


def _fast_sums(
    fast: Compiled, rows: Rows, slots: Array, shape: tuple[int, int], columns: Array, first: Array, *, short: bool
) -> Array:
    """The same by compiled loops."""
    nodes, size = shape
    hessian = rows.gradient[:0] if rows.hessian is None else rows.hessian
    out = np.zeros((nodes * size, 2 if short else 3), np.int64)
    add = fast.short_sums if short else fast.sums
    add(by_column(rows.z), rows.position, slots, rows.gradient, hessian, columns, first, size, out)
    found = np.stack([out[:, 0] >> 32, out[:, 0] & (2**32 - 1), out[:, 1]]) if short else out.T
    return found.reshape(3, nodes, size).transpose(1, 0, 2).astype(np.float64)


def _add_block(rows: Rows, slots: Array, columns: Array, first: Array, out: Array, *, short: bool) -> None:
    """Add some rows to histograms (nodes, cells, 3), by NumPy.

    If sums are short, rows are counted in the upper digits of a sum of Hessians (or of gradients, if there are none).
    """
    slot = slots[rows.position]
    inside = np.flatnonzero(slot >= 0)
    if not len(inside):
        return
    slot, ends = slot[inside], np.append(first[1:], out.shape[1])
    g = rows.gradient[inside].astype(np.float64)
    h = None if rows.hessian is None else rows.hessian[inside].astype(np.float64)
    counted_in = g if h is None else h
    if short:
        counted_in += CARRY
    for column, start, end in zip(columns, first, ends, strict=True):
        key = slot * (end - start)
        key += rows.z[inside, column]
        shape = len(out), end - start

        def added(weights: Array | None, key: Array = key, shape: tuple[int, int] = shape) -> Array:
            return np.bincount(key, weights, shape[0] * shape[1]).reshape(shape)

        last = added(counted_in)
        count = np.rint(last / CARRY) if short else added(None)
        if short:
            last -= CARRY * count
        here = out[:, start:end]
        here[..., 0] += (last if h is None else added(g)).astype(np.int64)
        here[..., 1] += 0 if h is None else last.astype(np.int64)
        here[..., 2] += count.astype(np.int64)


def _as_integers(values: Array, bits: int) -> Array:
    """Whole numbers (n, c) as integers, an output after the other: (c, n)."""
    if not np.abs(values).max(initial=0.0) <= 2.0 * (SHORT if bits == 32 else EXACT):
        raise DivergedError(
            f"gradients are beyond their bound; choose a smaller {option('step_size')}, or look for huge values"
        )
    return np.ascontiguousarray(values.T, np.int32 if bits == 32 else np.int64)


def _equal(a: Splits, b: Splits) -> bool:
    return bool(
        np.array_equal(a.node, b.node) and np.array_equal(a.column, b.column) and np.array_equal(a.left, b.left)
    )
