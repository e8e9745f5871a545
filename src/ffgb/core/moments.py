"""Mean and variance of columns over all clients' rows.

Sums of squares need a bound.  Where a feature map knows none, clients are first asked in which order of magnitude their
largest values lie (`MagnitudeOf`).  Columns whose mean is far from 0, in spreads, are asked about once more from there:
squares about 0 would leave few digits of their variance.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.maps import FeatureMap, in_blocks
from ffgb.core.outliers import FEWEST, far_apart
from ffgb.core.points import Points
from ffgb.core.questions import ROUNDING, Ask, Here, Question, Sum
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

MAGNITUDE = 2.0**8
MAGNITUDES = 2.0 ** np.arange(-40, 128, 8)
"""Orders of magnitude: a value is known to be at most one of these, or refused."""
TOO_FAR = 3
"""So many orders of magnitude above the median client a client is not believed."""

FAR_MEAN = 100.0
"""A mean so many spreads from 0 is far."""

ROWS = 4096
"""At a time."""


@final
@dataclass(frozen=True, eq=False)
class MagnitudeOf(Question):
    """The order of magnitude of a column's largest value, about a centre: of how many clients it is each."""

    what: ClassVar[str] = "orders of magnitude"
    features: FeatureMap | None
    """None: the targets."""
    centre: Array

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"clients": Sum((len(self.centre), len(MAGNITUDES)), 2.0**30, 32, "count")}

    def part(self, here: Here) -> Tensors:
        largest = np.zeros(len(self.centre))
        for _, values in columns_of(here.points, self.features, self.centre):
            np.maximum(largest, np.abs(values).max(axis=0), out=largest)
        if not (largest <= MAGNITUDES[-1]).all():
            raise FFGBError(f"column {int(np.argmax(largest))} has values beyond {MAGNITUDES[-1]:.0e}; rescale it")
        cells = np.searchsorted(MAGNITUDES, largest)
        return {"clients": (cells[:, None] == np.arange(len(MAGNITUDES))).astype(np.float64)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["clients"].sum(axis=1) != 1).any() or (own["clients"] < 0).any():
            raise FFGBError("it should name one order of magnitude a column")

    def check_total(self, total: Tensors, rows: int, clients: int) -> None:
        if (total["clients"].sum(axis=1) != clients).any() or (total["clients"] < 0).any():
            raise FFGBError(f"{clients} clients should name one order of magnitude a column each")

    def spread(self, own: Tensors) -> tuple[Array, Array]:
        order = own["clients"] @ np.arange(float(len(MAGNITUDES)))
        return order, np.zeros_like(order)

    def strange(self, mean: Array, variance: Array) -> dict[int, str]:
        """Orders of magnitude far above the median client's: they would leave the others' sums few digits."""
        if len(mean) < FEWEST:
            return {}
        some = np.where(mean > 0, mean, np.nan)  # a column that is 0 at a client says nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nor does one that is 0 at all clients
            above = mean - np.nan_to_num(np.nanmedian(some, axis=0), nan=np.inf)
        worst = above.max(axis=1, initial=0.0)
        return {
            int(i): f"in column {int(np.argmax(above[i]))} it has values {MAGNITUDE ** (worst[i] - 1):.0e} times as "
            "large as the other clients', or larger"
            for i in np.flatnonzero(worst >= TOO_FAR)
        }

    def total(self, sums: Tensors) -> Array:
        """A bound on each column's distance from the centre."""
        last = len(MAGNITUDES) - 1 - np.argmax(sums["clients"][:, ::-1] > 0, axis=1)
        bound: Array = MAGNITUDES[last]
        return bound


SMALL_PART = 16.0
"""Clients may be so many times smaller than the mean client, and what is rounded at them is still known as rounding."""


@final
@dataclass(frozen=True, eq=False)
class MomentsOf(Question):
    """Mean and mean square of each column about a centre."""

    what: ClassVar[str] = "moments"
    features: FeatureMap | None
    """None: the targets."""
    centre: Array
    bound: Array
    """How far from the centre a column is at most."""
    by_rows: bool = True  # type: ignore[misc]
    alike: bool = False
    """Columns have one scale, as features of one map do."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape = (len(self.centre),)
        return {"mean": Sum(shape, self.bound), "square": Sum(shape, np.square(self.bound))}

    def part(self, here: Here) -> Tensors:
        mean, square = np.zeros(len(self.centre)), np.zeros(len(self.centre))
        for rows, values in columns_of(here.points, self.features, self.centre):
            weights = here.points.weights
            v = np.ones(len(values)) if weights is None else weights[rows]
            mean += v @ values
            square += v @ np.square(values)
        return {"mean": here.share * mean, "square": here.share * square}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        mean, variance = own["mean"] + self.centre, own["square"] - np.square(own["mean"])
        slack = ROUNDING * np.abs(own["square"]) + 1e-12 * np.square(self.bound)
        if (variance < -slack).any():
            raise FFGBError("its moments have a negative variance")
        if self.features is not None:
            check_bounds(self.features.bounds, mean, variance)

    def spread(self, own: Tensors) -> tuple[Array, Array]:
        return own["mean"] + self.centre, np.maximum(own["square"] - np.square(own["mean"]), 0.0)

    def strange(self, mean: Array, variance: Array) -> dict[int, str]:
        """What may be rounding is none of a column's spread: a category that most clients lack is constant there."""
        part = 1.0 / (SMALL_PART * len(mean))
        first, second = (sums.rounding(part) for sums in self.sums.values())
        middle, rounded = np.median(mean, axis=0), 2.0**-48 * (np.square(mean - self.centre) + variance)
        mean = np.where(np.abs(mean - middle) <= first + 2.0**-48 * np.abs(self.centre), middle, mean)
        return far_apart(mean, np.where(variance <= second + rounded, 0.0, variance), alike=self.alike)

    def total(self, sums: Tensors) -> Moments:
        variance = np.maximum(sums["square"] - np.square(sums["mean"]), 0.0)
        return Moments(sums["mean"] + self.centre, variance)


def moments_of(
    ask: Ask, features: FeatureMap, *, by_rows: bool = True, alike: bool = False, largest: Array | None = None
) -> Moments:
    """The moments of a map's features at all points; `alike`, if these have one scale.

    `largest` has a bound on the size of each, if someone has asked for it before.
    """
    return _moments(ask, features, features.bounds, by_rows, alike, largest)


def moments_of_targets(ask: Ask, outputs: int) -> Moments:
    """The moments of the targets."""
    return _moments(ask, None, np.full(outputs, np.inf), True, False, None)


def _moments(
    ask: Ask, features: FeatureMap | None, bounds: Array, by_rows: bool, alike: bool, largest: Array | None
) -> Moments:
    bounds_known, centre = bounds, np.zeros(len(bounds))
    if not np.isfinite(bounds).all():
        bounds = np.minimum(bounds, ask(MagnitudeOf(features, centre)) if largest is None else largest)
    found: Moments = ask(MomentsOf(features, centre, bounds, by_rows, alike))
    if (np.abs(found.mean) > FAR_MEAN * np.sqrt(found.variance)).any():
        # about the mean, as float32 has it: a column that is constant is then exactly 0
        centre = found.mean.astype(np.float32).astype(np.float64)
        known = np.isfinite(bounds_known).all()
        bounds = bounds_known + np.abs(centre) if known else ask(MagnitudeOf(features, centre))
        found = ask(MomentsOf(features, centre, bounds, by_rows, alike))
    return found


def columns_of(points: Points, features: FeatureMap | None, centre: Array) -> Iterator[tuple[slice, Array]]:
    """Features, or targets, about a centre: some rows at a time, in float64."""
    blocks = (
        ((rows, points.y[rows]) for rows in in_blocks(len(points))) if features is None else points.blocks(features)
    )
    for block, z in blocks:
        for start in range(0, len(z), ROWS):
            some = z[start : start + ROWS]
            rows = slice(block.start + start, block.start + start + len(some))
            yield rows, some.reshape(len(some), -1).astype(np.float64) - centre


def check_bounds(bounds: Array, mean: Array, variance: Array) -> None:
    """Raise an FFGBError if features within these bounds cannot have this mean and variance."""
    beyond = np.square(mean) + variance > np.square(bounds) * (1.0 + ROUNDING)
    if beyond.any():
        k = int(np.argmax(beyond))
        raise FFGBError(
            f"its feature {k} has a mean of {mean[k]:g} and a variance of {variance[k]:g}, and is never beyond "
            f"{bounds[k]:g}"
        )
