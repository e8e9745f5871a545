"""Additive models in L²(α), α all clients' points together: Newton's method on sums over all rows.

A round asks for sums of gradients and Hessians by bin, and then some times for how the gradients change along a step.
From these the server computes the posterior mean of all columns' terms under smooth priors, whose scales have the
largest evidence (core/additive.py).  What it adds to f is a sum of trees that split one column each
(learners/additive.py).  The sums are whole numbers of a public unit: the model has the same bits over any split of the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Cells, Step
from ffgb.algorithms.ffgb_shared import fit
from ffgb.algorithms.trees_shared import TreesShared, units_of_round
from ffgb.core.additive import Column, Corrected, Fit, Prior, Sums, conjugate, independent, of_means, posterior
from ffgb.core.cell_sums import ByCell, CellSums, CurvatureAlong
from ffgb.core.draws import Draws
from ffgb.core.folds import Folds
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.histograms import Units
from ffgb.core.losses import Loss
from ffgb.core.losses.huber import Huber
from ffgb.core.merged_cells import MergedColumns, NodeRows
from ffgb.core.questions import Ask
from ffgb.core.slopes_along import SlopesAlong, safe_length
from ffgb.core.splits import Layout
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, SettingError, option
from ffgb.features.bins import Bins
from ffgb.learners.additive import CELLS_A_ROW, sum_of_terms, terms_of
from ffgb.learners.boosted_trees import BoostedTrees, rounded
from ffgb.settings import Values

MOST_CELLS = 2500
"""Of all columns together: the server's work grows with the cube."""
MOST_NUMBERS = 2**27
"""In the matrices of all outputs together, each over pairs of cells: 1 GB, and a round needs twice as much."""
LOOKS, SURE = 6, 0.1
"""How often a round asks for the curvature along its step, at most; and how wrong, as a share of it, it may be."""
CELLS_A_LOOK = 16
"""Of few cells, a round looks fewer times: in eight rounds, half as often as there are cells.  From as many looks as
cells the rows in each pair of cells would follow."""
FINE = 2.0**32
"""Directions are whole multiples of one of so many parts."""
LENGTHS = (0.0, *(2.0**-k for k in range(10)))
"""Of a step that may go too far."""


@final
@dataclass(frozen=True)
class AdditiveShared(Cells):
    """A round is one Newton step for all columns' terms."""

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
        if config.monotone:
            raise SettingError("monotone", "is for trees; additive models have no monotone terms: leave it out")
        return cls()

    def eta(self, k: int, t: int) -> float:
        return 1.0

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """f^0 is the best constant, as for trees."""
        known = cast(TreesShared, TreesShared().prepared(ask, family, loss, mean, scale))
        layout = cast(BoostedTrees, family).layout
        if (cells := int(layout.cells[layout.usable].sum())) > MOST_CELLS:
            raise FFGBError(
                f"{len(layout.usable)} columns have {cells} bins together, and an additive model takes up to "
                f"{MOST_CELLS}; choose fewer {option('bins')}, or {option('learner', 'trees')}"
            )
        if (numbers := numbers_of(layout, loss.outputs)) > MOST_NUMBERS:
            raise FFGBError(
                f"an additive model of {loss.outputs} outputs and {cells} bins needs {16e-9 * numbers:,.1f} GB at the "
                f"server, and takes up to {16e-9 * MOST_NUMBERS:,.1f} GB; choose fewer {option('bins')}, or "
                f"{option('learner', 'trees')}"
            )
        if known.weighted and isinstance(loss, Huber):
            raise FFGBError(
                f"additive models take no {option('loss', 'huber')} where rows have weights; use "
                f"{option('loss', 'square')}"
            )
        return replace(self, start_values=known.start_values, rows=known.rows, weighted=known.weighted)

    def start(self, family: Family, seed: int, begins: Tensors | None = None) -> Function:
        return TreesShared(start_values=self.start_values).start(family, seed, begins)

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """Sums, posterior mean, step."""
        family = cast(BoostedTrees, f.family)
        columns = family.layout.usable.astype(np.int32)
        outputs = np.arange(loss.outputs, dtype=np.int32)
        found = newton_step(f, loss, ask, (self.rows, self.weighted), outputs, loss.outputs)
        step = safe_step(found, loss.outputs, self.rows, ask, lambda some: sum_of_terms(family, columns, some))
        h, sums = sum_of_terms(family, columns, step), found.sums
        return Step(h, 1.0, 1.0, False, self._measured(step, sums, found.units))

    def _measured(self, step: Array, sums: Sums, units: Units) -> Mapping[str, float | None]:
        """γ in L²(α), where the curvature of all rows is 1: elsewhere the sums do not say how large a step is."""
        if self.weighted or not units.flat:
            return {"gamma": None, "explained": None, "noise": None}
        inner = -float(np.vdot(step, sums.gradient)) / self.rows
        own = float(sum(d @ gram @ d for d, gram in zip(step, sums.curvature, strict=True))) / self.rows
        gamma, explained = fit(inner, own, float(sums.square.sum()) / self.rows)
        return {"gamma": gamma, "explained": explained, "noise": None}


class Newton(NamedTuple):
    """A step of all columns' terms."""

    step: Array
    """What is added to the constant and to the cells of the usable columns, (outputs, 1 + cells)."""
    sums: Sums
    units: Units


def newton_step(
    f: Function,
    loss: Loss,
    ask: AskInRound,
    known: tuple[int, bool],
    outputs: Array,
    together: int,
    folds: Folds | None = None,
    least: int = 1,
    draws: Draws | None = None,
) -> Newton:
    """The Newton step of some entries of f, whose terms share their scales.

    `known` are the rows of all clients, and whether some have weights.  The first `together` entries are those of the
    classes, or targets; the others are the same in versions of f that are trained without some rows.  Cells of these
    are merged until the difference from the first version is a sum over at least `least` rows, or none.  `draws` says
    from which rows sums are.
    """
    family, (rows_of_all, weighted) = cast(BoostedTrees, f.family), known
    layout, columns = family.layout, family.layout.usable.astype(np.int32)
    # of losses whose curvature is 1 at most it is taken to be 1: such a step never goes too far
    flat = loss.smooth and not loss.classification and not weighted
    units = units_of_round(loss, ask, rows_of_all, None, weighted=weighted, flat=flat)
    question = CellSums(units, layout.cells.astype(np.int16), columns, layout.width, outputs, folds, None, draws)
    merged = None
    if folds is not None and least > 1:
        merged = MergedColumns.of(ask(NodeRows(question.single)), layout, columns, least)
        question = replace(question, heads=merged.within)
    by_cell: ByCell = ask(question)
    rows = by_cell.rows[0, 1:] if merged is None else merged.rows[0]
    sums = _at_first(by_cell, layout.cells[columns].tolist(), merged)
    terms = terms_of(f, columns)[outputs]
    steeper = together / (together - 1.0) if loss.classification and together > 1 else 1.0
    prior, dispersed = prior_of(family.features, columns, rows), loss.dispersed

    def fitted(sums: Sums) -> Fit:
        return posterior(prior, sums, terms, dispersed=dispersed, steeper=steeper)

    first, seen = fitted(sums), _Seen.of(sums.curvature)
    step = first.terms - terms
    for _ in range(min(LOOKS, max(1, sums.gradient.shape[1] // CELLS_A_LOOK))):
        directions = seen.next(step if merged is None else merged.means(step), question)
        along: Array = ask(CurvatureAlong(question, directions))
        seen, wrong = seen.look(directions, along if merged is None else merged.spread(along))
        if wrong <= SURE:
            break
        step = first.again(prior, terms, sums.gradient, seen.curvature, steeper=steeper) - terms
    del first  # its factors are as large as the matrices
    sums = replace(sums, curvature=[own.whole() for own in seen.curvature])
    del seen
    return Newton(rounded(fitted(sums).terms - terms), sums, units)


def _at_first(by_cell: ByCell, sizes: Sequence[int], merged: MergedColumns | None) -> Sums:
    """The sums, and the curvature as if columns were independent."""
    gradient, diagonal = by_cell.gradient, by_cell.curvature
    if merged is None:
        curvature = [independent(own, sizes) for own in diagonal]
    else:
        gradient, diagonal = merged.spread(gradient), merged.spread(diagonal)
        known = zip(diagonal, merged.heads, merged.shares, strict=True)
        curvature = [of_means(independent(own, sizes), heads, shares) for own, heads, shares in known]
    return Sums(gradient, curvature, by_cell.square, float(by_cell.rows[0, 0]))


@final
@dataclass(frozen=True)
class _Seen:
    """Of each output what is known of its curvature, and the directions along which it is known."""

    curvature: Sequence[Corrected]
    directions: Sequence[Sequence[tuple[Array, Array]]]
    """Each with what the curvature does to it."""

    @staticmethod
    def of(curvature: Sequence[Array]) -> _Seen:
        return _Seen([Corrected.of(base) for base in curvature], [() for _ in curvature])

    def next(self, steps: Array, question: CellSums) -> Array:
        """Directions for the next look, by the steps that seem best: at no row they add up to more than 1."""
        directions = np.stack([conjugate(step, own) for step, own in zip(steps, self.directions, strict=True)])
        sizes = question.cells[question.columns].astype(np.int64)
        first = np.concatenate([[0], 1 + np.cumsum(sizes) - sizes])
        most = np.maximum.reduceat(np.abs(directions), first, axis=1).sum(axis=1, keepdims=True)
        found: Array = np.rint(FINE * directions / np.maximum(most, 1e-300) * (1.0 - 2.0**-20)) / FINE
        return found

    def look(self, directions: Array, along: Array) -> tuple[_Seen, float]:
        """What is known then; and how wrong the curvature has been along the directions, as a share of it."""
        found, seen, wrong = list(self.curvature), list(self.directions), 0.0
        for k, (v, own) in enumerate(zip(directions, along, strict=True)):
            now, right = float(v @ (found[k] @ v)), float(v @ own)
            if now > 0.0 and right > 1e-6 * now:
                wrong = max(wrong, abs(now - right) / right)
                found[k] = found[k].along(v, own)
                seen[k] = (*seen[k], (v, own))
        return _Seen(found, seen), wrong


def safe_step(found: Newton, c: int, rows: int, ask: AskInRound, f_of: Callable[[Array], Function]) -> Array:
    """The step, or a shorter one: `f_of` makes a function of the first c entries of a step, which are looked at.

    The curvature is known along some directions.  Along others it may be far larger than it seems, where columns
    determine one another, such as the indicators of one category.
    """
    sums, some = found.sums, found.step[:c]
    largest = float(max(np.abs(some).max(initial=0.0), 2.0**-40)) * float(np.count_nonzero(some.any(axis=0)) + 1)
    most = largest * float(np.abs(sums.gradient[:c, 0]).sum() + np.sqrt(sums.rows * sums.square[:c]).sum() + 1.0)
    slopes: Array = ask(SlopesAlong(LENGTHS, most, rows), f_of(some))
    return rounded(safe_length(LENGTHS, slopes) * found.step)


def fits(layout: Layout, rows: int, outputs: int) -> bool:
    """Has the table few enough cells, also for so many rows, and for so many outputs?"""
    few = 0 < int(layout.cells[layout.usable].sum()) <= min(MOST_CELLS, CELLS_A_ROW * rows)
    return few and numbers_of(layout, outputs) <= MOST_NUMBERS


def numbers_of(layout: Layout, outputs: int) -> int:
    """In matrices over pairs of cells, one an output."""
    return outputs * (1 + int(layout.cells[layout.usable].sum())) ** 2


def prior_of(bins: Bins, columns: Array, rows: Array) -> Prior:
    """The prior of the columns' terms, given the rows of each cell."""
    found, at = list[Column](), 0
    for column in columns.tolist():
        size = int(bins.layout.cells[column])
        values = None if bins.categorical[column] else centres(bins.cuts_of(column))
        found.append(Column(rows[at : at + size], values))
        at += size
    return Prior.of(found)


def centres(cuts: Array) -> Array:
    """A value for each bin between cuts; the first and the last are as wide as their neighbours.

    >>> centres(np.array([1.0, 3.0, 4.0]))
    array([0. , 2. , 3.5, 4.5])
    """
    if not len(cuts):  # one bin, and a cell of missing values
        return np.zeros(1)
    if len(cuts) == 1:
        return np.array([float(cuts[0]) - 0.5, float(cuts[0]) + 0.5])
    cuts = cuts.astype(np.float64)
    width = np.diff(cuts)
    middle = 0.5 * (cuts[1:] + cuts[:-1])
    return np.concatenate([[cuts[0] - 0.5 * width[0]], middle, [cuts[-1] + 0.5 * width[-1]]])
