"""Mean and variance of columns; the level of intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.types import Array

LEVEL = 0.95
"""Of confidence intervals, if no one says."""


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and variance of each column."""

    mean: Array
    variance: Array

    @staticmethod
    def of(x: Array) -> Moments:
        """Of the columns of an array, a row a point."""
        flat = np.asarray(x, np.float64).reshape(len(x), -1)
        return Moments(flat.mean(axis=0), flat.var(axis=0))

    @property
    def constant(self) -> Array:
        """Which columns are the same at all points, up to float32."""
        constant: Array = np.sqrt(self.variance) <= 1e-6 * np.abs(self.mean)
        return constant
