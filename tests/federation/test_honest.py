"""Honest clients pass, however they differ: no check refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.federation.server import Server
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from tests.engines.faults import Faulty
from tests.federation.lies import (
    Array,
    honest,
    warnings,
)


def one_row_each(parts: list[Array]) -> list[Array]:
    return [np.array([row]) for rows in parts for row in rows[:3]]


def some_of_one_row(parts: list[Array]) -> list[Array]:
    return [rows[:1] if k % 3 == 0 else rows for k, rows in enumerate(parts)]


SPLITS: dict[str, tuple[dict[str, Any], Callable[[list[Array]], list[Array]]]] = {
    "digits, a class each": ({"data": "digits", "similarity": 0.0}, list),
    "digits, dirichlet": ({"data": "digits", "split": "dirichlet", "alpha": 0.1}, list),
    "digits, nystrom": ({"data": "digits", "similarity": 0.0, "map": "fourier", "gram": "nystrom"}, list),
    "breast_cancer": ({"data": "breast_cancer", "clients": 10, "similarity": 0.0}, list),
    "breast_cancer, one row each": ({"data": "breast_cancer", "clients": 10, "features": 100}, one_row_each),
    "digits, some of one row": ({"data": "digits", "similarity": 0.0}, some_of_one_row),
    "diabetes, some of one row": ({"data": "diabetes", "clients": 12, "similarity": 0.0}, some_of_one_row),
    "wine, a class each": ({"data": "wine", "clients": 9, "split": "labels", "labels": 1}, list),
    "diabetes, steepness": ({"data": "diabetes", "clients": 5, "algorithm": "ffgb-l", "similarity": 0.0}, list),
}
REAL_SPLITS: dict[str, tuple[dict[str, Any], Callable[[list[Array]], list[Array]]]] = {
    "heart": ({"data": "heart"}, list),
    "heart, some of one row": ({"data": "heart"}, some_of_one_row),
    "cal_housing": ({"data": "cal_housing", "by": "longitude", "similarity": 0.0}, list),
    "cal_housing, some of one row": ({"data": "cal_housing", "by": "longitude", "learner": "linear"}, some_of_one_row),
    "adult": ({"data": "adult", "similarity": 0.0}, list),
    "adult, dirichlet": ({"data": "adult", "split": "dirichlet", "alpha": 0.1, "learner": "linear"}, list),
}


def all_pass(
    settings: dict[str, Any], change: Callable[[list[Array]], list[Array]], caplog: pytest.LogCaptureFixture
) -> None:
    """No one is left out of anything, though everyone is looked at closely."""
    config = Config(**settings)
    dataset = load_data(config)
    config = config.resolved(dataset)
    parts, options = make_holdings(config, dataset, change(make_parts(config, dataset)))
    loss, clients = make_loss(config, dataset), len(options["points"])
    with Faulty(parts, honest) as engine:
        server = Server(engine, **{**options, "participation": None}, minimum=clients)
        learner = make_learner(config, dataset)
        state = server.start(make_algorithm(config), learner, loss, scale_target=not loss.classification)
        for _, line in server.rounds(state, min(config.exchanges, 3)):
            assert line["participants"] == clients
            assert not {"absent", "absent_from_step", "setup_absent"} & line.keys()
    assert warnings(caplog) == []


@pytest.mark.parametrize("split", SPLITS)
def test_honest_clients_pass_however_they_differ(split: str, caplog: pytest.LogCaptureFixture) -> None:
    all_pass(*SPLITS[split], caplog)


@pytest.mark.parametrize("split", REAL_SPLITS)
def test_honest_clients_pass_on_real_data(split: str, real_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    all_pass(*REAL_SPLITS[split], caplog)
