"""Kaplan and Meier's curves and the log-rank test from counts of rows in intervals of time, over all sites.

Times are rounded up to the ends of intervals, and intervals are joined until each has enough rows of every group, or
none.  Rows whose observation ends where no event is are an interval of their own, if they are enough: so only rows
that are censored between events of one interval count as observed for longer than they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.special import chdtrc, ndtri

from ffgb.core.exact_sums import counted
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.regression.design import DesignColumn, records_of
from ffgb.core.regression.survival import Survival
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

SHOWN = 20
"""Intervals of a curve, about, if no times are given."""


@final
@dataclass(frozen=True, eq=False)
class TimeCounts(Question):
    """Rows of each group with an event, and without one, whose time is in each interval; the last is open."""

    what: ClassVar[str] = "events by time"
    survival: Survival
    groups: tuple[DesignColumn, ...]
    """Indicators of the groups."""
    edges: Array
    """The ends of the intervals, in increasing order; each belongs to the interval that it ends."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"counts": counted((len(self.groups), len(self.edges) + 1, 2))}

    def part(self, here: Here) -> Tensors:
        records, cells = records_of(here), len(self.edges) + 1
        if self.edges.ndim != 1 or not (np.diff(self.edges) > 0).all():
            raise FFGBError("the ends of intervals of time are not in order")
        time, event = self.survival.of(records)
        cell = np.searchsorted(self.edges, time, "left")
        found = np.zeros((len(self.groups), cells, 2))
        for counts, group in zip(found, self.groups, strict=True):
            inside = group.of(records, slice(None)) > 0
            counts[:, 0] = np.bincount(cell[inside & event], minlength=cells)
            counts[:, 1] = np.bincount(cell[inside & ~event], minlength=cells)
        return {"counts": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["counts"] < 0).any():
            raise FFGBError("its counts of events are negative")

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """One group's survival at the ends of intervals."""

    times: Array
    at_risk: Array
    """Rows that are observed up to the interval."""
    events: Array
    censored: Array
    """Rows whose observation ends without an event in the interval, or before the next one."""
    ends: Array
    """All times that rows' own are rounded up to, also those of intervals without an event."""

    @property
    def survival(self) -> Array:
        """Kaplan and Meier's estimate."""
        found: Array = np.cumprod(1.0 - self.events / np.maximum(self.at_risk, 1.0))
        return found

    def interval(self, level: float) -> tuple[Array, Array]:
        """Confidence intervals by Greenwood's variance, on the scale of log(−log S)."""
        s, left = self.survival, self.at_risk - self.events
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = np.cumsum(np.where(left > 0, self.events / (self.at_risk * np.maximum(left, 1.0)), np.inf))
            half = ndtri(0.5 + level / 2.0) * np.sqrt(variance) / np.log(s)
            low, high = s ** np.exp(-half), s ** np.exp(half)
        certain = s >= 1.0
        low, high = np.where(certain, 1.0, low), np.where(certain, 1.0, high)
        return np.where(s > 0, low, 0.0), np.where(s > 0, high, 0.0)

    @property
    def median(self) -> float | None:
        """The first time at which no more than half survive; None if more do at the end."""
        reached = np.flatnonzero(self.survival <= 0.5)
        return float(self.times[reached[0]]) if len(reached) else None


@final
@dataclass(frozen=True)
class LogRank:
    """Do groups have the same hazards?"""

    chi2: float
    degrees: int

    @property
    def p_value(self) -> float:
        return float(chdtrc(self.degrees, self.chi2))


def curves(
    ask: Ask, survival: Survival, groups: Sequence[DesignColumn], edges: Array, least: int, *, some: bool
) -> list[Curve]:
    """The curve of each group, at those of the times at which enough rows are told apart; `some`: at about 20."""
    counts = np.array(ask(TimeCounts(survival, tuple(groups), edges)))
    counts[:, -1] = np.stack([np.zeros(len(counts)), counts[:, -1].sum(axis=1)], axis=1)  # observed beyond the last end
    events = float(counts[:, :, 0].sum())
    if events == 0:
        raise FFGBError("no row of any site has an event; there is nothing to show")
    ends = joined(counts, least, events / SHOWN if some else 0.0)
    if not ends:
        raise FFGBError(
            f"events, or rows without one, of a group are fewer than {least} at all times together; join groups, or "
            "give them another column"
        )
    found, starts = [], [0, *(end + 1 for end in ends[:-1])]
    times = edges[np.minimum(ends, len(edges) - 1)]
    cells = np.add.reduceat(counts, starts, axis=1)
    inside = np.array(starts) < len(edges)
    shown = np.flatnonzero(inside & (cells[:, :, 0].sum(axis=0) > 0))
    for group in cells:
        d, c = group.T
        at_risk = (d + c)[::-1].cumsum()[::-1]
        left = np.append(at_risk[shown[1:]], (d + c)[~inside].sum())  # at the next interval that is shown
        found.append(Curve(times[shown], at_risk[shown], d[shown], at_risk[shown] - d[shown] - left, times))
    return found


def joined(counts: Array, least: int, events: float = 0.0) -> list[int]:
    """The last cell of each interval, so that no interval tells fewer rows of a group from others, but none at all.

    An interval has so many events at least, or none.  What is left at the end is joined to the last interval.
    """
    ends, since = list[int](), np.zeros((len(counts), 2))
    for k in range(counts.shape[1]):
        since = since + counts[:, k]
        fine, came = ((since == 0) | (since >= least)).all() and since.any(), since[:, 0].sum()
        if fine and (came == 0 or came >= events):
            ends.append(k)
            since = np.zeros_like(since)
    if since.any():
        if ((since == 0) | (since >= least)).all():
            return [*ends, counts.shape[1] - 1]
        while ends:
            ends.pop()
            last = counts[:, ends[-1] + 1 if ends else 0 :].sum(axis=1)
            if ((last == 0) | (last >= least)).all():
                return [*ends, counts.shape[1] - 1]
        return []
    return ends


def log_rank(found: Sequence[Curve]) -> LogRank:
    """The log-rank test of all groups."""
    n, d = np.stack([curve.at_risk for curve in found]), np.stack([curve.events for curve in found])
    total, events = n.sum(axis=0), d.sum(axis=0)
    share = n / np.maximum(total, 1.0)
    observed = (d - share * events).sum(axis=1)
    spread = events * (total - events) / np.maximum(total - 1.0, 1.0)
    variance = np.diag((spread * share).sum(axis=1)) - (spread * share) @ share.T
    z, v = observed[:-1], variance[:-1, :-1]
    return LogRank(float(z @ np.linalg.pinv(v) @ z), len(found) - 1)
