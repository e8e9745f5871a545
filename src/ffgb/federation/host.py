"""Where clients live: several of them in one process, answering the same message."""

from __future__ import annotations

import hashlib
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

import numpy as np

from ffgb.core.points import KEPT, Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.sparse_rows import rows_in, tensors_of
from ffgb.core.types import Array
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.client import Client
from ffgb.federation.parts import check_own
from ffgb.privacy.hidden import sums_of
from ffgb.privacy.identity import Identity, Simulated
from ffgb.privacy.integers import ROWS, SHARE, SHARES
from ffgb.privacy.release import check_question, with_noise, without_noise
from ffgb.privacy.reports import as_integers
from ffgb.privacy.secured import Secured
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.job import Job
from ffgb.protocol.masking import Introduce, Masking, Prepare, Reopen, Roll, Tie, Ties, Unmask
from ffgb.protocol.messages import KINDS, Asked, Report, Setup, Take, Turn, read
from ffgb.protocol.sending import Sending

log = logging.getLogger("ffgb")

OPEN = ("ready", "resync")
"""Kinds of answers that say nothing of a client's rows."""


class Answering(Protocol):
    """A client, as its host sees it."""

    @property
    def points(self) -> Points: ...

    def answer(self, sending: Sending) -> Message: ...

    def forget(self) -> None: ...


@final
class Host:
    """Clients that live in one process.  What a message describes is built once for all of them.

    In a secure training its clients' numbers leave it under masks.  `identity` says who a client is to the others, and
    draws of rows under masks depend on `secret`.
    """

    def __init__(self, identity: Callable[[int], Identity] | None = None, secret: bytes = b"") -> None:
        self.clients: dict[int, Client | Answering] = {}
        self.secured: dict[int, Secured] = {}
        self.identity, self.secret = identity or (lambda i: Simulated(str(i))), secret
        self.rolls: dict[str, bytes] = {}
        """The last messages that said who takes part, and with which keys."""
        self.reports: dict[int, Mapping[str, Any]] = {}
        """The last report of each client, which under masks only this host knows."""
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
                message.client, rows_in(message.tensors), message.tensors["y"], message.tensors.get("weights")
            )
            return
        sending, masking, failure, digest = None, None, None, b""
        try:
            sending, masking = self._read(message), Masking.of(message)
            digest = hashlib.sha256(data).digest() if masking is not None else b""
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
                    answer = self._answer(i, sending, masking, digest)
                if isinstance(sending, Introduce | Roll | Ties):
                    self.rolls[sending.kind] = data
            except FFGBError as error:
                values = {"text": error.raw, "diverged": isinstance(error, DivergedError)}
                answer = Message("error", message.round, i, values)
            except MemoryError:
                answer = Message("error", message.round, i, {"text": "ran out of memory; choose a smaller learner"})
            except Exception:  # a defect, not the user's doing: the server names the client and the stage
                answer = Message("error", message.round, i, {"text": traceback.format_exc(), "defect": True})
            yield i, encode(answer)
            self._make_room(i)

    def _answer(self, i: int, sending: Sending, masking: Masking | None, digest: bytes) -> Message:
        """A client's answer, under masks where the message says so: they depend on its hash."""
        identity = self.identity(i)
        if identity.private and self.job is None and sending.with_f:
            return Message("resync", client=i, values={"version": -1})  # as after a restart: no client has a job
        if identity.private and (why := without_noise(sending)) is not None:
            raise FFGBError(f"nothing leaves this site without noise, and the server asks for {why}")
        if isinstance(sending, Introduce | Roll | Tie | Ties | Prepare | Unmask | Reopen):
            if i not in self.secured:
                self.secured[i] = Secured(i, self.identity(i))
            return self.secured[i].answer(sending)
        secured = self.secured.get(i)
        in_the_open = masking is None or i in masking.bare
        self.clients[i].points.secret = b"" if in_the_open else self.secret
        if masking is None or in_the_open:
            answer = self._own(i, sending, identity, 1, b"")
            if secured is not None and secured.hides and answer.kind not in OPEN:
                raise FFGBError("in this run totals are secure, and this client's numbers leave it only under masks")
            return answer
        if secured is None or not secured.knows(masking.run):
            return Message("stranger", client=i)
        answer = self._own(i, sending, identity, secured.together(masking.run), secured.among(masking.run))
        if answer.kind in OPEN:
            return answer
        part = self._part(i, sending, answer)
        return secured.hidden(part, sums_of(sending), digest, masking, answer.round)

    def _own(self, i: int, sending: Sending, identity: Identity, answering: int, among: bytes) -> Message:
        """A client's own answer, with its share of the noise where a question asks for it.

        `answering` are the clients that are in the total, 0 if some may be missing; `among` says who they are.
        """
        if identity.private and isinstance(sending, Setup | Take):
            # Neither is tried on the rows: whether a job or a model fits them, or fails, would tell of one.
            return Message("ready", client=i)
        if not (isinstance(sending, Asked) and isinstance(sending.question, PrivateQuestion)):
            return self.clients[i].answer(sending)
        question, points = sending.question, self.clients[i].points
        check_question(question, points, answering, identity)
        answer = self.clients[i].answer(sending)
        if answer.kind != "part":
            return answer
        return replace(answer, tensors=with_noise(question, answer.tensors, points, identity, among))

    def _part(self, i: int, sending: Sending, answer: Message) -> dict[str, Array]:
        """A client's numbers as they are added up under masks."""
        if answer.kind == "report":
            self.reports[i] = {"round": answer.round, **answer.values}
            return as_integers(answer.values)
        if answer.kind != "part" or not isinstance(sending, Asked):
            raise FFGBError("increments are no sums, and have no masks")
        if sending.weighting.level < math.inf:
            raise FFGBError(
                "the server limits the weight of large clients, and under masks it may not: the difference of two such "
                "totals is the part of the largest client"
            )
        points, share = self.clients[i].points, sending.weighting.part(self.clients[i].points.weight)
        try:
            check_own(sending.question, answer.tensors, len(points), share)
        except FFGBError as error:  # its words have numbers of this client in them
            log.warning("client %d keeps its part of %s to itself: %s", i, sending.question.what, error)
            raise FFGBError(
                f"its part of {sending.question.what} is not what such a part can be; the log of this client says more"
            ) from error
        whole = np.rint(np.array([share]) / SHARES.unit).astype(SHARES.dtype)
        return {**answer.tensors, SHARE: whole, ROWS: np.array([len(points)], np.int64)}

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

    def __init__(
        self,
        clients: Mapping[int, Holding],
        identity: Callable[[int], Identity] | None = None,
        secret: bytes = b"",
    ) -> None:
        self.host = Host(identity, secret)
        for i, holding in clients.items():
            list(self.host.answers(holding.message(i), [i]))

    def answer(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        """Its clients' answers, of those among these."""
        mine = [i for i in clients if i in self.host.clients]
        return dict(self.host.answers(data, mine))

    def snapshot(self) -> dict[str, bytes]:
        """What the clients have that is not in the file."""
        rolls = {f"roll {kind}": data for kind, data in self.host.rolls.items()}
        rolls |= {f"masks {i}": encode(secured.memory()) for i, secured in self.host.secured.items()}
        if self.host.setup is None:
            return rolls
        clients = {i: client for i, client in self.host.clients.items() if isinstance(client, Client)}
        states = {f"client {i}": encode(c.snapshot()) for i, c in clients.items() if c.version >= 0}
        return {"setup": self.host.setup, **states, **rolls}

    def restore(self, kept: Mapping[str, bytes]) -> None:
        for kind in (Introduce.kind, Roll.kind):
            if f"roll {kind}" in kept:  # what follows from it follows again
                list(self.host.answers(kept[f"roll {kind}"], list(self.host.clients)))
        for i, secured in self.host.secured.items():
            if f"masks {i}" in kept:
                secured.recall(decode(kept[f"masks {i}"]))
        if "setup" not in kept:
            return
        self.host.remember(kept["setup"])
        for i, client in self.host.clients.items():
            state = kept.get(f"client {i}")
            if state is not None and self.host.job is not None and isinstance(client, Client):
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
        tensors = {**tensors_of(self.x[self.rows]), "y": self.y[self.rows]}
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
