"""Maps by name: what a file of this package says so that `--map` offers its maps.

A module has a tuple `MAPS` of those that it offers (features/catalogue.py collects them).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, final

from ffgb.core.maps import FeatureMap
from ffgb.core.moments import moments_of
from ffgb.core.questions import Ask
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.features.basic import Clip, Flatten, Standardize
from ffgb.features.far import without_far_values
from ffgb.features.tables import LEAST, Seen, look

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Space:
    """Where the points live, as everyone knows before training."""

    shape: tuple[int, ...]
    image: bool
    columns: tuple[str, ...]
    points: int
    """Of all clients together."""

    @property
    def inputs(self) -> int:
        """Numbers of a point."""
        return math.prod(self.shape)


class Making:
    """What a map is made from: totals that are asked for, the space, a seed, and how many rows must be together.

    Nothing is asked for twice.
    """

    def __init__(self, ask: Ask, space: Space, seed: int, least: int = LEAST) -> None:
        self.ask, self.space, self.seed, self.least = ask, space, seed, least
        self._found: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """The result of `make`, computed the first time that this key is named."""
        if key not in self._found:
            self._found[key] = make()
        found: T = self._found[key]
        return found

    @cached_property
    def moments(self) -> Moments:
        """Of the inputs, over all clients' rows."""
        inputs, largest = self._inputs
        return moments_of(self.ask, inputs, largest=largest)

    @property
    def inputs(self) -> FeatureMap:
        """As they are, but for absurd values in a few rows of a table."""
        return self._inputs[0]

    @cached_property
    def _inputs(self) -> tuple[FeatureMap, Array | None]:
        if self.space.image:
            return Flatten(self.space.inputs), None
        return without_far_values(self.ask, self.space.inputs)

    @property
    def scaled(self) -> FeatureMap:
        """The inputs with unit variance each, by moments of all clients; images keep their common scale."""
        return self.inputs if self.space.image else Standardize.by(self.moments, self.inputs)

    @cached_property
    def seen(self) -> Seen:
        """What counts tell of a table's columns."""
        return look(self.ask, self.moments, self.space.columns, self.least)

    @cached_property
    def clipped(self) -> FeatureMap:
        """The inputs with unit variance each; those of tables are clipped where fewer rows than `least` reach.

        Totals of products are then never made up by few rows.  Learners that no total is made of need not ask where.
        """
        if self.space.image or self.least == 1:
            return self.scaled
        inputs = Clip(self.inputs, self.seen.low, self.seen.high)
        return Standardize.by(moments_of(self.ask, inputs), inputs)


@final
@dataclass(frozen=True)
class NamedMap:
    """A map that the command line offers."""

    name: str
    make: Callable[[Making, int], FeatureMap]
    """From what is known, and a number of features."""
    size: int = 0
    """The number of features if no one gives one; 0: the map has its own."""
    smooth: bool = False
    """It has no jumps, so that FFGB.L can use it."""
    tied: bool = False
    """Its features come in groups of one kind: their Gram is tied, and alone they are standardised."""
    weight: Callable[[Space], float] = lambda space: 1.0
    """A factor for its features when they stand beside others."""
