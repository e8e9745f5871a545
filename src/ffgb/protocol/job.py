"""What clients are told: the job that they take part in, and how f changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ffgb.algorithms import Algorithm, Increments, Totals
from ffgb.core.functions import ClosedSum, Family, Function, from_tensors
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.protocol.codec import Message, as_travelled


@final
@dataclass(frozen=True, eq=False)
class Target:
    """Regression targets are learnt as (y − mean)/scale, and predicted in their own units (Job.predicted)."""

    mean: Array
    scale: Array

    @staticmethod
    def unchanged(outputs: int) -> Target:
        return Target(np.zeros(outputs), np.ones(outputs))

    def encode(self, y: Array) -> Array:
        scaled: Array = (y.reshape(len(y), -1) - self.mean) / self.scale
        return scaled


@final
@dataclass(frozen=True, eq=False)
class Beginning:
    """f^0: its learners' arrays, in the precision in which they travel, and how they are weighted and clipped."""

    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    numbers: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Weights and radii: numbers of a job, and no parameters of a model that would be counted as such."""

    @staticmethod
    def of(f: Function) -> Beginning:
        tensors = light(f)
        numbers = {name: tensors.pop(name) for name in ("weights", "radii", "clip") if name in tensors}
        return Beginning(
            tuple(tensors), tuple(tensors.values()), tuple((n, tuple(a.tolist())) for n, a in numbers.items())
        )

    @property
    def tensors(self) -> Tensors:
        """As `Function.tensors` has them; they may come from elsewhere, and are checked when a function is made."""
        if len(self.names) != len(self.arrays):
            raise FFGBError("f^0 has not as many arrays as names")
        return dict(zip(self.names, self.arrays, strict=True)) | {name: np.array(v) for name, v in self.numbers}


@final
class _AtClients:
    """The procedure that each client runs."""

    def increments(self, algorithm: Increments) -> Increments:
        return algorithm

    def totals(self, algorithm: Totals) -> Increments:
        raise FFGBError("in this training clients answer questions, and send no increments")


@final
@dataclass(frozen=True)
class _Answered:
    """The family of what clients answered in a round."""

    family: Family
    round: int

    def increments(self, algorithm: Increments) -> Family:
        return algorithm.answers(self.family, self.round)

    def totals(self, algorithm: Totals) -> Family:
        raise FFGBError("an update lacks arrays")


class Targets(ABC):
    """Where a client's targets in a job come from."""

    @abstractmethod
    def first(self, job: Job, labels: Array, f: Array | None) -> Array | None:
        """When the job begins, and the last job's f had these values; None if it takes them and they are lost."""

    @abstractmethod
    def kept(self, y: Array) -> Tensors:
        """What a client must keep of them."""

    @abstractmethod
    def again(self, job: Job, labels: Array, kept: Tensors) -> Array:
        """The same as at first, from what was kept."""


@final
class Labels(Targets):
    """The client's own labels."""

    def first(self, job: Job, labels: Array, f: Array | None) -> Array | None:
        return labels if job.target is None else job.target.encode(labels)

    def kept(self, y: Array) -> Tensors:
        return {}

    def again(self, job: Job, labels: Array, kept: Tensors) -> Array:
        return labels if job.target is None else job.target.encode(labels)


@final
class Lessons(Targets):
    """What the last job's f says at the client's points."""

    def first(self, job: Job, labels: Array, f: Array | None) -> Array | None:
        return None if f is None else job.loss.lessons(f)

    def kept(self, y: Array) -> Tensors:
        return {"": y}

    def again(self, job: Job, labels: Array, kept: Tensors) -> Array:
        return kept[""]


LABELS, LESSONS = Labels(), Lessons()


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
    begins: Beginning | None = None
    """f^0, if it is not the algorithm's own: a model that was given, or what another job has left."""
    at: int = 0
    """How many rounds came before: f^0 is called f^at."""
    precision: str = "float32"
    """In which increments travel; a function that is sent as a whole is always sent in its family's own."""
    taught: bool = False
    """Clients learn what the last job's f says at their points, and not their labels (federation/distillation.py)."""

    @property
    def procedure(self) -> Increments:
        """What each client runs in a round; an FFGBError if the server runs it, and asks for sums."""
        return self.algorithm.by(_AtClients())

    @property
    def targets(self) -> Targets:
        """Where a client's targets come from."""
        return LESSONS if self.taught else LABELS

    @property
    def closed(self) -> bool:
        """The trained function is one member, one array, whatever was added."""
        return isinstance(self.algorithm.zero(self.family), ClosedSum)

    def predicted(self, f: Array) -> Array:
        """Predictions in the target's own units, or probabilities, from values of the function."""
        mean, scale = (None, None) if self.target is None else (self.target.mean, self.target.scale)
        return self.loss.unscaled(f, mean, scale)

    def scores(self, f: Array, y: Array, weights: Array | None = None) -> dict[str, float]:
        """Sums over rows that say how good values of the function are, for targets as they are trained on."""
        mean, scale = (None, None) if self.target is None else (self.target.mean, self.target.scale)
        return self.loss.scores(f, y, mean, scale, weights)

    def start(self) -> Function:
        """f^0, checked if it came from elsewhere."""
        return self.algorithm.start(self.family, self.seed, None if self.begins is None else self.begins.tensors)


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
            family = job.algorithm.by(_Answered(family, message.round - 1))  # a part, as it was answered
        increment = from_tensors(family, message.tensors)
        return Update(message.round, float(message.values["decay"]), increment, float(message.values["step"]))

    def after(self, f: Function, algorithm: Algorithm) -> Function:
        return algorithm.after(f, self.decay, self.increment, self.step)

    def needs_the_last(self, job: Job) -> bool:
        """Is it of use only to who has f^t?"""
        return self.decay != 0.0 or self.increment.family.spec.keys() != job.family.spec.keys()
