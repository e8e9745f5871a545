"""Maps for tables: thresholds from counts alone, whatever the split, and steps, trees and waves that stand on them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ffgb.errors import FFGBError
from ffgb.features import tables
from ffgb.features.tables import (
    CLOSE,
    EDGES,
    LEAST,
    REFINEMENTS,
    Columns,
    Histogram,
    LeavesOf,
    ObliviousTrees,
    RankWaves,
    Seen,
    Steps,
    look,
    with_full_leaves,
)
from ffgb.privacy.integers import check_integers, from_integers, to_integers
from ffgb.protocol.describe import build, describe
from tests.features.clients import Log, asked, moments, own, split

Array = np.ndarray
N = 4000


def seen(x: Array, names: Sequence[str] = (), clients: int = 3, seed: int = 0, least: int = 1) -> Columns:
    """What the maps know of these rows, split among clients; no rows are merged unless it is said how many."""
    parts = split(x, clients, seed)
    return look(asked(parts), moments(parts), names, least).columns


def column(kind: str, n: int = N, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values: dict[str, Callable[[], Array]] = {
        "normal": lambda: rng.standard_normal(n),
        "lognormal": lambda: rng.lognormal(0.0, 2.0, n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "outlier": lambda: np.where(np.arange(n) == 7, 1e7, rng.standard_normal(n)),
        "zero-inflated": lambda: np.where(rng.random(n) < 0.92, 0.0, rng.lognormal(7.0, 1.0, n)),
        "integer": lambda: rng.integers(0, 10, n),
        "binary": lambda: rng.random(n) < 0.03,
        "constant": lambda: np.full(n, 3.3),
        "zero": lambda: np.zeros(n),
        "1e8, wide": lambda: 1e8 + 1000.0 * rng.standard_normal(n),
        "1e8, unit": lambda: 1e8 + 8.0 * rng.integers(0, 3, n),  # one float32 apart
    }
    return values[kind]().astype(np.float32)


KINDS = (
    *("normal", "lognormal", "cauchy", "outlier", "zero-inflated", "integer"),
    *("binary", "constant", "zero", "1e8, wide", "1e8, unit"),
)


@pytest.fixture(scope="module")
def mixed() -> Array:
    """A table with a column of each kind and a category of four values in the last four."""
    category = np.eye(4, dtype=np.float32)[np.random.default_rng(9).integers(0, 4, N)]
    return np.column_stack([*(column(kind, seed=k) for k, kind in enumerate(KINDS)), category])


NAMES = (*KINDS, "job=nurse", "job=clerk", "job=cook", "job=none")


@pytest.fixture(scope="module")
def table(mixed: Array) -> Columns:
    return seen(mixed, NAMES)


def finite(columns: Columns, j: int) -> Array:
    return columns.cuts[j, : columns.count[j]]


def separate(values: Array, cuts: Array) -> None:
    """All thresholds are finite, ascending, and each parts the rows in a way of its own."""
    assert np.isfinite(cuts).all()
    assert (np.diff(cuts) > 0).all()
    below = np.array([(values <= cut).sum() for cut in cuts], int)
    assert ((below > 0) & (below < len(values))).all()
    assert (np.diff(below) > 0).all()


# Thresholds.


def test_a_histogram_counts_as_a_loop_does() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (50, 2)).astype(np.float32)
    edges = np.array([[-1.0, 0.5, 2.0, 2.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0]], np.float32)
    question = Histogram(edges)
    part = own(question, x)
    for j in range(2):
        below = [0, *((x[:, j] <= edge).sum() for edge in edges[j]), 50]
        np.testing.assert_array_equal(part["counts"][j], np.diff(below))
    np.testing.assert_array_equal(asked([x, x[:9], x[9:]])(question), 2 * part["counts"])  # whatever clients weigh


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[3, -1, 7], [3, 3, 3]], "its counts are negative"),
        ([[3, 3, 3], [3, 3, 4]], "its column 1 has 10 values, and the client 9 rows"),
        ([[3, 3, 3], [0, 0, 8]], "its column 1 has 8 values"),
        ([[1e30, 0, 0], [3, 3, 3]], r"its column 0 has 1e\+30 values"),
    ],
    ids=["negative", "too many", "too few", "absurd"],
)
def test_counts_that_cannot_be_are_refused(counts: list[list[float]], words: str) -> None:
    question = Histogram(np.zeros((2, 2), np.float32))
    question.check({"counts": np.full((2, 3), 3.0)}, 9)
    with pytest.raises(FFGBError, match=words):
        question.check({"counts": np.array(counts, np.float64)}, 9)


def test_counts_travel_as_whole_numbers() -> None:
    question = Histogram(np.zeros((2, 2), np.float32))
    check_integers({"counts": np.full((2, 3), 3, np.int32)}, question.sums)
    for dtype in (np.float64, np.float32, np.int64):
        with pytest.raises(FFGBError, match="its counts should be int32"):
            check_integers({"counts": np.full((2, 3), 3, dtype)}, question.sums)


def test_missing_values_are_counted() -> None:
    x = np.array([[1.0], [np.nan], [3.0], [np.nan]], np.float32)
    part = own(Histogram(np.array([[0.0, 2.0]], np.float32)), x)
    np.testing.assert_array_equal(part["counts"], [[0, 1, 3]])


def test_counts_beyond_float32_are_exact() -> None:
    rows = 2**24 + 2**25 + 3
    question, counts = Histogram(np.zeros((1, 1), np.float32)), np.array([[2**24 + 1.0, 2**25 + 2.0]])
    whole = to_integers({"counts": counts}, question.sums)
    np.testing.assert_array_equal(whole["counts"], counts.astype(int))
    question.check(from_integers(whole, question.sums), rows)
    with pytest.raises(FFGBError, match="values, and the client"):
        question.check(from_integers(whole, question.sums), rows + 1)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
@settings(max_examples=12, deadline=None)
def test_thresholds_do_not_depend_on_the_split(mixed: Array, table: Columns, seed: int, clients: int) -> None:
    columns = seen(mixed, NAMES, clients, seed)
    assert columns.cuts.tobytes() == table.cuts.tobytes()
    assert columns.groups == table.groups
    assert Steps(columns, 8).fingerprint == Steps(table, 8).fingerprint


def test_a_few_questions_are_asked(mixed: Array) -> None:
    log: Log = []
    parts = split(mixed, 4)
    look(asked(parts, log), moments(parts), NAMES)
    assert len(log) == REFINEMENTS + 1
    for question, total in log:
        assert isinstance(question, Histogram)
        assert question.edges.shape == (mixed.shape[1], EDGES)
        np.testing.assert_array_equal(total.sum(axis=1), N)


@pytest.mark.parametrize("kind", KINDS)
def test_thresholds_separate_values_that_occur(mixed: Array, table: Columns, kind: str) -> None:
    j = KINDS.index(kind)
    separate(mixed[:, j], finite(table, j))
    assert (table.count[j] == 0) == (kind in ("constant", "zero"))
    assert np.isposinf(table.cuts[j, table.count[j] :]).all()
    assert table.cuts.dtype == np.float32


@pytest.mark.parametrize("kind", ["normal", "lognormal", "cauchy", "outlier", "1e8, wide"])
def test_thresholds_are_at_the_quantiles(mixed: Array, table: Columns, kind: str) -> None:
    j = KINDS.index(kind)
    below = (mixed[:, j, None] <= finite(table, j)).mean(axis=0)
    assert np.diff([0.0, *below, 1.0]).max() < 0.02  # 1/128 each, if they could be exact
    for q in np.arange(0.05, 0.96, 0.05):
        assert np.abs(below - q).min() < 0.01


def test_a_heavy_value_does_not_take_all_thresholds(mixed: Array, table: Columns) -> None:
    j = KINDS.index("zero-inflated")
    cuts, others = finite(table, j), mixed[mixed[:, j] > 0, j]
    assert len(cuts) > 50
    assert (others > cuts[0]).all()  # the first is between zero and the rest
    below = (others[:, None] <= cuts).mean(axis=0)
    assert np.diff([*below, 1.0]).max() < 0.04


def test_where_nine_of_ten_rows_have_one_value_the_others_have_most_thresholds() -> None:
    """A heavy value counts as if one row in twenty had it, so it takes a third of the edges here."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(N) < 0.9, 0.0, 1000.0 + rng.standard_normal(N)).astype(np.float32)
    cuts = finite(seen(x[:, None]), 0)
    separate(x, cuts)
    assert (cuts > 990).sum() > 60
    others = x[x > 0]
    assert np.diff([0.0, *(others[:, None] <= cuts[1:]).mean(axis=0), 1.0]).max() < 0.04


@pytest.mark.parametrize("kind", ["integer", "binary", "1e8, unit"])
def test_few_values_have_a_threshold_between_any_two(mixed: Array, table: Columns, kind: str) -> None:
    values = np.unique(mixed[:, KINDS.index(kind)])
    cuts = finite(table, KINDS.index(kind))
    assert len(cuts) == len(values) - 1
    assert ((values[:-1] <= cuts) & (cuts < values[1:])).all()


def test_the_threshold_between_two_values_is_in_the_middle(mixed: Array, table: Columns) -> None:
    np.testing.assert_allclose(finite(table, KINDS.index("binary")), [0.5], atol=0.01)


def test_what_float32_cannot_hold_is_constant() -> None:
    x = 1e8 + np.random.default_rng(0).uniform(-1.0, 1.0, (500, 1))
    assert seen(x).count.tolist() == [0]
    assert moments([x]).constant.tolist() == [True]


@pytest.mark.parametrize("seed", range(4))
def test_common_integers_are_told_apart(seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 50, 5000).astype(np.float32)[:, None]
    assert seen(x).count.tolist() == [49]


def test_a_rare_value_is_not_lost() -> None:
    x = (np.arange(23740) < 4).astype(np.float32)[:, None]
    assert seen(x).count.tolist() == [1]


small = st.floats(-1e6, 1e6, width=32).map(lambda v: 0.0 if abs(v) < 1e-6 else v)


@given(npst.arrays(np.float32, st.tuples(st.integers(4, 40), st.integers(1, 3)), elements=small))
@settings(max_examples=60, deadline=None)
def test_any_table_has_sound_thresholds_and_ranks(x: Array) -> None:
    columns = seen(x, clients=2)
    ranks = columns.ranks(x)
    assert ranks.dtype == np.float32
    assert ((ranks >= 0) & (ranks <= 1)).all()
    for j in range(x.shape[1]):
        separate(x[:, j], finite(columns, j))
        order = np.argsort(x[:, j], kind="stable")
        assert (np.diff(ranks[order, j]) >= 0).all()
        if columns.count[j]:
            assert ranks[:, j].min() < ranks[:, j].max()
        else:
            assert (ranks[:, j] == 0).all()


def test_ranks_are_places_among_the_thresholds() -> None:
    columns = Columns(np.array([[0, 1, 3], [0.5, np.inf, np.inf], [np.inf] * 3], np.float32), (0, 1, 2))
    x = np.array([[-9, 0, 5], [0, 0.5, 6], [0.5, 0.6, 7], [2, 1, 8], [3, 1, 9], [1e9, 5, 1]])
    expected = [[0, 0, 0], [0, 0, 0], [0.25, 1, 0], [0.75, 1, 0], [1, 1, 0], [1, 1, 0]]
    np.testing.assert_array_equal(columns.ranks(x), expected)


def test_names_make_groups() -> None:
    x = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
    x[:, 4] = 1.0
    names = ("age", "job=nurse", "sex=f", "job=clerk", "job=a=b", "age")  # and one column without a name
    columns = seen(x, names)
    groups = columns.groups
    assert groups[1] == groups[3] == groups[4]
    assert len(set(groups)) == 5  # two columns of the same name but without = have nothing to do with each other
    assert sorted(unit.tolist() for unit in columns.units) == [[0], [1, 3], [2], [5], [6]]


# Least counts.


def look_at(x: Array, names: Sequence[str] = (), least: int = LEAST) -> Seen:
    parts = split(x, 3)
    return look(asked(parts), moments(parts), names, least)


def in_intervals(values: Array, cuts: Array) -> Array:
    """Rows below the first threshold, between any two, and above the last."""
    return np.bincount(np.searchsorted(cuts, values), minlength=len(cuts) + 1)


def reached(values: Array, low: float, high: float, least: int) -> None:
    """Clipped there, as many rows as it takes have the least value, and as many the greatest; or all are the same."""
    clipped = np.clip(values, np.float32(low), np.float32(high))
    if low < high:
        near = CLOSE * (clipped.max() - clipped.min())
        assert (clipped <= clipped.min() + near).sum() >= least
        assert (clipped >= clipped.max() - near).sum() >= least
    else:
        assert low == high == 0


@pytest.mark.parametrize("least", [1, 2, 10, 60, 1500, N // 2, N // 2 + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_interval_has_enough_rows(mixed: Array, kind: str, least: int) -> None:
    j = KINDS.index(kind)
    seen = look_at(mixed[:, [j]], least=least)
    cuts = finite(seen.columns, 0)
    assert len(cuts) == 0 or in_intervals(mixed[:, j], cuts).min() >= least
    reached(mixed[:, j], seen.low[0], seen.high[0], least)
    if kind == "normal":
        assert len(cuts) >= min(EDGES, 0.6 * N / least) - 2
    if least > N // 2:
        assert len(cuts) == 0


@given(
    npst.arrays(np.float32, st.tuples(st.integers(4, 60), st.integers(1, 3)), elements=small | st.sampled_from([0, 1])),
    st.integers(1, 30),
)
@settings(max_examples=100, deadline=None)
def test_any_table_has_enough_rows_everywhere(x: Array, least: int) -> None:
    seen = look_at(x, least=least)
    for j in range(x.shape[1]):
        cuts = finite(seen.columns, j)
        separate(x[:, j], cuts)
        assert len(cuts) == 0 or in_intervals(x[:, j], cuts).min() >= least
        reached(x[:, j], seen.low[j], seen.high[j], least)
        assert len(cuts) or seen.low[j] == seen.high[j]


def test_values_that_many_rows_have_are_not_clipped(mixed: Array) -> None:
    seen = look_at(mixed, NAMES)
    for kind in ("integer", "binary", "1e8, unit", *NAMES[-4:]):
        j = NAMES.index(kind)
        np.testing.assert_array_equal(np.clip(mixed[:, j], seen.low[j], seen.high[j]), mixed[:, j])


def test_a_value_that_few_rows_have_is_clipped() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 3)).astype(np.float32)
    x[:9, 0], x[:10, 1] = 1e6, 1e6
    x[:, 2] = np.where(np.arange(500) < 9, x[:, 2], 0.0)
    seen = look_at(x)
    assert seen.high[0] < 10
    assert seen.high[1] > 100
    assert (seen.low[2], seen.high[2], seen.columns.count[2]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "told_apart"),
    [
        ((200, 100, 60, 0), [0, 1, 2]),
        ((200, 100, 60, 10), [0, 1, 2]),
        ((200, 100, 60, 9), [0, 1]),
        ((200, 100, 9, 0), [0]),
        ((200, 100, 9, 1), [0, 1]),
        ((200, 5, 4, 0), []),
        ((200, 6, 4, 0), [0]),
        ((9, 9, 9, 9), []),
        ((12, 12, 1, 0), [1]),
    ],
)
def test_rows_in_none_of_the_categories_are_none_or_enough(rows: tuple[int, ...], told_apart: list[int]) -> None:
    x = np.repeat(np.eye(4, dtype=np.float32), rows, axis=0)[:, :3]
    columns = look_at(x, ("job=a", "job=b", "job=c")).columns
    assert np.flatnonzero(columns.count).tolist() == told_apart


@pytest.mark.parametrize("missing", [9, 10, 30, 200])
@pytest.mark.parametrize("others", [0, 1, 9, 10])
def test_rows_that_are_missing_hide_no_others(missing: int, others: int) -> None:
    """The mean stands for values that are missing; between two thresholds there may be a few others beside them."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-9, -1, 300), rng.uniform(1, 9, 300), rng.uniform(-0.01, 0.01, others)])
    x = np.zeros((600 + others + missing, 2), np.float32)
    x[: len(values), 0], x[len(values) :, 1] = values, 1.0
    columns = look_at(x, ("age", "age missing")).columns
    assert (columns.count[1] == 1) == (missing >= 10)
    there = x[:, 1] == 0 if missing >= 10 else np.ones(len(x), bool)
    beside = in_intervals(x[there, 0], finite(columns, 0))
    assert ((beside == 0) | (beside >= 10)).all()


@pytest.mark.parametrize("least", [1, 10, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_moved_only_where_many_values_are(mixed: Array, kind: str, least: int) -> None:
    """An interval with too few rows for two is not looked into."""
    log: Log = []
    x = mixed[:, [KINDS.index(kind)]]
    look(asked(split(x, 3), log), moments([x]), (), least)
    known = np.empty(0)
    for question, _ in log:
        assert isinstance(question, Histogram)
        edges = question.edges[0].astype(np.float64)
        if len(known):
            new = np.setdiff1d(edges, known)
            rows = in_intervals(x[:, 0], known)[np.searchsorted(known, new)]
            assert (rows >= 2 * least).all()
        known = np.union1d(known, edges)


@pytest.mark.parametrize("least", [1, 10, 200, N + 1])
def test_leaves_have_enough_rows(mixed: Array, table: Columns, least: int) -> None:
    trees = ObliviousTrees(table, 40, 3, seed=1)
    log: Log = []
    joined = with_full_leaves(asked(split(mixed, 3), log), trees, least)
    assert [type(question) for question, _ in log] == [LeavesOf]
    leaves = trees.leaves(mixed)
    np.testing.assert_array_equal(log[0][1], [np.bincount(tree, minlength=8) for tree in leaves.T])
    z = joined(mixed).reshape(N, 40, 8)
    np.testing.assert_array_equal((z > 0).sum(axis=2), 1)
    rows = (z > 0).sum(axis=0)
    assert ((rows == 0) | (rows >= min(least, N))).all()
    assert joined.joined is not None
    for tree in range(40):
        stands = joined.joined[tree]
        assert (stands[stands] == stands).all()
        np.testing.assert_array_equal(np.argmax(z[:, tree], axis=1), stands[leaves[:, tree]])
        if rows[tree].min() >= least:  # nothing is joined without need
            np.testing.assert_array_equal(stands, np.arange(8))
    assert ((joined.joined == 0).all()) == (least > N)
    recipe, arrays = describe(joined)
    assert build(json.loads(json.dumps(recipe)), arrays).fingerprint == joined.fingerprint


def test_a_small_leaf_joins_its_smaller_sibling() -> None:
    def joined(*rows: int) -> list[int]:
        return tables._joined(np.array(rows, float), 2, 10)

    assert joined(20, 20, 20, 20) == [0, 1, 2, 3]
    assert joined(3, 20, 30, 40) == [0, 0, 2, 3]
    assert joined(20, 20, 40, 9) == [0, 1, 2, 2]
    assert joined(4, 5, 30, 20) == [0, 0, 2, 0]  # both together are too few, and so they join the smaller above
    assert joined(1, 2, 3, 50) == [0, 0, 0, 0]
    assert joined(0, 20, 0, 20) == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("counts", "words"),
    [([[5, 4], [9, 1]], "do not each have a leaf"), ([[5, 4], [10, -1]], "do not each have a leaf")],
)
def test_leaves_that_cannot_be_are_refused(counts: list[list[float]], words: str) -> None:
    question = LeavesOf(ObliviousTrees(Columns(np.zeros((1, 1), np.float32), (0,)), 2, 1, 0))
    question.check({"counts": np.array([[5.0, 4.0], [9.0, 0.0]])}, 9)
    with pytest.raises(FFGBError, match=words):
        question.check({"counts": np.array(counts, np.float64)}, 9)


# Steps.


def slow_steps(columns: Columns, most: int, x: Array) -> Array:
    features = []
    for j in range(len(columns.cuts)):
        cuts = [cut for cut in columns.cuts[j].tolist() if np.isfinite(cut)]
        chosen = min(len(cuts), most)
        places = [round(k * (len(cuts) - 1) / (chosen - 1)) if chosen > 1 else 0 for k in range(chosen)]
        features += [[1.0 if row[j] > np.float32(cuts[place]) else 0.0 for row in x] for place in places]
    return np.array(features, np.float32).T * np.float32(2.0 / np.sqrt(len(features)))


@pytest.mark.parametrize("most", [1, 5, 128])
def test_steps_are_indicators_at_evenly_spread_thresholds(mixed: Array, table: Columns, most: int) -> None:
    steps = Steps(table, most)
    z = steps(mixed[:60])
    assert z.shape == (60, steps.dimension)
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, slow_steps(table, most, mixed[:60]))
    np.testing.assert_array_equal(steps(mixed[:60].astype(np.float64)[::-1]), z[::-1])


def test_steps_of_all_kinds_of_columns_make_up_about_what_is_asked_for(table: Columns) -> None:
    assert Steps.about(table, 10).most == 8  # enough of each
    assert Steps.about(table, 10**6).most == EDGES
    several = int((table.count > 1).sum())
    assert Steps.about(table, 400).most == 400 // several
    assert Steps.about(table, 400).dimension <= 400 + len(table.cuts)


# Trees.


def slow_trees(trees: ObliviousTrees, x: Array) -> Array:
    z = np.zeros((len(x), trees.trees * 2**trees.depth), np.float32)
    for row, tree in itertools.product(range(len(x)), range(trees.trees)):
        leaf = ""
        for unit, threshold in trees._tests[tree * trees.depth :][: trees.depth]:
            leaf += "1" if sum(float(x[row, j]) for j in unit) > threshold else "0"
        z[row, tree * 2**trees.depth + int(leaf, 2)] = 1.0 / np.sqrt(trees.trees)
    return z


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_trees_are_their_tests(mixed: Array, table: Columns, depth: int) -> None:
    trees, x = ObliviousTrees(table, 30, depth, seed=1), mixed[:40]
    z = trees(x)
    assert z.shape == (40, trees.dimension) == (40, 30 * 2**depth)
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, slow_trees(trees, x))
    leaves = z.reshape(40, 30, 2**depth)
    np.testing.assert_array_equal((leaves > 0).sum(axis=2), 1)  # each row in one leaf of each tree
    np.testing.assert_allclose(np.square(z).sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(trees(x[::-1]), z[::-1])


def test_trees_test_thresholds_and_subsets_of_categories(table: Columns) -> None:
    depth, units = 3, [unit.tolist() for unit in table.units]
    tests, sizes = ObliviousTrees(table, 200, depth, seed=1)._tests, set()
    assert len(tests) == 200 * depth
    for columns, threshold in tests:
        (unit,) = [unit for unit in units if set(columns.tolist()) <= set(unit)]
        if len(unit) == 1:
            assert np.float32(threshold) in finite(table, unit[0])
        else:
            assert 1 <= len(set(columns.tolist())) == len(columns) < len(unit)  # some values, and not all
            assert threshold == 0.5
            sizes.add(len(columns))
    assert sizes == {1, 2, 3}
    for tree in range(200):  # of a tree no two tests are about the same thing
        owners = [next(k for k, u in enumerate(units) if t[0][0] in u) for t in tests[tree * depth :][:depth]]
        assert len(set(owners)) == depth
    used = {j for columns, _ in tests for j in columns.tolist()}
    assert used == set(np.flatnonzero(table.count).tolist())


def test_trees_follow_from_the_seed(mixed: Array, table: Columns) -> None:
    one, again, other = (ObliviousTrees(table, 20, 3, seed)(mixed[:50]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


# Waves.


def test_waves_follow_from_the_seed_and_not_from_the_batch(mixed: Array, table: Columns) -> None:
    x, waves = mixed[:300], RankWaves(table, 64, 1)
    z = waves(x)
    assert z.shape == (300, 64)
    assert z.dtype == np.float32
    assert np.abs(z).max() <= np.sqrt(2 / 64) + 1e-6
    np.testing.assert_array_equal(RankWaves(table, 64, 1)(x), z)
    np.testing.assert_allclose(waves(x[17:19]), z[17:19], atol=1e-5)
    assert np.abs(RankWaves(table, 64, 2)(x) - z).max() > 0.1


def test_what_constant_columns_hold_does_not_matter(mixed: Array, table: Columns) -> None:
    other = mixed[:50].copy()
    constant = table.count == 0
    assert constant.sum() == 2
    other[:, constant] = np.random.default_rng(0).standard_normal((50, 2)) * 1e6
    for features in (RankWaves(table, 64, 1), ObliviousTrees(table, 20, 3, 1), Steps(table, 8)):
        np.testing.assert_array_equal(features(other), features(mixed[:50]))


def test_values_beyond_all_thresholds_are_clamped(mixed: Array, table: Columns) -> None:
    x = np.tile(mixed[:1], (4, 1))
    for j in range(len(KINDS)):
        if not table.count[j]:
            continue
        cuts = finite(table, j)
        x[:, j] = [cuts[0] - 10, cuts[0] - 1e7, np.nextafter(cuts[-1], np.float32(np.inf)), 3e38]
    for features in (RankWaves(table, 64, 1), ObliviousTrees(table, 20, 3, 1), Steps(table, 8)):
        z = features(x)
        assert np.isfinite(z).all()
        np.testing.assert_array_equal(z[0], z[1])
        # the last threshold itself has the highest rank
        np.testing.assert_allclose(z[2], z[3], atol=1e-6)


def test_inner_products_of_waves_are_the_kernel_of_the_docstring() -> None:
    """Pairs and triples of columns, Laplace kernels on ranks with scale 1/4; two values, and categories."""
    grid = np.linspace(0.0, 1.0, 11, dtype=np.float32)
    columns = Columns(np.tile(grid, (3, 1)), (0, 1, 2))
    x = np.random.default_rng(0).random((12, 3)).astype(np.float32)
    z = RankWaves(columns, 6000, 3)(x)
    d = np.abs(x[:, None] - x[None]).astype(np.float64)  # on [0, 1] with even thresholds ranks are the values

    def kernel(some: tuple[int, ...]) -> Array:
        k: Array = np.exp(-np.linalg.norm(d[:, :, list(some)], axis=2) / 0.25)
        return k

    pairs = np.mean([kernel(pair) for pair in itertools.combinations(range(3), 2)], axis=0)
    np.testing.assert_allclose(z @ z.T, 0.5 * pairs + 0.5 * kernel((0, 1, 2)), atol=0.06)


def test_a_categorys_values_are_equally_far_from_each_other() -> None:
    cut = np.full((4, 1), 0.5, np.float32)
    x = np.hstack([np.eye(3), np.zeros((3, 1))]).astype(np.float32)
    x = np.vstack([x, x + np.eye(4, dtype=np.float32)[3]])
    z = RankWaves(Columns(cut, (0, 0, 0, 1)), 6000, 3)(x)
    value, two = np.exp(-((np.pi / 2) ** 2)), np.exp(-((np.pi / 2) ** 2) / 2)
    same = np.eye(3) + value * (1 - np.eye(3))
    np.testing.assert_allclose(z @ z.T, np.kron([[1, two], [two, 1]], same), atol=0.06)


# Tables with little in them.


@pytest.mark.parametrize("constants", [0, 2])
def test_one_column_is_enough(constants: int) -> None:
    x = np.hstack([column("normal", 200)[:, None], np.ones((200, constants), np.float32)])
    columns = seen(x)
    assert [unit.tolist() for unit in columns.units] == [[0]]
    trees = ObliviousTrees(columns, 5, 3, 0)
    np.testing.assert_array_equal(trees(x), slow_trees(trees, x))
    for features in (Steps.about(columns, 64), RankWaves(columns, 32, 0)):
        z = features(x)
        assert z.shape == (200, features.dimension)
        assert np.isfinite(z).all()
        assert z.var(axis=0).sum() > 0.1


def test_a_table_of_constants_has_no_thresholds_and_nothing_to_tell() -> None:
    x = np.full((20, 2), [0.0, 0.3], np.float32)
    columns = seen(x)
    assert columns.count.tolist() == [0, 0]
    assert columns.units == []
    np.testing.assert_array_equal(columns.ranks(x), 0.0)
    assert Steps.about(columns, 64)(x).shape == (20, 0)
    z = RankWaves(columns, 32, 0)(x)
    np.testing.assert_array_equal(z, np.tile(z[:1], (20, 1)))


def test_trees_of_a_table_of_constants() -> None:
    x = np.ones((20, 2), np.float32)
    z = ObliviousTrees(seen(x), 4, 3, 0)(x)
    np.testing.assert_array_equal(z, np.tile(z[:1], (20, 1)))


def test_maps_come_back_from_their_recipes(mixed: Array, table: Columns) -> None:
    for features in (RankWaves(table, 16, 1), ObliviousTrees(table, 5, 3, 1), Steps(table, 8), Histogram(table.cuts)):
        recipe, arrays = describe(features)
        again = build(json.loads(json.dumps(recipe)), arrays)
        if isinstance(features, Histogram):
            np.testing.assert_array_equal(again.edges, features.edges)
            continue
        assert again.fingerprint == features.fingerprint
        np.testing.assert_array_equal(again(mixed[:9]), features(mixed[:9]))


@pytest.mark.parametrize(("columns", "steps"), [(30, 900), (500, 8), (2000, 2), (4000, 0), (20_000, 0)])
def test_very_many_columns_have_few_steps_each(columns: int, steps: int) -> None:
    """A Gram of their features must fit into memory."""
    cuts = np.tile(np.arange(30, dtype=np.float32), (columns, 1))
    found = Steps.about(Columns(cuts, tuple(range(columns))), 1024)
    assert found.dimension == (steps if columns == 30 else steps * columns)
    z = found(np.full((5, columns), 20.5, np.float32))
    assert z.shape == (5, found.dimension)
    assert (z > 0).all(axis=0).sum() == (z > 0).any(axis=0).sum()
