"""Bins by counts: enough rows in each, whatever the columns are like, and the same over any split."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, Question, ask_locally
from ffgb.errors import FFGBError
from ffgb.features.bins import Bins, bins_of, chosen_levels, keys, places, values
from ffgb.privacy.integers import add, from_integers, to_integers

Array = np.ndarray


def ask_all(parts: list[Array]) -> Ask:
    """Totals of several clients' parts, as they travel."""

    def ask(question: Question) -> Any:
        here = [Here(Points(i, x, np.zeros(len(x))), 1.0) for i, x in enumerate(parts)]
        whole = add((to_integers(question.part(each), question.sums) for each in here), question.sums)
        return question.total(from_integers(whole, question.sums))

    return ask


def made(x: Array, names: tuple[str, ...] = (), most: int = 32, least: int = 10) -> Bins:
    return bins_of(ask_locally(Points(0, x, np.zeros(len(x)))), names, x.shape[1], most, least)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2))
def test_keys_have_the_order_of_numbers(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    k = keys(x)
    assert np.array_equal(np.sign(np.diff(k)), np.sign(np.subtract(x[1:], x[:-1], dtype=np.float64)))
    assert np.array_equal(values(k), x + np.float32(0))


@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=254, unique=True),
)
@settings(max_examples=25, deadline=None)
def test_many_numbers_get_the_places_that_a_search_finds(seed: int, cuts: list[float]) -> None:
    rng, ends = np.random.default_rng(seed), np.sort(np.array(cuts, np.float32) + np.float32(0))
    some = rng.integers(0, 2**32, 2**16, np.uint32).view(np.float32)  # any bits: NaN, infinities, subnormal numbers
    near = np.nextafter(ends, np.float32(0))
    x = np.concatenate([some, ends, near, np.array([0.0, -0.0], np.float32)])
    assert np.array_equal(places(ends, x), np.searchsorted(ends, x))


@given(seed=st.integers(0, 10**6), clients=st.integers(2, 9), least=st.integers(1, 40), most=st.integers(2, 255))
@settings(max_examples=25, deadline=None)
def test_every_bin_has_the_least_rows_and_any_split_gives_the_same(
    seed: int, clients: int, least: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    n = 500
    x = np.stack(
        [
            rng.standard_normal(n),
            rng.standard_cauchy(n) * 1e6,
            np.where(rng.random(n) < 0.9, 0.0, rng.exponential(1e-4, n)),
            rng.integers(17, 91, n),
            np.where(rng.random(n) < 0.002, 1e12, rng.random(n)),
            np.full(n, 7.0),
            np.where(rng.random(n) < 0.3, np.nan, rng.random(n)),
        ],
        axis=1,
    ).astype(np.float32)
    one = made(x, most=most, least=least)
    cells, z = one.layout.cells, one(x)
    for c in range(one.dimension):
        counts = np.bincount(z[:, c], minlength=cells[c])
        assert len(counts) == cells[c]
        assert counts.min() >= min(least, n)
        assert one.bins[c] <= most
    assert cells[5] == 1
    several = bins_of(ask_all(np.array_split(x[rng.permutation(n)], clients)), (), 7, most, least)
    for each in fields(Bins):
        assert np.array_equal(getattr(one, each.name), getattr(several, each.name)), each.name


def test_few_values_have_a_bin_each_and_cuts_lie_between_them() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 40, (2000, 1)).astype(np.float32)
    bins = made(x, most=255, least=1)
    assert bins.bins[0] == 40
    assert np.array_equal(bins(x), x.astype(np.uint8))
    between = np.abs(bins.cuts_of(0) - np.round(bins.cuts_of(0)))
    assert between.min() > 0.1


def test_bins_are_about_equal_and_heavy_values_alone() -> None:
    rng = np.random.default_rng(1)
    x = np.where(rng.random(20_000) < 0.5, 3.0, rng.standard_normal(20_000)).astype(np.float32)[:, None]
    bins = made(x, most=50, least=10)
    counts = np.bincount(bins(x)[:, 0])
    assert len(counts) > 35
    heavy = counts.argmax()
    assert counts[heavy] < 10_400
    assert np.delete(counts, heavy).max() < 1000


def test_columns_of_a_category_are_one_column() -> None:
    rng = np.random.default_rng(2)
    job = rng.choice(5, 1000, p=[0.5, 0.3, 0.185, 0.01, 0.005])  # the last has no column
    x = np.zeros((1000, 5), np.float32)
    x[:, 0] = rng.standard_normal(1000)
    x[np.arange(1000)[job < 4], 1 + job[job < 4]] = 1.0
    bins = made(x, ("size", "job=a", "job=b", "job=c", "job=d"), least=20)
    assert bins.names == ("size", "job")
    assert bins.categorical.tolist() == [False, True]
    cell = bins(x)[:, 1]
    counts = np.bincount(cell)
    assert counts.min() >= 20
    # too few rows have d, or none of these, even together: the next rarest joins them
    assert [len(set(cell[job == k])) for k in range(5)] == [1] * 5
    assert len({cell[job == k][0] for k in (2, 3, 4)}) == 1
    assert len(counts) == 3


def test_columns_that_only_look_like_a_category_are_numbers() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 2)).astype(np.float32)
    bins = made(x, ("a=1", "b=2"))
    assert not bins.categorical.any()
    assert bins.names == ("a=1", "b=2")
    assert (bins.bins > 5).all()


def test_a_flag_makes_a_cell_of_missing_values() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((400, 2)).astype(np.float32)
    x[:, 1] = np.arange(400) < 100
    x[:100, 0] = 0.0
    bins = made(x, ("age", "age missing"))
    assert bins.names == ("age",)
    assert bins.missing.tolist() == [True]
    assert (bins(x)[:100, 0] == bins.bins[0]).all()
    assert (bins(x)[100:, 0] < bins.bins[0]).all()
    x[5:, 1] = 0.0  # too few to be told apart
    few = made(x, ("age", "age missing"))
    assert not few.missing.any()


def test_an_unknown_category_goes_where_most_rows_are() -> None:
    x = np.repeat(np.eye(2, dtype=np.float32), [30, 70], axis=0)
    bins = made(x, ("job=a", "job=b"))
    assert bins.layout.cells.tolist() == [2]
    assert bins(np.zeros((1, 2), np.float32))[0, 0] == bins(x)[-1, 0]


def test_levels_are_chosen_with_enough_rows_at_both_ends() -> None:
    assert chosen_levels(np.array([1.0, 50.0, 99.0]), 100.0, 10, 5) == [1]
    assert chosen_levels(np.empty(0), 100.0, 10, 5) == []
    many = np.arange(1.0, 1000.0)
    assert len(chosen_levels(many, 1000.0, 50, 1)) == 49


@pytest.mark.parametrize("most", [1, 256])
def test_a_cell_is_a_byte(most: int) -> None:
    with pytest.raises(FFGBError, match="from 2 to 255 bins"):
        made(np.zeros((5, 1), np.float32), most=most)
