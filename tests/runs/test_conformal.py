"""Sets and intervals beside predictions: from a run, on the command line, and by the estimators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.errors import FFGBError
from ffgb.runs import conformal
from ffgb.runs.config import Config
from ffgb.runs.training import train
from tests.cli.commands import ffgb


def rows(n: int, seed: int, noise: float, *, number: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    value = 3 * x[:, 0] + noise * rng.standard_normal(n)
    y = value if number else np.where(value > 0, "yes", "no")
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})


@pytest.mark.parametrize("number", [False, True])
def test_new_rows_of_each_site_are_covered_by_its_threshold(number: bool, tmp_path: Path) -> None:
    noises = {"calm": 0.5, "wild": 4.0}
    for seed, (name, noise) in enumerate(noises.items()):
        rows(3000, seed, noise, number=number).to_csv(tmp_path / f"{name}.csv", index=False)
    files = tuple(str(tmp_path / f"{name}.csv") for name in noises)
    model = train(Config(data=files, target="y", learner="linear", rounds=3), tmp_path / "run", workers=0).model
    found = conformal.load(tmp_path / "run")
    assert {name: own.rows for name, own in found.of.items()} == {"calm": 600, "wild": 600}
    for name, noise in noises.items():
        new = rows(4000, 9, noise, number=number)
        new.to_csv(tmp_path / "new.csv", index=False)
        frame = conformal.columns(model, model.read(tmp_path / "new.csv"), found.threshold(0.8, name))
        inside: Any
        if number:
            inside = (frame["low"] <= new["y"]) & (new["y"] <= frame["high"])
        else:
            inside = np.array([y in words.split(" | ") for y, words in zip(new["y"], frame["set"], strict=True)])
        assert inside.mean() == pytest.approx(0.8, abs=0.05)  # 600 rows set it: 0.016 is one deviation
    assert found.threshold(0.8) == found.threshold(0.8, "wild") > found.threshold(0.8, "calm")


def test_the_command_adds_columns(tmp_path: Path) -> None:
    rows(900, 0, 1.0).to_csv(tmp_path / "here.csv", index=False)
    config = Config(data=(str(tmp_path / "here.csv"),), target="y", learner="linear", rounds=2)
    train(config, tmp_path / "run", workers=0)
    rows(20, 1, 1.0).drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    printed = ffgb("predict", tmp_path / "run", tmp_path / "new.csv", "--coverage", "0.95").stdout.splitlines()
    assert printed[0] == "prediction,probability_no,probability_yes,set"
    assert {line.rpartition(",")[2] for line in printed[1:]} <= {"yes", "no", "no | yes", "none"}
    content = json.loads((tmp_path / "run" / conformal.FILE).read_text())
    assert content["sites"]["here"]["rows"] == 180
    (tmp_path / "run" / conformal.FILE).unlink()
    with pytest.raises(FFGBError, match="needs rows that were held out"):
        conformal.load(tmp_path / "run")


def test_the_estimators_have_sets_and_intervals() -> None:
    train_rows, own, new = (rows(n, seed, 1.0) for n, seed in ((300, 0), (400, 1), (2000, 2)))
    columns, clients = ["a", "b"], np.arange(400) % 2
    classifier = FFGBClassifier(learner="linear", rounds=3).fit(train_rows[columns], train_rows["y"])
    with pytest.raises(ValueError, match="call calibrate"):
        classifier.predict_set(new[columns])
    classifier.calibrate(own[columns], own["y"], clients=clients)
    held = classifier.predict_set(new[columns], coverage=0.8)
    assert held.shape == (2000, 2)
    assert held[np.arange(2000), (new["y"] == "yes").astype(int)].mean() == pytest.approx(0.8, abs=0.07)
    with pytest.raises(ValueError, match="'perhaps', which fit has not seen"):
        classifier.calibrate(own[columns], ["perhaps"] * 400)
    train_rows, own, new = (rows(n, seed, 1.0, number=True) for n, seed in ((300, 0), (400, 1), (2000, 2)))
    regressor = FFGBRegressor(learner="linear", rounds=3).fit(train_rows[columns], train_rows["y"])
    ends = regressor.calibrate(own[columns], own["y"]).predict_interval(new[columns], coverage=0.9)
    inside = (ends[:, 0] <= new["y"]) & (new["y"] <= ends[:, 1])
    assert inside.mean() == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("number", [False, True])
def test_an_onnx_file_has_the_same_sets_and_intervals(number: bool, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    for seed, name in enumerate(("calm", "wild")):
        rows(900, seed, 1.0 + seed, number=number).to_csv(tmp_path / f"{name}.csv", index=False)
    files = tuple(str(tmp_path / f"{name}.csv") for name in ("calm", "wild"))
    model = train(Config(data=files, target="y", learner="linear", rounds=2), tmp_path / "run", workers=0).model
    ffgb("export", tmp_path / "run", "--coverage", "0.9", "--site", "wild", "--onnx", tmp_path / "wild.onnx")
    session = ort.InferenceSession(str(tmp_path / "wild.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["coverage"] == "0.9 at wild"
    new = rows(500, 7, 1.0, number=number)
    given = {name: new[[name]].to_numpy(np.float32) for name in ("a", "b")}
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))
    x, threshold = new[["a", "b"]].to_numpy(np.float32), conformal.load(tmp_path / "run").threshold(0.9, "wild")
    if number:
        np.testing.assert_allclose(found["interval"], np.stack(conformal.intervals(model, x, threshold), axis=1), 1e-5)
    else:
        held = conformal.sets(model, x, threshold)
        near = np.abs(1.0 - model.predict_proba(x) - threshold) < 1e-6
        assert (found["set"] == held)[~near].all()
        assert 0 < held.sum() < held.size


def test_sets_are_of_the_runs_own_model(tmp_path: Path) -> None:
    rows(900, 0, 1.0).to_csv(tmp_path / "here.csv", index=False)
    config = Config(data=(str(tmp_path / "here.csv"),), target="y", learner="linear", rounds=2)
    train(config, tmp_path / "run", workers=0)
    ffgb("recalibrate", tmp_path / "run")
    done = ffgb("export", tmp_path / "run", "--coverage", "0.9", "--model", "recalibrated.safetensors")
    assert done.returncode == 2
    assert "of the run's own model" in done.stderr
