"""Questions about f^t that trees are grown from: sums of gradients, Hessians and rows by node, column and cell.

Each row's gradient and Hessian is rounded to a whole multiple of a public unit before it is added (exact_sums.py), so a
total has the same bits over any split of the rows.  A question carries the trees as they are so far.  A client that has
kept which node each of its rows is in moves them by the newest splits alone; one that has lost it starts from the root,
and comes to the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np

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
from ffgb.core.losses import Loss
from ffgb.core.questions import Ask, Here, Question, RoundQuestion, Sum, known
from ffgb.core.splits import Splits, route
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

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
    """Σ g² of each output over all rows, if it was asked for."""


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

    @cached_property
    def _sizes(self) -> Array:
        """Cells of each node that is asked about."""
        sizes: Array = self.cells.astype(np.int64)[self.columns].sum(axis=1)
        return sizes[self.asked[:, 0]]

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape, bits = (int(self._sizes.sum()),), self.units.bits
        names = ("gradients", "rows") if self.units.flat else ("gradients", "hessians", "rows")
        found = {name: counted(shape, bits) for name in names}
        if self.square:
            found["squares"] = counted((len(self.units.gradient),))
        return found

    def part(self, here: Here) -> Tensors:
        work = _Work.of(here, self)
        parts = [work.histograms(self, k) for k in range(len(self.outputs))]
        order = np.argsort(np.argsort(self.asked[:, 0], kind="stable"), kind="stable")
        nodes = [node for part in parts for node in part]  # by tree
        flat = np.concatenate([nodes[k] for k in order], axis=1)
        found = {"gradients": flat[0], "rows": flat[2]}
        if not self.units.flat:
            found["hessians"] = flat[1]
        if self.square:
            found["squares"] = work.squares(self)
        return found

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        counts = own["rows"]
        if (counts < 0).any() or (own.get("hessians", counts) < 0).any():
            raise FFGBError("its counts of rows, or its sums of Hessians, are negative")
        inside, at = np.zeros(len(self.outputs)), 0
        for tree, _ in self.asked:
            cells = self.cells.astype(np.int64)[self.columns[tree]]
            found = np.add.reduceat(counts[at : at + cells.sum()], np.concatenate([[0], np.cumsum(cells)[:-1]]))
            at += int(cells.sum())
            if (found != found[0]).any():
                raise FFGBError("its counts of a node's rows differ from column to column")
            inside[tree] += found[0]
        if (inside > rows).any():
            raise FFGBError(f"it counts {inside.max():g} rows in the nodes of a tree, and has {rows}")

    def total(self, sums: Tensors) -> Histograms:
        # powers of two: nothing is rounded
        output = np.repeat(self.outputs[self.asked[:, 0]], self._sizes)
        gradient = sums["gradients"] * self.units.gradient[output]
        hessian = sums["rows"] if self.units.flat else sums["hessians"] * self.units.hessian[output]
        flat = np.stack([gradient, hessian, sums["rows"]])
        square = sums["squares"] * self._square_units if self.square else None
        return Histograms(np.split(flat, np.cumsum(self._sizes)[:-1], axis=1), square)

    @cached_property
    def _square_units(self) -> Array:
        """Σ g² ≤ (Σ |g|)², and that is at most this many units of the gradient, squared."""
        most = SHORT if self.units.bits == 32 else EXACT
        units: Array = np.square(self.units.gradient) * most * (most / EXACT)
        return units


def derivatives(here: Here) -> tuple[Array, Array]:
    """Gradient and Hessian of each row at f^t, times its weight: (n, c) each."""
    assert here.loss is not None
    f, y = known(here.f), known(here.y)
    return weighed(here, here.loss.gradient(f, y)), weighed(here, here.loss.curvature(f, y))


@final
class _Work:
    """What a client has computed for the trees of a round.  All of it follows from f^t and the question."""

    def __init__(self, here: Here, units: Units, folds: Folds | None) -> None:
        assert here.family is not None
        self.f, self.units = here.f, units
        self.z = here.points.features(here.family.features)
        g, h = derivatives(here)
        # a column an output, each in one piece
        self.gradient = np.asfortranarray(whole(g, units.gradient))
        self.hessian = None if units.flat else np.asfortranarray(whole(h, units.hessian))
        self.splits: dict[int, Splits] = {}
        self.position: dict[int, Array] = {}
        self.inside: list[Array | None] = [None] * self.gradient.shape[1]
        """Of each output, the rows that count; None: all."""
        if folds is not None:
            self._leave_out(here, folds)

    def _leave_out(self, here: Here, folds: Folds) -> None:
        """Rows that a version is trained without count for nothing."""
        each = self.gradient.shape[1] // len(folds.without)
        for version in range(len(folds.without)):
            inside = folds.inside(here.points, version)
            if inside is not None:
                outputs = slice(version * each, (version + 1) * each)
                self.inside[outputs] = [inside] * each
                self.gradient[~inside, outputs] = 0.0

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
        )
        work = kept if same else _Work(here, units, question.folds)
        assert isinstance(work, _Work)
        here.points.aside = work
        for k in range(len(question.outputs)):
            some = question.tree == k
            work.move(k, Splits(question.splits.node[some], question.splits.column[some], question.splits.left[some]))
        return work

    @property
    def nbytes(self) -> int:
        """Without the cells, which the points keep."""
        arrays = (self.gradient, self.hessian, *self.position.values())
        return sum(array.nbytes for array in arrays if array is not None)

    def move(self, k: int, splits: Splits) -> None:
        """Put each row into the node of tree k that it belongs to."""
        before = self.splits.get(k)
        if before is None or len(before) > len(splits) or not _equal(before, splits[: len(before)]):
            self.position[k] = np.zeros(len(self.gradient), np.int32)
        elif len(before) == len(splits):
            return
        self.position[k] = route(splits, self.z, self.position[k])
        self.splits[k] = splits

    def histograms(self, question: HistogramsOf, k: int) -> list[Array]:
        """Of the nodes of tree k that are asked about: (3, cells) each."""
        nodes = question.asked[question.asked[:, 0] == k, 1]
        if not len(nodes):
            return []
        slots = np.full(max(2 * len(self.splits[k]) + 1, int(nodes.max()) + 1), -1, np.int64)
        slots[nodes] = np.arange(len(nodes))
        slot, output = slots[self.position[k]], question.outputs[k]
        inside = self.inside[output]
        rows = np.flatnonzero(slot >= 0 if inside is None else (slot >= 0) & inside)
        slot, g = slot[rows], self.gradient[rows, output]
        h = None if self.hessian is None else self.hessian[rows, output]
        cells = question.cells.astype(np.int64)[question.columns[k]]
        out, at = np.zeros((len(nodes), 3, int(cells.sum()))), 0
        for column, count in zip(question.columns[k], cells, strict=True):
            key, size, here = slot * count + self.z[rows, column], len(nodes) * count, slice(at, at + count)
            out[:, 0, here] = np.bincount(key, g, size).reshape(-1, count)
            out[:, 2, here] = np.bincount(key, minlength=size).reshape(-1, count)
            if h is not None:
                out[:, 1, here] = np.bincount(key, h, size).reshape(-1, count)
            at += int(count)
        return list(out)

    def squares(self, question: HistogramsOf) -> Array:
        """Σ g² of each output, each row rounded to a unit."""
        squares = np.square(self.gradient * self.units.gradient) / question._square_units
        total: Array = np.rint(squares).sum(axis=0)
        return total


def _equal(a: Splits, b: Splits) -> bool:
    return bool(
        np.array_equal(a.node, b.node) and np.array_equal(a.column, b.column) and np.array_equal(a.left, b.left)
    )
