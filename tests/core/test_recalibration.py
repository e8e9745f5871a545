"""Corrected probabilities: the maps are those that statistics names, and they rise."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from ffgb.core.judgement import calibration
from ffgb.core.recalibration import WAYS, Recalibration, recalibration
from ffgb.core.types import Array
from ffgb.errors import FFGBError


def wrong(n: int = 2000, seed: int = 0) -> tuple[Array, Array]:
    """Log odds that are twice too large, and one too high."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.5, n)
    one = expit(2 * z + 1)
    return np.stack([1 - one, one], axis=1), (rng.random(n) < expit(z)).astype(np.int64)


def test_platt_is_logistic_regression_on_log_odds() -> None:
    p, y = wrong()
    weights = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    found = recalibration(p, y, weights, "platt")
    fitted = sm.GLM(y, sm.add_constant(logit(p[:, 1])), sm.families.Binomial(), freq_weights=weights).fit()
    assert (found.values[0], found.low) == pytest.approx(tuple(fitted.params), abs=1e-6)
    np.testing.assert_allclose(found(p)[:, 1], fitted.predict(), atol=1e-6)


def test_intercept_makes_the_mean_right_and_isotonic_the_groups() -> None:
    p, y = wrong()
    assert recalibration(p, y, None, "intercept")(p)[:, 1].mean() == pytest.approx(y.mean())
    new, of_new = wrong(20_000, 5)
    after = recalibration(p, y, None, "isotonic")(new)[:, 1]
    line = calibration(after, of_new, np.ones(len(of_new)))
    assert line is not None
    assert line[1] == pytest.approx(1.0, abs=0.1)
    for low, high in ((0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95)):
        inside = (after > low) & (after < high)
        assert of_new[inside].mean() == pytest.approx(after[inside].mean(), abs=0.05)


def test_several_classes_are_raised_to_a_power() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(0, 1.5, (4000, 3))
    right, sharp = (np.exp(a * f) / np.exp(a * f).sum(axis=1, keepdims=True) for a in (1.0, 2.5))
    y = (rng.random((4000, 1)) > np.cumsum(right, axis=1)).sum(axis=1)
    found = recalibration(sharp, y, None, "platt")
    assert found.low == pytest.approx(0.4, abs=0.03)
    np.testing.assert_allclose(found(sharp).sum(axis=1), 1.0)
    with pytest.raises(FFGBError, match="isotonic recalibrates two classes"):
        recalibration(sharp, y, None, "isotonic")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(40, 400), way=st.sampled_from(WAYS))
def test_every_map_rises_and_is_read_as_it_was_written(seed: int, rows: int, way: str) -> None:
    p, y = wrong(rows, seed)
    found = recalibration(p, y, None, way)
    one = expit(np.linspace(-12, 12, 200))
    grid = np.stack([1 - one, one], axis=1)
    after = found(grid)
    assert (np.diff(after[:, 1]) >= -1e-12).all()
    np.testing.assert_allclose(after.sum(axis=1), 1.0)
    again = Recalibration.from_json(json.loads(json.dumps(found.to_json())))
    np.testing.assert_array_equal(again(grid), after)


def test_what_is_no_map_is_refused() -> None:
    for content in (
        {"knots": [0.0, 0.0], "values": [0.0, 1.0], "low": 1.0, "high": 1.0},
        {"knots": [0.0, 1.0], "values": [1.0, 0.0], "low": 1.0, "high": 1.0},
        {"knots": [0.0], "values": [0.0], "low": -1.0, "high": 1.0},
        {"knots": [], "values": [], "low": 1.0, "high": 1.0},
    ):
        with pytest.raises(FFGBError, match="no rising map"):
            Recalibration.from_json(content)
    with pytest.raises(FFGBError, match="all rows to recalibrate by are of one class"):
        recalibration(np.full((5, 2), 0.5), np.zeros(5, int), None, "platt")


def test_isotonic_groups_have_ten_rows_of_each_class() -> None:
    """Two groups with knots at their mean probabilities, and half a row of each class more in their shares."""
    one = np.repeat([0.2, 0.4, 0.7, 0.9], 10)
    y = np.tile([0, 0, 0, 0, 0, 0, 0, 1, 1, 1], 4)
    y[20:] = np.tile([1, 1, 1, 1, 1, 1, 1, 0, 0, 0], 2)
    two = np.repeat(one, 2), np.repeat(y, 2)
    found = recalibration(np.stack([1 - two[0], two[0]], axis=1), two[1], None, "isotonic")
    np.testing.assert_allclose(found.knots, logit([0.3, 0.8]))
    np.testing.assert_allclose(found.values, logit([12.5 / 41.0, 28.5 / 41.0]))
    line = calibration(two[0], two[1], np.ones(80))
    assert line is not None
    assert found.low == found.high == line[1]


def test_isotonic_beyond_its_groups_has_the_slope_of_platt_or_one() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0.0, 2.0, 4000)
    y = (rng.random(4000) < expit(0.4 * z)).astype(np.int64)
    p = np.stack([expit(-z), expit(z)], axis=1)
    assert 0.3 < recalibration(p, y, None, "isotonic").high < 0.5  # as steep as the line, which is not as steep as 1
    falling = recalibration(p[:, ::-1], y, None, "isotonic")
    assert (falling.low, falling.high) == (1.0, 1.0)
    with pytest.raises(FFGBError, match="no rising line"):
        recalibration(p[:, ::-1], y, None, "platt")


def test_a_map_is_a_line_beyond_its_knots_and_between_them() -> None:
    own = Recalibration(np.array([-1.0, 1.0]), np.array([-0.5, 2.5]), 0.25, 3.0)
    z = np.array([-5.0, -1.0, 0.0, 1.0, 3.0])
    one = own(np.stack([expit(-z), expit(z)], axis=1))[:, 1]
    np.testing.assert_allclose(logit(one), [-0.5 - 4 * 0.25, -0.5, 1.0, 2.5, 2.5 + 2 * 3.0])
    sure = own(np.array([[1.0, 0.0], [0.0, 1.0]]))[:, 1]
    end = -logit(1e-12)  # probabilities are taken to be so far from 0 and 1 at least
    np.testing.assert_allclose(sure, expit([-0.5 - 0.25 * (end - 1.0), 2.5 + 3.0 * (end - 1.0)]), rtol=1e-4)
    power = Recalibration(np.zeros(1), np.zeros(1), 2.0, 2.0)
    three = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        power(three), np.array([[4.0 / 38.0, 9.0 / 38.0, 25.0 / 38.0], [1.0, 0.0, 0.0]]), atol=1e-15
    )


def test_a_power_is_twenty_at_most() -> None:
    p = np.tile([[0.4, 0.3, 0.3]], (30, 1))
    assert recalibration(p, np.zeros(30, int), None, "platt").low == pytest.approx(20.0, abs=1e-4)
    assert recalibration(p, np.ones(30, int), None, "platt").low == pytest.approx(0.0, abs=1e-4)


def test_of_one_class_nothing_is_fitted_and_other_ways_are_refused() -> None:
    p = np.full((5, 2), 0.5)
    for y in (np.zeros(5, int), np.ones(5, int)):
        with pytest.raises(FFGBError, match="all rows to recalibrate by are of one class"):
            recalibration(p, y, None, "intercept")
    with pytest.raises(FFGBError, match="all rows to recalibrate by are of one class"):
        recalibration(p, np.array([0, 1, 0, 0, 0]), np.array([1.0, 0.0, 1.0, 1.0, 1.0]), "intercept")
    with pytest.raises(FFGBError, match="no way 'beta'"):
        recalibration(p, np.array([0, 1, 0, 0, 0]), None, "beta")


@pytest.mark.parametrize(
    "content",
    [
        {"knots": [0.0, 1.0], "values": [0.0, 0.0], "low": 0.0, "high": 0.0},
        {"knots": [-1.0], "values": [5.0], "low": 2.0, "high": 0.0},
    ],
)
def test_flat_maps_are_maps(content: dict[str, Any]) -> None:
    assert Recalibration.from_json(content).to_json() == content


@pytest.mark.parametrize(
    "change",
    [
        {"high": -1.0},
        {"low": float("inf")},
        {"knots": [0.0]},
        {"values": [[0.0, 1.0]]},
        {"values": [0.0, float("nan")]},
    ],
)
def test_each_fault_of_a_map_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FFGBError, match="no rising map"):
        Recalibration.from_json({"knots": [0.0, 1.0], "values": [0.0, 1.0], "low": 1.0, "high": 1.0, **change})
