"""Additive models from sums with noise: (ε, δ)-differential privacy by row, whoever sees the totals and the model.

Each question releases sums over rows of a vector u(row) whose Euclidean norm is bounded at the client, plus Gaussian
noise that the clients add in shares.  A question that is μ_q-GDP has its part of the budget, Σ μ_q² = μ².

1. Histograms of all columns within public bounds and categories: bins are about equal parts of the noisy counts.
2. Two-way counts of coarse cells of all pairs of columns, which say how columns depend on each other.
3. Rounds: in each cell of each column the sum of residuals, and that of curvature, whose norm costs nothing more, since
   (p − y)² + 8p²(1 − p)² ≤ 1.  After each the server computes the terms anew from all rounds (core/private_terms.py).
4. Pairs of columns: a round over coarse cells of all pairs, the best of which have terms from then on.

The server does nothing else with rows: all the rest follows from these totals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, ClassVar, Literal, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Cells, Step
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.private_histograms import chosen_cuts, consistent, equal_cuts, groups_of
from ffgb.core.private_question import unit_for
from ffgb.core.private_sums import FINEST, LEVELS, CellBlocks, ColumnCounts, PairCounts, ResidualSums, all_pairs
from ffgb.core.private_terms import (
    Fitted,
    Priors,
    Released,
    dependence,
    evidence,
    moved,
    purified,
    smooth,
)
from ffgb.core.questions import Ask
from ffgb.core.splits import Splits
from ffgb.core.tree_growth import Grown
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.features.bins import Bins, Column
from ffgb.learners.boosted_trees import BoostedTrees, rounded
from ffgb.settings import RUN, Setting

HISTOGRAMS, TWO_WAY, SCREEN, SQUARES = 0.08, 0.06, 0.08, 0.01
"""Parts of μ²; the last is that of the mean square in a round."""
ROUNDS, BEFORE_PAIRS, AFTER_PAIRS, FEW_ROUNDS = 12, 8, 6, 4
GROWTH = 0.7
"""A round has so much less of μ² than the one after it."""
ROWS_OF_A_BIN = 60.0
BINS = (8, 64)
COARSE, SCREENED, OF_PAIR = 8, 5, 16
"""Groups of a column's cells: in two-way counts, in the search for pairs, and in the terms of a pair."""
LEAST_EVIDENCE = 4.0
MOST_PAIRS = 4
CURVED: Mapping[str, float] = {"binary": math.sqrt(8.0), "classes": 2.0, "numbers": 0.35}
"""What curvature is multiplied with, so that the norm of a row is hardly larger with it than without."""
SCREENED_CURVED, SCREENED_REACH = 0.5, 0.5
"""In the search for pairs of numbers: what curvature is multiplied with, and the clip beside that of a round."""
NARROWER, NARROWEST, SURELY = 2.0, 0.02, 2.0
"""Residuals of numbers are clipped at so many root mean squares; at this part of the last clip, at least; and the mean
square is taken with so many deviations of its noise more."""
LEAVES = 256
Kind = Literal["binary", "classes", "numbers"]
FEW: Mapping[str, float] = {"binary": BINS[0], "classes": BINS[0], "numbers": 2.0}
"""With fewer effective rows everything is spent on rounds."""
MOST_SCALE: Mapping[str, float] = {"binary": 100.0, "classes": 100.0, "numbers": 2.0}
"""Of a prior, in units of the dispersion.  Where all residuals of a cell are clipped, EM cannot tell how far off its
term is: without a bound, a term that is wrong from the noise of early rounds makes its prior wider, and stays."""
LEAST_OF_PAIR = 1e-3
"""The scale of a new pair at least, in units of the dispersion."""


@final
@dataclass(frozen=True, eq=False)
class Public:
    """What is public of a table's columns."""

    names: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    flag: tuple[int, ...]
    """The input that says where a column is missing, or −1."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Of numbers; of categories NaN."""

    def __len__(self) -> int:
        return len(self.names)

    def numeric(self, c: int) -> bool:
        return not math.isnan(self.low[c])


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """What a private training is made of, besides the rows."""

    public: Public
    kind: Kind
    outputs: int
    centre: float
    scale: float
    """Targets that are numbers are between centre − scale and centre + scale."""
    rows_in_all: int
    clients: int
    shares: int
    """The noise is complete without the shares of all clients but so many."""
    mu: float
    seed: int
    rows: int = 1
    """Rows of one unit of privacy."""
    pairs: int = MOST_PAIRS

    @property
    def effective(self) -> float:
        """Rows of a bin's worth of noise: by it follow the number of bins and whether two-way counts are worth it."""
        return self.mu / self.rows * self.rows_in_all / (ROWS_OF_A_BIN * math.sqrt(len(self.public)))

    @property
    def scarce(self) -> bool:
        """Too few rows for a search for pairs, and for many rounds."""
        return self.effective < BINS[0]

    @property
    def few(self) -> bool:
        """So few rows that everything is spent on rounds."""
        return self.effective < FEW[self.kind]

    @property
    def bins(self) -> int:
        return int(np.clip(2.0 ** np.round(np.log2(self.effective)), *BINS))

    def costs(self, part: float) -> dict[str, Any]:
        """The cost and the noise of a question with this part of μ²."""
        return {"mu": self.mu * math.sqrt(part), "shares": self.shares, "rows": self.rows, "seed": self.seed}

    def unit(self, norm: float, part: float) -> float:
        return unit_for(norm * self.rows, self.mu * math.sqrt(part), self.shares)

    def deviation(self, question: Any) -> float:
        """Of the noise in a total, in the question's unit."""
        return float(question.deviation * math.sqrt(self.clients))


@final
@dataclass(frozen=True, eq=False)
class AdditivePrivate(Cells):
    """All questions are asked before the first round, which delivers the model."""

    silent: ClassVar[bool] = True

    plan: Plan | None = None
    promise: str = ""
    """What is promised, as JSON: it travels with the model."""
    mu: float = 0.0

    def eta(self, k: int, t: int) -> float:
        return 1.0

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """The model, from totals with noise."""
        assert self.plan is not None
        assert isinstance(family, BoostedTrees)
        fitting = Fitting(self.plan, ask, family.features)
        fitting.run()
        return replace(fitting.released(), promise=self.promise)

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        raise FFGBError("a private model is made before training begins")


@final
@dataclass(frozen=True, eq=False)
class AdditiveReleased(Cells):
    """A model that is public already: the first round delivers it, and asks for nothing."""

    silent: ClassVar[bool] = True

    constant: Array = field(default_factory=lambda: np.zeros(1))
    columns: Array = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    sizes: Array = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    groups: Array = field(default_factory=lambda: np.zeros(0, np.int16))
    values: Array = field(default_factory=lambda: np.zeros((1, 0)))
    """Of the cells of blocks, (c, cells)."""
    promise: str = ""
    mu: float = 0.0

    def eta(self, k: int, t: int) -> float:
        return 1.0

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        family = f.family
        assert isinstance(family, BoostedTrees)
        blocks = CellBlocks(self.columns, self.sizes, self.groups, family.layout.cells.astype(np.int16))
        h = sum_of_blocks(family, blocks, self.constant, self.values)
        return Step(h, 1.0, 1.0, False, {"gamma": None, "explained": None, "noise": None})


def question_of_columns(plan: Plan) -> ColumnCounts:
    """The first question: it is asked again when the model is fitted, and answered from memory."""
    public = plan.public
    sizes = [len(inputs) for inputs in public.inputs]
    return ColumnCounts(
        np.array([i for inputs in public.inputs for i in inputs], np.int32),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        np.array(public.flag, np.int32),
        np.array(public.low),
        np.array(public.high),
        plan.unit(math.sqrt(len(public)), HISTOGRAMS),
        **plan.costs(HISTOGRAMS),
    )


@final
@dataclass(frozen=True, eq=False)
class Binned:
    """A column's bins, and how many rows each has by noisy counts."""

    column: Column
    counts: Array


def binned(plan: Plan, ask: Ask) -> list[Binned]:
    """The columns in bins: by noisy counts, or in equal widths where there are too few rows for counts."""
    counts, deviation = None, 0.0
    if not plan.few:
        question = question_of_columns(plan)
        counts, deviation = ask(question), plan.deviation(question) / question.weight
    found = list[Binned]()
    for c in range(len(plan.public)):
        make = _of_numbers if plan.public.numeric(c) else _of_categories
        found.append(make(plan, c, counts, deviation))
    return found


def _of_numbers(plan: Plan, c: int, counts: Tensors | None, deviation: float) -> Binned:
    public, missing = plan.public, plan.public.flag[c] >= 0
    if counts is None:
        cuts = equal_cuts(plan.bins)
        held = np.full(plan.bins + missing, plan.rows_in_all / (plan.bins + missing))
    else:
        k = sum(public.numeric(i) for i in range(c))
        finest = consistent([counts[f"level {level}"][k] for level in LEVELS])
        # counts of nested levels have twice the noise of others
        cuts = chosen_cuts(finest, plan.bins, 2.0 * deviation, plan.rows_in_all)
        held = np.add.reduceat(finest, np.concatenate([[0], cuts]))
        held = np.append(held, counts["missing"][k]) if missing else held
    edges = public.low[c] + (public.high[c] - public.low[c]) * cuts / FINEST
    bins = len(cuts) + 1
    column = Column(
        public.names[c],
        np.array(public.inputs[c]),
        public.flag[c],
        edges.astype(np.float32),
        False,
        bins,
        missing,
        bins,
    )
    return Binned(column, held)


def _of_categories(plan: Plan, c: int, counts: Tensors | None, deviation: float) -> Binned:
    public, size = plan.public, len(plan.public.inputs[c])
    if counts is None:
        held = np.full(size + 1, plan.rows_in_all / (size + 1))
    else:
        before = sum(len(public.inputs[i]) + 1 for i in range(c) if not public.numeric(i))
        held = counts["categories"][before : before + size + 1]
    column = Column(public.names[c], np.array(public.inputs[c]), -1, np.arange(size), True, size, True, size)
    return Binned(column, held)


def private_family(plan: Plan, ask: Ask) -> BoostedTrees:
    """The family that a private model is in: trees that split one column, or two."""
    return BoostedTrees(Bins.of([each.column for each in binned(plan, ask)]), plan.outputs, LEAVES)


@final
class Fitting:
    """A private training, question by question."""

    def __init__(self, plan: Plan, ask: Ask, features: Bins) -> None:
        self.plan, self.ask, self.features = plan, ask, features
        columns = binned(plan, ask)
        held = [np.maximum(each.counts, 1.0) for each in columns]
        self.held = [h * (plan.rows_in_all / h.sum()) for h in held]
        self.cells = features.layout.cells.astype(np.int16)
        m = len(columns)
        identity = [np.arange(int(size)) for size in self.cells]
        blocks = CellBlocks.of([((c, identity[c]),) for c in range(m)], self.cells)
        kernels = tuple(self._kernel(c) for c in range(m))
        groups, cross = self._two_way()
        updates = 0 if plan.few and plan.kind != "numbers" else 2
        self.priors = Priors(blocks, kernels, m, cross, groups, updates, MOST_SCALE[plan.kind])
        self.reach, self.spread = 1.0, 1.0
        self.history: list[list[Released]] = [[] for _ in range(plan.outputs)]
        start = Fitted(0.0, np.zeros(int(blocks.starts[-1])), self.priors.first_scales(), np.zeros(0))
        self.fitted = [start] * plan.outputs

    def _kernel(self, c: int) -> Array:
        """The prior of a column: smooth over bins, and exchangeable over categories and missing values."""
        size, bins = int(self.cells[c]), int(self.features.bins[c])
        found = np.eye(size)
        if not self.features.categorical[c]:
            found[:bins, :bins] = smooth(bins)
        return found

    def _order(self, c: int, terms: Array | None) -> Array | None:
        """Categories in the order of their effects, if these are known."""
        if not self.features.categorical[c] or terms is None or not terms.any():
            return None
        return np.argsort(terms, kind="stable")

    def _two_way(self) -> tuple[tuple[Array, ...], dict[tuple[int, int], Array]]:
        """How columns depend on each other, by noisy counts of coarse cells."""
        plan, m = self.plan, len(self.cells)
        groups = [groups_of(held, COARSE) for held in self.held]
        if plan.few or m < 2:
            return tuple(groups), {}
        blocks = all_pairs(groups, self.cells)
        norm = math.sqrt(len(blocks))
        unit = plan.unit(norm, TWO_WAY)
        question = PairCounts(self.features, blocks, unit, **plan.costs(TWO_WAY))
        counts, deviation = self.ask(question), plan.deviation(question) / question.weight
        found, of_group = {}, [np.bincount(g, h) for g, h in zip(groups, self.held, strict=True)]
        for k, (i, j) in enumerate(combinations(range(m), 2)):
            start, end = blocks.starts[k : k + 2]
            table = counts[start:end].reshape(blocks.sizes[k])
            found[i, j] = dependence(table, of_group[i], of_group[j], plan.rows_in_all, deviation)
        return tuple(groups), found

    def run(self) -> None:
        """All rounds, and the search for pairs between them."""
        plan = self.plan
        pairs = min(plan.pairs, len(self.cells) * (len(self.cells) - 1) // 2) * (not plan.scarce)
        if plan.scarce:
            rounds = FEW_ROUNDS if plan.few else BEFORE_PAIRS
        else:
            rounds = BEFORE_PAIRS + AFTER_PAIRS if pairs else ROUNDS
        left = 1.0 - (0.0 if plan.few else HISTOGRAMS + (TWO_WAY if len(self.cells) > 1 else 0.0))
        left -= SCREEN if pairs else 0.0
        parts = GROWTH ** np.arange(rounds)[::-1]
        parts = parts / parts.sum() * left
        for t, part in enumerate(parts.tolist()):
            if pairs and t == BEFORE_PAIRS:
                self._screen(pairs)
            self._round(part, first=t == 0)

    def _question(
        self, blocks: CellBlocks, part: float, *, reach: float, curved: float, first: bool = False
    ) -> ResidualSums:
        """Residuals, clipped at this reach, and curvature at the model so far."""
        plan, kind = self.plan, self.plan.kind
        model = self.priors.blocks
        norm = self._norm(reach, first=first, curved=curved)
        # the mean square has its part of the same noise
        spread = norm * math.sqrt(len(blocks) * SQUARES / (1.0 - SQUARES)) / reach**2 if kind == "numbers" else 0.0
        whole = norm * math.sqrt(len(blocks) / (1.0 - SQUARES if kind == "numbers" else 1.0))
        return ResidualSums(
            self.features,
            blocks,
            kind,
            np.array([fitted.constant for fitted in self.fitted]),
            model,
            np.stack([fitted.terms for fitted in self.fitted]),
            plan.centre,
            plan.scale,
            reach,
            curved,
            norm,
            spread,
            plan.unit(whole, part),
            **plan.costs(part),
        )

    def _norm(self, reach: float, *, first: bool, curved: float) -> float:
        """Of a row in a block, at most: in the first round all probabilities are the same."""
        kind, c = self.plan.kind, max(self.plan.outputs, 2)
        if kind == "numbers":
            return reach * math.sqrt(1.0 + curved**2)
        outputs = 1.0 if kind == "binary" else float(c)
        if first:
            of_residual = 0.25 if kind == "binary" else 1.0 - 1.0 / c
            return math.sqrt(of_residual + outputs * (curved * (1.0 / c) * (1.0 - 1.0 / c)) ** 2)
        return 1.0 if kind == "binary" else math.sqrt(2.0)

    def _round(self, part: float, *, first: bool) -> None:
        plan = self.plan
        first = first and plan.kind != "numbers"
        curved = 2.0 if first else CURVED[plan.kind]
        question = self._question(self.priors.blocks, part, reach=self.reach, curved=curved, first=first)
        residual, curvature, squares = self.ask(question)
        deviation = plan.deviation(question) * question.unit
        noise = np.full(len(self.priors.blocks), deviation)
        one = curved * (self.reach if plan.kind == "numbers" else 1.0)
        if plan.kind == "numbers":
            # around the mean, which the constant takes off
            mean = squares / plan.rows_in_all - (self._sum(residual[0]) / plan.rows_in_all) ** 2
            self.spread = math.sqrt(max(mean, NARROWEST**2 * self.reach**2))
            # clips that are too narrow are never widened again
            sure = mean + SURELY * deviation / (question.squares * plan.rows_in_all)
            narrower = NARROWER * math.sqrt(max(sure, NARROWEST**2 * self.reach**2))
        for k in range(plan.outputs):
            fitted = self.fitted[k]
            released = Released(fitted.constant, fitted.terms, residual[k], curvature[k], noise, noise / one)
            self.history[k].append(released)
        if first:
            self._move()
        self._fit()
        if plan.kind == "numbers":
            self.reach = min(self.reach, narrower)

    def _sum(self, by_cell: Array) -> float:
        """Over all rows: each block has the same sum, with the noise of its cells."""
        starts = self.priors.blocks.starts
        return float(np.average(np.add.reduceat(by_cell, starts[:-1]), weights=1.0 / np.diff(starts)))

    def _move(self) -> None:
        """The first round as if it had been asked at the mean rates."""
        c = max(self.plan.outputs, 2)
        rates = []
        for (released,) in self.history:
            rows = self._sum(released.curvature) / ((1.0 / c) * (1.0 - 1.0 / c))
            rates.append(float(np.clip(1.0 / c - self._sum(released.residual) / max(rows, 1.0), 0.01, 0.99)))
        for k, rate in enumerate(rates):
            constant = math.log(rate / (1.0 - rate)) if self.plan.kind == "binary" else math.log(rate)
            self.history[k][0] = moved(self.history[k][0], rate, 1.0 / c, constant)

    def _fit(self) -> None:
        """The terms from all rounds so far."""
        numbers, c = self.plan.kind == "numbers", self.plan.outputs
        steeper = c / (c - 1.0) if c > 1 else 1.0
        first = self.priors.first_scales() * self.dispersion
        self.fitted = [
            self.priors.fit(
                history, first if len(history) == 1 else fitted.scale, self.dispersion, steeper=steeper, flat=numbers
            )
            for history, fitted in zip(self.history, self.fitted, strict=True)
        ]

    @property
    def dispersion(self) -> float:
        """The variance of a row's residual beside its curvature: of numbers the mean square of the last round."""
        return self.spread**2 if self.plan.kind == "numbers" else 1.0

    def _screen(self, most: int) -> None:
        """Give terms to the pairs of columns for which there is most evidence."""
        plan, starts, columns = self.plan, self.priors.blocks.starts, range(len(self.cells))
        # categories are put in an order by their effects on the first output
        first = np.split(self.fitted[0].terms, starts[1:-1])
        orders = [self._order(c, first[c]) for c in columns]
        coarse = [groups_of(self.held[c], SCREENED, orders[c]) for c in columns]
        fine = [groups_of(self.held[c], OF_PAIR, orders[c]) for c in columns]
        blocks = all_pairs(coarse, self.cells)
        curved = SCREENED_CURVED if plan.kind == "numbers" else CURVED[plan.kind]
        # which pairs there are is seen with less noise in the middle of the residuals
        reach = SCREENED_REACH * self.reach if plan.kind == "numbers" else self.reach
        question = self._question(blocks, SCREEN, reach=reach, curved=curved)
        residual, curvature, _ = self.ask(question)
        deviation = plan.deviation(question) * question.unit
        one = curved * (reach if plan.kind == "numbers" else 1.0)
        found = []
        for k, (i, j) in enumerate(combinations(range(len(coarse)), 2)):
            over = slice(blocks.starts[k], blocks.starts[k + 1])
            ratios = [
                self._evidence(residual[o, over], curvature[o, over], blocks.sizes[k], deviation, one)
                for o in range(plan.outputs)
            ]
            found.append((sum(ratio for ratio, _ in ratios), max(scale for _, scale in ratios), i, j))
        chosen = [each for each in sorted(found, reverse=True)[:most] if each[0] > LEAST_EVIDENCE]
        if chosen:
            self._extend([((i, fine[i]), (j, fine[j])) for _, _, i, j in chosen], [scale for _, scale, _, _ in chosen])

    def _evidence(
        self, residual: Array, curvature: Array, sizes: Array, deviation: float, one: float
    ) -> tuple[float, float]:
        """How much better a pair explains its residuals than noise does, and the scale of its terms."""
        whole = float(np.median([f.curvature.sum() / self.priors.mains for f in self.fitted]))
        held = np.maximum(curvature, deviation / one + 1e-9)
        held = held * (whole / held.sum())
        share = held / held.sum()
        prior = purified(np.kron(smooth(int(sizes[0])), smooth(int(sizes[1]))), held, sizes)
        aim = -(residual - share * residual.sum())
        return evidence(aim, np.diag(held) - np.outer(held, share), deviation**2, self.dispersion, prior)

    def _extend(self, pairs: Sequence[Any], scales: list[float]) -> None:
        """Terms for some pairs, zero to begin with."""
        more = CellBlocks.of(list(pairs), self.cells)
        kernels = tuple(np.kron(smooth(int(a)), smooth(int(b))) for a, b in more.sizes)
        priors = self.priors
        self.priors = replace(priors, blocks=priors.blocks.joined(more), kernels=(*priors.kernels, *kernels))
        zeros = np.zeros(int(more.starts[-1]))
        grown = np.maximum(np.array(scales), LEAST_OF_PAIR * self.dispersion)
        self.fitted = [
            replace(f, terms=np.concatenate([f.terms, zeros]), scale=np.concatenate([f.scale, grown]))
            for f in self.fitted
        ]

    def released(self) -> AdditiveReleased:
        """The model."""
        blocks = self.priors.blocks
        return AdditiveReleased(
            np.array([f.constant for f in self.fitted]),
            blocks.columns,
            blocks.sizes,
            blocks.groups,
            np.stack([f.terms for f in self.fitted]),
        )


def sum_of_blocks(family: BoostedTrees, blocks: CellBlocks, constant: Array, terms: Array) -> Any:
    """A model of blocks of cells as a sum of trees, one a block and output."""
    trees, outputs = list[Grown](), list[int]()
    for output, values in enumerate(terms):
        none = Splits.of([], [], [], family.layout.width)
        trees.append(Grown(none, rounded(constant[output : output + 1]), np.zeros((1, 3))))
        for k, (start, size) in enumerate(zip(blocks.starts, blocks.of_each, strict=False)):
            trees.append(_tree(family, blocks, k, rounded(values[start : start + size])))
        outputs.extend([output] * (len(trees) - len(outputs)))
    return family.sum_of(trees, outputs, 1.0)


def _tree(family: BoostedTrees, blocks: CellBlocks, k: int, values: Array) -> Grown:
    """A balanced tree with a leaf for each cell of a block: the first column's groups, then the second's."""
    first, second = blocks.maps(k)
    a, b = (int(s) for s in blocks.sizes[k])
    if a * b > family.leaves:
        raise FFGBError(f"a pair of columns has {a * b} cells, more than the {family.leaves} leaves of a tree")
    nodes, columns, left, leaves = list[int](), list[int](), list[Array](), dict[int, float]()
    ranges = [(0, 0, a, 0, b)]
    for node, a0, a1, b0, b1 in ranges:
        if a1 - a0 == 1 and b1 - b0 == 1:
            leaves[node] = float(values[a0 * b + b0])
            continue
        split = len(nodes)
        nodes.append(node)
        if a1 - a0 > 1:
            middle = (a0 + a1) // 2
            columns.append(int(blocks.columns[k, 0]))
            left.append(first < middle)
            ranges.extend([(2 * split + 1, a0, middle, b0, b1), (2 * split + 2, middle, a1, b0, b1)])
        else:
            assert second is not None
            middle = (b0 + b1) // 2
            columns.append(int(blocks.columns[k, 1]))
            left.append(second < middle)
            ranges.extend([(2 * split + 1, a0, a1, b0, middle), (2 * split + 2, a0, a1, middle, b1)])
    of_nodes = np.zeros(2 * len(nodes) + 1)
    of_nodes[list(leaves)] = list(leaves.values())
    return Grown(Splits.of(nodes, columns, left, family.layout.width), of_nodes, np.zeros((len(of_nodes), 3)))


SETTINGS = (
    Setting(
        "epsilon",
        "number",
        "Differential privacy: the budget ε of this training. All answers have noise (additive; needs --schema).",
        RUN,
        unset="no noise",
        common=True,
        above=0.0,
        most=50.0,
        when="Where a model or its totals leave those who may see rows. 1 is a strong promise, 8 a weak one.",
    ),
    Setting(
        "colluders",
        "whole",
        "Clients that may tell the server their shares of the noise: the others' are enough (--epsilon).",
        RUN,
        unset="1",
        least=0,
    ),
    Setting(
        "unit",
        "text",
        "A column that says which rows are one patient's: --epsilon then holds for all of them together.",
        RUN,
        unset="each row is a unit",
    ),
    Setting(
        "noise_seed",
        "whole",
        "Where the noise of --epsilon comes from, to repeat an experiment: who knows it can take the noise off.",
        RUN,
        unset="a secret",
        least=0,
    ),
    Setting(
        "unit_rows",
        "whole",
        "Rows of one --unit at most, all clients together; more are left out.",
        RUN,
        unset="1",
        least=1,
    ),
    Setting(
        "pairs",
        "whole",
        "Pairs of columns with terms of their own, at most (--epsilon).",
        RUN,
        unset="4 for numbers, 0 for classes",
        least=0,
        most=16,
    ),
)
