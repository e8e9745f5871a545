"""Pinball loss, for quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values, total
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.settings import METHOD, Setting

WIDTH = 0.1
"""The curvature grows as f comes nearer to the target, up to this distance in standard deviations."""


@final
@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss in each entry: q (y − f) where f < y, (1 − q)(f − y) where f > y, for a level q in (0, 1).

    Its minimum is the q-quantile of y; q = 0.5 gives the median.  Targets are standardised.  Training should start at
    the q-quantile of the scaled targets, the best constant (`start_level`).  The gradient is bounded: no entry exceeds
    max(q, 1 − q).  It jumps where f = y, so the loss is not `smooth`.

    >>> Quantile(level=0.9).value(np.array([[0.0], [2.0]]), np.array([1.0, 1.0])).round(4)
    array([0.9, 0.1])
    """

    name = "quantile"
    outputs: int = 1
    least = 0.0
    smooth = False
    level: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise FFGBError(f"the level of the quantile loss must lie between 0 and 1, not at {self.level:g}")

    def value(self, f: Array, y: Array) -> Array:
        value: Array = self._pinball(f, y).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        """Return a subgradient: −q where f < y, 1 − q where f > y, and 0 where f = y."""
        d = f - as_columns(y)
        gradient: Array = np.where(d > 0, 1.0 - self.level, np.where(d < 0, -self.level, 0.0))
        return gradient.astype(d.dtype, copy=False)

    def curvature(self, f: Array, y: Array) -> Array:
        """Return 1/(2 max(|d|, 0.1)) with d = f − y, a surrogate: the second derivative is 0 wherever it exists.

        The loss is |d|/2 + (½ − q) d, and |d| ≤ (d²/a + a)/2 for every a > 0, with equality at |d| = a.  So the
        parabola with this curvature that touches the loss at f lies above it everywhere, if |d| ≥ 0.1, and a Newton
        step on the sum of such parabolas does not increase the loss (Hunter & Lange, "Quantile regression via an MM
        algorithm", Journal of Computational and Graphical Statistics 9, 2000).  Nearer than 0.1 standard deviations
        the parabola is nowhere more than 0.1 below the loss.
        """
        curvature: Array = 0.5 / np.maximum(np.abs(f - as_columns(y)), WIDTH)
        return curvature

    @property
    def bound(self) -> float:
        return self.entry_bound * math.sqrt(self.outputs)

    @property
    def entry_bound(self) -> float:
        return max(self.level, 1.0 - self.level)

    @property
    def smoothness(self) -> float:
        """1: a unit step moves f by at most one standard deviation.  The gradient has no Lipschitz constant."""
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)

    @property
    def start_level(self) -> float:
        """The level q: the best constant is the q-quantile of the scaled targets."""
        return self.level

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        """Return "squared_error" and "pinball", the sum of the pinball loss, in own units."""
        pinball = self._pinball(f, y)
        if scale is not None:
            pinball = pinball * scale  # ℓ(s f, s y) = s ℓ(f, y) for s > 0
        return super().scores(f, y, mean, scale, weights) | {"pinball": total(pinball, weights)}

    def _pinball(self, f: Array, y: Array) -> Array:
        d = f - as_columns(y)
        pinball: Array = np.maximum((1.0 - self.level) * d, -self.level * d)
        return pinball


SETTINGS = (
    Setting("level", "number", "The quantile that is predicted (quantile).", METHOD, 0.5, above=0.0, below=1.0),
)
