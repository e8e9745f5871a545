"""Quantiles of the targets of all clients, from counts.

Clients are asked which share of their rows lies below each of some edges, a few times, and the edges are narrowed to
where the quantile is.  Only totals over clients are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

EDGES, REFINEMENTS, FARTHEST = 64, 5, 1e4
"""Edges that are asked about at a time, how often, and how far out at first, in deviations."""


@final
@dataclass(frozen=True, eq=False)
class BelowEdges(Question):
    """The share of all rows whose targets are at most each edge."""

    what: ClassVar[str] = "quantiles of the targets"
    edges: Array
    """(targets, edges), ascending."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"below": Sum(self.edges.shape, 1.0)}

    def part(self, here: Here) -> Tensors:
        y = here.points.y.reshape(len(here.points), -1)
        below = [here.mean((y[:, j, None] <= edges).astype(np.float64)) for j, edges in enumerate(self.edges)]
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
