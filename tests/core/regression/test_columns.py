"""What designs a statistician may ask for, at the limits of what is refused, and the algebra of their units."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ffgb.core.regression.columns import check_collinear, check_column, check_sizes, listed, solve, to_own_units
from ffgb.errors import FFGBError


def named(*names: str) -> Any:
    return [SimpleNamespace(name=name, variables=() if name == "Intercept" else (name,)) for name in names]


def test_as_many_coefficients_as_a_third_of_the_rows() -> None:
    check_sizes(4, 12, 10)
    with pytest.raises(FFGBError, match="4 coefficients for 11 rows, and sums for more than one in three"):
        check_sizes(4, 11, 10)
    with pytest.raises(FFGBError, match="more than one in three"):
        check_sizes(4, 11, 2)
    check_sizes(4, 5, 1)  # the rows are no secret
    with pytest.raises(FFGBError, match="4 coefficients for 4 rows; choose fewer"):
        check_sizes(4, 4, 1)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([10, 10, 0], None),
        ([0, 10, 0], None),  # the same order of magnitude everywhere
        ([1, 9, 9], None),  # numbers of several sizes: that one is 0 says little
        ([20, 0, 0], "is 0 in every row"),
        ([20, 9, 0], "tells 9 rows from all others"),
        ([20, 4, 5], "tells 9 rows from all others"),
        ([9, 20, 0], "tells 9 rows from all others"),
        ([8, 9, 0], "tells 8 rows from all others"),
        ([1, 10, 0], "tells 1 rows from all others"),
    ],
)
def test_a_column_that_tells_fewer_than_ten_rows_apart_is_refused(counts: list[int], words: str | None) -> None:
    (column,) = named("a")
    if words is None:
        check_column(column, np.array(counts, float), 10)
    else:
        with pytest.raises(FFGBError, match=words):
            check_column(column, np.array(counts, float), 10)


def gram(*columns: list[float]) -> np.ndarray:
    x = np.array(columns).T
    return np.asarray(x.T @ x)


def test_a_column_that_others_add_up_to_is_named_with_them() -> None:
    one, a, b = [1.0] * 4, [1.0, 2.0, 4.0, 8.0], [0.0, 1.0, 0.0, 3.0]
    check_collinear(gram(one, a, b), named("Intercept", "a", "b"))
    with pytest.raises(FFGBError, match="'c' is the same in every row"):
        check_collinear(gram(one, a, [5.0] * 4), named("Intercept", "a", "c"))
    both = [2.0 * v + 3.0 * w for v, w in zip(a, b, strict=True)]
    with pytest.raises(FFGBError, match="'c' follows from 'a' and 'b'; leave"):
        check_collinear(gram(one, a, b, both), named("Intercept", "a", "b", "c"))
    with pytest.raises(FFGBError, match="'c' follows from 'b'; leave"):
        check_collinear(gram(one, a, b, [2.0 * v for v in b]), named("Intercept", "a", "b", "c"))


def test_systems_of_any_scale_are_solved() -> None:
    matrix = np.array([[1e16, 1e7, 0.0], [1e7, 1.0, 1e-9], [0.0, 1e-9, 1e-16]])
    expected = np.array([1e-8, -2.0, 3e8])
    np.testing.assert_allclose(solve(matrix, matrix @ expected), expected, rtol=1e-6)
    two = np.stack([expected, 2.0 * expected], axis=1)
    np.testing.assert_allclose(solve(matrix, matrix @ two), two, rtol=1e-6)
    with pytest.raises(np.linalg.LinAlgError):
        solve(np.diag([1.0, -1.0]), np.ones(2))


def test_coefficients_go_back_to_the_columns_own_units() -> None:
    """β₀ + β'(x − m)/s is (β₀ − β'm/s) + (β/s)'x."""
    design: Any = SimpleNamespace(
        columns=named("Intercept", "a", "b"), centre=np.array([0.0, 10.0, 0.0]), scale=np.array([2.0, 4.0, 2.0])
    )
    found = to_own_units(design) @ np.array([3.0, 8.0, 6.0])
    assert found.tolist() == [1.5 - 8.0 * 10.0 / 4.0, 2.0, 3.0]


def test_lists_of_names() -> None:
    assert listed(["a"]) == "'a'"
    assert listed(["a", "b"]) == "'a' and 'b'"
    assert listed(list("abcdef")) == "'a', 'b', 'c', 'd', 'e' and 'f'"
    assert listed(list("abcdefgh")) == "'a', 'b', 'c', 'd', 'e', 'f' and 2 more"
