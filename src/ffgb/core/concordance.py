"""Do risks order times until an event?  Pairs of rows in the right order, counted without looking at each pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffgb.core.types import Array


def concordance(time: Array, event: Array, risk: Array) -> tuple[int, int, int]:
    """Pairs of rows that are in the right order, that have the same risk, and that can be compared.

    A pair can be compared if one has an event before the time of the other, or at a time at which the other had none.
    It is in the right order if the one with the event has the higher risk.

    >>> concordance(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), np.array([2.0, 3.0, 1.0]))
    (2, 0, 3)
    """
    order = np.lexsort((event.astype(bool), -time))  # the last first; at one time, rows without an event first
    time, event = time[order], event[order].astype(bool)
    rank = np.unique(risk, return_inverse=True)[1].reshape(-1)[order]
    asking = np.flatnonzero(event)
    # rows that were observed longer, or as long and without an event
    longer = np.searchsorted(-time, -time, "left")
    longer += np.bincount(longer[~event], minlength=len(time) + 1)[longer]
    before = longer[asking]
    below, upto = (_lower(rank, before, rank[asking] + more) for more in (0, 1))
    return int(below.sum()), int((upto - below).sum()), int(before.sum())


def _lower(rank: Array, before: Array, limits: Array) -> Array:
    """Of the first `before` ranks, how many are below each limit: blocks of 1, 2, 4 … ranks at a time."""
    found = np.zeros(len(before), np.int64)
    wide = int(max(rank.max(initial=0), limits.max(initial=0))) + 2
    for level in range(int(before.max(initial=0)).bit_length()):
        keys = np.sort((np.arange(len(rank)) >> level) * wide + rank)
        some = np.flatnonzero(before >> level & 1)
        block = (before[some] >> level) - 1
        found[some] += np.searchsorted(keys, block * wide + limits[some], "left") - (block << level)
    return found


def pairs_of_rows(time: Array, event: Array, risk: Array) -> tuple[Array, Array]:
    """Of each row: its pairs in the right order, those of the same risk by half, and its pairs that can be compared.

    Each pair is one of both of its rows.

    >>> pairs_of_rows(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), np.array([2.0, 3.0, 1.0]))
    (array([1., 1., 2.]), array([2., 2., 2.]))
    """
    event = event.astype(bool)
    rank = np.unique(risk, return_inverse=True)[1].reshape(-1)
    right, pairs = np.zeros(len(time)), np.zeros(len(time))
    last = np.lexsort((event, -time))  # as in `concordance`
    longer = np.searchsorted(-time[last], -time, "left")
    longer += np.bincount(longer[~event], minlength=len(time) + 1)[longer]
    first = np.argsort(time[event], kind="stable")
    earlier = np.searchsorted(time[event][first], time, "left")
    with_ends = np.searchsorted(time[event][first], time, "right")
    for ranks, before, some, above in (
        (rank[last], longer, event, False),
        (rank[event][first], np.where(event, earlier, with_ends), np.ones(len(time), bool), True),
    ):
        below, upto = (_lower(ranks, before[some], rank[some] + more) for more in (0, 1))
        found = before[some] - upto if above else below
        right[some] += found + (upto - below) / 2.0
        pairs[some] += before[some]
    return right, pairs


def c_index(pairs: Sequence[float]) -> float | None:
    """The share of comparable pairs in the right order, pairs of the same risk by half; None without such pairs."""
    right, same, total = pairs
    return float((right + 0.5 * same) / total) if total else None
