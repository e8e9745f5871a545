"""Times until an event at one site: the partial likelihood with its derivatives and residuals.

A stratum is a set of rows that are at risk beside each other: those of a site, or of a site and a category.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from ffgb.core.regression.design import Records, Variable
from ffgb.core.types import Array
from ffgb.errors import FFGBError

Ties: TypeAlias = Literal["efron", "breslow"]


@final
@dataclass(frozen=True)
class Survival:
    """Which columns are the time, the event (0 or 1), and the strata within a site."""

    time: Variable
    event: Variable
    strata: tuple[str, ...] = ()

    def of(self, records: Records) -> tuple[Array, Array]:
        """Times and events of all rows."""
        time, event = (variable.of(records, slice(None)) for variable in (self.time, self.event))
        if not (np.isfinite(time) & (time >= 0)).all():
            raise FFGBError(f"the time {self.time.name!r} has values below 0; count times from the start of each row")
        if not np.isin(event, (0.0, 1.0)).all():
            raise FFGBError(f"the event {self.event.name!r} has values other than 0 and 1")
        return time, event > 0

    def groups(self, records: Records) -> Iterator[Array]:
        """The rows of each stratum."""
        key = np.zeros(records.rows, np.int64)
        for name in self.strata:
            if name not in records.codes:
                raise FFGBError(f"this site has no column {name!r} of categories")
            codes, names = records.codes[name]
            key = key * len(names) + codes
        for value in np.unique(key):
            yield np.flatnonzero(key == value)


@final
@dataclass(frozen=True, eq=False)
class Stratum:
    """Rows in order of their times, and the risk sets at each event."""

    x: Array
    event: Array
    eta: Array
    w: Array
    """exp(η − shift)."""
    events: Array
    """Rows with an event."""
    group: Array
    """Of each event the place of its time among the different ones."""
    left: Array
    """The share of the events of its time that an event is to be counted after: 0 in Breslow's way."""
    reached: Array
    """Of each row the number of different event times up to its own."""
    s0: Array
    """At each event: Σ w over the rows at risk."""
    xbar: Array
    """At each event: the mean of x over them, by w."""

    @staticmethod
    def of(time: Array, event: Array, x: Array, beta: Array, ties: Ties) -> Stratum:
        order = np.argsort(time, kind="stable")
        time, event, x = time[order], event[order], x[order]
        eta = x @ beta
        w = np.exp(eta - eta.max(initial=-np.inf))
        events = np.flatnonzero(event)
        times, group, together = np.unique(time[events], return_inverse=True, return_counts=True)
        first = np.cumsum(together) - together
        left = (np.arange(len(events)) - first[group]) / together[group] if ties == "efron" else np.zeros(len(events))
        start = np.searchsorted(time, times, "left")[group]
        weighted = w[:, None] * x
        s0, s1 = (np.cumsum(values[::-1], axis=0)[::-1][start] for values in (w, weighted))
        s0 = s0 - left * _by_group(w[events], group, len(times))[group]
        s1 = s1 - left[:, None] * _by_group(weighted[events], group, len(times))[group]
        reached = np.searchsorted(times, time, "right")
        return Stratum(x, event, eta - eta.max(initial=0.0), w, events, group, left, reached, s0, s1 / s0[:, None])

    @property
    def loglik(self) -> float:
        highest = self.eta.max(initial=-np.inf)
        return float(np.sum(self.eta[self.events] - highest) - np.sum(np.log(self.s0))) if len(self.events) else 0.0

    @property
    def score(self) -> Array:
        found: Array = self.x[self.events].sum(axis=0) - self.xbar.sum(axis=0)
        return found

    @property
    def information(self) -> Array:
        found: Array = (self.x * (self.w * self._up_to(1.0 / self.s0))[:, None]).T @ self.x - self.xbar.T @ self.xbar
        return found

    @property
    def residuals(self) -> Array:
        """Score residuals of the rows: they add up to the score."""
        if not len(self.events):
            return np.zeros_like(self.x)
        hazard = 1.0 / self.s0
        number = int(self.group[-1]) + 1
        together = np.bincount(self.group, minlength=number)
        mean = _by_group(self.xbar, self.group, number) / together[:, None]
        found = -self.w[:, None] * (self.x * self._up_to(hazard)[:, None] - self._up_to(hazard[:, None] * self.xbar))
        found[self.events] += self.x[self.events] - mean[self.group]
        residuals: Array = found
        return residuals

    def _up_to(self, values: Array) -> Array:
        """Of each row: the sum of values at events up to its time, as far as it is at risk there."""
        number = int(self.group[-1]) + 1 if len(self.group) else 0
        sums = np.concatenate(
            [np.zeros((1, *values.shape[1:])), np.cumsum(_by_group(values, self.group, number), axis=0)]
        )
        found = sums[self.reached]
        left = self.left if values.ndim == 1 else self.left[:, None]
        found[self.events] -= _by_group(left * values, self.group, number)[self.group]
        return found


def _by_group(values: Array, group: Array, number: int) -> Array:
    found = np.zeros((number, *values.shape[1:]))
    np.add.at(found, group, values)
    return found
