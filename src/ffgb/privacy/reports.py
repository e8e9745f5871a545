"""Reports as sums: loss and score of f^t over a client's rows, as integers that add up exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ffgb.core.limbs import LIMBS, from_limbs, to_limbs
from ffgb.core.questions import Sum
from ffgb.core.types import Array, Tensors

LARGEST = 2.0**99
"""Sums of so much are no numbers any more: a training has diverged."""
NUMBERS = ("loss", "score", "weight", "mean")
REPORT: Mapping[str, Sum] = {
    "clients": Sum((2,), 2.0**62, kind="count"),
    "numbers": Sum((len(NUMBERS), LIMBS), 2.0**62, kind="count"),
}


@final
@dataclass(frozen=True)
class Scores:
    """Sums over some clients: rows, their weight, loss and score over them, and the mean losses of clients."""

    clients: int
    points: int
    loss: float
    score: float
    weight: float
    mean: float

    @staticmethod
    def of(reports: Iterable[Mapping[str, Any]]) -> Scores | None:
        """Of single reports; None if there is none."""
        total = [as_integers(report) for report in reports]
        return (
            Scores.total({name: np.sum([part[name] for part in total], axis=0) for name in REPORT}) if total else None
        )

    @staticmethod
    def total(sums: Tensors) -> Scores:
        """From the sums of reports as integers."""
        clients, points = (int(n) for n in sums["clients"])
        numbers = from_limbs(sums["numbers"]).tolist()
        return Scores(clients, points, *(math.copysign(math.inf, n) if abs(n) >= LARGEST else n for n in numbers))


def as_integers(report: Mapping[str, Any]) -> dict[str, Array]:
    """A client's report as it is added up."""
    weight = float(report["weight"])
    numbers = [float(report["loss"]), float(report["score"]), weight, float(report["loss"]) / weight]
    finite = np.nan_to_num(np.array(numbers), nan=np.inf)
    return {"clients": np.array([1, report["points"]], np.int64), "numbers": to_limbs(finite.tolist())}
