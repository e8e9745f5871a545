"""`ffgb.cox` is lifelines' stratified Cox model; bad data are refused in a sentence."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter, datasets

import ffgb
from ffgb.errors import FFGBError

SETS: dict[str, tuple[Callable[[], pd.DataFrame], str, str, list[str]]] = {
    "rossi": (datasets.load_rossi, "week", "arrest", ["fin", "age", "prio", "mar"]),
    "gbsg2": (datasets.load_gbsg2, "time", "cens", ["age", "tsize", "pnodes", "progrec"]),
    "lung": (lambda: datasets.load_lung().dropna(), "time", "status", ["age", "sex", "ph.karno", "wt.loss"]),
    "larynx": (datasets.load_larynx, "time", "death", ["age", "Stage_II", "Stage_III", "Stage_IV"]),
    "leukemia": (datasets.load_leukemia, "t", "status", ["sex", "logWBC"]),
    "dd": (lambda: datasets.load_dd().iloc[:600].assign(observed=lambda d: d.observed * 1), "duration", "observed",
           ["start_year", "un_continent_name_Asia"]),
    "kidney": (datasets.load_kidney_transplant, "time", "death", ["age", "black_male", "white_male"]),
    "stanford": (datasets.load_stanford_heart_transplants, "stop", "event", ["age", "year", "surgery"]),
}  # fmt: skip


@cache
def _frame(name: str) -> pd.DataFrame:
    make, time, event, columns = SETS[name]
    frame = make().reset_index(drop=True)
    if name == "dd":
        frame["un_continent_name_Asia"] = (frame.un_continent_name == "Asia") * 1
    found: pd.DataFrame = frame[[time, event, *columns]].astype(float)
    return found


def splits(n: int) -> list[Any]:
    """Sites of each row: at random, in blocks, and most of them at one."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 3, n), np.arange(n) * 4 // n, (np.arange(n) < 0.2 * n) * 1]


def lifelines(frame: pd.DataFrame, site: Any, time: str, event: str, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        penalizer = more.pop("penalizer", 0.0)
        given = {"strata": ["site"], "fit_options": {"precision": 1e-14, "r_precision": 1e-15}, **more}
        return CoxPHFitter(penalizer=penalizer).fit(frame.assign(site=site), time, event, **given)


@pytest.mark.parametrize("name", SETS)
def test_as_lifelines_stratified_by_site(name: str) -> None:
    frame, (_, time, event, columns) = _frame(name), SETS[name]
    for site, penalty in zip(splits(len(frame)), (0.0, 0.05, 0.0), strict=True):
        sites = [frame[site == k] for k in np.unique(site)]
        found = ffgb.cox(sites, columns=columns, time=time, event=event, penalty=penalty, least=1)
        expected = lifelines(frame, site, time, event, penalizer=penalty)
        size = expected.standard_errors_.to_numpy()
        np.testing.assert_allclose(found.coefficients, expected.params_, rtol=1e-6, atol=1e-6 * size.min())
        np.testing.assert_allclose(found.standard_errors, size, rtol=1e-6)
        np.testing.assert_allclose(found.p_values, expected.summary.p, rtol=1e-4, atol=1e-10)
        # equal risks are not always equal in floating point there
        assert found.c_index == pytest.approx(expected.concordance_index_, abs=5e-3)
        if penalty == 0:
            assert found.loglik == pytest.approx(expected.log_likelihood_, rel=1e-9)


@pytest.mark.parametrize("name", ["rossi", "gbsg2", "larynx"])
def test_breslow_as_statsmodels(name: str) -> None:
    frame, (_, time, event, columns) = _frame(name), SETS[name]
    site = splits(len(frame))[0]
    expected = sm.PHReg(frame[time], frame[columns], status=frame[event], strata=site, ties="breslow").fit()
    sites = [frame[site == k] for k in range(3)]
    found = ffgb.cox(sites, columns=columns, time=time, event=event, ties="breslow", least=1)
    np.testing.assert_allclose(found.coefficients, expected.params, rtol=1e-8)
    np.testing.assert_allclose(found.standard_errors, expected.bse, rtol=1e-8)


@pytest.mark.parametrize("name", ["rossi", "gbsg2", "kidney"])
def test_robust_and_clustered_errors_as_lifelines(name: str) -> None:
    """Without ties, where lifelines' robust errors are exact."""
    frame, (_, time, event, columns) = _frame(name), SETS[name]
    frame = frame.assign(**{time: frame[time] + np.random.default_rng(1).uniform(0, 0.5, len(frame))})
    site = splits(len(frame))[0]
    sites = [frame[site == k] for k in range(3)]
    for errors, more in (("robust", {"robust": True}), ("site", {"cluster_col": "cluster"})):
        given: Any = {"errors": errors, "time": time, "event": event}
        found = ffgb.cox(sites, columns=columns, least=1, **given)
        clustered = frame.assign(cluster=site) if errors == "site" else frame
        expected = lifelines(clustered, site, time, event, **more)
        np.testing.assert_allclose(found.standard_errors, expected.standard_errors_[columns], rtol=1e-6)


def test_masks_change_no_bit_and_further_strata() -> None:
    frame, (_, time, event, columns) = _frame("gbsg2"), SETS["gbsg2"]
    frame = frame.assign(grade=np.where(frame.age > 50, "old", "young"))
    site = splits(len(frame))[0]
    sites = [frame[site == k] for k in range(3)]
    given: Any = {"columns": columns, "time": time, "event": event, "strata": ["grade"], "errors": "site"}
    bare, masked = (ffgb.cox(sites, secure=secure, **given) for secure in (False, True))
    assert np.array_equal(bare.coefficients, masked.coefficients)
    assert np.array_equal(bare.covariance, masked.covariance)
    assert bare.c_index == masked.c_index
    assert len(bare.c_index_by_site) == 3
    assert not masked.c_index_by_site
    expected = lifelines(frame, site, time, event, strata=["site", "grade"])
    np.testing.assert_allclose(bare.coefficients, expected.params_[columns], rtol=1e-6)


def test_risk_of_new_rows_and_json() -> None:
    frame, (_, time, event, _) = _frame("rossi"), SETS["rossi"]
    frame = frame.assign(group=np.where(frame.fin > 0, "paid", "not"))
    sites = [frame.iloc[:200], frame.iloc[200:]]
    found = ffgb.cox(sites, "age * group", time=time, event=event, reference={"group": "paid"})
    new = frame.iloc[:5].drop(columns=[time, event]).reset_index(drop=True)
    new.loc[3, "age"] = np.nan
    b = dict(zip(found.names, found.coefficients, strict=True))
    other = (new.group == "not") * 1.0
    expected = b["age"] * new.age + b["group[T.not]"] * other + b["age:group[T.not]"] * new.age * other
    np.testing.assert_allclose(found.risk(new), expected, rtol=1e-12)
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["coefficients"][0]["hazard_ratio"] == pytest.approx(np.exp(b["age"]))


def small(n: int = 80, **more: Any) -> list[pd.DataFrame]:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=n), "g": ["a", "b"] * (n // 2), "t": rng.exponential(size=n)})
    frame = frame.assign(e=(rng.random(n) < 0.6) * 1).assign(**more)
    return [frame.iloc[: n // 4], frame.iloc[n // 4 :]]


def test_a_site_without_events_adds_nothing() -> None:
    sites = small()
    quiet = sites[1].assign(e=0)
    given: Any = {"columns": ["x"], "time": "t", "event": "e", "least": 1}
    alone, both = ffgb.cox([sites[0]], **given), ffgb.cox([sites[0], quiet], **given)
    np.testing.assert_allclose(both.coefficients, alone.coefficients, rtol=1e-9)
    assert both.c_index_by_site["site 2"] is None


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ({"e": 0}, {}, "no row of any site has an event"),
        ({"e": lambda d: (d.index < 4) * 1}, {}, "have 4 events"),
        ({"t": lambda d: d.t - 1}, {}, "site 1: the time 't' has values below 0"),
        ({"e": lambda d: d.e * 2}, {}, "values other than 0 and 1"),
        ({"e": lambda d: np.where(d.e == 1, "yes", "no")}, {}, "'e' is a column of text"),
        ({"z": lambda d: d.x + 1}, {"formula": "x + z"}, "'z' follows from 'x'"),
        ({"z": lambda d: d.e - d.x * 0}, {"formula": "x + z"}, "no finite estimate exists: .* 'z' is extreme"),
        ({}, {"formula": "x + t"}, "'t' cannot explain itself"),
        ({}, {"formula": "x + e"}, "'e' is the time or the event"),
        ({}, {"formula": "x - 1"}, "takes the place of an intercept"),
        ({}, {"formula": "1"}, "has no column"),
        ({}, {"formula": "x ~ g"}, "explains 'x'"),
        ({}, {"formula": "x + site"}, "stratified by site already"),
        ({}, {"strata": ["site"]}, "stratified by site already"),
        ({}, {"columns": ["x"]}, "give formula|give --formula"),
        ({}, {"ties": "exact"}, "efron or breslow"),
        ({}, {"errors": "hc1"}, "model, robust or site"),
        ({}, {"penalty": -1.0}, "from 0 on"),
        ({}, {"level": 0.0}, "between 0 and 1"),
    ],
)
def test_bad_input_is_said(columns: dict[str, Any], given: dict[str, Any], said: str) -> None:
    more: Any = {"formula": "x + g", "time": "t", "event": "e", **given}
    with pytest.raises(FFGBError, match=said):
        ffgb.cox(small(**columns), **more)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.integers(3, 200))
def test_random_tables(seed: int, ties: int) -> None:
    """As statsmodels' stratified model, with many ties and few."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(150, 3)) * [1.0, 5.0, 0.2] + [0.0, 40.0, 1.0], columns=["a", "b", "c"])
    days = rng.exponential(np.exp(-0.5 * frame.a - 0.05 * (frame.b - 40))) + 1e-3
    frame["days"], frame["died"] = np.ceil(days * ties) / ties, (rng.random(150) < 0.7) * 1.0
    site = rng.integers(0, 3, 150)
    sites = [frame[site == k] for k in range(3)]
    for way in ("breslow", "efron"):
        found = ffgb.cox(sites, "a + b + c", time="days", event="died", ties=way, secure=True)
        theirs = sm.PHReg(frame.days, frame[["a", "b", "c"]], frame.died, strata=site, ties=way)
        expected = theirs.fit(maxiter=100, disp=0)
        np.testing.assert_allclose(found.coefficients, expected.params, atol=1e-5)
        np.testing.assert_allclose(found.standard_errors, expected.bse, rtol=1e-4)
        assert found.loglik == pytest.approx(expected.llf, abs=1e-6)
