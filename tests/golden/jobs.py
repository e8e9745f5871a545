"""Small jobs over all that can be trained: command lines, which stay what they are whatever the code behind them is.

A command runs in a folder of its own beside the folder `files` (files.py) and leaves its run in `run`.  Those that say
nothing else train in this process.  In a shared geometry few rounds and a larger ridge keep probabilities away from 0
and 1, where no difference would be seen.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tests.golden import files

AS_PROCESSES = "process"
"""The commands are processes of their own."""
ON_LOOPBACK = "loopback"
"""A server and three sites, processes of their own; the one command is their options, in TOML."""


@final
@dataclass(frozen=True)
class Job:
    """Commands in turn, the model that they leave behind, and the file that it is asked about."""

    name: str
    points: str
    commands: tuple[str, ...]
    model: str = "run"
    """A run directory, a model's file, or an ONNX file."""
    where: str = ""

    @property
    def words(self) -> list[list[str]]:
        """The command lines of `ffgb`, one word an entry."""
        return [_words(command) for command in self.commands]


def _words(command: str) -> list[str]:
    words = shlex.split(command)
    if words[0] == "train":
        words += [] if "--out" in words else ["--out", "run"]
        words += [] if {"--workers", "--engine"} & {*words} else ["--workers", "0"]
    return words


def _on(data: str, *jobs: tuple[str, str]) -> list[Job]:
    """Jobs of one named set."""
    points = f"{data}.npz" if data == "digits" else f"{data}.csv"
    return [Job(name, points, (f"train --data {data} {options}",)) for name, options in jobs]


def _of(kind: str, points: str, *jobs: tuple[str, str]) -> list[Job]:
    """Jobs of three sites' files."""
    suffix = points.rpartition(".")[2]
    data = " ".join(f"--data ../files/{kind}{site}.{suffix}" for site in files.SITES)
    return [Job(name, points, (f"train {data} {options}",)) for name, options in jobs]


CLINICS = _of(
    "clinic-",
    "clinics.csv",
    ("shared-clinics", "--target kind --rounds 1 --features 32 --ridge 0.3"),
    ("shared-grades", "--target kind --rounds 1 --learner linear --ridge 0.3 --categories grade --rare 3"),
)
SHARED = [
    *_on(
        "wine",
        ("shared-linear", "--clients 3 --learner linear --rounds 1 --ridge 0.1"),
        ("shared-tables", "--clients 3 --features 48 --rounds 1 --ridge 0.1"),
        ("shared-steps", "--clients 3 --map steps --features 40 --rounds 1 --ridge 3 --split iid"),
        ("shared-waves", "--clients 3 --map waves --features 40 --rounds 1 --ridge 1"),
        ("shared-trees-map", "--clients 3 --map trees --features 64 --rounds 1 --ridge 1"),
        ("shared-onnx-encoder", "--clients 3 --map ../files/encoder.onnx --rounds 2 --ridge 0.1"),
        ("shared-own-map", "--clients 3 --map tests.golden.own:products --rounds 1 --ridge 0.1"),
        (
            "shared-joined-maps",
            "--clients 4 --map inputs+fourier+../files/encoder.onnx --features 24 --rounds 1 --ridge 1",
        ),
        ("shared-int8", "--clients 3 --map trees --features 32 --rounds 1 --ridge 1 --precision int8"),
        ("shared-two-workers", "--clients 5 --map trees --features 48 --rounds 1 --ridge 1 --workers 2 --seed 3"),
    ),
    *_on(
        "breast_cancer",
        ("shared-logistic", "--clients 4 --learner linear --split dirichlet --alpha 0.3 --rounds 2 --ridge 0.1"),
        ("shared-validation", "--clients 4 --learner linear --rounds 2 --ridge 1 --validation 0.25"),
        ("shared-fourier", "--clients 4 --map fourier --features 40 --rounds 2 --ridge 0.1 --client-weights uniform"),
        (
            "shared-nystrom",
            "--clients 4 --map fourier --features 64 --gram nystrom --rank 16 --rounds 2 --ridge 0.1 --seed 1",
        ),
        (
            "shared-three-steps",
            "--clients 4 --learner linear --local-steps 3 --schedule constant --step-size 1 --rounds 3 --ridge 0.1",
        ),
        (
            "shared-no-residual",
            "--clients 4 --learner linear --local-steps 2 --no-residual --schedule power --step-size 4 --rounds 3",
        ),
        (
            "shared-sampled",
            "--clients 6 --learner linear --participation 0.5 --rounds 4 --ridge 0.1 --largest-weight 0.3",
        ),
        ("shared-norm-bound", "--clients 5 --learner linear --aggregate norm --rounds 2 --ridge 0.1"),
        ("shared-trimmed", "--clients 5 --learner linear --aggregate trimmed --trim 0.25 --rounds 2 --ridge 0.1"),
        ("shared-theorem", "--clients 4 --learner linear --mu 0.5 --schedule theorem1 --rounds 4 --ridge 0.1"),
        ("shared-float16", "--clients 4 --learner linear --rounds 1 --ridge 0.3 --precision float16"),
        ("shared-cross-entropy", "--clients 4 --learner linear --loss cross-entropy --rounds 2 --ridge 0.1"),
    ),
    *_on(
        "diabetes",
        ("shared-square", "--clients 5 --learner linear --rounds 2 --ridge 0.03"),
        ("shared-huber", "--clients 5 --learner linear --loss huber --rounds 3 --split iid"),
        ("shared-laplace", "--clients 5 --map laplace --features 48 --rounds 2 --by age"),
        ("shared-arc-cosine", "--clients 5 --map arc-cosine --features 48 --rounds 2 --ridge 0.1 --similarity 0.5"),
        ("shared-stopped", "--clients 4 --features 64"),
        ("shared-chosen", "--clients 4 --features 48 --rounds 3 --validation 0.2"),
    ),
    *_on(
        "digits",
        ("shared-patches", "--clients 6 --features 64 --rounds 1 --ridge 0.01"),
        (
            "shared-mirrored",
            "--clients 10 --map mirrored-patches --features 32 --gram exact --rounds 1 --ridge 0.03 --split labels",
        ),
        (
            "shared-random-patches",
            "--clients 6 --map random-patches --features 32 --gram blocks --rounds 1 --ridge 0.3",
        ),
    ),
    *CLINICS,
    *_of("shop-", "shops.parquet", ("shared-shops", "--target progress --rounds 2 --features 24 --ridge 0.3")),
    *_of("several-", "several.npz", ("shared-two-targets", "--task regression --learner linear --rounds 2")),
    *_of("photos-", "photos.npz", ("shared-photos", "--rounds 1 --features 24 --ridge 3")),
    Job(
        "shared-resumed",
        "diabetes.csv",
        (
            "train --data diabetes --clients 4 --features 32 --rounds 1 --ridge 0.3",
            "train --resume --out run --rounds 3",
        ),
    ),
]

INCREMENTS = [
    *_on(
        "wine",
        ("linear", "--clients 3 --learner linear --geometry local --rounds 4 --seed 1"),
        (
            "linear-no-residual",
            "--clients 3 --learner linear --geometry local --rounds 3 --local-steps 3 --no-residual",
        ),
        ("tree-distilled-by-clients", "--clients 3 --learner tree --rounds 3 --depth 2 --distill clients"),
        ("mlp", "--clients 3 --learner mlp --hidden 6 --oracle-steps 20 --rounds 3"),
        ("mlp-int8", "--clients 3 --learner mlp --hidden 6 --oracle-steps 10 --rounds 2 --precision int8"),
        ("mlp-validation", "--clients 3 --learner mlp --hidden 5 --oracle-steps 10 --rounds 3 --validation 0.25"),
        (
            "mlp-distilled-by-rounds",
            "--clients 3 --learner mlp --hidden 6 --oracle-steps 10 --rounds 2 --distill rounds --distill-rounds 2",
        ),
        ("own-net", "--clients 3 --learner tests.golden.own:net --oracle-steps 10 --rounds 2 --local-steps 2"),
        ("own-map", "--clients 3 --map tests.golden.own:products --geometry local --rounds 3 --ridge 0.1"),
        ("ffgb-c-linear", "--clients 3 --algorithm ffgb-c --learner linear --rounds 3"),
        ("ffgb-c-tree", "--clients 3 --algorithm ffgb-c --learner tree --depth 2 --rounds 2"),
        ("ffgb-c-mlp", "--clients 3 --algorithm ffgb-c --learner mlp --hidden 6 --oracle-steps 20 --rounds 2"),
        ("fedavg", "--clients 3 --algorithm fedavg --learner mlp --hidden 6 --rounds 3 --local-steps 5"),
        ("fedavg-own-net", "--clients 3 --algorithm fedavg --learner tests.golden.own:net --rounds 2 --local-steps 4"),
        (
            "scaffold-sampled",
            "--clients 5 --algorithm scaffold --learner mlp --hidden 6 --rounds 4 --local-steps 4 --participation 3",
        ),
    ),
    *_on(
        "breast_cancer",
        (
            "features",
            "--clients 4 --map fourier --features 32 --geometry local --rounds 3 --ridge 0.1 --split dirichlet",
        ),
        ("features-trimmed", "--clients 5 --features 24 --geometry local --rounds 3 --ridge 0.1 --aggregate trimmed"),
        ("linear-norm-bound", "--clients 5 --learner linear --geometry local --rounds 3 --ridge 0.1 --aggregate norm"),
        (
            "linear-float16",
            "--clients 4 --learner linear --geometry local --rounds 3 --ridge 1 --precision float16 --schedule power "
            "--step-power 0.5",
        ),
        ("linear-search", "--clients 4 --learner linear --geometry local --rounds 2 --schedule search --ridge 0.3"),
        ("tree", "--clients 3 --learner tree --rounds 3 --depth 2 --split iid"),
        ("tree-int8", "--clients 3 --learner tree --rounds 2 --depth 1 --precision int8 --split iid"),
        ("tree-sampled", "--clients 6 --learner tree --rounds 4 --depth 2 --participation 2 --client-weights size"),
        (
            "ffgb-c-ball",
            "--clients 4 --algorithm ffgb-c --learner linear --rounds 3 --ridge 0.1 --gamma 0.5 --bound 2 --mu 0.5 "
            "--schedule theorem2",
        ),
        ("fedprox", "--clients 4 --algorithm fedprox --learner mlp --hidden 6 --rounds 2 --local-epochs 1 --prox 0.1"),
        ("fedavg-linear", "--clients 4 --algorithm fedavg --learner linear --rounds 3 --local-steps 4 --momentum 0.5"),
        (
            "fedavg-trimmed",
            "--clients 5 --algorithm fedavg --learner mlp --hidden 5 --rounds 2 --local-steps 4 --aggregate trimmed",
        ),
        ("mime", "--clients 4 --algorithm mime --learner mlp --hidden 6 --rounds 2 --local-steps 4 --batch 16"),
        (
            "fedavg-int8",
            "--clients 4 --algorithm fedavg --learner mlp --hidden 6 --rounds 2 --local-steps 4 --precision int8",
        ),
    ),
    *_on(
        "diabetes",
        ("tree-square", "--clients 4 --learner tree --rounds 3 --depth 1 --split iid"),
        ("mlp-huber", "--clients 4 --learner mlp --hidden 6 --oracle-steps 15 --rounds 2 --loss huber --by bmi"),
        (
            "mlp-offset",
            "--clients 4 --learner mlp --hidden 6 --oracle-steps 10 --rounds 2 --step-offset t+1 --mu 0.1",
        ),
        ("ffgb-c-huber", "--clients 4 --algorithm ffgb-c --learner linear --rounds 3"),
        ("ffgb-l", "--clients 4 --algorithm ffgb-l --features 24 --rounds 4 --local-steps 2"),
        (
            "ffgb-l-many-rounds",
            "--clients 4 --algorithm ffgb-l --learner linear --rounds 4 --local-steps 2 --many-rounds --lipschitz max",
        ),
        (
            "ffgb-l-sampled",
            "--clients 5 --algorithm ffgb-l --features 16 --rounds 4 --local-steps 2 --participation 3 --lipschitz 2 "
            "--extension mcshane",
        ),
        (
            "ffgb-l-net",
            "--clients 3 --algorithm ffgb-l --learner mlp --hidden 6 --oracle-steps 8 --rounds 3 --local-steps 2 "
            "--bound 400",
        ),
        (
            "fedavg-regression",
            "--clients 4 --algorithm fedavg --map fourier --features 16 --rounds 3 --local-steps 4 --step-size 0.1",
        ),
    ),
    *_on(
        "digits",
        (
            "digits-patches",
            "--clients 10 --geometry local --features 32 --rounds 2 --split labels --labels 3 --ridge 0.1",
        ),
        ("digits-tree", "--clients 3 --learner tree --depth 2 --rounds 3 --split iid"),
        ("digits-mlp", "--clients 4 --learner mlp --hidden 8,8 --oracle-steps 15 --rounds 2 --split dirichlet"),
    ),
    *_of(
        "photos-",
        "photos.npz",
        ("cnn", "--learner cnn --hidden 4,4 --oracle-steps 4 --batch 16 --rounds 2 --local-steps 1"),
        ("fedavg-cnn", "--algorithm fedavg --learner cnn --hidden 4,4 --rounds 2 --local-steps 2 --batch 8 --augment"),
    ),
    *_of("clinic-", "clinics.csv", ("clinics-tree", "--target kind --learner tree --depth 1 --rounds 3")),
    *_of("several-", "several.npz", ("two-targets-tree", "--task regression --learner tree --depth 2 --rounds 2")),
    Job("options-in-a-file", "breast_cancer.csv", ("train --config ../files/run.toml --rounds 3",)),
    Job(
        "tree-resumed",
        "breast_cancer.csv",
        (
            "train --data breast_cancer --clients 3 --learner tree --rounds 1 --depth 2 --split iid",
            "train --resume --out run --rounds 3 --workers 2",
        ),
    ),
    Job(
        "scaffold-resumed",
        "wine.csv",
        (
            "train --data wine --clients 5 --algorithm scaffold --learner mlp --hidden 6 --rounds 2 --local-steps 4 "
            "--participation 3",
            "train --resume --out run --rounds 4",
        ),
    ),
    Job(
        "distilled-resumed",
        "wine.csv",
        (
            "train --data wine --clients 3 --learner mlp --hidden 6 --oracle-steps 10 --rounds 1 --distill rounds "
            "--distill-rounds 2",
            "train --resume --out run --rounds 2",
        ),
    ),
]

ENSEMBLE = "train --data wine --clients 3 --learner mlp --hidden 6 --oracle-steps 15 --rounds 2"
AFTERWARDS = [
    Job("distilled-by-the-server", "wine.csv", (ENSEMBLE, "distill run --steps 60"), "run/distilled.safetensors"),
    Job(
        "distilled-by-clients",
        "wine.csv",
        (ENSEMBLE, "distill run --by clients --rounds 2 --step-size 0.2"),
        "run/distilled.safetensors",
    ),
    Job(
        "reweighted",
        "breast_cancer.csv",
        (
            "train --data breast_cancer --clients 3 --learner tree --depth 2 --rounds 3 --split iid",
            "reweight run --rounds 4 --sampled 0.5",
        ),
        "run/reweighted.safetensors",
    ),
    Job(
        "exported-trees",
        "breast_cancer.csv",
        (
            "train --data breast_cancer --clients 3 --learner tree --depth 2 --rounds 2 --split iid",
            "export run --onnx model.onnx",
        ),
        "model.onnx",
    ),
    Job(
        "shared-exported-clinics",
        "clinics.csv",
        (CLINICS[0].commands[0], "export run --onnx model.onnx"),
        "model.onnx",
    ),
]

ENGINES = [
    *_of(
        "",
        "sites.csv",
        ("sites-here", "--target digit --learner linear --geometry local --rounds 2 --ridge 0.1"),
        ("shared-sites-here", "--target digit --learner linear --rounds 1 --ridge 0.1"),
    ),
    Job(
        "flower",
        "wine.csv",
        (
            "train --data wine --clients 3 --learner linear --geometry local --rounds 4 --seed 1 --engine flower "
            "--workers 1",
        ),
        where=AS_PROCESSES,
    ),
    Job(
        "sites",
        "sites.csv",
        ('target = "digit"\nlearner = "linear"\ngeometry = "local"\nrounds = 2\nridge = 0.1\nsecure = "off"\n',),
        where=ON_LOOPBACK,
    ),
    Job(
        "shared-sites",
        "sites.csv",
        ('target = "digit"\nlearner = "linear"\nrounds = 1\nridge = 0.1\n',),
        where=ON_LOOPBACK,
    ),
]

BOOSTED = [
    *_on(
        "breast_cancer",
        ("boosted", "--clients 3 --learner trees --rounds 2 --leaves 5 --bins 16"),
        (
            "boosted-by-level",
            "--clients 3 --learner trees --rounds 2 --growth level --bins 16 --leaf-ridge 2 --leaf-hessian 0.01",
        ),
        ("blended", "--clients 3 --learner blend --rounds 2 --bins 16"),
        ("posterior", "--clients 3 --learner features --features 32 --rounds 4"),
    ),
    *_on(
        "diabetes",
        ("boosted-numbers", "--clients 4 --learner trees --rounds 2 --leaves 6 --bins 12 --loss huber"),
        ("blended-numbers", "--clients 4 --learner blend --rounds 2 --bins 12"),
        ("additive-numbers", "--clients 4 --learner additive --rounds 2 --bins 8"),
        ("additive-quantile", "--clients 4 --learner additive --rounds 2 --bins 8 --loss quantile --level 0.8"),
    ),
    *_of(
        "shop-",
        "shops.parquet",
        ("boosted-weights", "--target progress --weights age --learner trees --rounds 1 --leaves 5 --bins 12"),
        ("additive-weights", "--target progress --weights age --learner additive --rounds 1 --bins 8"),
        ("blended-weights", "--target progress --weights age --learner blend --rounds 1 --bins 8"),
        ("ffgb-c-weights", "--target progress --weights age --algorithm ffgb-c --learner tree --depth 2 --rounds 2"),
        ("shared-weights", "--target progress --weights age --learner linear --rounds 1"),
        ("fedavg-weights", "--target progress --weights age --algorithm fedavg --learner linear --rounds 3"),
    ),
    *_of(
        "clinic-",
        "clinics.csv",
        ("additive-clinics", "--target kind --learner additive --rounds 2 --bins 8"),
        ("private", "--target kind --schema ../files/clinics.toml --epsilon 20 --noise-seed 1"),
    ),
]

SAME = {
    "tree-resumed": "tree",
    "scaffold-resumed": "scaffold-sampled",
    "distilled-resumed": "mlp-distilled-by-rounds",
    "flower": "linear",
    "sites": "sites-here",
    "shared-sites": "shared-sites-here",
}
"""Jobs that come to the model of another, to the bit."""

JOBS = {job.name: job for job in (*SHARED, *INCREMENTS, *AFTERWARDS, *ENGINES, *BOOSTED)}


# With scikit-learn's interface: each is fitted, and asked at a few points


def _classes() -> tuple[Any, Any]:
    from ffgb import FFGBClassifier

    x, y, _ = files.table("wine")
    return FFGBClassifier(learner="linear", rounds=1, ridge=0.1).fit(x, y, clients=np.arange(len(x)) % 4), x[::25]


def _frame() -> tuple[Any, Any]:
    from ffgb import FFGBClassifier

    frame = files.rows()
    x, y = frame.drop(columns="kind"), frame["kind"]
    clients = [files.SITES[i % 3] for i in range(len(x))]
    options = {"categories": ["grade"], "rare": 4}
    return FFGBClassifier(rounds=1, learner="linear", ridge=1.0, options=options).fit(x, y, clients=clients), x[::25]


def _trees() -> tuple[Any, Any]:
    from ffgb import FFGBClassifier

    x, y, _ = files.table("breast_cancer")
    fitted = FFGBClassifier(learner="tree", depth=2, rounds=3, participation=2, random_state=4)
    return fitted.fit(x, y, clients=np.arange(len(x)) % 3), x[::80]


def _warm() -> tuple[Any, Any]:
    from ffgb import FFGBClassifier

    x, y, _ = files.table("wine")
    fitted = FFGBClassifier(learner="mlp", hidden=(5,), oracle_steps=10, rounds=1, warm_start=True)
    fitted.fit(x, y, clients=np.arange(len(x)) % 3)
    return fitted.set_params(rounds=3).fit(x, y, clients=np.arange(len(x)) % 3), x[::25]


def _several() -> tuple[Any, Any]:
    from ffgb import FFGBRegressor

    x, y, _ = files.table("diabetes")
    both = np.stack([y, x[:, 2] * x[:, 3] / 64], axis=1)
    return FFGBRegressor(features=32, rounds=2).fit(x, both, clients=np.arange(len(x)) % 5), x[::60]


def _adapted_regressor() -> tuple[Any, Any]:
    from sklearn.tree import DecisionTreeRegressor

    from ffgb import FFGBRegressor

    x, y, _ = files.table("diabetes")
    learner = DecisionTreeRegressor(max_depth=2, max_features=4, min_samples_leaf=20)
    return FFGBRegressor(learner=learner, rounds=3).fit(x, y, clients=np.arange(len(x)) % 4), x[::60]


def _adapted_classifier() -> tuple[Any, Any]:
    from sklearn.linear_model import Ridge

    from ffgb import FFGBClassifier

    x, y, _ = files.table("wine")
    fitted = FFGBClassifier(learner=Ridge(alpha=10.0), rounds=2, local_steps=2, schedule="power", step_size=4.0)
    return fitted.fit(x, y, clients=np.arange(len(x)) % 3), x[::25]


def _lipschitz() -> tuple[Any, Any]:
    from ffgb import FFGBRegressor

    x, y, _ = files.table("diabetes")
    fitted = FFGBRegressor(algorithm="ffgb-l", features=16, rounds=3, local_steps=2, options={"extension": "middle"})
    return fitted.fit(x[::2], y[::2], clients=np.arange(len(x[::2])) % 3), x[::60]


ESTIMATORS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "classifier": _classes,
    "classifier-of-a-frame": _frame,
    "classifier-of-trees": _trees,
    "classifier-warm-start": _warm,
    "classifier-of-ridge": _adapted_classifier,
    "regressor-of-two": _several,
    "regressor-of-sklearn-trees": _adapted_regressor,
    "regressor-ffgb-l": _lipschitz,
}

NAMES = [*JOBS, *ESTIMATORS]
