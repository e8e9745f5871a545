"""Algorithms: what a client does in a round.  One file each, to be read beside the paper's pseudocode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from ffgb.aggregates import Ask
from ffgb.features import Points
from ffgb.functions import Array, Family, Function, OnPoints, OpenSum, Parameters
from ffgb.geometry import Geometry
from ffgb.losses import Loss
from ffgb.oracles import Oracle

Notes: TypeAlias = dict[str, list[float]]
"""What a client measured in a round, by name: γ of each oracle call, and whatever else the algorithm counts."""


class Algorithm(ABC):
    """A client procedure for the server of Algorithm 1: a final, frozen dataclass that implements these names."""

    clips: ClassVar[bool] = False
    """Its terms are clipped, so that a sum of members of a closed family is no longer one."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {}
    """What becomes, over clients and steps, of what clients note beside γ: a column of the metrics each."""

    parametric: ClassVar[bool] = False
    """It trains the parameters of one member, rather than a sum of members (parametric.py)."""

    phases: ClassVar[int] = 1
    """Exchanges in a row that the same clients take part in."""

    search: bool
    """The server looks for the best step along the mean of the clients' increments, by the slopes they report."""

    K: int
    """Local steps."""

    mu: float
    """Tikhonov regularisation."""

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """The algorithm with what it must know of all clients' points; in training targets are (y − mean)/scale."""
        return self

    def seen(self, values: Array) -> Array:
        """Proj_C(f) from f, both as values at some points: what scores are of."""
        return values

    def space(self, family: Family) -> Family:
        """Where the trained function lives, given the family of members."""
        return family

    def answers(self, family: Family, t: int) -> Family:
        """What a client's answer in round t is of."""
        return family

    def start(self, family: Family, seed: int, begins: Sequence[Array] | None = None) -> Function:
        """f^0: what it begins with, the arrays of one member, if that is given."""
        return self.zero(family) if begins is None else family.member(dict(zip(family.spec, begins, strict=True)))

    def zero(self, family: Family) -> Function:
        """The empty sum."""
        return OpenSum(family, ()) if self.clips else family.zero()

    def remember(self, memory: Parameters, f: Function, g: Function) -> Parameters:
        """What a client keeps for its next round, from what it kept, was given and answered.

        It follows from what travelled, so that the server knows it too and can restore a client that lost it.
        """
        return {}

    def pooled(self, f: Function, mean: Function, share: float) -> Function:
        """What comes of the mean of the answers, of clients that have this share of all clients' weight."""
        return mean

    def after(self, f: Function, decay: float, increment: Function, step: float) -> Function:
        """f^{t+1} from f^t, the same operations in the same order wherever it is computed."""
        return f * decay + increment * step

    @abstractmethod
    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        """The weak-learning oracle of a client, made once for its points."""

    @abstractmethod
    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        """From f^t to the client's g^{K+1,t}, with what it noted: "gamma" of each oracle call that it can measure."""

    @abstractmethod
    def eta(self, k: int, t: int) -> float:
        """η^{k,t}."""

    def decay(self, t: int) -> float:
        """Π_k (1 − μη^{k,t}): what is left of f^t after round t, the same in every client's g^{K+1,t}."""
        decay = 1.0
        for k in range(1, self.K + 1):
            decay *= 1.0 - self.mu * self.eta(k, t)
        return decay

    @abstractmethod
    def project(self, f: Function) -> Function:
        """Proj_C, at the end."""
