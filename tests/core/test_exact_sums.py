"""Sizes of numbers, and the units in which their sums are whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.exact_sums import EXACT, HIGHEST, LOWEST, ORDERS, SHORT, Sizes, check_counts, orders, unit_for, whole
from ffgb.errors import FFGBError


def test_orders_of_magnitude_by_hand() -> None:
    values = np.array([0.0, 1.0, -1.0, 0.75, 2.0**LOWEST, 2.0 ** (LOWEST - 2), 2.0**HIGHEST / 2])
    (counts,) = orders(values[:, None])
    assert len(counts) == ORDERS + 1 == 194
    # 1 lies in [2^0, 2^1), 0.75 in [2^-1, 2^0); what is smaller than all orders counts as 0
    found = {int(k): int(counts[k]) for k in np.flatnonzero(counts)}
    assert found == {0: 2, 2: 1, -LOWEST + 1: 1, -LOWEST + 2: 2, ORDERS: 1}
    assert orders(np.array([[1.0, 0.0], [1.0, 1.0]]))[:, 0].tolist() == [0.0, 1.0]
    for beyond in (2.0**HIGHEST, -(2.0**HIGHEST), np.inf, np.nan):
        with pytest.raises(FFGBError, match="values beyond 2"):
            orders(np.array([[1.0], [beyond]]))


def test_sizes_are_bounds_within_a_factor_of_two() -> None:
    values = np.array([0.0, 0.0, 0.3, -0.3, 3.0, 20.0])[:, None]
    sizes = Sizes.of(orders(values))
    # 0.3 < 0.5, 3 < 4, 20 < 32; of the four that are not 0 the second is the median, and 0.25 ≤ 0.3
    assert sizes.total.tolist() == [0.5 + 0.5 + 4.0 + 32.0]
    assert sizes.median.tolist() == [0.25]
    assert Sizes.of(orders(values[4:])).median.tolist() == [2.0]


@pytest.mark.parametrize(("total", "rows", "most"), [(37.0, 100, SHORT), (1e-9, 5, EXACT), (1e12, 10**6, 2.0**40)])
def test_the_unit_is_the_least_in_which_a_sum_has_room(total: float, rows: int, most: float) -> None:
    unit = unit_for(total, rows, most)
    assert np.log2(unit) % 1 == 0
    assert total / unit + 0.5 * rows <= most - 1  # each row's rounding is half a unit at most
    assert total / (unit / 2) + 0.5 * rows > most - 1


def test_a_unit_exists_for_few_enough_rows() -> None:
    assert unit_for(0.0, 1, 3.5) == 2.0 ** (LOWEST - 1)  # sizes that are all 0 count as the least; 3.5 − 1/2 − 1 = 2
    assert unit_for(1.0, 4, 4.0) == 1.0  # 4 − 4/2 − 1 = 1
    with pytest.raises(FFGBError, match="5 rows are too many for sums of whole numbers up to 4"):
        unit_for(1.0, 5, 4.0)


def test_numbers_are_rounded_to_units_and_ties_to_even() -> None:
    assert whole(np.array([0.24, 0.26, 0.75, 1.25, -0.26]), 0.5).tolist() == [0.0, 1.0, 2.0, 2.0, -1.0]


def test_counts_of_rows() -> None:
    check_counts(np.array([[3.0, 0.0], [1.0, 2.0]]), 3)
    for wrong in ([[3.0, 1.0]], [[2.0, 0.0]], [[4.0, -1.0]], [[3.0, 0.0], [1.0, 1.0]]):
        with pytest.raises(FFGBError, match="do not add up to its 3 rows"):
            check_counts(np.array(wrong), 3)
