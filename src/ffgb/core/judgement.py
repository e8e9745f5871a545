"""How good probabilities are, beside their loss: do they rank well, and are they right?

>>> y = np.array([0, 0, 1, 1, 1])
>>> scores_of(np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9]]), y)["auc"]
0.8333333333333334
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from ffgb.core.types import Array

CLOSEST = 1e-12
"""Probabilities are taken to be so far from 0 and 1 at least."""
STEEPEST = 20.0
"""A calibration slope beyond this is that of classes that scores separate: there is none."""


def scores_of(p: Array, y: Array, weights: Array | None = None) -> dict[str, float]:
    """Scores of class probabilities beside loss and accuracy.

    Parameters
    ----------
    p
        Probabilities, (n, classes).
    y
        Class indices, (n,).
    weights
        What each row counts for, (n,); None: all count the same.

    Returns
    -------
    dict
        "base_rate": the share of class 1, or of the most frequent of several classes.  With two classes also "auc",
        "average_precision", "calibration_intercept" and "calibration_slope".  What cannot be computed is left out.
    """
    mass = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    shares = np.bincount(y, mass, p.shape[1]) / mass.sum()
    if p.shape[1] != 2:
        return {"base_rate": float(shares.max())}
    found = {"base_rate": float(shares[1]), "auc": auc(p[:, 1], y, weights)}
    if 0.0 < shares[1] < 1.0:
        found["average_precision"] = average_precision(p[:, 1], y, mass)
        line = calibration(p[:, 1], y, mass)
        if line is not None:
            found["calibration_intercept"], found["calibration_slope"] = line
    return found


def auc(score: Array, y: Array, weights: Array | None = None) -> float:
    """The chance that a row of class 1 scores above a row of class 0, ties counted half; ½ if a class is missing.

    With weights, rows are drawn in proportion to them.
    """
    mass = np.ones(len(y)) if weights is None else weights
    values, place = np.unique(score, return_inverse=True)
    ones, zeros = (np.bincount(place, mass * one, len(values)) for one in (y == 1, y != 1))
    pairs = float(ones.sum() * zeros.sum())
    below = np.cumsum(zeros) - zeros / 2
    return float(ones @ below) / pairs if pairs > 0 else 0.5


def average_precision(score: Array, y: Array, mass: Array) -> float:
    """The mean precision over recall: the area under the steps of the precision–recall curve."""
    values, place = np.unique(-score, return_inverse=True)  # the highest first
    ones, every = np.bincount(place, mass * (y == 1), len(values)), np.bincount(place, mass, len(values))
    above = np.cumsum(every)
    precision = np.divide(np.cumsum(ones), above, out=np.zeros(len(values)), where=above > 0)  # rows may weigh nothing
    return float(precision @ ones / ones.sum())


def calibration(p: Array, y: Array, mass: Array) -> tuple[float, float] | None:
    """Intercept and slope of a logistic regression of the class on the predicted log odds: 0 and 1 are right.

    None if there is no such line, because the scores are all alike or separate the classes.
    """
    z = logit(np.clip(p, CLOSEST, 1.0 - CLOSEST))
    design = np.stack([np.ones(len(z)), z], axis=1)
    line = np.array([0.0, 1.0])
    for _ in range(50):
        q = expit(design @ line)
        curvature = (design * (mass * q * (1.0 - q))[:, None]).T @ design
        if not np.linalg.cond(curvature) < 1e12:
            return None
        step = np.linalg.solve(curvature, design.T @ (mass * (y - q)))
        step *= min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-12))  # no farther than 1 at a time
        line = line + step
        if not abs(line[1]) < STEEPEST:
            return None
        if np.abs(step).max() < 1e-10:
            return float(line[0]), float(line[1])
    return None
