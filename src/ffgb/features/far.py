"""Absurdly large values in a few cells of a table: found by counts, and clipped.

They would make up all of a column's variance, and all its first thresholds would lie among them.  Clients are asked how
many values have each order of magnitude, in the columns with very large ones only.
"""

from __future__ import annotations

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.moments import MagnitudeOf
from ffgb.core.questions import Ask
from ffgb.core.types import Array
from ffgb.features.basic import Clip, Flatten
from ffgb.features.bins import KeyCounts, keys

VERY_LARGE = 2.0**32
FEW_ROWS = 0.01
"""Of a column's rows: more are no slips."""
ABSURD_RATIO = 2.0**16
"""So many times as large as nearly all others, a value is absurd."""
ROOM = 4.0
"""Values are clipped at so many times the size of nearly all others."""


def without_far_values(ask: Ask, inputs: int) -> tuple[FeatureMap, Array]:
    """The inputs, with absurd values of a few rows clipped; and a bound on the size of each column."""
    flat = Flatten(inputs)
    largest = ask(MagnitudeOf(flat, np.zeros(inputs)))
    column = np.flatnonzero(largest > VERY_LARGE).astype(np.int32)
    if not len(column):
        return flat, largest
    sizes = np.ldexp(1.0, np.arange(-60, 127)).astype(np.float32)
    places = keys(sizes)
    edges = np.concatenate([-places[::-1] - 1, places]).astype(np.int32)
    counts = ask(KeyCounts(column, np.full(len(column), -1, np.int32), np.tile(edges, (len(column), 1))))
    below = np.cumsum(counts[:, :-1], axis=1)
    within = below[:, len(sizes) : 2 * len(sizes)] - below[:, len(sizes) - 1 :: -1]
    high, all_rows = np.full(inputs, np.inf), below[0, -1]
    for j, rows in zip(column, within, strict=True):
        usual = float(sizes[np.argmax(rows >= (1.0 - FEW_ROWS) * all_rows)])
        beyond = all_rows - rows[np.searchsorted(sizes, min(usual * ABSURD_RATIO, float(sizes[-1])))]
        if beyond > 0:
            high[j] = ROOM * usual
    return Clip(flat, -high.astype(np.float32), high.astype(np.float32)), largest
