"""FFGB.C and FFGB.L by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import ffgb


@pytest.mark.parametrize("learner", ["features", "mlp", "tree"])
def test_ffgb_c_runs_and_counts_its_clips(learner: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--algorithm", "ffgb-c", "--learner", learner, "--data", "wine", "--clients", "4", "--rounds", "3"]
    result = ffgb("train", *options, "--oracle-steps", "50", "--bound", "50", "--json", "--out", out)
    summary = json.loads(result.stdout)
    assert summary["test_accuracy"] > 0.8
    assert summary["clipped"] == summary["clipped_residual"] == 0  # γ is what was measured
    assert summary["gamma_min"] > 0
    assert json.loads(ffgb("evaluate", out, "--json").stdout)["all"]["accuracy"] == pytest.approx(
        summary["test_accuracy"]
    )
    # γ = 1 promises an exact oracle, which this is not: then residuals are clipped, and counted
    result = ffgb("train", *options, "--oracle-steps", "50", "--gamma", "1", "--json", "--out", tmp_path / "b")
    assert json.loads(result.stdout)["clipped_residual"] > 0


@pytest.mark.parametrize("learner", ["features", "linear", "mlp"])
def test_ffgb_l_runs_in_one_round_and_in_many(learner: str, tmp_path: Path) -> None:
    options = ["--algorithm", "ffgb-l", "--learner", learner, "--data", "diabetes", "--clients", "4", "--rounds", "6"]
    options += ["--local-steps", "3", "--oracle-steps", "60", "--split", "iid", "--json"]
    once, many = (
        json.loads(ffgb("train", *options, form, "--out", tmp_path / form).stdout)
        for form in ("--one-round", "--many-rounds")
    )
    assert (once["rounds"], many["rounds"]) == (1, 6)
    assert once["test_rmse"] < 77  # the spread of the target
    for name in ("test_rmse", "train_loss", "gamma_sup", "gamma_lip", "lipschitz"):
        assert once[name] == pytest.approx(many[name], rel=1e-4)
    assert once["bytes_up"] < many["bytes_up"]
    assert once["lipschitz"] > 0
