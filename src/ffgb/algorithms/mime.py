"""Mime: local steps with the server's momentum and variance reduction, so that they do what one big step would.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Breaking the centralized barrier for cross-device federated
learning" (Mime), NeurIPS 2021: Algorithm 1 with momentum SGD as the base method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Local, Parametric
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

GRADIENT, MOMENTUM = "c", "s"


@final
@dataclass(frozen=True)
class Mime(Parametric):
    """Two exchanges a round, on the same clients: their full gradients at x, whose mean is c; then K steps each,
    y ← y − η((1−β)(∇ℓ(y; batch) − ∇ℓ(x; batch) + c) + βs).  At the end everyone sets s ← (1−β)c + βs.
    """

    name: ClassVar[str] = "mime"
    defaults: ClassVar[Mapping[str, Any]] = {**Parametric.defaults, "momentum": 0.9}

    arrays: ClassVar[tuple[str, ...]] = (MODEL, GRADIENT, MOMENTUM)
    phases: ClassVar[int] = 2
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise FFGBError(f"Mime's momentum lies in [0, 1), not {self.momentum}; set {option('momentum')}")

    def sends(self, t: int) -> tuple[str, ...]:
        return (GRADIENT,) if t % 2 == 0 else (MODEL,)

    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        x, c, s = (state[name] for name in self.arrays)
        if t % 2 == 0:
            return {GRADIENT: here.gradient(x).copy()}
        y, beta = x.copy(), np.float32(self.momentum)
        for rows in here.batches(self.steps(here)):
            g = here.gradient(y, rows).copy()
            g -= here.gradient(x, rows)
            y -= np.float32(self.step) * ((np.float32(1.0) - beta) * (g + c) + beta * s)
        return {MODEL: y}

    def settle(self, state: dict[str, Array], sent: tuple[str, ...]) -> dict[str, Array]:
        if sent != (MODEL,):
            return state
        beta = self.momentum
        parameters = [name.partition("/")[2] for name in state if name.startswith(f"{MOMENTUM}/")]
        moved = {
            f"{MOMENTUM}/{p}": (1.0 - beta) * state[f"{GRADIENT}/{p}"] + beta * state[f"{MOMENTUM}/{p}"]
            for p in parameters
        }
        return state | moved
