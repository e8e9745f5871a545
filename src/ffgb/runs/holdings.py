"""Who holds which rows, where all clients are on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ffgb.core.distilled_mean import DistilledMean
from ffgb.core.losses import LOSSES
from ffgb.core.means import make_aggregate
from ffgb.core.types import Array
from ffgb.data import Dataset, partition
from ffgb.data.files import read_points
from ffgb.data.preprocess import Column, Table
from ffgb.engines.local import in_parts
from ffgb.errors import FFGBError, option
from ffgb.federation.host import Holding
from ffgb.runs.config import Config


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
    clients = [Holding(dataset.x, dataset.y, rows, dataset.weights) for rows in parts]
    tests = _tests(config, dataset)
    options = {
        **server_options(config),
        "points": [len(rows) for rows in parts],
        "sizes": [client.size for client in clients],
        "tests": len(tests),
    }
    return clients + tests, options


def _tests(config: Config, dataset: Dataset) -> list[Holding]:
    """The test rows in parts: of a site each, where rows of a site are at risk beside each other."""
    x, y, weights, site = dataset.x_test, dataset.y_test, dataset.weights_test, dataset.site_test
    if config.loss in LOSSES and not LOSSES[config.loss].alone and config.split == "natural" and site is not None:
        return [Holding(x, y, np.flatnonzero(site == k), weights) for k in np.unique(site)]
    return in_parts(x, y, weights)


def distilled_mean(config: Config, dataset: Dataset) -> DistilledMean:
    """How the server makes one learner of a round's N, at its own points."""
    form = dataset.table
    if form is None and not dataset.image:
        form = Table(tuple(Column(name) for name in dataset.columns))
    x = np.concatenate([read_points(Path(file), form) for file in config.distill_data])
    if x.shape[1:] != dataset.x.shape[1:]:
        raise FFGBError(
            f"the points in {option('distill_data')} have shape {x.shape[1:]}, and those of clients "
            f"{dataset.x.shape[1:]}"
        )
    return DistilledMean(x, config.seed)


def server_options(config: Config) -> dict[str, Any]:
    """How the server samples, weights and adds up, whoever its clients are."""
    return {
        "seed": config.seed,
        "participation": config.participation,
        "by_size": config.client_weights == "size",
        "largest_weight": config.largest_weight,
        "precision": config.precision,
        "secure": config.secure == "on",
        "aggregate": make_aggregate(config.aggregate, config.trim),
    }
