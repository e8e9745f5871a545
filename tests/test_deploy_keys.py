"""Real processes with keys, killed: in a file of its own, for it takes minutes, and mostly waits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from ffgb.config import Config
from ffgb.deploy import make_keys
from ffgb.training import train
from tests.test_deploy import CONFIG, NAMES, client, free_port, listens, sites, started, under, until

__all__ = ["sites"]


def test_with_keys_who_is_killed_comes_back_as_itself(sites: Path) -> None:
    """Where all must answer, a round waits for a killed node, which Flower lets in again under its key; and a killed
    server finds its sites again.  The model is that of one machine."""
    (sites / "run.toml").write_text(CONFIG.replace("rounds = 3", "rounds = 4"))
    make_keys(sites / "keys", "127.0.0.1", NAMES)
    port, run = free_port(), sites / "run"
    options = ("--clients", 3, "--config", "run.toml", "--target", "digit", "--tls", "keys", "--port", port)
    command = ("server", *options, "--deadline", 60, "--out", "run")

    def rounds() -> int:
        file = run / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    with client(sites, port, "east"), client(sites, port, "north") as north, client(sites, port, "west"):
        with started(sites, "first.log", *command) as server:
            until(lambda: rounds() >= 1, 300, "no round was finished")
            os.kill(under(north, "flower-supernode"), signal.SIGKILL)
            until(lambda: rounds() >= 2, 400, "no round came after the node was killed")
            acknowledged = (run / "metrics.jsonl").read_text()
            server.kill()
        until(lambda: not listens(port), 30, "the server's SuperLink outlived it")
        with started(sites, "second.log", *command) as server:
            assert server.wait(timeout=400) == 0, (sites / "second.log").read_text()
    assert "still waits for this site's last node" in (sites / "north.log").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["participants"] for line in lines] == [3] * 4
    assert (run / "metrics.jsonl").read_text().startswith(acknowledged)  # nothing that was written down is lost
    files = tuple(str(sites / f"{name}.csv") for name in NAMES)
    config = Config(data=files, target="digit", learner="linear", geometry="local", rounds=4, schedule="constant")
    assert (run / "model.safetensors").read_bytes() == train(config, workers=0).model.to_bytes()
