"""Who holds which rows, where all clients are on one machine."""

from __future__ import annotations

from typing import Any

from ffgb.core.means import make_aggregate
from ffgb.core.types import Array
from ffgb.data import Dataset, partition
from ffgb.engines.local import in_parts
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
    tests = in_parts(dataset.x_test, dataset.y_test, dataset.weights_test)
    options = {
        **server_options(config),
        "points": [len(rows) for rows in parts],
        "sizes": [client.size for client in clients],
        "tests": len(tests),
    }
    return clients + tests, options


def server_options(config: Config) -> dict[str, Any]:
    """How the server samples, weights and adds up, whoever its clients are."""
    return {
        "seed": config.seed,
        "participation": config.participation,
        "by_size": config.client_weights == "size",
        "largest_weight": config.largest_weight,
        "precision": config.precision,
        "aggregate": make_aggregate(config.aggregate, config.trim),
    }
