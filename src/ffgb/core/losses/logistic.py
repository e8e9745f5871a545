"""Binary logistic loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from scipy.special import expit

from ffgb.core.losses.base import ClassificationLoss, check_classes
from ffgb.core.losses.links import Logit
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Logistic(ClassificationLoss):
    """Binary logistic loss log(1 + e^f) − y f for y in {0, 1}: one output, the log odds of class 1.

    >>> Logistic().probability(np.zeros((1, 1)))
    array([[0.5, 0.5]])
    """

    name = "logistic"
    outputs: int = 1

    def __post_init__(self) -> None:
        if self.outputs != 1:
            raise FFGBError("the logistic loss has one output; use CrossEntropy for several")

    @classmethod
    def of(cls, classes: int, outputs: int, **settings: float) -> Self:
        """Return the loss for two classes; raise an FFGBError if there are more, or none."""
        cls._check_task(classes)
        if classes > 2:
            raise FFGBError(f"the targets have {classes} classes, the logistic loss has two: use cross-entropy")
        return super().of(1, 1, **settings)  # one output for both classes

    def value(self, f: Array, y: Array) -> Array:
        # logaddexp(0, f), four times as fast
        value: Array = np.maximum(f[:, 0], 0.0) + np.log1p(np.exp(-np.abs(f[:, 0]))) - y * f[:, 0]
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = expit(f) - y[:, None]
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return p(1 − p)."""
        e = np.exp(-np.abs(f))
        curvature: Array = e / np.square(1.0 + e)
        return curvature

    @property
    def bound(self) -> float:
        return 1.0

    @property
    def entry_bound(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> float:
        return 0.25

    def check(self, y: Array) -> None:
        check_classes(y, 2)

    @property
    def link(self) -> Logit:
        return Logit()

    def probability(self, f: Array) -> Array:
        p = self.link.mean(f[:, 0])
        return np.stack([1.0 - p, p], axis=1)
