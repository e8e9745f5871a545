"""What a loss is: ℓ(f, y), convex in f, with all that training, prediction and reports must know of it.

A loss acts row by row (but for the Cox loss, which says that it is not `alone`): on values f (n, c) of a function at n
points and their targets y.  Its functional gradient ∇R[f](x_j) = ∇₁ℓ(f(x_j), y_j) is again an (n, c) array (the
paper's eq. subgradient_empirical, without the μf part).

There are two units.  In *training units* the targets are (y − mean)/scale, with the arrays that `Loss.scaling` returns;
`value`, `gradient`, `curvature`, `scores` and `check` take targets in training units.  *Own units* are those of the
user's file; `unscaled` and `scores` return numbers in own units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np

from ffgb.core.losses.links import Identity, Link
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Measure:
    """What people judge a model by beside its loss: a mean over rows, or the root of one."""

    name: str
    summed: str
    """What `Loss.scores` calls the sum over rows."""
    root: bool = False

    def of(self, mean: float) -> float:
        """Return the number that people know, from a mean over rows."""
        return math.sqrt(mean) if self.root else mean


class Loss(ABC):
    """ℓ: R^c × Y → R, convex in its first argument.

    A concrete loss is a final, frozen dataclass with the field `outputs`.  It must define `value`, `gradient`,
    `curvature`, `bound`, `entry_bound`, `smoothness` and `check`.  The other names have defaults that suit a regression
    loss with the identity link; `ClassificationLoss` has those of classification.
    """

    name: ClassVar[str] = ""
    """The word for this loss on the command line.  Empty: users cannot choose it."""

    outputs: int
    """c, the number of values that the trained function has at a point."""

    classification: bool = False
    """The targets are classes."""

    least: float = -math.inf
    """The infimum of ℓ over all f and y."""

    measure: ClassVar[Measure] = Measure("rmse", "squared_error", root=True)
    """What models are judged by beside the loss."""

    alone: bool = True
    """What a row contributes depends on no other row of its client."""

    dispersed: bool = True
    """The loss is no log likelihood: how much targets scatter is estimated, too."""

    smooth: bool = True
    """`smoothness` bounds the curvature everywhere.  If not, checks that need such a bound must skip this loss."""

    @abstractmethod
    def value(self, f: Array, y: Array) -> Array:
        """Return ℓ(f(x_j), y_j) for each row.

        Parameters
        ----------
        f
            Values of the function, (n, c).
        y
            Targets in training units: class indices (n,), or numbers (n, c); (n,) will do for c = 1.

        Returns
        -------
        Array
            Losses, (n,).
        """

    @abstractmethod
    def gradient(self, f: Array, y: Array) -> Array:
        """Return ∇₁ℓ(f(x_j), y_j), or a subgradient where ℓ has a kink.

        Parameters
        ----------
        f, y
            As in `value`.

        Returns
        -------
        Array
            Gradients, (n, c).
        """

    @abstractmethod
    def curvature(self, f: Array, y: Array) -> Array:
        """Return the diagonal of the second derivative of ℓ in f.

        Parameters
        ----------
        f, y
            As in `value`.

        Returns
        -------
        Array
            ∂²ℓ/∂f_k² ≥ 0 for each entry k, (n, c).
        """

    @property
    @abstractmethod
    def bound(self) -> float:
        """G of Theorem 1: the supremum of ‖∇₁ℓ‖₂, infinite if the gradient is unbounded."""

    @property
    @abstractmethod
    def entry_bound(self) -> float:
        """G of FFGB.C, whose clip is entrywise: the supremum of the largest entry of |∇₁ℓ|."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """The Lipschitz constant of the gradient in f.  Its inverse is a step size that always descends.

        If the loss is not `smooth`, there is no such constant, and this is a typical curvature in training units: its
        inverse is a step size to begin with.
        """

    @abstractmethod
    def check(self, y: Array) -> None:
        """Raise an FFGBError that says why, if these are not targets of this loss.

        Parameters
        ----------
        y
            Targets, in own or in training units.
        """

    @classmethod
    def of(cls, classes: int, outputs: int, **settings: float) -> Self:
        """Return the loss for a data set, or raise an FFGBError if the loss does not fit the task.

        Parameters
        ----------
        classes
            Number of classes; 0 if the targets are numbers.
        outputs
            Number of target columns; ignored if there are classes.
        **settings
            The loss's other fields by name, for example `delta` of the Huber loss.
        """
        cls._check_task(classes)
        make: Any = cls
        loss: Self = make(outputs=classes or outputs, **settings)
        return loss

    @classmethod
    def _check_task(cls, classes: int) -> None:
        name = cls.name or cls.__name__
        if classes and not cls.classification:
            raise FFGBError(
                f"the loss {name} does not fit classification: it predicts numbers, and the targets are classes; "
                "choose a loss for classes, or treat the target as a number"
            )
        if cls.classification and not classes:
            raise FFGBError(
                f"the loss {name} does not fit regression: it predicts classes, and the targets are numbers; "
                "choose a loss for numbers, or treat the target as classes"
            )

    @property
    def link(self) -> Link:
        """The link from f to the mean of the target in training units."""
        return Identity()

    def mean(self, f: Array) -> Array:
        """Return `link.mean(f)`: the prediction in training units, (n, c)."""
        return self.link.mean(f)

    def probability(self, f: Array) -> Array:
        """Return class probabilities (n, classes).  A regression loss raises an FFGBError.

        Parameters
        ----------
        f
            Values of the function, (n, c).
        """
        raise FFGBError(f"{type(self).__name__} is a regression loss and gives no probabilities")

    def scaling(self, moments: Moments) -> tuple[Array, Array] | None:
        """Return how targets are scaled for training: training sees (y − mean)/scale.

        By default targets are standardised.

        Parameters
        ----------
        moments
            Count, mean and variance of all sites' targets.

        Returns
        -------
        tuple of Array, or None
            mean and scale, (c,) each; None if targets are used as they are.
        """
        return standardised(moments)

    @property
    def robust(self) -> bool:
        """Whether targets are scaled by their median and their median distance from it, which outliers do not move."""
        return False

    @property
    def start_level(self) -> float | None:
        """The level of the quantile of the scaled targets that is the best constant to start from.

        None: training starts at f = 0.
        """
        return None

    def unscaled(self, f: Array, mean: Array | None = None, scale: Array | None = None) -> Array:
        """Return predictions in own units: link.mean(f) · scale + mean.

        Parameters
        ----------
        f
            Values of the function, (n, c).
        mean, scale
            As `scaling` returned them; None if the targets were not scaled.

        Returns
        -------
        Array
            Predictions, (n, c).  A classification loss returns probabilities, (n, classes).
        """
        values = self.mean(f)
        if scale is not None:
            values = values * scale
        if mean is not None:
            values = values + mean
        return values

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        """Return sums over rows, by name, that a report adds up over sites and divides by the number of rows.

        Parameters
        ----------
        f
            Values of the function, (n, c).
        y
            Targets in training units, as in `value`.
        mean, scale
            As `scaling` returned them; None if the targets were not scaled.
        weights
            A factor for each row, (n,); None counts every row once.

        Returns
        -------
        dict
            "squared_error" in own units, and what else the loss is judged by.
        """
        error = self.mean(f) - as_columns(y)  # `mean` cancels
        if scale is not None:
            error = error * scale
        return {"squared_error": total(np.square(error), weights)}

    temperature: float = 1.0
    """f is divided by this before a learner is taught, and the learner is multiplied by it afterwards."""

    def lessons(self, f: Array) -> Array:
        """Return the targets, (n, c), for a learner that is to imitate f/temperature (federation/distillation.py).

        A loss that takes labels raises an FFGBError.
        """
        raise FFGBError(f"{type(self).__name__} takes labels, and no lessons")


class ClassificationLoss(Loss):
    """A loss whose targets are class indices.  It must define `probability` besides."""

    classification = True
    dispersed = False
    measure = Measure("accuracy", "correct")
    least = 0.0

    @abstractmethod
    def probability(self, f: Array) -> Array:
        """Return class probabilities (n, classes).

        Parameters
        ----------
        f
            Values of the function, (n, c).
        """

    def scaling(self, moments: Moments) -> tuple[Array, Array] | None:
        """Return None: classes are not scaled."""
        return None

    def unscaled(self, f: Array, mean: Array | None = None, scale: Array | None = None) -> Array:
        """Return class probabilities (n, classes); `mean` and `scale` have no effect."""
        return self.probability(f)

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        """Return the number, or the weight, of the rows whose most probable class is the right one: "correct"."""
        p = self.probability(f)
        chosen = p[:, 1] > p[:, 0] if p.shape[1] == 2 else p.argmax(axis=1)  # of two: ten times as fast
        return {"correct": total(chosen == y, weights)}


def as_columns(y: Array) -> Array:
    """Return targets as (n, c): one target a row becomes one column."""
    return y[:, None] if y.ndim == 1 else y


def total(values: Array, weights: Array | None) -> float:
    """Return the sum of all entries of values, (n,) or (n, c), whose rows are multiplied by weights (n,), if given."""
    if weights is not None:
        values = as_columns(values) * weights[:, None]
    return float(values.sum())


def standardised(moments: Moments) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of the targets, or 1 where that is 0."""
    deviation = np.sqrt(moments.variance)
    return moments.mean, np.where(deviation > 0, deviation, 1.0)


def scaled_by_mean(moments: Moments, name: str) -> tuple[Array, Array]:
    """Return 0 and the mean of the targets: with the log link, f = 0 then predicts that mean."""
    if not (moments.mean > 0).all():
        raise FFGBError(
            f"the targets of column {int(np.argmin(moments.mean)) + 1} have a mean of {moments.mean.min():g}, and the "
            f"{name} loss predicts positive means; check the target column, or choose the square loss"
        )
    return np.zeros_like(moments.mean), moments.mean


def check_classes(y: Array, classes: int) -> None:
    """Raise an FFGBError if these are not class indices 0 … classes − 1."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise FFGBError(f"class labels must be one integer a row, not {y.dtype} of shape {y.shape}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise FFGBError(f"class labels must lie in 0 … {classes - 1}, found {int(y.min())} … {int(y.max())}")


def check_values(y: Array, outputs: int) -> None:
    """Raise an FFGBError if these are not finite numbers, so many a row."""
    if y.dtype.kind not in "fiu" or as_columns(y).shape != (len(y), outputs):
        raise FFGBError(f"targets must be {outputs} number(s) a row, not {y.dtype} of shape {y.shape}")
    if not np.isfinite(y).all():
        raise FFGBError(f"{int((~np.isfinite(y)).sum())} target value(s) are missing or infinite; remove those rows")
