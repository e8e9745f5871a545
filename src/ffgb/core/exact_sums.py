"""Sums over rows that have the same bits over any split of the rows: each row is rounded to a public unit first.

Floating-point sums depend on their order, and so on who holds which rows.  Here each row's number is rounded to a whole
multiple of a unit before it is added, and whole numbers below 2^53 add up exactly in float64.  The unit is a power of
two, chosen from a bound on the sum of all rows' sizes.  Where no bound is known, clients are asked how many rows have a
number of each order of magnitude (`Magnitudes`), which is the same over any split, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

LOWEST, HIGHEST = -96, 96
"""Binary orders of magnitude that are told apart; what is smaller counts as 0."""
ORDERS = HIGHEST - LOWEST + 1
EXACT = 2.0**52
"""Whole numbers up to here, and their sums, are exact in float64."""
SHORT = 2.0**30
"""Whole numbers that travel as int32."""
FAR_MEAN = 100.0
"""A mean so many spreads from 0 is far: variances are then asked for about the mean."""


def orders(values: Array) -> Array:
    """How many entries of each column have each order of magnitude: (columns, orders + 1), the first for 0.

    Order k holds sizes from 2^(LOWEST + k − 2) to 2^(LOWEST + k − 1).
    """
    if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) >= 2.0**HIGHEST:
        raise FFGBError(f"there are values beyond 2^{HIGHEST}; rescale the targets, or choose a smaller step")
    _, exponent = np.frexp(values)
    order = np.where((values != 0) & (exponent >= LOWEST), exponent - LOWEST + 1, 0)
    return np.stack([np.bincount(column, minlength=ORDERS + 1) for column in order.T]).astype(np.float64)


class Sizes(NamedTuple):
    """What is known of the sizes of all rows' numbers, a column each."""

    total: Array
    """A bound on the sum of all sizes."""
    median: Array
    """A lower bound on the median size of those that are not 0."""

    @staticmethod
    def of(counts: Array) -> Sizes:
        """From counts by order of magnitude."""
        top = np.ldexp(1.0, LOWEST + np.arange(ORDERS))
        some = counts[:, 1:]
        half = np.argmax(np.cumsum(some, axis=1) >= 0.5 * some.sum(axis=1, keepdims=True), axis=1)
        return Sizes(some @ top, 0.5 * top[half])


def unit_for(total: float, rows: float, most: float) -> float:
    """The least power of two in units of which a sum of sizes, each rounded, is at most so many."""
    room = most - 0.5 * rows - 1.0
    if room < 1.0:
        raise FFGBError(f"{rows:,.0f} rows are too many for sums of whole numbers up to {most:g}")
    return 2.0 ** math.ceil(math.log2(max(total, 2.0**LOWEST) / room))


def whole(values: Array, unit: Array | float) -> Array:
    """Each number as a whole multiple of the unit."""
    rounded: Array = np.rint(values / unit)
    return rounded


def weighed(here: Here, values: Array) -> Array:
    """Rows (n, c) times their weights, in float64."""
    weights = here.points.weights
    heavy: Array = values if weights is None else values * weights[:, None]
    return heavy.astype(np.float64, copy=False)


def counted(shape: tuple[int, ...], bits: int = 64) -> Sum:
    """How whole numbers add up that are exact in float64."""
    return Sum(shape, SHORT, 32, "count") if bits == 32 else Sum(shape, EXACT, 64, "count")


@final
@dataclass(frozen=True, eq=False)
class TargetOrders(Question):
    """How many targets have each order of magnitude about a centre, times their weights."""

    what: ClassVar[str] = "orders of magnitude of the targets"
    centre: Array

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape = (len(self.centre), ORDERS + 1)
        return {name: counted(shape) for name in ("weights", "values", "squares")}

    def part(self, here: Here) -> Tensors:
        d = _targets(here, self.centre)
        ones = np.ones_like(d)
        return {
            "weights": orders(weighed(here, ones)),
            "values": orders(weighed(here, d)),
            "squares": orders(weighed(here, np.square(d))),
        }

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        for counts in own.values():
            check_counts(counts, rows)

    def total(self, sums: Tensors) -> Array:
        return np.stack([sums[name] for name in ("weights", "values", "squares")])


@final
@dataclass(frozen=True, eq=False)
class TargetSums(Question):
    """Sums over all rows of the targets about a centre, their squares, and weights."""

    what: ClassVar[str] = "sums of the targets"
    centre: Array
    units: Array
    """Of weights, values and squares, (3, c)."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"sums": counted(self.units.shape)}

    def part(self, here: Here) -> Tensors:
        d = _targets(here, self.centre)
        columns = (np.ones_like(d), d, np.square(d))
        rows = [whole(weighed(here, v), unit) for v, unit in zip(columns, self.units, strict=True)]
        return {"sums": np.stack([values.sum(axis=0) for values in rows])}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["sums"][[0, 2]] < 0).any():
            raise FFGBError("its sums of squares, or of weights, are negative")

    def total(self, sums: Tensors) -> Array:
        totals: Array = sums["sums"] * self.units
        return totals


def check_counts(counts: Array, rows: int) -> None:
    """Raise an FFGBError if these are not counts of so many rows, in each row of the array."""
    if (counts < 0).any() or (counts.sum(axis=-1) != rows).any():
        raise FFGBError(f"its counts do not add up to its {rows} rows")


def exact_moments_of_targets(ask: Ask, outputs: int) -> Moments:
    """Mean and variance of the targets, the same bits over any split of the rows."""
    centre = np.zeros(outputs)
    found = _about(ask, centre)
    if (np.abs(found.mean) > FAR_MEAN * np.sqrt(found.variance)).any():
        # about the mean, as float32 has it: a column that is constant is then exactly 0
        centre = found.mean.astype(np.float32).astype(np.float64)
        found = _about(ask, centre)
    return found


def _about(ask: Ask, centre: Array) -> Moments:
    sizes = [Sizes.of(counts) for counts in ask(TargetOrders(centre))]
    units = np.array([[unit_for(total, EXACT / 4, EXACT) for total in each.total] for each in sizes])
    weights, values, squares = ask(TargetSums(centre, units))
    mean = values / weights
    return Moments(mean + centre, np.maximum(squares / weights - np.square(mean), 0.0))


def _targets(here: Here, centre: Array) -> Array:
    d: Array = here.points.y.reshape(len(here.points), -1).astype(np.float64) - centre
    return d
