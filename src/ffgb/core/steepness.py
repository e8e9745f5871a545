"""How steep labels are, over all clients: what the constant L of FFGB.L is chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.lipschitz import SUBSET, left_out_errors, steepness
from ffgb.core.maps import FeatureMap
from ffgb.core.moments import MagnitudeOf
from ffgb.core.questions import ROUNDING, Ask, Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

STEEPNESSES = tuple(float(2.0**j) for j in range(-6, 11))
"""Lipschitz constants that clients try, for standardised labels and inputs."""


@final
@dataclass(frozen=True)
class Steepness:
    """What all clients say of their labels' slopes, in the units that training uses."""

    constants: tuple[float, ...]
    steeper: tuple[int, ...]
    """Pairs of one client's points that are steeper than each constant."""
    steepest: float
    conflicts: int
    """Pairs of equal points with different labels."""
    best: float
    """The constant that predicts a label best from the client's other labels."""
    largest: float
    """The largest |label|, in the labels' own units."""

    def steeper_than(self, L: float) -> int:
        return self.steeper[self.constants.index(L)]


@final
@dataclass(frozen=True, eq=False)
class SteepnessOf(Question):
    """How steep the labels are: what L is found by.  Counts, errors and two maxima; no label and no point."""

    what: ClassVar[str] = "slopes of the labels"
    metric: FeatureMap
    mean: Array
    scale: Array
    largest: float
    """No label is larger, in its own units."""
    constants: tuple[float, ...] = STEEPNESSES

    @property
    def _apart(self) -> float:
        """A label is predicted by a number between the smallest and the largest of the others: the largest error."""
        return float(np.square(2.0 * (self.largest + np.abs(self.mean)) / self.scale).sum())

    @property
    def sums(self) -> Mapping[str, Sum]:
        several = (len(self.constants),)
        return {
            "steeper": Sum(several, 2.0**62, 64, "count"),
            "conflicts": Sum((1,), 2.0**62, 64, "count"),
            "errors": Sum(several, self._apart * 2.0),
            "extremes": Sum((2,), 1e300, kind="largest"),
        }

    def part(self, here: Here) -> Tensors:
        points = here.points
        s = points.features(self.metric).astype(np.float64)
        labels = (points.y.reshape(len(points), -1) - self.mean) / self.scale
        counts, steepest, conflicts = steepness(s, labels, self.constants)
        some = slice(None, None, -(-len(s) // SUBSET))
        errors = left_out_errors(s[some], labels[some], self.constants) if len(s) > 1 else np.zeros(len(self.constants))
        all_rows = here.share * points.weight / len(s[some])  # the mean over those looked at stands for all
        return {
            "steeper": counts.astype(np.float64),
            "conflicts": np.array([float(conflicts)]),
            "errors": all_rows * errors,
            "extremes": np.array([steepest, float(np.abs(points.y).max())]),
        }

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        counts, conflicts = own["steeper"], float(own["conflicts"][0])
        if any((array < 0).any() for array in own.values()) or (np.diff(counts) > 0).any():
            raise FFGBError("it counts pairs and adds up errors, and these are no such numbers")
        if max(counts.max(initial=0.0), conflicts) > rows * (rows - 1) / 2:
            raise FFGBError(f"it counts more pairs than {rows} points make")
        if own["errors"].max(initial=0.0) > self._apart * (1.0 + ROUNDING):
            raise FFGBError("its errors are larger than its labels")
        if own["extremes"][1] > self.largest * (1.0 + ROUNDING):
            raise FFGBError("its labels are larger than it said before")

    def spread(self, own: Tensors) -> tuple[Array, Array]:
        largest = own["extremes"][1:]
        return np.zeros_like(largest), np.square(largest)

    def total(self, sums: Tensors) -> Steepness:
        best = self.constants[int(np.argmin(sums["errors"]))]
        counts = tuple(int(count) for count in sums["steeper"])
        steepest, largest = map(float, sums["extremes"])
        return Steepness(self.constants, counts, steepest, int(sums["conflicts"][0]), best, largest)


def steepness_of(
    ask: Ask, metric: FeatureMap, mean: Array, scale: Array, constants: tuple[float, ...] = STEEPNESSES
) -> Steepness:
    """How steep all clients' labels are, (y − mean)/scale."""
    largest = float(ask(MagnitudeOf(None, np.zeros(len(mean)))).max())
    found: Steepness = ask(SteepnessOf(metric, mean, scale, largest, constants))
    return found
