"""Histograms with noise: beside least squares, and bins of counts that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.private_histograms import chosen_cuts, consistent, equal_cuts, groups_of
from ffgb.core.types import Array


@pytest.mark.parametrize("sizes", [(2, 6), (2, 4, 12), (1, 3, 6, 12), (5,)])
def test_consistent_counts_are_those_of_least_squares(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    levels = [rng.normal(10.0, 3.0, n) for n in sizes]
    design = np.concatenate([np.repeat(np.eye(n), sizes[-1] // n, axis=1) for n in sizes])
    expected = np.linalg.lstsq(design, np.concatenate(levels), rcond=None)[0]
    assert consistent(levels) == pytest.approx(expected)


def test_cells_with_as_many_rows_each_are_cut_evenly() -> None:
    counts = np.ones(1024)
    assert chosen_cuts(counts, 4, 0.0, 1024.0).tolist() == [256, 512, 768]
    assert chosen_cuts(counts, 8, 0.0, 1024.0).tolist() == [128 * k for k in range(1, 8)]
    # a bin has one and a half deviations of noise in rows, at least
    assert chosen_cuts(counts, 64, 100.0, 1024.0).tolist() == [150 * k for k in range(1, 7)]


def test_heavy_cells_have_bins_of_their_own() -> None:
    counts = np.ones(1024)
    counts[[100, 600]] = 500.0
    # 1,022 rows are left for six of eight bins
    least = 1022 / 6
    cuts, below = {100, 101, 600, 601}, 0.0
    level = least
    for cell in range(1024):
        below += 0.0 if cell in (100, 600) else 1.0
        if below >= level:
            cuts.add(cell + 1)
            level = below + least
    cuts.discard(1024)
    assert chosen_cuts(counts, 8, 1.0, 2022.0).tolist() == sorted(cuts)


@pytest.mark.parametrize(("rows", "deviation", "bins"), [(800.0, 1.0, 8), (8.0, 20.0, 8)])
def test_a_cell_is_heavy_if_it_has_more_than_a_bin_and_than_five_deviations(
    rows: float, deviation: float, bins: int
) -> None:
    """The limit is 100 in both: rows/bins in the first case, 5 deviations in the second."""
    counts = np.full(1024, 50.0)
    counts[500] = 100.0
    assert not {500, 501} <= set(chosen_cuts(counts, bins, deviation, rows).tolist())
    counts[500] = 100.001
    assert {500, 501} <= set(chosen_cuts(counts, bins, deviation, rows).tolist())


def test_a_heavy_first_cell_and_a_heavy_last_one_are_cut_off() -> None:
    counts = np.zeros(1024)
    counts[[0, 9, 1023]] = 1000.0
    assert chosen_cuts(counts, 5, 1.0, 3000.0).tolist() == [1, 9, 10, 1023]


def test_if_all_rows_but_some_are_heavy_two_bins_are_left_for_these() -> None:
    counts = np.full(1024, 1.0)
    counts[[200, 800]] = 5000.0
    # 1,022 rows in two bins: one cut, after the 511th row, beside those around the heavy cells
    assert chosen_cuts(counts, 3, 1.0, 11022.0).tolist() == [200, 201, 512, 800, 801]


def test_noise_below_zero_takes_no_rows_away() -> None:
    """The number of rows below a cell never falls: between the same rows there is no second cut."""
    counts = np.ones(1024)
    counts[256:300] = np.tile([30.0, -30.0], 22)
    cuts = chosen_cuts(counts, 4, 0.0, 1024.0)
    assert len(cuts) <= 4
    assert (np.diff(cuts) > 100).all()


def test_too_few_rows_are_cut_into_eight_bins_of_equal_widths() -> None:
    assert chosen_cuts(np.zeros(1024), 8, 1.0, 0.0).tolist() == [128 * k for k in range(1, 8)]
    few = np.zeros(1024)
    few[[300, 500, 700, 900]] = 0.2  # a rest of less than one row counts as one: only two cuts
    assert chosen_cuts(few, 4, 0.0, 8.0).tolist() == [128 * k for k in range(1, 8)]
    three = np.zeros(1024)
    three[[300, 700, 900]] = 10.0  # exactly three cuts are enough
    assert chosen_cuts(three, 3, 0.0, 30.0).tolist() == [301, 701, 901]


@pytest.mark.parametrize(("bins", "cuts"), [(2, [512]), (3, [341, 682]), (5, [204, 409, 614, 819])])
def test_equal_cuts(bins: int, cuts: list[int]) -> None:
    assert equal_cuts(bins).tolist() == cuts


@pytest.mark.parametrize(
    ("counts", "most", "order", "groups"),
    [
        ([1, 1, 1, 1], 2, None, [0, 0, 1, 1]),
        ([1, 1, 1, 1], 4, None, [0, 1, 2, 3]),
        ([4, 1, 1, 1, 1], 2, None, [0, 1, 1, 1, 1]),
        ([1, 1, 1, 1, 4], 2, None, [0, 0, 0, 0, 1]),
        ([1, 10, 1], 3, None, [0, 1, 2]),  # the cell in the middle has the middle
        ([10, 1], 8, None, [0, 1]),  # groups without a cell are not counted
        ([1, 1, 1, 1], 2, [3, 0, 2, 1], [0, 1, 1, 0]),
        ([2, -5, 0, 2], 2, None, [0, 0, 1, 1]),  # noise may be negative
        ([0, 0, 0, 0, 0, 0, 0, 0, 4, 4], 2, None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),  # none weighs as one row does
        ([8, 1], 2, None, [0, 1]),
        ([3], 5, None, [0]),
    ],
)
def test_groups_have_about_equal_numbers_of_rows(
    counts: list[float], most: int, order: list[int] | None, groups: list[int]
) -> None:
    places: Array | None = None if order is None else np.array(order)
    assert groups_of(np.array(counts, np.float64), most, places).tolist() == groups
