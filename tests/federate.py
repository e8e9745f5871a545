"""Small federations for tests: clients in, states and metrics out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ffgb.algorithms.ffgb import FFGB
from ffgb.engines.local import Holding, local_engine
from ffgb.functions import Family
from ffgb.losses import Loss
from ffgb.server import Server, State

Part = tuple[np.ndarray, np.ndarray]


def run(
    parts: Sequence[Part],
    family: Family,
    loss: Loss,
    algorithm: FFGB,
    T: int,
    *,
    tests: Sequence[Part] = (),
    workers: int = 0,
    **options: Any,
) -> tuple[State, list[dict[str, Any]]]:
    """T rounds on these clients."""
    holdings = [Holding(x, y) for x, y in parts] + [Holding(x, y, training=False) for x, y in tests]
    with local_engine(holdings, workers) as engine:
        server = Server(engine, [len(y) for _, y in parts], len(tests), **options)
        state = server.start(algorithm, lambda moments: family, loss, moments=False, scale_target=False)
        lines = []
        for after, line in server.rounds(state, T):
            state = after
            lines.append(line)
    return state, lines
