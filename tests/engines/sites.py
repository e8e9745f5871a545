"""Three real sites on a Flower grid in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.data.sites import Schema, Site, met
from ffgb.deployment.attendant import Attendant, rehearse
from ffgb.deployment.server import engine_of
from ffgb.engines.flower import Counted, gather
from ffgb.engines.node import Node
from ffgb.runs.config import Config
from ffgb.runs.training import Elsewhere, Result, train
from tests.engines.grid import InProcessGrid

SITES = ("east", "north", "west")
JOBS: dict[str, dict[str, Any]] = {
    "shared": {"rounds": 3, "learner": "features", "features": 128},
    "local": {"rounds": 3, "geometry": "local"},
    "linear": {"rounds": 3, "learner": "linear"},
    "nystrom": {"rounds": 3, "gram": "nystrom", "rank": 8},
    "steps": {"rounds": 3, "map": "steps", "features": 32},
    "mlp": {"rounds": 3, "learner": "mlp", "oracle_steps": 20},
    "tree": {"rounds": 3, "learner": "tree"},
    "ffgb-c": {"rounds": 2, "algorithm": "ffgb-c", "learner": "mlp", "oracle_steps": 20},
    "fedavg": {"rounds": 3, "algorithm": "fedavg", "learner": "mlp"},
    "scaffold": {"rounds": 4, "algorithm": "scaffold", "learner": "mlp"},
    "mime": {"rounds": 2, "algorithm": "mime", "learner": "mlp"},
    "distill": {"rounds": 2, "learner": "mlp", "oracle_steps": 20, "distill": "rounds", "distill_rounds": 3},
    "int8": {"rounds": 3, "learner": "mlp", "oracle_steps": 20, "precision": "int8"},
    "some": {"rounds": 4, "participation": 2, "learner": "mlp", "oracle_steps": 20},
    "fedprox": {"rounds": 3, "algorithm": "fedprox", "learner": "mlp"},
    "ffgb-c, features": {"rounds": 2, "algorithm": "ffgb-c", "features": 48},
    "trees, waves and fourier": {"rounds": 2, "map": "trees+waves+fourier", "features": 48},
    "blocks": {"rounds": 2, "gram": "blocks", "map": "steps+waves", "features": 32},
    "several steps": {"rounds": 2, "local_steps": 2, "features": 128},
    "float16": {"rounds": 3, "precision": "float16"},
    "to one before it is sent": {"rounds": 2, "learner": "mlp", "oracle_steps": 20, "distill": "clients"},
    "trimmed": {"rounds": 3, "aggregate": "trimmed", "trim": 0.2},
}


def tables(folder: Path) -> list[Path]:
    """Three sites' tables; one lacks a class that the others have."""
    paths = []
    centres = np.random.default_rng(9).standard_normal((3, 4)) * 2
    for i, name in enumerate(SITES):
        rng = np.random.default_rng(i)
        y = rng.integers(0, 3 if i else 2, 40 + 10 * i)
        x = centres[y] + rng.standard_normal((len(y), 4))
        rows = [",".join([*(f"{v:.4f}" for v in row), "abc"[c]]) for row, c in zip(x, y, strict=True)]
        path = folder / f"{name}.csv"
        path.write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
        paths.append(path)
    return paths


@final
class Sites:
    """A grid of three real sites: what `ffgb client` holds, and what its node does with a message."""

    def __init__(
        self, files: list[Path], target: str | None = "kind", settings: Mapping[str, Any] | None = None
    ) -> None:
        """With settings, each site has rehearsed this job, and answers nothing else."""
        self.attendants: dict[int, Attendant] = {}
        for i, path in enumerate(files):
            site, job = Site(path.stem, path, target), {"data": ["sites"], **(settings or {})}
            agreement = None if settings is None else rehearse(site, job)[1]
            self.attendants[100 + i] = Attendant(site, job, agreement, say=print)
        self.grid = InProcessGrid(self.answer, {node: {} for node in self.attendants})  # type: ignore[arg-type]
        self.grid.described = {a.site.name: a.site.describe() for a in self.attendants.values()}

    def answer(self, message: Any, context: Any) -> Any:
        return Node._reply(message, self.attendants.get(context.node_id, self.attendants[101]).answer)

    def forget(self, node: int) -> None:
        """As if its `ffgb client` had been started anew; what it has answered is written down."""
        a = self.attendants[node]
        self.attendants[node] = Attendant(a.site, a.settings, a.agreement, a.ledger, log=a.log, say=a.say)


def over_flower(
    grid: InProcessGrid,
    config: Config,
    out: Path | None = None,
    *,
    deadline: float = 5.0,
    minimum: int = 1,
    target: str | None = "kind",
    **more: Any,
) -> Result:
    counted, config = Counted(grid), replace(config, secure="off")
    found = gather(counted, len(SITES), 5.0, met)
    schema = Schema.of({name: grid.described[name] for name in found}, target)
    nodes = {name: node for name, (node, _) in found.items()}
    engine = engine_of(counted, nodes, schema, config.seed, deadline, training="t")
    return train(config, out, elsewhere=Elsewhere(engine, schema, minimum), **more)
