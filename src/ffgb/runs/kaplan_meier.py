"""Survival curves over sites, and the log-rank test: from totals (`ffgb survival`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ffgb.core.questions import Ask
from ffgb.core.regression.design import DesignColumn, Variable
from ffgb.core.regression.kaplan_meier import Curve, LogRank, curves, log_rank
from ffgb.core.regression.sums import CellCounts, ColumnOrders, largest_of
from ffgb.core.regression.survival import Survival
from ffgb.core.types import Array
from ffgb.data.records import SITE, SiteColumns, levels_of
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.protocol.costs import Costs
from ffgb.runs.cox import refuse_text
from ffgb.runs.statistics import Agreed, Analysis, Data, Step, analysed, check_times

FINE = 1024
"""Cells of time that are counted before they are joined, if no times are given."""


@final
@dataclass(frozen=True, eq=False)
class SurvivalResult:
    """Kaplan and Meier's curves of all sites' rows, at the ends of intervals of time."""

    curves: Mapping[str, Curve]
    """By group; of all rows, it is called "all"."""
    test: LogRank | None
    """None for one group."""
    level: float
    """Of the confidence intervals."""
    by: str | None
    left_out: int
    """Rows with a missing value."""
    sites: tuple[str, ...]
    masked: bool

    def at_cost(self, costs: Costs) -> SurvivalResult:
        """The same: what it cost is not told."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        groups = []
        for name, curve in self.curves.items():
            low, high = curve.interval(self.level)
            values = curve.times, curve.at_risk, curve.events, curve.censored, curve.survival, low, high
            words = ("time", "at_risk", "events", "censored", "survival", "low", "high")
            rows = [{w: float(v) for w, v in zip(words, row, strict=True)} for row in zip(*values, strict=True)]
            groups.append({"group": name, "median": curve.median, "curve": rows})
        test = None
        if self.test is not None:
            test = {"chi2": self.test.chi2, "degrees": self.test.degrees, "p_value": self.test.p_value}
        return {
            "by": self.by,
            "left_out": self.left_out,
            "sites": list(self.sites),
            "level": self.level,
            "secure": self.masked,
            "groups": groups,
            "log_rank": test,
        }


def survival_curves(
    data: Data,
    *,
    time: str,
    event: str,
    by: str | None = None,
    times: Sequence[float] | None = None,
    level: float = 0.95,
    least: int = LEAST,
    secure: bool = False,
) -> SurvivalResult:
    """Kaplan and Meier's curves of all sites' rows, and the log-rank test of groups, from counts by interval of time.

    Times are rounded up to the ends of intervals.  Intervals are joined until each tells at least `least` rows of every
    group from the others, with an event and without one, or none.

    Parameters
    ----------
    data
        One table a site: paths of CSV or Parquet files or data frames, perhaps by the names of the sites.
    time, event
        Columns: the time until the event or the end of observation, and 1 for an event, 0 for none.
    by
        A column with the groups, or "site".
    times
        Ends of intervals; without them about twenty, by the number of events.
    level
        Of the confidence intervals.
    least
        Rows of all sites that an interval must have of each group.
    secure
        Add totals up under masks.

    Examples
    --------
    >>> import pandas as pd
    >>> site = pd.DataFrame({"days": [1, 2, 3, 4], "died": [1, 1, 1, 0]})
    >>> found = survival_curves([site, site, site], time="days", event="died", times=[1, 2, 3, 4], least=1)
    >>> curve = found.curves["all"]  # it falls at the ends of intervals with events
    >>> curve.times.tolist(), curve.survival.round(3).tolist()
    ([1.0, 2.0, 3.0], [0.75, 0.5, 0.25])
    """
    ends = None if times is None else tuple(map(float, times))
    return analysed(SurvivalCurves(time, event, by, ends, level, least), data, secure=secure)


@final
@dataclass(frozen=True)
class SurvivalCurves(Analysis[SurvivalResult]):
    """The question that `survival_curves` answers: its options."""

    name = "survival"
    questions = ("CellCounts", "ColumnOrders", "TimeCounts")

    time: str = ""
    event: str = ""
    by: str | None = None
    times: tuple[float, ...] | None = None
    level: float = 0.95
    least: int = LEAST

    def check(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise FFGBError(f"{option('level')} is a number between 0 and 1, not {self.level:g}")
        if self.times is not None:
            _edges(self.times)
        if len(self.columns_used) < 2 + (self.by is not None):
            raise FFGBError("the time, the event and the groups are columns of their own")

    def in_words(self) -> str:
        groups = "" if self.by is None else f", for each group of the column {self.by!r}"
        return f"It draws survival curves: the time {self.time!r} until the event {self.event!r}{groups}."

    @property
    def survival(self) -> Survival:
        return Survival(Variable(self.time), Variable(self.event))

    @property
    def columns_used(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.time, self.event, *([self.by] if self.by is not None else [])]))

    @property
    def columns_of_text(self) -> frozenset[str]:
        return frozenset([self.by] if self.by is not None else [])

    def check_agreed(self, agreed: Agreed) -> None:
        if agreed.secure and self.by == SITE and agreed.own_site:
            raise FFGBError(f"the curve of a site is what masks are to hide; use {option('secure', 'off')}")
        refuse_text((self.time, self.event), agreed)

    def check_site(self, site: SiteColumns) -> None:
        check_times(self.survival, site)

    def asked(self, ask: Ask, agreed: Agreed, on_step: Step) -> SurvivalResult:
        time, by, least = self.time, self.by, self.least
        groups = [DesignColumn("all", ())]
        if by is not None:
            groups = [DesignColumn(level, (Variable(by, level),)) for level in levels_of(ask, [by], least)[by]]
        _, left_out = (int(n) for n in ask(CellCounts(()))["rows"])
        if self.times is None:
            counts = ask(ColumnOrders((DesignColumn(time, (self.survival.time,)),), np.zeros(1)))
            cells = np.linspace(0.0, largest_of(counts[0]), FINE + 1)[1:]
        else:
            cells = _edges(self.times)
        found = curves(ask, self.survival, groups, cells, least, some=self.times is None)
        return SurvivalResult(
            {group.name: curve for group, curve in zip(groups, found, strict=True)},
            log_rank(found) if len(found) > 1 else None,
            self.level,
            by,
            left_out,
            agreed.names,
            agreed.secure,
        )


def _edges(times: Sequence[float]) -> Array:
    edges = np.unique(np.asarray(times, np.float64))
    if not len(edges) or not np.isfinite(edges).all() or edges[0] < 0:
        raise FFGBError(f"{option('times')} are numbers from 0 on, for example 365,730")
    return edges
