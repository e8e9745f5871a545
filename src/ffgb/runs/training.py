"""Training as a library call: from a configuration to a run directory, as `ffgb train` does, or on arrays in memory.

>>> result = train(Config(data="wine", clients=4, learner="features", rounds=3), workers=0)
>>> result.summary["clients"], result.model.f.terms
(4, 1)
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb import report
from ffgb.algorithms import Algorithm
from ffgb.algorithms.ffgb_shared import spent
from ffgb.core.functions import Family, Function
from ffgb.core.judgement import scores_of
from ffgb.core.losses import Loss
from ffgb.core.losses.cox import Cox, times_of
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.frames import as_values, numbers
from ffgb.data.sites import Schema, tests_of
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError, SettingError, option
from ffgb.federation.distillation import distilled_rounds
from ffgb.federation.host import Holding
from ffgb.federation.server import Learner, Server
from ffgb.federation.state import State
from ffgb.protocol.costs import Costs
from ffgb.protocol.engine import Engine
from ffgb.protocol.job import Job
from ffgb.runs.by_client import described
from ffgb.runs.callbacks import Callback, Functions, Told
from ffgb.runs.certainty import interval
from ffgb.runs.choose_ridge import choose
from ffgb.runs.config import Config, load_data
from ffgb.runs.conformal import FILE as CONFORMAL
from ffgb.runs.conformal import calibrated
from ffgb.runs.directory import Run
from ffgb.runs.fit import fit
from ffgb.runs.fit_times import FILE as BASELINE
from ffgb.runs.fit_times import baseline_of
from ffgb.runs.fit_totals import fit_by_totals, summarised
from ffgb.runs.headline import headline, rounds_used
from ffgb.runs.held_out import HeldOut
from ffgb.runs.holdings import distilled_mean, make_holdings, make_parts, server_options
from ffgb.runs.learners import make_algorithm, make_learner, make_student
from ffgb.runs.model import Model
from ffgb.runs.notebook import notebook, result_html
from ffgb.runs.private import is_private, private_parts, promise, public_part
from ffgb.runs.resolve import make_loss
from ffgb.runs.simulation import simulation
from ffgb.runs.starting import starting_model
from ffgb.runs.tables import as_files

log = logging.getLogger(__name__)

SETTLED = "settled"
"""In the line of the exchange that has settled what the result is."""
OF_ONE_ROUND = (SETTLED, "seconds", "setup_seconds", "absent", "absent_from_step", "setup_absent")
"""What a line of the metrics says that a summary of the last line should not."""


@final
@dataclass(frozen=True, eq=False)
class Result:
    """A run that ended; `finished` is False if it was asked to stop before its last round."""

    run: Run | None
    model: Model
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    finished: bool

    def __repr__(self) -> str:
        """The score and what it took, in a few lines."""
        return f"Result: {chr(10).join(self._lines())}"

    def _repr_html_(self) -> str:
        """The same for notebooks, with a small curve."""
        return result_html(self._lines(), self.metrics)

    def _lines(self) -> list[str]:
        how = f"{self.summary['algorithm']} with {self.summary['learner']} on {_named(self.summary['data'])}"
        return [*headline(self.summary), how, *([] if self.run is None else [f"run directory: {self.run.path}"])]


def _named(data: Any) -> str:
    """The data of a run in a few words: files without their folders."""
    names = [Path(str(name)).name for name in (data if isinstance(data, list) else [data])]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@final
@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Sites that are not on this machine: how to reach them, what they agreed on, and how few may answer."""

    engine: Engine
    schema: Schema
    minimum: int
    registered: dict[str, str] | None = None
    """Public keys of sites by name (DER, in hexadecimal digits), for secure totals."""

    def options(self, config: Config) -> dict[str, Any]:
        """What the server must know of them."""
        return {
            **server_options(config),
            "points": list(self.schema.rows),
            "tests": tests_of(self.schema),
            "minimum": min(self.minimum, int(config.participation or self.minimum)),
            "names": self.schema.names,
            "counted": self.schema.counted,
            "registered": self.registered,
            "owners": [i for i, rows in enumerate(self.schema.test_rows) if rows],
        }


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    tables: Mapping[str, Any] | None = None,
    workers: int | None = None,
    engine: str = "local",
    elsewhere: Elsewhere | None = None,
    callbacks: Sequence[Callback] = (),
    on_start: Callable[[Config, Dataset], None] = lambda config, dataset: None,
    on_setup: Callable[[str, int, int], None] = lambda what, done, clients: None,
    on_round: Callable[[dict[str, Any]], None] = lambda metrics: None,
    should_stop: Callable[[], bool] = lambda: False,
    enough: Callable[[], bool] = lambda: False,
) -> Result:
    """Train; with `out`, write a run directory, or continue the one that is there.

    Parameters
    ----------
    config
        The settings.
    out
        The run directory.  Without it nothing is written.
    resume
        Continue the run in `out`.
    tables
        A data frame for each client, by its name: pandas, polars, pyarrow, DuckDB and others that speak Arrow.  The
        training is the one with these tables as files.  A run directory needs files.
    workers
        Worker processes; None: one a core; 0: none.
    engine
        "local", or "flower": its simulation, under Ray.
    elsewhere
        Real sites, in place of the data that the settings name.
    callbacks
        Objects that are told what goes on (callbacks.py).
    on_start, on_setup, on_round
        Functions that are told the same.
    should_stop
        Asked after each round: True ends the training before its last round.
    enough
        Asked after whole rounds: True ends the run as if no more rounds had been asked for.

    Returns
    -------
    Result
        The model, the metrics of each round and the summary.
    """
    told = Told([*callbacks, *notebook(), Functions(on_start, on_setup, on_round)], should_stop)
    path = None if out is None else Path(out)
    if tables is not None and (path is not None or elsewhere is not None):
        raise FFGBError(
            "tables are for a training in memory: a run directory remembers its files; write the tables as Parquet "
            "files, and name these as the data of the settings"
        )
    with ExitStack() as held:
        if tables is not None:
            config = held.enter_context(as_files(config, tables))
        training = _Training(config, path, told, held)
        training.open(resume=resume)
        training.meet(elsewhere, workers, engine)
        state = training.begin(elsewhere)
        if not training.over:
            state = training.rounds(state, enough)
        result = training.end(state, elsewhere)
    if tables is not None:  # which the files of a moment are not
        result = dataclasses.replace(result, summary={**result.summary, "data": list(map(str, tables))})
    told.end(result)
    return result


@final
class _Training:
    """One training, step by step: what each step finds out is kept here for the next."""

    def __init__(self, config: Config, path: Path | None, told: Told, held: ExitStack) -> None:
        self.config, self.path, self.told, self.held = config, path, told, held
        self.began = time.perf_counter()
        self.run: Run | None = None
        self.metrics: list[dict[str, Any]] = []
        self.before, self.setup = 0.0, 0.0
        """Seconds that earlier sittings took, and those of the set-up."""
        self.carried: dict[str, float] = {}
        """Bytes that earlier sittings carried."""
        self.parts: list[Array] | None = None
        """Who holds which rows, if they are here."""
        self.costs = Costs()
        self.dataset: Dataset
        self.engine: Engine
        self.server: Server

    def open(self, *, resume: bool) -> None:
        """Take hold of the run directory, or see that it can be made."""
        if self.path is None:
            return
        if resume:
            self.run = Run.open(self.path)
            self.held.enter_context(self.run.locked())
        else:
            Run.must_be_free(self.path)

    def _create(self) -> None:
        """Make the run directory: with the first round, for what fails before leaves nothing behind."""
        if self.path is not None and self.run is None:
            self.run = Run.create(self.path, self.config.to_json())
            self.held.enter_context(self.run.locked())

    def meet(self, elsewhere: Elsewhere | None, workers: int | None, engine: str) -> None:
        """The data, the settings that suit them, and the clients."""
        self.dataset = load_data(self.config) if elsewhere is None else elsewhere.schema.dataset()
        self._check_table()
        self.config = self.config.resolved(self.dataset)
        self.told.start(self.config, self.dataset)
        if self.config.precision == "int8" and self.config.geometry == "shared":
            log.warning("in a shared geometry int8 may spoil the model (experiments/README.md); float16 does not")
        if elsewhere is not None:
            for name in ("weights", "exposure", "group", "start", "class_weight"):
                if getattr(self.config, name) is not None:
                    raise FFGBError(f"{option(name)} is for training on one machine so far; leave it out between sites")
            if self.config.validation:
                raise FFGBError(
                    f"{option('validation')} is for training on one machine; give {option('ridge')} and "
                    f"{option('rounds')}"
                )
            self.engine, options = elsewhere.engine, elsewhere.options(self.config)
        else:
            self._check_events()
            self.parts = make_parts(self.config, self.dataset)
            if self.config.validation and self.run is None:
                self.config, self.costs, _ = choose(self.config, self.dataset, self.parts, workers, self.told.setup)
            holdings, options = make_holdings(self.config, self.dataset, self.parts)
            self.engine = self.held.enter_context(_engine(engine, self.config, holdings, workers))
        if self.config.distill == "server":
            options["aggregate"] = distilled_mean(self.config, self.dataset)
        self.server = Server(self.engine, **options, on_setup=self.told.setup)

    def _check_events(self) -> None:
        """Are there enough events to learn from?  Between real sites no one knows how many there are."""
        if self.config.loss != Cox.name:
            return
        events = int(times_of(self.dataset.y)[1].sum())
        if events < self.config.least:
            what = "no row has an event" if events == 0 else f"only {events} rows have an event"
            raise FFGBError(
                f"{what}, and sums over fewer than {self.config.least} say too much about each: use more rows, or "
                f"{option('least', 1)} if they are no secret"
            )

    def _check_table(self) -> None:
        """Is the table that of the run that is there?  Earlier versions named categories by each site's own rows."""
        table = self.dataset.table
        if self.run is None or table is None or not (self.run.path / "model.safetensors").exists():
            return
        if Model.load(self.run.path).table != table:
            raise FFGBError(
                f"the run in {self.path} was begun by an earlier version, which named other categories of these files; "
                "its model can be used, but the run cannot go on: start a new one"
            )

    def begin(self, elsewhere: Elsewhere | None) -> State:
        """f^0 by a set-up, or where an earlier sitting ended."""
        loss, target = make_loss(self.config, self.dataset), None
        algorithm: Algorithm
        if is_private(self.config):
            algorithm, learner, target = private_parts(self.config, self.dataset)
            first = None
        else:
            algorithm, learner = make_algorithm(self.config), make_learner(self.config, self.dataset)
            first = starting_model(self.config)
        saved = self.run.load() if self.run is not None else None
        known, noted = self.run.load_setup() if self.run is not None and elsewhere is not None else ({}, None)
        if noted is not None:
            self.costs = self.server.recall(noted)
        if saved is not None:
            state, self.metrics, self.before = saved
            self.setup = self.metrics[0]["setup_seconds"]
            self.carried = {n: value for n, value in self.metrics[-1].items() if n.startswith("wire_")}
        else:
            if elsewhere is not None:
                self._create()  # what sites elsewhere have answered once they need not answer again
            starts = time.perf_counter()
            state = self.server.start(
                algorithm,
                learner,
                loss,
                scale_target=not loss.classification and not is_private(self.config),
                f0=None if first is None else first.f,
                target=target if first is None else first.job.target,
                known=known,
                before=self.costs,
                keep=_keeper(self.server, None if elsewhere is None else self.run),
            )
            self.setup = time.perf_counter() - starts
        self._check_rounds(state)
        return state

    def _check_rounds(self, state: State) -> None:
        """Is the run that is there as long as was asked for, or shorter?"""
        config, run = self.config, self.run
        if state.t > config.exchanges:
            raise FFGBError(
                f"the run in {self.path} has {state.t} rounds already, more than {option('rounds', config.rounds)}"
            )
        if run is not None and run.config["rounds"] != config.rounds:
            if config.one_round:
                raise FFGBError(
                    f"the run in {self.path} is one exchange for {run.config['rounds']} rounds; start another run"
                )
            run.write_json("config.json", config.to_json())  # more rounds were asked for
        if run is not None and not self.over and state.t < config.exchanges:
            run.reopen()

    @property
    def over(self) -> bool:
        """The result is settled, or there is nothing left to learn but noise, and that ends it."""
        if not self.metrics:
            return False
        return SETTLED in self.metrics[-1] or bool(self.config.stop and spent(self.metrics[-1]))

    def _keep(self, state: State, measured: Mapping[str, Any]) -> None:
        """Write a round down."""
        line = {**measured, "setup_seconds": self.setup}
        for name, total in self.engine.wire().items():
            line[name] = self.carried.get(name, 0.0) + total / self.server.N
        self.metrics.append(line)
        self._create()
        if self.run is not None:
            self.run.save(state, self.metrics, self.seconds)
            self.run.forget_totals()
        self.told.round(line)

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def rounds(self, state: State, enough: Callable[[], bool]) -> State:
        """The rounds that are left, each written down when it is over."""
        if self.told.should_stop():
            return state
        for after, measured in rounds_of(self.server, state, self.config, self.metrics):
            state = after
            self._keep(state, measured)
            if state.t % self.config.phases == 0 and not self.config.one_round and enough():
                self._end_here(state)
                break
            if self.told.should_stop():
                break
        return state

    def _end_here(self, state: State) -> None:
        """As if no more rounds had been asked for."""
        self.config = dataclasses.replace(self.config, rounds=state.t // self.config.phases, stop=False)
        if self.run is not None:
            self.run.write_json("config.json", self.config.to_json())

    def end(self, state: State, elsewhere: Elsewhere | None) -> Result:
        """The model, and what is written when a training ends."""
        # What is returned is what is saved: an ensemble in one block, parameters as they travel.
        f, loss = state.result, state.job.loss
        chosen = state.job.algorithm.chosen(state.f, self.metrics)
        if chosen is not None:  # training was stopped before its end
            f, loss = chosen.f, state.job.algorithm.tasked(loss)
        job = dataclasses.replace(state.job, family=f.family, loss=loss)  # of parameter space, the model alone
        dataset = self.dataset
        data = Model(job, f, dataset.x.shape[1:], dataset.classes, dataset.columns, dataset.table).to_bytes()
        summary = _summary(self.config, self.metrics, self.seconds)
        if is_private(self.config):
            summary["privacy"] = promise(self.config, dataset)
        by_totals: dict[str, Any] | None = None
        finished, model = state.t == self.config.exchanges or self.over, Model.from_bytes(data)
        if finished:
            by_totals = self._judged_by_totals(state, job)
            summary |= self._judged(model) if by_totals is None else summarised(by_totals)
            summary |= interval(summary, model, dataset, here=self.parts is not None)
            _warn_uncovered(self.metrics)
        if self.run is not None and finished:
            if self.server.heard or is_private(self.config):  # else it had ended before, and they were written then
                natural = self.config.split == "natural" or elsewhere is not None
                names = dataset.sites if natural else [str(i) for i in range(self.server.N)]
                known = described(self.server, model, dataset, names, self.parts)
                self.run.write_json("clients.json", public_part(known) if is_private(self.config) else known)
            if by_totals is not None:
                self.run.write_json("fit.json", by_totals)
            elif not is_private(self.config):
                self._judge(self.run, model)
            self.run.write_model(data)
            self.run.write_json("summary.json", summary)
            report.write([self.run.path], self.run.path / "report.html")
        return Result(self.run, model, self.metrics, summary, finished)

    def _judge(self, run: Run, model: Model) -> None:
        """Write how well the model fits the rows held out, and how far it is off there, if these are here."""
        dataset = self.dataset
        if self.parts is None:
            return
        baseline = None if model.job.loss.alone else baseline_of(model, dataset)
        if baseline is not None:
            run.write_json(BASELINE, baseline.to_json())
        if not len(dataset.y_test):
            return
        site = dataset.site_test if self.config.split == "natural" else None
        rows = HeldOut(dataset.x_test, dataset.y_test, dataset.sites, site, dataset.weights_test, baseline)
        run.write_json("fit.json", fit(model, rows))
        if (thresholds := calibrated(model, rows)) is not None:
            run.write_json(CONFORMAL, thresholds.to_json())

    def _judged_by_totals(self, state: State, job: Job) -> dict[str, Any] | None:
        """How well the result fits rows that stay at their sites, by totals; None if there are none of it."""
        rows = int(self.metrics[-1].get("test_rows") or 0) if self.metrics else 0
        if self.parts is not None or is_private(self.config) or not rows or state.job.taught:
            return None
        if state.job.algorithm.chosen(state.f, self.metrics) is not None:
            return None  # sites have another function than the result
        if not self.server.heard:  # the run had ended before
            return None if self.run is None else self.run.fit
        try:
            ask = self.server.asking_held_out(state, rows)
            return fit_by_totals(ask, job, self.dataset.classes, self.metrics[-1], least=self.config.least)
        except (FFGBError, ArithmeticError, np.linalg.LinAlgError) as error:
            log.warning("the report has no scores but loss and %s: %s", job.loss.measure.name, error)
            return None

    def _judged(self, model: Model) -> dict[str, float]:
        """How good probabilities are at the rows held out, if these are here."""
        x, y, weights = self.dataset.x_test, self.dataset.y_test, self.dataset.weights_test
        if self.parts is None or not self.dataset.classes or not len(y):
            return {}
        two = len(self.dataset.classes) == 2
        p = model.predict_proba(x) if two else np.eye(len(self.dataset.classes))[y]
        brier = {"brier": float(np.average(np.square(p[:, 1] - y), weights=weights))} if two else {}
        return {f"test_{name}": value for name, value in (scores_of(p, y, weights) | brier).items()}


def _warn_uncovered(metrics: Sequence[Mapping[str, Any]]) -> None:
    if calls := sum(line.get("uncovered", 0.0) for line in metrics):
        log.warning(
            "the oracle did not contract in its own norm in %d calls (least γ %.3f): the theorem says nothing "
            "about them; another learner may do better",
            int(calls),
            min(line["gamma_min"] for line in metrics),
        )


def _keeper(server: Server, run: Run | None) -> Callable[[Mapping[str, Any], Costs], None]:
    """What keeps the set-up in the run directory as it becomes known, if there is one."""

    def keep(known: Mapping[str, Any], costs: Costs) -> None:
        if run is not None:
            run.save_setup(known, server.noted(costs))

    return keep


def _engine(
    name: str, config: Config, holdings: Sequence[Holding], workers: int | None
) -> AbstractContextManager[Engine]:
    if name == "local":
        return local_engine(holdings, workers, config.code)
    if name != "flower":
        raise SettingError("engine", f"is local or flower, not {name!r}")
    return simulation(json.dumps(config.to_json()), len(holdings), workers)


def rounds_of(
    server: Server, state: State, config: Config, before: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[State, dict[str, Any]]]:
    """The rounds that are left after those before, and their metrics.

    The last is an exchange that settles what the result is, if that is only a part of f.
    """
    if config.distill == "rounds":
        yield from distilled_rounds(server, state, config.exchanges, make_student(config), config.distill_rounds)
        return
    metrics, algorithm = list(before), state.job.algorithm
    if not (config.stop and metrics and algorithm.over(metrics)):
        for after, line in server.rounds(state, config.exchanges - config.closing, stop=bool(config.stop)):
            state = after
            metrics.append(line)
            yield state, line
            if config.stop and algorithm.over(metrics):
                break
    began = time.perf_counter()
    if (found := server.settle(state, metrics)) is not None:
        state, line = found
        yield state, line | {SETTLED: 1.0, "seconds": time.perf_counter() - began}


def boosted(
    config: Config,
    dataset: Dataset,
    parts: list[Array],
    make: Callable[[Config, Dataset], Learner],
    workers: int | None,
    state: State | None = None,
    costs: Costs | None = None,
) -> Iterator[tuple[State, dict[str, Any]]]:
    """The rounds that are left, on clients that know nothing: the server tells them what they missed."""
    holdings, options = make_holdings(config, dataset, parts)
    with local_engine(holdings, workers, config.code) as engine:
        server = Server(engine, **options)
        if state is None and is_private(config):
            private, learner, target = private_parts(config, dataset)
            state = server.start(private, learner, make_loss(config, dataset), target=target, before=costs or Costs())
        elif state is None:
            algorithm, loss = make_algorithm(config), make_loss(config, dataset)
            scale = not loss.classification
            state = server.start(algorithm, make(config, dataset), loss, scale_target=scale, before=costs or Costs())
        yield from rounds_of(server, state, config)


def model_of(state: State, dataset: Dataset) -> Model:
    """The model as it is after it was written and read."""
    job = dataclasses.replace(state.job, family=state.result.family)
    made = Model(job, state.result, dataset.x.shape[1:], dataset.classes, dataset.columns, dataset.table)
    return Model.from_bytes(made.to_bytes())


def model_in_memory(config: Config, dataset: Dataset) -> Model:
    """The model that this configuration trains on a data set, in this process; nothing is written."""
    config = config.resolved(dataset)
    parts, costs = make_parts(config, dataset), Costs()
    if config.validation:
        config, costs, _ = choose(config, dataset, parts, 0)
    *_, (state, _) = boosted(config, dataset, parts, make_learner, 0, None, costs)
    return model_of(state, dataset)


def federate(
    clients: Sequence[tuple[Any, Any]],
    family: Family | Learner,
    loss: Loss,
    algorithm: Algorithm,
    rounds: int,
    *,
    tests: Sequence[tuple[Any, Any]] = (),
    workers: int | None = 0,
    seed: int = 0,
    participation: int | None = None,
    by_size: bool = False,
    f0: Function | None = None,
) -> tuple[State, list[dict[str, Any]]]:
    """Rounds of an algorithm on arrays in memory, one (x, y) a client: the state at the end, and each round's metrics.

    x may also be a data frame of numbers, and y a column: pandas, polars, pyarrow, DuckDB and others that speak Arrow;
    or a sparse matrix of scipy, which stays sparse (core/sparse_rows.py).
    The family may be one that is made in a set-up exchange, and share a geometry: a function of `ask`
    (federation/server.py).  Training begins with f⁰ = `f0`, a function of that family, or with 0.

    >>> import numpy as np
    >>> from ffgb import FFGB
    >>> from ffgb.features.basic import Flatten
    >>> from ffgb.learners.linear import Linear
    >>> from ffgb.core.losses import Logistic
    >>> from ffgb.core.schedules import Constant
    >>> rng = np.random.default_rng(0)
    >>> clients = [(x, (x[:, 0] > 0).astype(int)) for x in rng.standard_normal((3, 40, 2))]
    >>> family = Linear(Flatten(2), outputs=1)
    >>> state, metrics = federate(clients, family, Logistic(), FFGB(Constant(4.0), K=2), rounds=5)
    >>> state.f(np.array([[1.0, 0.0], [-1.0, 0.0]])) > 0
    array([[ True],
           [False]])
    """
    learner: Learner = (lambda ask: (family, None)) if isinstance(family, Family) else family
    arrays = [(numbers(x), np.asarray(as_values(y))) for x, y in (*clients, *tests)]
    holdings = [Holding(x, y) for x, y in arrays]
    with local_engine(holdings, workers) as engine:
        options: dict[str, Any] = {"seed": seed, "participation": participation, "by_size": by_size}
        server = Server(engine, [len(y) for _, y in arrays[: len(clients)]], len(tests), **options)
        state = server.start(algorithm, learner, loss, f0=f0)
        metrics = []
        for after, line in server.rounds(state, rounds):
            state = after
            metrics.append(line)
    return state, metrics


def _summary(config: Config, metrics: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    last = metrics[-1] if metrics else {}
    return {
        "algorithm": config.algorithm,
        "learner": config.learner,
        **({"because": config.because} if config.because else {}),
        "data": config.data[0] if len(config.data) == 1 else list(config.data),
        "clients": config.clients,
        "rounds": len(metrics) // config.phases,
        "rounds_used": -(-rounds_used(metrics) // config.phases),
        **({"ridge": config.ridge} if config.validation else {}),
        **{name: value for name, value in last.items() if name not in OF_ONE_ROUND},
        "communication_models": last.get("models_up", 0.0) + last.get("models_down", 0.0),
        "seconds_total": seconds,
    }
