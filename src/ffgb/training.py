"""Training as a library call: from a configuration to a run directory, as `ffgb train` does, or on arrays in memory.

>>> result = train(Config(data=("wine",), clients=4, rounds=3), workers=0)
>>> result.summary["clients"], result.model.f.terms
(4, 1)
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb._version import __version__
from ffgb.algorithms.ffgb import FFGB
from ffgb.data import Dataset, load, load_sites, partition
from ffgb.engines.local import Holding, in_parts, local_engine
from ffgb.errors import FFGBError
from ffgb.features import FeatureMap, Flatten, Moments, RandomFourier, Standardize, bandwidth
from ffgb.functions import Array, Family
from ffgb.learners import allow
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.schedules import Constant, Power, Schedule, Theorem
from ffgb.server import Learner, Server, State

SITE_FILES = (".csv", ".parquet", ".npz")

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # Nets take the paper's steps (MNIST: K = 2, η₀ = 20; CIFAR-10: K = 4, η₀ = 10).  The others take a constant step,
    # the inverse of the loss's smoothness (`Config.resolved`).
    "features": {"rounds": 30, "local_steps": 2, "schedule": "constant"},
    "linear": {"rounds": 30, "local_steps": 2, "schedule": "constant"},
    "tree": {"rounds": 30, "local_steps": 2, "schedule": "constant"},
    "mlp": {"rounds": 8, "local_steps": 2, "schedule": "power", "step_size": 20.0},
    "cnn": {"rounds": 8, "local_steps": 4, "schedule": "power", "step_size": 10.0},
}


@final
@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run.  None means: what suits the data and the learner; `resolved` fills it in."""

    data: tuple[str, ...] = ("digits",)
    target: str | None = None
    clients: int | None = None
    split: str | None = None
    similarity: float = 0.1
    alpha: float = 0.5
    algorithm: str = "ffgb"
    learner: str = "features"
    loss: str = "auto"
    rounds: int | None = None
    local_steps: int | None = None
    schedule: str | None = None
    step_size: float | None = None
    step_power: float = 1.0
    step_offset: str = "t"
    mu: float = 0.0
    residual: bool = True
    participation: float | None = None
    client_weights: str = "uniform"
    features: int = 1024
    ridge: float = 1e-3
    hidden: tuple[int, ...] = (32, 32)
    oracle_steps: int = 200
    learning_rate: float = 0.005
    batch: int = 128
    depth: int = 4
    seed: int = 0

    @property
    def files(self) -> bool:
        """The data are files, one a site, rather than a named set."""
        return len(self.data) > 1 or any(name.lower().endswith(SITE_FILES) or os.sep in name for name in self.data)

    def resolved(self, dataset: Dataset) -> Config:
        """The same configuration with every choice made."""
        natural = self.split is None and bool(dataset.sites) and self.clients is None
        split = self.split or ("natural" if natural else "similarity")
        clients = self.clients or (max(1, len(dataset.sites)) if split == "natural" else 20)
        m = clients if self.participation is None else self.participation
        m = max(1, round(m * clients)) if 0 < m < 1 else m
        if not (1 <= m <= clients and float(m).is_integer()):
            raise FFGBError(
                f"--participation {self.participation} is neither a share in (0, 1) nor 1 … {clients} clients"
            )
        loss = self.loss
        if loss == "auto":
            loss = "square" if not dataset.classes else "logistic" if len(dataset.classes) == 2 else "cross-entropy"
        chosen = dataclasses.replace(self, split=split, clients=clients, participation=int(m), loss=loss)
        fixed = {
            "step_size": 1.0 / make_loss(chosen, dataset).smoothness,
            **DEFAULTS.get(self.learner, DEFAULTS["cnn"]),
        }
        if not dataset.classes and fixed["schedule"] == "power":
            fixed["step_size"] = 2.0  # 2/(Kt+k+1): the theorem's, for the square loss is strongly convex with μ = 1
        return dataclasses.replace(chosen, **{name: v for name, v in fixed.items() if getattr(self, name) is None})

    def to_json(self) -> dict[str, Any]:
        packages = ("numpy", "scipy", "scikit-learn", "safetensors")
        versions = {"ffgb": __version__, "python": platform.python_version(), **{p: version(p) for p in packages}}
        return {**dataclasses.asdict(self), "versions": versions}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Config:
        """The configuration in a run's config.json."""
        names = {f.name for f in dataclasses.fields(Config)}
        if missing := names - content.keys():
            raise FFGBError(
                f"the run's config.json lacks {', '.join(sorted(missing))}; it was written by another version"
            )
        values: dict[str, Any] = {name: content[name] for name in names}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Config(**values)


@final
@dataclass(frozen=True, eq=False)
class Result:
    """A run that ended: by itself, or because it was asked to stop (`finished` is then False)."""

    run: Run | None
    model: Model
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    finished: bool


def load_data(config: Config) -> Dataset:
    """The data a configuration names: a known set, or one file a site."""
    if config.files:
        dataset = load_sites([Path(p) for p in config.data], config.target, seed=config.seed)
    else:
        dataset = load(config.data[0], seed=config.seed)
    if len(dataset.classes) == 1:
        raise FFGBError(f"all rows of {dataset.name} have the class {dataset.classes[0]!r}; there is nothing to learn")
    return dataset


def train(
    config: Config,
    out: Path | None = None,
    *,
    resume: bool = False,
    workers: int | None = None,
    on_start: Callable[[Config, Dataset], None] = lambda config, dataset: None,
    on_round: Callable[[dict[str, Any]], None] = lambda metrics: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train; with `out`, write a run directory, or continue the one that is there.

    `should_stop` is asked after every round; `on_round` is given each round's metrics.
    """
    began = time.perf_counter()
    run = Run.open(out) if resume and out is not None else None
    if out is not None and not resume:
        Run.must_be_free(out)
    dataset = load_data(config)
    config = config.resolved(dataset)
    assert config.rounds is not None  # resolved
    holdings, server_options = _federate(config, dataset)
    algorithm, loss = make_algorithm(config), make_loss(config, dataset)
    learner, moments = make_learner(config, dataset)
    modules = [config.learner] if ":" in config.learner else []
    with local_engine(holdings, workers, modules) as engine:
        server = Server(engine, **server_options)
        saved = run.load() if run is not None else None
        if saved is not None:
            state, metrics, before = saved
        else:
            state = server.start(algorithm, learner, loss, moments=moments, scale_target=not loss.classification)
            metrics, before = [], 0.0
        if state.t > config.rounds:
            raise FFGBError(f"the run in {out} has {state.t} rounds already, more than --rounds {config.rounds}")
        if out is not None:
            run = run or Run.create(out, config.to_json())
            if config.to_json() != run.config:
                run.write_json("config.json", config.to_json())  # more rounds were asked for
        on_start(config, dataset)
        stopped = False
        for after, line in server.rounds(state, config.rounds):
            state = after
            metrics.append(line)
            if run is not None:
                run.save(state, metrics, before + time.perf_counter() - began)
            on_round(line)
            if stopped := should_stop():
                break
    model = Model(state.job, state.f, dataset.x.shape[1:], dataset.classes, dataset.columns)
    summary = _summary(config, metrics, before + time.perf_counter() - began)
    finished = state.t == config.rounds
    if run is not None and finished:
        run.write_model(model.to_bytes())
        run.write_json("summary.json", summary)
    return Result(run, model, metrics, summary, finished or not stopped)


def federate(
    clients: Sequence[tuple[Array, Array]],
    family: Family,
    loss: Loss,
    algorithm: FFGB,
    rounds: int,
    *,
    tests: Sequence[tuple[Array, Array]] = (),
    workers: int | None = 0,
    seed: int = 0,
    participation: int | None = None,
    by_size: bool = False,
) -> tuple[State, list[dict[str, Any]]]:
    """Rounds of an algorithm on arrays in memory, one (x, y) a client: the state at the end, and each round's metrics.

    >>> rng = np.random.default_rng(0)
    >>> clients = [(x, (x[:, 0] > 0).astype(int)) for x in rng.standard_normal((3, 40, 2))]
    >>> family = Linear(Flatten(2), outputs=1)
    >>> state, metrics = federate(clients, family, Logistic(), FFGB(Constant(4.0), K=2), rounds=5)
    >>> state.f(np.array([[1.0, 0.0], [-1.0, 0.0]])) > 0
    array([[ True],
           [False]])
    """
    holdings = [Holding(x, y) for x, y in clients] + [Holding(x, y, training=False) for x, y in tests]
    with local_engine(holdings, workers) as engine:
        options: dict[str, Any] = {"seed": seed, "participation": participation, "by_size": by_size}
        server = Server(engine, [len(y) for _, y in clients], len(tests), **options)
        state = server.start(algorithm, lambda moments: family, loss, moments=False, scale_target=False)
        metrics = []
        for after, line in server.rounds(state, rounds):
            state = after
            metrics.append(line)
    return state, metrics


def make_algorithm(config: Config) -> FFGB:
    """The algorithm, with its step sizes."""
    if config.algorithm != "ffgb":
        raise FFGBError(f"there is no algorithm {config.algorithm!r}; choose ffgb")
    assert config.local_steps is not None
    return FFGB(make_schedule(config), config.local_steps, config.mu, config.residual)


def make_schedule(config: Config) -> Schedule:
    assert config.step_size is not None
    match config.schedule:
        case "theorem1":
            return Theorem(config.mu, 2.0)
        case "theorem2":
            return Theorem(config.mu, 4.0)
        case "constant":
            return Constant(config.step_size)
        case "power":
            if config.step_offset not in ("t", "t+1"):
                raise FFGBError(f"the step offset is t or t+1, not {config.step_offset!r}")
            return Power(config.step_size, config.step_power, config.step_offset)  # type: ignore[arg-type]
    raise FFGBError(f"there is no schedule {config.schedule!r}; choose power, constant, theorem1 or theorem2")


def make_loss(config: Config, dataset: Dataset) -> Loss:
    """The loss, if it fits the task."""
    losses: dict[str, Callable[[], Loss]] = {
        "cross-entropy": lambda: CrossEntropy(len(dataset.classes)),
        "logistic": Logistic,
        "square": lambda: Square(dataset.outputs),
        "huber": lambda: Huber(dataset.outputs),
    }
    if config.loss not in losses:
        raise FFGBError(f"there is no loss {config.loss!r}; choose auto, {', '.join(losses)}")
    if config.loss == "logistic" and len(dataset.classes) > 2:
        raise FFGBError(
            f"the logistic loss is for two classes, {dataset.name} has {len(dataset.classes)}; use cross-entropy"
        )
    loss = losses[config.loss]()
    if loss.classification != bool(dataset.classes):
        raise FFGBError(f"the loss {config.loss} does not fit {dataset.task}; leave --loss out")
    return loss


def make_learner(config: Config, dataset: Dataset) -> tuple[Learner, bool]:
    """How the family of weak learners comes about, and whether it needs moments aggregated over the clients.

    Scales are set by moments: those of tables always, but for trees; those of images only for a kernel's bandwidth.
    What needs no moments is built at once, so that wrong settings are found before any work starts.
    """
    outputs = 1 if config.loss == "logistic" else dataset.outputs
    inputs = int(np.prod(dataset.x.shape[1:]))
    oracle: dict[str, Any] = {
        "steps": config.oracle_steps,
        "learning_rate": config.learning_rate,
        "batch": config.batch,
    }

    def scaled(moments: Moments | None) -> FeatureMap:
        return Flatten(inputs) if dataset.image or moments is None else Standardize.by(moments)

    def features(moments: Moments | None) -> Family:
        assert moments is not None
        # standardised inputs have unit variance each; images keep their common scale
        total = float(moments.variance.sum()) if dataset.image else float((moments.variance > 0).sum())
        fourier = RandomFourier(scaled(moments), config.features, bandwidth(total), config.seed)
        return Linear(fourier, outputs, config.ridge)

    match config.learner:
        case "features":
            return features, True
        case "linear":
            return lambda moments: Linear(scaled(moments), outputs, config.ridge), not dataset.image
        case "mlp":
            MLP(Flatten(inputs), outputs, config.hidden, **oracle)
            return lambda moments: MLP(scaled(moments), outputs, config.hidden, **oracle), not dataset.image
        case "tree":
            tree = Tree(Flatten(inputs), outputs, config.depth)
            return lambda moments: tree, False
        case "cnn":
            if not dataset.image:
                raise FFGBError(
                    f"{dataset.name} has no images; the learner cnn needs them: choose features, mlp or tree"
                )
        case name if ":" in name:
            allow(name)
        case name:
            known = "features, linear, mlp, cnn, tree"
            raise FFGBError(f"there is no learner {name!r}; choose {known}, or your own package.module:factory")
    net = Net(dataset.x.shape[1:], outputs, config.learner, **oracle)
    net.spec  # noqa: B018 - builds the module once: a missing torch, or an image too small, is said now
    return lambda moments: net, False


def _federate(config: Config, dataset: Dataset) -> tuple[list[Holding], dict[str, Any]]:
    """Who holds what: the clients' parts of the training rows, then the test rows."""
    assert config.split is not None
    parts = partition(
        dataset, config.split, config.clients, similarity=config.similarity, alpha=config.alpha, seed=config.seed
    )
    clients = [Holding(dataset.x[rows], dataset.y[rows]) for rows in parts]
    tests = in_parts(dataset.x_test, dataset.y_test)
    if config.client_weights not in ("uniform", "size"):
        raise FFGBError(f"clients are weighted uniform or by size, not {config.client_weights!r}")
    options = {
        "points": [len(rows) for rows in parts],
        "tests": len(tests),
        "seed": config.seed,
        "participation": config.participation,
        "by_size": config.client_weights == "size",
    }
    return clients + tests, options


def _summary(config: Config, metrics: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    last = metrics[-1] if metrics else {}
    return {
        "algorithm": config.algorithm,
        "learner": config.learner,
        "data": config.data[0] if len(config.data) == 1 else list(config.data),
        "clients": config.clients,
        "rounds": len(metrics),
        **{name: value for name, value in last.items() if name != "seconds"},
        "communication_models": last.get("models_up", 0.0) + last.get("models_down", 0.0),
        "seconds_total": seconds,
    }
