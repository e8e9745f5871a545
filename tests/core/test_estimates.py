"""Intervals: as closed forms elsewhere have them, and as a bootstrap of rows within sites."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit
from statsmodels.stats.proportion import proportion_confint

from ffgb.core import estimates
from ffgb.core.estimates import Estimate, Sampled
from ffgb.core.judgement import auc, average_precision
from ffgb.core.types import Array

N = 400


@pytest.fixture(scope="module")
def rows() -> tuple[Array, Array, Array]:
    """Probabilities, classes and sites."""
    rng = np.random.default_rng(0)
    site = rng.integers(0, 3, N)
    z = rng.normal(site - 1.0, 1.0)
    return expit(0.7 * z), (rng.random(N) < expit(z)).astype(np.int64), site


def test_a_share_has_wilsons_interval() -> None:
    found = estimates.share(np.arange(50) < 40, Sampled.of(50))
    assert (found.low, found.high) == pytest.approx(proportion_confint(40, 50, method="wilson"))
    everything = estimates.share(np.ones(50, bool), Sampled.of(50))
    assert everything.value == 1.0
    assert everything.high == 1.0
    assert 0.9 < (everything.low or 0.0) < 1.0


def test_the_area_has_delongs_variance(rows: tuple[Array, Array, Array]) -> None:
    p, y, _ = rows
    ones, zeros = p[y == 1], p[y == 0]
    pairs = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    variance = pairs.mean(axis=1).var(ddof=1) / len(ones) + pairs.mean(axis=0).var(ddof=1) / len(zeros)
    found = estimates.area(p, y, Sampled.of(N))
    half = 1.959964 * np.sqrt(variance) / (found.value * (1 - found.value))
    assert found.high == pytest.approx(expit(np.log(found.value / (1 - found.value)) + half), rel=1e-3)


def test_calibration_has_statsmodels_robust_errors(rows: tuple[Array, Array, Array]) -> None:
    p, y, _ = rows
    line = estimates.calibration_line(p, y, Sampled.of(N))
    assert line is not None
    design = sm.add_constant(np.log(p / (1 - p)))
    expected = sm.GLM(y, design, sm.families.Binomial()).fit(cov_type="HC0")
    for found, value, ends in zip(line, expected.params, expected.conf_int(), strict=True):
        assert found.value == pytest.approx(value, abs=1e-6)
        assert (found.low, found.high) == pytest.approx(tuple(ends), abs=2e-3)  # n / (n − 1) is ours


def _line(p: Array, y: Array, rows: Sampled) -> tuple[Estimate, Estimate]:
    line = estimates.calibration_line(p, y, rows)
    assert line is not None
    return line


def _slope(p: Array, y: Array, w: Array) -> float:
    return _line(p, y, Sampled(w, np.zeros(len(y), int)))[1].value


SCORES: dict[str, tuple[Callable[[Array, Array, Sampled], Estimate], Callable[[Array, Array, Array], float]]] = {
    "auc": (estimates.area, auc),
    "average precision": (estimates.precision_area, average_precision),
    "brier": (
        lambda p, y, rows: estimates.mean(np.square(p - y), rows),
        lambda p, y, w: float(np.average(np.square(p - y), weights=w)),
    ),
    "rmse": (
        lambda p, y, rows: estimates.root_mean(np.square(p - y), rows),
        lambda p, y, w: float(np.sqrt(np.average(np.square(p - y), weights=w))),
    ),
    "slope": (lambda p, y, rows: _line(p, y, rows)[1], _slope),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", list(SCORES))
def test_intervals_are_those_of_a_bootstrap_of_rows_within_sites(
    name: str, weighted: bool, rows: tuple[Array, Array, Array]
) -> None:
    (closed, score), (p, y, site) = SCORES[name], rows
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 2.0, N) if weighted else np.ones(N)
    places = [np.flatnonzero(site == i) for i in range(3)]
    drawn = []
    for _ in range(600):
        counts = np.zeros(N)
        for place in places:
            counts[place] = np.bincount(rng.integers(0, len(place), len(place)), minlength=len(place))
        drawn.append(score(p, y, counts * weights))
    found = closed(p, y, Sampled(weights, site))
    assert found.value == pytest.approx(score(p, y, weights))
    assert found.low is not None
    assert found.high is not None
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.12)
    assert (found.low + found.high) / 2 == pytest.approx((low + high) / 2, abs=0.12 * (high - low))


def test_derivatives_are_those_of_the_scores(rows: tuple[Array, Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerically, one row's weight at a time: the errors are built from them."""
    p, y, _ = rows
    p, y = np.round(p[:60], 1), y[:60]  # with ties
    found: list[Array] = []

    def error(rows: Sampled, derivative: Array) -> float:
        found.append(derivative)
        return 0.1

    monkeypatch.setattr(Sampled, "error", error)
    for name, (closed, score) in SCORES.items():
        closed(p, y, Sampled.of(60))
        derivative = found[-1] / (2 * score(p, y, np.ones(60)) if name == "rmse" else 1.0)
        for k in (0, 7, 31):
            nudge = np.where(np.arange(60) == k, 1e-4, 0.0)
            numeric = (score(p, y, 1 + nudge) - score(p, y, 1 - nudge)) / 2e-4
            assert derivative[k] == pytest.approx(numeric, abs=2e-5)


def test_what_rows_do_not_tell_has_no_interval() -> None:
    apart = estimates.area(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]), Sampled.of(4))
    assert apart == Estimate(1.0)
    assert estimates.area(np.array([0.1, 0.2]), np.array([1, 1]), Sampled.of(2)) == Estimate(0.5)
    assert estimates.straight_line(np.ones(5), np.arange(5.0), Sampled.of(5)) is None


def test_precision_without_one_of_the_classes() -> None:
    score = np.array([0.1, 0.2])
    assert estimates.precision_area(score, np.array([0, 0]), Sampled.of(2)) == Estimate(0.0)
    assert estimates.precision_area(score, np.array([1, 1]), Sampled.of(2)) == Estimate(1.0)


def test_a_straight_line_is_weighted_least_squares_with_robust_errors() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=200), rng.uniform(0.5, 2.0, 200)
    y = 1.0 + 0.5 * x + rng.normal(size=200) * (1.0 + np.abs(x))
    line = estimates.straight_line(x, y, Sampled.of(200, w))
    assert line is not None
    fitted = sm.WLS(y, sm.add_constant(x), weights=w).fit(cov_type="HC0")
    for found, value, error in zip(line, fitted.params, fitted.bse, strict=True):
        assert found.value == pytest.approx(value)
        assert found.high is not None
        assert found.high - found.value == pytest.approx(1.959964 * error, rel=5e-3)  # n / (n − 1) is ours
        assert found.low == pytest.approx(2.0 * found.value - found.high)


def test_the_error_of_sites_of_one_row_is_none() -> None:
    rows = Sampled(np.array([1.0, 2.0, 1.0]), np.array([0, 1, 1]))
    influence = np.array([5.0, 2.0, 4.0]) * rows.mass
    apart = influence[1:] - influence[1:].mean()
    assert rows.error(np.array([5.0, 2.0, 4.0])) == pytest.approx(np.sqrt(2.0 * np.square(apart).sum()))
    assert Sampled.of(3, level=0.9).z == pytest.approx(1.6448536)
    assert rows.around(1.0, 1.0, least=0.5).low == 0.5
    assert rows.within(0.5, 0.0) == Estimate(0.5)
    assert rows.within(1.0, 0.1) == Estimate(1.0)


def test_weights_keep_all_their_digits() -> None:
    weights = np.array([1.0, 1.0 + 1e-12])
    assert Sampled.of(2, weights).mass[1] > 1.0
    assert estimates.share(np.array([False, True]), Sampled.of(2, weights)).value > 0.5
