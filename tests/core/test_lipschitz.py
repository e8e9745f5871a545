"""Lipschitz extensions: exact at the labels, nowhere too steep, and what clients say of their labels' slopes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from ffgb.core.lipschitz import Extension, Pairs, kirszbraun, left_out_errors, steepness
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.steepness import Steepness, SteepnessOf, steepness_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.privacy.integers import add, from_integers, to_integers
from tests.features.clients import Log, among, own


def labelled(seed: int, n: int, d: int, c: int = 1) -> tuple[Array, Array, float]:
    """Random points and labels, on very different scales, with the labels' largest slope."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4)
    labels = rng.standard_normal((n, c)) * 10.0 ** rng.integers(-3, 4)
    _, steepest, conflicts = steepness(points, labels, ())
    assert conflicts == 0
    return points, labels, steepest


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 5), st.integers(1, 3), st.floats(1.0, 3.0))
def test_mcshane_goes_through_the_labels_and_is_lipschitz(seed: int, n: int, d: int, c: int, more: float) -> None:
    points, labels, steepest = labelled(seed, n, d, c)
    L = max(steepest * more, 1e-6)
    u = Extension(points, labels, L)
    np.testing.assert_array_equal(u(points), labels)  # to the bit
    rng = np.random.default_rng(seed)
    fresh = np.concatenate([points, points.mean(axis=0) + 3.0 * points.std() * rng.standard_normal((40, d))])
    values = u(fresh)
    for j in range(c):
        slopes = np.abs(pdist(values[:, j : j + 1])) - L * pdist(fresh)
        assert slopes.max(initial=-1.0) <= 1e-9 * (np.abs(values).max() + L * np.abs(fresh).max())
    # it is the largest such function: one that is lower by a little anywhere would still fit, one that is higher not
    upper = np.min(labels[:, 0] + L * cdist(fresh, points), axis=1)
    np.testing.assert_allclose(values[:, 0], upper, rtol=1e-9, atol=1e-9 * np.abs(labels).max())


@given(st.integers(0, 2**32 - 1), st.integers(2, 25), st.floats(0.05, 1.0))
def test_the_middle_is_lipschitz_for_any_labels_and_no_function_comes_closer(seed: int, n: int, share: float) -> None:
    points, labels, steepest = labelled(seed, n, 3)
    L = steepest * share
    values = Extension(points, labels, L, "middle")(points)
    distance = cdist(points, points)
    assert (np.abs(values - values.T) <= L * distance * (1 + 1e-9) + 1e-9 * np.abs(labels).max()).all()
    # two labels that are too far apart by e must be missed by e/2 at one of them
    excess = (np.abs(labels - labels.T) - L * distance).max()
    assert np.abs(values - labels).max() == pytest.approx(
        max(excess, 0.0) / 2, rel=1e-6, abs=1e-9 * np.abs(labels).max()
    )


@pytest.mark.parametrize("kind", ["mcshane", "middle"])
def test_the_gradient_is_that_of_finite_differences(kind: str) -> None:
    points, labels, steepest = labelled(3, 40, 4, c=2)
    u, rng = Extension(points, labels, 1.2 * steepest, kind), np.random.default_rng(0)
    s = points.mean(axis=0) + points.std() * rng.standard_normal((50, 4))
    step = 1e-6 * points.std()
    numeric = np.stack([(u(s + step * e) - u(s - step * e)) / (2 * step) for e in np.eye(4)], axis=1)
    np.testing.assert_allclose(u.gradient(s), numeric, rtol=1e-4, atol=1e-4 * u.L)
    if kind == "mcshane":
        np.testing.assert_allclose(np.linalg.norm(u.gradient(s), axis=1), u.L)


def test_labels_that_are_too_steep_are_counted() -> None:
    points = np.array([[0.0], [1.0], [1.0], [3.0]])
    labels = np.array([[0.0], [2.0], [2.5], [2.5]])
    counts, steepest, conflicts = steepness(points, labels, (0.5, 2.0, 2.4, 2.5))
    # slopes: 2, 2.5, 5/6, −, 0.25, 0; the conflict is steeper than any L
    assert (counts.tolist(), steepest, conflicts) == ([4, 2, 2, 1], 2.5, 1)
    with pytest.raises(FFGBError, match=r"2 pairs of points have labels that are steeper"):
        Extension(points, labels, 2.0)
    between = Extension(points, labels, 3.0, "middle")(points)
    np.testing.assert_allclose(between, [[0.0], [2.25], [2.25], [2.5]])  # the conflict is met in the middle


def test_left_out_errors_by_hand() -> None:
    # at 1 the others say min(0 + L, 3 + L) and max(0 − L, 3 − L): with L = 2, (2 + 1)/2 = 1.5
    points, labels = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [1.5], [3.0]])
    (error,) = left_out_errors(points, labels, (2.0,))
    # at 0: min(1.5 + 2, 3 + 4), max(1.5 − 2, 3 − 4) give 1.5; at 2 likewise 1.5
    assert error == pytest.approx(1.5**2 + 0.0 + 1.5**2)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("steeper", lambda a: a + 191, "more pairs than 20 points make"),
        ("conflicts", lambda a: a + 191, "more pairs than 20 points make"),
        ("errors", lambda a: a * 1e3 + 1e3, "its errors are larger than its labels"),
        ("errors", lambda a: -a, "no such numbers"),
        ("steeper", lambda a: a[::-1], "no such numbers"),
        ("extremes", lambda a: a * 3, "larger than it said before"),
    ],
    ids=["pairs", "conflicts", "errors", "negative", "decreasing", "larger labels"],
)
def test_slopes_that_no_labels_have_are_refused(name: str, change: Callable[[Array], Array], words: str) -> None:
    rng = np.random.default_rng(0)
    question = SteepnessOf(Flatten(2), np.ones(1), np.array([2.0]), 4.0)
    part = own(question, rng.random((20, 2)).astype(np.float32), rng.standard_normal(20))
    question.check(part, 20)
    with pytest.raises(FFGBError, match=words):
        question.check({**part, name: change(part[name])}, 20)


def test_labels_absurdly_larger_than_the_others_are_strange() -> None:
    rng = np.random.default_rng(0)
    question, spreads = SteepnessOf(Flatten(2), np.zeros(1), np.ones(1), 1e31), []
    for scale in (1.0, 3.0, 0.1, 1e30):
        part = own(question, rng.random((20, 2)).astype(np.float32), scale * rng.standard_normal(20))
        spreads.append(question.spread(part))
    assert list(question.strange(*map(np.array, zip(*spreads, strict=True)))) == [3]


def test_noisy_labels_have_a_small_best_constant_and_a_large_steepest_slope() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (300, 1)).astype(np.float32)
    found = []
    for noise in (0.0, 0.3):
        y = np.sin(2 * x[:, 0]) + noise * rng.standard_normal(300)
        found.append(steepness_of(among([Points(0, x, y)]), Flatten(1), np.zeros(1), np.ones(1)))
    clean, noisy = found
    assert clean.steepest == pytest.approx(2.0, rel=0.05)  # the derivative of sin 2x
    assert clean.best == 2.0
    assert noisy.steepest > 100.0
    assert noisy.best <= 4.0
    assert noisy.steeper_than(noisy.best) > 1000


def test_slopes_are_those_of_scaled_labels() -> None:
    """Slopes and errors are measured in the units of training, (y − mean)/scale."""
    rng = np.random.default_rng(0)
    points = Points(0, rng.random((20, 2)).astype(np.float32), 7.0 + rng.standard_normal(20))
    here = Here(points, 1 / 20)
    plain = SteepnessOf(Flatten(2), np.array([7.0]), np.ones(1), 16.0).part(here)
    halved = SteepnessOf(Flatten(2), np.array([7.0]), np.full(1, 2.0), 16.0).part(here)
    np.testing.assert_array_equal(halved["steeper"][:-1], plain["steeper"][1:])  # constants double from one to the next
    assert halved["extremes"][0] == pytest.approx(plain["extremes"][0] / 2)
    assert halved["extremes"][1] == plain["extremes"][1]  # that of the labels themselves
    # half the labels with half the constant are predicted half as wrong
    np.testing.assert_allclose(halved["errors"][:-1], plain["errors"][1:] / 4)


def test_clients_add_up_pairs_and_errors_and_have_one_largest_label() -> None:
    """Counts and errors are summed over clients, and the two maxima are maxima over clients."""
    question = SteepnessOf(Flatten(1), np.zeros(1), np.ones(1), 6.0, (1.0, 2.0, 4.0))
    parts = [
        to_integers(dict(zip(question.sums, map(np.array, arrays), strict=True)), question.sums)
        for arrays in (
            ([9.0, 4.0, 1.0], [2.0], [5.0, 1.0, 2.0], [8.0, 6.0]),
            ([3.0, 0.0, 0.0], [1.0], [0.0, 3.0, 2.5], [1.5, 5.0]),
            ([1.0, 1.0, 0.0], [0.0], [0.5, 3.0, 1.0], [3.0, 4.0]),
        )
    ]
    for order in (parts, parts[::-1]):
        total = question.total(from_integers(add(order, question.sums), question.sums))
        assert (total.steeper, total.steepest, total.conflicts, total.largest) == ((13, 5, 1), 8.0, 3, 6.0)
        assert total.best == 1.0  # errors 5.5, 7 and 5.5: of two that are as good, the flatter


def test_pairs_are_those_of_one_client_and_errors_a_mean_over_all_rows() -> None:
    """However many rows a client has, and whatever they weigh, its errors count as much as its rows do."""
    rng = np.random.default_rng(0)
    x, y = rng.random((1600, 1)).astype(np.float32), rng.standard_normal(1600)
    for weights in (None, np.full(1600, 1e-3), rng.uniform(0.0, 5.0, 1600)):
        log: Log = []
        total = steepness_of(among([Points(0, x, y, weights)], log), Flatten(1), np.zeros(1), np.ones(1))
        assert isinstance(total, Steepness)
        question, points = log[-1][0], Points(0, x, y, weights)
        assert isinstance(question, SteepnessOf)
        errors = question.part(Here(points, 1.0 / points.weight))["errors"]
        np.testing.assert_allclose(errors, left_out_errors(x[::2], y[::2, None], question.constants) / 800)


@pytest.mark.parametrize("mean", [-40.0, 0.0, 40.0])
def test_errors_keep_their_bound_wherever_the_labels_lie(mean: float) -> None:
    """A bound that is too small would refuse what an honest client says."""
    x, y = np.arange(8, dtype=np.float32)[:, None], np.where(np.arange(8) % 2, 41.0, -41.0)
    question = SteepnessOf(Flatten(1), np.array([mean]), np.ones(1), 41.0, (1e-9, 1e9))
    points = Points(0, x, y)
    part = question.part(Here(points, 1.0 / points.weight))
    assert part["errors"].max() > 0.5
    assert (part["errors"] <= question.sums["errors"].bound).all()
    to_integers(part, question.sums)


def test_a_client_with_one_row_has_no_slopes() -> None:
    points = [Points(0, np.zeros((1, 1), np.float32), np.array([3.0])), Points(1, np.eye(2, 1), np.array([1.0, 5.0]))]
    total = steepness_of(among(points), Flatten(1), np.zeros(1), np.ones(1))
    assert (total.steepest, total.conflicts, total.largest) == (4.0, 0, 5.0)
    assert total.steeper_than(2.0) == 1


def test_pairs_measure_slopes_and_leave_equal_points_out() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    pairs = Pairs(points, np.random.default_rng(0))
    assert pairs.slope(np.array([[0.0], [5.0], [7.0]])) == 1.0
    assert pairs.slope(np.array([[0.0, 0.0], [6.0, 8.0], [6.0, 8.0]])) == 2.0
    assert Pairs(points[:1], np.random.default_rng(0)).slope(np.zeros((1, 1))) == 0.0
    many = np.random.default_rng(1).standard_normal((60, 2))
    some = Pairs(many, np.random.default_rng(0), at_most=20)
    assert len(some.a) == 190
    values = many[:, :1] * 3.0
    assert some.slope(values) <= Pairs(many, np.random.default_rng(0)).slope(values) <= 3.0


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(2, 3))
def test_kirszbraun_needs_no_more_than_l(seed: int, n: int, c: int) -> None:
    rng = np.random.default_rng(seed)
    points, labels, queries = rng.standard_normal((n, 2)), rng.standard_normal((n, c)), rng.standard_normal((5, 2))
    L = float((pdist(labels) / pdist(points)).max())
    values = kirszbraun(points, labels, L, queries)
    everywhere, all_values = np.concatenate([points, queries]), np.concatenate([labels, values])
    assert (pdist(all_values) <= L * pdist(everywhere) * (1 + 1e-4) + 1e-6).all()
    np.testing.assert_array_equal(kirszbraun(points, labels, L, points[:1]), labels[:1])


def test_coordinates_one_by_one_cost_up_to_the_root_of_their_number() -> None:
    # three labels at the corners of a triangle: each coordinate's own extension exceeds L, by at most √2
    points = np.array([[0.0], [2.0]])
    labels = np.array([[0.0, 0.0], [np.sqrt(2.0), -np.sqrt(2.0)]])  # distance 2: L = 1
    u = Extension(points, labels, 1.0)
    s = np.linspace(-1.0, 3.0, 201)[:, None]
    vector = (np.linalg.norm(np.diff(u(s), axis=0), axis=1) / np.diff(s[:, 0])).max()
    assert 1.0 < vector <= np.sqrt(2.0) + 1e-9
    s = s[::20]
    one = kirszbraun(points, labels, 1.0, s)
    assert (np.linalg.norm(np.diff(one, axis=0), axis=1) / np.diff(s[:, 0])).max() <= 1.0 + 1e-3


def test_labels_without_an_extension_are_refused() -> None:
    with pytest.raises(FFGBError, match="not 1-Lipschitz"):
        kirszbraun(np.array([[0.0], [1.0]]), np.array([[0.0, 0.0], [3.0, 0.0]]), 1.0, np.array([[0.5]]))
    with pytest.raises(FFGBError, match="mcshane or middle"):
        Extension(np.zeros((1, 1)), np.zeros((1, 1)), 1.0, "upper")
