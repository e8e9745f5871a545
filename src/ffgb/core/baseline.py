"""Survival by a model of log hazard ratios f: cumulative hazards in intervals of time, from sums over rows.

Time is cut finely.  In a cell with d events the hazard of f = 0 is d / Σ exp(f), over the rows that are observed up to
it (Breslow's estimate for times that are rounded up).  What is kept are its sums at the ends of intervals, with enough
events in each.  A row survives a cumulative hazard H with the chance exp(−H exp(f)).  Each site with enough events has
hazards of its own, as the Cox loss has it; those of all rows together are for a site that is new.

>>> time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, True, False])
>>> hazards = Hazards.of(time, event, np.zeros(4), np.array([2.0, 3.0]))
>>> hazards.survival(np.zeros(1), np.array([2.5])).round(3)  # exp(−1/4 − 1/3); Kaplan and Meier have 1/2
array([[0.558]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError

ALL = "all"
"""The hazards of all sites' rows together."""
INTERVALS, FEWEST = 20, 2
"""Of a site, at most; a site with fewer has none of its own."""
FINE = 1024
"""Places where intervals may end, up to a power of two: no end is the time of a row."""


@final
@dataclass(frozen=True, eq=False)
class Hazards:
    """Of one site, or of all."""

    ends: Array
    """Of intervals, ascending, (K,)."""
    model: Array
    """Cumulative hazards of f = 0 at the ends, (K,)."""
    null: Array
    """Cumulative hazards of rows of which nothing is known: minus the logarithm of Kaplan and Meier's survival."""

    @staticmethod
    def of(time: Array, event: Array, f: Array, ends: Array) -> Hazards:
        """From rows; `ends` are places of the grid."""
        places = grid(time)
        cell = np.searchsorted(places, time, "left")
        d, rows, w = (np.bincount(cell, mass, len(places)) for mass in (event.astype(np.float64), None, np.exp(f)))
        at_risk, weight = (sums[::-1].cumsum()[::-1] for sums in (rows, w))
        null = -np.log(np.maximum(1.0 - d / np.maximum(at_risk, 1.0), 1e-6))
        kept = np.searchsorted(places, ends, "left")
        return Hazards(ends, np.cumsum(d / np.maximum(weight, 1e-300))[kept], np.cumsum(null)[kept])

    def survival(self, f: Array, times: Array) -> Array:
        """The chance that each row has no event up to each time, (n, times)."""
        found: Array = np.exp(-np.exp(f)[:, None] * self._at(self.model, times))
        return found

    def without(self, times: Array) -> Array:
        """The same if nothing is known of a row, (times,)."""
        found: Array = np.exp(-self._at(self.null, times))
        return found

    def _at(self, hazard: Array, times: Array) -> Array:
        found: Array = np.append(0.0, hazard)[np.searchsorted(self.ends, times, "right")]
        return found


@final
@dataclass(frozen=True)
class Baseline:
    """Hazards of sites, by name, and of all."""

    of: Mapping[str, Hazards]

    @staticmethod
    def of_rows(time: Array, event: Array, f: Array, site: Array, names: Sequence[str], least: int) -> Baseline | None:
        """From training rows: intervals have at least `least` events; None if there are too few even of all sites."""
        found: dict[str, Hazards] = {}
        for name, some in [(ALL, np.ones(len(time), bool)), *((name, site == k) for k, name in enumerate(names))]:
            ends = intervals(time[some], event[some], least)
            if len(ends) >= FEWEST:
                found[name] = Hazards.of(time[some], event[some], f[some], ends)
        return Baseline(found) if ALL in found else None

    def at(self, site: str | None) -> Hazards:
        """Those of a site, or of all if it has none of its own."""
        return self.of[site] if site is not None and site in self.of else self.of[ALL]

    def known(self, site: str | None) -> Hazards:
        """The same for a site that a user names."""
        if site is not None and site not in self.of:
            raise SettingError("site", f"is {site!r}; there are hazards of {', '.join(self.of)}")
        return self.at(site)

    def to_json(self) -> dict[str, Any]:
        """As `baseline.json` has it."""
        return {
            name: {"ends": own.ends.tolist(), "model": own.model.tolist(), "null": own.null.tolist()}
            for name, own in self.of.items()
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Baseline:
        """The inverse of `to_json`."""
        try:
            found = {
                str(name): Hazards(*(np.asarray(own[word], np.float64) for word in ("ends", "model", "null")))
                for name, own in content.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FFGBError(f"it holds no hazards that ffgb wrote ({error})") from error
        for own in found.values():
            arrays = own.ends, own.model, own.null
            rising = (np.isfinite(a).all() and (np.diff(a) >= 0).all() for a in arrays)
            if own.ends.ndim != 1 or {a.shape for a in arrays} != {own.ends.shape} or not all(rising):
                raise FFGBError("its hazards are none")
        if ALL not in found:
            raise FFGBError("it has no hazards of all rows")
        return Baseline(found)


def grid(time: Array) -> Array:
    """Where cells of time end: at even places up to a power of two."""
    found: Array = np.linspace(0.0, 2.0 ** np.ceil(np.log2(time.max())), FINE + 1)[1:]
    return found


def intervals(time: Array, event: Array, least: int) -> Array:
    """Ends of at most 20 intervals with at least so many events each; the last ends where too few are left."""
    if not len(time) or not time.max() > 0:
        return np.zeros(0)
    places = grid(time)
    counts = np.bincount(np.searchsorted(places, time[event], "left"), minlength=FINE)
    most, ends, here = max(least, int(np.ceil(counts.sum() / INTERVALS))), list[float](), 0
    for end, events in zip(places, counts, strict=True):
        here += int(events)
        if here >= most:
            ends.append(float(end))
            here = 0
    return np.array(ends)
