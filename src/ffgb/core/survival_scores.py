"""How good predictions of times until an event are: order, Brier scores, and calibration at a time.

What is censored is made up for by weights: a row that is observed counts for one over the chance that it is (Graf and
others 1999).  Censoring is estimated by Kaplan and Meier's way, from the rows that are scored.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from ffgb.core.concordance import c_index, pairs_of_rows
from ffgb.core.estimates import Estimate, Sampled
from ffgb.core.types import Array

EVEN = Estimate(0.5)


def c_index_of(time: Array, event: Array, f: Array, rows: Sampled) -> Estimate:
    """The share of pairs of rows of one site in the right order, with an interval from each row's influence."""
    right, pairs = np.zeros(len(time)), np.zeros(len(time))
    for site in np.unique(rows.site):
        some = rows.site == site
        right[some], pairs[some] = pairs_of_rows(time[some], event[some], f[some])
    value = c_index((right.sum(), 0.0, pairs.sum()))
    if value is None:
        return EVEN
    # each pair has two rows: the derivative in a row's weight is that of all its pairs
    return rows.within(value, rows.error((right - value * pairs) / (pairs.sum() / 2.0)))


def survived(time: Array, event: Array, at: Array) -> Array:
    """Kaplan and Meier's survival at some times, (times,).

    >>> survived(np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, False, True, True]), np.array([0.5, 1.0, 2.0]))
    array([1.  , 0.75, 0.5 ])
    """
    different, place = np.unique(time, return_inverse=True)
    events, rows = (np.bincount(place, mass, len(different)) for mass in (event.astype(np.float64), None))
    at_risk = rows[::-1].cumsum()[::-1]
    curve = np.append(1.0, np.cumprod(1.0 - events / at_risk))
    found: Array = curve[np.searchsorted(different, at, "right")]
    return found


def observed(time: Array, event: Array, at: float, level: float) -> Estimate:
    """The share of rows that had an event by a time, with Greenwood's variance on the scale of log(−log)."""
    s = float(survived(time, event, np.array([at]))[0])
    different, place = np.unique(time, return_inverse=True)
    d, rows = (np.bincount(place, mass, len(different)) for mass in (event.astype(np.float64), None))
    n = rows[::-1].cumsum()[::-1]
    some = different <= at
    if not 0.0 < s < 1.0:
        return Estimate(1.0 - s)
    variance = float(np.sum(d[some] / (n[some] * np.maximum(n[some] - d[some], 1e-12))))
    half = float(ndtri(0.5 + level / 2)) * np.sqrt(variance) / abs(np.log(s))
    return Estimate(1.0 - s, float(1.0 - s ** np.exp(-half)), float(1.0 - s ** np.exp(half)))


def observation(time: Array, event: Array, at: Array) -> tuple[Array, Array]:
    """The chance of being observed until just before each row's own time, (n,), and beyond some times, (times,).

    At one time, events come before the ends of observation.
    """
    different, place = np.unique(time, return_inverse=True)
    events, rows = (np.bincount(place, mass, len(different)) for mass in (event.astype(np.float64), None))
    at_risk = rows[::-1].cumsum()[::-1] - events
    ended = rows - events
    curve = np.append(1.0, np.cumprod(1.0 - np.divide(ended, at_risk, out=np.zeros(len(rows)), where=at_risk > 0)))
    return curve[place], curve[np.searchsorted(different, at, "right")]


def brier(time: Array, event: Array, survival: Array, at: Array) -> Array:
    """What each row adds to the mean squared error of the chance to survive until some times, (n, times)."""
    own, until = observation(time, event, at)
    died, lives = (time[:, None] <= at) & event[:, None], time[:, None] > at
    own, until = np.maximum(own, 1e-9)[:, None], np.maximum(until, 1e-9)
    found: Array = died * np.square(survival) / own + lives * np.square(1.0 - survival) / until
    return found


def integrated(values: Array, at: Array) -> Array:
    """The mean over the range of times, by trapezia: (n,) from (n, times)."""
    found: Array = np.trapezoid(values, at, axis=1) / (at[-1] - at[0])
    return found
