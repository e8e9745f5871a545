"""Additive models as sums of trees: terms go in and come out again, whatever leaves a tree may have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ffgb.core.functions import OpenSum
from ffgb.core.splits import Layout, Splits
from ffgb.core.tree_growth import Grown
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.additive import is_additive, sum_of_terms, terms_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear

CELLS = (3, 11, 1, 8)


def family(leaves: int, outputs: int = 2) -> BoostedTrees:
    """Over four columns, the last of which has a cell for missing values."""
    layout = Layout(np.array([3, 11, 1, 7], np.int16), np.arange(4) == 3, np.zeros(4, bool))
    features: Any = SimpleNamespace(layout=layout, dimension=4)
    return BoostedTrees(features, outputs, leaves)


def two_columns(own: BoostedTrees, second: int) -> OpenSum:
    """A tree that splits the first column, and then another."""
    splits = Splits.of([0, 1], [0, second], [np.arange(3) < 1, np.arange(3) < 2], own.layout.width)
    grown = Grown(splits, np.array([0.0, 0.0, 1.0, 2.0, 3.0]), np.zeros((5, 3)))
    return own.sum_of([grown], [0], 1.0)


@pytest.mark.parametrize("leaves", [3, 4, 5, 10, 11, 31])
def test_terms_go_in_and_come_out_again(leaves: int) -> None:
    own, columns = family(leaves), np.array([1, 3, 0])
    rng = np.random.default_rng(leaves)
    terms = np.round(rng.standard_normal((2, 1 + 11 + 8 + 3)), 3)
    f = sum_of_terms(own, columns, terms)
    assert is_additive(f)
    np.testing.assert_allclose(terms_of(f, columns), terms, atol=1e-9)
    np.testing.assert_allclose(terms_of(2.0 * f, columns), 2.0 * terms, atol=1e-9)
    z = np.stack([rng.integers(0, n, 50) for n in CELLS], axis=1).astype(np.uint8)
    first = {1: 1, 3: 12, 0: 20}
    expected = terms[:, :1] + sum(terms[:, first[c] + z[:, c].astype(int)] for c in first)
    np.testing.assert_allclose(f.evaluate(z), expected.T, atol=1e-9)
    # of fewer columns: their own terms, and the constant
    np.testing.assert_allclose(terms_of(f, columns[1:]), terms[:, [0, *range(12, 23)]], atol=1e-9)
    trees = sum(len(block.weights) for block in f.blocks)
    if leaves >= 11:
        assert trees == 2 * 4  # a constant, and a tree a column
    if leaves == 4:
        assert trees == 2 * (1 + 5 + 3 + 1)  # the first three, two at a time, and the last three


def test_two_leaves_hold_two_bins_alone() -> None:
    own = family(2)
    with pytest.raises(FFGBError, match="allow three leaves"):
        sum_of_terms(own, np.array([0]), np.zeros((2, 4)))
    short = Layout(np.array([2], np.int16), np.zeros(1, bool), np.zeros(1, bool))
    features: Any = SimpleNamespace(layout=short, dimension=1)
    f = sum_of_terms(BoostedTrees(features, 1, 2), np.array([0]), np.array([[0.5, 1.0, 2.0]]))
    assert f.evaluate(np.array([[0], [1]], np.uint8)).ravel().tolist() == [1.5, 2.5]


def test_trees_of_two_columns_are_no_terms() -> None:
    own = family(4)
    assert is_additive(two_columns(own, 0))
    assert not is_additive(two_columns(own, 1))
    assert not is_additive(Linear(Flatten(2), 1).zero())
    assert is_additive(own.constant(np.array([0.25, 1.0])))
    mixed = two_columns(own, 1) + sum_of_terms(own, np.array([0]), np.array([[0.5, 1.0, 2.0, 3.0]] * 2))
    np.testing.assert_allclose(terms_of(mixed, np.array([0])), [[0.5, 1.0, 2.0, 3.0]] * 2)
    with pytest.raises(FFGBError, match="only a sum of trees has terms"):
        terms_of(Linear(Flatten(2), 1).zero(), np.array([0]))
