"""Means that one client cannot pull as far as it likes, for closed families: what is averaged is one array a client.

A plain mean of m answers can be moved anywhere by one of them.  These cannot, at some cost where clients honestly
differ: what looks strange may be right.  They are for federations in which not everyone is trusted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.functions import ClosedSum, Function, average
from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError, option
from ffgb.settings import METHOD, Setting


class Aggregate(ABC):
    """How the server makes one of its clients' answers: a final, frozen dataclass."""

    keeps_members: ClassVar[bool] = True
    """The learners in the answers are those in the result: a client is not charged for its own when they come back."""

    @abstractmethod
    def rows(self, values: Array, weights: Sequence[float]) -> Array:
        """One row from a table with a row for each client; in the order given, for sums are rounded."""

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        """One function from the clients', given the last.

        Where answers are new parameters rather than increments (FedAvg), it is how far they moved that is looked at.
        """
        closed = [f for f in answers if isinstance(f, ClosedSum)]
        if len(closed) < len(answers):
            raise FFGBError(
                f"only answers of one array each can be compared; use {option('aggregate', 'mean')} with this learner"
            )
        first = closed[0].parameters
        parametric = isinstance(last, ClosedSum) and "/" in next(iter(first))
        start = last.parameters if parametric else {}  # type: ignore[attr-defined]
        moves = np.stack(
            [np.concatenate([(a - start.get(k, 0.0)).ravel() for k, a in f.parameters.items()]) for f in closed]
        )
        ends = np.cumsum([a.size for a in first.values()])
        parts = np.split(self.rows(moves, weights), ends[:-1])
        arrays = {
            k: part.reshape(a.shape) + start.get(k, 0.0) for (k, a), part in zip(first.items(), parts, strict=True)
        }
        return ClosedSum(closed[0].family, arrays)

    def of_round(
        self, t: int, answers: Sequence[Function], weights: Sequence[float], last: Function
    ) -> tuple[Function, Mapping[str, float]]:
        """The same in round t, with what is measured of it: columns of the metrics."""
        return self(answers, weights, last), {}


@final
@dataclass(frozen=True)
class Mean(Aggregate):
    """The paper's."""

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        return average(answers, weights)

    def rows(self, values: Array, weights: Sequence[float]) -> Array:
        total, weight = np.zeros(values.shape[1]), math.fsum(weights)
        for row, w in zip(values, weights, strict=True):
            total += w / weight * row
        return total


@final
@dataclass(frozen=True)
class NormBound(Aggregate):
    """No answer counts for more than the median one: longer ones are shortened to that length."""

    def rows(self, values: Array, weights: Sequence[float]) -> Array:
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        bound = float(np.median(norms))
        return Mean().rows(values * np.where(norms <= bound, 1.0, bound / np.maximum(norms, bound))[:, None], weights)


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

    def rows(self, values: Array, weights: Sequence[float]) -> Array:
        aside = min(math.ceil(self.share * len(values)), (len(values) - 1) // 2)
        mean: Array = np.sort(values, axis=0)[aside : len(values) - aside].mean(axis=0)
        return mean


def capped(weights: Sequence[float], share: float) -> list[float]:
    """The weights, with those that are more than this share of the sum lowered to it.

    If there are too few for such a share, all weigh the same.

    >>> capped([1.0, 1.0, 8.0], 0.5)
    [1.0, 1.0, 2.0]
    """
    if share * len(weights) <= 1.0:
        return [1.0] * len(weights)
    rest = math.fsum(weights)
    for k, weight in enumerate(sorted(weights, reverse=True)):
        # if the k largest are lowered to it, level = share · (k · level + rest)
        level = share * rest / (1.0 - share * k)
        if weight <= level:
            break
        rest -= weight
    return [min(weight, level) for weight in weights]


AGGREGATES = ("mean", "norm", "trimmed")


def make_aggregate(name: str, trim: float) -> Aggregate:
    if name not in AGGREGATES:
        raise SettingError("aggregate", f"is {' or '.join(AGGREGATES)}, not {name!r}")
    return {"mean": Mean(), "norm": NormBound(), "trimmed": TrimmedMean(trim)}[name]


SETTINGS = (
    Setting(
        "aggregate",
        "text",
        "mean; norm or trimmed: means that no client can pull far (features, linear, fedavg …).",
        METHOD,
        "mean",
        choices=AGGREGATES,
    ),
    Setting(
        "trim", "number", "The share of answers put aside at either end (trimmed).", METHOD, 0.2, least=0.0, below=0.5
    ),
)
