"""Every question: what parts of clients add up to is what one client with all their rows would say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.cell_sums import CellSums, CurvatureAlong
from ffgb.core.exact_sums import TargetOrders, TargetSums
from ffgb.core.folds import Folds, HeldOut
from ffgb.core.gradients import GradientOf, SlopesOf
from ffgb.core.grams import GramOf, SketchOf
from ffgb.core.histograms import ClassWeights, GradientOrders, HistogramsOf, RowCounts, Units, WeightOrders
from ffgb.core.losses import CrossEntropy, Loss
from ffgb.core.merged_cells import MergedHistograms, NodeRows
from ffgb.core.moments import MagnitudeOf, MomentsOf
from ffgb.core.points import Points
from ffgb.core.quantiles import BelowEdges
from ffgb.core.questions import Here, Question, RoundQuestion, ask_locally
from ffgb.core.slopes_along import SlopesAlong
from ffgb.core.splits import Splits
from ffgb.core.steepness import SteepnessOf
from ffgb.core.types import Tensors
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.features.bins import CategoryCounts, KeyCounts, bins_of
from ffgb.features.patches import Grid, NearestSums, PatchMoments
from ffgb.features.tables import Columns, Histogram, LeavesOf, ObliviousTrees
from ffgb.federation.parts import means_of, own_part
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear
from ffgb.privacy.integers import add, from_integers, to_integers
from ffgb.protocol.codec import Message
from ffgb.protocol.describe import KINDS, build, describe
from ffgb.protocol.messages import Asked

Array = np.ndarray
N = 24


@final
@dataclass(frozen=True)
class Rows:
    """All rows there are; an image is 3 × 3 and one patch, so that nothing is left to chance in which are drawn."""

    x: Array
    y: Array
    f: Array
    h: Array
    loss: Loss = CrossEntropy(3)  # noqa: RUF009

    @staticmethod
    def drawn(seed: int, spread: float = 1.0) -> Rows:
        rng = np.random.default_rng(seed)
        x = (spread * rng.standard_normal((N, 1, 3, 3)) + 0.3).astype(np.float32)
        if spread < 1.0:
            x[:, 0, 1:] = x[:, 0, :1]  # and all columns go together
        f, h = rng.standard_normal((2, N, 3))
        return Rows(x, rng.integers(0, 3, N), f, h)

    def here(self, rows: Array, share: float, weights: Array | None = None, i: int = 0) -> Here:
        points = Points(i, self.x[rows], self.y[rows], weights)
        return Here(points, share, self.loss, self.y[rows], self.f[rows], self.h[rows], family=TREES)


TREES = BoostedTrees(bins_of(ask_locally(Points(0, Rows.drawn(0).x, np.zeros(N))), (), 9, 4, 3), 3)
UNITS = Units(np.full(3, 2.0**-20), np.full(3, 2.0**-20), 32)
FIRST = Splits.of([0, 1], [2, 5], [np.array([True, False]), np.array([False, True, True])], 1)
EDGES = np.sort(np.random.default_rng(1).integers(-(2**30), 2**30, (9, 6)), axis=1).astype(np.int32)


def histograms() -> HistogramsOf:
    """Two trees, the first of which has two splits."""
    columns, asked = np.array([[0, 2, 8], [1, 2, 3]], np.int32), np.array([(0, 3), (0, 2), (1, 0)], np.int32)
    cells = TREES.layout.cells.astype(np.int16)
    return HistogramsOf(UNITS, cells, np.array([2, 0], np.int32), columns, np.zeros(2, np.int16), FIRST, asked, True)


def merged() -> MergedHistograms:
    """All cells of a column in two."""
    cells, _ = histograms().columns_of_cells
    place = np.zeros(len(cells), np.int64)
    for at in range(1, len(cells)):
        place[at] = place[at - 1] + 1 if place[at - 1] + 1 < cells[at - 1] else 0
    return MergedHistograms(histograms(), np.where(2 * place < cells, 0, cells - 1).astype(np.int16))


def cell_sums() -> CellSums:
    return CellSums(UNITS, TREES.layout.cells.astype(np.int16), np.array([0, 2, 8], np.int32), 1, ALL)


GRID, WIDE = Grid((1, 3, 3), 3, 0.1), np.full(9, 3.0)
ALL = np.arange(3, dtype=np.int32)

EXAMPLES: dict[str, Callable[[], Question]] = {
    "MagnitudeOf": lambda: MagnitudeOf(Flatten(9), np.zeros(9)),
    "MomentsOf": lambda: MomentsOf(Flatten(9), np.full(9, 0.25), np.full(9, 16.0)),
    "GramOf": lambda: GramOf(Flatten(9), (3,), 3, np.full(9, 0.25), np.full(3, 3.0)),
    "SketchOf": lambda: SketchOf(Flatten(9), 4, 0, np.full(9, 0.25), WIDE),
    "BelowEdges": lambda: BelowEdges(np.linspace(-2.0, 2.0, 9)[None]),
    "SteepnessOf": lambda: SteepnessOf(Flatten(9), np.zeros(1), np.ones(1), 2.0, (0.1, 1.0, 10.0)),
    "GradientOf": lambda: GradientOf(Linear(Flatten(9), 3), CrossEntropy(3), np.ones(10)),
    "SlopesOf": lambda: SlopesOf(CrossEntropy(3), 0.9, 0.1),
    "PatchMoments": lambda: PatchMoments(GRID, 1, 0),
    "NearestSums": lambda: NearestSums(
        GRID, np.full(9, 0.1), np.eye(9, dtype=np.float32), np.eye(4, 9, dtype=np.float32), 1, 0
    ),
    "Histogram": lambda: Histogram(np.sort(np.random.default_rng(1).standard_normal((9, 5)), axis=1).astype("float32")),
    "LeavesOf": lambda: LeavesOf(ObliviousTrees(Columns(np.zeros((9, 1), np.float32), tuple(range(9))), 3, 2, 0)),
    "KeyCounts": lambda: KeyCounts(np.arange(9, dtype=np.int32), np.full(9, -1, np.int32), EDGES),
    "CategoryCounts": lambda: CategoryCounts(np.arange(4, dtype=np.int32), np.array([0, 0, 1, 1], np.int32)),
    "TargetOrders": lambda: TargetOrders(np.full(1, 0.25)),
    "TargetSums": lambda: TargetSums(np.full(1, 0.25), np.full((3, 1), 2.0**-30)),
    "RowCounts": lambda: RowCounts(3),
    "WeightOrders": WeightOrders,
    "ClassWeights": lambda: ClassWeights(3, 2.0**-30),
    "GradientOrders": lambda: GradientOrders(3),
    "HistogramsOf": histograms,
    "NodeRows": lambda: NodeRows(histograms()),
    "MergedHistograms": merged,
    "SlopesAlong": lambda: SlopesAlong((0.0, 1.0, 0.5), 40.0, N),
    "CellSums": cell_sums,
    "CurvatureAlong": lambda: CurvatureAlong(
        cell_sums(), np.full((3, 1 + int(TREES.layout.cells[[0, 2, 8]].sum())), 0.2)
    ),
    "HeldOut": lambda: HeldOut(Folds(2, 0, np.zeros(1, np.int16)), 1, np.zeros(3), np.array([[0.5], [1.0]])),
}
"""Of each kind one that these rows can answer."""

OF_FILES = {"FileCounts", "FileSums", "NameCounts", "NamesIn"}
"""They are answered from a site's file, before there are points: test_survey.py."""
PROVEN = {"Proven"}
"""Another question, with a proof: test_proofs.py."""
OF_RESULT = {"ChanceRows", "ChanceSums", "CalibrationSums", "ErrorRows", "ErrorSums"}
"""Rows that are held out answer them when training has ended: tests/runs/test_fit_totals.py."""
STATISTICS, PRIVATE = "ffgb.core.regression.", "ffgb.core.private_"
"""Questions that are answered from a site's records (tests/core/regression); of clipped rows (test_private_sums.py)."""
OF_PAIRS = {"SteepnessOf"}
"""A client looks at pairs of its own rows: these are no sums over rows, and two equal rows are a pair."""
OF_CLIENTS = {"MagnitudeOf"}
"""Clients are counted, not rows: what comes of it is a bound, the same however rows are split."""
OF_ROWS = {"Histogram", "LeavesOf", "KeyCounts", "CategoryCounts", "NodeRows"}
"""Rows are counted, whatever they weigh: thresholds lie where values are."""

OF_BOTH = {
    *("TargetOrders", "RowCounts", "WeightOrders", "GradientOrders", "HistogramsOf", "MergedHistograms", "CellSums"),
}
"""Rows are counted, of a size or in a bin, and sizes and sums have weights in them."""
NO_MEANS = {"TargetSums", "ClassWeights", "SlopesAlong", "CurvatureAlong", "HeldOut"}
"""Sums and no means: a common factor of the weights is one of the sums."""

DEALT = {"HeldOut"}
"""Equal rows of a client are dealt out to different folds."""

every = pytest.mark.parametrize("kind", sorted(EXAMPLES))
sums_of_rows = pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - OF_PAIRS - OF_CLIENTS))


def sums_over(question: Question, parts: list[Here]) -> Tensors:
    """Added up as they travel."""
    whole = add((to_integers(question.part(here), question.sums) for here in parts), question.sums)
    return from_integers(whole, question.sums)


def close(question: Question, found: Tensors, expected: Tensors, clients: int) -> None:
    """Up to half a unit a client, and the rounding of features and products in float32."""
    for name, each in question.sums.items():
        scale = float(np.max(np.abs(expected[name]), initial=1e-9))
        slack = 0.5 * (clients + 1) * each.unit + 2e-6 * scale
        assert (np.abs(found[name] - expected[name]) <= slack).all(), name


def test_there_is_an_example_of_every_question() -> None:
    kinds = {n: k for n, k in KINDS.items() if isinstance(k, type) and issubclass(k, Question)}
    of_records = {name for name, kind in kinds.items() if kind.__module__.startswith((STATISTICS, PRIVATE))}
    known = EXAMPLES.keys() | OF_FILES | PROVEN | OF_RESULT | of_records
    assert {name for name, kind in kinds.items() if not inspect.isabstract(kind)} == known
    for name, example in EXAMPLES.items():
        assert type(example()) is kinds[name]


@sums_of_rows
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 8))
@settings(max_examples=12, deadline=None)
def test_parts_add_up_to_those_of_the_union(kind: str, seed: int, clients: int) -> None:
    question, rows, rng = EXAMPLES[kind](), Rows.drawn(seed), np.random.default_rng(seed)
    split = np.array_split(rng.permutation(N), np.sort(rng.choice(np.arange(1, N), clients - 1, replace=False)))
    found = sums_over(question, [rows.here(r, 1 / N, i=i) for i, r in enumerate(split)])
    close(question, found, question.part(rows.here(np.arange(N), 1 / N)), clients)


@every
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 8), data=st.data())
@settings(max_examples=12, deadline=None)
def test_totals_have_the_same_bits_in_any_order(kind: str, seed: int, clients: int, data: st.DataObject) -> None:
    question, rows = EXAMPLES[kind](), Rows.drawn(seed)
    parts = [rows.here(r, 1 / N, i=i) for i, r in enumerate(np.array_split(np.arange(N), clients))]
    order = data.draw(st.permutations(parts))
    one, other = (describe(question.total(sums_over(question, some))) for some in (parts, order))
    assert one[0] == other[0]
    for name, array in one[1].items():
        assert array.tobytes() == other[1][name].tobytes()


@every
@given(seed=st.integers(0, 2**32 - 1), part=st.floats(1e-4, 1.0), spread=st.sampled_from([1.0, 0.1, 1e-3, 1e-5]))
@settings(max_examples=50, deadline=None)
def test_an_honest_part_passes_however_little_of_the_whole_it_is(
    kind: str, seed: int, part: float, spread: float
) -> None:
    """Even if rows hardly differ here, and do elsewhere, so that little is left of variances after rounding."""
    question, rows = EXAMPLES[kind](), Rows.drawn(seed, spread)
    some = np.random.default_rng(seed).choice(N, np.random.default_rng(seed).integers(1, N), replace=False)
    weighting = Weighting(len(some) / part)
    here = rows.here(some, weighting.share(len(some)))
    sent = Message("part", values={"points": len(some)}, tensors=to_integers(question.part(here), question.sums))
    own = own_part(question, sent, len(some), weighting, len(some))
    question.certify(own, part)
    question.spread(own)
    if isinstance(question, RoundQuestion):
        question.influence(own)
    assert own.keys() == question.sums.keys() == sent.tensors.keys()
    assert question.size == sum(array.nbytes for array in sent.tensors.values())


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - OF_PAIRS - OF_CLIENTS - OF_ROWS - OF_BOTH - DEALT))
@given(seed=st.integers(0, 2**32 - 1), factor=st.sampled_from([1.0, 0.001, 1000.0]))
@settings(max_examples=12, deadline=None)
def test_a_row_of_weight_2_is_the_row_twice(kind: str, seed: int, factor: float) -> None:
    """And rows of no weight are none; a common factor does not matter."""
    question, rows = EXAMPLES[kind](), Rows.drawn(seed)
    factor = 1.0 if kind in NO_MEANS else factor
    times = np.random.default_rng(seed).integers(0, 3, N)
    times[0] = 2
    weights, size = times * factor, float(times.sum())
    heavy = Weighting.of([size * factor])
    twice = Weighting.of([size])
    some = rows.here(np.arange(N), heavy.share(size * factor), weights)
    many = rows.here(np.repeat(np.arange(N), times), twice.share(size))
    close(question, question.part(some), question.part(many), 1)
    close(question, sums_over(question, [some]), sums_over(question, [many]), 1)


@pytest.mark.parametrize("kind", sorted(OF_PAIRS | OF_CLIENTS | OF_ROWS))
def test_what_counts_rows_pairs_or_clients_takes_no_weights(kind: str) -> None:
    question, rows, weights = EXAMPLES[kind](), Rows.drawn(0), np.random.default_rng(0).uniform(0.1, 3.0, N)
    weighted = question.part(rows.here(np.arange(N), 1.0 / weights.sum(), weights))
    for name, array in question.part(rows.here(np.arange(N), 1.0 / N)).items():
        np.testing.assert_allclose(weighted[name], array)


def test_a_histogram_counts_rows_and_weighs_their_gradients() -> None:
    question, rows, times = histograms(), Rows.drawn(0), np.random.default_rng(0).integers(1, 4, N)
    heavy = question.part(rows.here(np.arange(N), 1.0 / N, times.astype(np.float64)))
    many = question.part(rows.here(np.repeat(np.arange(N), times), 1.0 / N))
    plain = question.part(rows.here(np.arange(N), 1.0 / N))
    for name in ("gradients", "hessians"):
        np.testing.assert_allclose(heavy[name], many[name], atol=2.0 * N)  # each row is rounded
    assert np.array_equal(heavy["rows"], plain["rows"])


@every
def test_a_question_travels(kind: str) -> None:
    question, rows = EXAMPLES[kind](), Rows.drawn(0)
    recipe, arrays = describe(question)
    again: Any = build(recipe, arrays)
    here = rows.here(np.arange(N), 1 / N)
    for name, array in question.part(here).items():
        assert again.part(here)[name].tobytes() == array.tobytes()
    asked = Asked(question, Weighting(float(N)), 3 if isinstance(question, RoundQuestion) else -1)
    assert type(Asked.read(asked.message(), None).question) is type(question)
    forms = asked.expected(None).forms
    assert forms is not None
    assert {name: form.size for name, form in forms.items()} == {n: s.size for n, s in question.sums.items()}


@every
def test_asking_here_is_a_total_without_rounding(kind: str) -> None:
    question, rows = EXAMPLES[kind](), Rows.drawn(0)
    if isinstance(question, RoundQuestion):
        return  # without training there is no f
    points = Points(0, rows.x, rows.y)
    here, there = ask_locally(points), question.total(sums_over(question, [rows.here(np.arange(N), 1 / N)]))
    for name, array in describe(here(question))[1].items():
        np.testing.assert_allclose(array, describe(there)[1][name], atol=1e-6)


def test_a_mean_is_of_those_who_answered() -> None:
    """Of the whole that everyone was to make up, these are a part: their mean is the sum divided by it."""
    question, rows = MomentsOf(Flatten(9), np.zeros(9), np.full(9, 16.0)), Rows.drawn(0)
    some = np.arange(10)
    whole = add([to_integers(question.part(rows.here(some, 1 / N)), question.sums)], question.sums)
    found = means_of(whole, question.sums, 10 / N)
    np.testing.assert_allclose(found["mean"], rows.x[some].reshape(10, -1).mean(axis=0, dtype=float), atol=1e-9)
    counts = Histogram(np.zeros((9, 1), np.float32))
    whole = add([to_integers(counts.part(rows.here(some, 1 / N)), counts.sums)], counts.sums)
    assert means_of(whole, counts.sums, 10 / N)["counts"].sum() == 9 * 10  # counts are no means


def test_sums_with_weights_are_numpys() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.standard_normal((20, 2, 3)).astype(np.float32), rng.uniform(0.1, 3.0, 20)
    points = Points(0, values, np.zeros(20), weights)
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(Here(points, 1.0 / points.weight).mean(values), expected, rtol=1e-14)
    np.testing.assert_allclose(points.weighted(values), values * weights[:, None, None].astype(np.float32))
    plain = Points(0, values, np.zeros(20))
    assert plain.weighted(values) is values
    assert plain.weight == 20.0
    assert points.weight == pytest.approx(weights.sum())
    np.testing.assert_allclose(plain.sum(values), values.astype(np.float64).sum(axis=0))


def test_cells_are_merged_into_cells_of_their_column() -> None:
    question = merged()
    cells, _ = question.of.columns_of_cells
    for place, head in ((0, int(cells[0])), (3, -1)):
        wrong = question.heads.copy()
        wrong[place] = head
        with pytest.raises(FFGBError, match="merges cells that are not there"):
            MergedHistograms(question.of, wrong)
    with pytest.raises(FFGBError, match="merges cells that are not there"):
        MergedHistograms(question.of, question.heads[1:])
    right = question.heads.copy()
    right[0] = cells[0] - 1
    MergedHistograms(question.of, right)
