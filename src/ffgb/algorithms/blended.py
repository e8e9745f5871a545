"""Several kinds of boosted trees from totals, grown side by side, stopped, blended and calibrated by rows set aside.

A *strand* is a way to train: gradient boosting with deep trees (trees_shared.py); shallow trees on top of an additive
model; and the additive model alone (additive_shared.py).  Each strand has several *versions*: one that is trained with
all rows, and one for each fold, without the rows of that fold (core/folds.py).  All of them grow in the same exchanges.
A row is judged by the versions that have not seen it.  So one training finds how many rounds are best, what each strand
should weigh, and by which factor f must shrink for its probabilities to be right; and the versions with all rows are
the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Cells, Chosen, Step
from ffgb.algorithms.additive_shared import fits, newton_step, safe_step
from ffgb.algorithms.trees_shared import Sampling, TreesShared, flat_curvature, grow_trees, units_of_round
from ffgb.core.folds import Folds, HeldOut, Judged
from ffgb.core.functions import Block, Family, Function, OpenSum
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.questions import Ask
from ffgb.core.tree_growth import Finder, Growth
from ffgb.core.types import Array, Tensors
from ffgb.core.versions import Versions
from ffgb.errors import FFGBError
from ffgb.learners.additive import sum_of_terms
from ffgb.learners.boosted_trees import BoostedTrees, least_drawn
from ffgb.settings import METHOD, Setting, Values

NEWTON_STEPS, QUADRATIC_STEPS = 7, 3
"""Of the additive model; where the loss is quadratic, further steps only settle its scales."""
FOLDS = ((500, 3), (5_000, 5))
"""With fewer rows than this each is set aside once, in one of so many folds.  Cells of few rows are merged in folds,
too (core/merged_cells.py), so that folds of the smallest tables must not be small."""
PARTS = ((20_000, 3), (math.inf, 5))
"""With more rows one part of so many is set aside, and no other."""
ASTRAY = 0.05
"""Shallow trees whose loss is so much beyond that of the blend, and which it does without, need not grow."""
SHARES_IN_TURN = (0.35, 0.7)
"""Of a tree's columns, round by round: few columns make trees that differ, and many find what columns do together."""
MOST_TREES = 6
"""Of a strand's version in a round, if that is one an output at least: several classes have fewer side by side."""
SLOPES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the later strands in the blend."""
SHARES_OF = ("share_deep", "share_shallow", "share_additive")
"""What the strands' shares in the blend are called in the metrics."""
ALONE = ("held_out_deep", "held_out_shallow", "held_out_additive")
"""What the scores of single strands are called in the metrics."""
SPREAD_OF_SLOPES, SPREAD_OF_SHARES = 0.3, 0.35
"""Standard deviations before any row has been seen: of the logarithm of a slope, and of each share about equal ones."""


WORTH = 1e-3
"""By how much of itself the score must have become better in the last rounds for more to be worth their while."""
LEAST_GAIN = 0.1
"""The same, of the sum of losses over all rows: less is noise."""


@final
@dataclass(frozen=True)
class Blended(Cells):
    """Strands of trees, each with a version a fold."""

    deep: TreesShared
    shallow: TreesShared
    smooth: int = 0
    """Newton steps of the additive model; 0: there is none."""
    patience: int = 8
    """Rounds without a better score after which training ends."""
    folds: Folds = Folds(PARTS[-1][1], 0, np.array([-1], np.int16))  # noqa: RUF009
    column_shares: tuple[float, ...] = ()
    """Of the columns that trees may split, in turn; none: always that of the strand."""
    mu: float = 0.0

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        """Deep trees and shallow ones, over the same shares of the columns."""
        deep = cast(TreesShared, TreesShared.configured(config))
        rows = least_drawn(config)
        shallow = Growth(config.shallow_leaves, 3, rows, config.leaf_hessian, config.leaf_ridge, by_level=True)
        shares = SHARES_IN_TURN if config.column_share is None else ()
        shallow_strand = replace(deep, growth=shallow, seed=deep.seed + 1)
        return cls(deep, shallow_strand, patience=config.patience, column_shares=shares)

    @property
    def strands(self) -> int:
        """How many ways to train there are: deep trees, shallow ones, the additive model."""
        return 3 if self.smooth else 2

    @property
    def each(self) -> int:
        """Versions of a strand."""
        return len(self.folds.without) // self.strands

    def eta(self, k: int, t: int) -> float:
        return self.deep.rate

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        known = cast(TreesShared, self.deep.prepared(ask, family, loss, mean, scale))
        side_by_side = min(known.side_by_side, max(1, round(MOST_TREES / loss.outputs)))
        known = replace(known, side_by_side=side_by_side)
        shallow = replace(self.shallow, rows=known.rows, weighted=known.weighted, side_by_side=side_by_side)
        safe = loss.classification or (loss.smooth and not known.weighted)  # Newton's steps need no shortening
        outputs = loss.outputs * len(folds_of(known.rows, 1, known.seed).without)
        fitting = safe and fits(cast(BoostedTrees, family).layout, known.rows, outputs) and not self.deep.monotone
        steps = QUADRATIC_STEPS if flat_curvature(loss) else NEWTON_STEPS
        smooth = steps if fitting else 0
        folds = folds_of(known.rows, 3 if smooth else 2, known.seed)
        return replace(self, deep=known, shallow=shallow, smooth=smooth, folds=folds)

    def trains(self, loss: Loss) -> Loss:
        return Versions(loss, len(self.folds.without))

    def tasked(self, loss: Loss) -> Loss:
        return cast(Versions, loss).inner

    def space(self, family: Family) -> Family:
        return replace(cast(BoostedTrees, family), outputs=family.outputs * len(self.folds.without))

    def start(self, family: Family, seed: int, begins: Tensors | None = None) -> Function:
        """f^0, the same constant in every version."""
        if begins is not None:
            raise FFGBError("a blend begins with a constant, and not with another model")
        c = family.outputs // len(self.folds.without)
        return cast(BoostedTrees, family).constant(np.tile(self._constant(c), len(self.folds.without)))

    def _constant(self, c: int) -> Array:
        return np.array(self.deep.start_values or (0.0,) * c)

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """Judge f^t by the rows that its versions have not seen; gradient, trees, step."""
        versions = cast(Versions, loss)
        c = versions.inner.outputs
        judged: Judged = ask(self._held_out(c))
        measured: dict[str, float | None] = {**self._best(judged), "terms": float(f.terms)}
        h = cast(BoostedTrees, f.family).zero()
        if t < self.smooth:
            h = h + self._additive(f, loss, ask, c)
        growing = (self.deep,) if t < self.smooth or self._done_without(judged) else (self.deep, self.shallow)
        grown, gamma = self._trees(t, growing, f, loss, ask)
        return Step(cast(OpenSum, h + grown).merged(), 1.0, 1.0, False, measured | dict(gamma))

    def _additive(self, f: Function, loss: Loss, ask: AskInRound, c: int) -> Function:
        """A Newton step of the additive model, which is the last strand, and the beginning of the shallow trees."""
        family, first = cast(BoostedTrees, f.family), 2 * self.each * c
        outputs = np.arange(first, first + self.each * c, dtype=np.int32)
        known, draws = (self.deep.rows, self.deep.weighted), self.deep.draws
        if draws is not None:  # in the first round all strands have the same gradient
            draws = replace(draws, first=True)
        found = newton_step(f, loss, ask, known, outputs, c, self.folds, self.deep.least, draws)
        columns = family.layout.usable.astype(np.int32)

        def whole(some: Array) -> Function:
            """Of the version with all rows."""
            (block,) = sum_of_terms(replace(family, outputs=c), columns, some).blocks
            return OpenSum(family, (_moved(block, first),))

        step = safe_step(found, c, self.deep.rows, ask, whole)
        (block,) = sum_of_terms(replace(family, outputs=len(outputs)), columns, step).blocks
        return OpenSum(family, tuple(_moved(block, place) for place in (first, first - self.each * c)))

    def _trees(
        self, t: int, growing: Sequence[TreesShared], f: Function, loss: Loss, ask: AskInRound
    ) -> tuple[Function, Mapping[str, float | None]]:
        """The next trees of these kinds, the same columns for all versions; and γ of the deep ones."""
        family, c = cast(BoostedTrees, f.family), cast(Versions, loss).inner.outputs
        outputs, finders, ends = list[int](), list[Finder](), [0]
        for place, kind in enumerate(growing):
            shares = self.column_shares or (kind.share,)
            strand = replace(kind, share=shares[t % len(shares)])
            columns = strand.columns_of(t, strand.side_by_side * c, family.layout.usable)
            finders += strand.finders(columns, family) * self.each
            for version in range(self.each):
                first = (place * self.each + version) * c
                outputs += [first + k for _ in range(strand.side_by_side) for k in range(c)]
            ends.append(len(outputs))
        grown = None
        while grown is None:
            flat = flat_curvature(loss) and not self.deep.weighted
            units = units_of_round(loss, ask, self.deep.rows, self.deep.bits, weighted=self.deep.weighted, flat=flat)
            rules = Sampling(self.deep.least, self.folds, self.deep.draws)
            grown = grow_trees(ask, family, finders, units, np.array(outputs, np.int32), rules)
        trees, square = grown
        h = family.zero()
        for strand, start, end in zip(growing, ends, ends[1:], strict=False):
            h = h + family.sum_of(trees[start:end], outputs[start:end], strand.rate / strand.side_by_side)
        some = slice(self.deep.side_by_side * c)
        return h, self.deep.measured(trees[some], square[some], c)

    # What rows say that a version has not seen

    @property
    def candidates(self) -> Array:
        """Weights of the strands, times a slope: (candidates, strands)."""
        blends = [
            (1.0 - sum(some), *some) for some in itertools.product(SHARES, repeat=self.strands - 1) if sum(some) <= 1.0
        ]
        return np.array([[slope * share for share in blend] for blend in blends for slope in SLOPES])

    def _held_out(self, c: int) -> HeldOut:
        return HeldOut(self.folds, self.strands, self._constant(c), self.candidates)

    def _best(self, judged: Judged) -> Mapping[str, float]:
        """The best candidate, and how good each kind of trees is alone."""
        slopes = np.tile(SLOPES, len(self.candidates) // len(SLOPES))
        shares = self.candidates / slopes[:, None]
        doubt = np.square(np.log(slopes) / SPREAD_OF_SLOPES) + np.square(
            (shares - 1.0 / self.strands) / SPREAD_OF_SHARES
        ).sum(axis=1)
        losses = judged.losses + doubt / (2.0 * judged.rows)
        alone = np.isclose(shares, 1.0)
        found = {name: float(losses[alone[:, k]].min()) for k, name in enumerate(ALONE[: self.strands])}
        return {"held_out": float(losses.min()), "blend": float(np.argmin(losses)), **found}

    def _done_without(self, judged: Judged) -> bool:
        """Does the blend do without shallow trees, which are far behind it?"""
        best = self._best(judged)
        weight, alone = self.candidates[int(best["blend"])][1], best[ALONE[1]]
        return weight == 0.0 and alone > best["held_out"] + ASTRAY * abs(best["held_out"])

    def over(self, metrics: Sequence[Mapping[str, Any]]) -> bool:
        """Has the blend not become better for some rounds, and is no kind of trees about to become better than it?"""
        if len(metrics) <= self.patience:
            return False
        best = min(float(line["held_out"]) for line in metrics)
        for name in ("held_out", *ALONE[:2]):
            losses = [float(line[name]) for line in metrics]
            before, lately = min(losses[: -self.patience]), min(losses[-self.patience :])
            gain, worth = before - lately, WORTH * abs(before) + LEAST_GAIN / (self.deep.rows or math.inf)
            if gain > worth and (name == "held_out" or lately - gain < best):  # as much again
                return False
        return True

    def chosen(self, f: Function, metrics: Sequence[Mapping[str, Any]]) -> Chosen | None:
        """The versions with all rows, as they were in the best round, blended."""
        count = len(self.folds.without)
        (block,) = cast(OpenSum, f).merged().blocks
        family = cast(BoostedTrees, f.family)
        c = family.outputs // count
        weights, terms, measured = np.zeros(self.strands), count * c, dict[str, float]()
        if metrics:
            best = min(metrics, key=lambda line: float(line["held_out"]))
            weights, terms = self.candidates[int(best["blend"])], int(best["terms"])
            slope = float(weights.sum())
            shares = dict(zip(SHARES_OF, (weights / slope).tolist(), strict=False))
            names = ("held_out", *ALONE[: self.strands])
            scores = {name: min(float(line[name]) for line in metrics) for name in names}
            measured = {"best_round": best["round"] - 1.0, **scores, "slope": slope, **shares}
        output = block.stack["output"].astype(np.int64)
        strand, version = np.divmod(output // c, self.each)
        begins = np.arange(len(output)) < count * c
        factor = np.where(begins, 1.0, weights[strand])
        mine = np.where(begins, output < c, (version == 0) & (factor != 0.0))
        kept = np.flatnonzero(mine & (np.arange(len(output)) < terms))
        stack = {name: array[kept] for name, array in block.stack.items()}
        stack["output"] = (output[kept] % c).astype(np.int32)
        some = Block(stack, block.weights[kept] * factor[kept], block.radii[kept])
        return Chosen(self.deep, OpenSum(replace(family, outputs=c), (some,)), measured)


def folds_of(rows: int, strands: int, seed: int) -> Folds:
    """Which rows the versions of each strand are trained without."""
    for fewer, number in FOLDS:
        if rows < fewer:
            return Folds(number, seed, np.array((-1, *range(number)) * strands, np.int16))
    number = next(parts for fewer, parts in PARTS if rows < fewer)
    return Folds(number, seed, np.array((-1, 0) * strands, np.int16))


def _moved(block: Block, place: int) -> Block:
    """Trees of the first outputs as those of outputs from `place` on."""
    return replace(block, stack={**block.stack, "output": block.stack["output"] + np.int32(place)})


SETTINGS = (
    Setting(
        "patience",
        "whole",
        "Rounds without a better score at rows set aside, after which training ends (blend).",
        METHOD,
        8,
        least=1,
    ),
    Setting("shallow_leaves", "whole", "Leaves of the shallow trees (blend).", METHOD, 4, least=2, most=31),
)
