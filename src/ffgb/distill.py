"""Distillation: an ensemble of many learners becomes one, by fitting what it says at points without labels.

The paper's ways (its section 5): a client makes one learner of its K before it sends them (`--distill clients` in
training, algorithms/ffgb.py); the server makes one learner of the whole ensemble, if it has points (`by_server`); and
if it has none, clients do it together by FedAvg, each at its own points, where it knows f anyway (`by_clients`).

Of a classifier the probabilities are fitted (Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network",
2015), after f was divided by a temperature.  Below 1 it makes them more certain: a small learner then spends itself on
where classes meet.  Of a regression the values are fitted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from ffgb.algorithms.fedavg import FedAvg
from ffgb.config import Config, load_data
from ffgb.data import read_points
from ffgb.errors import FFGBError
from ffgb.functions import Array, Clipped, ClosedSum, Family, Function, OpenSum
from ffgb.learners.mlp import Adam, batches, rate_at
from ffgb.losses import Loss, Soft, Square
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.seeds import stream
from ffgb.training import federate, make_parts

TEMPERATURE = 0.5
"""MNIST, 896 MLPs with 95.5 %, to one: 95.3 % at 0.5, 94.6 % at 1, 94.3 % at 2, 93.7 % by fitting values."""
RATE, BATCH = 0.005, 128


def lessons(f: Function, x: Array, loss: Loss) -> tuple[Loss, Array]:
    """What a learner in place of f is to be taught at points x, and by which loss."""
    values = f(x)
    if not loss.classification:
        return Square(loss.outputs), values
    certain = values / TEMPERATURE
    return Soft(loss.outputs), expit(certain) if loss.outputs == 1 else softmax(certain, axis=1)


def by_server(f: Function, loss: Loss, x: Array, steps: int, rng: np.random.Generator) -> Function:
    """One learner of f's family that says what f says at points x, by Adam: no labels are needed, and no clients."""
    taught, y = lessons(f, x, loss)
    family = student(f)
    walk = family.walk(family.features(x), BATCH)
    walk.vector[:] = walk.pack(family.initial(rng))
    adam = Adam(walk.vector, walk.gradient, RATE, 1.0)
    rows = batches(len(x), min(BATCH, len(x)), rng)
    for step in range(steps):
        walk.differentiate(next(rows), lambda values, rows: taught.gradient(values, y[rows]))
        adam.learning_rate = RATE * rate_at(step, steps)
        adam.step()
    return family.member(walk.unpack(walk.vector))


def by_clients(
    f: Function,
    loss: Loss,
    points: Sequence[Array],
    algorithm: FedAvg,
    rounds: int,
    *,
    workers: int | None = 0,
    seed: int = 0,
) -> tuple[Function, list[dict[str, Any]]]:
    """The same by FedAvg, each client at its own points; with the metrics of that, which say what it costs."""
    family = student(f)
    taught = Soft(loss.outputs) if loss.classification else Square(loss.outputs)
    clients = [(x, lessons(f, x, loss)[1]) for x in points]
    state, lines = federate(clients, family, taught, algorithm, rounds, workers=workers, seed=seed)
    one = state.result
    assert isinstance(one, ClosedSum)
    return family.member({name: p.astype(family.spec[name][1]) for name, p in one.parameters.items()}), lines


def student(f: Function) -> Family:
    """The family of the one learner: that of the ensemble."""
    if not isinstance(f, OpenSum):
        raise FFGBError("the model is one array already; there is nothing to distill")
    return f.family


def distill_run(
    run: Run,
    output: Path,
    by: str = "server",
    files: Sequence[str] = (),
    *,
    steps: int = 10_000,
    rounds: int = 200,
    step_size: float = 0.3,
) -> dict[str, Any]:
    """Distill a run's model, write the one that comes of it, and say what was lost and gained."""
    model, config = Model.load(run.path), Config.from_json(run.config)
    dataset = load_data(config)
    f, seed = model.f, config.seed
    inner = f.inner if isinstance(f, Clipped) else f  # a ball's projection is kept
    student(inner)
    models, loss = 0.0, model.job.loss
    if by == "server":
        x = np.concatenate([read_points(Path(file), model.columns) for file in files]) if files else dataset.x
        one = by_server(inner, loss, x, steps, stream(seed, "distill"))
    elif by == "clients":
        if files:
            raise FFGBError("--data is the server's; clients distill at their own points")
        points = [dataset.x[rows] for rows in make_parts(config, dataset)]
        algorithm = FedAvg(step=step_size, K=25, batch=0.2)
        one, lines = by_clients(inner, loss, points, algorithm, rounds, workers=None, seed=seed)
        models = lines[-1]["models_up"] + lines[-1]["models_down"]
    else:
        raise FFGBError(f"--by is server or clients, not {by!r}")
    after = dataclasses.replace(model, f=one.clip(f.radius) if isinstance(f, Clipped) else one)
    temporary = output.with_name(output.name + ".tmp")
    temporary.write_bytes(after.to_bytes())
    temporary.replace(output)
    found: dict[str, Any] = {}
    for name, which in (("before", model), ("after", after)):
        began = time.perf_counter()
        scores = which.score(dataset.x_test, dataset.y_test) if len(dataset.y_test) else {}
        found[name] = {"learners": which.f.terms, **scores, "seconds": time.perf_counter() - began}
    speedup = found["before"]["seconds"] / found["after"]["seconds"]
    return {**found, "speedup": speedup, "models": models, "by": by}
