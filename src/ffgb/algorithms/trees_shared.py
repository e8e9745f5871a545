"""Gradient boosting of trees in L²(α), α all clients' points together: computed where the rows are.

The oracle's answer to the global gradient is a tree, and a tree is grown from sums over all rows: of gradients,
Hessians and rows, by node, column and bin.  So the server runs the method, and asks for sums where a central program
would compute them.  No client has a gradient of its own to be right about, so there is no residual to carry.  The sums
are whole numbers of a public unit (core/exact_sums.py): the model has the same bits over any split of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Cells, Step
from ffgb.algorithms.ffgb_shared import fit
from ffgb.core.draws import Draws
from ffgb.core.folds import Folds
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.histograms import GradientOrders, Histograms, HistogramsOf, RowCounts, Units, weights_of_classes
from ffgb.core.losses import Loss
from ffgb.core.losses.square import Square
from ffgb.core.merged_cells import MergedHistograms, NodeRows
from ffgb.core.questions import Ask
from ffgb.core.seeds import stream
from ffgb.core.splits import Layout, Splits
from ffgb.core.tree_growth import GRADIENT, ROWS, Finder, Growing, Grown, Growth, take_all
from ffgb.core.types import Array, Tensors
from ffgb.core.versions import Versions
from ffgb.errors import FFGBError, SettingError, option
from ffgb.learners.boosted_trees import BoostedTrees, least_drawn, least_in_total, rounded, row_share
from ffgb.settings import LEARNER, METHOD, Setting, Values

SHARE, LEAST_COLUMNS = 0.3, 4
"""Of a tree's columns, if no one says."""


@final
@dataclass(frozen=True)
class TreesShared(Cells):
    """A round grows some trees side by side from one gradient, and adds their mean."""

    rate: float = 0.1
    """The learning rate."""
    side_by_side: int = 1
    """Trees of a round, for each output."""
    share: float = 1.0
    """Of the columns, drawn anew for each tree."""
    least_columns: int = 1
    """Of a tree, if there are so many."""
    growth: Growth = Growth()  # noqa: RUF009
    monotone: tuple[str, ...] = ()
    """Columns whose values must not go down ("age+") or up ("age-")."""
    bits: Literal[32, 64] | None = None
    """Of the sums; None: as few as are fine enough."""
    least: int = 1
    """Rows of all clients in each cell of a node whose gradients are summed, or none: cells with fewer are merged."""
    draws: Draws | None = None
    """The rows that each tree is grown from; None: all."""
    seed: int = 0
    start_values: tuple[float, ...] = ()
    """f^0, a constant."""
    rows: int = 0
    """Of all clients, when they were counted."""
    weighted: bool = False
    """Some of them have weights."""
    mu: float = 0.0

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        """With the settings of a run."""
        growth = Growth(
            config.leaves,
            config.levels,
            least_drawn(config),
            config.leaf_hessian,
            config.leaf_ridge,
            by_level=config.growth == "level",
        )
        return cls(
            config.tree_rate,
            config.trees_a_round,
            SHARE if config.column_share is None else config.column_share,
            LEAST_COLUMNS if config.column_share is None else 1,
            growth,
            tuple(config.monotone),
            None,
            least_in_total(config),
            Draws.of(row_share(config), config.seed),
            config.seed,
        )

    def eta(self, k: int, t: int) -> float:
        return self.rate

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """f^0 is the best constant: scaled targets have it at 0; of classes it is known by their shares."""
        if not isinstance(family, BoostedTrees):
            raise FFGBError(f"histograms are of binned columns; use {option('learner', BoostedTrees.name)}")
        if not len(family.layout.usable):
            raise FFGBError(
                "no column can be divided into two bins with enough rows; use more rows, or a smaller "
                f"{option('leaf_rows')}"
            )
        _signs(self.monotone, family)
        classes = max(loss.outputs, 2) if loss.classification else 0
        rows, weighted = ask(RowCounts(classes))
        known = replace(self, rows=int(rows.sum()), weighted=weighted > 0)
        if not classes:
            return known
        weights = weights_of_classes(ask, classes) if weighted else rows
        start = np.log(np.maximum(weights, 0.5 * weights.sum() / rows.sum()))  # half a row of a class that no one has
        start = start[1:] - start[0] if loss.outputs == 1 else start - start.mean()
        return replace(known, start_values=tuple(rounded(start).tolist()))

    def start(self, family: Family, seed: int, begins: Tensors | None = None) -> Function:
        if begins is not None or not self.start_values:
            return super().start(family, seed, begins)
        return cast(BoostedTrees, family).constant(np.array(self.start_values))

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """Gradient, trees, step."""
        family = cast(BoostedTrees, f.family)
        flat = flat_curvature(loss) and not self.weighted
        units = units_of_round(loss, ask, self.rows, self.bits, weighted=self.weighted, flat=flat)
        outputs = np.tile(np.arange(loss.outputs, dtype=np.int32), self.side_by_side)
        columns = self.columns_of(t, len(outputs), family.layout.usable)
        grown = None
        while grown is None:
            rules = Sampling(self.least, None, self.draws)
            grown = grow_trees(ask, family, self.finders(columns, family), units, outputs, rules)
        trees, square = grown
        h = family.sum_of(trees, outputs, self.rate / self.side_by_side)
        return Step(h, 1.0, 1.0, False, self.measured(trees, square, loss.outputs))

    def columns_of(self, t: int, trees: int, usable: Array) -> Array:
        """The columns that each tree may split, (trees, k)."""
        # trees with the same columns would be the same trees
        most = len(usable) - (self.share < 1.0 and self.side_by_side > 1 and len(usable) > 2)
        some = min(most, max(1, round(self.share * len(usable)), self.least_columns))
        if some == len(usable):
            return np.tile(usable.astype(np.int32), (trees, 1))
        rng, deck = stream(self.seed, "columns", t), list[int]()
        dealt = np.zeros((trees, some), np.int32)
        for hand in dealt:
            # as from a deck of cards, so that no column comes twice before all have come
            mine: list[int] = []
            while len(mine) < some:
                if not deck:
                    deck = [c for c in rng.permutation(usable).tolist() if c not in mine]
                mine.append(deck.pop())
            hand[:] = sorted(mine)
        return dealt

    def finders(self, columns: Array, family: BoostedTrees) -> list[Finder]:
        signs = _signs(self.monotone, family)
        return [Finder(some, family.layout, self.growth, signs) for some in columns]

    def measured(self, trees: Sequence[Grown], square: Array, outputs: int) -> Mapping[str, float | None]:
        """γ of the trees' mean is at least the mean of the trees' γ, for norms are convex; a tree an output each.

        The norm is that of the rows that a tree is grown from, whose Σ‖φ‖² is `square`.
        """
        if self.weighted:
            return {"gamma": None, "explained": None, "noise": None}
        found = []
        for k in range(0, len(trees), outputs):
            inner, own, whole = 0.0, 0.0, 0.0
            for tree, phi in zip(trees[k : k + outputs], square[k : k + outputs].tolist(), strict=True):
                values, sums, rows = (
                    tree.values[tree.leaves],
                    tree.sums[tree.leaves],
                    max(float(tree.sums[0, ROWS]), 1.0),
                )
                inner -= float(values @ sums[:, GRADIENT]) / rows
                own += float(np.square(values) @ sums[:, ROWS]) / rows
                whole += phi / rows
            found.append(fit(inner, own, whole))
        gamma, explained = np.mean(found, axis=0)
        return {"gamma": float(gamma), "explained": float(explained), "noise": None}


def flat_curvature(loss: Loss) -> bool:
    """Is the curvature 1 at every row?"""
    return isinstance(loss.inner if isinstance(loss, Versions) else loss, Square)


def units_of_round(
    loss: Loss, ask: AskInRound, rows: int, bits: Literal[32, 64] | None, *, weighted: bool, flat: bool
) -> Units:
    """What gradients are counted in: by the bounds of the loss, or by how large they are."""
    known = None if weighted else Units.bounded(loss, rows, bits, flat=flat)
    if known is not None:
        return known
    gradient, hessian = ask(GradientOrders(loss.outputs))
    return Units.of(gradient, hessian, rows, bits, flat=flat)


class Sampling(NamedTuple):
    """Which rows are in the sums that trees are grown from."""

    least: int = 1
    """Rows in each cell of a node, or none."""
    folds: Folds | None = None
    """What versions of f are trained without; None: there is one, trained with all rows."""
    draws: Draws | None = None
    """Each tree's share of the rows; None: all."""


def grow_trees(
    ask: AskInRound,
    family: BoostedTrees,
    finders: Sequence[Finder],
    units: Units,
    outputs: Array,
    sampling: Sampling = Sampling(),  # noqa: B008  (it is a constant)
) -> tuple[list[Grown], Array] | None:
    """Trees that grow side by side, a level an exchange; and Σ‖φ‖² over the rows of each.

    It is two exchanges if cells of a node with few rows are merged: rows by cell come first.

    None if a client has left in between, whose rows are in some of the sums: then all must be asked again.
    """
    layout, least = family.layout, sampling.least
    trees = [Growing(finder, layout) for finder in finders]
    columns = np.stack([finder.columns for finder in finders]).astype(np.int32)
    square, who = np.zeros(len(trees)), list[int]()
    first = True
    while any(tree.wanted for tree in trees):
        question = _question(trees, columns, layout, units, outputs, first, sampling)
        total: Histograms = ask(question if least <= 1 else _merged(ask, trees, question, layout, least))
        if total.square is not None:
            square, who = total.square, list(ask.present)
        if list(ask.present) != who:
            return None
        first, nodes = False, iter(total.nodes)
        take_all([(tree, [next(nodes) for _ in tree.wanted]) for tree in trees if tree.wanted])
    return [tree.grown() for tree in trees], square


def _merged(
    ask: AskInRound, trees: Sequence[Growing], question: HistogramsOf, layout: Layout, least: int
) -> MergedHistograms:
    """The question, by cells that have enough rows."""
    rows, heads = list(ask(NodeRows(question))), list[Array]()
    for tree in trees:
        heads += tree.merge([rows.pop(0) for _ in tree.wanted], layout, least)
    _, first = question.columns_of_cells
    places = np.concatenate([each + at for each, at in zip(heads, question.starts, strict=True)])
    return MergedHistograms(question, (places - first).astype(np.int16))


def _question(
    trees: Sequence[Growing],
    columns: Array,
    layout: Layout,
    units: Units,
    outputs: Array,
    first: bool,
    sampling: Sampling,
) -> HistogramsOf:
    """What the trees want, of those that still grow."""
    splits = [tree.splits if tree.wanted else tree.splits[:0] for tree in trees]
    together = Splits(
        np.concatenate([s.node for s in splits]),
        np.concatenate([s.column for s in splits]),
        np.concatenate([s.left for s in splits]),
    )
    number = np.repeat(np.arange(len(trees), dtype=np.int16), [len(s) for s in splits])
    asked = np.array([(k, node) for k, tree in enumerate(trees) for node in tree.wanted], np.int32)
    cells = layout.cells.astype(np.int16)
    more = first, sampling.folds, sampling.draws
    return HistogramsOf(units, cells, outputs, columns, number, together, asked, *more)


def _signs(monotone: Sequence[str], family: BoostedTrees) -> Array:
    """Of each column, 1 if its values must not go down, −1 if not up, else 0."""
    signs = np.zeros(family.features.dimension, np.int64)
    for given in monotone:
        name, sign = given[:-1], {"+": 1, "-": -1}.get(given[-1:])
        if sign is None:
            raise SettingError("monotone", f"names columns with + or - after them, such as age+, not {given!r}")
        if name not in family.features.names:
            raise SettingError("monotone", f"names {name!r}, which is no column that trees can split")
        column = family.features.names.index(name)
        if family.features.categorical[column]:
            raise SettingError("monotone", f"names {name!r}, whose categories have no order")
        signs[column] = sign
    return signs


SETTINGS = (
    Setting(
        "trees_a_round",
        "whole",
        "Trees that grow side by side in a round, and are averaged (trees).",
        METHOD,
        unset="by learner",
        least=1,
        when="More trees side by side need fewer rounds, and so fewer exchanges; 1 is boosting as everywhere.",
    ),
    Setting("tree_rate", "number", "Learning rate (trees, blend).", METHOD, unset="by learner", above=0.0, most=1.0),
    Setting(
        "column_share",
        "number",
        "Share of the columns that a tree may split, drawn for each (trees).",
        LEARNER,
        unset=f"{SHARE}, but at least {LEAST_COLUMNS} columns",
        above=0.0,
        most=1.0,
    ),
    Setting(
        "row_share",
        "number",
        "Share of the rows that a tree is grown from, drawn for each with a secret of the site (trees, blend).",
        LEARNER,
        unset="by learner",
        above=0.0,
        most=1.0,
        when="1 takes all rows: then the difference of two trees' sums may tell something about single rows.",
    ),
    Setting(
        "growth",
        "text",
        "level: all nodes of a level at a time, until there are enough leaves; best: the largest gain first (trees).",
        LEARNER,
        "level",
        choices=("level", "best"),
    ),
    Setting(
        "monotone",
        "names",
        "Columns along which predictions never go down, such as age+, or never up, such as price- (trees).",
        LEARNER,
        (),
    ),
)
