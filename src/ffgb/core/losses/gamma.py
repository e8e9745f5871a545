"""Gamma loss, for positive amounts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values, scaled_by_mean, total
from ffgb.core.losses.links import Log
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Gamma(Loss):
    """f + y exp(−f) in each entry, for y > 0: the logarithm of the mean is trained.

    It suits amounts whose standard deviation grows with their mean, such as costs and durations.  The gradient
    1 − y exp(−f) is unbounded, and so is the curvature y exp(−f): the loss is not `smooth`.

    >>> Gamma().gradient(np.array([[0.0]]), np.array([3.0]))
    array([[-2.]])
    """

    name = "gamma"
    outputs: int = 1
    smooth = False

    def value(self, f: Array, y: Array) -> Array:
        value: Array = (f + self._ratio(f, y)).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = 1.0 - self._ratio(f, y)
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return y exp(−f)."""
        return self._ratio(f, y)

    @property
    def bound(self) -> float:
        return math.inf

    @property
    def entry_bound(self) -> float:
        return math.inf

    @property
    def smoothness(self) -> float:
        """1, the mean curvature y exp(−f) at the best constant f = 0.  There is no bound that holds for every f."""
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)
        if (y <= 0).any():
            raise FFGBError(
                f"{int((y <= 0).sum())} target value(s) are not positive, and the gamma loss takes positive numbers; "
                "remove those rows, or choose the poisson loss (0 and up) or the square loss"
            )

    @property
    def link(self) -> Log:
        return Log()

    def scaling(self, moments: Moments) -> tuple[Array, Array]:
        """Return 0 and the mean ȳ of the targets: training sees y/ȳ.

        Nothing is lost by that, for ℓ(f + log s, s y) = f + log s + y exp(−f) = ℓ(f, y) + log s for every s > 0: up to
        a constant, the loss of s y at f + log s is that of y at f.  The best constant is f = 0, for the mean gradient
        there is 1 − mean(y/ȳ) exp(0) = 1 − 1 = 0; it predicts exp(0) ȳ = ȳ.
        """
        return scaled_by_mean(moments, self.name)

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        """Return "squared_error" in own units, and "deviance", the sum of 2 (y/m − 1 − log(y/m)) for predictions m.

        The deviance has no unit.
        """
        log_ratio = np.log(as_columns(y)) - f
        with np.errstate(over="ignore"):
            deviance = 2.0 * (np.expm1(log_ratio) - log_ratio)
        return super().scores(f, y, mean, scale, weights) | {"deviance": total(deviance, weights)}

    def _ratio(self, f: Array, y: Array) -> Array:
        """y/m for the predictions m = exp(f)."""
        ratio: Array = as_columns(y) * self.link.mean(-f)
        return ratio
