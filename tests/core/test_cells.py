"""Cells of a node are merged until both of its children have no rows in each, or enough."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.cells import _together, heads, regrouped
from ffgb.core.splits import Layout

BINS, MISSING, KINDS = (
    np.array([7, 1, 12, 5]),
    np.array([True, True, False, False]),
    np.array([False, False, False, True]),
)
LAYOUT = Layout(BINS, MISSING, KINDS)


@given(seed=st.integers(0, 10**6), least=st.integers(1, 12), crowd=st.sampled_from([0.5, 3.0, 20.0]))
@settings(max_examples=150)
def test_every_merged_cell_has_no_rows_or_enough_in_both_children(seed: int, least: int, crowd: float) -> None:
    rng, columns = np.random.default_rng(seed), np.array([2, 0, 3, 1])
    cells = LAYOUT.cells[columns]
    first = np.cumsum(cells) - cells
    before = np.arange(cells.sum())
    # rows by column, so that all columns have the same ones; one level below the other
    z = np.stack([f + rng.integers(0, n, int(crowd * 40)) ** 2 // n for f, n in zip(first, cells, strict=True)], axis=1)
    for _ in range(4):
        left = z[:, rng.integers(len(columns))] % 3 == rng.integers(3)
        sides = [np.bincount(before[some].ravel(), minlength=len(before)) for some in (z[left], z[~left])]
        if any(0 < side.sum() < len(columns) * least for side in sides):
            break  # a leaf has enough rows
        found = heads(sides[0], sides[1], before, LAYOUT, columns, least)
        assert np.array_equal(found[found], found)
        assert np.array_equal(found[before], found)  # what was together stays so
        for side in sides:
            counts = np.bincount(found, side, len(found))
            assert not ((counts > 0) & (counts < least)).any()
            assert np.array_equal(regrouped(np.stack([side] * 3), found)[2], counts)
        for column, f, n in zip(columns, first, cells, strict=True):
            own = found[f : f + n]
            assert own.min() >= f
            assert own.max() < f + n
            if not KINDS[column]:
                bins = own[: BINS[column]]
                assert (np.diff(bins) >= 0).all()  # neighbours
                assert all(bins[h - f] == h and h == f + np.flatnonzero(bins == h).max() for h in np.unique(bins))
                if MISSING[column]:
                    assert own[-1] in (f + n - 1, bins[-1])
        keep = left if sides[0].sum() and rng.random() < 0.5 else ~left
        z, before = z[keep], found
        if not len(z):
            break


def test_nothing_is_merged_that_has_enough_rows() -> None:
    columns = np.arange(4)
    everything = np.arange(LAYOUT.cells.sum())
    many = np.full(len(everything), 5)
    for rest in (many, np.zeros_like(many)):
        assert np.array_equal(heads(many, rest, everything, LAYOUT, columns, 5), everything)
    few = many.copy()
    few[3] = 4
    assert np.flatnonzero(heads(few, many, everything, LAYOUT, columns, 5) != everything).tolist() == [3]


@given(seed=st.integers(0, 10**6), least=st.integers(1, 12))
@settings(max_examples=50)
def test_rows_that_are_counted_in_two_ways_are_none_or_enough_in_both(seed: int, least: int) -> None:
    rng, columns = np.random.default_rng(seed), np.arange(4)
    cells = LAYOUT.cells
    first = np.cumsum(cells) - cells
    inside, outside = (
        sum(np.bincount(first + rng.integers(0, cells), minlength=cells.sum()) for _ in range(n)) for n in (150, 30)
    )
    own = np.stack([inside, outside]).astype(float)
    found = heads(own, 0.0 * own, np.arange(cells.sum()), LAYOUT, columns, least)
    merged = regrouped(own, found)
    assert not ((merged > 0) & (merged < least)).any()
    assert np.array_equal(merged.sum(axis=1), own.sum(axis=1))
    # one way alone merges less
    alone = heads(own[0], 0.0 * own[0], np.arange(cells.sum()), LAYOUT, columns, least)
    assert len(np.unique(alone)) >= len(np.unique(found))


def test_categories_are_merged_in_the_order_of_their_fewest_rows() -> None:
    """Of two ways of counting the smaller counts; the merged ones are called by the last of them."""
    layout = Layout(np.array([4]), np.array([False]), np.array([True]))
    counts = np.array([[9.0, 2.0, 8.0, 7.0], [3.0, 50.0, 8.0, 7.0]])
    # by the fewest: the second (2), the first (3), the fourth (7), the third (8); at least 5 of each way
    found = heads(counts, 0.0 * counts, np.arange(4), layout, np.array([0]), 5)
    assert found.tolist() == [1, 1, 2, 3]


def test_what_is_left_over_joins_the_last_group() -> None:
    assert _together([[5.0], [3.0], [2.0], [4.0]], 5) == [(0, 1), (1, 4)]
    assert _together([[5.0], [3.0], [2.0], [5.0], [0.0]], 5) == [(0, 1), (1, 3), (3, 5)]
    assert _together([[2.0], [2.0]], 5) == [(0, 2)]  # all of them are too few
    assert _together([[4.0, 9.0], [1.0, 0.0], [6.0, 0.0]], 5) == [(0, 2), (2, 3)]
    assert _together([[9.0, 0.0], [9.0, 1.0], [0.0, 4.0]], 5) == [(0, 1), (1, 3)]


def test_missing_values_are_merged_with_the_last_bin() -> None:
    layout = Layout(np.array([3]), np.array([True]), np.array([False]))
    counts = np.array([9.0, 9.0, 9.0, 1.0])
    assert heads(counts, 0.0 * counts, np.arange(4), layout, np.array([0]), 5).tolist() == [0, 1, 2, 2]
    few = np.array([0.0, 0.0, 0.0, 9.0])
    assert heads(few, 0.0 * few, np.arange(4), layout, np.array([0]), 5).tolist() == [2, 2, 2, 2]
