"""What clients weigh in a mean: the same, or by their rows, and no client more than it may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class Weighting:
    """By what a client finds its share of a mean, from what it knows of itself."""

    total: float
    """The weights of all clients together."""
    by_size: bool = True
    """A client weighs as much as its rows do; otherwise 1."""
    level: float = math.inf
    """No client weighs more."""

    def __post_init__(self) -> None:
        if not (0.0 < self.total < math.inf and self.level > 0.0):
            raise FFGBError(f"clients cannot weigh {self.total:g} together, and at most {self.level:g} each")

    @staticmethod
    def of(sizes: Sequence[float], *, by_size: bool = True, largest_share: float | None = None) -> Weighting:
        """For clients whose rows weigh so much, none of which is to weigh more than this share of the total."""
        weights = list(sizes) if by_size else [1.0] * len(sizes)
        level = math.inf if largest_share is None else cap(weights, largest_share)
        return Weighting(math.fsum(min(weight, level) for weight in weights), by_size, level)

    def weight(self, size: float) -> float:
        """Of a client whose rows weigh so much."""
        return min(size if self.by_size else 1.0, self.level)

    def part(self, size: float) -> float:
        """Its share of the mean."""
        return self.weight(size) / self.total

    def share(self, size: float) -> float:
        """What one of its rows of weight 1 counts for."""
        return self.part(size) / size


def cap(weights: Sequence[float], share: float) -> float:
    """The level to which weights must be lowered so that none is more than this share of their sum.

    If there are too few for such a share, all are lowered to the least.

    >>> cap([1.0, 1.0, 8.0], 0.5)
    2.0
    """
    if share * len(weights) <= 1.0:
        return min(weights)
    rest, level = math.fsum(weights), math.inf
    for k, weight in enumerate(sorted(weights, reverse=True)):
        # if the k largest are lowered to it, level = share · (k · level + rest)
        level = share * rest / (1.0 - share * k)
        if weight <= level:
            break
        rest -= weight
    return level
