"""All functions on a finite set of points, with an oracle whose γ is known exactly: what theorems are tried on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.capabilities import Fit
from ffgb.core.functions import ClosedFamily
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten


@final
@dataclass(frozen=True)
class Finite(ClosedFamily):
    """All functions on the points 0 … n−1, with the oracle h = γφ at a client's own points.

    An oracle promises nothing elsewhere.  There h is 0, or, with places to measure distances by, what it is at the
    nearest of the client's points.
    """

    n: int
    outputs: int
    gamma: float
    places: Array | None = None
    features: ClassVar[Flatten] = Flatten(1)  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise FFGBError(f"γ lies in (0, 1], not {self.gamma}")

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"value": ((self.n, self.outputs), "float64")}

    def members(self, stack: Parameters, z: Array) -> Array:
        values: Array = stack["value"][:, z[:, 0].astype(np.intp)]
        return values

    def least_squares(self, z: Array) -> Fit:
        own = z[:, 0].astype(np.intp)
        if len(np.unique(own)) < len(own):
            raise FFGBError("a client holds each point of a finite set once")
        if self.places is None:
            elsewhere = None
        else:
            squares = np.square(self.places[:, None] - self.places[None, own]).sum(axis=2)
            elsewhere = np.argmin(squares, axis=1)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            value = np.zeros((self.n, self.outputs)) if elsewhere is None else self.gamma * phi[elsewhere]
            value[own] = self.gamma * phi
            return {"value": value}

        return fit

    def minimax(self, z: Array) -> Fit:
        return self.least_squares(z)


@final
@dataclass(frozen=True)
class Indicators(FeatureMap):
    """One feature for each of n points, 1 there and 0 elsewhere: linear functions of them are all functions."""

    n: int

    @property
    def dimension(self) -> int:
        return self.n

    def __call__(self, x: Array) -> Array:
        z = np.zeros((len(x), self.n), np.float32)
        z[np.arange(len(x)), x[:, 0].astype(np.intp)] = 1.0
        return z
