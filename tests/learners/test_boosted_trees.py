"""Boosted trees as members of a family: what they are made of, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ffgb.core.splits import Layout, Splits
from ffgb.core.tree_growth import Grown
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.learners.boosted_trees import LARGEST_VALUE, STEP, BoostedTrees, least_in_total, least_rows, rounded


def family(leaves: int = 3, outputs: int = 2) -> BoostedTrees:
    """Over two columns of three cells."""
    layout = Layout(np.array([3, 3], np.int16), np.zeros(2, bool), np.zeros(2, bool))
    features: Any = SimpleNamespace(layout=layout, dimension=2)
    return BoostedTrees(features, outputs, leaves)


def stump(column: int, left: list[int], values: tuple[float, float]) -> Grown:
    cells = np.isin(np.arange(3), left)
    return Grown(Splits.of([0], [column], [cells], 1), np.array([0.0, *values]), np.zeros((3, 3)))


def test_a_sum_of_trees_by_hand() -> None:
    trees = [stump(0, [0, 1], (1.0, -2.0)), stump(1, [2], (10.0, 20.0))]
    f = family().sum_of(trees, [0, 1], 0.5)
    z = np.array([[0, 0], [1, 2], [2, 1]], np.uint8)
    expected = [[0.5, 10.0], [0.5, 5.0], [-1.0, 10.0]]
    np.testing.assert_array_equal(f.evaluate(z), expected)
    np.testing.assert_array_equal((2.0 * f).evaluate(z), 2.0 * np.array(expected))
    np.testing.assert_array_equal(f.clip(0.7).evaluate(z), np.clip(expected, -0.7, 0.7))
    members = family().members(f.merged().blocks[0].stack, z)
    np.testing.assert_array_equal(members.sum(axis=0), expected)
    assert np.count_nonzero(members[0][:, 1]) == np.count_nonzero(members[1][:, 0]) == 0


def test_a_constant_is_the_same_everywhere() -> None:
    f = family().constant(np.array([0.25, -3.0]))
    np.testing.assert_array_equal(f.evaluate(np.zeros((2, 2), np.uint8)), [[0.25, -3.0]] * 2)
    assert f.terms == 2


@pytest.mark.parametrize(("leaves", "splits"), [(1, 1), (2, 1), (3, 2), (31, 30)])
def test_a_tree_of_so_many_leaves_has_a_split_less(leaves: int, splits: int) -> None:
    spec = family(leaves).spec
    assert spec["node"][0] == spec["column"][0] == (splits,)
    assert spec["left"][0] == (splits, 1)
    assert spec["value"][0] == (2 * splits + 1,)


def test_values_are_whole_multiples_of_a_step_and_not_too_large() -> None:
    found = rounded(np.array([1.0, 1.4 * STEP, 1.6 * STEP, -0.4 * STEP, 2e3, -2e3]))
    np.testing.assert_array_equal(found, [1.0, STEP, 2 * STEP, 0.0, 1024.0, -1024.0])


def parameters(**changed: Any) -> dict[str, Array]:
    stack = dict(family().sum_of([stump(0, [0], (1.0, LARGEST_VALUE))], [1], 1.0).blocks[0].stack)
    return stack | {name: np.asarray(value, stack[name].dtype) for name, value in changed.items()}


def test_trees_that_are_none_are_refused() -> None:
    family().check(parameters())
    family().check(parameters(output=[0]))
    for wrong, words in (
        ({"output": [2]}, "entries of f other than 0 … 1"),
        ({"output": [-1]}, "entries of f other than 0 … 1"),
        ({"value": [[0.0, 1.0, 1024.5, 0.0, 0.0]]}, "values beyond 1024"),
        ({"value": [[0.0, -1024.5, 0.0, 0.0, 0.0]]}, "values beyond 1024"),
        ({"column": [[2, 0]]}, "columns other than 0 … 1"),
        ({"node": [[1, -1]]}, "not in order"),
    ):
        with pytest.raises(FFGBError, match=words):
            family().check(parameters(**wrong))


def given(**settings: Any) -> Any:
    return SimpleNamespace(**settings)


def test_as_many_rows_as_anyone_asks_for() -> None:
    assert least_rows(given(leaf_rows=20, least=None)) == 20
    assert least_rows(given(leaf_rows=5, least=None)) == 10
    assert least_rows(given(leaf_rows=5, least=7)) == 7
    assert least_in_total(given()) == 10


def test_many_rows_and_few_rows_come_to_the_same_leaves() -> None:
    """Loops that are compiled for many rows, NumPy for few, and each row by hand."""
    rng, own = np.random.default_rng(0), family(6)
    trees, outputs = list[Grown](), [0, 1, 0]
    for _ in outputs:
        leaves, nodes = [0], list[int]()
        for s in range(5):
            nodes.append(leaves.pop(int(rng.integers(len(leaves)))))
            leaves += [2 * s + 1, 2 * s + 2]
        sets = [rng.random(3) < 0.5 for _ in range(5)]
        splits = Splits.of(nodes, rng.integers(0, 2, 5).tolist(), sets, 1)
        trees.append(Grown(splits, np.round(rng.standard_normal(11), 3), np.zeros((11, 3))))
    f, z = own.sum_of(trees, outputs, 0.5), rng.integers(0, 3, (2500, 2)).astype(np.uint8)
    many, few = f.evaluate(z), np.concatenate([f.evaluate(part) for part in np.split(z, 25)])
    assert many.tobytes() == few.tobytes()
    for row, values in zip(z[:60], many, strict=False):
        expected = np.zeros(2)
        for grown, output in zip(trees, outputs, strict=True):
            node, splits = 0, grown.splits
            while (split := int(splits.of_node[node])) >= 0:
                node = 2 * split + (1 if splits.goes_left[split, row[splits.column[split]]] else 2)
            expected[output] += 0.5 * grown.values[node]
        np.testing.assert_allclose(values, expected, atol=1e-12)
