"""Where a training stands: everything that a round changes, and all that a checkpoint must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from ffgb.algorithms.parametric import Parametric
from ffgb.core.functions import Function
from ffgb.core.geometry import Geometry
from ffgb.core.types import Parameters
from ffgb.protocol.costs import Costs
from ffgb.protocol.job import Job, Update


@final
@dataclass(frozen=True, eq=False)
class State:
    """t rounds are over."""

    job: Job
    t: int
    f: Function
    updates: tuple[Update, ...]
    """What clients that missed rounds are sent: every round's increment (they make up f anyway), and nothing for a
    closed family, whose f is one array."""
    delivered: tuple[int, ...]
    """The version each client has, as far as the server knows."""
    costs: Costs
    geometry: Geometry | None = None
    """That of all clients' points, if the server alone has it."""
    memory: Mapping[int, tuple[int, Parameters]] = field(default_factory=dict)
    """What clients keep, if the algorithm lets them, and since which round: of those that ever took part."""
    gradient_bound: float | None = None
    """On ‖∇ℓ(f^t)‖ in L² of all clients' points, if one is known."""
    teacher: State | None = None
    """The last state of the job before, if this one's lessons come from it: who lost them is led through both."""

    @property
    def result(self) -> Function:
        """Proj_C(f^t), Algorithm 1, line 6."""
        return self.job.algorithm.project(self.f)

    @property
    def form(self) -> Form:
        """How f is kept and sent."""
        if isinstance(self.job.algorithm, Parametric):
            return PARAMETERS
        return ONE_ARRAY if self.job.closed else ENSEMBLE

    def missing(self, version: int) -> tuple[Update, ...]:
        """What brings a client from f^version to f^t."""
        return () if version >= self.t else self.form.missing(self, version)

    def after(self, update: Update) -> State:
        """With f^{t+1} in place of f^t."""
        f = update.after(self.f, self.job.algorithm)
        return replace(self, t=update.version, f=f, updates=self.form.kept(self.updates, update), gradient_bound=None)

    def told(self, clients: Iterable[int]) -> State:
        """These clients have f^t."""
        some = set(clients)
        return replace(self, delivered=tuple(self.t if i in some else v for i, v in enumerate(self.delivered)))


class Form(ABC):
    """How f is kept by the server, and sent to clients."""

    @abstractmethod
    def precision(self, job: Job) -> str:
        """In which updates travel."""

    @abstractmethod
    def applied(self, update: Update, job: Job) -> Update:
        """The update that everyone goes on with."""

    @abstractmethod
    def sent(self, state: State, update: Update) -> Update:
        """What clients that have f^t are sent, when the server has f^{t+1}."""

    @abstractmethod
    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        """The updates that must be kept for those who miss them."""

    @abstractmethod
    def missing(self, state: State, version: int) -> tuple[Update, ...]:
        """What brings a client from f^version to f^t."""

    delivered_later: bool = False
    """A client that is sampled now and then needs f only when it is sampled again, and is then sent the newest."""
    counts_own: bool = False
    """Of what a client sent itself the parameters are not counted when they come back, as in the paper."""


@final
class Ensemble(Form):
    """A sum of many members: only increments travel, and all of them are kept."""

    counts_own = True

    def precision(self, job: Job) -> str:
        return job.precision

    def applied(self, update: Update, job: Job) -> Update:
        return update.as_travelled(job.precision)

    def sent(self, state: State, update: Update) -> Update:
        return update

    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        return (*updates, update)

    def missing(self, state: State, version: int) -> tuple[Update, ...]:
        return state.updates[version - state.job.at :]


class OneArray(Form):
    """One member, whatever was added: f itself is sent, which is as large as an increment."""

    delivered_later = True

    def precision(self, job: Job) -> str:
        return "float32"

    def applied(self, update: Update, job: Job) -> Update:
        return update

    def sent(self, state: State, update: Update) -> Update:
        return Update(state.t, 0.0, state.f)

    def kept(self, updates: tuple[Update, ...], update: Update) -> tuple[Update, ...]:
        return ()

    def missing(self, state: State, version: int) -> tuple[Update, ...]:
        return (Update(state.t, 0.0, state.f),)


@final
class ParameterSpace(OneArray):
    """Arrays of which a round may change some: those are sent."""

    def applied(self, update: Update, job: Job) -> Update:
        return update.as_travelled("float32")

    def sent(self, state: State, update: Update) -> Update:
        return update


ENSEMBLE, ONE_ARRAY, PARAMETERS = Ensemble(), OneArray(), ParameterSpace()
