"""The client side: a client's points, its cached f^t, and how it answers the server's messages.

A client is written for one site, as in the paper.  It lives in a worker process, in this process or at a real site;
wherever that is, it sees `Message`s and answers with `Message`s.

    server → client                                      client → server
    ask for moments                                      moments: sums over its points
    setup: the job (algorithm, loss, family, target)     ready
    update: what brings f^{t-1} (or nothing) to f^t      report: loss and score of f^t at its points
    train: round t                                       answer: its increment, and the γ of its oracle calls

A client that is not where the message says (it restarted, or missed rounds) answers `resync` with the version it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.algorithms import Algorithm
from ffgb.errors import FFGBError
from ffgb.features import Moments
from ffgb.functions import Array, Family, Function, OnPoints, from_tensors
from ffgb.losses import Loss
from ffgb.oracles import WO2
from ffgb.seeds import stream
from ffgb.wire import Message


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


def light(f: Function) -> dict[str, Array]:
    """A function's arrays as they travel and are shipped: parameters in the family's own dtype, float32 as a rule."""
    dtypes = {f"parameters/{name}": dtype for name, (_, dtype) in f.family.spec.items()}
    return {name: array.astype(dtypes.get(name, array.dtype), copy=False) for name, array in f.tensors().items()}


@final
@dataclass(frozen=True, eq=False)
class Update:
    """f^{t+1} = decay · f^t + increment.

    For a closed family the increment is f^{t+1} itself and decay is 0: one array of the same size, whatever was missed.
    """

    version: int
    decay: float
    increment: Function

    def message(self) -> Message:
        return Message("update", self.version, values={"decay": self.decay}, tensors=light(self.increment))

    @staticmethod
    def read(message: Message, family: Family) -> Update:
        return Update(message.round, float(message.values["decay"]), from_tensors(family, message.tensors))


@final
class Client:
    """Client i: its points (x, y), and f^t at them.

    A part of a test set is a client too: one that is sent every update, reports on it, and is never asked to train.
    """

    def __init__(self, i: int, x: Array, y: Array) -> None:
        self.i = i
        self.x: Array | None = x
        self.y = y
        self.version = -1  # nothing set up yet; 0 is f^0
        self.job: Job
        self.z: Array
        self.f: Array
        self.oracle: WO2 | None = None

    def answer(self, message: Message, content: Job | Update | None) -> Message:
        """One answer to one message; `content` is the object the message describes, built once for many clients."""
        if isinstance(content, Job):
            return self._setup(content)
        if message.kind == "moments" and self.x is not None:
            return self._moments(self.x)
        if self.version < 0:
            return self._resync()
        if isinstance(content, Update):
            return self._update(content)
        if message.kind == "train":
            return self._train(message.round)
        raise FFGBError(f"client {self.i} cannot answer the message {message.kind!r} now")

    def _moments(self, x: Array) -> Message:
        tensors = {f"x/{k}": v for k, v in Moments.of(x).tensors().items()}
        if self.y.dtype.kind == "f":
            tensors |= {f"y/{k}": v for k, v in Moments.of(self.y).tensors().items()}
        return Message("moments", client=self.i, tensors=tensors)

    def _setup(self, job: Job) -> Message:
        if self.x is None:
            return Message("ready", client=self.i)  # set up already: the message was repeated
        if job.target is not None:
            self.y = job.target.encode(self.y)
        job.loss.check(self.y)
        self.job, self.z = job, job.family.prepare(self.x)
        self.x = None  # from here on only z is used
        self.f = np.zeros((len(self.y), job.loss.outputs))
        self.version = 0
        return Message("ready", client=self.i)

    def _update(self, update: Update) -> Message:
        if self.version == update.version:
            return self._report()  # the message was repeated
        if update.version < self.version or (update.decay != 0.0 and self.version != update.version - 1):
            return self._resync()
        values = update.increment.evaluate(self.z)
        # f^{t+1} from f^t at this client's points: the old ensemble is never evaluated again
        self.f = update.decay * self.f + values if update.decay != 0.0 else values
        self.version = update.version
        return self._report()

    def _train(self, t: int) -> Message:
        if self.version != t:
            return self._resync()
        job = self.job
        if self.oracle is None:
            self.oracle = job.algorithm.oracle(job.family, self.z)
        f = OnPoints(1.0, job.family.zero(), self.f)
        rng = stream(job.seed, "client", t, self.i)
        g, gammas = job.algorithm.client(t, f, self.y, job.loss, self.oracle, rng)
        return Message("answer", t, self.i, {"gamma": gammas}, light(g.increment))

    def _report(self) -> Message:
        """Sums over this client's points: they are added up, so that no one learns more than the total needs."""
        loss = float(self.job.loss.value(self.f, self.y).sum())
        return Message("report", self.version, self.i, {"points": len(self.y), "loss": loss, "score": self._score()})

    def _score(self) -> float:
        """Correct predictions, or the sum of squared errors in the target's own units."""
        if self.job.loss.classification:
            p = self.job.loss.probability(self.f)
            return float((p.argmax(axis=1) == self.y).sum())
        error = self.f - self.y.reshape(self.f.shape)
        if self.job.target is not None:
            error = error * self.job.target.scale
        return float(np.square(error).sum())

    def _resync(self) -> Message:
        return Message("resync", client=self.i, values={"version": self.version})


def sample(seed: int, t: int, clients: int, m: int) -> list[int]:
    """S^t: m of N clients without replacement, in increasing order; it depends on nothing but the seed and t."""
    if m >= clients:
        return list(range(clients))
    chosen = stream(seed, "sampling", t).choice(clients, size=m, replace=False)
    return sorted(int(i) for i in chosen)
