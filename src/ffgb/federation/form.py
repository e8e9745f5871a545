"""How f is kept and sent: as a sum that grows, as one array, or as the arrays of a parameter space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from ffgb.core.functions import Function, from_tensors
from ffgb.core.points import Points
from ffgb.core.types import Array, Tensors
from ffgb.protocol.job import Job, Update


class Form(ABC):
    """How f is kept by the server, sent to clients, and kept by these."""

    @abstractmethod
    def precision(self, job: Job) -> str:
        """In which updates travel."""

    @abstractmethod
    def applied(self, update: Update, job: Job) -> Update:
        """The update that everyone goes on with."""

    @abstractmethod
    def sent(self, f: Function, update: Update) -> Update:
        """What clients that have f^t are sent, when the server has f = f^{t+1}."""

    @abstractmethod
    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        """The updates that must be kept for those who miss them."""

    @abstractmethod
    def missing(self, f: Function, t: int, updates: tuple[Update, ...], some: int) -> tuple[Update, ...]:
        """What brings a client to f = f^t, which has some of the updates since the job began."""

    @abstractmethod
    def at_client(
        self, whole: Function, values: Array, update: Update, job: Job, points: Points, h: Array | None
    ) -> tuple[Function, Array]:
        """What a client keeps of f, and f at its points, after an update; h: the increment's values, if known."""

    @abstractmethod
    def snapshot(self, whole: Function) -> Tensors:
        """What a client keeps of f beside its values, where the job does not tell."""

    @abstractmethod
    def restored(self, job: Job, kept: Tensors) -> Function:
        """The inverse of `snapshot`."""

    delivered_later: bool = False
    """A client that is sampled now and then needs f only when it is sampled again, and is then sent the newest."""
    counts_own: bool = False
    """Of what a client sent itself the parameters are not counted when they come back, as in the paper."""


@final
class Ensemble(Form):
    """A sum of many members: only increments travel, and all of them are kept.

    A client keeps f^0, and f^t at its points: the old ensemble is never evaluated again.
    """

    counts_own = True

    def precision(self, job: Job) -> str:
        return job.precision

    def applied(self, update: Update, job: Job) -> Update:
        return update.as_travelled(job.precision)

    def sent(self, f: Function, update: Update) -> Update:
        return update

    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        return (*updates, update)

    def missing(self, f: Function, t: int, updates: tuple[Update, ...], some: int) -> tuple[Update, ...]:
        return updates[some:]

    def at_client(
        self, whole: Function, values: Array, update: Update, job: Job, points: Points, h: Array | None
    ) -> tuple[Function, Array]:
        h = points.values(update.increment) if h is None else h
        return whole, update.decay * values + update.step * h

    def snapshot(self, whole: Function) -> Tensors:
        return {}

    def restored(self, job: Job, kept: Tensors) -> Function:
        return job.start()


class OneArray(Form):
    """One member, whatever was added: f itself is sent, which is as large as an increment.

    A client evaluates the one array that f is, so that f at its points does not depend on the way it came there.
    """

    delivered_later = True

    def precision(self, job: Job) -> str:
        return "float32"

    def applied(self, update: Update, job: Job) -> Update:
        return update

    def sent(self, f: Function, update: Update) -> Update:
        return Update(update.version, 0.0, f)

    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        return ()

    def missing(self, f: Function, t: int, updates: tuple[Update, ...], some: int) -> tuple[Update, ...]:
        return (Update(t, 0.0, f),)

    def at_client(
        self, whole: Function, values: Array, update: Update, job: Job, points: Points, h: Array | None
    ) -> tuple[Function, Array]:
        whole = update.after(whole, job.algorithm)
        return whole, points.values(whole)

    def snapshot(self, whole: Function) -> Tensors:
        return whole.tensors()

    def restored(self, job: Job, kept: Tensors) -> Function:
        return from_tensors(job.family, kept)


@final
class ParameterSpace(OneArray):
    """Arrays of which a round may change some: those are sent."""

    def applied(self, update: Update, job: Job) -> Update:
        return update.as_travelled("float32")

    def sent(self, f: Function, update: Update) -> Update:
        return update


@final
class _Forms:
    """The form that an algorithm chooses."""

    ensemble, one_array, parameters = Ensemble(), OneArray(), ParameterSpace()


_FORMS = _Forms()


def form_of(job: Job) -> Form:
    """How f is kept and sent in this job."""
    return job.algorithm.form(job.family, _FORMS)
