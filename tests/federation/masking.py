"""Trainings with secure totals in which sites are lost on the way, and the same ones in the open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves

IN_TOTALS = ("question", "update", "step")
"""Kinds of messages whose answers are added up."""


def content(message: Message) -> bytes:
    """A message, however it is answered: under masks, with a report or without."""
    kept = {name: value for name, value in message.values.items() if name not in ("masks", "quiet")}
    return encode(replace(message, values=kept))


@dataclass
class Loss:
    """Clients that are lost at a phase: the first time that something is asked for, however often, or so many times.

    The message does not reach them; or, with `late`, their answers do not reach the server.
    """

    clients: Sequence[int]
    phase: str
    """The kind of the message, or what is asked for."""
    round: int | None = None
    times: int = 10**9
    forever: bool = False
    late: bool = False
    skip: int = 0
    """Messages of the phase that go well before."""
    _count: dict[int, int] = field(default_factory=dict)
    _seen: list[bytes] = field(default_factory=list)
    _first: bytes = b""

    def strikes(self, data: bytes, message: Message, i: int) -> bool:
        if i not in self.clients:
            return False
        if self.forever and self._count.get(i):
            return True
        if self.phase not in (message.kind, what_leaves(message)) or self.round not in (None, message.round):
            return False
        if data not in self._seen:
            self._seen.append(data)
        if len(self._seen) <= self.skip:
            return False
        self._first = self._first or data
        if data != self._first or self._count.get(i, 0) >= self.times:  # one question is lost, however often it is put
            return False
        self._count[i] = self._count.get(i, 0) + 1
        return True


class Losing(Engine):
    """Some clients are lost on the way, and all that goes well is written down."""

    def __init__(self, parts: Sequence[Holding], losses: Sequence[Loss] = (), inner: Engine | None = None) -> None:
        self.inner, self.losses = inner or InProcess(parts), list(losses)
        self.came: dict[bytes, set[int]] = {}
        """By a message's content, the clients whose answers have come."""
        self.reached: dict[bytes, set[int]] = {}
        """The same, of those whom the message has reached."""
        self.left: list[tuple[Message, int, bytes]] = []
        """All that has left a client: the message that asked for it, the client, and its answer."""

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        message = decode(data)
        struck = {i: loss for i in clients for loss in self.losses if loss.strikes(data, message, i)}
        reached = [i for i in clients if i not in struck or struck[i].late]
        answers = self.inner.exchange(data, reached)
        self.left += [(message, i, answer) for i, answer in answers.items()]
        answers = {i: answer for i, answer in answers.items() if i not in struck}
        if message.kind in IN_TOTALS:
            self.came.setdefault(content(message), set()).update(answers)
            self.reached.setdefault(content(message), set()).update(reached)
        return answers

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)


class Repeating(Engine):
    """In the open, with the participation of another training: who was lost there is silent here."""

    def __init__(self, parts: Sequence[Holding], other: Losing) -> None:
        self.inner, self.other = InProcess(parts), other
        self.asked: set[bytes] = set()

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        message = decode(data)
        if message.kind not in IN_TOTALS or message.values.get("exact"):
            return self.inner.exchange(data, clients)
        key = content(message)
        self.asked.add(key)
        if key not in self.other.came:
            return self.inner.exchange(data, clients)
        answers = self.inner.exchange(data, [i for i in clients if i in self.other.reached[key]])
        return {i: answer for i, answer in answers.items() if i in self.other.came[key]}

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)
