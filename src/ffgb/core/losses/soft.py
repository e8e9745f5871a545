"""Cross entropy to given probabilities, for distillation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import expit, log_softmax, softmax

from ffgb.core.losses.base import Loss, check_values
from ffgb.core.losses.links import Link, Logit, Softmax
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Soft(Loss):
    """Cross entropy to given probabilities y, (n, c), or, with one output, to the given chance of class 1, (n, 1).

    Distillation uses it; it has no name on the command line.  Its scores are squared errors of probabilities.
    """

    outputs: int
    least = 0.0
    # MNIST, 896 MLPs with 95.5 %, to one: 95.3 % at 0.5, 94.6 % at 1, 94.3 % at 2, and 93.7 % by fitting values.
    temperature = 0.5

    def lessons(self, f: Array) -> Array:
        certain = f / self.temperature
        lessons: Array = expit(certain) if self.outputs == 1 else softmax(certain, axis=1)
        return lessons

    def value(self, f: Array, y: Array) -> Array:
        if self.outputs == 1:
            chance: Array = np.logaddexp(0.0, f[:, 0]) - y[:, 0] * f[:, 0]
            return chance
        value: Array = -(y * log_softmax(f, axis=1)).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = (expit(f) if self.outputs == 1 else softmax(f, axis=1)) - y
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return p(1 − p)."""
        p = self.mean(f)
        curvature: Array = p * (1.0 - p)
        return curvature

    @property
    def bound(self) -> float:
        return 1.0 if self.outputs == 1 else math.sqrt(2.0)

    @property
    def entry_bound(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> float:
        return 0.25 if self.outputs == 1 else 0.5

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)
        if y.min(initial=0.0) < 0 or y.max(initial=0.0) > 1:
            raise FFGBError("probabilities lie between 0 and 1")

    @property
    def link(self) -> Link:
        return Logit() if self.outputs == 1 else Softmax()

    def scaling(self, moments: Moments) -> tuple[Array, Array] | None:
        """Return None: probabilities are not scaled."""
        return None
