"""Rows by cells of their predicted probability: the totals that curves of fit are drawn from.

Cells lie between fixed log odds, so counts of sites add up.  Neighbouring cells are merged until each has enough rows
of both kinds (core/disclosure.py): calibration is judged by these.  Within such a cell, rows of each kind are counted
in cells of their own, with enough rows of that kind.  Between the ends of these, curves are interpolated.

>>> p, y = np.array([0.1, 0.2, 0.7, 0.9, 0.3, 0.6]), np.array([0, 0, 1, 1, 1, 0])
>>> cells = ProbabilityCells.of(p, y, least=1)
>>> cells.rows.tolist(), [len(own.rows) for own in cells.kinds]
([[2.0, 1.0], [1.0, 2.0]], [3, 3])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy.special import expit

from ffgb.core.disclosure import ordered_cells
from ffgb.core.estimates import LEVEL, Sampled, wilson
from ffgb.core.types import Array

GRID = expit(np.arange(-80, 81) / 8)
"""Where cells may end: log odds from −10 to 10."""
BINS = 10
"""Of calibration, at most."""
FARTHEST = 0.95
"""Thresholds of a decision curve end here: beyond, a false positive weighs as much as twenty hits."""


@final
@dataclass(frozen=True, eq=False)
class OfKind:
    """Counts of rows of one kind."""

    edges: Array
    """Between cells, ascending, (cells − 1,)."""
    rows: Array
    """(cells,)."""
    mass: Array
    """What they weigh, (cells,)."""

    def cell_of(self, p: Array) -> Array:
        """The cell of each probability."""
        return np.searchsorted(self.edges, p, side="right")

    def above(self, thresholds: Array) -> Array:
        """The share of the weight at or above each threshold, interpolated between the ends of cells."""
        shares = np.concatenate([[1.0], 1.0 - np.cumsum(self.mass) / self.mass.sum()])
        found: Array = np.interp(thresholds, np.concatenate([[0.0], self.edges, [1.0]]), np.maximum(shares, 0.0))
        return found

    def to_json(self) -> dict[str, Any]:
        return {"edges": self.edges.tolist(), "rows": self.rows.astype(int).tolist()}


@final
@dataclass(frozen=True, eq=False)
class ProbabilityCells:
    """Counts of rows of two kinds, 0 and 1, by predicted probability of 1."""

    edges: Array
    """Between cells with enough rows of both kinds, ascending, (cells − 1,)."""
    rows: Array
    """(cells, 2)."""
    mass: Array
    """What they weigh, (cells, 2)."""
    expected: Array
    """Σ weight · p of each cell, (cells,)."""
    kinds: tuple[OfKind, OfKind]
    """Rows of each kind in finer cells."""

    @staticmethod
    def of(
        p: Array,
        y: Array,
        weights: Array | None = None,
        *,
        least: int,
        threshold: float = 0.5,
        most: int | None = None,
    ) -> ProbabilityCells:
        """Count rows, and merge cells.

        Parameters
        ----------
        p, y
            Probability of 1, and 0 or 1, (n,).
        weights
            What rows weigh, (n,).
        least
            Rows of each kind in a cell.
        threshold
            A probability that is to lie between two cells.
        most
            Cells of a kind, at most.
        """
        mass = np.ones(len(p)) if weights is None else weights
        grid = np.unique(np.append(GRID, threshold))
        cell = np.searchsorted(grid, p, side="right")
        counts, weighed = np.zeros((len(grid) + 1, 2)), np.zeros((len(grid) + 1, 2))
        np.add.at(counts, (cell, y), 1)
        np.add.at(weighed, (cell, y), mass)
        sums = np.bincount(cell, mass * p, len(grid) + 1)
        return ProbabilityCells.of_counts(grid, counts, weighed, sums, least=least, threshold=threshold, most=most)

    @staticmethod
    def of_counts(
        grid: Array,
        counts: Array,
        weighed: Array,
        sums: Array,
        *,
        least: int,
        threshold: float = 0.5,
        most: int | None = None,
    ) -> ProbabilityCells:
        """Merge cells whose rows were counted: of each kind, (cells, 2), what they weigh, and Σ weight · p, (cells,).

        Cells end at the grid, (cells − 1,).
        """
        apart = int(np.searchsorted(grid, threshold)) + 1
        wanted = least
        while True:
            starts = ordered_cells(counts, wanted, apart)
            finer = [_within(counts[:, k], starts, wanted) for k in (0, 1)]
            if most is None or max(map(len, finer)) <= most:
                break
            wanted = math.ceil(wanted * 1.25)
        kinds = [
            OfKind(grid[np.array(own[1:], int) - 1], *(np.add.reduceat(c[:, k], own) for c in (counts, weighed)))
            for k, own in enumerate(finer)
        ]
        rows, weights_of, expected = (np.add.reduceat(totals, starts, axis=0) for totals in (counts, weighed, sums))
        edges = grid[np.array(starts[1:], int) - 1]
        return ProbabilityCells(edges, rows, weights_of, expected, (kinds[0], kinds[1]))

    def holds(self, least: int) -> bool:
        """Whether there are enough rows of both kinds at all."""
        return bool((self.rows >= least).all())

    @cached_property
    def thresholds(self) -> Array:
        """Where cells of either kind end, the highest first; then 0."""
        return np.append(np.union1d(*(own.edges for own in self.kinds))[::-1], 0.0)

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """Of each kind, the share at or above each threshold."""
        found = [own.above(self.thresholds) for own in self.kinds]
        return found[0], found[1]

    @property
    def base_rate(self) -> float:
        return float(self.mass[:, 1].sum() / self.mass.sum())

    def roc(self) -> dict[str, Any]:
        """True positives of all positives, by false positives of all negatives."""
        false, true = self.shares
        return {
            "threshold": [None, *self.thresholds.tolist()],
            "false_positive_rate": [0.0, *false.tolist()],
            "true_positive_rate": [0.0, *true.tolist()],
        }

    def precision_recall(self) -> dict[str, Any]:
        """True positives of all that is called positive, by true positives of all positives."""
        (false, true), base = self.shares, self.base_rate
        called = base * true + (1.0 - base) * false
        some = called > 0
        return {
            "threshold": self.thresholds[some].tolist(),
            "recall": true[some].tolist(),
            "precision": (base * true[some] / called[some]).tolist(),
        }

    def calibration(self, level: float = LEVEL) -> list[dict[str, Any]]:
        """What was predicted and what came, in at most ten groups of cells with about as many rows each."""
        sizes, z = self.rows.sum(axis=1), Sampled.of(0, level=level).z
        group = np.minimum((np.cumsum(sizes) - sizes / 2) / sizes.sum() * BINS, BINS - 1).astype(int)
        found = []
        for g in np.unique(group):
            inside = group == g
            mass, rows = self.mass[inside].sum(axis=0), float(sizes[inside].sum())
            observed = wilson(float(mass[1] / mass.sum()), rows, z)
            predicted = float(self.expected[inside].sum() / mass.sum())
            found.append({"rows": int(rows), "predicted": predicted, "observed": observed.to_json()})
        return found

    def decision_curve(self) -> dict[str, Any]:
        """The net benefit of acting on a prediction above a threshold, beside acting on all rows and on none.

        Acting on a row with probability t is worth nothing: a false positive costs t/(1 − t) of what a hit gains.
        """
        highest = min(float(own.edges.max(initial=0.0)) for own in self.kinds)  # beyond, one kind is not counted apart
        base, some = self.base_rate, (self.thresholds > 0) & (self.thresholds <= min(highest, FARTHEST))
        t = self.thresholds[some][::-1]
        cost = (1.0 - base) * t / (1.0 - t)
        false, true = (share[some][::-1] for share in self.shares)
        return {
            "threshold": t.tolist(),
            "model": (base * true - cost * false).tolist(),
            "all": (base - cost).tolist(),
        }

    @property
    def best_threshold(self) -> float | None:
        """Where the sum of both rates is largest (Youden); it was found on the rows that it is judged by."""
        false, true = self.shares
        return float(self.thresholds[int((true - false)[:-1].argmax())]) if len(self.thresholds) > 1 else None

    def to_json(self, level: float = LEVEL) -> dict[str, Any]:
        """The counts, and every curve."""
        ends = [0.0, *self.edges.tolist(), 1.0]
        cells = [
            {"from": a, "to": b, "rows": rows.astype(int).tolist(), "predicted": float(expected / mass.sum())}
            for a, b, rows, mass, expected in zip(ends[:-1], ends[1:], self.rows, self.mass, self.expected, strict=True)
        ]
        return {
            "cells": cells,
            "negatives": self.kinds[0].to_json(),
            "positives": self.kinds[1].to_json(),
            "roc": self.roc(),
            "precision_recall": self.precision_recall(),
            "calibration": self.calibration(level),
            "decision_curve": self.decision_curve(),
            "best_threshold": self.best_threshold,
        }


def _within(counts: Array, starts: Sequence[int], least: int) -> list[int]:
    """Where cells of one kind begin: those that begin there anyway, and more in between."""
    ends = [*starts[1:], len(counts)]
    return [a + start for a, b in zip(starts, ends, strict=True) for start in ordered_cells(counts[a:b, None], least)]
