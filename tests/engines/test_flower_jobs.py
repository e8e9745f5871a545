"""Every kind of job over Flower's messages: the same model as on one machine, to the bit."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from ffgb.engines.flower import Counted, FlowerEngine
from ffgb.runs import simulation
from ffgb.runs.config import Config, load_data
from ffgb.runs.training import train
from tests.engines.grid import InProcessGrid
from tests.engines.sites import JOBS, SITES, Sites, over_flower, tables


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return tables(tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_the_model_is_that_of_one_machine_to_the_bit(job: str, files: list[Path]) -> None:
    config = Config(data=tuple(map(str, files)), target="kind", **JOBS[job])
    here = train(config, workers=0)
    sites = Sites(files, settings=JOBS[job])  # an honest training asks for nothing that was not rehearsed
    there = over_flower(sites.grid, Config(data="sites", **JOBS[job]), minimum=3)
    assert there.model.to_bytes() == here.model.to_bytes()
    assert there.metrics[-1]["test_accuracy"] == here.metrics[-1]["test_accuracy"]
    assert there.metrics[-1]["bytes_up"] == here.metrics[-1]["bytes_up"]
    sites = Sites(files, settings=JOBS[job])  # a site's `ffgb client` is started anew, and has forgotten everything

    def restart(line: dict[str, Any]) -> None:
        sites.forget(101)

    again = over_flower(sites.grid, Config(data="sites", **JOBS[job]), minimum=3, on_round=restart)
    assert again.model.to_bytes() == here.model.to_bytes()
    # Flower's simulation: the same clients at nodes that any process may be asked for
    resolved = json.dumps(config.resolved(load_data(config)).to_json())
    clients = len(SITES) + 1  # and the test rows
    for forgetful in (True, False):
        grid = InProcessGrid(simulation.client_app(resolved), {7 + i: {"partition-id": i} for i in range(clients)})
        grid.before = simulation._residents.clear if forgetful else grid.before
        engine = FlowerEngine(
            Counted(grid), {str(i): 7 + i for i in range(clients)}, {i: str(i) for i in range(clients)}, 60.0
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ffgb.runs.training.simulation", lambda *_, engine=engine: nullcontext(engine))
            simulated = train(config, engine="flower")
        assert simulated.model.to_bytes() == here.model.to_bytes()


OTHERS: dict[str, dict[str, Any]] = {
    "numbers": {"rounds": 3, "learner": "features"},  # too few rows for trees
    "numbers, ffgb-l": {"algorithm": "ffgb-l", "learner": "linear", "rounds": 5},
    "numbers, ffgb-l, a net": {"algorithm": "ffgb-l", "learner": "mlp", "rounds": 3, "oracle_steps": 20},
    "images": {"rounds": 2, "features": 64},
    "images, cnn": {"rounds": 2, "learner": "cnn", "oracle_steps": 3},
    "images, cnn, fedavg": {"rounds": 2, "algorithm": "fedavg", "learner": "cnn"},
}


@pytest.mark.parametrize("job", OTHERS)
def test_numbers_to_predict_and_images_too(job: str, tmp_path: Path) -> None:
    if "cnn" in job:
        pytest.importorskip("torch")
    files, target = [], "kind" if job.startswith("numbers") else None
    for i, name in enumerate(SITES):
        rng = np.random.default_rng(i)
        if target:
            x = rng.standard_normal((40, 3))
            rows = [",".join(f"{v:.4f}" for v in (*row, row.sum() + 0.1 * row[0] ** 2)) for row in x]
            files.append(tmp_path / f"{name}.csv")
            files[-1].write_text("\n".join(["p,q,r,kind", *rows]) + "\n")
        else:
            y = rng.integers(0, 2, 30)
            x = (rng.random((30, 1, 28, 28)) * (1 + y[:, None, None, None]) * 100).astype(np.uint8)
            files.append(tmp_path / f"{name}.npz")
            np.savez(files[-1], x=x, y=y)
    here = train(Config(data=tuple(map(str, files)), target=target, **OTHERS[job]), workers=0)
    sites = Sites(files, target, OTHERS[job])
    there = over_flower(sites.grid, Config(data="sites", **OTHERS[job]), target=target, minimum=3)
    assert there.model.to_bytes() == here.model.to_bytes()
