"""What a run is made of: its settings, and the data, loss, learner, steps and algorithm that they name."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb._version import __version__
from ffgb.aggregates import Ask, MomentsOf, Statistic
from ffgb.algorithms import Algorithm
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.fedprox import FedProx
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.scaffold import Scaffold
from ffgb.data import SOURCES, Dataset, load, load_sites
from ffgb.data.preprocess import RARE
from ffgb.errors import FFGBError
from ffgb.features import FeatureMap, Flatten, Points, Standardize
from ffgb.features.encoder import Encoder
from ffgb.functions import Family
from ffgb.geometry import GRAMS, Geometry, aggregate
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.machine import available
from ffgb.maps import FOURIER, PATCHES, Maps, Space, default_map
from ffgb.robust import AGGREGATES
from ffgb.schedules import Constant, Power, Schedule, Theorem
from ffgb.server import Learner
from ffgb.trust import allow
from ffgb.wire import PRECISIONS

PARAMETRIC = ("fedavg", "fedprox", "scaffold", "mime")
ALGORITHMS = ("ffgb", "ffgb-c", "ffgb-l", *PARAMETRIC)
CLOSED = ("features", "linear")
RIDGE = 1e-3
"""Of a client's own fit."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # In a shared geometry one local step is all there is to gain, and the search finds its length.
    "shared": {"rounds": 10, "local_steps": 1, "schedule": "search"},
    # Nets take the paper's steps (MNIST: K = 2, η₀ = 20; CIFAR-10: K = 4, η₀ = 10).  The others take a constant step,
    # the inverse of the loss's smoothness (`Config.resolved`); trees overfit unless it is shrunk, as everywhere.
    "local": {"rounds": 30, "local_steps": 2, "schedule": "constant"},
    "tree": {"rounds": 30, "local_steps": 2, "schedule": "constant", "shrinkage": 0.3},
    "mlp": {"rounds": 8, "local_steps": 2, "schedule": "power", "step_size": 20.0},
    "cnn": {"rounds": 8, "local_steps": 4, "schedule": "power", "step_size": 10.0},
}
MU = {"ffgb-c": 1e-3, "ffgb-l": 1.0}
"""μ if none is given and it is not 0: FFGB.C needs one, and FFGB.L's is that of the square loss."""
AVERAGED: Mapping[str, Any] = {"rounds": 50, "local_steps": 25, "schedule": "constant", "batch": 0.2}
"""Of parametric methods: the paper's settings for FedAvg on MNIST."""
STEPS = {"mlp": 0.3, "features": 4.0, "linear": 0.1}
"""Their step size, by learner; other nets take 0.05.  `ffgb tune` finds better ones."""
NETS: Mapping[str, Any] = {"hidden": (32, 32), "oracle_steps": 200, "learning_rate": 0.005, "batch": 128}
LIPSCHITZ: Mapping[str, Any] = {
    "rounds": 50, "local_steps": 8, "schedule": "theorem2",
    "hidden": (64, 64), "oracle_steps": 400, "learning_rate": 0.015, "batch": 128,
}  # fmt: skip
ONLY = {
    "gamma": ("ffgb-c",),
    "bound": ("ffgb-c", "ffgb-l"),
    "lipschitz": ("ffgb-l",),
    "extension": ("ffgb-l",),
    "one_round": ("ffgb-l",),
    "ridge": ("ffgb", "ffgb-c"),
    "distill": ("ffgb",),
    "augment": PARAMETRIC,
    "momentum": ("fedavg", "fedprox", "mime"),
    "prox": ("fedprox",),
}
"""Which algorithms have a use for a setting that others have none for."""
SMOOTH = ("inputs", *FOURIER)
"""Maps without jumps, which FFGB.L can have."""
CHOICES = {
    "client_weights": ("uniform", "size"),
    "geometry": ("local", "shared"),
    "gram": GRAMS,
    "distill": ("clients", "rounds"),
    "precision": PRECISIONS,
    "aggregate": AGGREGATES,
}
REGRESSION_LOSSES = ("square", "huber")


@final
@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run.  None means: what suits the data and the learner; `resolved` fills it in."""

    data: tuple[str, ...] = ("digits",)
    target: str | None = None
    task: str | None = None
    categories: tuple[str, ...] = ()
    """Columns of files that are text, whatever they look like."""
    rare: int = RARE
    """Rows that a site must have of a category before it names it."""
    clients: int | None = None
    split: str | None = None
    similarity: float = 0.1
    alpha: float = 0.5
    labels: int = 2
    """Classes that a client has, in the split of that name."""
    by: str | None = None
    """The column that the similarity split sorts by, instead of the label."""
    algorithm: str = "ffgb"
    learner: str = "features"
    geometry: str | None = None
    loss: str = "auto"
    rounds: int | None = None
    stop: bool | None = None
    """End before the last round when there is nothing left to learn but noise: if no number of rounds was given."""
    local_steps: int | None = None
    schedule: str | None = None
    step_size: float | None = None
    step_power: float = 1.0
    step_offset: str = "t"
    mu: float | None = None
    residual: bool = True
    gamma: float | None = None
    """γ that FFGB.C clips by; None: as measured."""
    bound: float | None = None
    """B: the ball that FFGB.C's result is projected onto, or what FFGB.L's labels must keep."""
    lipschitz: float | str = "auto"
    """L of FFGB.L."""
    extension: str | None = None
    one_round: bool | None = None
    """FFGB.L in one exchange that stands for all its rounds."""
    distill: str | None = None
    """"clients": each makes one weak learner of its K before it sends them; "rounds": all make one of the ensemble."""
    distill_rounds: int = 20
    """Rounds of FedAvg after each boosting round, in the latter way."""
    participation: int | float | None = None
    """How many clients are sampled each round: a whole number of them, or a share as a float."""
    client_weights: str | None = None
    map: str | None = None
    features: int | None = None
    ridge: float | None = None
    gram: str | None = None
    rank: int = 256
    validation: float = 0.0
    """The share of its rows that each client sets aside to choose λ and the number of rounds by."""
    hidden: tuple[int, ...] | None = None
    augment: bool = False
    """Photographs are shifted and mirrored at random in every step of a parametric method (cnn, your own nets)."""
    oracle_steps: int | None = None
    learning_rate: float | None = None
    batch: float | None = None
    """Points in a batch: a whole number, or for parametric methods a share of the client's, below 1."""
    momentum: float | None = None
    prox: float = 0.01
    local_epochs: int = 0
    """Passes over a client's points in a round of a parametric method, instead of local steps."""
    depth: int = 4
    aggregate: str = "mean"
    """How answers of clients become one: mean, or one that no client can pull far (robust.py)."""
    trim: float = 0.2
    """The share that a trimmed mean puts aside at either end."""
    precision: str = "float32"
    """In which increments travel: float32, float16 or int8."""
    seed: int = 0

    def __post_init__(self) -> None:
        given: object = self.data
        if isinstance(given, str):  # one name, given as such
            object.__setattr__(self, "data", (given,))
        if len(self.data) > 1 and (named := [n for n in self.data if n in SOURCES and not Path(n).exists()]):
            raise FFGBError(f"{named[0]} is a set of its own; name one set, or files, one a client")
        numbers = (
            ("ridge", 0.0),
            ("step_power", 0.0),
            ("learning_rate", 1e-12),
            ("features", 1),
            ("rank", 1),
            ("mu", 0.0),
            ("bound", 1e-300),
            ("batch", 1e-12),
            ("prox", 0.0),
        )
        for name, least in numbers:
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                flag = name.replace("_", "-")
                raise FFGBError(f"--{flag} must be a {'positive' if least else 'non-negative'} number")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise FFGBError(f"--momentum is a number from 0 to less than 1, not {self.momentum:g}")
        if isinstance(self.batch, float) and self.batch == 1.0:
            raise FFGBError("--batch 1.0 may mean all points or one; give a share below 1, or a number of points")
        if not 0 <= self.validation < 1:
            raise FFGBError(f"--validation is a share of the rows from 0 to less than 1, not {self.validation}")
        for name, number in (("gamma", self.gamma), ("lipschitz", self.lipschitz)):
            if isinstance(number, float) and not math.isfinite(number):
                raise FFGBError(f"--{name} must be a number, not {number}")
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in (None, *choices):
                raise FFGBError(f"--{name.replace('_', '-')} is {' or '.join(choices)}, not {value!r}")
        if self.step_offset not in ("t", "t+1"):
            raise FFGBError(f"the step offset is t or t+1, not {self.step_offset!r}")

    @property
    def files(self) -> bool:
        """The data are files, one a site, rather than a named set."""
        first = self.data[0]
        named = first in SOURCES or first.startswith("openml:")
        return len(self.data) > 1 or (
            not named and (len(Path(first).parts) > 1 or "." in first or Path(first).exists())
        )

    @property
    def code(self) -> list[str]:
        """Names of the user's own code that the run needs."""
        parts = [self.learner, *(self.map or "").split("+")]
        return [part for part in parts if ":" in part and not part.endswith(".onnx")]

    def resolved(self, dataset: Dataset) -> Config:
        """The same configuration with every choice made."""
        split = self.split or ("natural" if dataset.sites else "similarity")
        clients = self.clients or (max(1, len(dataset.sites)) if split == "natural" else 20)
        if split == "natural" and self.by:
            raise FFGBError("--by is for a set that is dealt out to clients; these are clients already: leave it out")
        m = clients if self.participation is None else self.participation
        m = max(1, round(m * clients)) if isinstance(m, float) and 0 < m <= 1 else m
        if not (1 <= m <= clients and float(m).is_integer()):
            raise FFGBError(
                f"--participation {self.participation} is neither a share up to 1.0 nor a number from 1 to {clients}"
            )
        loss = self.loss
        if loss == "auto":
            loss = "square" if not dataset.classes else "logistic" if len(dataset.classes) == 2 else "cross-entropy"
            if loss == "square" and self.algorithm == "ffgb-c":
                loss = "huber"  # its gradient is bounded
        closed = self.learner in CLOSED
        geometry = self.geometry or ("shared" if closed and self.algorithm == "ffgb" else "local")
        if geometry == "shared" and not closed:
            raise FFGBError(f"--geometry shared is for {' and '.join(CLOSED)}; {self.learner} has none to share")
        if self.algorithm not in ALGORITHMS:
            raise FFGBError(f"there is no algorithm {self.algorithm!r}; choose {', '.join(ALGORITHMS)}")
        if geometry == "shared" and self.algorithm != "ffgb":
            raise FFGBError(f"{self.algorithm} fits in norms of each client's own points; use --geometry local")
        self._check_algorithm(dataset, int(m) < clients)
        chosen = dataclasses.replace(
            self,
            split=split,
            clients=clients,
            participation=int(m),
            loss=loss,
            task=dataset.task,
            geometry=geometry,
            mu=MU.get(self.algorithm, 0.0) if self.mu is None else self.mu,
            one_round=int(m) == clients if self.one_round is None and self.algorithm == "ffgb-l" else self.one_round,
            stop=self.rounds is None if self.stop is None else self.stop,
            # The paper weights clients alike; in a shared geometry the result should not depend on the split, and
            # FedAvg and those after it weight clients by their points.
            client_weights=self.client_weights
            or ("size" if geometry == "shared" or self.algorithm in PARAMETRIC else "uniform"),
        )
        fixed = {**NETS, **(DEFAULTS[geometry] if closed else DEFAULTS.get(self.learner, DEFAULTS["cnn"]))}
        if self.algorithm == "ffgb-l":
            fixed = dict(LIPSCHITZ)
        if self.algorithm in PARAMETRIC:
            fixed = {**NETS, **AVERAGED, "step_size": STEPS.get(self.learner, 0.05)}
            if self.algorithm in ONLY["momentum"]:
                fixed["momentum"] = 0.9 if self.algorithm == "mime" else 0.0
        if closed:
            space = make_space(dataset)
            fixed["map"] = "inputs" if self.learner == "linear" else default_map(space)
            if self.algorithm == "ffgb-l" and self.learner != "linear":
                fixed |= {"map": "inputs+fourier", "features": 512}
            if self.algorithm in ONLY["ridge"]:  # ffgb-l chooses its own
                fixed["ridge"] = RIDGE
            if geometry == "shared":
                fixed["gram"] = "tied" if (self.map or fixed["map"]) in PATCHES else "exact"
                # λ = trace(G)/n: a prior variance of 1 against a noise of 1.  What a cruder Gram leaves out smooths
                # too.
                fixed["ridge"] = (1.0 if (self.gram or fixed["gram"]) == "exact" else 0.1) / len(dataset.x)
        if int(m) < clients and fixed["schedule"] == "search":
            # A search among few clients finds the step that is best for them.  Shorter steps average over samples, and
            # everyone should have about ten turns.
            rounds = min(100, math.ceil(10 * clients / m))
            fixed |= {"schedule": "constant", "shrinkage": math.sqrt(m / clients), "rounds": rounds}
        smoothness = make_loss(chosen, dataset).smoothness
        if self.algorithm in PARAMETRIC:
            pass  # a step in parameter space has nothing to do with the loss's smoothness
        elif (self.schedule or fixed["schedule"]) in ("constant", "search"):
            fixed["step_size"] = fixed.get("shrinkage", 1.0) / smoothness
        elif not dataset.classes:
            fixed["step_size"] = 2.0  # 2/(Kt+k+1): the theorem's, for the square loss is strongly convex with μ = 1
        else:
            fixed.setdefault("step_size", 20.0)  # the paper's
        unset = {name: v for name, v in fixed.items() if name != "shrinkage" and getattr(self, name) is None}
        return dataclasses.replace(chosen, **unset)

    def _check_algorithm(self, dataset: Dataset, sampled: bool) -> None:
        """Refuse settings that the algorithm has no use for: someone would wait for their effect."""
        for name, users in ONLY.items():
            if self.algorithm not in users and getattr(self, name) != getattr(Config, name):
                raise FFGBError(f"--{name.replace('_', '-')} is for {' and '.join(users)}, not for {self.algorithm}")
        if self.algorithm == "ffgb-c" and not dataset.classes and self.loss not in ("auto", "huber"):
            raise FFGBError(
                "ffgb-c needs a loss with a bounded gradient; for regression leave --loss out, or use huber"
            )
        one_array = self.algorithm in PARAMETRIC or (self.learner in CLOSED and self.algorithm != "ffgb-c")
        if self.aggregate != "mean" and not one_array:
            raise FFGBError(f"--aggregate {self.aggregate} is for learners whose sum is one array, such as features")
        if self.distill and self.learner in CLOSED:
            raise FFGBError(f"--distill is for ensembles; {self.learner} is one array, whatever was added")
        if self.distill_rounds != Config.distill_rounds and self.distill != "rounds":
            raise FFGBError("--distill-rounds is for --distill rounds")
        if self.distill == "rounds" and self.learner == "tree":
            raise FFGBError("--distill rounds moves a learner by gradients, and trees have none; use --distill clients")
        if self.algorithm in PARAMETRIC:
            for name, idle in (("mu", self.mu), ("no-residual", not self.residual), ("validation", self.validation)):
                if idle:
                    raise FFGBError(f"--{name} is for ffgb; {self.algorithm} has no use for it")
            if self.learner == "tree":
                raise FFGBError(f"{self.algorithm} moves parameters by gradients, and trees have none; use ffgb")
            if self.schedule not in (None, "constant"):
                raise FFGBError(f"{self.algorithm} takes constant steps; leave --schedule out, or say constant")
        elif self.local_epochs or (self.batch or 1) < 1:
            raise FFGBError("--local-epochs and a --batch below 1 are for parametric methods, such as fedavg")
        if self.algorithm != "ffgb-l":
            return
        if dataset.classes:
            raise FFGBError(f"ffgb-l is for regression, and {dataset.name} has classes; use ffgb-c")
        if self.mu not in (None, 1.0):
            raise FFGBError("ffgb-l has μ = 1, the strong convexity of the square loss; leave --mu out")
        if self.one_round and sampled:
            raise FFGBError("--one-round has no rounds to sample clients in; leave --participation out")
        if self.validation:
            raise FFGBError(
                "--validation chooses λ and rounds; ffgb-l chooses its own λ, and has one exchange: leave it out"
            )
        if self.learner not in (*CLOSED, "mlp"):
            raise FFGBError(
                f"ffgb-l needs functions whose Lipschitz constant is known, and {self.learner} has none: trees jump, "
                "and "
                "nets of your own may be as steep as they like; choose --learner features, linear or mlp"
            )
        for name in (self.map or "inputs").split("+"):
            if name not in SMOOTH and not Encoder.names(name):
                raise FFGBError(f"ffgb-l needs a map without jumps, and {name} has some; choose {', '.join(SMOOTH)}")

    @property
    def exchanges(self) -> int:
        """Rounds of communication: all T of them are one in FFGB.L's one-round form."""
        assert self.rounds is not None  # resolved
        return 1 if self.one_round else self.phases * self.rounds

    @property
    def phases(self) -> int:
        """Exchanges in a round."""
        return Mime.phases if self.algorithm == "mime" else 1

    def to_json(self) -> dict[str, Any]:
        """What `config.json` holds: the settings, a fingerprint of every site file, and the versions in use."""
        packages = ("numpy", "scipy", "scikit-learn", "safetensors")
        versions = {"ffgb": __version__, "python": platform.python_version(), **{p: version(p) for p in packages}}
        return {**dataclasses.asdict(self), "sha256": self._fingerprints(), "versions": versions}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Config:
        """The configuration in a run's `config.json`, if its site files are still what they were."""
        names = {f.name for f in dataclasses.fields(Config)}
        # What a version before did not know of was as it is by default now.
        values: dict[str, Any] = {name: content[name] for name in names if name in content}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        config = Config(**values)
        before = content.get("sha256", {})
        for file, now in config._fingerprints().items():
            if now != before.get(file):
                raise FFGBError(f"{file} has changed since the run was started, so it cannot go on; start a new run")
        return config

    def _fingerprints(self) -> dict[str, str]:
        if not self.files:
            return {}  # published sets are checked against their own sums when they are loaded
        try:
            return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in self.data}
        except OSError as error:
            raise FFGBError(f"{error.filename} cannot be read ({error.strerror}); is it where it was?") from error


def load_data(config: Config) -> Dataset:
    """The data a configuration names: a known set, or one file a site."""
    if config.data == ("sites",):
        raise FFGBError("the rows of this run are at its sites; name files to score its model on with --data")
    if config.files:
        task = config.task or ("regression" if config.loss in REGRESSION_LOSSES else None)
        dataset = load_sites(
            *([Path(p) for p in config.data], config.target),
            seed=config.seed,
            task=task,
            categories=config.categories,
            rare=config.rare,
        )
    else:
        dataset = load(config.data[0], seed=config.seed)
        if config.target is not None:
            raise FFGBError(f"--target is for files of your own; {dataset.name} has its own target")
        if config.task not in (None, dataset.task):
            raise FFGBError(f"{dataset.name} is {dataset.task}, not {config.task}")
    if len(dataset.classes) == 1:
        raise FFGBError(f"all rows of {dataset.name} have the class {dataset.classes[0]!r}; there is nothing to learn")
    return dataset


def make_algorithm(config: Config) -> Algorithm:
    """The algorithm, with its step sizes."""
    assert config.local_steps is not None  # resolved
    assert config.mu is not None
    K, mu, schedule = config.local_steps, config.mu, make_schedule(config)
    if (search := config.schedule == "search") and config.algorithm != "ffgb":
        raise FFGBError(f"{config.algorithm} is bounded by the steps of its schedule; choose a --schedule but search")
    match config.algorithm:
        case "ffgb":
            return FFGB(schedule, K, mu, config.residual, search, config.distill == "clients")
        case "ffgb-c":
            B = math.inf if config.bound is None else config.bound
            return FFGBC(schedule, K, mu, config.gamma, B, config.residual)
        case "ffgb-l":
            L: Any = config.lipschitz
            rounds = config.rounds if config.one_round else 1
            return FFGBL(L, K, rounds or 1, schedule, config.extension, config.bound, config.residual)
    if config.algorithm in PARAMETRIC:
        assert config.step_size is not None
        common: dict[str, Any] = {
            "step": config.step_size, "K": K, "batch": float(config.batch or 1), "epochs": config.local_epochs,
        }  # fmt: skip
        momentum = config.momentum or 0.0
        match config.algorithm:
            case "fedavg":
                return FedAvg(**common, momentum=momentum)
            case "fedprox":
                return FedProx(**common, momentum=momentum, prox=config.prox)
            case "scaffold":
                return Scaffold(**common)
            case "mime":
                return Mime(**common, momentum=momentum)
    raise FFGBError(f"there is no algorithm {config.algorithm!r}; choose {', '.join(ALGORITHMS)}")


def make_schedule(config: Config) -> Schedule:
    """The step sizes."""
    assert config.step_size is not None
    assert config.mu is not None
    match config.schedule:
        case "theorem1":
            return Theorem(config.mu, 2.0)
        case "theorem2":
            return Theorem(config.mu, 4.0)
        case "constant" | "search":
            return Constant(config.step_size)
        case "power":
            return Power(config.step_size, config.step_power, "t" if config.step_offset == "t" else "t+1")
    raise FFGBError(f"there is no schedule {config.schedule!r}; choose search, power, constant, theorem1 or theorem2")


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
    if (config.loss in REGRESSION_LOSSES) == bool(dataset.classes):
        raise FFGBError(f"the loss {config.loss} does not fit {dataset.task}; leave --loss out, or give another --task")
    if config.loss == "logistic" and len(dataset.classes) > 2:
        raise FFGBError(
            f"{dataset.name} has {len(dataset.classes)} classes, the logistic loss has two: use cross-entropy"
        )
    return losses[config.loss]()


def make_space(dataset: Dataset) -> Space:
    """What a feature map may know of the data before it asks."""
    return Space(dataset.x.shape[1:], dataset.image, dataset.columns, len(dataset.x))


def make_student(config: Config) -> FedAvg:
    """How clients distill an ensemble together: as FedAvg trains by default."""
    return FedAvg(STEPS.get(config.learner, 0.05), AVERAGED["local_steps"], AVERAGED["batch"])


def make_learner(config: Config, dataset: Dataset) -> Learner:
    """How the family of weak learners comes about, and the geometry that its clients share.

    A family is built from a few rows and tried on one, so that wrong settings are found before any work starts.
    """
    outputs = 1 if config.loss == "logistic" else dataset.outputs
    space = make_space(dataset)
    oracle: dict[str, Any] = {
        "steps": config.oracle_steps,
        "learning_rate": config.learning_rate,
        "batch": max(1, int(config.batch or 1)),
    }

    def scaled(ask: Ask) -> FeatureMap:
        return Maps(ask, space, config.seed).scaled

    def closed(ask: Ask, *, trial: bool = False) -> tuple[Family, Geometry | None]:
        assert config.map is not None  # resolved
        ridge = RIDGE if config.ridge is None else config.ridge
        features, standardize = Maps(ask, space, config.seed).make(config.map, config.features)
        if not features.dimension and not trial:
            raise FFGBError(f"the map {config.map} has no features here: every column is the same at all points")
        if standardize and not trial:
            features = Standardize.by(ask(MomentsOf.map(features)), features, total=1.0)
        geometry = None
        if config.geometry == "shared" and not trial:
            assert config.gram is not None
            geometry = aggregate(ask, features, config.gram, ridge, rank=config.rank, seed=config.seed)
        return Linear(features, outputs, ridge), geometry

    families: dict[str, Callable[[Ask], Family]] = {
        "mlp": lambda ask: (LipschitzMLP if config.algorithm == "ffgb-l" else MLP)(
            *(scaled(ask), outputs, config.hidden or ()), **oracle
        ),
        "tree": lambda ask: Tree(Flatten(space.inputs), outputs, config.depth),
        "cnn": lambda ask: Net(
            *(space.shape, outputs, "cnn"), hidden=config.hidden or (), augment=config.augment, **oracle
        ),
    }
    if ":" in config.learner:
        families[config.learner] = lambda ask: Net(
            *(space.shape, outputs, config.learner), scaled=scaled(ask), augment=config.augment, **oracle
        )
    for name in config.code:
        allow(name)
    if config.learner not in (*CLOSED, *families):
        known = ", ".join((*CLOSED, *families))
        raise FFGBError(f"there is no learner {config.learner!r}; choose {known}, or your own package.module:factory")
    if config.learner == "cnn" and not dataset.image:
        raise FFGBError("the learner cnn needs images, and these are tables; choose features, linear, mlp or tree")
    if config.augment and not (dataset.image and (config.learner == "cnn" or ":" in config.learner)):
        raise FFGBError("--augment shifts and mirrors images for --learner cnn, or a torch module of your own")

    def few_rows(statistic: Statistic) -> Any:
        rows = slice(None, None, max(1, len(dataset.x) // 64))
        return statistic.total([(1.0, statistic.of(Points(0, dataset.x[rows], dataset.y[rows])))])

    if config.learner in CLOSED:
        family, _ = closed(few_rows, trial=True)
        _check_memory(family, config, dataset)
        _try_out(family, dataset, config.learner)
        return closed
    make = families[config.learner]
    _try_out(make(few_rows), dataset, config.learner)
    return lambda ask: (make(ask), None)


def _check_memory(family: Family, config: Config, dataset: Dataset) -> None:
    """Refuse what cannot fit into this machine's memory, before any work."""
    d, rows = family.features.dimension, len(dataset.x) + len(dataset.x_test)
    need = {} if config.data == ("sites",) else {"the features of all points": 4 * d * rows}
    if config.geometry == "shared":
        groups = family.features.blocks
        sizes = {"exact": (d,), "blocks": groups, "tied": groups[:1]}
        # the sum, what is being factored, the factor, and a client's part of it
        need["the Gram"] = (
            8 * d * config.rank * 4
            if config.gram == "nystrom"
            else 28 * sum(size**2 for size in sizes[config.gram or "exact"])
        )
    if (total := sum(need.values())) > (have := available()):
        parts = " and ".join(f"{size / 1e9:,.1f} GB for {what}" for what, size in need.items())
        raise FFGBError(
            f"{d:,} features need {total / 1e9:,.1f} GB of memory ({parts}), and {have / 1e9:,.1f} GB are free; "
            "choose a smaller --features, or --gram nystrom"
        )


def _try_out(family: Family, dataset: Dataset, name: str) -> None:
    """One member at one row: a user's own module may fail in any way at all."""
    stack = {n: np.zeros((1, *shape), dtype) for n, (shape, dtype) in family.spec.items()}
    row = family.features(dataset.x[:1])
    try:
        found = family.members(stack, row).shape
    except FFGBError:
        raise
    except Exception as error:
        raise FFGBError(f"the learner {name} fails on a point of shape {dataset.x.shape[1:]}: {error}") from error
    if found != (1, 1, family.outputs):
        raise FFGBError(
            f"the learner {name} gives values of shape {found[1:]} for one point, not {(1, family.outputs)}"
        )
