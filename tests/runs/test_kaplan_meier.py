"""`ffgb.survival_curves` is lifelines on times that are rounded up; no count tells of few rows."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter, datasets
from lifelines.statistics import multivariate_logrank_test

import ffgb
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.regression.design import Records
from ffgb.core.regression.kaplan_meier import TimeCounts, joined
from ffgb.errors import FFGBError
from tests.runs.test_cox import SETS as COX
from tests.runs.test_cox import _frame, splits


def rounded(frame: pd.DataFrame, time: str, event: str, ends: Any, last: float) -> pd.DataFrame:
    """Times at the ends of intervals; who is observed beyond the last is censored there."""
    place = np.minimum(np.searchsorted(ends, frame[time]), len(ends) - 1)
    return frame.assign(time=ends[place], event=np.where(frame[time] > last, 0, frame[event]))


SETS: dict[str, tuple[Any, str, str, str]] = {
    "gbsg2": (datasets.load_gbsg2, "time", "cens", "menostat"),
    "rossi": (datasets.load_rossi, "week", "arrest", "fin"),
    "waltons": (datasets.load_waltons, "T", "E", "group"),
    "kidney": (datasets.load_kidney_transplant, "time", "death", "white_male"),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("how", ["every time", "some times", "by the number of events"])
def test_as_lifelines_on_rounded_times(name: str, how: str) -> None:
    make, time, event, by = SETS[name]
    frame = make()[[time, event, by]].reset_index(drop=True)
    every = np.unique(frame[time]).astype(float)
    times, least = {"every time": (every, 1), "some times": (every[4::9], 2)}.get(how, (None, 5))
    site = np.random.default_rng(0).integers(0, 3, len(frame))
    sites = [frame[site == k] for k in range(3)]
    given: Any = {"time": time, "event": event, "by": by, "times": times, "least": least}
    found = ffgb.survival_curves(sites, secure=True, **given)
    one = next(iter(found.curves.values()))
    ends = one.times
    rows = rounded(frame, time, event, one.ends, np.inf if times is None else times[-1])
    for group, curve in found.curves.items():
        some = rows[rows[by].astype(str) == group]
        expected = KaplanMeierFitter().fit(some.time, some.event)
        np.testing.assert_allclose(curve.survival, expected.survival_function_at_times(ends), atol=1e-12)
        low, high = expected.confidence_interval_.reindex(ends, method="ffill").to_numpy().T
        np.testing.assert_allclose(curve.interval(0.95)[0], low, atol=1e-9)
        np.testing.assert_allclose(curve.interval(0.95)[1], high, atol=1e-9)
        median = expected.median_survival_time_
        assert curve.median == (median if np.isfinite(median) else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = multivariate_logrank_test(rows.time, rows[by], rows.event)
    assert found.test is not None
    np.testing.assert_allclose(found.test.chi2, test.test_statistic, rtol=1e-8)
    np.testing.assert_allclose(found.test.p_value, test.p_value, rtol=1e-6, atol=1e-15)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", COX)
def test_as_lifelines_on_the_times_themselves(name: str) -> None:
    """With every time as an end nothing is rounded: eight data sets, three splits each; curves, log-rank test."""
    _, time, event, columns = COX[name]
    frame = _frame(name)
    frame = frame.assign(group=np.where(frame[columns[0]] > frame[columns[0]].median(), "high", "low"))
    frame = frame[frame[time] > 0].reset_index(drop=True)
    every = np.unique(frame[time])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = multivariate_logrank_test(frame[time], frame.group, frame[event])
        by_group = {g: KaplanMeierFitter().fit(some[time], some[event]) for g, some in frame.groupby("group")}
    for site in splits(len(frame)):
        sites = [frame[site == k] for k in np.unique(site)]
        found = ffgb.survival_curves(sites, time=time, event=event, by="group", times=every.tolist(), least=1)
        assert found.test is not None
        np.testing.assert_allclose(found.test.chi2, test.test_statistic, rtol=1e-8)
        for group, curve in found.curves.items():
            expected = by_group[group].survival_function_at_times(curve.times)
            np.testing.assert_allclose(curve.survival, expected, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 40), st.integers(1, 12))
def test_no_difference_of_counts_tells_of_few_rows(seed: int, groups: int, cells: int, least: int) -> None:
    """Counts of an interval, of a group, with and without an event, are 0 or enough; so are sums over intervals."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, (groups, cells, 2)) * (rng.random((groups, cells, 2)) < 0.7)
    ends = joined(counts.astype(float), least)
    if not ends:
        return
    assert ends == sorted(set(ends))
    assert ends[-1] == cells - 1 or counts[:, ends[-1] + 1 :].sum() == 0
    told = np.add.reduceat(counts, [0, *(end + 1 for end in ends[:-1])], axis=1)
    assert ((told == 0) | (told >= least)).all()


def small(**more: Any) -> list[pd.DataFrame]:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"t": rng.exponential(size=90), "e": (rng.random(90) < 0.6) * 1, "g": ["a", "b", "b"] * 30})
    frame = frame.assign(**more)
    return [frame.iloc[:20], frame.iloc[20:50], frame.iloc[50:]]


def test_sites_can_be_groups_and_missing_values_are_counted() -> None:
    sites = small(g=lambda d: d.g.where(d.index % 9 > 0))
    found = ffgb.survival_curves(sites, time="t", event="e", by="site", least=2)
    assert list(found.curves) == ["site 1", "site 2", "site 3"]
    assert ffgb.survival_curves(sites, time="t", event="e", by="g").left_out == 10


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ({"e": 0}, {}, "no row of any site has an event"),
        ({"e": lambda d: (d.index < 5) * 1}, {}, "fewer than 10"),
        ({"t": lambda d: -d.t}, {}, "values below 0"),
        ({"e": "yes"}, {}, "'e' is a column of text"),
        ({"g": lambda d: np.where(d.index < 3, "rare", "b")}, {"by": "g"}, "a category with 3 rows"),
        ({}, {"by": "t"}, "columns of their own"),
        ({}, {"by": "site", "secure": True}, "masks are to hide"),
        ({}, {"times": [-1.0, 2.0]}, "numbers from 0 on"),
        ({}, {"times": [np.nan]}, "numbers from 0 on"),
        ({}, {"level": 1.0}, "between 0 and 1"),
    ],
)
def test_bad_input_is_said(columns: dict[str, Any], given: dict[str, Any], said: str) -> None:
    more: Any = {"time": "t", "event": "e", **given}
    with pytest.raises(FFGBError, match=said):
        ffgb.survival_curves(small(**columns), **more)


@pytest.mark.parametrize(
    ("counts", "least", "events", "ends"),
    [
        ([[3, 0], [0, 3], [3, 0]], 3, 0.0, [0, 1, 2]),
        ([[3, 0], [0, 3], [2, 0]], 3, 0.0, [2]),  # what is left is joined to the last, as often as it takes
        ([[3, 0], [0, 3], [5, 0], [0, 2]], 3, 0.0, [0, 3]),
        ([[3, 0], [0, 0], [3, 0]], 3, 0.0, [0, 2]),  # an empty interval is none of its own
        ([[2, 0], [1, 0], [3, 0]], 3, 0.0, [1, 2]),
        ([[1, 0], [1, 0]], 3, 0.0, []),
        ([[4, 0], [1, 1], [0, 1]], 3, 0.0, []),  # joined to the first there are still two without an event
        ([[4, 0], [4, 3], [0, 1]], 3, 0.0, [0, 2]),
        ([[4, 0], [0, 4], [4, 0], [4, 0]], 3, 5.0, [2, 3]),  # five events at least, or none
        ([[0, 4], [4, 0], [4, 0], [3, 0]], 3, 8.0, [0, 2, 3]),
    ],
)
def test_intervals_of_one_group_are_joined(counts: list[list[int]], least: int, events: float, ends: list[int]) -> None:
    assert joined(np.array([counts], float), least, events) == ends


def test_ends_of_intervals_are_in_order() -> None:
    columns: Any = (SimpleNamespace(of=lambda records, rows: np.ones(3)),)
    survival: Any = SimpleNamespace(of=lambda records: (np.array([1.0, 2.0, 9.0]), np.array([True, False, True])))
    here = Here(Points(0, np.zeros((1, 1)), np.zeros(1)), 1.0, said=Records({}, {}, 3))
    found = TimeCounts(survival, columns, np.array([1.0, 2.0])).part(here)["counts"]
    assert found.tolist() == [[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]
    for edges in (np.array([2.0, 1.0, 3.0]), np.array([1.0, 1.0]), np.array([[1.0]])):
        with pytest.raises(FFGBError, match="not in order"):
            TimeCounts(survival, columns, edges).part(here)
    question = TimeCounts(survival, columns, np.array([1.0]))
    question.check({"counts": np.zeros((1, 2, 2))}, 3)
    with pytest.raises(FFGBError, match="counts of events are negative"):
        question.check({"counts": np.array([[[0.0, 0.0], [0.0, -1.0]]])}, 3)
