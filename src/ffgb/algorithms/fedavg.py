"""FedAvg: local steps of gradient descent, then the mean of the parameters.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Local, Parametric, descend
from ffgb.core.types import Array


@final
@dataclass(frozen=True)
class FedAvg(Parametric):
    """K steps y ← y − ηv, v ← βv + ∇ℓ(y; batch), v starting at 0 in every round (β = 0: plain steps)."""

    name: ClassVar[str] = "fedavg"
    defaults: ClassVar[Mapping[str, Any]] = {**Parametric.defaults, "momentum": 0.0}

    momentum: float = 0.0

    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        y, v = here.at(state[MODEL]), np.zeros_like(state[MODEL])
        for rows in here.batches(self.steps(here)):
            descend(y, v, here.gradient(y, rows), self.step, self.momentum)
        return {MODEL: y}
