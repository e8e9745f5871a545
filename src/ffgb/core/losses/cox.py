"""The Cox loss, for times until an event: the negative log partial likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.concordance import c_index, concordance
from ffgb.core.losses.base import Loss, Measure, as_columns, check_values
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError


class _Risk(NamedTuple):
    """Each row's place among the others."""

    event: Array
    w: Array
    """exp(f − shift), the shift the largest f."""
    hazard: Array
    """Breslow's cumulative hazard up to the row's time, times exp(shift)."""
    log_at_risk: Array
    """log Σ w over the rows at risk at the row's time."""


@final
@dataclass(frozen=True)
class Cox(Loss):
    """d (log Σ exp(f of the rows at risk) − f) at each row: the log hazard ratio f is trained (Breslow's ties).

    The target of a row is its time, negative if it was observed for so long without an event (d = 0).  Unlike other
    losses this one looks at rows together: those of a client, which are at risk beside each other.  So each client has
    a baseline hazard of its own, no time leaves it, and sums over clients are those of the stratified model.

    The gradient is minus the martingale residual, w H − d.  `curvature` is w H: with the rest of the second derivative,
    −Σ p pᵀ over events, it would be no larger in any direction.  Neither has a bound: the loss is not `smooth`.

    >>> Cox().gradient(np.zeros((3, 1)), np.array([1.0, 2.0, -3.0])).round(2).ravel()
    array([-0.67, -0.17,  0.83])
    """

    name = "cox"
    outputs: int = 1
    least = 0.0
    smooth = False
    alone = False
    dispersed = False
    measure: ClassVar[Measure] = Measure("concordance", "concordant")

    @classmethod
    def of(cls, classes: int, outputs: int, **settings: float) -> Cox:
        cls._check_task(classes)
        if outputs != 1:
            raise FFGBError(f"the cox loss takes one time a row, and there are {outputs} targets")
        return cls()

    def value(self, f: Array, y: Array) -> Array:
        risk = _risk(f, y)
        value: Array = risk.event * (risk.log_at_risk - np.log(risk.w))
        return value

    def gradient(self, f: Array, y: Array) -> Array:
        risk = _risk(f, y)
        gradient: Array = (risk.w * risk.hazard - risk.event)[:, None]
        return gradient

    def curvature(self, f: Array, y: Array) -> Array:
        """Return w H, which is no less than the second derivative in any direction."""
        risk = _risk(f, y)
        curvature: Array = (risk.w * risk.hazard)[:, None]
        return curvature

    @property
    def bound(self) -> float:
        return math.inf

    @property
    def entry_bound(self) -> float:
        return math.inf

    @property
    def smoothness(self) -> float:
        """1, the mean curvature at f = 0 if all rows have an event.  There is no bound that holds for every f."""
        return 1.0

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)

    def scaling(self, moments: Moments) -> tuple[Array, Array] | None:
        """Return None: only the order of times counts."""
        return None

    def scores(
        self,
        f: Array,
        y: Array,
        mean: Array | None = None,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> dict[str, float]:
        """Return the c-index of these rows times their number, "concordant": ½ where no pair can be compared."""
        if weights is not None:
            raise FFGBError("the cox loss takes no weights of rows; leave them out")
        time, event = times_of(y)
        found = c_index(concordance(time, event, f[:, 0]))
        return {"concordant": len(f) * (0.5 if found is None else found)}


def times_of(y: Array) -> tuple[Array, Array]:
    """Return times and events of targets, (n,) each.

    >>> times_of(np.array([2.0, -3.0]))
    (array([2., 3.]), array([ True, False]))
    """
    y = as_columns(y)[:, 0]
    return np.abs(y), ~np.signbit(y)


def targets_of(time: Array, event: Array) -> Array:
    """Return targets, (n,), from times and events."""
    found: Array = np.where(event, time, -time)  # −0.0 is a row that was never observed
    return found


def _risk(f: Array, y: Array) -> _Risk:
    (time, event), f = times_of(y), np.asarray(f, np.float64)[:, 0]
    if not len(time):
        return _Risk(event, f, f, f)
    different, place = np.unique(time, return_inverse=True)
    w = np.exp(np.clip(f - f.max(), -700.0, 0.0))
    at_risk = np.bincount(place, w, len(different))[::-1].cumsum()[::-1]
    hazard = np.cumsum(np.bincount(place, event, len(different)) / at_risk)
    return _Risk(event.astype(np.float64), w, hazard[place], np.log(at_risk)[place])
