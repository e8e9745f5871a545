"""Compiled loops against NumPy and against plain Python: the same bits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core import kernels
from ffgb.core.histograms import Rows, sums_of_rows
from ffgb.core.losses import Loss
from ffgb.core.losses.logistic import Logistic
from ffgb.core.losses.poisson import Poisson
from ffgb.core.losses.square import Square
from ffgb.core.questions import Ask
from ffgb.core.splits import Splits, by_column, route
from ffgb.core.tree_growth import Growth
from ffgb.features.bins import Bins, Column, bins_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.training import federate

Array = np.ndarray
NEVER, ALWAYS = 10**9, 0


def a_tree(rng: np.random.Generator, splits: int, columns: int, cells: int) -> Splits:
    """Splits of leaves at random."""
    leaves, nodes = [0], []
    for s in range(splits):
        nodes.append(leaves.pop(int(rng.integers(len(leaves)))))
        leaves += [2 * s + 1, 2 * s + 2]
    sets = [rng.random(cells) < 0.5 for _ in range(splits)]
    return Splits.of(nodes, rng.integers(0, columns, splits).tolist(), sets, (cells + 7) // 8)


def one_by_one(rows: Rows, slots: Array, nodes: int, columns: Array, cells: Array) -> Array:
    """Histograms as they are defined."""
    first, out = np.cumsum(cells) - cells, np.zeros((nodes, 3, int(cells.sum())))
    for r, node in enumerate(rows.position):
        if slots[node] >= 0:
            for column, start in zip(columns, first, strict=True):
                place = start + rows.z[r, column]
                h = 0 if rows.hessian is None else rows.hessian[r]
                out[slots[node], :, place] += rows.gradient[r], h, 1
    return out


@given(seed=st.integers(0, 10**6), n=st.integers(1, 300), short=st.booleans(), flat=st.booleans(), whole=st.booleans())
@settings(max_examples=40, deadline=None)
def test_sums_are_the_same_whoever_adds_them_up(seed: int, n: int, short: bool, flat: bool, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.integers(2, 257, 5)
    z = np.asfortranarray(rng.integers(0, cells, (n, 5)).astype(np.uint8))
    z = z if whole else np.repeat(z, 2, axis=0)[::2]  # every other row: not in one piece
    most = (2**30 if short else 2**52) // n
    dtype = np.int32 if short else np.int64
    gradient, hessian = rng.integers(-most, most + 1, n, dtype), rng.integers(0, most + 1, n, dtype)
    nodes, slots = 3, np.array([-1, 2, -1, 0, 1])
    rows = Rows(z, rng.integers(0, len(slots), n, np.int32), gradient, None if flat else hessian)
    columns = rng.permutation(5)[: rng.integers(1, 6)]
    wanted = one_by_one(rows, slots, nodes, columns, cells[columns])
    with pytest.MonkeyPatch.context() as patch:
        for worth in (NEVER, ALWAYS):
            patch.setattr(kernels, "COMPILED_ROWS", worth)
            assert np.array_equal(sums_of_rows(rows, slots, nodes, columns, cells[columns], short=short), wanted)


def test_numpy_adds_up_more_rows_than_fit_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, cells = np.random.default_rng(0), np.array([7, 3])
    n = 2**17 + 1000
    gradient = np.full(n, 2**30 // n, np.int32)
    rows = Rows(rng.integers(0, cells, (n, 2)).astype(np.uint8), np.zeros(n, np.int32), gradient, gradient)
    found = []
    for worth in (NEVER, ALWAYS):
        monkeypatch.setattr(kernels, "COMPILED_ROWS", worth)
        found.append(sums_of_rows(rows, np.zeros(1, np.int64), 1, np.arange(2), cells, short=True))
    assert np.array_equal(found[0], found[1])
    assert found[0][0, 2, :7].sum() == n


@given(seed=st.integers(0, 10**6), n=st.integers(0, 200), before=st.integers(0, 12), more=st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_rows_come_to_the_same_leaves(seed: int, n: int, before: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 20, (n, 4)).astype(np.uint8)
    tree = a_tree(rng, before + more, 4, 20)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for worth in (NEVER, ALWAYS):
            patch.setattr(kernels, "COMPILED_ROWS", worth)
            half = route(tree[:before], z, np.zeros(n, np.int32))
            found.append(route(tree, z, half))
    position = np.zeros(n, np.int32)
    kernels.route(by_column(z), position, tree.of_node, tree.column, tree.goes_left.view(np.uint8))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], position)
    assert set(position.tolist()) <= set(np.flatnonzero(tree.of_node < 0).tolist())


def test_a_sum_of_trees_is_the_sum_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    columns = [Column(f"x{j}", np.array([j]), -1, np.linspace(-2, 2, 19), False, 20, False, 0) for j in range(4)]
    family = BoostedTrees(Bins.of(columns), 3, leaves=9)
    trees = [a_tree(rng, s, 4, 20).padded(8) for s in (8, 0, 5, 8)]
    stack = {
        "node": np.stack([tree.node for tree in trees]),
        "column": np.stack([tree.column for tree in trees]),
        "left": np.stack([tree.left for tree in trees]),
        "value": np.rint(rng.standard_normal((4, 17)) * 2**20) / 2**20,
        "output": np.array([0, 2, 2, 1], np.int32),
    }
    z, weights = family.features(rng.standard_normal((1500, 4))), np.array([1.0, -2.0, 0.5, 1.0])
    wanted = np.tensordot(weights, family.members(stack, z), axes=1)
    for worth in (NEVER, ALWAYS):
        monkeypatch.setattr(kernels, "COMPILED_ROWS", worth)
        assert np.array_equal(family.weighted_sum(weights, stack, z), wanted)


@pytest.mark.parametrize("loss", [Logistic(), Square(1), Poisson(1)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("by_level", [True, False])
def test_models_have_the_same_bits_with_and_without(
    loss: Loss, by_level: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((600, 5)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = rng.poisson(np.exp(np.nan_to_num(x[:, 0])))
    targets = np.minimum(y, 1) if loss.classification else y.astype(np.float64)
    clients = [(x[i::3], targets[i::3]) for i in range(3)]

    def learner(ask: Ask) -> tuple[BoostedTrees, None]:
        return BoostedTrees(bins_of(ask, (), 5, 32, 5), 1, 12), None

    algorithm = TreesShared(side_by_side=2, growth=Growth(12, 5, 5, by_level=by_level))
    found = []
    for worth in (NEVER, ALWAYS):
        monkeypatch.setattr(kernels, "COMPILED_ROWS", worth)
        state, _ = federate(clients, learner, loss, algorithm, rounds=3)
        found.append(state.f.tensors())
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_numba_is_neither_needed_nor_imported_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    kernels._compiled.cache_clear()
    try:
        assert kernels.compiled(10**7) is None
    finally:
        kernels._compiled.cache_clear()
    assert kernels.compiled(kernels.COMPILED_ROWS - 1) is None
