"""Square loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values
from ffgb.core.types import Array


@final
@dataclass(frozen=True)
class Square(Loss):
    """½‖f − y‖² for y in R^c.  Its gradient is unbounded, so Theorem 1 needs bounded labels besides.

    Targets are standardised, so the best constant is f = 0.

    >>> Square().value(np.array([[3.0]]), np.array([1.0]))
    array([2.])
    """

    name = "square"
    outputs: int = 1
    least = 0.0

    def lessons(self, f: Array) -> Array:
        return f

    def value(self, f: Array, y: Array) -> Array:
        d = f - as_columns(y)
        value: Array = 0.5 * np.einsum("ij,ij->i", d, d)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = f - as_columns(y)
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return 1 in each entry."""
        return np.ones_like(f)

    @property
    def bound(self) -> float:
        return math.inf

    @property
    def entry_bound(self) -> float:
        return math.inf

    @property
    def smoothness(self) -> float:
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)
