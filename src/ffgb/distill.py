"""Distillation: an ensemble of many learners becomes one, by fitting its values at points without labels.

The paper's ways (its section 5): a client makes one learner of its K before it sends them (`--distill clients` in
training, algorithms/ffgb.py); the server makes one learner of the whole ensemble, if it has points (`by_server`); and
if it has none, clients do it together by FedAvg, each at its own points, where it knows f anyway (`by_clients`).

Values are fitted, not probabilities: for a sum of functions they are what matters.  They are fitted in units of their
own size, and the one learner gets that size as its weight.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.algorithms.fedavg import FedAvg
from ffgb.config import Config, load_data
from ffgb.data import read_points
from ffgb.errors import FFGBError
from ffgb.functions import Array, Clipped, ClosedSum, Family, Function, OpenSum
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.losses import Square
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.seeds import stream
from ffgb.training import federate, make_parts


def student_of(f: Function, steps: int | None = None) -> Family:
    """The family that one learner is to be of: that of the ensemble, fitted for longer."""
    family = f.family
    if family.closed and not isinstance(f, OpenSum):
        raise FFGBError("the model is one array already; there is nothing to distill")
    return dataclasses.replace(family, steps=steps) if steps and isinstance(family, MLP | Net) else family


def by_server(f: Function, student: Family, x: Array, rng: np.random.Generator) -> Function:
    """One learner with f's values at points x, by least squares: the server has points, from wherever, and no
    labels."""
    values = f(x)
    size = _size(values)
    h = student.member(student.least_squares(student.features(x))(values / size, rng))
    return _one(h) * size


def by_clients(
    f: Function,
    student: Family,
    points: Sequence[Array],
    algorithm: FedAvg,
    rounds: int,
    *,
    tests: Sequence[Array] = (),
    workers: int | None = 0,
    seed: int = 0,
    on_round: Callable[[dict[str, Any]], None] = lambda line: None,
) -> tuple[Function, list[dict[str, Any]]]:
    """The same by FedAvg, each client at its own points: nobody sees anyone's points, and there need be no labels.

    The metrics are those of the federated fit, with what it costs.
    """
    values = [f(x) for x in points]
    size = _size(np.concatenate(values))
    clients = [(x, v / size) for x, v in zip(points, values, strict=True)]
    held_out = [(x, f(x) / size) for x in tests]
    state, lines = federate(
        *(clients, student, Square(student.outputs), algorithm, rounds), tests=held_out, workers=workers, seed=seed
    )
    for line in lines:
        on_round(line)
    one = state.result
    assert isinstance(one, ClosedSum)
    return _one(
        student.member({name: p.astype(student.spec[name][1]) for name, p in one.parameters.items()})
    ) * size, lines


def distill_run(
    run: Run,
    output: Path,
    by: str = "server",
    files: Sequence[str] = (),
    *,
    steps: int = 20_000,
    rounds: int = 200,
    step_size: float = 0.3,
    on_round: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Distill a run's model, write the one that comes of it, and say what was lost and gained."""
    model, config = Model.load(run.path), Config.from_json(run.config)
    dataset = load_data(config)
    f, seed = model.f, config.seed
    inner = f.inner if isinstance(f, Clipped) else f  # a ball's projection is kept
    student, models = student_of(inner, steps), 0.0
    if by == "server":
        x = np.concatenate([read_points(Path(file), model.columns) for file in files]) if files else dataset.x
        one = by_server(inner, student, x, stream(seed, "distill"))
    elif by == "clients":
        if files:
            raise FFGBError("--data is the server's; clients distill at their own points")
        points = [dataset.x[rows] for rows in make_parts(config, dataset)]
        algorithm = FedAvg(step=step_size, K=25, batch=0.2)
        one, lines = by_clients(
            *(inner, student, points, algorithm, rounds), workers=None, seed=seed, on_round=on_round
        )
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


def _size(values: Array) -> float:
    return max(float(np.sqrt(np.square(values).mean())), 1e-12)


def _one(h: Function) -> Function:
    assert isinstance(h, OpenSum)
    return h
