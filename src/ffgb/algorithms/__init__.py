"""Algorithms, one file each, to be read beside the pseudocode of their papers.

Clients take part in one of two ways.  In `Increments` a client runs the algorithm's own procedure and sends what it
adds to f; the server averages.  In `Totals` the server runs the procedure and asks for sums over all clients' rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, final

import numpy as np

from ffgb.core.exact_sums import exact_moments_of_targets
from ffgb.core.functions import Clipped, ClosedSum, Family, Function, OnPoints, OpenSum, from_tensors
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.moments import moments_of_targets
from ffgb.core.oracles import Oracle
from ffgb.core.points import Points
from ffgb.core.questions import Ask, RoundQuestion
from ffgb.core.row_weights import WeightedRows
from ffgb.core.statistics import Moments
from ffgb.core.types import Array, Parameters, Tensors
from ffgb.errors import FFGBError, option
from ffgb.settings import Values

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Notes: TypeAlias = dict[str, list[float]]
"""What a client measured in a round, by name: γ of each oracle call, and whatever else the algorithm counts."""


@final
@dataclass(frozen=True)
class Task:
    """The data and the clients, as settings are checked against them."""

    data: str
    classes: int
    """0 for a regression."""
    sampled: bool
    """Only some clients take part in a round."""


class Chosen(NamedTuple):
    """What of f is the result of a training."""

    algorithm: Algorithm
    """One that could go on with it."""
    f: Function
    measured: Mapping[str, float]
    """Why, for the metrics."""


class Ways(Protocol[T_co]):
    """What becomes of an algorithm by the way in which clients take part: `Algorithm.by` chooses."""

    def increments(self, algorithm: Increments) -> T_co: ...

    def totals(self, algorithm: Totals) -> T_co: ...


class Forms(Protocol[T_co]):
    """In what f is kept and sent: `Algorithm.form` chooses."""

    @property
    def ensemble(self) -> T_co:
        """A sum that grows."""
        ...

    @property
    def one_array(self) -> T_co:
        """One member, whatever is added."""
        ...

    @property
    def parameters(self) -> T_co:
        """Arrays of which a round may change some."""
        ...


class Algorithm(ABC):
    """What both ways have in common: a final, frozen dataclass implements these names."""

    name: ClassVar[str] = ""
    """The word that the command line uses; empty: it is not offered there."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings that it needs other than usual, if no one gives them."""

    needs: ClassVar[str] = ""
    """A capability that its learners must have (core/capabilities.py), by name."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Settings that it has a use for, beside those that name it (`Setting.users`) or one of its fields."""

    geometries: ClassVar[tuple[str, ...]] = ("local",)
    """In whose norms it fits: "shared", of all clients' points together, or "local", of each client's own.  The first
    is its default for learners that can share a geometry."""

    searches: ClassVar[bool] = False
    """It can take the best length along a step, by slopes that clients report (`--schedule search`)."""

    terms: ClassVar[bool] = False
    """Its sum keeps single terms, also where the family is closed."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {}
    """What becomes, over clients and steps, of what clients note beside γ: a column of the metrics each."""

    silent: ClassVar[bool] = False
    """Clients say nothing of their rows but what questions ask for: no one is told how good f is at rows to train with.
    """

    phases: ClassVar[int] = 1
    """Exchanges in a row that the same clients take part in."""

    K: int
    """Local steps."""

    mu: float
    """Tikhonov regularisation."""

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        """The algorithm with the settings of a run."""
        raise FFGBError(f"{cls.__name__} cannot be made from settings; write a class method `configured`")

    @classmethod
    def suits(cls, config: Values, task: Task) -> Mapping[str, Any]:
        """Settings that suit it beside `defaults`, where they depend on other settings."""
        return {}

    @classmethod
    def check(cls, config: Values, task: Task) -> None:
        """Raise an FFGBError before any work if settings do not fit the algorithm."""
        if config.local_epochs or (config.batch or 1) < 1:
            raise FFGBError(
                f"{option('local_epochs')} and a {option('batch')} below 1 are for parametric methods, such as fedavg"
            )

    @abstractmethod
    def by(self, ways: Ways[T]) -> T:
        """What these ways make of it."""

    def form(self, family: Family, forms: Forms[T]) -> T:
        """In what f is kept and sent."""
        return forms.one_array if isinstance(self.zero(family), ClosedSum) else forms.ensemble

    def check_sampling(self) -> None:
        """Raise an FFGBError if every client must take part in every round."""
        return

    def moments_of_targets(self, ask: Ask, outputs: int) -> Moments:
        """By which targets are scaled."""
        return moments_of_targets(ask, outputs)

    def placed(self, geometry: Geometry | None) -> tuple[Geometry | None, Geometry | None]:
        """Where a shared geometry is needed: at the server, and at clients."""
        return None, geometry

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """The algorithm with what it must know of all clients' points; in training targets are (y − mean)/scale."""
        return self

    def seen(self, values: Array) -> Array:
        """Proj_C(f) from f, both as values at some points: what scores are of."""
        return values

    def space(self, family: Family) -> Family:
        """Where the trained function lives, given the family of members."""
        return family

    def trains(self, loss: Loss) -> Loss:
        """The loss that f is trained by, given that of the task."""
        return loss

    def tasked(self, loss: Loss) -> Loss:
        """The inverse of `trains`."""
        return loss

    def over(self, metrics: Sequence[Mapping[str, Any]]) -> bool:
        """Has training nothing left to find, by the lines of the metrics so far?"""
        return False

    def chosen(self, f: Function, metrics: Sequence[Mapping[str, Any]]) -> Chosen | None:
        """What of f is the result, if that is known only when training is over; None: all of it."""
        return None

    def start(self, family: Family, seed: int, begins: Tensors | None = None) -> Function:
        """f^0: the empty sum, or the function that is given by its arrays.

        Of a function that was clipped as a whole (Proj_C) the sum inside is taken: that is what Algorithm 1 goes on
        from.
        """
        zero = self.zero(family)
        if begins is None:
            return zero
        f = from_tensors(family, begins)
        f = f.inner if isinstance(f, Clipped) else f
        if isinstance(zero, ClosedSum):
            return f.collapsed() if isinstance(f, OpenSum) else f
        return zero + f

    def zero(self, family: Family) -> Function:
        """The empty sum."""
        return family.zero()

    def after(self, f: Function, decay: float, increment: Function, step: float) -> Function:
        """f^{t+1} from f^t, the same operations in the same order wherever it is computed."""
        return f * decay + increment * step

    @abstractmethod
    def eta(self, k: int, t: int) -> float:
        """η^{k,t}."""

    def decay(self, t: int) -> float:
        """Π_k (1 − μη^{k,t}): what is left of f^t after round t, the same in every client's g^{K+1,t}."""
        decay = 1.0
        for k in range(1, self.K + 1):
            decay *= 1.0 - self.mu * self.eta(k, t)
        return decay

    def project(self, f: Function) -> Function:
        """Proj_C, at the end."""
        return f


class Increments(Algorithm):
    """A client procedure for the server of Algorithm 1."""

    length: Length
    """How far the server goes along the mean of the clients' increments."""

    def by(self, ways: Ways[T]) -> T:
        return ways.increments(self)

    def check_sampling(self) -> None:
        self.length.check_sampling()

    def answers(self, family: Family, t: int) -> Family:
        """The family of a client's answer in round t."""
        return family

    def optional(self) -> frozenset[str]:
        """Arrays of an increment that a client may leave out."""
        return frozenset({"radii"})

    def remember(self, memory: Parameters, f: Function, g: Function) -> Parameters:
        """What a client keeps for its next round, from what it kept, was given and answered.

        It follows from what travelled, so that the server knows it too and can restore a client that lost it.
        """
        return {}

    def pooled(self, f: Function, mean: Function, share: float) -> Function:
        """What comes of the mean of the answers, of clients that have this share of all clients' weight."""
        return mean

    @abstractmethod
    def tools(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Any:
        """What a client makes once for its points, and then uses in every round."""

    @abstractmethod
    def answer(self, t: int, here: AtClient) -> tuple[Function, Notes]:
        """A client's round: from f^t to what it sends, with what it noted."""


@final
@dataclass(frozen=True, eq=False)
class AtClient:
    """What a client has when a round begins."""

    family: Family
    f: Function
    """f^t, if the client keeps it; otherwise f^0."""
    values: Array
    """f^t at its points."""
    y: Array
    loss: Loss
    tools: Any
    memory: Parameters
    """What it kept from its last round."""
    rng: np.random.Generator
    weights: Array | None = None
    """Of its rows; None: all weigh the same."""


class Functional(Increments):
    """The paper's client procedures: from f^t to g^{K+1,t}, by calls of a weak-learning oracle."""

    @abstractmethod
    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        """The weak-learning oracle of a client, made once for its points."""

    @abstractmethod
    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        """From f^t to the client's g^{K+1,t}, with what it noted: "gamma" of each oracle call."""

    def tools(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        return self.oracle(family, points, geometry, rng)

    def answer(self, t: int, here: AtClient) -> tuple[Function, Notes]:
        f = OnPoints(1.0, self.zero(here.family), here.values)
        loss = here.loss if here.weights is None else WeightedRows(here.loss, here.weights)
        g, notes = self.client(t, f, here.y, loss, here.tools, here.rng)
        return g.increment, notes


class AskInRound(Protocol):
    """`ask` in a round: a function may come with the question, for clients to look at."""

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any: ...

    @property
    def present(self) -> Sequence[int]:
        """The clients whose answers are in the last total."""
        ...

    def gradient_bound(self, of_loss: float) -> float:
        """A bound on ‖∇ℓ(f^t)‖, given the loss's own; infinite if the geometry is not that of all who are asked."""
        ...

    def noise(self, freedom: float | None) -> float | None:
        """The share of φ that h would explain if φ were nothing but noise; None if that is unknown."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Step:
    """f^{t+1} = decay · f^t + length · h."""

    h: Function
    decay: float
    length: float
    shown: bool
    """Clients have seen h already."""
    measured: Mapping[str, float | None]
    gradient_bound: float = math.inf
    """On ‖∇ℓ(f^{t+1})‖."""


class Totals(Algorithm):
    """A server procedure that asks for sums: it reads like central boosting."""

    geometries: ClassVar[tuple[str, ...]] = ("shared",)
    K: ClassVar[int] = 1  # type: ignore[misc]

    def by(self, ways: Ways[T]) -> T:
        return ways.totals(self)

    def placed(self, geometry: Geometry | None) -> tuple[Geometry | None, Geometry | None]:
        """It solves in a geometry that clients have added up before training."""
        if geometry is None:
            raise FFGBError(f"this algorithm is for a shared geometry; use {option('geometry', 'shared')}")
        return geometry, None

    @abstractmethod
    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """One round, from f^t."""


class Cells(Totals):
    """A server procedure whose sums are by cells of the rows: it needs no geometry.

    The sums, and those by which targets are scaled, have the same bits over any split of the rows (core/exact_sums.py).
    """

    def placed(self, geometry: Geometry | None) -> tuple[Geometry | None, Geometry | None]:
        return None, None

    def moments_of_targets(self, ask: Ask, outputs: int) -> Moments:
        return exact_moments_of_targets(ask, outputs)


class Length(ABC):
    """How far to go along an increment: a final, frozen dataclass."""

    @abstractmethod
    def choose(self, *, whole: T, searched: T) -> T:
        """One of two: to go all the way without asking anyone, or to search."""

    @abstractmethod
    def check_sampling(self) -> None:
        """Raise an FFGBError if every client must take part in every round."""


@final
@dataclass(frozen=True)
class Whole(Length):
    """The step that the schedule says."""

    def choose(self, *, whole: T, searched: T) -> T:
        return whole

    def check_sampling(self) -> None:
        return


@final
@dataclass(frozen=True)
class Searched(Length):
    """The best length, by the slopes of the objective that clients report."""

    def choose(self, *, whole: T, searched: T) -> T:
        return searched

    def check_sampling(self) -> None:
        raise FFGBError(f"the search for a step needs every client in every round; choose another {option('schedule')}")
