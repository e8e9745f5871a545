"""Where clients live: several of them in one process, answering the same message."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from ffgb.errors import FFGBError
from ffgb.federation import Client, Job, Update
from ffgb.recipes import build
from ffgb.wire import Message, decode, encode


@final
class Host:
    """Clients that live in one process.  What a message describes is built once for all of them."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.job: Job | None = None

    def answers(self, data: bytes, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Each client's answer to a message, as it becomes ready."""
        message = decode(data)
        if message.kind == "host":
            self.clients[message.client] = Client(message.client, message.tensors["x"], message.tensors["y"])
            return
        content, failure = None, None
        try:
            content = self._content(message)
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
                answer = Message("error", message.round, i, {"text": str(error)})
            except MemoryError:
                answer = Message("error", message.round, i, {"text": "ran out of memory; choose a smaller learner"})
            except Exception:  # a defect, not the user's doing: the server names the client and the stage
                answer = Message("error", message.round, i, {"text": traceback.format_exc(), "defect": True})
            yield i, encode(answer)

    def _content(self, message: Message) -> Job | Update | None:
        if message.kind == "setup":
            job = build(message.values["recipe"], message.tensors)
            if not isinstance(job, Job):
                raise FFGBError("a set-up message does not describe a job")
            self.job = job
            return job
        if message.kind == "update" and self.job is not None:
            return Update.read(message, self.job.family)
        return None
