"""Brier scores, c-index and calibration at a time: against brute force, lifelines, and a bootstrap."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter

from ffgb.core.baseline import ALL, Baseline, Hazards, grid, intervals
from ffgb.core.concordance import c_index, concordance, pairs_of_rows
from ffgb.core.estimates import Estimate, Sampled
from ffgb.core.survival_scores import brier, c_index_of, integrated, observation, observed, survived
from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, n: int, times: int = 8) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, times, n) * 1.0, rng.random(n) < 0.6, rng.integers(0, 4, n) * 0.5


@given(seed=SEEDS, n=st.integers(0, 20))
def test_each_row_knows_its_pairs(seed: int, n: int) -> None:
    time, event, risk = drawn(seed, n)
    expected = np.zeros((2, n))
    for i in range(n):
        for j in range(n):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                expected[0, [i, j]] += float(risk[i] > risk[j]) + 0.5 * float(risk[i] == risk[j])
                expected[1, [i, j]] += 1.0
    found = pairs_of_rows(time, event, risk)
    np.testing.assert_array_equal(found, expected)
    right, same, pairs = concordance(time, event, risk)
    assert found[0].sum() == 2 * right + same
    assert found[1].sum() == 2 * pairs


def test_the_interval_of_the_c_index_is_that_of_a_bootstrap_within_sites() -> None:
    rng = np.random.default_rng(0)
    n, site = 300, np.repeat([0, 1], 150)
    f = rng.standard_normal(n)
    time = rng.exponential(np.exp(-0.8 * f + site))
    event = time < 2.0
    time = np.minimum(time, 2.0)
    found = c_index_of(time, event, f, Sampled.of(n, None, site))
    parts = [concordance(time[site == k], event[site == k], f[site == k]) for k in (0, 1)]
    pairs = [sum(numbers) for numbers in zip(*parts, strict=True)]
    assert found.value == pytest.approx(c_index(pairs))
    values = []
    for _ in range(400):
        some = np.concatenate([rng.choice(np.flatnonzero(site == k), 150) for k in (0, 1)])
        values.append(c_index_of(time[some], event[some], f[some], Sampled.of(n, None, site)).value)
    assert found.low is not None
    assert found.high is not None
    np.testing.assert_allclose([found.low, found.high], np.quantile(values, [0.025, 0.975]), atol=0.012)


@given(seed=SEEDS, n=st.integers(1, 30), at=st.floats(0, 8))
def test_curves_are_those_of_lifelines(seed: int, n: int, at: float) -> None:
    time, event, _ = drawn(seed, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = KaplanMeierFitter().fit(time, event)
        expected = float(theirs.predict(at))
        table = theirs.confidence_interval_survival_function_
    assert survived(time, event, np.array([at]))[0] == pytest.approx(expected, abs=1e-12)
    found = observed(time, event, at, 0.95)
    if found.low is not None and found.high is not None:
        ends = table[table.index <= at].iloc[-1].to_numpy()
        np.testing.assert_allclose([1 - found.high, 1 - found.low], ends, atol=1e-6)


def test_without_censoring_it_is_a_mean_squared_error() -> None:
    rng = np.random.default_rng(0)
    time, at = rng.exponential(1.0, 100), np.array([0.3, 1.0, 2.0])
    survival = rng.random((100, 3))
    found = brier(time, np.ones(100, bool), survival, at)
    np.testing.assert_allclose(found, np.square((time[:, None] > at) - survival))
    np.testing.assert_allclose(integrated(np.ones((4, 3)), at), 1.0)


def test_weights_make_up_for_what_is_censored() -> None:
    """The Brier score of censored rows is on average that of the same rows without censoring."""
    rng, at = np.random.default_rng(1), np.array([1.0])
    exact, weighted = [], []
    for _ in range(300):
        f = rng.standard_normal(200)
        time, end = rng.exponential(np.exp(-f)), rng.exponential(1.5, 200)
        survival = np.exp(-np.exp(f))[:, None]
        exact.append(brier(time, np.ones(200, bool), survival, at).mean())
        weighted.append(brier(np.minimum(time, end), time <= end, survival, at).mean())
    assert np.mean(weighted) == pytest.approx(np.mean(exact), abs=4 * np.std(weighted) / np.sqrt(300))


def test_observation_counts_events_before_ends() -> None:
    time, event = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, False])
    own, until = observation(time, event, np.array([0.5, 1.0, 2.0, 3.0]))
    np.testing.assert_allclose(own, [1.0, 0.75, 0.75, 0.375])
    np.testing.assert_allclose(until, [1.0, 0.75, 0.375, 0.0])


@given(seed=SEEDS, least=st.integers(1, 20))
def test_intervals_have_enough_events(seed: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    time, event = rng.exponential(100, 200), rng.random(200) < 0.5
    ends = intervals(time, event, least)
    counts = np.histogram(time[event], np.concatenate([[-1.0], ends]))[0]
    assert (counts >= least).all()
    assert len(ends) <= 20
    assert not np.isin(ends, time).any()


def test_hazards_are_breslows_and_survival_is_right_where_the_model_is() -> None:
    rng = np.random.default_rng(0)
    f, site = rng.standard_normal(4000), np.arange(4000) % 2
    time = rng.exponential(np.exp(-f) * np.where(site == 0, 1.0, 3.0))
    event, seen = time < 2.0, np.minimum(time, 2.0)
    found = Baseline.of_rows(seen, event, f, site, ("one", "two"), 10)
    assert found is not None
    assert set(found.of) == {ALL, "one", "two"}
    at = np.array([0.5, 1.0])
    near = found.of["one"].ends[np.searchsorted(found.of["one"].ends, at, "right") - 1]
    np.testing.assert_allclose(found.at("one").survival(np.zeros(1), at)[0], np.exp(-near), atol=0.03)
    near = found.of["two"].ends[np.searchsorted(found.of["two"].ends, at, "right") - 1]
    np.testing.assert_allclose(found.at("two").survival(np.zeros(1), at)[0], np.exp(-near / 3.0), atol=0.03)
    one, ends = site == 0, found.of["one"].ends
    places = grid(seen[one])
    rounded = places[np.searchsorted(places, seen[one], "left")]
    np.testing.assert_allclose(found.of["one"].without(ends), survived(rounded, event[one], ends))
    assert Baseline.from_json(found.to_json()).to_json() == found.to_json()
    assert found.at("three") is found.of[ALL]
    with pytest.raises(SettingError, match="three"):
        found.known("three")


def test_few_events_give_no_hazards_and_others_are_refused() -> None:
    time = np.arange(1.0, 13.0)
    assert Baseline.of_rows(time, time < 5, np.zeros(12), np.zeros(12, int), ("a",), 10) is None
    for content in ({}, {"all": {"ends": [1.0], "model": [1.0, 2.0], "null": [1.0]}}, {"all": 3}):
        with pytest.raises(FFGBError):
            Baseline.from_json(content)
    known = Hazards(np.array([2.0]), np.array([0.5]), np.array([0.4]))
    np.testing.assert_allclose(known.survival(np.zeros(1), np.array([1.0, 2.0, 9.0])), np.exp([[0.0, -0.5, -0.5]]))


def test_brier_scores_are_those_of_scikit_survival() -> None:
    """With censoring, without ties; the numbers are those of its version 0.28.0 for these rows."""
    rng = np.random.default_rng(0)
    f = rng.standard_normal(300)
    time, end = rng.exponential(np.exp(-f)), rng.exponential(2, 300)
    event, seen = time <= end, np.minimum(time, end)
    at = np.array([0.2, 0.6, 1.0, 1.5])
    each = brier(seen, event, np.exp(-np.exp(f)[:, None] * at), at)
    expected = [0.15278348556119062, 0.15436817246157256, 0.15105695506478842, 0.1358214617351512]
    np.testing.assert_allclose(each.mean(axis=0), expected, rtol=1e-12)
    assert integrated(each, at).mean() == pytest.approx(0.14941150869985365, rel=1e-12)


def test_at_the_end_of_observation_no_one_is_at_risk() -> None:
    """Without a row that is observed longer, the chance of being observed stays what it was."""
    time, event = np.array([1.0, 2.0, 2.0]), np.array([False, True, True])
    own, until = observation(time, event, np.array([2.0, 9.0]))
    np.testing.assert_allclose(own, [1.0, 2 / 3, 2 / 3])
    np.testing.assert_allclose(until, [2 / 3, 2 / 3])


def test_observed_shares_have_intervals_between_none_and_all() -> None:
    time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, True, True])
    assert observed(time, event, 0.5, 0.95) == Estimate(0.0)
    assert observed(time, event, 4.0, 0.95) == Estimate(1.0)
    found = observed(time, event, 2.0, 0.9)  # a time at which events are counts
    assert found.value == 0.5
    half = 1.6448536269514722 * np.sqrt(1 / (4 * 3) + 1 / (3 * 2)) / np.log(2.0)
    assert (found.low, found.high) == pytest.approx((1 - 0.5 ** np.exp(-half), 1 - 0.5 ** np.exp(half)))
    assert c_index_of(time, np.zeros(4, bool), time, Sampled.of(4, None, np.zeros(4, int))) == Estimate(0.5)


def test_a_brier_score_counts_events_at_the_time_itself() -> None:
    time, event = np.array([1.0, 2.0]), np.array([True, False])
    found = brier(time, event, np.array([[0.8, 0.6], [0.7, 0.5]]), np.array([1.0, 2.0]))
    # the second row ends at 2: neither died nor lives
    np.testing.assert_allclose(found, [[0.64, 0.36], [0.09, 0.0]])
    np.testing.assert_allclose(integrated(np.array([[1.0, 3.0, 3.0]]), np.array([0.0, 1.0, 4.0])), [(2.0 + 9.0) / 4.0])


def test_hazards_of_few_rows_by_hand() -> None:
    """Time is cut at 1,024 places up to a power of two; a site has its own if it has at least two intervals."""
    time = np.array([1.0, 2.0, 3.0, 3.0, 4.0])
    places = grid(time)
    assert len(places) == 1024
    assert (places[0], places[-1]) == (4.0 / 1024, 4.0)
    assert grid(np.array([4.1]))[-1] == 8.0
    event = np.array([True, True, True, False, True])
    assert intervals(time, event, 1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert intervals(time, event, 2).tolist() == [2.0, 4.0]
    assert intervals(time, event, 3).tolist() == [3.0]  # one is left over
    assert intervals(np.zeros(3), np.ones(3, bool), 1).tolist() == []
    assert intervals(time[:0], event[:0], 1).tolist() == []
    many = np.arange(1.0, 42.0)
    assert len(intervals(many, np.ones(41, bool), 1)) == 13  # of three events each: 20 intervals at most
    f = np.array([0.0, 0.5, -0.5, 1.0, 0.2])
    own = Hazards.of(time, event, f, np.array([2.0, 4.0]))
    w = np.exp(f)
    hazards = [1 / w.sum(), 1 / w[1:].sum(), 1 / w[2:].sum(), 1 / w[4]]
    np.testing.assert_allclose(own.model, [hazards[0] + hazards[1], sum(hazards)])
    last = np.log(1e-6)  # nobody is left
    np.testing.assert_allclose(own.null, [-np.log(3 / 5), -np.log(3 / 5) - np.log(2 / 3) - last])
    np.testing.assert_allclose(own.without(np.array([1.9, 2.0, 3.9])), [1.0, 3 / 5, 3 / 5])
    found = Baseline.of_rows(time, event, f, np.array([0, 0, 0, 1, 1]), ("a", "b"), 1)
    assert found is not None
    assert set(found.of) == {ALL, "a"}  # the second has one interval
    assert found.known("a") is found.of["a"]
    assert found.known(None) is found.at("b") is found.of[ALL]


@pytest.mark.parametrize(
    "change",
    [{"ends": [2.0, 1.0]}, {"model": [0.5, np.inf]}, {"null": [0.2, 0.1]}, {"ends": [1.0]}, {"model": [[0.1, 0.2]]}],
)
def test_hazards_that_fall_or_are_none_are_refused(change: dict[str, Any]) -> None:
    fine = {"ends": [1.0, 2.0], "model": [0.5, 0.5], "null": [0.1, 0.2]}
    assert Baseline.from_json({"all": fine}).of[ALL].model.tolist() == [0.5, 0.5]
    with pytest.raises(FFGBError):
        Baseline.from_json({"all": {**fine, **change}})
    with pytest.raises(FFGBError, match="no hazards of all rows"):
        Baseline.from_json({"east": fine})
