"""SCAFFOLD: local steps, corrected by how a client's gradient differs from everyone's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning", ICML
2020: Algorithm 1 with option II for the control variates, global step 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Local, Parametric, part
from ffgb.core.functions import ClosedSum, Function
from ffgb.core.types import Array, Parameters

CONTROL = "c"


@final
@dataclass(frozen=True)
class Scaffold(Parametric):
    """K steps y ← y − η(∇ℓ(y; batch) − c_i + c).  The control variate c travels with the model: twice FedAvg's
    traffic."""

    name: ClassVar[str] = "scaffold"

    arrays: ClassVar[tuple[str, ...]] = (MODEL, CONTROL)

    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        x, c = state[MODEL], state[CONTROL]
        own = here.oracle.walk.pack(here.memory) if here.memory else np.zeros_like(c)
        y, K, eta, correction = x.copy(), self.steps(here), np.float32(self.step), c - own
        for rows in here.batches(K):
            y -= eta * (here.gradient(y, rows) + correction)  # line 10
        # line 12, option II: c_i⁺ is that less the correction, and so it is also c + (c_i⁺ − c_i) of line 13
        return {MODEL: y, CONTROL: (x - y) / (np.float32(K) * eta)}

    def pooled(self, f: Function, mean: Function, share: float) -> Function:
        """Lines 16 and 17: c moves by the mean of (c_i⁺ − c_i), times the share of clients that it is the mean of."""
        if share == 1.0:
            return mean
        assert isinstance(mean, ClosedSum)
        c, sent = part(f, CONTROL), part(mean, CONTROL)
        moved = {f"{CONTROL}/{p}": c[p] + share * (sent[p] - c[p]) for p in c}
        return ClosedSum(mean.family, {**mean.parameters, **moved})

    def remember(self, memory: Parameters, f: Function, g: Function) -> Parameters:
        """c_i⁺, from what was sent: the same numbers at the client and at the server."""
        c, sent = ({p: a.astype(np.float32) for p, a in part(of, CONTROL).items()} for of in (f, g))
        own = memory or {p: np.zeros_like(a) for p, a in c.items()}
        return {p: sent[p] - (c[p] - own[p]) for p in c}
