"""λ and the number of rounds, chosen by a federated validation score.

Every client sets a share of its own rows aside.  For each λ of a short list the others are trained on, and after every
round clients report the sum of the loss over the rows they set aside.  The best λ and number of rounds are then used
for the run itself, on all rows.  All of it is counted as traffic; what clients are asked for in set-up does not depend
on λ, and is asked once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.dataset import hold_out, hold_out_groups
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.catalogue import CLOSED
from ffgb.protocol.costs import Costs
from ffgb.runs.config import Config
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""λ is tried at these multiples of what it would be."""

PATIENCE = 3
"""Rounds without a better score after which a λ is given up."""


def set_aside(config: Config, share: float, dataset: Dataset, parts: list[Array]) -> tuple[list[Array], list[Array]]:
    """Rows that clients train on, and those that they set aside, a share of each client's."""
    rng = stream(config.seed, "holdout", 1)
    kept, aside = [], []
    for rows in parts:
        if dataset.group is None:
            some, others = hold_out(dataset.y[rows], share, rng)
        else:
            some, others = hold_out_groups(dataset.group[rows], share, rng)
        kept.append(rows[some])
        aside.append(rows[others])
    aside = [rows for rows in aside if len(rows)]
    if not aside:
        raise FFGBError(f"a share of {share:g} sets no row aside; take a larger one, or clients with more rows")
    return kept, aside


def choose(
    config: Config,
    dataset: Dataset,
    parts: list[Array],
    workers: int | None = None,
    on_setup: Callable[[str, int, int], None] = lambda what, done, clients: None,
) -> tuple[Config, Costs, list[dict[str, Any]]]:
    """The configuration with the best λ and number of rounds, what finding them cost, and every score."""
    assert config.rounds is not None  # resolved
    kept, aside = set_aside(config, config.validation, dataset, parts)
    holdings = [Holding(dataset.x, dataset.y, rows) for rows in (*kept, *aside)]
    loss, costs, scores, known = make_loss(config, dataset), Costs(), [], dict[str, Any]()
    with local_engine(holdings, workers, config.code) as engine:
        server = Server(
            *(engine, [len(rows) for rows in kept], len(aside)),
            seed=config.seed,
            participation=int(config.participation or len(kept)),
            by_size=config.client_weights == "size",
            largest_weight=config.largest_weight,
            on_setup=on_setup,
        )
        for factor in FACTORS if config.learner in CLOSED else (1.0,):
            tried = replace(config, ridge=None if config.ridge is None else config.ridge * factor)
            state = server.start(
                *(make_algorithm(tried), make_learner(tried, dataset), loss),
                scale_target=not loss.classification,
                known=known,
                before=costs,
            )
            best = np.inf
            for after, line in server.rounds(state, config.rounds):
                state = after
                scores.append({"ridge": tried.ridge, "rounds": state.t, "loss": line["test_loss"]})
                on_setup(f"validation: λ × {factor:g}, round {state.t}", 0, server.N)
                best = min(best, line["test_loss"])
                if best < min(score["loss"] for score in scores[-PATIENCE:]) and scores[-1]["rounds"] > PATIENCE:
                    break
            costs = state.costs
    winner = min(scores, key=lambda score: score["loss"])
    return replace(config, ridge=winner["ridge"], rounds=winner["rounds"], stop=False), costs, scores
