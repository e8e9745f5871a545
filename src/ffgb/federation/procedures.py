"""A round of the server, by the way in which clients take part, and by who may see their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from ffgb.algorithms import Increments, Totals
from ffgb.core.means import Aggregate
from ffgb.errors import FFGBError, option
from ffgb.federation.boosting import totals_round
from ffgb.federation.conversation import Conversation
from ffgb.federation.increments import increments_round
from ffgb.federation.masked import Masked, MaskedRound
from ffgb.federation.round import Round
from ffgb.federation.state import State
from ffgb.federation.totals import InARound

Procedure: TypeAlias = Callable[[State, Sequence[int], bool], Round]
"""From f^t to f^{t+1}, with these clients; whether it may stop where there is nothing left to learn."""


@final
@dataclass(frozen=True)
class InTheOpen:
    """The server sees what each client sends."""

    conversation: Conversation
    aggregate: Aggregate

    def increments(self, algorithm: Increments) -> Procedure:
        return lambda state, S, stop: increments_round(self.conversation, algorithm, state, S, self.aggregate)

    def totals(self, algorithm: Totals) -> Procedure:
        return lambda state, S, stop: totals_round(
            InARound(self.conversation, state, S, self.aggregate), algorithm, stop=stop
        )


@final
@dataclass(frozen=True)
class UnderMasks:
    """The server sees totals alone."""

    masked: Masked

    def increments(self, algorithm: Increments) -> Procedure:
        raise FFGBError(
            "only totals can be secure: in this algorithm clients send increments of their own, which are no sums; "
            f"use {option('geometry', 'shared')} with one local step, or {option('secure', 'off')}"
        )

    def totals(self, algorithm: Totals) -> Procedure:
        return lambda state, S, stop: totals_round(MaskedRound(self.masked, state, S), algorithm, stop=stop)
