"""The paper's own settings, on its own data."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import ffgb


def test_the_papers_ensemble_reaches_its_bar_on_mnist(tmp_path: Path, real_data: Path) -> None:
    """The paper's schedule, K = 2: at least 0.95 within 1,000 models exchanged."""
    options = ["--data", "mnist", "--clients", "56", "--similarity", "0.1", "--learner", "mlp", "--local-steps", "2"]
    assert ffgb("train", *options, "--out", "run", cwd=tmp_path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    within = [line for line in lines if line["models_up"] + line["models_down"] <= 1000]
    assert max(line["test_accuracy"] for line in within) >= 0.95
    assert lines[0]["models_up"] + lines[0]["models_down"] == 56 * 2  # NK a round
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["schedule"], config["step_size"], config["step_power"]) == ("power", 20.0, 1.0)
