"""The server's distillation between rounds (the paper's section 5): N increments become one learner.

The server has points without labels, drawn as the clients' are.  It asks the weak-learning oracle for one learner that
says at these points what the mean of the clients' increments says there.  So f grows by one learner a round, and one
learner travels down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from ffgb.core.functions import Function, average
from ffgb.core.means import Aggregate, Mean
from ffgb.core.oracles import WO2
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True, eq=False)
class DistilledMean(Aggregate):
    """The mean as one learner, fitted at the server's own points."""

    keeps_members: ClassVar[bool] = False

    x: Array
    """The server's points."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not len(self.x):
            raise FFGBError("the server has no points to distill at")

    def rows(self, values: Array, weights: Sequence[float]) -> Array:
        return Mean().rows(values, weights)

    def of_round(
        self, t: int, answers: Sequence[Function], weights: Sequence[float], last: Function
    ) -> tuple[Function, Mapping[str, float]]:
        mean = average(answers, weights)
        family = mean.family
        z = family.features(self.x)
        one, _, gamma, _ = WO2(family, z)(mean.evaluate(z), stream(self.seed, "distill", t))
        return one.increment, {} if gamma is None else {"gamma_distilled": gamma}

    def __call__(self, answers: Sequence[Function], weights: Sequence[float], last: Function) -> Function:
        return self.of_round(0, answers, weights, last)[0]
