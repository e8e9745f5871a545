"""Parametric methods: the variable is the parameters of one member, and the server averages parameters.

They run on the same server loop as the functional methods.  What is trained is a point of a *parameter space*: one or
several arrays of the shape of a member, such as the model x and a control variate c.  A client sends the new values
of some of them, and the mean over clients is what comes next (decay 0): so one array up and one down a round is
FedAvg, and what a method sends more is counted, because it is there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms import Algorithm, AtClient, Forms, Increments, Length, Notes, T, Task, Whole
from ffgb.core.capabilities import Chance, GradientSteps, Walk, lacks
from ffgb.core.functions import Clipped, ClosedFamily, ClosedSum, Family, Function, OpenSum, from_tensors
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.maps import FeatureMap
from ffgb.core.points import Points
from ffgb.core.seeds import stream
from ffgb.core.types import Array, Parameters, Tensors
from ffgb.errors import FFGBError, option
from ffgb.learners.mlp import batches
from ffgb.settings import METHOD, Setting, Values

MODEL = "x"


@final
@dataclass(frozen=True)
class Copies(ClosedFamily):
    """Parameter space: arrays of the shape of a member, by name.  As a function it is the member "x"."""

    inner: Family
    names: tuple[str, ...]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.inner.outputs

    @property
    def features(self) -> FeatureMap:  # type: ignore[override]
        return self.inner.features

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {f"{name}/{p}": form for name in self.names for p, form in self.inner.spec.items()}

    @property
    def size(self) -> int:
        """One *model* is one member, however many arrays travel."""
        return self.inner.size

    def largest(self, name: str) -> float:
        return self.inner.largest(name.partition("/")[2])

    def members(self, stack: Parameters, z: Array) -> Array:
        return self.inner.members({name: stack[f"{MODEL}/{name}"] for name in self.inner.spec}, z)

    def point(self, parts: Mapping[str, Parameters]) -> ClosedSum:
        """Some of the arrays, as what travels."""
        arrays = {f"{name}/{p}": np.asarray(a, np.float64) for name, part in parts.items() for p, a in part.items()}
        return ClosedSum(Copies(self.inner, tuple(parts)), arrays)


def _one(f: Function) -> Parameters:
    """The parameters of a function that is one learner."""
    f = f.inner if isinstance(f, Clipped) else f
    if isinstance(f, OpenSum) and isinstance(f.family, ClosedFamily):
        f = f.collapsed()
    if isinstance(f, OpenSum):
        (block,) = f.merged().blocks
        if f.terms != 1 or block.weights[0] != 1.0 or np.isfinite(block.radii).any():
            raise FFGBError(
                f"a method on parameters begins with one learner, and the model is a weighted sum of {f.terms}; begin "
                "with a model of fedavg or the like, or train with ffgb"
            )
        return {name: p[0] for name, p in block.stack.items()}
    assert isinstance(f, ClosedSum)
    return f.parameters


def part(f: Function, name: str) -> dict[str, Array]:
    """The arrays of this name."""
    assert isinstance(f, ClosedSum)
    assert isinstance(f.family, Copies)
    return {p: f.parameters[f"{name}/{p}"] for p in f.family.inner.spec}


@final
class FirstOrder:
    """The stochastic first-order oracle: the gradient of a client's mean loss over a batch, by the parameters."""

    def __init__(self, family: Copies, z: Array, batch: float) -> None:
        self.n = len(z)
        self.size = max(1, min(self.n, round(batch * self.n) if 0 < batch < 1 else int(batch)))
        if not isinstance(family.inner, GradientSteps):
            raise lacks(family.inner, "gradient by its parameters")
        self.walk: Walk = family.inner.walk(z, self.size)


@final
class Local:
    """A client's own problem, as a method sees it in one round: gradients, and the rows of its batches."""

    def __init__(
        self,
        oracle: FirstOrder,
        y: Array,
        loss: Loss,
        rng: np.random.Generator,
        memory: Parameters | None = None,
        weights: Array | None = None,
    ) -> None:
        """`memory` is what the client kept from its last round; rows may have weights."""
        self.oracle, self.y, self.loss, self.rng, self.memory = oracle, y, loss, rng, memory or {}
        # relative to their mean, so that a step is as long as with rows that weigh the same
        self.weights = None if weights is None else (weights / weights.mean())[:, None]
        self._chance: Chance = None

    def at(self, x: Array) -> Array:
        """x, to be moved in place: where the gradient needs no copy of it."""
        self.oracle.walk.vector[:] = x
        return self.oracle.walk.vector

    def gradient(self, x: Array, rows: Array | None = None) -> Array:
        """∇ of the mean loss over these rows (all, if none are given) at x.  It may be written over; the next call
        does."""
        walk = self.oracle.walk
        if rows is not None:
            return self._at(x, rows, self._chance)
        total, n, first = np.zeros_like(walk.gradient), self.oracle.n, self._apart()
        for start in range(0, n, self.oracle.size):
            some = np.arange(start, min(start + self.oracle.size, n))
            total += np.float32(len(some) / n) * self._at(x, some, (*first, start))
        return total

    def _at(self, x: Array, rows: Array, chance: Chance) -> Array:
        walk = self.oracle.walk
        if walk.vector is not x:
            walk.vector[:] = x
        walk.differentiate(rows, self._slope, chance)
        return walk.gradient

    def _slope(self, values: Array, rows: Array) -> Array:
        slope = self.loss.gradient(values, self.y[rows])
        if self.weights is not None:
            slope = slope * self.weights[rows]
        return slope

    def batches(self, K: int) -> Iterator[Array]:
        """Rows of K batches, cut from shuffled epochs."""
        rows, first = batches(self.oracle.n, self.oracle.size, self.rng), self._apart()
        for k in range(K):
            self._chance = (*first, k)  # the same for both gradients that Mime takes of a batch
            yield next(rows)

    def _apart(self) -> tuple[int, ...]:
        """Seeds of what is random in gradients: a stream of its own, so that batches do not depend on who uses it."""
        seeds = self.rng.bit_generator.seed_seq
        assert isinstance(seeds, np.random.SeedSequence)
        (apart,) = seeds.spawn(1)
        return tuple(apart.generate_state(4).tolist())


def descend(y: Array, v: Array, g: Array, step: float, momentum: float) -> None:
    """v ← βv + g and y ← y − ηv, in place; g is used as scratch, and v left alone if β = 0."""
    if momentum:
        v *= np.float32(momentum)
        v += g
        g[:] = v
    g *= np.float32(step)
    y -= g


@dataclass(frozen=True)
class Parametric(Increments):
    """A method on parameters: K steps of size η on batches at each client, then the mean.

    An algorithm of this kind is a final class with `local`, and `remember` if clients keep something.
    """

    arrays: ClassVar[tuple[str, ...]] = (MODEL,)
    """What the server keeps."""
    mu: ClassVar[float] = 0.0  # type: ignore[misc]
    length: ClassVar[Length] = Whole()  # type: ignore[misc]

    needs: ClassVar[str] = "walk"
    uses: ClassVar[tuple[str, ...]] = ("local_epochs",)
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 50, "local_steps": 25, "schedule": "constant", "batch": 0.2}
    """The paper's settings for FedAvg on MNIST."""

    step: float
    """η."""
    K: int = 1
    batch: float = 128.0
    """Points in a batch, or a share of the client's, below 1."""
    epochs: int = 0
    """Passes over a client's own points in a round, instead of K steps."""

    def __post_init__(self) -> None:
        if not 0 < self.step < np.inf:
            raise FFGBError(f"the step size must be a positive number, not {self.step}; set {option('step_size')}")
        if self.K < 1 or self.epochs < 0 or not self.batch > 0:
            raise FFGBError("a client takes at least one local step, on at least one point")

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        """A field of a method's own has the value of the setting of its name, if there is one."""
        common = {field.name for field in fields(Parametric)}
        names = [field.name for field in fields(cls) if field.name not in common and hasattr(config, field.name)]
        own = {name: getattr(config, name) for name in names}
        steps = {"step": config.step_size, "K": config.local_steps, "batch": float(config.batch or 1)}
        return cls(**steps, epochs=config.local_epochs, **own)

    @classmethod
    def check(cls, config: Values, task: Task) -> None:
        idle = {"mu": config.mu, "no_residual": not config.residual, "validation": config.validation}
        for name, given in idle.items():
            if given:
                raise FFGBError(f"{option(name)} is for ffgb; {config.algorithm} has no use for it")
        if config.learner == "tree":
            raise FFGBError(f"{config.algorithm} moves parameters by gradients, and trees have none; use ffgb")
        if config.schedule not in (None, "constant"):
            raise FFGBError(f"{config.algorithm} takes constant steps; leave {option('schedule')} out, or say constant")

    def form(self, family: Family, forms: Forms[T]) -> T:
        return forms.parameters

    @abstractmethod
    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        """One client's round: from the server's arrays to the new values of those it sends (`sends`)."""

    def sends(self, t: int) -> tuple[str, ...]:
        """The arrays that travel in round t; the others stay, or everyone knows what becomes of them (`settle`)."""
        return self.arrays

    def settle(self, state: dict[str, Array], sent: tuple[str, ...]) -> dict[str, Array]:
        """What everyone does to the arrays by themselves, when these were sent."""
        return state

    def steps(self, here: Local) -> int:
        return self.epochs * -(-here.oracle.n // here.oracle.size) if self.epochs else self.K

    # the server loop's view

    def space(self, family: Family) -> Family:
        return Copies(family, self.arrays)

    def answers(self, family: Family, t: int) -> Family:
        assert isinstance(family, Copies)
        return Copies(family.inner, self.sends(t))

    def start(self, family: Family, seed: int, begins: Tensors | None = None) -> Function:
        """x as it is given, or at random, as a net starts, and all else at 0: the same for everyone, from the seed."""
        assert isinstance(family, Copies)
        inner = family.inner
        if not isinstance(inner, GradientSteps):
            raise lacks(inner, "gradient by its parameters")
        x = inner.initial(stream(seed, "start")) if begins is None else _one(from_tensors(inner, begins))
        zero = {name: np.zeros(shape) for name, (shape, _) in inner.spec.items()}
        return family.point({MODEL: x} | dict.fromkeys(self.arrays[1:], zero))

    def after(self, f: Function, decay: float, increment: Function, step: float) -> Function:
        """The arrays that were sent replace those that were there."""
        assert isinstance(f, ClosedSum)
        assert isinstance(increment, ClosedSum)
        arrays = {**f.parameters, **increment.parameters}
        if increment.parameters.keys() != f.parameters.keys():
            sent = tuple(dict.fromkeys(name.partition("/")[0] for name in increment.parameters))
            spec = f.family.spec
            # as they would travel, so that who computes them and who is sent them have the same bits
            arrays = {name: a.astype(spec[name][1]).astype(np.float64) for name, a in self.settle(arrays, sent).items()}
        return ClosedSum(f.family, arrays)

    def eta(self, k: int, t: int) -> float:
        return self.step

    def decay(self, t: int) -> float:
        return 0.0

    def tools(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> FirstOrder:
        if geometry is not None:
            raise FFGBError(f"a shared geometry is for ffgb; use {option('geometry', 'local')}")
        assert isinstance(family, Copies)
        return FirstOrder(family, points.features(family.features), self.batch)

    def answer(self, t: int, here: AtClient) -> tuple[Function, Notes]:
        oracle: FirstOrder = here.tools
        family: Any = here.f.family
        pack, unpack = oracle.walk.pack, oracle.walk.unpack
        state = {name: pack(part(here.f, name)) for name in self.arrays}
        sent = self.local(t, state, Local(oracle, here.y, here.loss, here.rng, here.memory, here.weights))
        return family.point({name: unpack(vector) for name, vector in sent.items()}), {"gamma": []}

    def project(self, f: Function) -> Function:
        family: Any = f.family
        return ClosedSum(family.inner, part(f, MODEL))


SETTINGS = (
    Setting(
        "momentum",
        "number",
        "Momentum of local steps (fedavg, fedprox), or the server's (mime).",
        METHOD,
        unset="0; mime: 0.9",
        least=0.0,
        below=1.0,
        users=("fedavg", "fedprox", "mime"),
    ),
    Setting(
        "prox", "number", "Pull towards where the round began (fedprox).", METHOD, 0.01, least=0.0, users=("fedprox",)
    ),
    Setting(
        "local_epochs",
        "whole",
        "Passes over a client's rows instead of local steps (fedavg and the like).",
        METHOD,
        0,
        least=0,
        users=("fedavg", "fedprox", "scaffold", "mime"),
    ),
)
