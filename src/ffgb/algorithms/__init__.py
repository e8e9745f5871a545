"""Algorithms: what a client does in a round.  One file each, to be read beside the paper's pseudocode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ffgb.functions import Array, Function, OnPoints
from ffgb.losses import Loss
from ffgb.oracles import WO2, Oracle


class Algorithm(ABC):
    """A client procedure for the server of Algorithm 1: a final, frozen dataclass that implements these names."""

    oracle: ClassVar[type[WO2]]
    """The weak-learning oracle in a client's own geometry; a client has one, made for its points."""

    search: bool
    """The server looks for the best step along the mean of the clients' increments, by the slopes they report."""

    K: int
    """Local steps."""

    mu: float
    """Tikhonov regularisation."""

    @abstractmethod
    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, list[float]]:
        """From f^t to the client's g^{K+1,t}, with the γ of each oracle call that can be measured at the client."""

    @abstractmethod
    def eta(self, k: int, t: int) -> float:
        """η^{k,t}."""

    @abstractmethod
    def decay(self, t: int) -> float:
        """What is left of f^t in every client's g^{K+1,t}."""

    @abstractmethod
    def project(self, f: Function) -> Function:
        """Proj_C, at the end."""
