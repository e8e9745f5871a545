"""The paper's own settings, on its own data."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import ffgb


def test_the_papers_ensemble_reaches_its_bar_on_mnist(tmp_path: Path, real_data: Path) -> None:
    """The paper's schedule, K = 2: at least 0.95 within 1,000 models exchanged; with 150 Adam steps, for time."""
    options = ["--data", "mnist", "--clients", "56", "--similarity", "0.1", "--learner", "mlp", "--local-steps", "2"]
    options += ["--rounds", "8", "--oracle-steps", "150"]  # a ninth round would be beyond 1,000
    assert ffgb("train", *options, "--out", "run", cwd=tmp_path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["models_up"] + lines[-1]["models_down"] <= 1000
    assert max(line["test_accuracy"] for line in lines) >= 0.95
    assert lines[0]["models_up"] + lines[0]["models_down"] == 56 * 2  # NK a round
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["schedule"], config["step_size"], config["step_power"]) == ("power", 20.0, 1.0)
