"""Scores of probabilities, against scikit-learn and statsmodels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit, logit
from sklearn.metrics import average_precision_score, roc_auc_score

from ffgb.core.judgement import auc, average_precision, calibration, scores_of


def rows(seed: int = 0, n: int = 300) -> tuple[Any, Any, Any]:
    """Probabilities of class 1, some of them equal, classes and weights."""
    rng = np.random.default_rng(seed)
    p = np.round(rng.uniform(0.02, 0.98, n), 2)
    return p, (rng.uniform(size=n) < p**1.5).astype(int), rng.uniform(0.5, 3.0, n)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_are_scored_as_scikit_learn_scores_them(weighted: bool) -> None:
    p, y, w = rows()
    weights = w if weighted else None
    found = scores_of(np.stack([1 - p, p], axis=1), y, weights)
    assert found["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=weights), abs=1e-12)
    expected = average_precision_score(y, p, sample_weight=weights)
    assert found["average_precision"] == pytest.approx(expected, abs=1e-12)
    assert found["base_rate"] == pytest.approx(np.average(y, weights=weights))


def test_calibration_is_a_logistic_regression_on_the_log_odds() -> None:
    p, y, w = rows(1)
    design = sm.add_constant(logit(p))
    model = sm.GLM(y, design, family=sm.families.Binomial(), freq_weights=w).fit()
    line = calibration(p, y, w)
    assert line is not None
    np.testing.assert_allclose(line, model.params, atol=1e-7)


def test_right_probabilities_have_the_slope_1() -> None:
    z = np.random.default_rng(2).normal(size=200_000)
    y = (np.random.default_rng(3).uniform(size=len(z)) < expit(z)).astype(int)
    line = calibration(expit(z), y, np.ones(len(z)))
    assert line is not None
    assert line[0] == pytest.approx(0.0, abs=0.02)
    assert line[1] == pytest.approx(1.0, abs=0.02)
    sure = calibration(expit(2.0 * z), y, np.ones(len(z)))
    assert sure is not None
    assert sure[1] == pytest.approx(0.5, abs=0.02)


def test_what_cannot_be_computed_is_left_out() -> None:
    p, y = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1])
    separated = scores_of(np.stack([1 - p, p], axis=1), y)
    assert separated["auc"] == 1.0
    assert "calibration_slope" not in separated
    alike = scores_of(np.full((4, 2), 0.5), y)
    assert "calibration_slope" not in alike
    one = scores_of(np.stack([1 - p, p], axis=1), np.zeros(4, int))
    assert set(one) == {"base_rate", "auc"}
    assert scores_of(np.full((3, 3), 1 / 3), np.array([0, 2, 2])) == {"base_rate": pytest.approx(2 / 3)}


def test_the_average_precision_of_a_perfect_ranking_is_1() -> None:
    assert average_precision(np.array([0.9, 0.8, 0.1]), np.array([1, 1, 0]), np.ones(3)) == 1.0


def test_a_ranking_of_one_class_is_as_good_as_chance() -> None:
    score = np.array([0.1, 0.7])
    assert auc(score, np.array([1, 1])) == auc(score, np.array([0, 0])) == 0.5
    assert auc(score, np.array([0, 1]), np.array([0.0, 1.0])) == 0.5
    assert auc(np.array([0.3, 0.3]), np.array([0, 1])) == 0.5


@pytest.mark.parametrize(("slope", "found"), [(19.0, True), (21.0, False)])
def test_a_calibration_slope_is_below_twenty(slope: float, found: bool) -> None:
    z = np.linspace(-0.02, 0.02, 4001)
    mass = np.concatenate([expit(slope * z), expit(-slope * z)])  # as often as the chances say
    p, y = expit(np.tile(z, 2)), np.repeat([1, 0], len(z))
    line = calibration(p, y, mass)
    assert (line is not None) == found
    if line is not None:
        assert line == pytest.approx((0.0, slope), abs=1e-6)
