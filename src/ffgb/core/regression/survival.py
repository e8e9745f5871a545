"""Times until an event at one site: the partial likelihood with its derivatives, residuals, and concordance.

A stratum is a set of rows that are at risk beside each other: those of a site, or of a site and a category.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def concordance(time: Array, event: Array, risk: Array) -> tuple[int, int, int]:
    """Pairs of rows that are in the right order, that have the same risk, and that can be compared.

    A pair can be compared if one has an event before the time of the other, or at a time at which the other had none.
    It is in the right order if the one with the event has the higher risk.

    >>> concordance(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), np.array([2.0, 3.0, 1.0]))
    (2, 0, 3)
    """
    order = np.lexsort((~event.astype(bool), -time))  # the last first; at one time, rows with an event first
    rank = np.unique(risk, return_inverse=True)[1] + 1
    size = int(rank.max(initial=0))
    tree, right, same, pairs, inside = np.zeros(size + 1, np.int64), 0, 0, 0, 0
    time, event, rank = time[order], event[order].astype(bool), rank[order]
    at = 0
    while at < len(time):
        end = at + int(np.searchsorted(-time[at:], -time[at], "right"))
        censored = [int(r) for r, e in zip(rank[at:end], event[at:end], strict=True) if not e]
        for r in censored:
            _insert(tree, r, size)
        inside += len(censored)
        happened = [int(r) for r, e in zip(rank[at:end], event[at:end], strict=True) if e]
        for r in happened:
            below, upto = _count(tree, r - 1), _count(tree, r)
            right, same, pairs = right + below, same + upto - below, pairs + inside
        for r in happened:
            _insert(tree, r, size)
        inside += len(happened)
        at = end
    return right, same, pairs


def _insert(tree: Array, place: int, size: int) -> None:
    """One more at a place of a binary indexed tree."""
    while place <= size:
        tree[place] += 1
        place += place & -place


def _count(tree: Array, place: int) -> int:
    """How many there are up to a place."""
    found = 0
    while place > 0:
        found += int(tree[place])
        place -= place & -place
    return found


def c_index(pairs: Sequence[float]) -> float | None:
    """The share of comparable pairs in the right order, pairs of the same risk by half; None without such pairs."""
    right, same, total = pairs
    return float((right + 0.5 * same) / total) if total else None
