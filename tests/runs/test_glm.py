"""`ffgb.glm` is statsmodels' pooled GLM, whatever the split; bad data are refused in a sentence."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes

import ffgb
from ffgb.errors import FFGBError
from ffgb.runs.glm import GLMResult

STATSMODELS: dict[str, Any] = {
    "gaussian": sm.families.Gaussian,
    "binomial": sm.families.Binomial,
    "poisson": sm.families.Poisson,
    "gamma": lambda: sm.families.Gamma(sm.families.links.Log()),
}
KINDS = {"model": "nonrobust", "hc0": "HC0", "hc1": "HC1", "site": "cluster"}


@dataclass(frozen=True)
class Set:
    frame: Callable[[], pd.DataFrame]
    formula: str
    family: str
    weights: str | None = None
    exposure: str | None = None
    least: int = 10
    pooled: str = ""
    """The formula as statsmodels has it, where trials are counted."""


def _breast_cancer() -> pd.DataFrame:
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame.rename(columns=lambda name: name.replace(" ", "_"))


def _star98() -> pd.DataFrame:
    frame: pd.DataFrame = sm.datasets.star98.load_pandas().data
    frame["tests"] = frame.NABOVE + frame.NBELOW
    return frame.assign(above=frame.NABOVE / frame.tests)


SETS = {
    "diabetes": Set(lambda: load_diabetes(as_frame=True).frame, "target ~ age + sex + bmi * bp + s5", "gaussian"),
    "anes96": Set(lambda: sm.datasets.anes96.load_pandas().data, "TVnews ~ age + C(PID) + income", "gaussian"),
    "breast cancer": Set(_breast_cancer, "target ~ mean_radius + mean_texture * mean_smoothness", "binomial"),
    "spector": Set(lambda: sm.datasets.spector.load_pandas().data, "GRADE ~ GPA + TUCE + PSI", "binomial", least=1),
    "star98": Set(
        _star98,
        "above ~ LOWINC + PERASIAN + PERBLACK",
        "binomial",
        "tests",
        pooled="NABOVE + NBELOW ~ LOWINC + PERASIAN + PERBLACK",
    ),
    "fair": Set(
        lambda: sm.datasets.fair.load_pandas().data.iloc[:2000].round({"affairs": 0}),
        "affairs ~ age + C(rate_marriage) + religious:educ",
        "poisson",
    ),
    "randhie": Set(
        lambda: sm.datasets.randhie.load_pandas().data.iloc[:3000].assign(years=lambda d: 0.5 + d.disea % 3),
        "mdvis ~ lncoins + C(idp) * hlthg + disea",
        "poisson",
        exposure="years",
    ),
    "scotland": Set(lambda: sm.datasets.scotland.load_pandas().data, "YES ~ COUTAX + ACT + AGE", "gamma", least=1),
    "engel": Set(lambda: sm.datasets.engel.load_pandas().data, "foodexp ~ income", "gamma", weights="income"),
}


@cache
def _frame(name: str) -> pd.DataFrame:
    return SETS[name].frame().reset_index(drop=True)


def splits(frame: pd.DataFrame, outcome: str) -> list[list[pd.DataFrame]]:
    """At random, by the outcome, and few rows here with all others there."""
    n, rng = len(frame), np.random.default_rng(0)
    by_outcome = frame.sort_values(outcome, kind="stable")
    return [
        [frame.iloc[rows] for rows in np.array_split(rng.permutation(n), 3)],
        [by_outcome.iloc[rows] for rows in np.array_split(np.arange(n), 5)],
        [frame.iloc[:4], frame.iloc[4:10], frame.iloc[10:]],
    ]


def pooled(case: Set, sites: list[pd.DataFrame], errors: str) -> Any:
    """What statsmodels makes of all rows together."""
    frame = pd.concat(sites)
    groups = np.repeat(np.arange(len(sites)), [len(site) for site in sites])
    more: dict[str, Any] = {} if errors != "site" else {"cov_kwds": {"groups": groups}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.glm(
            case.pooled or case.formula,
            frame,
            family=STATSMODELS[case.family](),
            var_weights=None if case.weights is None or case.pooled else frame[case.weights],
            exposure=None if case.exposure is None else frame[case.exposure],
        )
        return model.fit(tol=1e-13, maxiter=300, tol_criterion="params", cov_type=KINDS[errors], **more)


def fitted(case: Set, sites: list[pd.DataFrame], **more: Any) -> GLMResult:
    given: dict[str, Any] = {"family": case.family, "weights": case.weights, "exposure": case.exposure}
    return ffgb.glm(sites, case.formula, least=case.least, **given, **more)


class Renamed:
    """Results of statsmodels, with categories of numbers named as whole numbers."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._results, name)
        return value.rename(lambda each: each.replace(".0]", "]")) if isinstance(value, pd.Series) else value

    def conf_int(self) -> pd.DataFrame:
        found: pd.DataFrame = self._results.conf_int().rename(lambda each: each.replace(".0]", "]"))
        return found


def compare(found: GLMResult, expected: Any, errors: str) -> None:
    names = list(found.names)
    n, p = found.rows, len(names)
    expected = Renamed(expected)
    # of HC1 statsmodels' GLM leaves the factor out that its OLS has
    factor = np.sqrt(n / (n - p)) if errors == "hc1" else 1.0
    np.testing.assert_allclose(found.coefficients, expected.params[names], rtol=1e-6)
    np.testing.assert_allclose(found.standard_errors, expected.bse[names] * factor, rtol=1e-6)
    if errors != "hc1":
        np.testing.assert_allclose(found.p_values, expected.pvalues[names], rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(found.intervals, expected.conf_int().loc[names], rtol=1e-6, atol=1e-9)
    for ours, theirs in [
        (found.deviance, expected.deviance),
        (found.pearson, expected.pearson_chi2),
        (found.dispersion, expected.scale),
        (found.loglik, expected.llf),
        (found.aic, expected.aic),
        (found.bic, expected.bic_llf),
        (found.df_residual, expected.df_resid),
    ]:
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_as_statsmodels_on_the_pooled_table_whatever_the_split(name: str) -> None:
    case, results = SETS[name], []
    for sites, errors in zip(splits(_frame(name), case.formula.split()[0]), ("model", "hc0", "hc1"), strict=True):
        found = fitted(case, sites, errors=errors)
        compare(found, pooled(case, sites, errors), errors)
        results.append(found)
    for other in results[1:]:
        assert np.array_equal(results[0].coefficients, other.coefficients)
        assert (results[0].loglik, results[0].deviance) == (other.loglik, other.deviance)


@pytest.mark.parametrize("name", ["anes96", "star98", "randhie", "engel"])
def test_errors_clustered_by_site_as_statsmodels(name: str) -> None:
    case = SETS[name]
    sites = [_frame(name).iloc[k::7] for k in range(7)]
    compare(fitted(case, sites, errors="site"), pooled(case, sites, "site"), "site")


def test_robust_errors_of_least_squares_have_their_factor() -> None:
    frame = _frame("diabetes")
    expected = smf.ols(SETS["diabetes"].formula, frame).fit(cov_type="HC1")
    found = fitted(SETS["diabetes"], [frame.iloc[:100], frame.iloc[100:]], errors="hc1")
    np.testing.assert_allclose(found.standard_errors, expected.bse[list(found.names)], rtol=1e-8)


def test_the_site_is_a_term() -> None:
    frame = _frame("diabetes").assign(site=lambda d: np.where(d.age > 0, "old", np.where(d.sex > 0, "b", "a")))
    sites = {str(site): rows.drop(columns="site") for site, rows in frame.groupby("site")}
    found = ffgb.glm(sites, "target ~ bmi + site")
    expected = smf.glm("target ~ bmi + site", frame).fit()
    np.testing.assert_allclose(found.coefficients, expected.params[list(found.names)], rtol=1e-9)
    assert found.reference == {"site": "a"}


def test_masks_change_no_bit() -> None:
    case = SETS["fair"]
    sites = splits(_frame("fair"), "affairs")[0]
    bare, masked = (fitted(case, sites, errors="site", secure=secure) for secure in (False, True))
    assert np.array_equal(bare.coefficients, masked.coefficients)
    assert np.array_equal(bare.covariance, masked.covariance)
    assert masked.to_json()["secure"]


tables = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(sorted(STATSMODELS)), st.integers(1, 4))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables)
def test_random_tables(chosen: tuple[int, str, int]) -> None:
    seed, family, numbers = chosen
    rng = np.random.default_rng(seed)
    n = int(rng.integers(150, 400))
    frame = pd.DataFrame({f"x{k}": rng.normal(rng.normal() * 100, rng.lognormal(0, 3), n) for k in range(numbers)})
    frame["c"] = rng.choice(["red", "green", "blue"], n)
    frame["w"] = rng.uniform(0.2, 3.0, n)
    x = frame.iloc[:, :numbers]
    eta = 0.3 * (x - x.mean()).div(x.std()).sum(axis=1) + (frame.c == "red") * 0.5
    match family:
        case "gaussian":
            frame["y"] = eta + rng.normal(size=n)
        case "binomial":
            frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        case "poisson":
            frame["y"] = rng.poisson(np.exp(eta) + 1)
        case _:
            frame["y"] = rng.gamma(2.0, np.exp(eta))
    formula = " + ".join([*(f"x{k}" for k in range(numbers)), "c"])
    case = Set(lambda: frame, f"y ~ {formula}", family, weights="w", least=1)
    sites = [frame.iloc[rows] for rows in np.split(rng.permutation(n), np.sort(rng.integers(1, n, 2))) if len(rows)]
    expected = pooled(case, sites, "hc0")
    found = fitted(case, sites, errors="hc0")
    names = list(found.names)
    size = np.abs(expected.bse[names].to_numpy())
    np.testing.assert_allclose(found.coefficients, expected.params[names], rtol=1e-6, atol=1e-6 * size.min())
    np.testing.assert_allclose(found.standard_errors, expected.bse[names], rtol=1e-5)


# What the user is told


def small(n: int = 60, **more: Any) -> list[pd.DataFrame]:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=n), "g": ["a", "b"] * (n // 2), "y": rng.normal(size=n)})
    frame = frame.assign(e=(frame.y > 0) * 1, **more)
    return [frame.iloc[: n // 3], frame.iloc[n // 3 :]]


def test_rows_with_missing_values_are_left_out_and_counted() -> None:
    sites = small(z=lambda d: d.x.where(d.index % 7 > 0), g=lambda d: d.g.where(d.index % 11 > 0))
    found = ffgb.glm(sites, "y ~ z + g")
    expected = smf.glm("y ~ z + g", pd.concat(sites)).fit()
    assert (found.rows, found.left_out) == (expected.nobs, 60 - expected.nobs)
    np.testing.assert_allclose(found.coefficients, expected.params[list(found.names)], rtol=1e-9)


def test_the_reference_can_be_chosen_and_text_outcomes_are_events() -> None:
    sites = small(out=lambda d: np.where(d.e == 1, "yes", "no"))
    found = ffgb.glm(sites, "out ~ x + g", reference={"g": "b", "out": "yes"})
    assert found.names == ("Intercept", "x", "g[T.a]")
    assert (found.family, found.event, found.reference) == ("binomial", "no", {"g": "b"})
    other = ffgb.glm(sites, target="e", columns=["x", "g"], family="binomial")
    np.testing.assert_allclose(found.coefficients[1], -other.coefficients[1], rtol=1e-9)
    np.testing.assert_allclose(found.coefficients[2], other.coefficients[2], rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_exposures_and_offsets_may_be_of_any_size(scale: float) -> None:
    sites = small(u=lambda d: 1.0 + d.index % 3, k=lambda d: d.index % 4)
    sites = [site.assign(u=site.u * scale, v=np.log(site.u * scale)) for site in sites]
    expected = ffgb.glm(sites, "k ~ x", family="poisson", exposure="u")
    found = ffgb.glm(sites, "k ~ x", family="poisson", offset="v")
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-9)
    assert found.steps <= 8


def test_json_has_no_numbers_that_json_has_not() -> None:
    found = ffgb.glm(small(), "y ~ x * g").to_json()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert [row["name"] for row in again["coefficients"]] == ["Intercept", "x", "g[T.b]", "x:g[T.b]"]


@pytest.mark.parametrize(
    ("columns", "formula", "options", "said"),
    [
        ({"s": lambda d: (d.e == 1) * 2.0 - d.x * 0}, "e ~ s", {"family": "binomial"}, "'s' separates the outcome"),
        (
            {"s": lambda d: np.where(d.y > 0, "u", "v"), "k": lambda d: np.where(d.y > 0, 0, 3)},
            "k ~ s + x",
            {"family": "poisson"},
            "'s\\[T.v\\]' separates the outcome",
        ),
        ({"z": lambda d: 2 * d.x + (d.g == "b")}, "y ~ x + g + z", {}, "'z' follows from 'x' and 'g\\[T.b\\]'"),
        ({"z": 3.7}, "y ~ x + z", {}, "'z' is the same in every row"),
        ({"z": 0.0}, "y ~ x + z", {}, "'z' is 0 in every row"),
        ({"z": lambda d: (d.index < 3) * 1.0}, "y ~ x + z", {}, "'z' tells 3 rows"),
        ({"z": lambda d: (d.index >= 3) * 1.0}, "y ~ x + z", {}, "'z' tells 3 rows"),
        ({"h": lambda d: np.where(d.index < 4, "m", "n")}, "y ~ h", {}, "'h' has a category with 4 rows"),
        (
            {"h": lambda d: np.where((d.index < 33) & (d.g == "a") | (d.index > 40), "m", "n")},
            "y ~ g * h",
            {},
            "only . rows of all sites have g = ",
        ),
        ({"z": lambda d: (d.index < 4) * 1}, "z ~ x", {"family": "binomial"}, "only 4 rows .* one of the two outcomes"),
        ({"z": 0}, "z ~ x", {"family": "poisson"}, "outcome is 0 in every row"),
        ({}, "e ~ x", {"family": "gamma"}, "not above 0"),
        ({}, "y ~ x", {"family": "cauchy"}, "choose gaussian"),
        ({}, "g ~ x", {"family": "poisson"}, "the outcome is text"),
        ({"z": lambda d: d.index % 3}, "z ~ x", {"categories": ["z"]}, "has 3 categories"),
        ({}, "y ~ x", {"weights": "x"}, "above 0 in every row"),
        ({}, "y ~ x", {"exposure": "e"}, "is for a log link"),
        ({}, "y ~ x", {"errors": "bootstrap"}, "model, hc0, hc1 or site"),
        ({}, "y ~ x", {"level": 95}, "between 0 and 1"),
        ({}, "y ~ g", {"reference": {"g": "c"}}, "no category of 'g'; it has a, b"),
        ({}, "y ~ x", {"reference": {"x": "1"}}, "no categorical column"),
        ({}, "y ~ x + site", {"secure": True}, "those of one site each"),
        ({}, "y ~ x + w", {}, "no column 'w'"),
        ({"z": lambda d: d.y * 2}, "y ~ z", {}, "explain the outcome exactly"),
        ({f"x{k}": lambda d, k=k: np.sin(d.x * (k + 2)) for k in range(20)},
         "y ~ " + " + ".join(f"x{k}" for k in range(20)), {}, "21 coefficients for 60 rows"),
    ],
)  # fmt: skip
def test_bad_input_is_said(columns: dict[str, Any], formula: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(FFGBError, match=said):
        ffgb.glm(small(**columns), formula, **options)


def test_kinds_of_columns_must_agree() -> None:
    first, second = small()
    with pytest.raises(FFGBError, match="text at site 1 and numbers at site 2"):
        ffgb.glm([first.assign(z="a"), second.assign(z=1)], "y ~ z")
    with pytest.raises(FFGBError, match="needs at least two sites"):
        ffgb.glm([first], "y ~ x", errors="site")
    with pytest.raises(FFGBError, match="no row with a value in every column"):
        ffgb.glm([first.assign(x=np.nan), second], "y ~ x")
    with pytest.raises(FFGBError, match="one file or table a site"):
        ffgb.glm([], "y ~ x")
