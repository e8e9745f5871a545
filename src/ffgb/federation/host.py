"""Where clients live: several of them in one process, answering the same message."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.client import Client
from ffgb.hardware import cores, physical
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.job import Job
from ffgb.protocol.messages import KINDS, Asked, Report, Sending, Setup, Turn, read

KEPT = physical() // (2 * cores())
"""Bytes of features that one process keeps between messages; beyond, they are computed again when they are needed."""


@final
class Host:
    """Clients that live in one process.  What a message describes is built once for all of them."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.job: Job | None = None
        self.setup: bytes | None = None
        """The message that described the job."""
        self._kept: dict[int, int] = {}  # bytes of features that clients keep, last asked last
        self._bytes = 0

    def answers(self, data: bytes, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Each client's answer to a message, as it becomes ready."""
        message = decode(data)
        if message.kind == "host":
            self.clients[message.client] = Client(
                message.client, message.tensors["x"], message.tensors["y"], message.tensors.get("weights")
            )
            return
        sending, failure = None, None
        try:
            sending = self._read(message)
            if message.kind == Setup.kind:
                self.setup = data
        except Exception as error:  # every client that was asked says so
            failure = error
        for i in clients:
            try:
                if sending is None:
                    raise failure or FFGBError("a message says nothing")
                # no warnings: what overflows is found by the oracle, or in the loss, and said in a sentence
                with np.errstate(all="ignore"):
                    answer = self.clients[i].answer(sending)
            except FFGBError as error:
                values = {"text": error.raw, "diverged": isinstance(error, DivergedError)}
                answer = Message("error", message.round, i, values)
            except MemoryError:
                answer = Message("error", message.round, i, {"text": "ran out of memory; choose a smaller learner"})
            except Exception:  # a defect, not the user's doing: the server names the client and the stage
                answer = Message("error", message.round, i, {"text": traceback.format_exc(), "defect": True})
            yield i, encode(answer)
            self._make_room(i)

    def remember(self, setup: bytes) -> None:
        """Have the job of this message, as if it had come: for clients that are restored."""
        self._read(decode(setup))
        self.setup = setup

    def _make_room(self, asked: int) -> None:
        """Forget the features of clients that were not asked for long, if all together take too much memory."""
        self._bytes -= self._kept.pop(asked, 0)
        self._kept[asked] = self.clients[asked].points.cached
        self._bytes += self._kept[asked]
        while self._bytes > KEPT and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest)
            self.clients[oldest].forget()

    def _read(self, message: Message) -> Sending:
        about_f = message.kind in KINDS and (
            KINDS[message.kind].with_f or (message.round >= 0 and message.kind == Asked.kind)
        )
        if self.job is None and about_f:
            return Report(message.round)  # no client here has a job, and each says so
        sending = read(message, self.job)
        if isinstance(sending, Setup | Turn):
            self.job = sending.job
        return sending


@final
class Resident:
    """Clients at one place, and how they come back after the process that held them has ended."""

    def __init__(self, clients: Mapping[int, Holding]) -> None:
        self.host = Host()
        for i, holding in clients.items():
            list(self.host.answers(holding.message(i), [i]))

    def answer(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        """Its clients' answers, of those among these."""
        mine = [i for i in clients if i in self.host.clients]
        return dict(self.host.answers(data, mine))

    def snapshot(self) -> dict[str, bytes]:
        """What the clients have that is not in the file."""
        if self.host.setup is None:
            return {}
        states = {f"client {i}": encode(c.snapshot()) for i, c in self.host.clients.items() if c.version >= 0}
        return {"setup": self.host.setup, **states}

    def restore(self, kept: Mapping[str, bytes]) -> None:
        if "setup" not in kept:
            return
        self.host.remember(kept["setup"])
        for i, client in self.host.clients.items():
            if (state := kept.get(f"client {i}")) is not None and self.host.job is not None:
                client.restore(self.host.job, decode(state))


@final
@dataclass(frozen=True, eq=False)
class Holding:
    """What one client holds: all of x and y, or some rows of them, which are copied only when they are sent."""

    x: Array
    y: Array
    rows: Array | slice = field(default_factory=lambda: slice(None))
    weights: Array | None = None
    """Of all rows of x; None: each weighs 1."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise FFGBError(f"a client has {len(self.x)} points and {len(self.y)} targets; give one target a point")
        if len(self) == 0:
            raise FFGBError("a client has no points; leave it out")
        if self.weights is not None:
            check_weights(self.weights[self.rows])

    def __len__(self) -> int:
        return len(self.y[self.rows])

    def message(self, i: int) -> bytes:
        tensors = {"x": self.x[self.rows], "y": self.y[self.rows]}
        if self.weights is not None:
            tensors["weights"] = self.weights[self.rows]
        return encode(Message("host", client=i, tensors=tensors))

    @property
    def size(self) -> float:
        """What all rows weigh together."""
        return float(len(self)) if self.weights is None else float(self.weights[self.rows].sum())


def check_weights(weights: Array) -> None:
    """Raise an FFGBError if a client's rows cannot have these weights."""
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise FFGBError("weights of rows are numbers from 0 on; look for missing and negative ones")
    if not weights.sum() > 0:
        raise FFGBError("all rows of a client have the weight 0; leave it out")
