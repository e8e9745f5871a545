"""Poisson loss, for counts and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from scipy.special import kl_div

from ffgb.core.losses.base import Loss, as_columns, check_values, scaled_by_mean, total
from ffgb.core.losses.links import Log
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Poisson(Loss):
    """exp(f) − y f in each entry, for y ≥ 0: the logarithm of the mean is trained.

    Targets need not be whole numbers.  A row that was observed for an exposure e, with the count y, has the target y/e
    and the weight e: e (exp(f) − (y/e) f) = exp(f + log e) − y (f + log e) + y log e, and the last term does not depend
    on f.  That is the Poisson loss of y with the offset log e.

    The gradient exp(f) − y is unbounded, and so is the curvature exp(f): the loss is not `smooth`.

    >>> import numpy as np
    >>> Poisson().gradient(np.array([[0.0]]), np.array([3.0]))
    array([[-2.]])
    """

    name = "poisson"
    outputs: int = 1
    smooth = False

    def value(self, f: Array, y: Array) -> Array:
        value: Array = (self.mean(f) - as_columns(y) * f).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = self.mean(f) - as_columns(y)
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return exp(f)."""
        return self.mean(f)

    @property
    def bound(self) -> float:
        return math.inf

    @property
    def entry_bound(self) -> float:
        return math.inf

    @property
    def smoothness(self) -> float:
        """1, the curvature exp(f) at the best constant f = 0.  There is no bound that holds for every f."""
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)
        if (y < 0).any():
            raise FFGBError(
                f"{int((y < 0).sum())} target value(s) are negative, and the poisson loss takes numbers from 0 up; "
                "check the target column, or choose the square loss"
            )

    @property
    def link(self) -> Log:
        return Log()

    def scaling(self, moments: Moments) -> tuple[Array, Array]:
        """Return 0 and the mean ȳ of the targets: training sees y/ȳ.

        Nothing is lost by that, for ℓ(f + log s, s y) = s exp(f) − s y f − s y log s = s ℓ(f, y) − s y log s for every
        s > 0: up to the factor s and a term without f, the loss of s y at f + log s is that of y at f.  The best
        constant is f = 0, for the mean gradient there is exp(0) − mean(y/ȳ) = 1 − 1 = 0; it predicts exp(0) ȳ = ȳ.
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
        """Return "squared_error" and "deviance", the sum of 2 (y log(y/m) − y + m) for predictions m, in own units."""
        deviance = 2.0 * kl_div(as_columns(y), self.mean(f))
        if scale is not None:
            deviance = deviance * scale  # the deviance of s y and s m is s times that of y and m
        return super().scores(f, y, mean, scale, weights) | {"deviance": total(deviance, weights)}
