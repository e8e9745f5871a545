"""Columns that name rows rather than describe them: numbers of patients, names, keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ffgb.core.types import Array

FEWEST = 50
"""Rows of all sites together below which nothing is said."""
MOST_CODES, OFTEN = 1000, 3
"""Different values of a target that may be codes, and rows of each."""


def distinct(values: Array) -> tuple[int, int]:
    """How many values a raw column has, and how many different ones; fractions are measurements, and count as none."""
    if values.dtype == object:
        there = [value for value in values.tolist() if value is not None]
        return len(there), len(set(there))
    numbers = values[~np.isnan(values)]
    whole = bool((numbers == np.round(numbers)).all())
    return len(numbers), len(np.unique(numbers)) if whole else 0


def identifiers(sites: Sequence[Mapping[str, Array]]) -> list[str]:
    """The columns in which no two rows of a site have the same value, by totals over the sites."""
    names = dict.fromkeys(name for site in sites for name in site)
    counts = {name: [distinct(site[name]) for site in sites if name in site] for name in names}
    totals = {name: (sum(n for n, _ in each), sum(k for _, k in each)) for name, each in counts.items()}
    return [name for name, (rows, different) in totals.items() if rows >= FEWEST and different == rows]


def looks_like_codes(targets: Sequence[Array], few: int) -> bool:
    """Whether more than a few whole numbers may be codes of classes: 0 or 1, and on without a gap, each often."""
    if any(y.ndim > 1 or y.dtype.kind not in "iuf" for y in targets):
        return False
    values, counts = np.unique(np.concatenate(targets), return_counts=True)
    if not few < len(values) <= MOST_CODES or (values != np.round(values)).any():
        return False
    without_gap = values[0] in (0, 1) and values[-1] - values[0] + 1 == len(values)
    return bool(without_gap and counts.min() >= max(OFTEN, 0.1 * np.median(counts)))
