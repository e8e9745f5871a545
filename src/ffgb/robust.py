"""Means that one client cannot pull as far as it likes, for closed families: what is averaged is one array a client.

A plain mean of m answers can be moved anywhere by one of them.  These cannot, at some cost where clients honestly
differ: what looks strange may be right.  They are for federations in which not everyone is trusted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.errors import FFGBError
from ffgb.functions import Array, ClosedSum, Function, average


class Aggregate(ABC):
    """How the server makes one of its clients' answers: a final, frozen dataclass."""

    @abstractmethod
    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        """One function from the clients', given the last; in the order given, for sums are rounded."""


@final
@dataclass(frozen=True)
class Mean(Aggregate):
    """The paper's."""

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        return average(answers, weights)


@final
@dataclass(frozen=True)
class NormBound(Aggregate):
    """No answer counts for more than the median one: longer ones are shortened to that length.

    Where answers are new parameters rather than increments (FedAvg), it is how far they moved that is shortened.
    """

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        closed = _closed(answers)
        from_here = _shared(closed[0], last)
        moves = [{name: a - from_here.get(name, 0.0) for name, a in f.parameters.items()} for f in closed]
        norms = [math.sqrt(math.fsum(float(np.vdot(a, a)) for a in move.values())) for move in moves]
        bound = float(np.median(norms))
        shortened = []
        for f, move, norm in zip(closed, moves, norms, strict=True):
            s = 1.0 if norm <= bound else bound / norm
            shortened.append(ClosedSum(f.family, {name: s * a + from_here.get(name, 0.0) for name, a in move.items()}))
        return average(shortened, weights)


@final
@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """In each coordinate the mean of what is left when the largest and the smallest values are put aside.

    Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML
    2018.  Clients count alike: of sorted values no one knows whose they are.
    """

    share: float = 0.2
    """Put aside at either end: at least the share of clients that may be malicious."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise FFGBError(f"the share put aside at either end is from 0 to less than 0.5, not {self.share}")

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        closed = _closed(answers)
        aside = min(math.ceil(self.share * len(closed)), (len(closed) - 1) // 2)
        arrays = {}
        for name in closed[0].parameters:
            values = np.sort(np.stack([f.parameters[name] for f in closed]), axis=0)
            arrays[name] = values[aside : len(closed) - aside].mean(axis=0)
        return ClosedSum(closed[0].family, arrays)


def _closed(answers: Sequence[Function]) -> list[ClosedSum]:
    found = [f for f in answers if isinstance(f, ClosedSum)]
    if len(found) < len(answers):
        raise FFGBError("only answers that are one array each can be compared; use --aggregate mean with this learner")
    return found


def _shared(answer: ClosedSum, last: Function) -> Mapping[str, Array]:
    """Where the clients started, if they answer with new values of the arrays that they were given."""
    parametric = isinstance(last, ClosedSum) and "/" in next(iter(answer.parameters))
    return last.parameters if parametric else {}  # type: ignore[attr-defined]


AGGREGATES = ("mean", "norm", "trimmed")


def make_aggregate(name: str, trim: float) -> Aggregate:
    if name not in AGGREGATES:
        raise FFGBError(f"--aggregate is {' or '.join(AGGREGATES)}, not {name!r}")
    return {"mean": Mean(), "norm": NormBound(), "trimmed": TrimmedMean(trim)}[name]
