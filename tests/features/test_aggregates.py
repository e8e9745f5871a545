"""What clients send to be added up: totals equal those of the union, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ffgb.aggregates import Moments, MomentsOf, Tensors, plain_sum, weighted_mean
from ffgb.errors import FFGBError
from ffgb.features import Concatenate, Flatten, Points

Array = np.ndarray


@given(
    npst.arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e6, 1e6)),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_merged_moments_are_those_of_the_union(x: Array, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x) - 1), max_size=5)))
    total = Moments.total(Moments.of(part) for part in np.split(x, cuts))
    assert total.count == len(x)
    scale = np.abs(x).max(axis=0) + 1e-140  # squares of less have no digits
    assert (np.abs(total.mean - x.mean(axis=0)) <= 1e-14 * len(x) * scale).all()
    assert (np.abs(total.deviations - len(x) * x.var(axis=0)) <= 1e-13 * len(x) ** 2 * scale**2).all()
    assert (total.variance >= 0).all()


def test_the_moments_of_images_are_one_a_pixel() -> None:
    x = np.random.default_rng(0).random((7, 2, 3, 4)).astype(np.float32)
    moments = Moments.of(x)
    np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(axis=0).ravel())
    np.testing.assert_allclose(moments.variance, x.astype(np.float64).var(axis=0).ravel())


def test_one_point_has_no_variance() -> None:
    moments = Moments.total([Moments.of(np.array([[3.0, -1.0]]))])
    np.testing.assert_array_equal(moments.variance, [0.0, 0.0])
    assert moments.constant.all()


@pytest.mark.parametrize(
    ("column", "constant"),
    [
        (np.full(50, 0.1, np.float32), True),
        (np.zeros(50), True),
        (np.array([1e8, 1e8 + 8] * 25, np.float32), True),  # the next float32: as far apart as rounding
        (np.array([1000.0, 1001.0] * 25), False),
        (np.array([0.0] * 49 + [1e-20]), False),
    ],
    ids=["tenth", "zeros", "one float apart", "thousands", "small"],
)
def test_constant_is_meant_up_to_float32(column: Array, constant: bool) -> None:
    assert Moments.of(column[:, None]).constant.tolist() == [constant]


def test_moments_of_a_map_and_of_the_targets() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 3)).astype(np.float32), rng.standard_normal((20, 2))
    points = Points(0, x, y)
    features = Concatenate((Flatten(3), Flatten(3)), (1.0, 2.0))
    for statistic, values in ((MomentsOf.map(features), features(x)), (MomentsOf.targets(2), y)):
        part = statistic.of(points)
        statistic.check(part)
        total = statistic.total([(0.3, part), (0.0, part)])  # the weights do not count, the points do
        assert total.count == 40
        np.testing.assert_allclose(total.mean, values.mean(axis=0, dtype=np.float64))
        np.testing.assert_allclose(total.variance, values.astype(np.float64).var(axis=0))
    assert MomentsOf.map(features).columns == 6


GOOD = {"count": np.array([4.0]), "mean": np.zeros(2), "deviations": np.ones(2)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": np.array([0.0])},
        {"count": np.array([-1.0])},
        {"count": np.array([0.5])},
        {"deviations": np.array([1.0, -1e-9])},
    ],
    ids=["no points", "negative count", "half a point", "negative variance"],
)
def test_impossible_moments_are_refused_while_they_are_read(wrong: Tensors) -> None:
    read = []

    def parts() -> Iterator[tuple[float, Tensors]]:
        for i, part in enumerate((GOOD, {**GOOD, **wrong}, GOOD)):
            read.append(i)
            yield 1.0, part

    with pytest.raises(FFGBError, match="no points, or have a negative variance"):
        MomentsOf.targets(2).total(parts())
    assert read == [0, 1]  # so that the server knows whose it was


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": np.zeros(2)}, r"it has the arrays \['count', 'deviations', 'mean', 'more'\], expected"),
        ({"mean": np.zeros(3)}, r"its mean should be float64 of shape \(2,\), and is float64 of \(3,\)"),
        ({"mean": np.zeros((2, 1))}, r"its mean should be"),
        ({"count": np.zeros(())}, r"its count should be float64 of shape \(1,\)"),
        ({"mean": np.zeros(2, np.float32)}, r"and is float32 of"),
        ({"mean": np.zeros(2, np.int64)}, r"and is int64 of"),
        ({"mean": np.array([0.0, np.nan])}, r"its mean has values that are not finite"),
        ({"deviations": np.array([np.inf, 0.0])}, r"its deviations has values that are not finite"),
    ],
)
def test_what_does_not_fit_is_refused(change: Tensors, words: str) -> None:
    statistic = MomentsOf.targets(2)
    statistic.check(GOOD)
    with pytest.raises(FFGBError, match=words):
        statistic.check({**GOOD, **change})


def test_a_missing_array_is_refused() -> None:
    with pytest.raises(FFGBError, match=r"it has the arrays \['count', 'mean'\], expected \['count', 'deviations'"):
        MomentsOf.targets(2).check({name: GOOD[name] for name in ("count", "mean")})


def test_the_size_is_that_of_the_arrays() -> None:
    assert MomentsOf.targets(2).size == sum(array.nbytes for array in GOOD.values()) == 40


def some_parts(seed: int) -> list[tuple[float, Tensors]]:
    rng = np.random.default_rng(seed)
    return [
        (float(p), {"a": rng.standard_normal((2, 3)).astype(np.float32), "b": rng.integers(0, 9, 4)})
        for p in rng.uniform(0.1, 3.0, 5)
    ]


def test_the_weighted_mean_is_numpys() -> None:
    parts = some_parts(0)
    weights = [p for p, _ in parts]
    mean = weighted_mean(iter(parts))
    for name in ("a", "b"):
        arrays = np.array([part[name] for _, part in parts], np.float64)
        np.testing.assert_allclose(mean[name], np.average(arrays, axis=0, weights=weights), rtol=1e-14)
        assert mean[name].dtype == np.float64


def test_the_plain_sum_takes_no_weights_and_leaves_its_parts_alone() -> None:
    parts = [(p, {"c": np.full(2, k, np.float32), "n": np.array([k])}) for p, k in ((9.0, 2**24), (0.0, 1), (2.0, 3))]
    total = plain_sum(iter(parts))
    np.testing.assert_array_equal(total["c"], [2.0**24 + 4] * 2)  # in float32 the 1 would be lost
    np.testing.assert_array_equal(total["n"], [2.0**24 + 4])
    assert total["c"].dtype == total["n"].dtype == np.float64
    np.testing.assert_array_equal(parts[0][1]["c"], [2.0**24] * 2)
    assert plain_sum([]) == {}
