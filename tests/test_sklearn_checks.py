"""The estimators under scikit-learn's own checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from ffgb.sklearn import FFGBClassifier, FFGBRegressor

CHECKED = [FFGBClassifier(), FFGBRegressor(), FFGBClassifier(learner=DecisionTreeRegressor(max_depth=3), rounds=15)]


# weights weigh losses and moments; thresholds of a map are quantiles of rows, and a ridge counts rows
ROWS = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    "maps and ridges count rows, whatever these weigh",
)


checks: pytest.MarkDecorator = parametrize_with_checks(CHECKED, expected_failed_checks=lambda estimator: ROWS)


@checks
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    if "check_array_api_input" in str(check):
        return  # the next test: it needs a process of its own
    check(estimator)


def test_scikit_learns_check_with_array_api_dispatch() -> None:
    """It is skipped unless SciPy is told before it is imported, so it is run in a process that does."""
    code = """
from sklearn.utils.estimator_checks import estimator_checks_generator
from tests.test_sklearn_checks import CHECKED
for estimator in CHECKED:
    ran = [check(each) for each, check in estimator_checks_generator(estimator) if "check_array_api" in str(check)]
    assert len(ran) == 1
print("passed")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout == "passed\n", done.stderr
