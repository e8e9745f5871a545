"""Parts become totals as integers: the same bits in any order, rounded by half a unit each, and never too large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.questions import Sum
from ffgb.core.types import Array
from ffgb.errors import DivergedError, FFGBError
from ffgb.privacy.integers import add, check_integers, from_integers, to_integers

Bits = Literal[32, 64]
BITS = st.sampled_from([32, 64])
BOUNDS = st.floats(1e-30, 1e30)


def some_parts(seed: int, clients: int, bound: float, bits: Bits) -> tuple[list[dict[str, Array]], dict[str, Sum]]:
    """Parts whose sum is within the bound, and what they are of: a mean, a count, and a largest."""
    rng = np.random.default_rng(seed)
    sums = {
        "mean": Sum((2, 3), bound, bits),
        "each": Sum((3,), bound * np.array([1.0, 1e-3, 1e-9]), bits),
        "count": Sum((2,), 2.0**30, 32, "count"),
        "largest": Sum((2,), 1e300, kind="largest"),
    }
    parts = [
        {
            "mean": rng.uniform(-1.0, 1.0, (2, 3)) * bound / clients,
            "each": rng.uniform(-1.0, 1.0, 3) * np.asarray(sums["each"].bound) / clients,
            "count": rng.integers(0, 2**20, 2).astype(np.float64),
            "largest": rng.standard_normal(2) * 1e10,
        }
        for _ in range(clients)
    ]
    return parts, sums


def same(a: Mapping[str, Array], b: Mapping[str, Array]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert array.dtype == b[name].dtype
        assert array.tobytes() == b[name].tobytes(), name


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), BOUNDS, BITS, st.data())
@settings(max_examples=60, deadline=None)
def test_a_total_has_the_same_bits_in_any_order_and_grouping(
    seed: int, clients: int, bound: float, bits: Bits, data: st.DataObject
) -> None:
    parts, sums = some_parts(seed, clients, bound, bits)
    whole = [to_integers(part, sums) for part in parts]
    total = add(whole, sums)
    order = data.draw(st.permutations(range(clients)))
    same(add((whole[i] for i in order), sums), total)
    cuts = sorted(data.draw(st.sets(st.integers(1, clients), max_size=4)))
    groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, clients], strict=True)]
    same(add((add([whole[i] for i in group], sums) for group in groups if group), sums), total)
    same(from_integers(add(whole[::-1], sums), sums), from_integers(total, sums))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), BOUNDS, BITS)
@settings(max_examples=60, deadline=None)
def test_a_total_is_rounded_by_half_a_unit_a_client_at_most(seed: int, clients: int, bound: float, bits: Bits) -> None:
    parts, sums = some_parts(seed, clients, bound, bits)
    total = from_integers(add((to_integers(part, sums) for part in parts), sums), sums)
    for name in ("mean", "each"):
        exact = np.sum([part[name].astype(np.longdouble) for part in parts], axis=0)
        error = np.abs(total[name] - exact)
        rounded = 2.0**-52 * np.abs(exact)  # the total itself is a float64
        assert (error <= clients / 2 * sums[name].unit + rounded).all()
    np.testing.assert_array_equal(total["count"], np.sum([part["count"] for part in parts], axis=0))
    np.testing.assert_array_equal(total["largest"], np.max([part["largest"] for part in parts], axis=0))


@given(st.floats(0.0, 1e300), BITS)
def test_a_unit_is_a_power_of_two_and_totals_within_the_bound_fit(bound: float, bits: Bits) -> None:
    each = Sum((1,), bound, bits)
    mantissa, _ = np.frexp(each.unit)
    assert mantissa == 0.5
    assert np.isfinite(each.unit)
    assert each.unit > 0
    # a sum of many parts is rounded up, and a lie may be a bit beyond: a bit is left for these
    assert bound * (1.0 + 1e-6) / float(each.unit) + 2.0 < 2.0 ** (bits - 1) * 0.51
    if bound > 1e-200:
        assert bound / float(each.unit) >= 2.0 ** (bits - 3)  # and hardly any bit is wasted
    whole = to_integers({"a": np.array([-bound])}, {"a": each})["a"]
    assert whole.dtype == np.dtype(f"int{bits}")
    assert abs(float(whole[0]) * float(each.unit) + bound) <= 0.5 * float(each.unit) + 2.0**-52 * bound


@given(st.floats(1e-100, 1e100), BITS, st.floats(1.0001, 1e6), st.booleans())
def test_what_is_beyond_the_bound_raises(bound: float, bits: Bits, factor: float, negative: bool) -> None:
    sums = {"a": Sum((2,), bound, bits)}
    value = -factor * bound if negative else factor * bound
    with pytest.raises(DivergedError, match="a is beyond its bound; choose a smaller --step-size"):
        to_integers({"a": np.array([0.0, value])}, sums)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["mean", "count", "largest"])
def test_what_is_no_number_raises(value: float, kind: Literal["mean", "count", "largest"]) -> None:
    with pytest.raises(DivergedError, match="beyond its bound"):
        to_integers({"a": np.array([value])}, {"a": Sum((1,), 1e300, kind=kind)})


def test_another_shape_raises() -> None:
    with pytest.raises(FFGBError, match=r"the part a has the shape \(3,\), not \(2,\)"):
        to_integers({"a": np.zeros(3)}, {"a": Sum((2,), 1.0)})


def test_what_a_client_can_send_it_may_send() -> None:
    """What is rounded here passes there, up to the bound itself."""
    for bits in (32, 64):
        sums = {"a": Sum((3,), np.array([1.0, 3.7, 1e-300]), bits)}
        for sign in (-1.0, 0.3, 1.0):
            check_integers(to_integers({"a": sign * np.asarray(sums["a"].bound)}, sums), sums)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": np.zeros(2, np.int64)}, r"it has the arrays \['a', 'b', 'more'\], expected \['a', 'b'\]"),
        ({"a": np.zeros(3, np.int64)}, r"its a should be int64 of shape \(2,\), and is int64 of \(3,\)"),
        ({"a": np.zeros((2, 1), np.int64)}, "its a should be"),
        ({"a": np.zeros(2, np.int32)}, "and is int32 of"),
        ({"a": np.zeros(2, np.float64)}, "and is float64 of"),
        ({"b": np.zeros(1, np.int64)}, r"its b should be float64 of shape \(1,\)"),
        ({"b": np.array([np.nan])}, "its b has values that are not finite"),
        ({"b": np.array([np.inf])}, "its b has values that are not finite"),
        ({"a": np.array([0, 2**62])}, r"its a has a value of .*, beyond its bound"),
        ({"a": np.array([-(2**63), 0])}, r"its a has a value of .*, beyond its bound"),
        ({"b": np.array([11.0])}, r"its b has a value of 11, beyond its bound"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Array], words: str) -> None:
    sums = {"a": Sum((2,), 1.0), "b": Sum((1,), 5.0, kind="largest")}
    good = {"a": np.zeros(2, np.int64), "b": np.ones(1)}
    check_integers(good, sums)
    with pytest.raises(FFGBError, match=words):
        check_integers({**good, **change}, sums)


def test_a_missing_array_is_refused() -> None:
    with pytest.raises(FFGBError, match=r"it has the arrays \[\], expected \['a'\]"):
        check_integers({}, {"a": Sum((2,), 1.0)})


def test_adding_leaves_parts_alone_and_sums_do_not_overflow() -> None:
    sums = {"a": Sum((1,), 2.0**31 - 1, 32, "count")}
    parts = [to_integers({"a": np.array([2.0**31 - 1])}, sums) for _ in range(5)]
    assert add(parts, sums)["a"].tolist() == [5 * (2**31 - 1)]
    assert parts[0]["a"].tolist() == [2**31 - 1]
    assert parts[0]["a"].dtype == np.int32
    assert add([], sums) == {}


def test_a_count_is_whole_and_a_mean_in_units() -> None:
    sums = {"n": Sum((1,), 100.0, 32, "count"), "m": Sum((1,), 0.75, 32)}
    whole = to_integers({"n": np.array([7.0]), "m": np.array([0.5])}, sums)
    assert sums["m"].unit == 2.0**-30
    assert (whole["n"].tolist(), whole["m"].tolist()) == ([7], [2**29])
    assert sums["m"].rounding(1 / 8) == 2.0**-28
    assert (sums["n"].size, sums["m"].size, Sum((2, 3), 1.0).size) == (4, 4, 48)
