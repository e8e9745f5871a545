"""From settings to what is trained: the algorithm, and how its family of weak learners comes about."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ffgb.algorithms import Algorithm
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.parametric import Parametric
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.grams import share_geometry
from ffgb.core.maps import POINTS_AT_A_TIME, FeatureMap
from ffgb.core.moments import moments_of
from ffgb.core.points import KEPT, Points
from ffgb.core.questions import Ask, ask_locally
from ffgb.data import Dataset
from ffgb.errors import FFGBError, option
from ffgb.features.basic import Standardize
from ffgb.features.bins import Bins, bins_of
from ffgb.features.catalogue import Maps
from ffgb.federation.server import Learner
from ffgb.hardware import available, cores
from ffgb.learners.catalogue import CLOSED, FAMILIES, Inputs
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import fitted_by
from ffgb.runs.config import Config
from ffgb.runs.resolve import PARAMETRIC_STEPS, RIDGE, algorithm_class, learner_class, make_loss, make_space
from ffgb.runs.starting import starting_model, with_settings
from ffgb.user_code import allow


def make_algorithm(config: Config) -> Algorithm:
    """The algorithm, with its step sizes."""
    return algorithm_class(config.algorithm).configured(config)


def make_student(config: Config) -> FedAvg:
    """How clients distill an ensemble together: as FedAvg trains by default."""
    own = FAMILIES[config.learner][0].defaults if config.learner in FAMILIES else {}
    step = PARAMETRIC_STEPS.get(config.learner, own.get("parametric_step", 0.05))
    return FedAvg(step, Parametric.defaults["local_steps"], Parametric.defaults["batch"])


def make_learner(config: Config, dataset: Dataset) -> Learner:
    """How the family of weak learners comes about, and the geometry that its clients share.

    A family is built from a few rows and tried on one, so that wrong settings are found before any work starts.
    """
    for name in config.code:
        allow(name)
    loss, space = make_loss(config, dataset), make_space(dataset)
    if config.augment and not (dataset.image and (config.learner == "cnn" or ":" in config.learner)):
        raise FFGBError(
            f"{option('augment')} shifts and mirrors images for {option('learner', 'cnn')}, or a torch module of your "
            "own"
        )

    model = starting_model(config)

    def mapped(ask: Ask, *, trial: bool) -> FeatureMap:
        if model is not None:
            return model.family.features
        # a trial has few rows, and must not have fewer features than all rows have
        maps = Maps(ask, space, config.seed, 1 if trial else config.least)
        features, standardize = maps.make(config.map, config.features)
        if not features.dimension and not trial:
            raise FFGBError(
                f"the map {config.map} has no features here: in every column all rows, or all but a few, have the same "
                f"value; {option('least')} is {config.least}, and the clients have {space.points} rows together"
            )
        if standardize and not trial:
            features = Standardize.by(moments_of(ask, features, alike=True), features, total=1.0)
        return features

    def closed(ask: Ask, *, trial: bool = False) -> tuple[Family, Geometry | None]:
        ridge = RIDGE if config.ridge is None else config.ridge
        features, geometry = mapped(ask, trial=trial), None
        if config.geometry == "shared" and not trial:
            geometry = share_geometry(ask, features, config.gram, config.ridge, rank=config.rank, seed=config.seed)
        return Linear(features, loss.outputs, ridge, sobolev_norm=config.sobolev_norm), geometry

    def opened(ask: Ask, *, trial: bool = False) -> tuple[Family, Geometry | None]:
        if model is not None:
            return with_settings(model.family, fitted_by(config)), None

        def scaled() -> Any:
            return Maps(ask, space, config.seed).scaled

        def bins(most: int, least: int, a_row: float) -> Bins:
            few = (1, math.inf) if trial else (least, a_row)
            return bins_of(ask, space.columns, space.inputs, most, *few)

        inputs = Inputs(space.shape, dataset.image, loss.outputs, scaled, bins)
        return learner_class(config).configured(config, inputs), None

    rows = slice(None, None, max(1, len(dataset.x) // 64))
    few_rows = ask_locally(Points(0, dataset.x[rows], dataset.y[rows]))
    if config.learner in CLOSED:
        family, _ = closed(few_rows, trial=True)
        _check_memory(family, config, dataset)
        _try_out(family, dataset, config.learner)
        return closed
    family, _ = opened(few_rows, trial=True)
    _try_out(family, dataset, config.learner)
    return opened


def _check_memory(family: Family, config: Config, dataset: Dataset) -> None:
    """Refuse what cannot fit into this machine's memory, before any work."""
    d, rows = family.features.dimension, len(dataset.x) + len(dataset.x_test)
    # what is kept, and a block of rows being computed: in each process
    at_a_time = KEPT + 12 * d * POINTS_AT_A_TIME
    need = {} if config.data == ("sites",) else {"features of points": min(4 * d * rows, at_a_time * cores())}
    if config.geometry == "shared":
        groups = family.features.blocks
        sizes = {"exact": (d,), "blocks": groups, "tied": groups[:1]}
        # the sum, what is being factored, the factor, and a client's part of it; eigenvectors take more room
        square = 33 if config.ridge is not None else 57
        need["the Gram"] = (
            8 * d * config.rank * 4
            if config.gram == "nystrom"
            else square * sum(size**2 for size in sizes[config.gram or "exact"])
        )
    if (total := sum(need.values())) > (have := available()):
        parts = " and ".join(f"{size / 1e9:,.1f} GB for {what}" for what, size in need.items())
        raise FFGBError(
            f"{d:,} features need {total / 1e9:,.1f} GB of memory ({parts}), and {have / 1e9:,.1f} GB are free; "
            f"choose a smaller {option('features')}, {option('gram', 'nystrom')}, or {option('learner', 'trees')}"
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
