"""Scores of predictions, the same ones for every method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

Array = np.ndarray[Any, Any]

MAIN = {"binary": "auc", "classes": "accuracy", "regression": "rmse"}
"""The score that ranks methods, by the kind of target."""


def scores(task: str, predicted: Array, truth: Array) -> dict[str, float | None]:
    """Of values, (n,), or of class probabilities, (n, classes); `truth` has values or indices of classes."""
    if task == "regression":
        error = predicted - truth
        rmse = math.sqrt(float(np.square(error).mean()))
        return {"rmse": rmse, "r2": 1 - float(np.square(error).mean() / truth.var())}
    p = np.clip(predicted, 1e-15, 1)
    p = p / p.sum(axis=1, keepdims=True)
    found: dict[str, float | None] = {
        "accuracy": float((p.argmax(axis=1) == truth).mean()),
        "log_loss": float(log_loss(truth, p, labels=np.arange(p.shape[1]))),
    }
    if task == "binary":
        found["auc"] = float(roc_auc_score(truth, p[:, 1]))
        found["average_precision"] = float(average_precision_score(truth, p[:, 1]))
        found["base_rate"] = float(truth.mean())
        found["slope"], found["intercept"] = calibration(p[:, 1], truth)
    return found


def calibration(p: Array, truth: Array) -> tuple[float | None, float | None]:
    """Slope and intercept of a logistic regression of the labels on the log odds; none where classes are separated."""
    odds = np.log(p / np.clip(1 - p, 1e-15, 1))
    if np.ptp(odds) == 0 or roc_auc_score(truth, p) > 0.9999:
        return None, None
    scale = float(odds.std())
    fit = LogisticRegression(C=1e6, max_iter=1000).fit((odds / scale)[:, None], truth)
    return float(fit.coef_[0, 0]) / scale, float(fit.intercept_[0])
