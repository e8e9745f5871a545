"""Quantiles of errors, from counts of rows by fine cells of the error: no end of one has few rows beyond it."""

from __future__ import annotations

import numpy as np

from ffgb.core.held_out_sums import ERRORS
from ffgb.core.types import Array

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def counted_errors(error: Array) -> Array:
    """Rows in each fine cell of the error, predicted − observed in training units."""
    return np.bincount(np.searchsorted(ERRORS, error, "right"), minlength=len(ERRORS) + 1).astype(np.float64)


def residual_quantiles(counts: Array, scale: float, least: int) -> list[dict[str, float]]:
    """Values that so many errors (predicted − observed) stay below, in the target's own units.

    Each has at least so many rows below it and above it.  It is the end of a fine cell, 2 % off at most.

    >>> [q["level"] for q in residual_quantiles(counted_errors(np.linspace(-1, 1, 101)), 1.0, least=10)]
    [0.25, 0.5, 0.75]
    """
    rows, below = counts.sum(), np.cumsum(counts)[:-1]
    found = []
    for level in LEVELS:
        if min(level, 1.0 - level) * rows >= least:
            # of the ends of cells, the one below which the share of rows is closest to the level
            at = int(np.abs(below - level * rows).argmin())
            if min(below[at], rows - below[at]) >= least:
                found.append({"level": level, "value": float(ERRORS[at] * scale)})
    return found
