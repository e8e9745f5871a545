"""Distillation: an ensemble of many learners becomes one, by fitting what it says at points without labels.

The paper's ways (its section 5): a client makes one learner of its K before it sends them (`--distill clients` in
training, algorithms/ffgb.py); the server makes one learner of the whole ensemble, if it has points (`by_server`); and
if it has none, clients do it together by FedAvg, each at its own points, where it knows f anyway (`by_clients`): after
every boosting round (`--distill rounds`), or once at the end (`ffgb distill RUN --by clients`).

Of a classifier the probabilities are fitted (Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network",
2015), after f was divided by a temperature.  Below 1 it makes them more certain: a small learner then spends itself on
where classes meet.  The learner is multiplied by the temperature afterwards, to be as certain as f: boosting can go on
from it.  Of a regression the values are fitted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.parametric import MODEL, part
from ffgb.core.capabilities import GradientSteps, lacks
from ffgb.core.functions import ClosedSum, Family, Function, OpenSum
from ffgb.core.losses import Loss, Soft, Square
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.mlp import Adam, batches, rate_at
from ffgb.protocol.job import Beginning, Job

RATE, BATCH = 0.005, 128


def lessons(f: Function, x: Array, loss: Loss) -> tuple[Loss, Array]:
    """What a learner in place of f is to be taught at points x, and by which loss."""
    taught = _taught(loss)
    return taught, taught.lessons(f(x))


def _taught(loss: Loss) -> Loss:
    return Soft(loss.outputs) if loss.classification else Square(loss.outputs)


def by_server(f: Function, loss: Loss, x: Array, steps: int, rng: np.random.Generator) -> Function:
    """One learner of f's family that says what f says at points x, by Adam: no labels are needed, and no clients."""
    taught, y = lessons(f, x, loss)
    family = student(f)
    if not isinstance(family, GradientSteps):
        raise lacks(family, "gradient by its parameters")
    walk = family.walk(family.features(x), BATCH)
    walk.vector[:] = walk.pack(family.initial(rng))
    adam = Adam(walk.vector, walk.gradient, RATE, 1.0)
    rows = batches(len(x), min(BATCH, len(x)), rng)
    for step in range(steps):
        walk.differentiate(next(rows), lambda values, rows: taught.gradient(values, y[rows]))
        adam.learning_rate = RATE * rate_at(step, steps)
        adam.step()
    return family.member(walk.unpack(walk.vector)) * taught.temperature


def by_clients(server: Server, state: State, algorithm: FedAvg, rounds: int) -> tuple[State, list[dict[str, Any]]]:
    """The same by FedAvg, each client at its own points: training may go on from the one learner.

    It starts from the learner that was distilled before, if there is one.  The metrics are those of FedAvg, with what
    everything has cost so far.
    """
    job, t = state.job, state.t
    family = student(state.f)
    seed = int(stream(job.seed, "distill", t).integers(2**31))
    loss = _taught(job.loss)
    lesson = Job(algorithm, algorithm.space(family), loss, None, seed, begins=_distilled_before(job), taught=True)
    learning, lines = server.teach(state, lesson), list[dict[str, Any]]()
    for after, line in server.rounds(learning, rounds):
        learning = after
        lines.append(line)
    one = family.member(part(learning.f, MODEL)) * loss.temperature
    return server.go_on(learning, dataclasses.replace(job, begins=Beginning.of(one), at=t)), lines


def _distilled_before(job: Job) -> Beginning | None:
    """The learner that the job began with, if it was one."""
    if job.begins is None or (f := job.start()).terms != 1:
        return None
    assert isinstance(f, OpenSum)
    (block,) = f.merged().blocks
    return Beginning.of(ClosedSum(f.family, {name: p[0] for name, p in block.stack.items()}))


def distilled_rounds(
    server: Server, state: State, T: int, algorithm: FedAvg, rounds: int
) -> Iterator[tuple[State, dict[str, Any]]]:
    """Boosting rounds, each followed by some of distillation, so that f is never more than one learner and a round's.

    The metrics are of the one learner; those of the ensemble before are called so.
    """
    while state.t < T:
        began = time.perf_counter()
        boosted, line = next(server.rounds(state, state.t + 1))
        state, _ = by_clients(server, boosted, algorithm, rounds)
        state, after = server.report(state)
        before = {
            f"ensemble_{name}": line[name] for name in ("test_accuracy", "test_rmse", "test_loss") if name in line
        }
        sizes = {"ensemble_learners": boosted.f.terms, "ensemble_models_up": line["models_up"],
                 "ensemble_models_down": line["models_down"]}  # fmt: skip
        kept = {name: line[name] for name in ("gamma_min", "gamma_median", "participants")}
        yield state, line | after | kept | before | sizes | {"seconds": time.perf_counter() - began}


def student(f: Function) -> Family:
    """The family of the one learner: that of the ensemble."""
    if not isinstance(f, OpenSum):
        raise FFGBError("the model is one array already; there is nothing to distill")
    return f.family
