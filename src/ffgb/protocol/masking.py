"""Messages by which clients agree on masks (privacy/): sums then reach the server, and no client's part of them.

    server → client                                                   client → server
    Introduce: who takes part, and how few may answer                 key: a public key for this run, signed
    Roll: everyone's keys and signatures                              ready
    Prepare: some questions are to be asked, and sites may die        prepared: shares of secrets, in sealed boxes
    Unmask: whose parts of a question have arrived, and the boxes     shares
    Tie: a secret of all sites is needed                              tied: the difference of two secrets
    Ties: the differences of all sites                                ready
    Reopen: an impossible total; whose part is wrong?                 seeds, if its owner has agreed to that

A message whose answers are masked says so in its value `masks` (`Masking`).  A client that has restarted, and does not
know the run, answers `stranger` and is introduced again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard, final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.protocol.codec import Expected, Form, Message
from ffgb.protocol.job import Job
from ffgb.protocol.sending import ALWAYS, Sending

KEY = 32
"""Bytes of a public key."""
MOST_PARTICIPANTS = 10_000
"""Participants of a run."""


@final
@dataclass(frozen=True)
class Group:
    """Clients whose numbers are added up: theirs in the protocol, the names of their sites, and registered keys."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]
    registered: tuple[str, ...]
    """Public keys (DER) in hexadecimal digits; empty in a simulation."""
    threshold: int = 0
    """Clients that must answer for a total to come out; 0: all."""

    def place(self, client: int) -> int:
        """Where a client stands in the list."""
        return self.numbers.index(client)

    def to_json(self) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in ("numbers", "names", "registered")}
        return {**lists, "threshold": self.threshold}

    @staticmethod
    def from_json(value: Any) -> Group:
        threshold, lists = value["threshold"], [tuple(value[name]) for name in ("numbers", "names", "registered")]
        group = Group(lists[0], lists[1], lists[2], threshold)
        if type(threshold) is not int or not 0 <= threshold <= MOST_PARTICIPANTS:
            raise FFGBError("a list of participants does not say how many of them must answer")
        texts = (*group.names, *group.registered)
        if not all(type(n) is int for n in group.numbers) or not all(map(_is_text, texts)):
            raise FFGBError("a list of participants is none")
        for text in group.registered:
            _digits(text)
        if (
            not len(set(group.numbers))
            == len(group.names)
            == len(group.registered)
            == len(group.numbers)
            <= MOST_PARTICIPANTS
        ):
            raise FFGBError("a list of participants names one twice, or is incomplete")
        return group


def _groups(message: Message) -> tuple[Group, ...]:
    return tuple(Group.from_json(group) for group in message.values["groups"])


@final
@dataclass(frozen=True, eq=False)
class Introduce(Sending):
    """Who takes part in a run: those who train, and those who hold out rows, are a group each."""

    kind: ClassVar[str] = "introduction"
    answer: ClassVar[str] = "key"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    run: str
    groups: tuple[Group, ...]

    def message(self) -> Message:
        return Message(self.kind, values={"run": self.run, "groups": [group.to_json() for group in self.groups]})

    @staticmethod
    def read(message: Message, job: Job | None) -> Introduce:
        return Introduce(_run(message), _groups(message))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("key", *ALWAYS), forms={"key": Form((KEY,), "uint8")})


@final
@dataclass(frozen=True, eq=False)
class Roll(Sending):
    """Everyone's keys, by the group and the place in it, and the signatures of these keys."""

    kind: ClassVar[str] = "roster"
    answer: ClassVar[str] = "ready"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    run: str
    keys: tuple[Array, ...]
    signatures: tuple[tuple[str, ...], ...]

    def message(self) -> Message:
        values = {"run": self.run, "signatures": [list(some) for some in self.signatures]}
        return Message(self.kind, values=values, tensors={f"keys {g}": keys for g, keys in enumerate(self.keys)})

    @staticmethod
    def read(message: Message, job: Job | None) -> Roll:
        signatures = tuple(tuple(map(_digits, some)) for some in message.values["signatures"])
        keys = tuple(_bytes(message.tensors[f"keys {g}"], (len(some), KEY)) for g, some in enumerate(signatures))
        return Roll(_run(message), keys, signatures)

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", *ALWAYS))


@final
@dataclass(frozen=True, eq=False)
class Tie(Sending):
    """Say by what one comes from the secret with one neighbour to that with the other (privacy/masks.py)."""

    kind: ClassVar[str] = "tie"
    answer: ClassVar[str] = "tied"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    run: str

    def message(self) -> Message:
        return Message(self.kind, values={"run": self.run})

    @staticmethod
    def read(message: Message, job: Job | None) -> Tie:
        return Tie(_run(message))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("tied", "stranger", *ALWAYS), forms={"tie": Form((KEY,), "uint8")})


@final
@dataclass(frozen=True, eq=False)
class Ties(Sending):
    """What all sites have said of their secrets, in the order of the first group: now they have one in common."""

    kind: ClassVar[str] = "ties"
    answer: ClassVar[str] = "ready"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    run: str
    ties: Array

    def message(self) -> Message:
        return Message(self.kind, values={"run": self.run}, tensors={"ties": self.ties})

    @staticmethod
    def read(message: Message, job: Job | None) -> Ties:
        ties = message.tensors["ties"]
        return Ties(_run(message), _bytes(ties, (len(ties), KEY)))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", "stranger", *ALWAYS))


@final
@dataclass(frozen=True, eq=False)
class Prepare(Sending):
    """Share the secrets of a batch of questions."""

    kind: ClassVar[str] = "prepare"
    answer: ClassVar[str] = "prepared"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    run: str
    batch: int
    shapes: Mapping[str, tuple[int, ...]] | None = None
    """Of the arrays that a client answers with, all of bytes."""

    def message(self) -> Message:
        return Message(self.kind, values={"run": self.run, "batch": self.batch})

    @staticmethod
    def read(message: Message, job: Job | None) -> Prepare:
        return Prepare(_run(message), _whole(message, "batch"))

    def expected(self, job: Job | None) -> Expected:
        forms = {name: Form(shape, "uint8") for name, shape in (self.shapes or {}).items()}
        return Expected(("prepared", "stranger", *ALWAYS), forms=forms)


@final
@dataclass(frozen=True, eq=False)
class Unmask(Sending):
    """Say the shares by which the masks that are left in a total come off."""

    kind: ClassVar[str] = "unmask"
    answer: ClassVar[str] = "shares"
    with_f: ClassVar[bool] = False
    run: str
    number: int
    """Of the question."""
    question: str
    """The SHA-256 of the message that asked it, in hexadecimal digits."""
    arrived: tuple[int, ...]
    """Whose parts have arrived: places in the group."""
    boxes: Array
    """(receivers, senders, bytes)."""

    def message(self) -> Message:
        values = {"run": self.run, "number": self.number, "question": self.question, "arrived": list(self.arrived)}
        return Message(self.kind, values=values, tensors={"boxes": self.boxes})

    @staticmethod
    def read(message: Message, job: Job | None) -> Unmask:
        arrived, boxes = message.values["arrived"], message.tensors["boxes"]
        if not isinstance(arrived, list) or not all(type(i) is int for i in arrived):
            raise FFGBError("a message does not say whose parts have arrived")
        number, question = _whole(message, "number"), message.values["question"]
        if boxes.ndim != 3:
            raise FFGBError("a message does not say what is to be unmasked")
        return Unmask(_run(message), number, _digits(question), tuple(arrived), _bytes(boxes, boxes.shape))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("shares", "stranger", *ALWAYS), forms={"shares": Form((len(self.boxes), KEY), "uint8")})


@final
@dataclass(frozen=True, eq=False)
class Reopen(Sending):
    """Give away the masks of one question: its total is impossible, and it is to be found out whose part is wrong.

    The run ends with it.  A site does so only if its owner has agreed to that beforehand.
    """

    kind: ClassVar[str] = "reopen"
    answer: ClassVar[str] = "seeds"
    with_f: ClassVar[bool] = False
    run: str
    number: int
    question: str
    """The SHA-256 of the message that asked it, in hexadecimal digits."""
    participants: int = 0

    def message(self) -> Message:
        return Message(self.kind, values={"run": self.run, "number": self.number, "question": self.question})

    @staticmethod
    def read(message: Message, job: Job | None) -> Reopen:
        return Reopen(_run(message), _whole(message, "number"), _digits(message.values["question"]))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("seeds", "stranger", *ALWAYS), forms={"seeds": Form((self.participants, KEY), "uint8")})


@final
@dataclass(frozen=True)
class Masking:
    """How the answers to a message are masked."""

    run: str
    number: int
    """Of the question."""
    bare: tuple[int, ...]
    """Clients that answer without masks: parts of a test set that belong to no site."""
    without: tuple[int, ...] = ()
    """Clients that no one has a mask with, since they have not shared their secrets of this question."""

    @property
    def value(self) -> list[Any]:
        """As a message says it."""
        return [self.run, self.number, list(self.bare), list(self.without)]

    @staticmethod
    def of(message: Message) -> Masking | None:
        """What a message says; None if its answers are not masked."""
        if "masks" not in message.values:
            return None
        match message.values["masks"]:
            case [str() as run, int() as number, [*bare], [*without]] if type(number) is int and 0 <= number < 2**40:
                if all(type(i) is int for i in (*bare, *without)) and len(set(without)) == len(without):
                    return Masking(run, number, tuple(bare), tuple(without))
        raise FFGBError("a message does not say how its answers are masked")


def _is_text(value: Any) -> TypeGuard[str]:
    """Is it a text that has bytes?  JSON has characters that are none."""
    return isinstance(value, str) and not any(0xD800 <= ord(c) < 0xE000 for c in value)


def _run(message: Message) -> str:
    run = message.values["run"]
    if not _is_text(run) or not 0 < len(run) <= 200:
        raise FFGBError("a message does not say which run it is about")
    return run


def _whole(message: Message, name: str) -> int:
    value = message.values[name]
    if type(value) is not int or not 0 <= value < 2**40:
        raise FFGBError(f"a message has no {name}")
    return value


def _digits(text: Any) -> str:
    """Hexadecimal digits."""
    try:
        return bytes.fromhex(text).hex()
    except (TypeError, ValueError) as error:
        raise FFGBError("a message has a key, signature or hash that is none") from error


def _bytes(array: Array, shape: Sequence[int]) -> Array:
    if array.dtype != np.uint8 or array.shape != tuple(shape):
        raise FFGBError("a message has keys or boxes of another form")
    return array
