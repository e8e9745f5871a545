"""Numbers that no honest site would send: what is refused, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.outliers import far_apart, strange_sizes, too_large


def test_a_size_absurdly_beyond_the_others_is_refused() -> None:
    rows = {"a": 300, "b": 120, "c": 450, "d": 90, "e": 10**8}
    assert list(strange_sizes(rows)) == ["e"]
    assert "it announces 100000000 rows, and the median site has 300" in strange_sizes(rows)["e"]
    assert list(strange_sizes({"a": 300, "b": 120, "c": 10**400})) == ["c"]


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 1, 1, 1, 500_000],  # sites of one row, and a large one
        [200, 300, 1_000_000],
        [10, 1_000, 100_000, 10_000_000, 1_000_000_000],  # sizes of all orders
        [5, 10**9],  # of two no one knows which is strange
        [10**9] * 3,
        [0, 0, 0, 5],
    ],
)
def test_sizes_that_differ_are_not(sizes: list[int]) -> None:
    assert strange_sizes({str(k): n for k, n in enumerate(sizes)}) == {}


def test_sizes_of_all_orders_may_differ_by_six_robust_deviations() -> None:
    """The median deviation here is one order of magnitude, so the limit is 6 · 1.4826 = 8.9 orders."""
    others = {"a": 10**4, "b": 10**5, "c": 10**6, "d": 10**7}
    assert strange_sizes({**others, "e": 10**13}) == {}
    assert strange_sizes({**others, "e": 5 * 10**14}) == {}
    assert list(strange_sizes({**others, "e": 10**15})) == ["e"]
    assert strange_sizes({str(k): 1000**k for k in range(5)}) == {}


def some_clients(clients: int = 8, columns: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of columns in units of their own."""
    rng, unit = np.random.default_rng(0), np.geomspace(1e-3, 1e6, columns)
    return unit * (5 + rng.standard_normal((clients, columns))), unit**2 * rng.uniform(0.5, 2.0, (clients, columns))


def test_honest_clients_are_not_far_apart() -> None:
    mean, variance = some_clients()
    for alike in (True, False):
        assert far_apart(mean, variance, alike=alike) == {}
        assert far_apart(mean * 0, variance * 0, alike=alike) == {}
        far = mean + 1e4 * np.sqrt(variance.mean(axis=0))  # all of them alike: from one another, and not from 0
        assert far_apart(far, variance, alike=alike) == {}


@pytest.mark.parametrize(
    ("what", "columns", "factor", "words"),
    [
        ("mean", slice(None), 1e3, "in half of its columns"),
        ("variance", slice(None), 1e6, "in half of its columns"),
        ("mean", 3, 1e5, "in column 3 its values are"),
        ("variance", 3, 1e10, "in column 3 its values are"),
    ],
)
def test_a_client_far_from_the_others_is_named(what: str, columns: slice | int, factor: float, words: str) -> None:
    arrays = dict(zip(("mean", "variance"), some_clients(), strict=True))
    arrays[what][5, columns] *= factor
    (found,) = far_apart(**arrays, alike=False).items()
    assert found[0] == 5
    assert words in found[1]
    few = {name: array[4:6] for name, array in arrays.items()}
    assert far_apart(**few, alike=False) == {}  # of two no one knows which is strange


def test_a_column_that_only_one_client_has_is_nothing_strange() -> None:
    """A category that occurs at one site: constant everywhere else."""
    mean, variance = some_clients()
    mean[:, 7], variance[:, 7] = 0.0, 0.0
    mean[2, 7], variance[2, 7] = 0.9, 0.09
    assert far_apart(mean, variance, alike=False) == {}


def test_all_columns_together_count_where_most_are_constant() -> None:
    mean, variance = np.zeros((6, 30)), np.zeros((6, 30))
    mean[:, 0], variance[:, 0] = np.arange(6), 1.0
    mean[4, 9] = 1e7  # of a column that has no spread at the others
    assert "times as far from the others'" in far_apart(mean, variance, alike=False)[4]
    mean[4, 9] = 1e4
    assert far_apart(mean, variance, alike=False) == {}
    assert list(far_apart(mean, variance, alike=True)) == [4]  # features of one scale


def test_features_of_one_scale_are_compared_closely() -> None:
    rng = np.random.default_rng(0)
    mean, variance = rng.standard_normal((10, 50)), rng.uniform(0.5, 2.0, (10, 50))
    assert far_apart(mean, variance, alike=True) == {}
    variance[1] *= 1e3
    assert list(far_apart(mean, variance, alike=True)) == [1]
    assert far_apart(mean, variance, alike=False) == {}


def test_overflow_is_found_and_not_raised() -> None:
    mean, variance = some_clients()
    mean[0], variance[1] = 1e300, 1e308
    assert list(far_apart(mean, variance, alike=False)) == [0, 1]


def test_a_number_that_would_make_up_the_mean_is_too_large() -> None:
    shares = [0.25] * 4
    assert too_large([1.0, 2.0, 1e30, 3.0], shares, 0.0) == [2]
    assert too_large([1.0, 2.0, 900.0, 3.0], shares, 0.0) == []
    assert too_large([1e-9, 1e-9, 900.0, 1e-9], shares, 0.0) == [2]
    assert too_large([1e-9, 1e-9, 900.0, 1e-9], shares, 1.0) == []  # up to a floor nothing is strange
    assert too_large([1.0, 1.0, 1e5, 1.0], [0.33, 0.33, 1e-3, 0.33], 0.0) == []  # nor what weighs little
    assert too_large([0.0, 0.0, 5.0], [1 / 3] * 3, 0.0) == []
    assert too_large([1.0, 1e30], [0.5, 0.5], 0.0) == []


def spreads(columns: int, far: float, where: slice = slice(None)) -> dict[str, np.ndarray]:
    """Five clients with a spread of 1 in each column; the last is so many spreads away in some columns."""
    variance = np.ones((5, columns))
    variance[4, where] = far**2
    return {"mean": np.zeros((5, columns)), "variance": variance}


@pytest.mark.parametrize(
    ("columns", "alike", "limit", "words"),
    [
        (10, False, 100.0, "in half of its columns"),
        (10, True, 20.0, "in half of its columns"),
        (9, False, 1e4, "in column 0"),  # half of so few columns says nothing
        (9, True, 1e3, "as far from the others'"),
    ],
)
def test_how_far_a_client_may_be(columns: int, alike: bool, limit: float, words: str) -> None:
    assert far_apart(**spreads(columns, 0.999 * limit), alike=alike) == {}
    (found,) = far_apart(**spreads(columns, 1.001 * limit), alike=alike).items()
    assert found[0] == 4
    assert words in found[1]


def test_one_column_far_away_is_named_and_of_features_it_is_not() -> None:
    assert "in column 7 its values are 1.01e+04" in far_apart(**spreads(20, 1.01e4, slice(7, 8)), alike=False)[4]
    assert far_apart(**spreads(20, 0.99e3, slice(7, 8)), alike=True) == {}


def test_the_largest_size_and_the_largest_influence() -> None:
    small = {"a": 1, "b": 1, "c": 1}  # the median counts as 100 rows, and the limit is 10,000 times as many
    assert strange_sizes({**small, "d": 999_000}) == {}
    assert list(strange_sizes({**small, "d": 1_001_000})) == ["d"]
    large = {"a": 200, "b": 200, "c": 200}
    assert strange_sizes({**large, "d": 1_999_000}) == {}
    assert list(strange_sizes({**large, "d": 2_001_000})) == ["d"]
    shares = [0.5, 0.25, 0.25]
    assert too_large([2.0, 1.0, 7990.0], shares, 0.0) == []  # times its share, a thousand medians
    assert too_large([2.0, 1.0, 8010.0], shares, 0.0) == [2]
    assert too_large([2.0, 1.0, 8010.0], shares, 2.1) == []
