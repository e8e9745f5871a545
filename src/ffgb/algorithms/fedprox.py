"""FedProx: FedAvg with a pull towards where the round began.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Local, Parametric, descend
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option


@final
@dataclass(frozen=True)
class FedProx(Parametric):
    """K steps on the client's loss plus (prox/2)‖y − x‖²."""

    name: ClassVar[str] = "fedprox"
    defaults: ClassVar[Mapping[str, Any]] = {**Parametric.defaults, "momentum": 0.0}

    momentum: float = 0.0
    prox: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prox < np.inf:
            raise FFGBError(f"FedProx's pull is 0 or a positive number, not {self.prox}; set {option('prox')}")

    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        x = state[MODEL]
        y, v = here.at(x), np.zeros_like(x)
        for rows in here.batches(self.steps(here)):
            g = here.gradient(y, rows)
            g += np.float32(self.prox) * (y - x)
            descend(y, v, g, self.step, self.momentum)
        return {MODEL: y}
