"""Quantiles of the targets of all clients, from counts.

Clients are asked which share of their rows lies below each of some edges, a few times, and the edges are narrowed to
where the quantile is.  Only totals over clients are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

EDGES, REFINEMENTS, FARTHEST = 64, 5, 1e4
"""Edges that are asked about at a time, how often, and how far out at first, in deviations."""

MOST_REFINEMENTS, CLOSE = 12, 1e-3
"""How often edges of a median are narrowed at most, and what is small enough: a share of the rows, or of a distance."""
DEVIATION = 1.4826
"""The standard deviation of a normal variable, in median distances from its median."""


@final
@dataclass(frozen=True, eq=False)
class BelowEdges(Question):
    """The share of all rows whose targets are at most each edge."""

    what: ClassVar[str] = "quantiles of the targets"
    edges: Array
    """(targets, edges), ascending."""
    centre: Array | None = None
    """If given, distances from it are asked about in place of targets: (targets,)."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"below": Sum(self.edges.shape, 1.0)}

    def part(self, here: Here) -> Tensors:
        y = here.points.y.reshape(len(here.points), -1)
        if self.centre is not None:
            y = np.abs(y - self.centre)
        weights = np.ones(len(y)) if here.points.weights is None else here.points.weights
        below = []
        for values, edges in zip(y.T, self.edges, strict=True):
            order = np.argsort(values, kind="stable")
            up_to = np.append(0.0, np.cumsum(weights[order]))
            below.append(here.share * up_to[np.searchsorted(values[order], edges, side="right")])
        return {"below": np.array(below)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["below"] < 0).any() or (np.diff(own["below"], axis=1) < -1e-9).any() or (own["below"] > 1 + 1e-9).any():
            raise FFGBError("its shares of rows below some edges are none")

    def total(self, sums: Tensors) -> Array:
        return sums["below"]


def quantile_of_targets(ask: Ask, level: float, mean: Array, scale: Array) -> Array:
    """The quantile of each target: of all clients' rows together."""
    edges = mean[:, None] + scale[:, None] * FARTHEST * np.sinh(np.linspace(-10.0, 10.0, EDGES)) / np.sinh(10.0)
    for _ in range(REFINEMENTS):
        below = ask(BelowEdges(edges))
        above = np.clip((below < level).sum(axis=1), 1, EDGES - 1)  # the first edge that is not below the level
        rows = np.arange(len(edges))
        low, high = edges[rows, above - 1], edges[rows, above]
        edges = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, EDGES)
    middle: Array = 0.5 * (low + high)
    return middle


def robust_scaling(ask: Ask, mean: Array, scale: Array) -> tuple[Array, Array]:
    """The median of each target, and 1.4826 times the median distance from it: of a normal, the standard deviation.

    A few rows that are far away move neither.  A target that is the same in half of the rows keeps its scale.
    """
    steps = np.sinh(np.linspace(-40.0, 40.0, EDGES)) / math.sinh(40.0)  # close together in the middle
    low, high = _narrowed(ask, mean[:, None] + FARTHEST * scale[:, None] * steps, None)
    centre = 0.5 * (low + high)
    most = np.maximum(FARTHEST * scale, np.abs(centre - mean))
    steps = np.sinh(np.linspace(0.0, 40.0, EDGES)) / math.sinh(40.0)
    distance = np.mean(_narrowed(ask, most[:, None] * steps, centre), axis=0)
    return centre, np.where(distance > high - low, DEVIATION * distance, scale)


def _narrowed(ask: Ask, edges: Array, centre: Array | None) -> tuple[Array, Array]:
    """Between which edges the medians of targets, or of their distances from a centre, are: these are moved there."""
    for _ in range(MOST_REFINEMENTS):
        below = ask(BelowEdges(edges, centre))
        above = np.clip((below < 0.5).sum(axis=1), 1, EDGES - 1)
        rows = np.arange(len(edges))
        low, high = edges[rows, above - 1], edges[rows, above]
        high = np.where(below[:, 0] < 0.5, high, low)  # half of the rows are at the first edge
        exact = below[rows, above] - below[rows, above - 1] <= CLOSE
        if centre is not None:
            exact |= high - low <= CLOSE * high
        if exact.all():
            break
        edges = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, EDGES)
    return low, high
