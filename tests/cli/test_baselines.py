"""The methods on parameters by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffgb.core.moments import MAGNITUDES
from tests.cli.commands import ffgb


@pytest.mark.parametrize(("algorithm", "up"), [("fedavg", 1), ("fedprox", 1), ("scaffold", 2), ("mime", 2)])
def test_baselines_run_and_count_what_they_send(algorithm: str, up: int, tmp_path: Path) -> None:
    options = ["--algorithm", algorithm, "--learner", "mlp", "--data", "wine", "--clients", "4", "--rounds", "15"]
    result = ffgb("train", *options, "--step-size", "0.1", "--json", "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert summary["test_accuracy"] > 0.8
    size = summary["parameters_up"] / summary["models_up"]
    # and what standardises the inputs, once: orders of magnitude and two moments of 13 columns
    beside = 13 * (len(MAGNITUDES) + 2)
    assert summary["models_up"] == pytest.approx(15 * up + beside / size, rel=1e-6)
    assert summary["gamma_min"] is None
    scores = json.loads(ffgb("evaluate", tmp_path / "run", "--json").stdout)
    assert scores["all"]["accuracy"] == pytest.approx(summary["test_accuracy"])
