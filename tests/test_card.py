"""What a run says about its clients, the model card, and the commands that write files for others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.card import card
from ffgb.config import Config
from ffgb.errors import FFGBError
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.training import train
from tests.data.test_preprocess import mixed

FFGB = [sys.executable, "-m", "ffgb"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three sites with tables as they are; one has a name that means something in Markdown."""
    folder = tmp_path_factory.mktemp("card")
    files = [mixed(folder / f"{name}.csv", seed) for seed, name in enumerate(("a|b", "_c_", "d"))]
    train(Config(data=tuple(map(str, files)), target="y", rounds=3), folder / "run", workers=0)
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
    assert {s["what"] for s in known["sent"]} >= {"statistic MomentsOf", "statistic GramOf", "increment", "report"}
    for s in known["sent"]:
        assert set(s) == {"what", "once", "arrays", "bytes"}


def test_numbers_to_predict(tmp_path: Path) -> None:
    train(Config(data="diabetes", clients=3, rounds=2), tmp_path / "run", workers=0)
    known = Run.open(tmp_path / "run").clients
    assert known is not None
    assert known["classes"] == []
    assert all(c["target"]["min"] <= c["target"]["mean"] <= c["target"]["max"] for c in known["clients"])
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
        "statistic GramOf",
        "gram float32[",
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


def test_a_run_of_a_version_before(tmp_path: Path) -> None:
    train(Config(data="wine", clients=3, rounds=1), tmp_path / "run", workers=0)
    (tmp_path / "run" / "clients.json").unlink()
    with pytest.raises(FFGBError, match=r"has no clients\.json"):
        card(Run.open(tmp_path / "run"), Model.load(tmp_path / "run"))


def ffgb(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FFGB, *map(str, arguments)], capture_output=True, text=True, check=False)


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
