"""Histograms with noise, made consistent, and the bins of columns that they suggest: computed from totals alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts are imported where they are first used: worker processes begin sooner

from ffgb.core.private_sums import FINEST
from ffgb.core.types import Array

HEAVY = 5.0
"""A cell with so many deviations of noise, and more rows than an equal bin, has a bin of its own."""
DEVIATIONS_A_BIN = 1.5
"""Deviations of noise that a bin has in rows, at least."""


def consistent(levels: Sequence[Array]) -> Array:
    """The finest counts, from noisy counts at nested levels of equal noise: least squares (Hay et al., 2010)."""
    best, variance = list(levels), [1.0] * len(levels)
    for i in range(len(levels) - 2, -1, -1):
        parts = len(levels[i + 1]) // len(levels[i])
        below, theirs = best[i + 1].reshape(-1, parts).sum(axis=1), variance[i + 1] * parts
        best[i] = (levels[i] + below / theirs) / (1.0 + 1.0 / theirs)
        variance[i] = 1.0 / (1.0 + 1.0 / theirs)
    whole = best[0]
    for finer in best[1:]:
        parts = len(finer) // len(whole)
        missing = (whole - finer.reshape(-1, parts).sum(axis=1)) / parts
        whole = (finer.reshape(-1, parts) + missing[:, None]).ravel()
    return whole


def chosen_cuts(counts: Array, bins: int, deviation: float, rows: float) -> Array:
    """Before which finest cells to cut: about equal bins, heavy cells each in its own."""
    heavy = counts > max(rows / bins, HEAVY * deviation)
    light = scipy.optimize.isotonic_regression(np.cumsum(np.where(heavy, 0.0, counts))).x
    rest = max(float(light[-1]), 1.0)
    least = max(rest / max(bins - int(heavy.sum()), 2), DEVIATIONS_A_BIN * deviation)
    ends = np.flatnonzero(heavy)
    cuts, level = {*ends.tolist(), *(ends + 1).tolist()}, least
    for i, below in enumerate(light.tolist()):
        if below >= level:
            cuts.add(i + 1)
            level = below + least
    found = np.array(sorted(c for c in cuts if 0 < c < FINEST), np.int64)
    return found if len(found) >= 3 else equal_cuts(8)


def equal_cuts(bins: int) -> Array:
    """Cuts between bins of equal widths."""
    return np.arange(1, bins) * FINEST // bins


def groups_of(counts: Array, most: int, order: Array | None = None) -> Array:
    """Cells in so many groups of about equal numbers of rows, in this order: the group of each cell."""
    places = np.arange(len(counts)) if order is None else order
    there = np.maximum(counts[places], 1e-9)
    middle = (np.cumsum(there) - there / 2) / there.sum()
    _, group = np.unique(np.minimum((middle * most).astype(int), most - 1), return_inverse=True)
    found = np.empty(len(counts), np.int64)
    found[places] = group
    return found
