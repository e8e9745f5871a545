"""The same training as an ordinary Flower app: in Flower's own simulation, with sites' real files.

`ffgb train --engine flower` is among the jobs of tests/golden.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from ffgb.deployment.federation import server_app, site_app
from ffgb.runs.config import Config
from ffgb.runs.training import train
from tests.deployment.real import LINEAR, NAMES, environment, files, write_sites
from tests.engines.grid import InProcessGrid


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_sites(tmp_path, 3)
    return tmp_path


def node(folder: Path, i: int, **more: Any) -> dict[str, Any]:
    name = NAMES[i]
    return {"data": str(folder / f"{name}.csv"), "name": name, "config": str(folder / "run.toml"), **more}


def job(folder: Path, **more: Any) -> dict[str, Any]:
    settings = {**LINEAR, "rounds": 3}
    return {
        "job": json.dumps({"clients": 3, "out": str(folder / "run"), "target": "digit", "settings": settings, **more})
    }


def expected(folder: Path) -> bytes:
    return train(Config(data=files(folder), target="digit", rounds=3, **LINEAR), workers=0).model.to_bytes()


def test_an_app_on_a_grid_gives_the_model_of_one_machine(sites: Path) -> None:
    """Each message is answered by an app that knows nothing but its node's configuration and what Flower has kept."""
    from flwr.app import Context, RecordDict

    app = site_app()
    grid = InProcessGrid(app, {7 + i: node(sites, i) for i in range(3)})
    server_app()(grid, Context(1, 1, {}, RecordDict(), job(sites)))
    assert (sites / "run" / "model.safetensors").read_bytes() == expected(sites)
    ledgers = list((sites / "state").rglob("ledger.jsonl"))
    assert len(ledgers) == 3


def test_a_site_answers_only_the_job_that_its_owner_wrote_down(sites: Path, caplog: pytest.LogCaptureFixture) -> None:
    from flwr.app import Context, RecordDict

    from ffgb.errors import FFGBError

    grid = InProcessGrid(site_app(), {7 + i: node(sites, i) for i in range(3)})
    other = job(sites, settings={"rounds": 3}, deadline=2.0)
    with pytest.raises(FFGBError, match="did not answer a question about"):
        server_app()(grid, Context(1, 1, {}, RecordDict(), other))
    assert "this site has not agreed to question" in caplog.text


SCRIPT = """
import json, sys
from pathlib import Path

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from ffgb.deployment.federation import server_app, site_app

folder, job = Path(sys.argv[1]), sys.argv[2]


def config_of(context):
    name = ("east", "north", "west")[int(context.node_config["partition-id"])]
    return {"data": str(folder / f"{name}.csv"), "name": name, "config": str(folder / "run.toml")}


server = ServerApp()


@server.main()
def main(grid, context):
    context.run_config["job"] = job
    server_app()(grid, context)


quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False, "num_cpus": 2}
run_simulation(
    server, site_app(config_of), 3,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": quiet},
)
"""


def test_in_flowers_simulation(sites: Path) -> None:
    """Under Ray: any process may be asked next, and Flower carries what a site knows."""
    pytest.importorskip("ray")
    (sites / "simulate.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "simulate.py", str(sites), job(sites)["job"]],
        cwd=sites, env=environment(sites), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert (sites / "run" / "model.safetensors").read_bytes() == expected(sites)
