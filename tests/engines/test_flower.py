"""Training over Flower's messages: the same model as on one machine, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from ffgb.config import Config
from ffgb.engines.flower import FlowerEngine, gather
from ffgb.sites import Schema
from ffgb.training import Elsewhere, Result, train
from tests.engines.grid import InProcessGrid

SITES = ("east", "north", "west")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three sites' tables; one lacks a class that the others have."""
    paths = []
    centres = np.random.default_rng(9).standard_normal((3, 4)) * 2
    for i, name in enumerate(SITES):
        rng = np.random.default_rng(i)
        y = rng.integers(0, 3 if i else 2, 40 + 10 * i)
        x = centres[y] + rng.standard_normal((len(y), 4))
        rows = [",".join([*(f"{v:.4f}" for v in row), "abc"[c]]) for row, c in zip(x, y, strict=True)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
        paths.append(path)
    return paths


def grid_of(files: list[Path], **more: Any) -> InProcessGrid:
    return InProcessGrid({100 + i: {"data": str(path), "target": "kind"} for i, path in enumerate(files)}, **more)


def over_flower(grid: InProcessGrid, config: Config, out: Path | None = None, **more: Any) -> Result:
    found = gather(grid, len(SITES), 5.0)
    schema = Schema.of({name: columns for name, (_, columns) in found.items()}, "kind")
    engine = FlowerEngine(grid, {name: node for name, (node, _) in found.items()}, schema, config.seed, 5.0)
    return train(config, out, elsewhere=Elsewhere(engine, schema, 1), **more)


JOBS: dict[str, dict[str, Any]] = {
    "shared": {"rounds": 3},
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
}


@pytest.mark.parametrize("job", JOBS)
def test_the_model_is_that_of_one_machine_to_the_bit(job: str, files: list[Path]) -> None:
    here = train(Config(data=tuple(map(str, files)), target="kind", **JOBS[job]), workers=0)
    there = over_flower(grid_of(files), Config(data="sites", **JOBS[job]))
    assert there.model.to_bytes() == here.model.to_bytes()
    assert there.metrics[-1]["test_accuracy"] == here.metrics[-1]["test_accuracy"]
    assert there.metrics[-1]["bytes_up"] == here.metrics[-1]["bytes_up"]
    kept = over_flower(grid_of(files, forgetful=False), Config(data="sites", **JOBS[job]))
    assert kept.model.to_bytes() == here.model.to_bytes()
