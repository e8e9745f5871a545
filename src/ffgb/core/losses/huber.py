"""Huber's loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.settings import METHOD, Setting


@final
@dataclass(frozen=True)
class Huber(Loss):
    """Huber's loss in each entry: d²/2 for |d| ≤ δ, δ(|d| − δ/2) beyond, summed over the c entries of d = f − y.

    Targets are scaled by their median and 1.4826 times their median distance from it, so δ counts deviations as they
    are without outliers.  Training starts at the median, f = 0.  The gradient is bounded: no entry exceeds δ.

    >>> Huber(delta=1.0).value(np.array([[0.5], [3.0]]), np.zeros(2))
    array([0.125, 2.5  ])
    """

    name = "huber"
    outputs: int = 1
    least = 0.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise FFGBError(f"the delta of the huber loss must be positive, not {self.delta:g}")

    @property
    def robust(self) -> bool:
        return True

    def value(self, f: Array, y: Array) -> Array:
        size = np.abs(f - as_columns(y))
        near = np.minimum(size, self.delta)
        value: Array = (near * (size - 0.5 * near)).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = np.clip(f - as_columns(y), -self.delta, self.delta)
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return 1 for |d| ≤ δ and 0 beyond, where the loss is linear."""
        curvature: Array = (np.abs(f - as_columns(y)) <= self.delta).astype(f.dtype)
        return curvature

    @property
    def bound(self) -> float:
        return self.delta * math.sqrt(self.outputs)

    @property
    def entry_bound(self) -> float:
        return self.delta

    @property
    def smoothness(self) -> float:
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)


SETTINGS = (
    Setting(
        "delta",
        "number",
        "Where Huber's loss turns linear, in deviations of the target without its outliers (huber); or the δ of "
        "--epsilon, 1e-5 if it is not given, well below one in the number of rows.",
        METHOD,
        1.0,
        above=0.0,
    ),
)
