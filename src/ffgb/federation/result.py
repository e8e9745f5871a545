"""Totals over rows that are held out, when training has ended: what the result is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from ffgb.core.questions import RoundQuestion
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked, checked
from ffgb.federation.parts import own_part
from ffgb.federation.state import State
from ffgb.federation.totals import total_of
from ffgb.privacy.integers import add
from ffgb.protocol.codec import Message
from ffgb.protocol.messages import Asked
from ffgb.protocol.sending import Sending

TRIES = 2
"""How often a part of the test set is asked for one answer."""


@final
class AskHeldOut:
    """`ask` over the rows that are held out: all of them, or an FFGBError that says who is missing."""

    def __init__(self, conversation: Conversation, masked: Masked | None, state: State, rows: int) -> None:
        """`rows` are held out in all."""
        self.conversation, self.masked, self.state, self.rows = conversation, masked, state, rows
        clients = conversation.clients
        self.asked = clients.tests if masked is None else masked.tests
        if not self.asked or len(self.asked) < len(clients.parts):
            raise FFGBError("not all sites that hold out rows are in a total")

    def __call__(self, question: RoundQuestion) -> Any:
        asked = Asked(question, Weighting(float(self.rows)), self.state.t, precision=self.state.job.precision)
        failed: dict[int, FFGBError] = {}

        def ask(sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
            return self.conversation.ask(self.state, sending, clients, TRIES, failed=failed)

        if self.masked is None or self.masked.bare:
            total = self._in_the_open(asked, ask(asked, self.asked))
        else:
            found, _, _ = self.masked.total(asked, ask, self.asked, 1024)
            whole = next(iter(found.values()), None)
            if whole is None or whole.rows != self.rows:
                raise FFGBError(f"not all sites that hold out rows have answered{_why(failed)}")
            total = checked(question, whole)
        return total

    def _in_the_open(self, asked: Asked, answers: dict[int, Message]) -> Any:
        """The total of parts that the server sees one by one."""
        for i in self.asked:
            if i not in answers or answers[i].kind != "part":
                raise FFGBError("not all sites that hold out rows have answered")
            rows = self.conversation.seen[i].values["points"] if i in self.conversation.seen else None
            own_part(asked.question, answers[i], int(rows or -1), asked.weighting, float(rows or 1.0))
        return total_of(asked.question, add((answers[i].tensors for i in self.asked), asked.question.sums), 1.0)


def _why(failed: dict[int, FFGBError]) -> str:
    return f": {next(iter(failed.values())).raw}" if failed else ""
