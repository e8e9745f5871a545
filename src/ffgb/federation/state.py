"""Where a training stands: everything that a round changes, and all that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from ffgb.core.functions import Function
from ffgb.core.geometry import Geometry
from ffgb.core.types import Parameters
from ffgb.federation.form import Form, form_of
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
        return form_of(self.job)

    def missing(self, version: int) -> tuple[Update, ...]:
        """What brings a client from f^version to f^t."""
        return () if version >= self.t else self.form.missing(self.f, self.t, self.updates, version - self.job.at)

    def after(self, update: Update) -> State:
        """With f^{t+1} in place of f^t."""
        f = update.after(self.f, self.job.algorithm)
        return replace(self, t=update.version, f=f, updates=self.form.kept(self.updates, update), gradient_bound=None)

    def told(self, clients: Iterable[int]) -> State:
        """These clients have f^t."""
        some = set(clients)
        return replace(self, delivered=tuple(self.t if i in some else v for i, v in enumerate(self.delivered)))
