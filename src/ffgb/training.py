"""Training as a library call: from a configuration to a run directory, as `ffgb train` does, or on arrays in memory.

>>> result = train(Config(data="wine", clients=4, rounds=3), workers=0)
>>> result.summary["clients"], result.model.f.terms
(4, 1)
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ffgb import report
from ffgb.algorithms import Algorithm
from ffgb.clients import described
from ffgb.config import Config, load_data, make_algorithm, make_learner, make_loss, make_student
from ffgb.data import Dataset, partition
from ffgb.distill import distilled_rounds
from ffgb.engines import Engine
from ffgb.engines.local import Holding, in_parts, local_engine
from ffgb.errors import FFGBError
from ffgb.functions import Array, Family
from ffgb.losses import Loss
from ffgb.model import Model
from ffgb.robust import make_aggregate
from ffgb.runs import Run
from ffgb.server import Costs, Learner, Server, State, spent
from ffgb.sites import Schema, tests_of
from ffgb.validation import choose

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, eq=False)
class Result:
    """A run that ended; `finished` is False if it was asked to stop before its last round."""

    run: Run | None
    model: Model
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    finished: bool


@final
@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Sites that are not on this machine: how to reach them, what they agreed on, and how few may answer."""

    engine: Engine
    schema: Schema
    minimum: int

    def options(self, config: Config) -> dict[str, Any]:
        """What the server must know of them."""
        return {
            **server_options(config),
            "points": list(self.schema.rows),
            "tests": tests_of(self.schema),
            "minimum": min(self.minimum, int(config.participation or self.minimum)),
            "names": self.schema.names,
        }


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    workers: int | None = None,
    engine: str = "local",
    elsewhere: Elsewhere | None = None,
    on_start: Callable[[Config, Dataset], None] = lambda config, dataset: None,
    on_setup: Callable[[str, int, int], None] = lambda what, done, clients: None,
    on_round: Callable[[dict[str, Any]], None] = lambda metrics: None,
    should_stop: Callable[[], bool] = lambda: False,
    enough: Callable[[], bool] = lambda: False,
) -> Result:
    """Train; with `out`, write a run directory, or continue the one that is there.

    The engine is "local", or "flower": its simulation, under Ray.  `elsewhere` are real sites.
    `on_setup` is told what clients are asked for before the first round, `on_round` is given each round's metrics, and
    then `should_stop` is asked; and after whole rounds whether it is `enough`: then the run ends as if no more rounds
    had been asked for.
    """

    def setting_up(what: str, done: int, clients: int) -> None:
        on_setup(what, done, clients)
        if should_stop():
            raise KeyboardInterrupt  # there is no round to finish yet

    began = time.perf_counter()
    path, run = None if out is None else Path(out), None
    with ExitStack() as held:
        if path is not None and resume:
            run = Run.open(path)
            held.enter_context(run.locked())
        elif path is not None:
            Run.must_be_free(path)
        dataset = load_data(config) if elsewhere is None else elsewhere.schema.dataset()
        config, costs = config.resolved(dataset), Costs()
        on_start(config, dataset)
        if config.precision == "int8" and config.geometry == "shared":
            log.warning("in a shared geometry int8 may spoil the model (experiments/README.md); float16 does not")
        if elsewhere is not None:
            if config.validation:
                raise FFGBError("--validation is for training on one machine; give --ridge and --rounds")
            moves, options, parts = elsewhere.engine, elsewhere.options(config), None
        else:
            parts = make_parts(config, dataset)
            if config.validation and run is None:
                config, costs, _ = choose(config, dataset, parts, workers, setting_up)
            holdings, options = make_holdings(config, dataset, parts)
            moves = held.enter_context(_engine(engine, config, holdings, workers))
        algorithm, loss = make_algorithm(config), make_loss(config, dataset)
        learner = make_learner(config, dataset)
        server = Server(moves, **options, on_setup=setting_up)
        saved = run.load() if run is not None else None
        if saved is not None:
            state, metrics, before = saved
            setup = metrics[0]["setup_seconds"]
        else:
            starts = time.perf_counter()
            state = server.start(algorithm, learner, loss, scale_target=not loss.classification, before=costs)
            metrics, before, setup = [], 0.0, time.perf_counter() - starts
        if state.t > config.exchanges:
            raise FFGBError(f"the run in {out} has {state.t} rounds already, more than --rounds {config.rounds}")
        if run is not None and run.config["rounds"] != config.rounds:
            if config.one_round:
                raise FFGBError(
                    f"the run in {out} is one exchange for {run.config['rounds']} rounds; start another run"
                )
            run.write_json("config.json", config.to_json())  # more rounds were asked for
        carried = {name: value for name, value in (metrics[-1] if metrics else {}).items() if name.startswith("wire_")}
        over = bool(config.stop and metrics and spent(metrics[-1]))  # the run had ended of itself
        if run is not None and not over and state.t < config.exchanges:
            run.reopen()
        for after, measured in () if over or should_stop() else rounds_of(server, state, config):
            state, line = after, measured | {"setup_seconds": setup}
            line |= {name: carried.get(name, 0.0) + total / server.N for name, total in moves.wire().items()}
            metrics.append(line)
            if path is not None and run is None:  # with the first round: what fails before leaves nothing behind
                run = Run.create(path, config.to_json())
                held.enter_context(run.locked())
            if run is not None:
                run.save(state, metrics, before + time.perf_counter() - began)
            on_round(line)
            if state.t % config.phases == 0 and not config.one_round and enough():
                config = dataclasses.replace(config, rounds=state.t // config.phases, stop=False)
                if run is not None:
                    run.write_json("config.json", config.to_json())
                break
            if should_stop():
                break
        # What is returned is what is saved: an ensemble in one block, parameters as they travel.
        job = dataclasses.replace(state.job, family=state.result.family)  # of parameter space, the model alone
        said = (dataset.x.shape[1:], dataset.classes, dataset.columns, dataset.table)
        data = Model(job, state.result, *said).to_bytes()
        summary = _summary(config, metrics, before + time.perf_counter() - began)
        finished = state.t == config.exchanges or bool(config.stop and metrics and spent(metrics[-1]))
        if finished and (calls := sum(line.get("uncovered", 0.0) for line in metrics)):
            log.warning(
                "the oracle did not contract in its own norm in %d calls (least γ %.3f): the theorem says nothing "
                "about them; another learner may do better",
                *(int(calls), min(line["gamma_min"] for line in metrics)),
            )
        model = Model.from_bytes(data)
        if run is not None and finished and server.seen:  # else it had ended before, and they were written then
            natural = config.split == "natural" or parts is None
            names = dataset.sites if natural else [str(i) for i in range(server.N)]
            run.write_json("clients.json", described(server, model, dataset, names, parts))
        if run is not None and finished:
            run.write_model(data)
            run.write_json("summary.json", summary)
            report.write([run.path], run.path / "report.html")
    return Result(run, model, metrics, summary, finished)


def _engine(
    name: str, config: Config, holdings: Sequence[Holding], workers: int | None
) -> AbstractContextManager[Engine]:
    if name == "local":
        return local_engine(holdings, workers, config.code)
    if name != "flower":
        raise FFGBError(f"--engine is local or flower, not {name!r}")
    from ffgb.engines.flower import simulation

    return simulation(json.dumps(config.to_json()), len(holdings), workers)


def rounds_of(server: Server, state: State, config: Config) -> Iterator[tuple[State, dict[str, Any]]]:
    if config.distill == "rounds":
        return distilled_rounds(server, state, config.exchanges, make_student(config), config.distill_rounds)
    return server.rounds(state, config.exchanges, stop=bool(config.stop))


def federate(
    clients: Sequence[tuple[Array, Array]],
    family: Family | Learner,
    loss: Loss,
    algorithm: Algorithm,
    rounds: int,
    *,
    tests: Sequence[tuple[Array, Array]] = (),
    workers: int | None = 0,
    seed: int = 0,
    participation: int | None = None,
    by_size: bool = False,
) -> tuple[State, list[dict[str, Any]]]:
    """Rounds of an algorithm on arrays in memory, one (x, y) a client: the state at the end, and each round's metrics.

    The family may be one that is made in a set-up exchange, and share a geometry: a function of `ask` (server.py).

    >>> import numpy as np
    >>> from ffgb import FFGB
    >>> from ffgb.features import Flatten
    >>> from ffgb.learners.linear import Linear
    >>> from ffgb.losses import Logistic
    >>> from ffgb.schedules import Constant
    >>> rng = np.random.default_rng(0)
    >>> clients = [(x, (x[:, 0] > 0).astype(int)) for x in rng.standard_normal((3, 40, 2))]
    >>> family = Linear(Flatten(2), outputs=1)
    >>> state, metrics = federate(clients, family, Logistic(), FFGB(Constant(4.0), K=2), rounds=5)
    >>> state.f(np.array([[1.0, 0.0], [-1.0, 0.0]])) > 0
    array([[ True],
           [False]])
    """
    learner: Learner = (lambda ask: (family, None)) if isinstance(family, Family) else family
    holdings = [Holding(x, y) for x, y in (*clients, *tests)]
    with local_engine(holdings, workers) as engine:
        options: dict[str, Any] = {"seed": seed, "participation": participation, "by_size": by_size}
        server = Server(engine, [len(y) for _, y in clients], len(tests), **options)
        state = server.start(algorithm, learner, loss)
        metrics = []
        for after, line in server.rounds(state, rounds):
            state = after
            metrics.append(line)
    return state, metrics


def make_parts(config: Config, dataset: Dataset) -> list[Array]:
    """Who holds which training rows."""
    assert config.split is not None
    return partition(
        *(dataset, config.split, config.clients),
        similarity=config.similarity,
        alpha=config.alpha,
        labels=config.labels,
        by=config.by,
        seed=config.seed,
    )


def make_holdings(config: Config, dataset: Dataset, parts: list[Array]) -> tuple[list[Holding], dict[str, Any]]:
    """Who holds what: the clients' parts of the training rows, then the test rows."""
    clients = [Holding(dataset.x, dataset.y, rows) for rows in parts]
    tests = in_parts(dataset.x_test, dataset.y_test)
    options = {**server_options(config), "points": [len(rows) for rows in parts], "tests": len(tests)}
    return clients + tests, options


def server_options(config: Config) -> dict[str, Any]:
    """How the server samples, weights and adds up, whoever its clients are."""
    return {
        "seed": config.seed,
        "participation": config.participation,
        "by_size": config.client_weights == "size",
        "precision": config.precision,
        "aggregate": make_aggregate(config.aggregate, config.trim),
    }


def _summary(config: Config, metrics: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    last = metrics[-1] if metrics else {}
    return {
        "algorithm": config.algorithm,
        "learner": config.learner,
        "data": config.data[0] if len(config.data) == 1 else list(config.data),
        "clients": config.clients,
        "rounds": len(metrics) // config.phases,
        **({"ridge": config.ridge} if config.validation else {}),
        **{name: value for name, value in last.items() if name not in ("seconds", "setup_seconds")},
        "communication_models": last.get("models_up", 0.0) + last.get("models_down", 0.0),
        "seconds_total": seconds,
    }
