"""Moments of columns: those of all clients' rows together, however large columns are and wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ffgb.core.moments import MAGNITUDES, TOO_FAR, MagnitudeOf, MomentsOf, moments_of, moments_of_targets
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, ask_locally
from ffgb.core.statistics import Moments
from ffgb.core.types import Tensors
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from tests.features.clients import Log, among, asked, own, split

Array = np.ndarray


def of_targets(parts: list[Array], log: Log | None = None) -> Moments:
    clients = [Points(i, np.zeros((len(y), 1), np.float32), y) for i, y in enumerate(parts)]
    return moments_of_targets(among(clients, log), parts[0].shape[1])


@given(
    npst.arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e6, 1e6)),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_moments_of_parts_are_those_of_the_union(x: Array, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x) - 1), max_size=5)))
    total = of_targets(np.split(x, cuts))
    # a unit is at most 2⁻⁶⁰ of an order of magnitude, and orders are at most 2⁸ apart; less than the least is nothing
    scale = np.maximum(np.abs(x).max(axis=0), MAGNITUDES[0] / 2.0**8)
    assert (np.abs(total.mean - x.mean(axis=0)) <= 1e-14 * len(x) * scale).all()
    assert (np.abs(total.variance - x.var(axis=0)) <= 1e-12 * len(x) * scale**2).all()
    assert (total.variance >= 0).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_the_split_does_not_matter(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, 3)) * [1e-5, 1.0, 1e4] + [0.0, 300.0, -1e9]
    one, other = of_targets([x]), of_targets(split(x, clients, seed))
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-13, atol=1e-19)
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-9)


def test_the_moments_of_images_are_one_a_pixel() -> None:
    x = np.random.default_rng(0).random((7, 2, 3, 4)).astype(np.float32)
    for moments in (Moments.of(x), moments_of(asked([x[:2], x[2:]]), Flatten(24))):
        np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(axis=0).ravel())
        np.testing.assert_allclose(moments.variance, x.astype(np.float64).var(axis=0).ravel())


def test_one_point_has_no_variance() -> None:
    moments = of_targets([np.array([[3.0, -1.0]])])
    np.testing.assert_array_equal(moments.variance, [0.0, 0.0])
    assert moments.constant.all()


COLUMNS = [
    (np.full(50, 0.1, np.float32), True),
    (np.zeros(50), True),
    (np.array([1e8, 1e8 + 8] * 25, np.float32), True),  # the next float32: as far apart as rounding
    (np.array([1000.0, 1001.0] * 25), False),
    (np.array([0.0] * 49 + [1e-20]), False),
]
IDS = ["tenth", "zeros", "one float apart", "thousands", "small"]


@pytest.mark.parametrize(("column", "constant"), COLUMNS, ids=IDS)
def test_constant_is_meant_up_to_float32(column: Array, constant: bool) -> None:
    assert Moments.of(column[:, None]).constant.tolist() == [constant]


@pytest.mark.parametrize(("column", "constant"), COLUMNS[:4], ids=IDS[:4])
def test_clients_find_the_same_columns_constant(column: Array, constant: bool) -> None:
    parts = split(column[:, None].astype(np.float32), 4)
    assert moments_of(asked(parts), Flatten(1)).constant.tolist() == [constant]


def test_columns_near_1e8_keep_their_spread() -> None:
    """Squares about 0 would have eight digits more than what is left of the variance."""
    rng = np.random.default_rng(0)
    x = (1e8 + 8.0 * rng.integers(-3, 4, (60, 2))).astype(np.float32)
    log: Log = []
    found = moments_of(asked(split(x, 5), log), Flatten(2))
    np.testing.assert_allclose(found.mean, x.astype(np.float64).mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.variance, x.astype(np.float64).var(axis=0), rtol=1e-10)
    # once about 0, and once more about the mean, in an order of magnitude of its own
    assert [type(question) for question, _ in log] == [MagnitudeOf, MomentsOf] * 2
    about, bound = log[3][0].centre, log[3][0].bound  # type: ignore[attr-defined]
    assert (np.abs(about - 1e8) <= 30).all()
    assert (bound == 2.0**8).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0, 1e8, 1e-9, 3e30])
def test_a_column_that_is_constant_has_no_variance_at_all(value: float) -> None:
    x = np.column_stack([np.full(30, value), np.random.default_rng(0).standard_normal(30)]).astype(np.float32)
    found = moments_of(asked(split(x, 4)), Flatten(2))
    assert found.variance[0] == 0.0
    assert found.mean[0] == pytest.approx(float(np.float32(value)), rel=1e-15)
    assert found.variance[1] == pytest.approx(x[:, 1].astype(float).var())
    assert found.constant.tolist() == [True, False]


def test_moments_of_a_map_and_of_the_targets() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 3)).astype(np.float32), rng.standard_normal((20, 2))
    features = Concatenate((Flatten(3), Flatten(3)), (1.0, 2.0))
    ask = among([Points(0, x[:3], y[:3]), Points(1, x[3:], y[3:])])  # clients weigh the same: only rows count
    for total, values in ((moments_of(ask, features), features(x)), (moments_of_targets(ask, 2), y)):
        np.testing.assert_allclose(total.mean, values.mean(axis=0, dtype=np.float64))
        np.testing.assert_allclose(total.variance, values.astype(np.float64).var(axis=0))
    question = MomentsOf(features, np.ones(6), np.full(6, 256.0))
    mean, variance = question.spread(own(question, x))  # by which clients are compared
    np.testing.assert_allclose(mean, features(x).mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(variance, features(x).astype(np.float64).var(axis=0))
    assert question.size == 2 * 6 * 8


def test_clients_may_weigh_the_same() -> None:
    """In a shared geometry moments are weighted as the Gram is."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 2)).astype(np.float32) + n for n in (3, 30)]
    found = moments_of(asked(parts), Flatten(2), by_rows=False)
    means = [part.astype(float).mean(axis=0) for part in parts]
    np.testing.assert_allclose(found.mean, np.mean(means, axis=0))
    squares = [np.square(part.astype(float)).mean(axis=0) for part in parts]
    np.testing.assert_allclose(found.variance, np.mean(squares, axis=0) - np.square(found.mean))


def test_a_map_that_knows_its_bounds_is_asked_once() -> None:
    waves, log = RandomFourier(Flatten(2), 8, 1.0, 0), Log()
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    found = moments_of(asked([x[:9], x[9:]], log), waves)
    assert [type(question) for question, _ in log] == [MomentsOf]
    np.testing.assert_allclose(found.mean, waves(x).mean(axis=0, dtype=float), atol=1e-12)


def test_a_map_that_knows_its_bounds_is_not_asked_for_them_about_its_mean() -> None:
    """Features far from 0, for their spread: moments are asked for once more, and bounds are known."""
    waves, log = RandomFourier(Flatten(2), 8, 1e9, 0), Log()
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    found = moments_of(asked([x[:9], x[9:]], log), waves)
    assert [type(question) for question, _ in log] == [MomentsOf, MomentsOf]
    np.testing.assert_allclose(found.mean, waves(x).mean(axis=0, dtype=float), rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"square": np.array([1.0, -1e-3])}, "negative variance"),
        ({"mean": np.array([0.0, 1.1])}, "negative variance"),
    ],
    ids=["negative square", "a mean beyond its square"],
)
def test_impossible_moments_are_refused(wrong: Tensors, words: str) -> None:
    question, good = MomentsOf(None, np.zeros(2), np.ones(2)), {"mean": np.zeros(2), "square": np.ones(2)}
    question.check(good, 4)
    with pytest.raises(FFGBError, match=words):
        question.check({**good, **wrong}, 4)


def test_moments_of_bounded_features_keep_the_bounds() -> None:
    """A feature that is never beyond b has a mean square of at most b²."""
    waves = RandomFourier(Flatten(2), 8, 1.0, 0)
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    question = MomentsOf(waves, np.zeros(8), waves.bounds)
    part = own(question, x)
    question.check(part, 30)
    for mean, square in ((0.6, 0.36), (0.0, 0.3)):
        lie = {
            "mean": np.where(np.arange(8) == 5, mean, part["mean"]),
            "square": np.where(np.arange(8) == 5, square, part["square"]),
        }
        with pytest.raises(FFGBError, match=r"its feature 5 has a mean of .*, and is never beyond 0\.5"):
            question.check(lie, 30)


# Orders of magnitude.


@given(npst.arrays(np.float64, (6, 3), elements=st.floats(-1e30, 1e30)), st.integers(1, 5))
def test_magnitudes_are_bounds_and_not_much_too_wide(y: Array, cut: int) -> None:
    clients = [Points(i, np.zeros((len(p), 1)), p) for i, p in enumerate((y[:cut], y[cut:]))]
    bound = among(clients)(MagnitudeOf(None, np.zeros(3)))
    largest = np.abs(y).max(axis=0)
    assert (largest <= bound).all()
    assert ((bound <= 2.0**8 * largest) | (bound == MAGNITUDES[0])).all()
    assert np.isin(bound, MAGNITUDES).all()


def test_magnitudes_are_about_a_centre() -> None:
    y = np.array([[1e8 + 1.0], [1e8 - 200.0]])
    found = among([Points(0, np.zeros((2, 1)), y)])(MagnitudeOf(None, np.array([1e8])))
    assert found.tolist() == [2.0**8]


def test_values_beyond_all_magnitudes_are_refused_where_they_are() -> None:
    points = Points(0, np.zeros((2, 1)), np.array([[1.0, 1e60], [0.0, 1.0]]))
    with pytest.raises(FFGBError, match=r"column 1 has values beyond .*; rescale it"):
        MagnitudeOf(None, np.zeros(2)).part(Here(points, 0.5))


@pytest.mark.parametrize(
    "change",
    [lambda a: a * 0, lambda a: a * 2, lambda a: a + np.eye(2, a.shape[1]), lambda a: a - np.eye(2, a.shape[1], 2)],
    ids=["none", "twice", "two", "negative"],
)
def test_who_names_no_order_of_magnitude_or_several_is_refused(change: object) -> None:
    question = MagnitudeOf(None, np.zeros(2))
    part = own(question, np.zeros((3, 1)), np.full((3, 2), 1e20))
    question.check(part, 3)
    with pytest.raises(FFGBError, match="one order of magnitude a column"):
        question.check({"clients": change(part["clients"])}, 3)  # type: ignore[operator]


def test_a_client_far_above_the_others_is_strange() -> None:
    question, spreads = MagnitudeOf(None, np.zeros(2)), []
    for largest in (1.0, 3.0, 0.01, 0.5, 2.0 ** (8 * TOO_FAR)):
        y = np.array([[0.0, largest], [0.0, -largest]])  # a column of zeros says nothing
        spreads.append(question.spread(own(question, np.zeros((2, 1)), y)))
    found = question.strange(*map(np.array, zip(*spreads, strict=True)))
    assert list(found) == [4]
    assert "in column 1" in found[4]


def ask_of(rows: Array, weights: Array | None) -> Ask:
    return ask_locally(Points(0, rows.astype(np.float32), rows, weights))


def test_asking_here_is_asking_one_client() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 2)) + 1000.0
    here, there = moments_of_targets(ask_of(x, None), 2), of_targets([x])
    np.testing.assert_allclose(here.mean, there.mean, rtol=1e-14)
    np.testing.assert_allclose(here.variance, there.variance, rtol=1e-12)


def test_a_category_that_few_clients_have_is_nothing_strange() -> None:
    """At all others the column is constant, and what they send of it is rounded: that is no spread to compare with."""
    question = MomentsOf(Flatten(3), np.array([0.02, 0.0, 0.0]), np.ones(3))
    rng = np.random.default_rng(0)
    mean, variance = rng.standard_normal((20, 3)), rng.uniform(0.5, 1.0, (20, 3))
    mean[:, 0], variance[:, 0] = 3e-18 * rng.integers(0, 2, 20), 3e-18 * rng.integers(0, 2, 20)
    mean[:2, 0], variance[:2, 0] = 0.2, 0.16
    assert question.strange(mean, variance) == {}
    mean[3, 1] = 1e6
    assert list(question.strange(mean, variance)) == [3]
