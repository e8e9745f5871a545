"""The client side: a client's points, its cached f^t, and how it answers the server's messages.

A client is written for one site, as in the paper.  It lives in a worker process, in this process or at a real site;
wherever that is, it sees `Message`s and answers with `Message`s.

    server → client                                      client → server
    statistic: a question about all points               statistic: its part of the total
    setup: the job (algorithm, loss, family, …)          ready
    turn: one of several jobs, each gone on with in turn  ready
    train: round t                                       answer: its increment, and the γ of its oracle calls
    update: what brings f^{t-1} (or nothing) to f^t      report: loss and score of f^t at its points
    direction: an update whose length is not fixed yet   slopes: of its loss at some lengths
    step: the length                                     report

A client that is not where the message says (it restarted, or missed rounds) answers `resync` with the version it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ffgb.aggregates import Moments, Statistic
from ffgb.algorithms import Algorithm
from ffgb.errors import DivergedError, FFGBError
from ffgb.features import Points
from ffgb.functions import Array, Family, Function, OnPoints, Parameters, from_tensors
from ffgb.geometry import AtServer, Geometry
from ffgb.losses import Loss
from ffgb.oracles import Oracle
from ffgb.seeds import stream
from ffgb.wire import Message, as_travelled


@final
@dataclass(frozen=True, eq=False)
class Target:
    """Regression targets are learnt as (y − mean)/scale, by aggregated moments, and predicted in their own units."""

    mean: Array
    scale: Array

    @staticmethod
    def by(moments: Moments) -> Target:
        deviation = np.sqrt(moments.variance)
        return Target(moments.mean, np.where(deviation > 0, deviation, 1.0))

    @staticmethod
    def unchanged(outputs: int) -> Target:
        return Target(np.zeros(outputs), np.ones(outputs))

    def encode(self, y: Array) -> Array:
        scaled: Array = (y.reshape(len(y), -1) - self.mean) / self.scale
        return scaled

    def decode(self, f: Array) -> Array:
        values: Array = f * self.scale + self.mean
        return values


@final
@dataclass(frozen=True, eq=False)
class Job:
    """All that a client must know to take part: described in one set-up message."""

    algorithm: Algorithm
    family: Family
    loss: Loss
    target: Target | None
    seed: int
    geometry: Geometry | None = None
    """None: every client fits in the geometry of its own points, as in the paper."""
    begins: tuple[Array, ...] | None = None
    """What f^0 is, if another job came before: one member, its arrays in the order of the family's own."""
    share: float = 1.0
    """f^0 is so many times that member."""
    at: int = 0
    """How many rounds came before: f^0 is called f^at."""
    precision: str = "float32"
    """In which increments travel; a function that is sent as a whole is always sent in its family's own."""
    taught: bool = False
    """Clients learn what the last job's f says at their points, and not their labels (distill.py)."""

    @property
    def closed(self) -> bool:
        """The trained function is one member, one array, whatever was added."""
        return self.family.closed and not self.algorithm.clips

    def start(self) -> Function:
        """f^0, checked if it came from elsewhere."""
        f = self.algorithm.start(self.family, self.seed, self.begins)
        return f if self.begins is None else from_tensors(self.family, (f * self.share).tensors())


def light(f: Function) -> dict[str, Array]:
    """A function's arrays as they travel and are shipped: parameters in the family's own dtype, float32 as a rule."""
    dtypes = {f"parameters/{name}": dtype for name, (_, dtype) in f.family.spec.items()}
    return {name: array.astype(dtypes.get(name, array.dtype), copy=False) for name, array in f.tensors().items()}


@final
@dataclass(frozen=True, eq=False)
class Update:
    """f^{t+1} = decay · f^t + step · increment.

    For a closed family that is sent anew the increment is f^{t+1} itself and decay is 0: one array of the same size,
    whatever was missed.
    """

    version: int
    decay: float
    increment: Function
    step: float = 1.0

    def message(self, kind: str = "update", *, exact: bool = False, precision: str = "float32") -> Message:
        """As it travels; `exact` keeps every bit, for a client that is restored and must go on as it was."""
        values = {"decay": self.decay, "step": self.step}
        tensors = self.increment.tensors() if exact else light(self.increment)
        return Message(kind, self.version, values=values, tensors=tensors, precision=precision)

    def as_travelled(self, precision: str) -> Update:
        """With the increment as its receivers have it."""
        message = as_travelled(self.message(precision=precision))
        return replace(self, increment=from_tensors(self.increment.family, message.tensors))

    @staticmethod
    def read(message: Message, job: Job) -> Update:
        family = job.family
        if not all(f"parameters/{name}" in message.tensors for name in family.spec):
            family = job.algorithm.answers(family, message.round - 1)  # a part, as it was answered
        increment = from_tensors(family, message.tensors)
        return Update(message.round, float(message.values["decay"]), increment, float(message.values["step"]))

    def after(self, f: Function, algorithm: Algorithm) -> Function:
        return algorithm.after(f, self.decay, self.increment, self.step)

    def needs_the_last(self, job: Job) -> bool:
        """Is it of use only to who has f^t?"""
        return self.decay != 0.0 or self.increment.family.spec.keys() != job.family.spec.keys()


@final
class Client:
    """Client i: its points (x, y), and f^t at them.

    A part of a test set is a client too: one that is sent every update, reports on it, and is never asked to train.
    """

    def __init__(self, i: int, x: Array, y: Array) -> None:
        self.i = i
        self.points = Points(i, x, y)
        self.version = -1  # nothing set up yet; 0 is f^0
        self.job: Job
        self.y: Array
        self.f: Array
        """f^t at the points."""
        self.whole: Function
        """f^t itself, kept if the family is closed: then it is one array."""
        self.oracle: Oracle | None = None
        self.memory: Parameters = {}
        """What the algorithm keeps here from round to round, if anything."""
        self.since = 0
        """The round after which it is as it is; 0: nothing is kept."""
        self.next: tuple[int, Parameters] | None = None
        """The memory after a round: it counts when the server says that the round's answer did."""
        self.direction: tuple[Update, Array] | None = None
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
        self.oracle = None

    def answer(self, message: Message, content: Job | Update | Statistic | None) -> Message:
        """One answer to one message; `content` is the object the message describes, built once for many clients."""
        if isinstance(content, Job):
            return self._turn(content, str(message.values["name"])) if message.kind == "turn" else self._setup(content)
        if isinstance(content, Statistic):
            part = content.of(self.points)
            return Message("statistic", client=self.i, values={"points": len(self.points)}, tensors=part)
        if self.version < 0:
            return self._resync()
        if isinstance(content, Update):
            return self._slopes(content, message) if message.kind == "direction" else self._update(content)
        if message.kind == "step":
            return self._step(message)
        if message.kind == "train":
            return self._train(message.round, int(message.values.get("memory", {}).get(str(self.i), 0)))
        if message.kind == "report":
            return self._report()
        if message.kind == "memory":
            self.memory, self.since, self.next = message.tensors, message.round, None
            return Message("ready", client=self.i)
        raise FFGBError(f"client {self.i} cannot answer the message {message.kind!r} now")

    def snapshot(self) -> Message:
        """All that a message may have changed, to the bit: for jobs in turns, and for processes that end in between."""
        values: dict[str, Any] = {"since": self.since, "next": None if self.next is None else self.next[0]}
        parts: dict[str, Mapping[str, Array]] = {"memory": self.memory}
        if self.job.taught:
            parts["y"] = {"": self.y}
        if self.job.closed:
            parts["whole"] = self.whole.tensors()
        if self.next is not None:
            parts["next"] = self.next[1]
        if self.direction is not None:
            update, at_points = self.direction
            values["direction"] = [update.version, update.decay, update.step]
            parts |= {"direction": update.increment.tensors(), "at points": {"": at_points}}
        tensors = {f"{part}:{name}": a for part, arrays in parts.items() for name, a in arrays.items()}
        return Message("state", self.version, self.i, values, {"f": self.f, **tensors})

    def restore(self, job: Job, state: Message) -> None:
        """Be as the snapshot says, in this job."""
        parts: dict[str, dict[str, Array]] = {}
        for key, array in state.tensors.items():
            part, _, name = key.partition(":")
            parts.setdefault(part, {})[name] = array
        self.job, self.version, self.f = job, state.round, state.tensors["f"]
        self.y = parts["y"][""] if job.taught else self._labels(job)
        self.whole = from_tensors(job.family, parts["whole"]) if job.closed else job.start()
        self.memory, self.since = parts.get("memory", {}), int(state.values["since"])
        after = state.values["next"]
        self.next = None if after is None else (int(after), parts.get("next", {}))
        self.oracle, self.direction = None, None
        if "direction" in state.values:
            version, decay, step = state.values["direction"]
            update = Update(int(version), float(decay), from_tensors(job.family, parts["direction"]), float(step))
            self.direction = update, parts["at points"][""]

    def _labels(self, job: Job) -> Array:
        """The targets as the job has them."""
        return self.points.y if job.target is None else job.target.encode(self.points.y)

    def _setup(self, job: Job) -> Message:
        """Start at f^0, from wherever the client was: a client behind the others says so when it is asked."""
        if job.taught and self.version < 0:
            return self._resync()
        self.y = job.loss.lessons(self.f) if job.taught else self._labels(job)
        job.loss.check(self.y)
        self.job, self.version, self.oracle, self.direction = job, job.at, None, None
        self.memory, self.since, self.next, self.turn = {}, 0, None, ""
        self.whole = job.start()
        known = job.algorithm.parametric or job.begins is not None
        self.f = self.whole.evaluate(self.z) if known else np.zeros((len(self.y), job.loss.outputs))
        return Message("ready", client=self.i)

    def _turn(self, job: Job, name: str) -> Message:
        """Put the last job aside, if it will have its turn again, and go on where this one was put aside."""
        if self.turn:
            self.aside[self.turn] = self.snapshot()
        if name in self.aside:
            self.restore(job, self.aside.pop(name))
        elif (answer := self._setup(job)).kind == "resync":
            return answer
        self.turn = name
        return Message("ready", client=self.i)

    def _update(self, update: Update) -> Message:
        if self.version == update.version:
            return self._report()  # the message was repeated
        if update.version < self.version or (update.needs_the_last(self.job) and self.version != update.version - 1):
            return self._resync()
        return self._take(update, None if self.job.algorithm.parametric else update.increment.evaluate(self.z))

    def _slopes(self, update: Update, message: Message) -> Message:
        """The slope of this client's objective at f^t + s(g − f^t), for each length s that is asked about."""
        if self.version != update.version - 1:
            return self._resync()
        values = update.increment.evaluate(self.z)
        self.direction = update, values
        mu = self.job.algorithm.mu
        change = values - (1.0 - update.decay) * self.f
        slopes = [
            np.vdot(self.job.loss.gradient(g := self.f + s * change, self.y) + mu * g, change) / len(self.y)
            for s in message.values["lengths"]
        ]
        square = float(np.vdot(values, values)) / len(self.y)
        return Message(
            "slopes", message.round, self.i, tensors={"slopes": np.array(slopes), "square": np.array([square])}
        )

    def _step(self, message: Message) -> Message:
        if self.version == message.round:
            return self._report()
        if self.direction is None or self.version != message.round - 1 or self.direction[0].version != message.round:
            return self._resync()
        (update, values), self.direction = self.direction, None
        decay, step = (float(v) for v in message.tensors["step"])
        return self._take(Update(update.version, decay, update.increment, step), values)

    def _take(self, update: Update, values: Array | None) -> Message:
        """f^{t+1} from f^t, given the increment at this client's points."""
        if not self.job.closed:
            assert values is not None
            # the old ensemble is never evaluated again
            self.f = update.decay * self.f + update.step * values
        else:
            # From the one array that f is, so that f at the points does not depend on the way it came here.
            self.whole = update.after(self.whole, self.job.algorithm)
            known = values if update.decay == 0.0 and update.step == 1.0 else None
            self.f = self.whole.evaluate(self.z) if known is None else known
        self.version = update.version
        return self._report()

    def _train(self, t: int, since: int) -> Message:
        if self.next is not None and self.next[0] == since:
            self.memory, self.since, self.next = self.next[1], since, None
        if self.version != t or self.since != since:
            return self._resync()
        job = self.job
        if self.oracle is None:
            own = stream(job.seed, "oracle", self.i)
            self.oracle = job.algorithm.oracle(job.family, self.points, job.geometry, own)
        algorithm = job.algorithm
        f = (
            OnPoints(0.0, self.whole, self.f)
            if algorithm.parametric
            else OnPoints(1.0, algorithm.zero(job.family), self.f)
        )
        self.oracle.memory = self.memory
        rng = stream(job.seed, "client", t, self.i)
        g, notes = algorithm.client(t, f, self.y, job.loss, self.oracle, rng)
        values: dict[str, Any] = {"notes": notes}
        if isinstance(job.geometry, AtServer):  # the server measures γ, and needs ‖φ‖² for it
            values["square"] = float(np.square(job.loss.gradient(self.f, self.y)).sum()) / len(self.y)
        tensors = light(g.increment)
        _refuse_diverged(g.increment.family, tensors)
        answer = Message("answer", t, self.i, values, tensors, job.precision)
        if algorithm.parametric:
            sent = from_tensors(g.increment.family, as_travelled(answer).tensors)
            self.next = t + 1, algorithm.remember(self.memory, self.whole, sent)
        return answer

    def _report(self) -> Message:
        """Sums over this client's points: they are added up, so that no one learns more than the total needs."""
        loss = float(self.job.loss.value(self.job.algorithm.seen(self.f), self.y).sum())
        return Message("report", self.version, self.i, {"points": len(self.y), "loss": loss, "score": self._score()})

    def _score(self) -> float:
        """Correct predictions, or the sum of squared errors in the target's own units."""
        f = self.job.algorithm.seen(self.f)
        if self.job.loss.classification:
            p = self.job.loss.probability(f)
            return float((p.argmax(axis=1) == self.y).sum())
        error = f - self.y.reshape(f.shape)
        if self.job.target is not None:
            error = error * self.job.target.scale
        return float(np.square(error).sum())

    def _resync(self) -> Message:
        return Message("resync", client=self.i, values={"version": self.version})


def _refuse_diverged(family: Family, tensors: Mapping[str, Array]) -> None:
    """What the server would refuse is said here, where it came about."""
    for name in family.spec:
        array = tensors[f"parameters/{name}"]
        if array.dtype.kind == "f" and not np.abs(array).max(initial=0.0) <= family.largest(name):
            raise DivergedError("the local steps diverged; choose a smaller --step-size")


def sample(seed: int, t: int, clients: int, m: int) -> list[int]:
    """S^t: m of N clients without replacement, in increasing order; it depends on nothing but the seed and t."""
    if m >= clients:
        return list(range(clients))
    chosen = stream(seed, "sampling", t).choice(clients, size=m, replace=False)
    return sorted(int(i) for i in chosen)
