"""What a run says about its clients, the model card, and the commands that write files for others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.runs.card import card
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.model import Model
from ffgb.runs.training import train
from tests.data.test_preprocess import mixed
from tests.forks import command

FFGB = [sys.executable, "-m", "ffgb"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three sites with tables as they are; one has a name that means something in Markdown."""
    folder = tmp_path_factory.mktemp("card")
    files = [mixed(folder / f"{name}.csv", seed) for seed, name in enumerate(("a|b", "_c_", "d"))]
    train(Config(data=tuple(map(str, files)), target="y", rounds=3, learner="features"), folder / "run", workers=0)
    return Run.open(folder / "run")


def test_clients_are_described(run: Run) -> None:
    known = run.clients
    assert known is not None
    assert [c["name"] for c in known["clients"]] == ["a|b", "_c_", "d"]
    for c in known["clients"]:
        assert c["points"] == sum(c["labels"])
        assert c["test"]["points"] == 16
    points = np.array([c["test"]["points"] for c in known["clients"]])
    accuracy = np.array([c["test"]["accuracy"] for c in known["clients"]])
    assert points @ accuracy / points.sum() == pytest.approx(run.summary["test_accuracy"], abs=1e-9)
    assert {s["what"] for s in known["sent"]} >= {
        *(f"question {name}" for name in ("MomentsOf", "GramOf", "GradientOf", "SlopesOf")),
        "report",
    }
    for s in known["sent"]:
        assert set(s) == {"what", "words", "once", "arrays", "bytes"}


def test_numbers_to_predict(tmp_path: Path) -> None:
    train(Config(data="diabetes", clients=3, rounds=2, learner="features"), tmp_path / "run", workers=0)
    known = Run.open(tmp_path / "run").clients
    assert known is not None
    assert known["classes"] == []
    assert all(np.isfinite(c["target"]["mean"]) for c in known["clients"])
    assert all(c["train"]["rmse"] > 0 and c["test"] is None for c in known["clients"])
    text = card(Run.open(tmp_path / "run"), Model.load(tmp_path / "run"))
    assert "Predicts a number" in text


def test_the_card_says_it_all_and_shows_no_row(run: Run) -> None:
    text = card(run, Model.load(run.path))
    for words in (
        "## Results",
        "a\\|b",
        "\\_c\\_",
        "missing values become",
        "nurse",
        "question GramOf",
        "gram int32[",
    ):
        assert words in text, words
    worst = min((c["test"]["accuracy"], c["name"]) for c in (run.clients or {})["clients"])
    first = text.split("|---|---|---|---|---|\n")[1].splitlines()[0]
    assert f"{worst[0]:.4f}" in first
    # no number of any row is in it: ages have many digits
    frame = (run.path.parent / "d.csv").read_text().splitlines()[1:]
    ages = [cell for line in frame for cell in line.split(",") if "." in cell and len(cell) > 8]
    assert len(ages) > 20
    assert not any(age[:8] in text for age in ages)


def test_the_card_says_what_sites_tell_of_their_targets_and_columns(run: Run, tmp_path: Path) -> None:
    text = card(run, Model.load(run.path))
    assert "the categories that at least 10 rows of all sites together have. Of the target they named every" in text
    assert "classes that occur often enough" not in text
    assert "Columns that differ" not in text
    copied = Path(shutil.copytree(run.path, tmp_path / "run"))
    known = json.loads((copied / "clients.json").read_text())
    told = ["site west lacks the column 's|t'; its values count as missing there", "the column 'u' is not used"]
    (copied / "clients.json").write_text(json.dumps({**known, "told": told}))
    text = card(Run.open(copied), Model.load(copied))
    assert "## Columns that differ\n\n- site west lacks the column 's\\|t'; its values" in text
    assert "\n- the column 'u' is not used\n\n## What left" in text


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with another model beside its own: one that says the contrary."""
    folder = tmp_path_factory.mktemp("ensemble")
    files = [mixed(folder / f"{name}.csv", seed) for seed, name in enumerate("ab")]
    config = Config(data=tuple(map(str, files)), target="y", rounds=3, learner="tree", depth=2)
    train(config, folder / "run", workers=0)
    model = Model.load(folder / "run")
    (folder / "run" / "distilled.safetensors").write_bytes(replace(model, f=model.f * -1.0).to_bytes())
    return Run.open(folder / "run")


def test_the_card_is_about_the_file_that_was_exported(ensemble: Run, tmp_path: Path) -> None:
    own, other = (Model.load(ensemble.path / name) for name in ("model.safetensors", "distilled.safetensors"))
    test = ensemble.summary["test_accuracy"]
    assert "This is `model.safetensors` of the run" in card(ensemble, own)
    assert f"Test accuracy **{test:.4f}**" in card(ensemble, own)
    text = card(ensemble, other, file="distilled.safetensors")
    assert f"`distilled.safetensors` has test accuracy **{1 - test:.4f}** at 32 rows." in text
    assert f"`model.safetensors`, has test accuracy **{test:.4f}**" in text
    assert text.count("| 16 |") == 2
    # rows that are not here any more
    copied = Path(shutil.copytree(ensemble.path, tmp_path / "run"))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "data": ["sites"]}))
    text = card(Run.open(copied), other, file="distilled.safetensors")
    assert "`distilled.safetensors` was **not measured**: the rows of this run are at its sites." in text
    assert "at the top of the table" not in text


def test_a_run_of_a_version_before(tmp_path: Path) -> None:
    train(Config(data="wine", clients=3, rounds=1, learner="features"), tmp_path / "run", workers=0)
    (tmp_path / "run" / "clients.json").unlink()
    with pytest.raises(FFGBError, match=r"has no clients\.json"):
        card(Run.open(tmp_path / "run"), Model.load(tmp_path / "run"))


def ffgb(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return command(arguments)


def test_the_command(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = ffgb("export", run.path, "--onnx", tmp_path / "m.onnx", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["difference"] < 1e-5
    assert found["bytes"] == (tmp_path / "m.onnx").stat().st_size
    text = (tmp_path / "model-card.md").read_text()
    assert "string (n, 1), empty if missing" in text
    assert "sha256" in text


def test_what_the_command_refuses(tmp_path: Path) -> None:
    done = ffgb("export", tmp_path / "none")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "none" in done.stderr


def test_the_command_exports_what_it_is_told_to(ensemble: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = ffgb("export", ensemble.path, "--model", "distilled.safetensors", "--onnx", tmp_path / "d.onnx")
    assert done.returncode == 0, done.stderr
    assert "d.onnx: distilled.safetensors, " in done.stdout
    assert "on 1,000 random rows around the model's own thresholds and ranges, with" in done.stdout
    text = (tmp_path / "model-card.md").read_text()
    assert "This is `distilled.safetensors` of the run" in text
    assert "`distilled.safetensors` has test accuracy" in text


def test_the_command_says_what_outputs_are_called(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    rows = "".join(f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("label,v1,y\n" + rows)
    config = Config(data=(str(tmp_path / "a.csv"),), target="y", rounds=1, learner="linear")
    train(config, tmp_path / "run", workers=0)
    done = ffgb("export", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "a column is called label, so that output is called label_\n" in done.stdout
    assert "gives `label_` and `probabilities`" in (tmp_path / "run" / "model-card.md").read_text()


def test_the_command_writes_both_files_or_none(ensemble: Run, tmp_path: Path) -> None:
    onnx, card = tmp_path / "m.onnx", tmp_path / "no" / "card.md"
    for places, words in (
        (("--onnx", onnx, "--card", card), f"the folder {card.parent} does not exist, so card.md"),
        (("--onnx", card.with_name("m.onnx")), f"the folder {card.parent} does not exist, so m.onnx"),
        (("--onnx", tmp_path), f"{tmp_path} is a folder; name a file in it"),
        (("--onnx", onnx, "--card", onnx), "choose another --card"),
        (("--onnx", ensemble.path / "distilled.safetensors"), "is a file of the run itself"),
        (("--onnx", onnx, "--model", "no.safetensors"), f"ffgb distill {ensemble.path} makes distilled.safetensors"),
    ):
        done = ffgb("export", ensemble.path, *places)
        assert (done.returncode, done.stdout) == (2, ""), places
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert "tmp:" not in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_model_of_another_run_is_refused(ensemble: Run, tmp_path: Path) -> None:
    train(Config(data="wine", clients=3, rounds=1, learner="linear"), tmp_path / "other", workers=0)
    done = ffgb("export", ensemble.path, "--model", tmp_path / "other" / "model.safetensors")
    assert done.returncode == 2
    assert "has other columns or classes than the model of the run" in done.stderr
