"""Exchanges of a server and its clients in small trainings, by `python -m tests.federation.written_messages`.

Who is asked for what, in which order, how often after a loss, and how large answers are: little of it shows in a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.algorithms import Algorithm, Searched
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.scaffold import Scaffold
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.means import NormBound, TrimmedMean
from ffgb.core.questions import Ask
from ffgb.core.schedules import Constant
from ffgb.engines.local import InProcess
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.linear import Linear
from ffgb.learners.trees import Tree
from ffgb.protocol.codec import decode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves
from tests.federation.masking import Losing, Loss

FILE = Path(__file__).with_name("written_messages.json")
LOSS = CrossEntropy(3)
COSTLY = ("bytes", "seconds", "setup_seconds")


class Noting(Engine):
    """What is asked of whom, and what comes back."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.notes: list[str] = []

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        message, answers = decode(data), self.inner.exchange(data, clients)
        came = {i: decode(answer) for i, answer in answers.items()}
        sent = sum(array.size for array in message.tensors.values())
        back = " ".join(f"{i}:{a.kind}:{sum(t.size for t in a.tensors.values())}" for i, a in sorted(came.items()))
        asked = ",".join(map(str, clients))
        self.notes.append(f"{message.kind} {what_leaves(message)} {message.round} {sent} to {asked} -> {back}")
        return answers

    def wait(self, clients: Sequence[int]) -> None:
        self.notes.append(f"wait {','.join(map(str, clients))}")
        self.inner.wait(clients)

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)


@dataclass(frozen=True)
class Training:
    """A small training, and what is lost in it."""

    algorithm: Algorithm
    rounds: int = 3
    family: Callable[[Ask], tuple[Family, Geometry | None]] = lambda ask: (Linear(Flatten(3), 3, 0.1), None)
    losses: tuple[Loss, ...] = ()
    tests: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    stop: bool = False
    weights: bool = False


def shared(ask: Ask) -> tuple[Family, Geometry | None]:
    return Linear(Flatten(3), 3, 0.1), share_geometry(ask, Flatten(3), "exact", 0.1)


def trees(ask: Ask) -> tuple[Family, Geometry | None]:
    return Tree(Flatten(3), 3, depth=2), None


SHARED = FFGBShared(Constant(2.0), search=True)
PLAIN = FFGBShared(Constant(2.0))
TRAININGS: dict[str, Callable[[], Training]] = {
    "increments": lambda: Training(FFGB(Constant(1.0), K=2)),
    "increments by size": lambda: Training(FFGB(Constant(1.0), K=2), options={"by_size": True}, weights=True),
    "increments of a part": lambda: Training(FFGB(Constant(1.0)), 5, options={"participation": 2, "seed": 3}),
    "trees": lambda: Training(FFGB(Constant(0.5), K=2), family=trees, options={"precision": "float16"}),
    "trees of a part": lambda: Training(FFGB(Constant(0.5)), 5, trees, options={"participation": 2, "seed": 1}),
    "searched": lambda: Training(FFGB(Constant(1.0), length=Searched()), family=trees),
    "trimmed": lambda: Training(FFGB(Constant(1.0)), options={"aggregate": TrimmedMean(0.2)}),
    "bounded": lambda: Training(SHARED, family=shared, options={"aggregate": NormBound()}),
    "shared": lambda: Training(SHARED, family=shared, options={"by_size": True}, weights=True),
    "shared, may stop": lambda: Training(SHARED, 8, shared, stop=True),
    "shared, not searched": lambda: Training(PLAIN, family=shared, options={"participation": 3}),
    "parameters": lambda: Training(FedAvg(0.1, K=2, batch=0.5), 4, options={"participation": 2}),
    "scaffold": lambda: Training(Scaffold(0.1, K=2, batch=4.0), 4, options={"participation": 2}),
    "two phases": lambda: Training(Mime(0.1, K=2, batch=4.0), 4, options={"participation": 2}),
    "one is lost": lambda: Training(FFGB(Constant(1.0)), losses=(Loss([1], "train", 1),), options={"minimum": 3}),
    "one is slow": lambda: Training(
        FFGB(Constant(1.0)), losses=(Loss([1], "train", 1, times=1, late=True),), options={"minimum": 3}
    ),
    "one is lost in a step": lambda: Training(
        SHARED, family=shared, losses=(Loss([2], "question SlopesOf", 1),), options={"minimum": 3}
    ),
    "one is lost in the set-up": lambda: Training(
        SHARED, family=shared, losses=(Loss([2], "question GramOf", times=1),), options={"minimum": 3}
    ),
    "one does not hear of the update": lambda: Training(
        FFGB(Constant(1.0)), 4, losses=(Loss([0], "update", 2),), options={"minimum": 3}
    ),
    "masked": lambda: Training(SHARED, family=shared, options={"secure": True}),
    "masked, by size": lambda: Training(SHARED, family=shared, options={"secure": True, "by_size": True}, weights=True),
    "masked, tolerant": lambda: Training(SHARED, family=shared, options={"secure": True, "minimum": 3}),
    "masked, one is lost": lambda: Training(
        SHARED, family=shared, losses=(Loss([1], "question GradientOf", 1),), options={"secure": True, "minimum": 3}
    ),
    "masked, one is late": lambda: Training(
        SHARED,
        family=shared,
        losses=(Loss([1], "question GradientOf", 1, times=1, late=True),),
        options={"secure": True, "minimum": 3},
    ),
    "masked, not searched": lambda: Training(PLAIN, family=shared, options={"secure": True}),
}


def written(name: str) -> dict[str, Any]:
    """All exchanges, each round's metrics, and what f comes to."""
    training, rng = TRAININGS[name](), np.random.default_rng(7)
    holdings = []
    for n in (6, 9, 12, 7, 10)[: 4 + training.tests]:
        x = rng.standard_normal((n, 3)).astype(np.float32)
        weights = rng.uniform(0.5, 2.0, n) if training.weights else None
        holdings.append(Holding(x, np.argmax(x + 0.3 * rng.standard_normal((n, 3)), axis=1), weights=weights))
    engine = Noting(Losing(holdings, training.losses, InProcess(holdings)))
    options = dict(training.options)
    if training.weights:
        options["sizes"] = [float(np.sum(h.weights)) for h in holdings[:4] if h.weights is not None]
    with engine:
        server = Server(engine, [6, 9, 12, 7], training.tests, **options)
        state = server.start(training.algorithm, training.family, LOSS)
        lines = []
        for after, line in server.rounds(state, training.rounds, stop=training.stop):
            state = after
            lines.append({key: value for key, value in line.items() if not key.startswith(COSTLY)})
    values = np.abs(state.f(np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)))
    return {"notes": engine.notes, "lines": lines, "f": [float(values.sum()), float(np.square(values).sum())]}


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: written(name) for name in TRAININGS}, indent=0) + "\n")
