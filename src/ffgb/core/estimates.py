"""Scores of a model with confidence intervals, from sums over rows.

A score is a function of the weights that rows have.  Its standard error follows from its derivative d in each row's
weight w, which is the influence of the row.  A bootstrap of rows within sites estimates the same by drawing:

    error² = Σ_sites n/(n − 1) Σ_rows (w d − mean of w d at the site)²

Intervals of shares and areas are on the scale of log odds (of shares: Wilson's), so they end within 0 and 1.

>>> rows = Sampled.of(4)
>>> mean(np.array([1.0, 2.0, 3.0, 4.0]), rows)
Estimate(value=2.5, low=1.2348..., high=3.7651...)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import expit, logit, ndtri

from ffgb.core.judgement import CLOSEST, auc, average_precision, calibration
from ffgb.core.statistics import LEVEL as LEVEL
from ffgb.core.types import Array


@final
@dataclass(frozen=True)
class Estimate:
    """A score and its confidence interval; the ends are None where rows do not tell."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        """With the ends of the interval under `low` and `high`."""
        return {"value": self.value, "low": self.low, "high": self.high}


@final
@dataclass(frozen=True, eq=False)
class Sampled:
    """How rows came: what each weighs, and the site that it is of."""

    mass: Array
    site: Array
    level: float = LEVEL

    @staticmethod
    def of(rows: int, weights: Array | None = None, site: Array | None = None, level: float = LEVEL) -> Sampled:
        """Rows that weigh the same and are of one site, if nothing else is said."""
        mass = np.ones(rows) if weights is None else np.asarray(weights, np.float64)
        return Sampled(mass, np.zeros(rows, np.int64) if site is None else site, level)

    def error(self, derivative: Array) -> float:
        """The standard error of a score with this derivative in each row's weight, (n,)."""
        influence, (_, place) = self.mass * derivative, np.unique(self.site, return_inverse=True)
        rows = np.bincount(place)
        apart = influence - (np.bincount(place, influence) / rows)[place]
        squares = np.bincount(place, np.square(apart))
        return math.sqrt(float((squares * rows / np.maximum(rows - 1, 1)).sum()))

    @property
    def z(self) -> float:
        """The deviations from the middle where an interval of a normal variable ends."""
        return float(ndtri(0.5 + self.level / 2))

    def around(self, value: float, error: float, *, least: float = -math.inf) -> Estimate:
        """An interval of a normal variable."""
        return Estimate(value, max(value - self.z * error, least), value + self.z * error)

    def within(self, value: float, error: float) -> Estimate:
        """An interval of a score between 0 and 1, on the scale of log odds; none at 0 and at 1."""
        if not (0.0 < value < 1.0 and error > 0.0):
            return Estimate(value)
        half = self.z * error / (value * (1.0 - value))
        return Estimate(value, float(expit(logit(value) - half)), float(expit(logit(value) + half)))


def mean(values: Array, rows: Sampled, *, least: float = -math.inf) -> Estimate:
    """The mean of a number that each row has."""
    whole = rows.mass.sum()
    value = float(rows.mass @ values / whole)
    return rows.around(value, rows.error((values - value) / whole), least=least)


def root_mean(squares: Array, rows: Sampled) -> Estimate:
    """The root of a mean, with the root of its interval."""
    inside = mean(squares, rows, least=0.0)
    ends = (None if end is None else math.sqrt(end) for end in (inside.low, inside.high))
    return Estimate(math.sqrt(inside.value), *ends)


def share(right: Array, rows: Sampled) -> Estimate:
    """The share of rows for which something holds, with Wilson's interval; weighted rows are worth fewer."""
    p = float(rows.mass @ right / rows.mass.sum())
    worth = float(rows.mass.sum() ** 2 / np.square(rows.mass).sum())
    return wilson(p, worth, rows.z)


def wilson(p: float, rows: float, z: float) -> Estimate:
    """Wilson's interval of a share of so many rows."""
    middle = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return Estimate(p, max(middle - half, 0.0), min(middle + half, 1.0))


def area(score: Array, y: Array, rows: Sampled) -> Estimate:
    """The area under the ROC curve, as DeLong's interval has it."""
    ones, zeros = rows.mass * (y == 1), rows.mass * (y != 1)
    if not (ones.sum() > 0 and zeros.sum() > 0):
        return Estimate(0.5)
    value = auc(score, y, rows.mass)
    values, place = np.unique(score, return_inverse=True)
    of_ones, of_zeros = (np.bincount(place, mass, len(values)) for mass in (ones, zeros))
    below = ((np.cumsum(of_zeros) - of_zeros / 2) / zeros.sum())[place]
    above = ((ones.sum() - np.cumsum(of_ones) + of_ones / 2) / ones.sum())[place]
    derivative = np.where(y == 1, (below - value) / ones.sum(), (above - value) / zeros.sum())
    return rows.within(value, rows.error(derivative))


def precision_area(score: Array, y: Array, rows: Sampled) -> Estimate:
    """The mean precision over recall."""
    ones = rows.mass * (y == 1)
    if not 0 < ones.sum() < rows.mass.sum():
        return Estimate(float(ones.sum() > 0))
    value = average_precision(score, y, rows.mass)
    values, place = np.unique(-score, return_inverse=True)  # the highest first
    found = np.bincount(place, ones, len(values))
    above = np.maximum(np.cumsum(np.bincount(place, rows.mass, len(values))), CLOSEST)
    precision = np.cumsum(found) / above
    # a row counts in the precision at its own score and at all lower ones
    by_one = np.cumsum((found / above)[::-1])[::-1][place]
    by_any = np.cumsum((found * precision / above)[::-1])[::-1][place]
    derivative = (np.where(y == 1, precision[place] - value + by_one, 0.0) - by_any) / ones.sum()
    return rows.within(value, rows.error(derivative))


def calibration_line(p: Array, y: Array, rows: Sampled) -> tuple[Estimate, Estimate] | None:
    """Intercept and slope of `judgement.calibration`, with robust standard errors; None if there is no such line."""
    line = calibration(p, y, rows.mass)
    if line is None:
        return None
    z = logit(np.clip(p, CLOSEST, 1.0 - CLOSEST))
    design = np.stack([np.ones(len(z)), z], axis=1)
    return _line(design, line, expit(design @ line), y, lambda q: q * (1.0 - q), rows)


def straight_line(predicted: Array, y: Array, rows: Sampled) -> tuple[Estimate, Estimate] | None:
    """Intercept and slope of a least squares line of y over predictions; None if these are all alike."""
    design = np.stack([np.ones(len(y)), predicted], axis=1)
    products = (design * rows.mass[:, None]).T @ design
    if not np.linalg.cond(products) < 1e14:
        return None
    line = np.linalg.solve(products, design.T @ (rows.mass * y))
    return _line(design, (float(line[0]), float(line[1])), design @ line, y, np.ones_like, rows)


def _line(
    design: Array, line: tuple[float, float], fitted: Array, y: Array, curvature: Any, rows: Sampled
) -> tuple[Estimate, Estimate]:
    """Both coefficients with the standard errors that their scores give."""
    information = (design * (rows.mass * curvature(fitted))[:, None]).T @ design
    derivative = np.linalg.solve(information, design.T * (y - fitted))
    intercept, slope = (rows.around(value, rows.error(d)) for value, d in zip(line, derivative, strict=True))
    return intercept, slope
