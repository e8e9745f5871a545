"""Numbers that no honest site would send: those absurdly far from what all other sites say.

Sites differ, and a site that differs is not a liar.  The limits here are therefore wide: honest splits that keep every
class, region or hospital apart stay below a tenth of them.  Fewer than three clients are not compared at all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from ffgb.core.types import Array

FEWEST = 3
"""Clients that can be compared: of two no one knows which is strange."""

SIGMA = 1.4826
"""A normal distribution's standard deviation, in median absolute deviations."""

LARGEST_SIZE_RATIO, SMALL_SIZE, SIZE_DEVIATIONS = 1e4, 100, 6.0
"""A site may have so many times the rows of the median site (of at least so many rows), and more than that if sizes
differ by orders of magnitude anyway: so many robust deviations of their logarithms."""

FARTHEST_COLUMN, FARTHEST_TYPICAL = 1e4, 100.0
"""How far a client's points may be from the median client's, in spreads of a column: in any column, and in half of all
columns.  Honest splits of this repository: 200 and 2.2."""

MANY_COLUMNS = 10
"""Half of fewer columns may well be heavy-tailed."""

FARTHEST_FEATURES, FARTHEST_TYPICAL_FEATURE = 1e3, 20.0
"""The same for features of one scale: all of them together, and half of them.  Honest splits: 5 and 1.8."""

LARGEST_INFLUENCE = 1e3
"""Of a client's share of a mean, in medians of what clients say."""


def strange_sizes(rows: Mapping[str, int]) -> dict[str, str]:
    """The sites that announce absurdly more rows than the others, and why each is refused.

    >>> strange_sizes({"a": 300, "b": 120, "c": 100_000_000})
    {'c': 'it announces 100000000 rows, and the median site has 300: more than 10000 times as many'}
    """
    if len(rows) < FEWEST:
        return {}
    median = statistics.median_low(rows.values())
    logs = [math.log(max(n, 1)) for n in rows.values()]
    deviation = SIGMA * float(np.median(np.abs(np.subtract(logs, np.median(logs)))))
    ratio = math.exp(min(max(math.log(LARGEST_SIZE_RATIO), SIZE_DEVIATIONS * deviation), 700.0))
    return {
        name: f"it announces {n} rows, and the median site has {median}: more than {ratio:.0f} times as many"
        for name, n in rows.items()
        if n > ratio * max(median, SMALL_SIZE)
    }


def far_apart(mean: Array, variance: Array, *, alike: bool) -> dict[int, str]:
    """The clients whose points are absurdly far from the others', by the mean and variance of each column at each.

    A column's spread is that of the clients' means or that of a median client's points, whichever is larger.  Columns
    that are constant at most clients have none, and only count among all columns together.  `alike`: columns have one
    scale, as features of one map do; otherwise each has a unit of its own.
    """
    if len(mean) < FEWEST:
        return {}
    with np.errstate(all="ignore"):
        centre, deviation = np.median(mean, axis=0), np.sqrt(variance)
        spread = np.maximum(SIGMA * np.median(np.abs(mean - centre), axis=0), np.median(deviation, axis=0))
        distance = np.hypot(mean - centre, deviation)  # the root mean square, over a client's points
        known = spread > 1e-6 * np.abs(centre)
        columns = distance[:, known] / spread[known]
        # of the largest, so that squares are finite
        scale = np.maximum(distance.max(axis=1, initial=0.0), 1e-300)
        whole = scale * np.sqrt(np.square(distance / scale[:, None]).sum(axis=1))
        whole = whole / np.median(whole) if np.median(whole) > 0 else np.zeros(len(whole))
    typical = np.median(columns, axis=1) if known.sum() >= MANY_COLUMNS else np.zeros(len(mean))
    worst = columns.max(axis=1, initial=0.0)
    found = {}
    for i in range(len(mean)):
        if typical[i] > (FARTHEST_TYPICAL_FEATURE if alike else FARTHEST_TYPICAL):
            found[i] = f"in half of its columns its values are {typical[i]:.3g} spreads from the other clients'"
        elif not alike and worst[i] > FARTHEST_COLUMN:
            column = int(np.flatnonzero(known)[np.argmax(columns[i])])
            found[i] = f"in column {column} its values are {worst[i]:.3g} spreads from the other clients'"
        elif whole[i] > (FARTHEST_FEATURES if alike else FARTHEST_COLUMN):
            found[i] = f"its values are {whole[i]:.3g} times as far from the others' as the median client's"
    return found


def too_large(values: Sequence[float], shares: Sequence[float], floor: float) -> list[int]:
    """Which of these non-negative numbers, times their shares of a mean, are absurdly larger than the median one.

    Numbers up to the floor are nothing strange, however small the others are.
    """
    if len(values) < FEWEST:
        return []
    limit = LARGEST_INFLUENCE * max(float(np.median(values)), floor)
    return [k for k, (value, share) in enumerate(zip(values, shares, strict=True)) if value * share > limit > 0.0]
