"""Questions: sums over all clients' rows, which the server asks for where a central program would compute them.

A `Question` is a final, frozen dataclass.  Each client answers with its part: arrays that are sums over its own rows.
Only the total over clients is used.  Every array declares how it adds up (`Sum`): a bound that is known to everyone,
and how finely its numbers are counted.  Parts are rounded to whole multiples of that unit and added as integers
(privacy/integers.py), so that a total has the same bits in any order, on any engine.

`ask(question) -> total` is all that a procedure on the server needs (`Ask`), before training and in every round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np

from ffgb.core.functions import Family
from ffgb.core.losses import Loss
from ffgb.core.outliers import far_apart
from ffgb.core.points import Points
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

ROUNDING = 1e-3
"""By how much sums in float32 may miss what exact ones obey."""

SMALLEST = 2.0**-900
"""Bounds are at least this: a unit must be a number."""


@final
@dataclass(frozen=True, eq=False)
class Sum:
    """How one array of an answer adds up.

    kind "mean": the mean over all clients' rows; a part is the client's share of it.  "count": whole numbers.
    "largest": of all clients the largest, entry by entry; such numbers are not added, and travel as they are.
    """

    shape: tuple[int, ...]
    bound: float | Array
    """No part, and no sum of parts, is farther from 0: a number, or one an entry."""
    bits: Literal[32, 64] = 64
    """Of the integers that are added."""
    kind: Literal["mean", "count", "largest"] = "mean"

    @cached_property
    def unit(self) -> Array:
        """What is counted in: the least power of two for which a total of this size fits, with a bit to spare."""
        if self.kind != "mean":
            return np.array(1.0)
        _, exponent = np.frexp(np.maximum(np.asarray(self.bound, np.float64), SMALLEST))
        unit: Array = np.ldexp(1.0, exponent - (self.bits - 2))
        return unit

    def rounding(self, part: float) -> Array:
        """By how much a mean over a client's own rows may be rounded, if the client makes up this part of the whole."""
        rounding: Array = self.unit / (2.0 * part)
        return rounding

    @property
    def dtype(self) -> str:
        return "float64" if self.kind == "largest" else f"int{self.bits}"

    @property
    def size(self) -> int:
        """Bytes in a part."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@final
@dataclass(frozen=True, eq=False)
class Here:
    """What a client answers from."""

    points: Points
    share: float
    """What one row of weight 1 counts for in a mean over all clients' rows."""
    loss: Loss | None = None
    y: Array | None = None
    """Targets, as they are trained on."""
    f: Array | None = None
    """f^t at the points."""
    h: Array | None = None
    """The function that came with the question, at the points."""
    said: Any = None
    """What the client's site knows of its file, for questions before there are points (survey.py)."""
    family: Family | None = None
    """Where f^t lives."""
    round: int = -1
    """t; −1 before the first round."""

    def mean(self, values: Array) -> Array:
        """This client's share of the mean of values (n, ...) over all rows."""
        total: Array = self.share * self.points.sum(values)
        return total


class Question(ABC):
    """A sum over all clients' rows: a final, frozen dataclass that implements these names."""

    what: ClassVar[str]
    """The sum in words that progress is shown with."""

    by_rows: ClassVar[bool] = True
    """Every row counts the same, whatever clients weigh.  (An instance may say otherwise.)"""

    @property
    @abstractmethod
    def sums(self) -> Mapping[str, Sum]:
        """How each array of an answer adds up."""

    @abstractmethod
    def part(self, here: Here) -> Tensors:
        """One client's part, in float64."""

    @abstractmethod
    def total(self, sums: Tensors) -> Any:
        """What the server wanted to know, from the sums over all clients."""

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:  # noqa: B027  (what everyone obeys is checked before)
        """Raise an FFGBError if no client with so many rows can answer this.

        `own` is the client's part, with means that are those of its own rows; they are rounded (`Sum.rounding`), the
        more the less a part it is of the whole.
        """

    def check_total(self, total: Tensors, rows: int, clients: int) -> None:
        """Raise an FFGBError if no clients together can have this total over so many rows: means, and counts."""
        self.check(total, rows, 1.0 / clients)  # so much less exact than that of one client

    def certify(self, own: Tensors, part: float = 1.0) -> None:  # noqa: B027  (most have nothing more to look for)
        """Raise an FFGBError if a closer look finds a fault: it takes time, and only clients elsewhere get it."""

    def spread(self, own: Tensors) -> tuple[Array, Array] | None:
        """Mean and variance of each column at one client, by which clients are compared; None if they are not."""
        return None

    def strange(self, mean: Array, variance: Array) -> dict[int, str]:
        """The clients that are absurdly far from all others, and why, from what `spread` says of each: a row each."""
        return far_apart(mean, variance, alike=True)

    @property
    def size(self) -> int:
        """Bytes in one answer."""
        return sum(each.size for each in self.sums.values())


class RoundQuestion(Question):
    """A question about f^t, which clients answer when they have it."""

    by_rows: ClassVar[bool] = False

    of_result: ClassVar[bool] = False
    """It is about the result at rows that are held out, and is asked when training has ended."""

    robust: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The arrays that a robust mean may be taken of in place of the sum: those together that are one array each."""

    def influence(self, own: Tensors) -> Mapping[str, tuple[float, float]]:
        """Numbers by which clients are compared, and up to which size each is nothing strange: by name."""
        return {}


Ask: TypeAlias = Callable[[Question], Any]
"""Put a question to all clients and get the total of their answers."""


def ask_locally(points: Points) -> Ask:
    """An `ask` whose only client is here: central training, or a trial with a few rows."""

    def ask(question: Question) -> Any:
        here = Here(points, 1.0 / points.weight)
        return question.total({name: np.asarray(part, np.float64) for name, part in question.part(here).items()})

    return ask


def known(array: Array | None) -> Array:
    """An array that a question needs."""
    if array is None:
        raise FFGBError("a question about f is asked before training has begun")
    return array
