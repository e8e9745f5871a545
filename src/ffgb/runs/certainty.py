"""How sure the score of a result is, and what a guess would score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from ffgb.core.estimates import Sampled, root_mean, wilson
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.runs.headline import LEVEL
from ffgb.runs.model import Model


def interval(summary: Mapping[str, Any], model: Model, dataset: Dataset, *, here: bool) -> dict[str, float]:
    """The ends of the test score's confidence interval, and what a guess would score.

    If the rows are not `here`, an accuracy has an interval all the same: by the number of rows that are held out.
    """
    x, y, weights, site = dataset.x_test, dataset.y_test, dataset.weights_test, dataset.site_test
    if "test_accuracy" in summary:
        worth = float(summary.get("test_rows", 0.0))
        if here and weights is not None:
            worth = float(weights.sum() ** 2 / np.square(weights).sum())
        return of_accuracy(summary["test_accuracy"], worth) if worth else {}
    if "test_rmse" not in summary or not here or not len(y):
        return {}
    rows, targets = Sampled.of(len(y), weights, site, LEVEL), y.reshape(len(y), -1)
    error = np.square(model.predict(x).reshape(targets.shape) - targets).sum(axis=1)
    found, spread = root_mean(error, rows), _spread(targets, rows.mass)
    ends = {"test_rmse_low": found.low, "test_rmse_high": found.high, "test_rmse_of_mean": spread}
    return {name: value for name, value in ends.items() if value is not None and math.isfinite(value)}


def of_accuracy(accuracy: float, rows: float) -> dict[str, float]:
    """The ends of the interval of an accuracy at so many rows that were held out."""
    found = wilson(accuracy, rows, float(ndtri(0.5 + LEVEL / 2)))
    return {"test_accuracy_low": found.low or 0.0, "test_accuracy_high": found.high or 0.0}


def _spread(targets: Array, mass: Array) -> float:
    """The RMSE of the mean of these targets."""
    mean = mass @ targets / mass.sum()
    return math.sqrt(float(mass @ np.square(targets - mean).sum(axis=1) / mass.sum()))
