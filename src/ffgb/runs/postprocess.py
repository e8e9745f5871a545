"""What can be done to the ensemble of a run that has ended: make one learner of it, or weight its terms anew."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.algorithms.fedboost import FedBoost, Predictions, Weighted
from ffgb.core.functions import Clipped, Function
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError, SettingError, command, option
from ffgb.federation.distillation import by_clients, by_server, student
from ffgb.federation.server import Server
from ffgb.files import atomic_write
from ffgb.hardware import available
from ffgb.protocol.costs import Costs
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_student
from ffgb.runs.model import Model
from ffgb.user_code import named

SITES = ("sites",)
"""The data of a run between real sites."""
TIMES = 5
"""How often a prediction is timed."""


def distill_run(
    run: Run,
    output: Path,
    by: str = "server",
    files: Sequence[str] = (),
    *,
    steps: int = 10_000,
    rounds: int = 300,
    step_size: float | None = None,
) -> dict[str, Any]:
    """Distill a run's model, write the one that comes of it, and say what was lost and gained.

    The server's points are files; without any, those that the run was trained on, which a real server has not.
    """
    model, config = Model.load(run.path), Config.from_json(run.config)
    # points at the server are all that a run between real sites needs; there is nothing to score it on then
    dataset = None if config.data == SITES and files and by == "server" else _data(config)
    inner = _inner(model.f)
    student(inner)
    costs = Costs()
    if by == "server":
        x = dataset.x if dataset and not files else np.concatenate([model.read(Path(file)) for file in files])
        one = by_server(inner, model.job.loss, x, steps, stream(config.seed, "distill"))
    elif by == "clients":
        if files:
            raise SettingError("data", "is the server's; clients distill at their own points")
        saved = run.load()
        assert saved is not None  # there is a model
        assert dataset is not None
        student_by = make_student(config)
        if step_size is not None:
            student_by = dataclasses.replace(student_by, step=step_size)
        with _server(config, dataset) as server:
            state, _, _ = saved
            if state.t != run.summary["round"]:
                raise FFGBError(
                    f"the model of {run.path} is newer than its last whole checkpoint; first repair that with: "
                    f"{command('train', resume=True, out=run.path)}"
                )
            after, _ = by_clients(server, state, student_by, rounds)
        one, costs = after.f, after.costs.since(state.costs)
    else:
        raise SettingError("by", f"is server or clients, not {by!r}")
    found = _written(model, one, output, dataset) | _spent(costs, config, model)
    where = len(x) if by == "server" else 0
    return found | {"by": by, "points": where, "clients_own": by == "server" and not files}


def reweight_run(
    run: Run,
    output: Path,
    *,
    rounds: int = 50,
    step_size: float = 0.03,
    sampled: float = 1.0,
    on_round: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Weight the terms of a run's ensemble anew, by FedBoost, and write the model that comes of it."""
    model, config = Model.load(run.path), Config.from_json(run.config)
    dataset, f = _data(config), _inner(model.f)
    family = Weighted(Predictions.of(f))
    need = 4 * family.features.dimension * (len(dataset.x) + len(dataset.x_test))
    if need > (have := available()):
        raise FFGBError(
            f"what {f.terms:,} learners say at all points fills {need / 1e9:,.1f} GB of memory, and "
            f"{have / 1e9:,.1f} GB are free; distill the run first ({option('distill', 'clients')}), or reweight one "
            "of fewer rounds"
        )
    algorithm = FedBoost(step=step_size, sampled=sampled, seed=config.seed)
    loss = model.job.loss
    with _server(config, dataset) as server:
        state = server.start(algorithm, lambda ask: (family, None), loss, scale_target=not loss.classification)
        for after, line in server.rounds(state, rounds):
            state = after
            on_round(line)
    return _written(model, state.result, output, dataset) | _spent(state.costs, config, model)


def _data(config: Config) -> Dataset:
    if config.data == SITES:
        raise FFGBError(
            "the rows of this run are at its sites, and are needed here; without them there is "
            f"{command('distill', 'RUN', data='FILE')}, at points of the server's own"
        )
    return load_data(config)


def _inner(f: Function) -> Function:
    """The sum itself: a ball's projection comes after."""
    return f.inner if isinstance(f, Clipped) else f


@contextmanager
def _server(config: Config, dataset: Dataset) -> Iterator[Server]:
    """The run's own clients, on this machine."""
    for name in config.code:
        named(name, "learner")  # the folder may be anyone's: what it names is imported if the user named it
    holdings, options = make_holdings(config, dataset, make_parts(config, dataset))
    with local_engine(holdings, None, config.code) as engine:
        yield Server(engine, **options)


def _written(model: Model, f: Function, output: Path, dataset: Dataset | None) -> dict[str, Any]:
    """The model with f in place of its own, written; and both of them scored."""
    after = dataclasses.replace(model, f=f.clip(model.f.radius) if isinstance(model.f, Clipped) else f)
    atomic_write(output, after.to_bytes())
    found: dict[str, Any] = {}
    for name, which in (("before", model), ("after", after)):
        found[name] = {"learners": which.f.terms}
        if dataset is not None and len(dataset.y_test):
            found[name] |= which.score(dataset.x_test, dataset.y_test, dataset.weights_test)
    if after.f.terms < model.f.terms and dataset is not None and len(dataset.x_test):
        # in turns, the fastest of some: the first time is that of a cold cache, and others may use the machine
        times = [[_seconds(which, dataset.x_test) for which in (model, after)] for _ in range(TIMES)]
        before, now = (min(column) for column in zip(*times, strict=True))
        found |= {"speedup": before / now}
    return found


def _seconds(model: Model, x: Array) -> float:
    began = time.perf_counter()
    model.f(x)
    return time.perf_counter() - began


def _spent(costs: Costs, config: Config, model: Model) -> dict[str, float]:
    """A client's mean, both ways."""
    assert config.clients is not None
    mean = costs.mean(config.clients, model.family.size)
    return {"models": mean["models_up"] + mean["models_down"], "bytes": mean["bytes_up"] + mean["bytes_down"]}
