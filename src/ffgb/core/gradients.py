"""Questions about f^t: the gradient as a closed family sees it, and slopes along a function.

With them boosting in L²(α), α all clients' points together, is a procedure on the server (algorithms/ffgb_shared.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.capabilities import InnerProducts
from ffgb.core.functions import Family
from ffgb.core.losses import Loss
from ffgb.core.questions import Here, RoundQuestion, Sum, known
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

LENGTHS = (0.0, *(2.0**j for j in range(-3, 9)))
"""Where clients are asked for slopes.  The slope along a line is increasing, so the best length lies where it changes
its sign; between two lengths it is taken to be linear, as for the square loss it is."""

LARGEST = 2.0**24
"""Of a mean in training, in units in which it is about 1: what is beyond has diverged."""

SLACK = 1e-3
"""By how much a slope may miss what exact ones obey: increments are evaluated in float32."""


class Gradient(NamedTuple):
    """φ = ∇ℓ(f^t) in L²(α)."""

    covector: Array
    """Inner products with the features and the constant, (D+1, c)."""
    square: float
    """‖φ‖²."""


@final
@dataclass(frozen=True, eq=False)
class GradientOf(RoundQuestion):
    """The mean over all rows of [Φ, 1]'φ, and that of ‖φ‖²."""

    what: ClassVar[str] = "the gradient"
    robust: ClassVar[tuple[tuple[str, ...], ...]] = (("covector",), ("square",))
    family: Family
    loss: Loss
    scale: Array
    """The root mean square of each feature and of the constant, (D+1,)."""
    most: float = math.inf
    """A bound on ‖φ‖, if one is known.  By Cauchy and Schwarz no inner product, and no sum of parts of it, is larger
    than that times the feature's size: 32 bits are then finer than float32."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape, known_size = (len(self.scale), self.family.outputs), math.isfinite(self.most)
        largest = self.most if known_size else LARGEST
        # a feature that is constant at all who were asked before may vary at one who was not
        scale = np.maximum(self.scale, 2.0**-16 * self.scale.max())
        bound = np.broadcast_to(largest * scale[:, None], shape)
        square = Sum((1,), self.most**2 if known_size else LARGEST * 2.0**8)
        return {"covector": Sum(shape, bound, 32 if known_size else 64), "square": square}

    def part(self, here: Here) -> Tensors:
        assert isinstance(self.family, InnerProducts)
        phi = self.loss.gradient(known(here.f), known(here.y))
        covector = np.zeros((len(self.scale), self.family.outputs))
        for rows, z in here.points.blocks(self.family.features):
            heavy = here.points.weighted(phi[rows], rows)
            covector += self.family.covector(z, heavy) * (len(z) * here.share)
        return {"covector": covector, "square": here.mean(np.square(phi).sum(axis=1, keepdims=True))}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        square, bound = float(own["square"][0]), self.loss.bound
        if not 0.0 <= square <= bound * bound * (1.0 + SLACK):
            raise FFGBError(f"sent a square of {square:g}, and that of the gradient is from 0 to {bound**2:g}")
        # ⟨φ, ψ⟩ is at most ‖φ‖ times the bound on a feature ψ, or on the constant
        unit = self.sums["covector"].unit / part
        size = math.sqrt(square + float(self.sums["square"].unit) / part) * (1.0 + SLACK)
        most = np.append(self.family.features.bounds, 1.0) * size
        if (np.linalg.norm(own["covector"], axis=1) > most + unit.sum(axis=1)).any():
            raise FFGBError(f"sent inner products with a gradient that are larger than its size, {size:g}, allows")

    def influence(self, own: Tensors) -> Mapping[str, tuple[float, float]]:
        # features without a bound are compared, in units of their root mean squares over all points
        free = np.isposinf(np.append(self.family.features.bounds, 1.0))
        scale = np.maximum(self.scale, 2.0**-6 * self.scale.max())[free, None]
        inner = float(np.abs(own["covector"][free] / scale).max(initial=0.0))
        if math.isfinite(self.loss.bound):
            return {"inner product": (inner, self.loss.bound)}
        # targets have a variance of 1, so at first a square of 1 an output is the mean of all points
        outputs = float(self.family.outputs)
        return {"square": (float(own["square"][0]), outputs), "inner product": (inner, outputs)}

    def total(self, sums: Tensors) -> Gradient:
        return Gradient(sums["covector"], float(sums["square"][0]))


class Slopes(NamedTuple):
    """What is known of the objective along f^t + s(g − f^t)."""

    slopes: Array
    """At each of the lengths that were asked about."""
    square: float
    """‖h‖², h the function that came with the question."""


@final
@dataclass(frozen=True, eq=False)
class SlopesOf(RoundQuestion):
    """Slopes of the objective along a line from f^t, g = decay · f^t + h: h comes with the question."""

    what: ClassVar[str] = "slopes"
    robust: ClassVar[tuple[tuple[str, ...], ...]] = (("slopes", "square"),)
    loss: Loss
    decay: float
    mu: float
    floor: float = 0.0
    """A mean square of h that is nothing strange."""
    lengths: tuple[float, ...] = LENGTHS

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"slopes": Sum((len(self.lengths),), LARGEST), "square": Sum((1,), LARGEST)}

    def part(self, here: Here) -> Tensors:
        h, f, y = known(here.h), known(here.f), known(here.y)
        change = h - (1.0 - self.decay) * f
        slopes = []
        for s in self.lengths:
            g = f + s * change
            slopes.append(here.mean((self.loss.gradient(g, y) + self.mu * g) * change).sum())
        # what is beyond all measure is as good as the largest: the sign alone counts
        most = LARGEST * here.share * here.points.weight
        bounded = np.clip(np.nan_to_num(np.array(slopes), nan=np.inf), -most, most)
        return {"slopes": bounded, "square": here.mean(np.square(h).sum(axis=1, keepdims=True))}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        """A convex loss has slopes that increase along a line, by at most L‖h‖² a step if it is L-smooth; and they are
        at most ‖∇ℓ‖‖h‖."""
        slopes, square = own["slopes"], float(own["square"][0])
        rounding = float(self.sums["slopes"].rounding(part))  # of the square, too
        if square < 0.0:
            raise FFGBError(f"sent slopes along an increment with a mean square of {square:g}")
        slack = SLACK * float(np.abs(slopes).max()) + 1e-9 + 2.0 * rounding
        if (np.diff(slopes) < -slack).any():
            raise FFGBError("sent slopes that do not increase, and those of a convex loss do")
        if self.mu != 0.0:
            return  # the line is not along the increment alone
        size = math.sqrt(square + rounding) * (1.0 + SLACK)
        rises = self.loss.smoothness * (square + rounding) * (1.0 + SLACK) * np.array(self.lengths)
        steep = self.loss.smooth and (slopes - slopes[0] > rises + slack).any()
        if steep or (math.isfinite(self.loss.bound) and abs(slopes[0]) > self.loss.bound * size + slack):
            raise FFGBError(f"sent slopes from {slopes[0]:g} to {slopes[-1]:g}, and its increment is {size:g} in size")

    def influence(self, own: Tensors) -> Mapping[str, tuple[float, float]]:
        found = {"square": (float(own["square"][0]), self.floor)}
        if self.mu != 0.0 or not math.isfinite(self.loss.bound):  # else their size is known
            found["slope"] = (float(np.abs(own["slopes"]).max()), 0.0)
        return found

    def total(self, sums: Tensors) -> Slopes:
        return Slopes(sums["slopes"], float(sums["square"][0]))


def best_length(slopes: Array, lengths: tuple[float, ...] = LENGTHS) -> float:
    """Where the slope along the line is 0, given it at some lengths; 0 if the line does not descend at all.

    >>> best_length(np.array(LENGTHS) - 3.0)
    3.0
    """
    if slopes[0] >= 0.0:
        return 0.0
    if (slopes < 0.0).all():
        return lengths[-1]
    after = int(np.argmax(slopes >= 0.0))
    low, high = slopes[after - 1], slopes[after]
    return float(lengths[after - 1] + (lengths[after] - lengths[after - 1]) * (-low / (high - low)))
