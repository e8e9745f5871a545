"""Losses ℓ(f, y), convex in f: value, functional gradient, and the gradient bounds of the paper's assumptions.

A loss acts row by row: on values f (n, c) of a function at n points and their targets y.  Its functional gradient
∇R[f](x_j) = ∇₁ℓ(f(x_j), y_j) is again an (n, c) array (the paper's eq. subgradient_empirical, without the μf part).
A new loss is one class with these names; list it in `recipes.py` and every algorithm and engine can use it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import expit, log_softmax, softmax

from ffgb.errors import FFGBError
from ffgb.functions import Array


class Loss(ABC):
    """ℓ: R^c × Y → R, convex in its first argument."""

    outputs: int
    """c."""

    @abstractmethod
    def value(self, f: Array, y: Array) -> Array:
        """ℓ(f(x_j), y_j) for each row, (n,)."""

    @abstractmethod
    def gradient(self, f: Array, y: Array) -> Array:
        """∇₁ℓ(f(x_j), y_j), (n, c)."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """G of Theorem 1: sup of ‖∇₁ℓ‖₂, infinite if there is none."""

    @property
    @abstractmethod
    def entry_bound(self) -> float:
        """G of FFGB.C, whose clip is entrywise: sup of the largest entry of |∇₁ℓ|."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """The Lipschitz constant of the gradient in f; its inverse is a step size that always descends."""

    @abstractmethod
    def check(self, y: Array) -> None:
        """Raise an FFGBError if these targets are not targets of this loss."""

    classification: bool = False

    def probability(self, f: Array) -> Array:
        """Class probabilities (n, classes)."""
        raise FFGBError(f"{type(self).__name__} is a regression loss and gives no probabilities")

    temperature: float = 1.0
    """What f is divided by before it is taught, and the learner multiplied by afterwards."""

    def lessons(self, f: Array) -> Array:
        """The targets of one who is to learn what f/temperature says (distill.py)."""
        raise FFGBError(f"{type(self).__name__} takes labels, and no lessons")


@final
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Multi-class cross entropy, −log softmax(f)_y, for class indices y in 0 … c−1."""

    outputs: int
    classification = True

    def value(self, f: Array, y: Array) -> Array:
        value: Array = -log_softmax(f, axis=1)[np.arange(len(y)), y]
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        # scipy's softmax, without what it does for other kinds of arrays: in steps this small that is most of it
        gradient: Array = np.exp(f - f.max(axis=1, keepdims=True))
        gradient /= gradient.sum(axis=1, keepdims=True)
        gradient[np.arange(len(y)), y] -= 1.0
        return gradient

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
        _check_classes(y, self.outputs)

    def probability(self, f: Array) -> Array:
        p: Array = softmax(f, axis=1)
        return p


@final
@dataclass(frozen=True)
class Logistic(Loss):
    """Binary logistic loss log(1 + e^f) − y f for y in {0, 1}: one output, the log odds of class 1."""

    outputs: int = 1
    classification = True

    def __post_init__(self) -> None:
        if self.outputs != 1:
            raise FFGBError("the logistic loss has one output; use CrossEntropy for several")

    def value(self, f: Array, y: Array) -> Array:
        value: Array = np.logaddexp(0.0, f[:, 0]) - y * f[:, 0]
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = expit(f) - y[:, None]
        return gradient

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
        _check_classes(y, 2)

    def probability(self, f: Array) -> Array:
        p = expit(f[:, 0])
        return np.stack([1.0 - p, p], axis=1)


@final
@dataclass(frozen=True)
class Soft(Loss):
    """Cross entropy to given probabilities y, (n, c), or, with one output, to the given chance of class 1, (n, 1)."""

    outputs: int
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
        _check_values(y, self.outputs)
        if y.min(initial=0.0) < 0 or y.max(initial=0.0) > 1:
            raise FFGBError("probabilities lie between 0 and 1")


@final
@dataclass(frozen=True)
class Square(Loss):
    """½‖f − y‖² for y in R^c.  Its gradient is unbounded, so Theorem 1 needs bounded labels besides."""

    outputs: int = 1

    def lessons(self, f: Array) -> Array:
        return f

    def value(self, f: Array, y: Array) -> Array:
        d = f - _as_columns(y)
        value: Array = 0.5 * np.einsum("ij,ij->i", d, d)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = f - _as_columns(y)
        return gradient

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
        _check_values(y, self.outputs)


@final
@dataclass(frozen=True)
class Huber(Loss):
    """Huber's loss in each entry: d²/2 for |d| ≤ δ, δ(|d| − δ/2) beyond, summed over the c entries of d = f − y."""

    outputs: int = 1
    delta: float = 1.0

    def value(self, f: Array, y: Array) -> Array:
        size = np.abs(f - _as_columns(y))
        near = np.minimum(size, self.delta)
        value: Array = (near * (size - 0.5 * near)).sum(axis=1)
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        gradient: Array = np.clip(f - _as_columns(y), -self.delta, self.delta)
        return gradient

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
        _check_values(y, self.outputs)


def _as_columns(y: Array) -> Array:
    return y[:, None] if y.ndim == 1 else y


def _check_classes(y: Array, classes: int) -> None:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise FFGBError(f"class labels must be one integer a row, not {y.dtype} of shape {y.shape}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise FFGBError(f"class labels must lie in 0 … {classes - 1}, found {int(y.min())} … {int(y.max())}")


def _check_values(y: Array, outputs: int) -> None:
    if y.dtype.kind not in "fiu" or _as_columns(y).shape != (len(y), outputs):
        raise FFGBError(f"targets must be {outputs} number(s) a row, not {y.dtype} of shape {y.shape}")
    if not np.isfinite(y).all():
        raise FFGBError(f"{int((~np.isfinite(y)).sum())} target value(s) are missing or infinite; remove those rows")
