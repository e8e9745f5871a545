"""Defaults and limits of settings are a promise: who changes one changes the results of everyone who set nothing.

The tables are written by hand.  A change of a default belongs here and in the changelog.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest

from ffgb.algorithms import Algorithm
from ffgb.algorithms.additive_shared import AdditiveShared
from ffgb.algorithms.blended import Blended
from ffgb.algorithms.catalogue import ALGORITHMS
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.fedboost import FedBoost
from ffgb.algorithms.fedprox import FedProx
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.algorithms.ffgb_posterior import FFGBPosterior
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.scaffold import Scaffold
from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core.losses import Gamma, Huber, Logistic, Poisson, Quantile, Square
from ffgb.core.means import TrimmedMean
from ffgb.core.schedules import Power, Theorem
from ffgb.core.tree_growth import Growth
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.catalogue import FAMILIES
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.runs.config import SETTINGS, Config
from tests.runs import constants

NUMBERS: dict[str, Any] = {
    "rare": 10,
    "similarity": 0.1,
    "alpha": 0.5,
    "labels": 2,
    "least": 10,
    "patience": 8,
    "shallow_leaves": 4,
    "residual": True,
    "distill_rounds": 20,
    "prox": 0.01,
    "local_epochs": 0,
    "rank": 256,
    "delta": 1.0,
    "level": 0.5,
    "trim": 0.2,
    "step_power": 1.0,
    "leaf_hessian": 0.001,
    "leaf_ridge": 1.0,
    "augment": False,
    "depth": 4,
    "seed": 0,
    "validation": 0.0,
}
"""Of all other settings the default is a word, or nothing."""

LEAST_ONE = (
    *("clients", "rare", "labels", "least", "rounds", "local_steps", "patience", "distill_rounds", "trees_a_round"),
    *("rank", "levels", "leaf_rows", "oracle_steps", "depth", "features"),
)
LIMITS: dict[str, tuple[float | None, ...]] = {  # at least, at most, above, below
    **dict.fromkeys(LEAST_ONE, (1, None, None, None)),
    **dict.fromkeys(
        ("mu", "prox", "local_epochs", "step_power", "leaf_hessian", "leaf_ridge", "ridge", "seed"),
        (0, None, None, None),
    ),
    **dict.fromkeys(("bound", "delta", "learning_rate", "batch", "alpha", "step_size"), (None, None, 0, None)),
    **dict.fromkeys(("largest_weight", "tree_rate", "column_share", "row_share"), (None, 1, 0, None)),
    **dict.fromkeys(("momentum", "validation"), (0, None, None, 1)),
    "trim": (0, None, None, 0.5),
    "epsilon": (None, 50, 0, None),
    "colluders": (0, None, None, None),
    "noise_seed": (0, None, None, None),
    "unit_rows": (1, None, None, None),
    "pairs": (0, 16, None, None),
    "levels": (1, 32, None, None),
    "level": (None, None, 0, 1),
    "shallow_leaves": (2, 31, None, None),
    "bins": (2, 255, None, None),
    "leaves": (2, 1024, None, None),
}
COMMON = {
    *("data", "target", "clients", "split", "algorithm", "rounds", "local_steps", "mu", "geometry", "loss"),
    *("step_size", "learner", "seed", "epsilon"),
}

PARAMETRIC = {"rounds": 50, "local_steps": 25, "schedule": "constant", "batch": 0.2}
NETS = {"hidden": (32, 32), "oracle_steps": 200, "learning_rate": 0.005, "batch": 128, "rounds": 8, "schedule": "power"}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {**PARAMETRIC, "momentum": 0.0},
    "fedprox": {**PARAMETRIC, "momentum": 0.0},
    "mime": {**PARAMETRIC, "momentum": 0.9},
    "scaffold": PARAMETRIC,
    "ffgb-c": {"mu": 0.001, "regression_loss": "huber"},
    "ffgb-l": {
        "mu": 1.0,
        "rounds": 50,
        "local_steps": 8,
        "schedule": "theorem2",
        "hidden": (64, 64),
        "oracle_steps": 400,
        "learning_rate": 0.015,
        "batch": 128,
    },
}
LEARNERS: dict[str, dict[str, Any]] = {
    "additive": {
        "rounds": 8,
        "regression_rounds": 6,
        "local_steps": 1,
        "schedule": "constant",
        "bins": 64,
        "leaves": 31,
    },
    "blend": {
        "rounds": 100,
        "regression_rounds": 200,
        "local_steps": 1,
        "schedule": "constant",
        "bins": 100,
        "tree_rate": 0.4,
        "leaves": 31,
        "levels": 6,
        "trees_a_round": 6,
        "row_share": 0.7,
    },
    "trees": {
        "rounds": 20,
        "regression_rounds": 40,
        "local_steps": 1,
        "schedule": "constant",
        "bins": 100,
        "tree_rate": 0.8,
        "leaves": 31,
        "levels": 6,
        "trees_a_round": 8,
        "row_share": 0.7,
    },
    "mlp": {**NETS, "local_steps": 2, "step_size": 20.0, "parametric_step": 0.3},
    "cnn": {**NETS, "local_steps": 4, "step_size": 10.0, "parametric_step": 0.05},
    "tree": {"rounds": 30, "local_steps": 2, "schedule": "constant", "shrinkage": 0.3},
}


TRAITS: dict[type[Algorithm], dict[str, Any]] = {
    # what the server does for an algorithm: it searches for the step, keeps every term, so many exchanges a round
    FFGB: {"searches": True, "terms": False, "phases": 1},
    FFGBC: {"searches": False, "terms": True, "phases": 1},
    FFGBL: {"searches": False, "terms": False, "phases": 1},
    FedAvg: {"searches": False, "terms": False, "phases": 1},
    Mime: {"searches": False, "terms": False, "phases": 2},
    FFGBShared: {"searches": True, "terms": False, "phases": 1},
    TreesShared: {"searches": False, "terms": False, "phases": 1},
    AdditiveShared: {"searches": False, "terms": False, "phases": 1},
    Blended: {"searches": False, "terms": False, "phases": 1},
}


LOCAL = {"K": 1, "batch": 128.0, "epochs": 0}
ADAM = {"hidden": (32, 32), "steps": 1000, "learning_rate": 0.005, "batch": 128}
FIELDS: dict[type[Any], dict[str, Any]] = {
    FFGB: {"K": 1, "mu": 0.0, "residual": True, "distill": False},
    FFGBC: {"K": 1, "mu": 0.01, "B": math.inf, "residual": True},
    FFGBL: {"K": 1, "rounds": 1, "residual": True},
    FFGBShared: {"mu": 0.0, "search": False},
    FFGBPosterior: {"mu": 0.0},
    FedAvg: {**LOCAL, "momentum": 0.0},
    FedProx: {**LOCAL, "momentum": 0.0, "prox": 0.01},
    Scaffold: LOCAL,
    Mime: {**LOCAL, "momentum": 0.9},
    FedBoost: {**LOCAL, "sampled": 1.0, "seed": 0},
    TreesShared: {
        "rate": 0.1,
        "side_by_side": 1,
        "share": 1.0,
        "least_columns": 1,
        "monotone": (),
        "least": 1,
        "seed": 0,
        "mu": 0.0,
    },
    AdditiveShared: {"mu": 0.0},
    Blended: {"smooth": 0, "patience": 8, "mu": 0.0},
    Growth: {
        "leaves": 31,
        "levels": 6,
        "least_rows": 20,
        "least_hessian": 0.001,
        "ridge": 1.0,
        "category_ridge": 300.0,
        "smoothing": 100.0,
        "by_level": False,
    },
    Linear: {"ridge": 0.001, "intercept": 0.1},
    MLP: {**ADAM, "slope": 0.01},
    Net: {**ADAM, "augment": False},
    LipschitzMLP: {"hidden": (64, 64), "steps": 400, "learning_rate": 0.015, "batch": 128, "slopes": 1.0},
    Tree: {"depth": 4, "min_leaf": 1},
    BoostedTrees: {"leaves": 31},
    Huber: {"outputs": 1, "delta": 1.0},
    Quantile: {"outputs": 1, "level": 0.5},
    **{kind: {"outputs": 1} for kind in (Gamma, Logistic, Poisson, Square)},
    Theorem: {"numerator": 2.0},
    Power: {"p": 1.0},
    TrimmedMean: {"share": 0.2},
}
"""Of classes that scripts make by themselves: the defaults that are numbers."""


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_what_a_class_takes_if_a_script_says_nothing(kind: type[Any]) -> None:
    found = {field.name: field.default for field in fields(kind)}
    assert {name: found[name] for name in FIELDS[kind]} == FIELDS[kind]


@pytest.mark.parametrize("kind", TRAITS, ids=lambda kind: kind.__name__)
def test_what_the_server_does_for_an_algorithm(kind: type[Algorithm]) -> None:
    assert {name: getattr(kind, name) for name in TRAITS[kind]} == TRAITS[kind]


def test_numbers_that_nobody_set() -> None:
    numbers = {name: each.default for name, each in SETTINGS.items() if isinstance(each.default, int | float)}
    assert numbers == NUMBERS
    config = Config()
    assert {name: getattr(config, name) for name in NUMBERS} == NUMBERS


def test_limits_of_numbers() -> None:
    found = {name: (each.least, each.most, each.above, each.below) for name, each in SETTINGS.items()}
    assert {name: limits for name, limits in found.items() if limits != (None,) * 4} == LIMITS


def test_the_short_help_has_what_people_use() -> None:
    assert {name for name, each in SETTINGS.items() if each.common} == COMMON


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_s_own_defaults(name: str) -> None:
    assert dict(ALGORITHMS[name].defaults) == METHODS.get(name, {})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_learner_s_own_defaults(name: str) -> None:
    first, *others = FAMILIES[name]  # of several classes the first says what suits the learner
    assert dict(first.defaults) == LEARNERS[name]
    assert not any(each.defaults for each in others)


def test_constants_and_flags_are_as_they_were_written_down() -> None:
    found = constants.found()
    for module, expected in json.loads(constants.FILE.read_text()).items():
        assert {name: found.get(module, {}).get(name) for name in expected} == expected, module
