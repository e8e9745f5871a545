"""A recalibrated model: its slope is right on new rows, and its file and its ONNX form say the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.core.judgement import scores_of
from ffgb.core.recalibration import WAYS
from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.model import Model
from ffgb.runs.onnx import checked
from ffgb.runs.recalibrate import recalibrate_run
from ffgb.runs.training import train
from tests.cli.commands import ffgb


def table(path: Path, rows: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 6))
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-1.5 * x[:, 0] + x[:, 1])), "yes", "no")
    pd.DataFrame(x, columns=list("abcdef")).assign(y=y).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Too many trees on few rows: probabilities that are far too sure."""
    path = tmp_path_factory.mktemp("recalibrate")
    table(path / "here.csv", 1500, 0)
    options = {"learner": "trees", "rounds": 12, "tree_rate": 0.8, "leaf_rows": 10}
    train(Config(data=(str(path / "here.csv"),), target="y", **options), path / "run", workers=0)
    return Run.open(path / "run")


@pytest.mark.parametrize("way", WAYS)
def test_the_slope_is_right_on_new_rows(way: str, run: Run, tmp_path: Path) -> None:
    files = [str(table(tmp_path / "more.csv", 4000, 1))]
    found = recalibrate_run(run, tmp_path / "model.safetensors", way, files)
    model, new = Model.load(tmp_path / "model.safetensors"), table(tmp_path / "new.csv", 20_000, 2)
    x, y = model.read(new), (pd.read_csv(new)["y"] == "yes").to_numpy().astype(int)
    before, after = (scores_of(m.predict_proba(x), y) for m in (replace(model, recalibration=None), model))
    assert before["calibration_slope"] < 0.8
    assert found["before"]["calibration_slope"] < 0.8
    if way != "intercept":
        assert 0.9 < after["calibration_slope"] < 1.1
        assert 0.9 < found["after"]["calibration_slope"] < 1.1
    assert abs(after["calibration_intercept"]) < max(abs(before["calibration_intercept"]), 0.15)
    assert after["auc"] == pytest.approx(before["auc"], abs=0.01)
    assert model.score(x, y)["loss"] < replace(model, recalibration=None).score(x, y)["loss"] + 1e-3
    pytest.importorskip("onnxruntime")
    assert checked(model).difference < 1e-5


def test_the_command_writes_a_model_that_predicts(run: Run, tmp_path: Path) -> None:
    found = json.loads(ffgb("recalibrate", run.path, "--by", "platt", "--json").stdout)
    assert found["rows"] == 300
    assert found["after"]["loss"] < found["before"]["loss"]
    table(tmp_path / "new.csv", 20, 3)
    model = Model.load(run.path / "recalibrated.safetensors")
    assert model.recalibration is not None
    assert not np.allclose(model.predict_proba(model.read(tmp_path / "new.csv")), Model.load(run.path).predict_proba(
        model.read(tmp_path / "new.csv")
    ))  # fmt: skip
    with pytest.raises(FFGBError, match="intercept, platt, isotonic"):
        recalibrate_run(run, tmp_path / "no.safetensors", "magic")
