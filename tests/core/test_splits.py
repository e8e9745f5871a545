"""Splits as lists and tables, and the way of rows through them, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.splits import Layout, Splits, route
from ffgb.errors import FFGBError


def tree() -> Splits:
    """Node 0 looks at column 1, and its left child (node 1) at column 0; nodes 2, 3 and 4 are leaves."""
    return Splits.of([0, 1], [1, 0], [np.array([1, 0, 1], bool), np.array([0] * 8 + [1], bool)], 2)


def test_cells_of_columns() -> None:
    layout = Layout(np.array([8, 1, 1], np.int16), np.array([True, False, True]), np.zeros(3, bool))
    assert layout.cells.tolist() == [9, 1, 2]
    assert layout.usable.tolist() == [0, 2]
    assert layout.width == 2  # nine bits
    assert Layout(np.array([8], np.int16), np.zeros(1, bool), np.zeros(1, bool)).width == 1
    assert Layout(np.zeros(0, np.int16), np.zeros(0, bool), np.zeros(0, bool)).width == 1


def test_a_tree_by_hand() -> None:
    splits = tree()
    assert len(splits) == 2
    assert splits.of_node.tolist() == [0, 1, -1, -1, -1]
    assert splits.left.view(np.uint8).tolist() == [[0b101, 0], [0, 1]]
    assert np.flatnonzero(splits.goes_left[0]).tolist() == [0, 2]
    assert np.flatnonzero(splits.goes_left[1]).tolist() == [8]
    z = np.array([[8, 0], [7, 2], [8, 1], [0, 0]], np.uint8)
    assert route(splits, z, np.zeros(4, np.int32)).tolist() == [3, 4, 2, 4]
    # from where rows are: leaves stay, and node 1 asks for column 0 alone
    assert route(splits, z, np.array([2, 1, 9, 3], np.int32)).tolist() == [2, 4, 9, 3]
    assert route(splits[:1], z, np.zeros(4, np.int32)).tolist() == [1, 1, 2, 1]


def test_a_list_that_is_filled_up_is_the_same_tree() -> None:
    longer = tree().padded(4)
    assert longer.node.tolist() == [0, 1, -1, -1]
    assert len(longer.of_node) == 9
    assert np.flatnonzero(longer.of_node >= 0).tolist() == [0, 1]
    z = np.array([[8, 0], [7, 2], [8, 1]], np.uint8)
    assert route(longer, z, np.zeros(3, np.int32)).tolist() == [3, 4, 2]
    longer.check(2)


@pytest.mark.parametrize(
    ("nodes", "columns", "words"),
    [
        ([0, 3], [0, 0], "not in order"),  # before the second split there are nodes 0, 1 and 2
        ([0, 0], [0, 0], "not in order"),
        ([-1, 0], [0, 0], "not in order"),
        ([0, 1], [0, 2], "columns other than 0 … 1"),
        ([0, 1], [-1, 0], "columns other than 0 … 1"),
    ],
)
def test_lists_that_are_no_trees(nodes: list[int], columns: list[int], words: str) -> None:
    splits = Splits.of(nodes, columns, [np.ones(1, bool)] * len(nodes), 1)
    with pytest.raises(FFGBError, match=words):
        splits.check(2)


def test_every_node_that_is_there_may_be_divided() -> None:
    Splits.of([0, 2, 4], [0, 1, 1], [np.ones(1, bool)] * 3, 1).check(2)
