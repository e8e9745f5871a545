"""Where clients live: several of them in one process, answering the same message."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from ffgb.aggregates import Statistic
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation import Client, Job, Update
from ffgb.machine import cores, physical
from ffgb.recipes import build
from ffgb.wire import Message, decode, encode

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
            self.clients[message.client] = Client(message.client, message.tensors["x"], message.tensors["y"])
            return
        content, failure = None, None
        try:
            content = self._content(message)
            if message.kind == "setup":
                self.setup = data
        except Exception as error:  # every client that was asked says so
            failure = error
        for i in clients:
            try:
                if failure is not None:
                    raise failure
                # no warnings: what overflows is found by the oracle, or in the loss, and said in a sentence
                with np.errstate(all="ignore"):
                    answer = self.clients[i].answer(message, content)
            except FFGBError as error:
                values = {"text": str(error), "diverged": isinstance(error, DivergedError)}
                answer = Message("error", message.round, i, values)
            except MemoryError:
                answer = Message("error", message.round, i, {"text": "ran out of memory; choose a smaller learner"})
            except Exception:  # a defect, not the user's doing: the server names the client and the stage
                answer = Message("error", message.round, i, {"text": traceback.format_exc(), "defect": True})
            yield i, encode(answer)
            self._make_room(i)

    def remember(self, setup: bytes) -> None:
        """Have the job of this message, as if it had come: for clients that are restored."""
        self._content(decode(setup))
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

    def _content(self, message: Message) -> Job | Update | Statistic | None:
        if message.kind in ("setup", "turn"):
            job = build(message.values["recipe"], message.tensors)
            if not isinstance(job, Job):
                raise FFGBError("a set-up message does not describe a job")
            self.job = job
            return job
        if message.kind == "statistic":
            statistic = build(message.values["recipe"], message.tensors)
            if not isinstance(statistic, Statistic):
                raise FFGBError("a message asks for a statistic that is none")
            return statistic
        if message.kind in ("update", "direction") and self.job is not None:
            return Update.read(message, self.job)
        return None
