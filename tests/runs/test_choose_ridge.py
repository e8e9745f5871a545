"""λ and the number of rounds by validation: what is scored, when a λ is given up, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.runs.choose_ridge import FACTORS, PATIENCE, choose, set_aside
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss


def problem(**settings: Any) -> tuple[Config, Dataset, list[Array]]:
    config = Config(data=("diabetes",), clients=3, validation=0.2, features=60, **settings)
    dataset = load_data(config)
    config = config.resolved(dataset)
    return config, dataset, make_parts(config, dataset)


def test_every_client_sets_a_share_of_its_own_rows_aside() -> None:
    """A client's kept rows and its rows set aside are together all of its rows."""
    config, dataset, parts = problem()
    kept, aside = set_aside(config, 0.2, dataset, parts)
    assert [len(rows) for rows in aside] == [round(0.2 * len(rows)) for rows in parts]
    for whole, some, others in zip(parts, kept, aside, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([some, others])), np.sort(whole))


def test_scores_are_losses_of_rows_set_aside_and_the_least_is_chosen() -> None:
    """The scores equal those of a run on the kept rows, evaluated on the rows set aside."""
    config, dataset, parts = problem(rounds=5)
    assert config.ridge is not None
    assert config.rounds is not None
    chosen, _, scores = choose(config, dataset, parts, 0)
    best = min(scores, key=lambda score: score["loss"])
    assert (chosen.ridge, chosen.rounds, chosen.stop) == (best["ridge"], best["rounds"], False)
    kept, aside = set_aside(config, 0.2, dataset, parts)
    rows, loss = np.concatenate(aside), make_loss(config, dataset)
    tried = {ridge: list(some) for ridge, some in groupby(scores, key=lambda score: score["ridge"])}
    np.testing.assert_allclose(list(tried), [config.ridge * factor for factor in FACTORS])
    for ridge, some in list(tried.items())[::2]:
        one = replace(config, ridge=ridge)
        with InProcess([Holding(dataset.x, dataset.y, own) for own in kept]) as engine:
            server = Server(engine, [len(own) for own in kept], by_size=config.client_weights == "size")
            state = server.start(make_algorithm(one), make_learner(one, dataset), loss, scale_target=True)
            losses = []
            for after, _ in server.rounds(state, len(some)):
                assert after.job.target is not None
                y = after.job.target.encode(dataset.y[rows])
                losses.append(float(loss.value(after.f(dataset.x[rows]), y).mean()))
        assert [score["rounds"] for score in some] == list(range(1, len(some) + 1))
        assert [score["loss"] for score in some] == pytest.approx(losses, rel=1e-5)


def test_a_ridge_is_given_up_after_some_rounds_without_a_better_score() -> None:
    """A λ stops exactly when the last rounds bring no better score."""
    config, dataset, parts = problem(rounds=12, ridge=1e-5)  # so little that more rounds fit noise
    _, _, scores = choose(config, dataset, parts, 0)
    lengths = []
    for _, some in groupby(scores, key=lambda score: score["ridge"]):
        losses = [score["loss"] for score in some]
        lengths.append(len(losses))
        worse = [min(losses[: n - PATIENCE]) < min(losses[n - PATIENCE : n]) for n in range(PATIENCE + 1, len(losses))]
        assert not any(worse)  # it was right to go on until then
        assert len(losses) == 12 or min(losses[:-PATIENCE]) < min(losses[-PATIENCE:])
    assert PATIENCE < min(lengths) < 12
