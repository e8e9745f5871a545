"""Probabilities corrected by a monotone map, which is fitted to rows that the model was not trained on.

Of two classes, the map takes log odds to log odds, piecewise linear between knots.  `intercept` moves all by the same;
`platt` is a line; `isotonic` rises from group to group of rows, as fast as what came.  Of more classes, `platt` raises
probabilities to a power, and scales them to add up to 1.  All are fitted by sums over rows.

>>> p = np.array([0.2, 0.4, 0.6, 0.8])
>>> half = Recalibration(np.zeros(1), np.zeros(1), 0.5, 0.5)
>>> half(np.stack([1 - p, p], axis=1))[:, 1].round(3)
array([0.333, 0.449, 0.551, 0.667])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy  # its parts are imported where they are first used: worker processes begin sooner
from scipy.special import expit, logit, softmax

from ffgb.core.judgement import CLOSEST, calibration
from ffgb.core.probability_cells import ProbabilityCells
from ffgb.core.types import Array
from ffgb.errors import FFGBError

WAYS = ("intercept", "platt", "isotonic")
CELL = 10
"""Rows of each class in a group of isotonic regression, at least."""
STEEPEST = 20.0
"""Of a power."""


@final
@dataclass(frozen=True, eq=False)
class Recalibration:
    """A map of probabilities."""

    knots: Array
    """Log odds, ascending, (K,)."""
    values: Array
    """What they become, ascending, (K,)."""
    low: float
    """The slope below the first knot; of more than two classes, the power."""
    high: float
    """The slope above the last knot."""

    def __call__(self, p: Array) -> Array:
        """Corrected probabilities (n, classes)."""
        if p.shape[1] != 2:
            found: Array = softmax(self.low * np.log(np.maximum(p, CLOSEST)), axis=1)
            return found
        z = logit(np.clip(p[:, 1], CLOSEST, 1.0 - CLOSEST))
        inside = np.interp(z, self.knots, self.values)
        beyond = self.low * np.minimum(z - self.knots[0], 0.0) + self.high * np.maximum(z - self.knots[-1], 0.0)
        one = expit(inside + beyond)
        return np.stack([1.0 - one, one], axis=1)

    def to_json(self) -> dict[str, Any]:
        return {
            "knots": self.knots.tolist(), "values": self.values.tolist(), "low": self.low, "high": self.high,
        }  # fmt: skip

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Recalibration:
        """The inverse of `to_json`."""
        knots, values = (np.asarray(content[name], np.float64) for name in ("knots", "values"))
        low, high = float(content["low"]), float(content["high"])
        sound = (
            knots.ndim == values.ndim == 1 and len(knots) == len(values) > 0
            and np.isfinite([*knots, *values, low, high]).all()
            and (np.diff(knots) > 0).all() and (np.diff(values) >= 0).all() and low >= 0 and high >= 0
        )  # fmt: skip
        if not sound:
            raise FFGBError("its recalibration is no rising map")
        return Recalibration(knots, values, low, high)


def recalibration(p: Array, y: Array, weights: Array | None, way: str) -> Recalibration:
    """The map that suits these rows: probabilities (n, classes), classes (n,)."""
    mass = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    if p.shape[1] != 2:
        if way != "platt":
            raise FFGBError(f"{way} recalibrates two classes; of more, take platt")
        logs = np.log(np.maximum(p, CLOSEST))
        least = scipy.optimize.minimize_scalar
        found = least(lambda a: _loss(a, logs, y, mass), bounds=(0.0, STEEPEST), method="bounded")
        return Recalibration(np.zeros(1), np.zeros(1), float(found.x), float(found.x))
    if not 0.0 < mass @ y < mass.sum():
        raise FFGBError("all rows to recalibrate by are of one class; name more rows")
    z = logit(np.clip(p[:, 1], CLOSEST, 1.0 - CLOSEST))
    if way == "intercept":
        shift = float(scipy.optimize.brentq(lambda b: float(mass @ (expit(z + b) - y)), -60.0, 60.0))
        return Recalibration(np.zeros(1), np.array([shift]), 1.0, 1.0)
    if way == "platt":
        line = calibration(p[:, 1], y, mass)
        if line is None or line[1] <= 0:
            raise FFGBError("these rows have no rising line of calibration; try the way intercept, or name more rows")
        return Recalibration(np.zeros(1), np.array([line[0]]), line[1], line[1])
    if way == "isotonic":
        line = calibration(p[:, 1], y, mass)
        beyond = line[1] if line is not None and line[1] > 0 else 1.0
        return _isotonic(ProbabilityCells.of(p[:, 1], y, weights, least=CELL), beyond)
    raise FFGBError(f"there is no way {way!r} to recalibrate; choose {', '.join(WAYS)}")


def _isotonic(cells: ProbabilityCells, beyond: float) -> Recalibration:
    """Rising shares of cells, as knots at the mean probability of each; beyond them, with the slope of Platt's line."""
    mass = cells.mass.sum(axis=1)
    came = scipy.optimize.isotonic_regression((cells.mass[:, 1] + 0.5) / (mass + 1.0), weights=mass).x
    knots = logit(cells.expected / mass)
    return Recalibration(knots, logit(came), beyond, beyond)


def _loss(power: float, logs: Array, y: Array, mass: Array) -> float:
    chances = softmax(power * logs, axis=1)[np.arange(len(y)), y]
    return -float(mass @ np.log(np.maximum(chances, CLOSEST)))
