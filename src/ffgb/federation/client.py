"""A client: its points, f^t at them, and how it answers the server's messages (protocol/messages.py).

A client is written for one site, as in the paper.  It lives in a worker process, in this process or at a real site;
wherever that is, it sees the same messages and gives the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatchmethod
from typing import Any, final

import numpy as np

from ffgb.algorithms import AtClient
from ffgb.core.functions import Family, Function, from_tensors
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion
from ffgb.core.seeds import stream
from ffgb.core.types import Array, Parameters
from ffgb.errors import DivergedError, FFGBError, option
from ffgb.federation.form import form_of
from ffgb.privacy.integers import to_integers
from ffgb.protocol.codec import Message, as_travelled
from ffgb.protocol.job import Job, Update, light
from ffgb.protocol.messages import Along, Asked, Remember, Report, Setup, Take, Train, Turn
from ffgb.protocol.sending import Sending


@final
class Client:
    """Client i: its points (x, y), and f^t at them.

    A part of a test set is a client too: one that is sent every update, reports on it, and is never asked to train.
    """

    def __init__(self, i: int, x: Array, y: Array, weights: Array | None = None) -> None:
        self.i = i
        self.points = Points(i, x, y, weights)
        self.version = -1  # nothing set up yet; 0 is f^0
        self.job: Job
        self.y: Array
        self.f: Array
        """f^t at the points."""
        self.whole: Function
        """f^t itself, kept if it is one array; otherwise f^0 (form.py)."""
        self.tools: Any = None
        """What the algorithm made for these points."""
        self.memory: Parameters = {}
        """What the algorithm keeps here from round to round, if anything."""
        self.since = 0
        """The round after which it is as it is; 0: nothing is kept."""
        self.next: tuple[int, Parameters] | None = None
        """The memory after a round: it counts when the server says that the round's answer did."""
        self.shown: tuple[int, Function, Array] | None = None
        """The function that came with the last question, in which round, and at the points."""
        self.turn = ""
        """The name of the job, if it takes turns with others."""
        self.aside: dict[str, Message] = {}
        """Where the client is in those others, by name."""

    @property
    def z(self) -> Array:
        return self.points.features(self.job.family.features)

    def forget(self) -> None:
        """Give back what can be computed again."""
        self.points.forget()
        self.tools = None

    def answer(self, sending: Sending) -> Message:
        """One answer to one message."""
        if sending.with_f and self.version < 0:
            return self._resync()
        return self._answer(sending)

    @singledispatchmethod
    def _answer(self, sending: Sending) -> Message:
        raise FFGBError(f"client {self.i} cannot answer the message {sending.kind!r}")

    # Totals

    @_answer.register
    def _(self, asked: Asked) -> Message:
        question, share = asked.question, asked.weighting.share(self.points.weight)
        here = Here(self.points, share)
        if isinstance(question, RoundQuestion):
            if self.version != asked.round:
                return self._resync()
            h = None
            if asked.shown is not None:
                h = self.points.values(asked.shown)
                self.shown = asked.round, asked.shown, h
            if self.i in asked.looking:
                return Message("ready", client=self.i)
            f = self.job.algorithm.seen(self.f) if question.of_result else self.f
            here = Here(self.points, share, self.job.loss, self.y, f, h, family=self.job.family, round=asked.round)
        part = to_integers(question.part(here), question.sums)
        return Message("part", asked.round, self.i, {"points": len(self.points)}, part)

    # The job

    @_answer.register
    def _(self, setup: Setup) -> Message:
        """Start at f^0, from wherever the client was: a client behind the others says so when it is asked."""
        job = setup.job
        y = job.targets.first(job, self.points.y, None if self.version < 0 else self.f)
        if y is None:
            return self._resync()
        job.loss.check(y)
        self.y = y
        self.job, self.version, self.tools, self.shown = job, job.at, None, None
        self.memory, self.since, self.next, self.turn = {}, 0, None, ""
        self.whole = job.start()
        self.f = self.points.values(self.whole) if self.whole.terms else np.zeros((len(self.y), job.loss.outputs))
        return Message("ready", client=self.i)

    @_answer.register
    def _(self, turn: Turn) -> Message:
        """Put the last job aside, if it will have its turn again, and go on where this one was put aside."""
        if self.turn:
            self.aside[self.turn] = self.snapshot()
        if turn.name in self.aside:
            self.restore(turn.job, self.aside.pop(turn.name))
        elif (answer := self._answer(Setup(turn.job))).kind == "resync":
            return answer
        self.turn = turn.name
        return Message("ready", client=self.i)

    # Increments

    @_answer.register
    def _(self, train: Train) -> Message:
        t, since = train.round, train.memory.get(str(self.i), 0)
        if self.next is not None and self.next[0] == since:
            self.memory, self.since, self.next = self.next[1], since, None
        if self.version != t or self.since != since:
            return self._resync()
        job = self.job
        algorithm = job.procedure
        if self.tools is None:
            own = stream(job.seed, "oracle", self.i)
            self.tools = algorithm.tools(job.family, self.points, job.geometry, own)
        rng = stream(job.seed, "client", t, self.i)
        here = AtClient(
            job.family, self.whole, self.f, self.y, job.loss, self.tools, self.memory, rng, self.points.weights
        )
        increment, notes = algorithm.answer(t, here)
        tensors = light(increment)
        _refuse_diverged(increment.family, tensors)
        answer = Message("answer", t, self.i, {"notes": notes}, tensors, job.precision)
        sent = from_tensors(increment.family, as_travelled(answer).tensors)
        self.next = t + 1, algorithm.remember(self.memory, self.whole, sent)
        return answer

    @_answer.register
    def _(self, remember: Remember) -> Message:
        self.memory, self.since, self.next = remember.memory, remember.since, None
        return Message("ready", client=self.i)

    # f^{t+1}

    @_answer.register
    def _(self, take: Take) -> Message:
        update = take.update
        if self.version == update.version:
            answer = self._report()  # the message was repeated
        elif update.version < self.version or (update.needs_the_last(self.job) and self.version != update.version - 1):
            return self._resync()
        else:
            answer = self._go_on(update, None)
        return Message("ready", client=self.i) if take.quiet else answer

    @_answer.register
    def _(self, along: Along) -> Message:
        if self.version == along.round:
            return self._report()
        if self.shown is None or not self.version == along.round - 1 == self.shown[0]:
            return self._resync()
        _, h, values = self.shown
        self.shown = None
        return self._go_on(Update(along.round, along.decay, h, along.step), values)

    def _go_on(self, update: Update, values: Array | None) -> Message:
        """f^{t+1} from f^t; values are those of the increment at the points, if they are known."""
        form = form_of(self.job)
        self.whole, self.f = form.at_client(self.whole, self.f, update, self.job, self.points, values)
        self.version = update.version
        return self._report()

    # Reports

    @_answer.register
    def _(self, report: Report) -> Message:
        return self._report()

    def _report(self) -> Message:
        """Sums over this client's points: they are added up, so that no one learns more than the total needs."""
        job, f, weight = self.job, self.job.algorithm.seen(self.f), self.points.weight
        loss, sums = float(self.points.sum(job.loss.value(f, self.y))), job.scores(f, self.y, self.points.weights)
        score = sums[job.loss.measure.summed]
        return Message(
            "report",
            self.version,
            self.i,
            {"points": len(self.y), "loss": loss, "score": float(score), "weight": weight},
        )

    def _resync(self) -> Message:
        return Message("resync", client=self.i, values={"version": self.version})

    # Where the client is

    def snapshot(self) -> Message:
        """All that a message may have changed, to the bit: for jobs in turns, and for processes that end in between."""
        values: dict[str, Any] = {"since": self.since, "next": None if self.next is None else self.next[0]}
        parts: dict[str, Mapping[str, Array]] = {"memory": self.memory, "y": self.job.targets.kept(self.y)}
        parts["whole"] = form_of(self.job).snapshot(self.whole)
        if self.next is not None:
            parts["next"] = self.next[1]
        if self.shown is not None:
            values["shown"], h, at_points = self.shown
            parts |= {"shown": h.tensors(), "at points": {"": at_points}}
        tensors = {f"{part}:{name}": a for part, arrays in parts.items() for name, a in arrays.items()}
        return Message("state", self.version, self.i, values, {"f": self.f, **tensors})

    def restore(self, job: Job, state: Message) -> None:
        """Be as the snapshot says, in this job."""
        parts: dict[str, dict[str, Array]] = {}
        for key, array in state.tensors.items():
            part, _, name = key.partition(":")
            parts.setdefault(part, {})[name] = array
        self.job, self.version, self.f = job, state.round, state.tensors["f"]
        self.y = job.targets.again(job, self.points.y, parts.get("y", {}))
        self.whole = form_of(job).restored(job, parts.get("whole", {}))
        self.memory, self.since = parts.get("memory", {}), int(state.values["since"])
        after = state.values["next"]
        self.next = None if after is None else (int(after), parts.get("next", {}))
        self.tools, self.shown = None, None
        if "shown" in state.values:
            shown = from_tensors(job.family, parts["shown"])
            self.shown = int(state.values["shown"]), shown, parts["at points"][""]


def _refuse_diverged(family: Family, tensors: Mapping[str, Array]) -> None:
    """What the server would refuse is said here, where it came about."""
    for name in family.spec:
        array = tensors[f"parameters/{name}"]
        if array.dtype.kind == "f" and not np.abs(array).max(initial=0.0) <= family.largest(name):
            raise DivergedError(f"the local steps diverged; choose a smaller {option('step_size')}")
