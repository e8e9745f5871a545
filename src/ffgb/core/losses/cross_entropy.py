"""Multi-class cross entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_softmax, softmax

from ffgb.core.losses.base import ClassificationLoss, check_classes
from ffgb.core.losses.links import Softmax
from ffgb.core.types import Array


@final
@dataclass(frozen=True)
class CrossEntropy(ClassificationLoss):
    """Multi-class cross entropy, −log softmax(f)_y, for class indices y in 0 … c−1.

    >>> CrossEntropy(2).value(np.zeros((1, 2)), np.array([0])).round(4)
    array([0.6931])
    """

    name = "cross-entropy"
    outputs: int

    def value(self, f: Array, y: Array) -> Array:
        value: Array = -log_softmax(f, axis=1)[np.arange(len(y)), y]
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        # scipy's softmax, without what it does for other kinds of arrays: in steps this small that is most of it
        gradient: Array = np.exp(f - f.max(axis=1, keepdims=True))
        gradient /= gradient.sum(axis=1, keepdims=True)
        gradient[np.arange(len(y)), y] -= 1.0
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return p(1 − p), the diagonal of diag(p) − pp'."""
        p = softmax(f, axis=1)
        curvature: Array = p * (1.0 - p)
        return curvature

    @property
    def bound(self) -> float:
        # p − e_y has ‖·‖₂² = Σ_{j≠y} p_j² + (1 − p_y)² ≤ 2 (1 − p_y)²
        return math.sqrt(2.0)

    @property
    def entry_bound(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> float:
        return 0.5  # the largest eigenvalue of diag(p) − pp'

    def check(self, y: Array) -> None:
        check_classes(y, self.outputs)

    @property
    def link(self) -> Softmax:
        return Softmax()

    def probability(self, f: Array) -> Array:
        return self.link.mean(f)
