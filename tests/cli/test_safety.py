"""The command line and what it is given: folders that name code, names that speak to terminals."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.errors import FFGBError, printable
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import for_spreadsheets
from ffgb.runs.postprocess import distill_run, reweight_run
from ffgb.runs.training import train
from ffgb.studies.reproduce.runs import go_on
from tests.cli.commands import QUICK, ffgb, in_terminal

MARK = "imported"
MODULE = f"""
from pathlib import Path
(Path(__file__).parent / "{MARK}").touch()
def encode(x):
    return x.reshape(len(x), -1)
"""


# Code that a folder names


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that needs code of the user's own, stopped after two of three rounds; and the code."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "own_of_tests.py").write_text(MODULE)
    out = folder / "run"
    assert ffgb("train", *QUICK, "--map", "own_of_tests:encode", "--out", out, cwd=folder).returncode == 0
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "rounds": 3}))
    (folder / MARK).unlink()
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """That run, of a test's own; the code tells when it is run."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def test_a_run_that_names_code_goes_on_if_the_user_names_it_too(run: Path, tmp_path: Path) -> None:
    resume = ["train", "--resume", "--out", "run", "--workers", "0"]
    answer = ffgb(*resume, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "imports and runs the code own_of_tests:encode; if you trust it" in answer.stderr
    assert "add --map own_of_tests:encode" in answer.stderr
    other = ffgb(*resume, "--map", "other:encode", cwd=tmp_path)  # it must be the same code
    assert other.returncode == 2
    assert not (tmp_path / MARK).exists()
    assert ffgb(*resume, "--map", "own_of_tests:encode", cwd=tmp_path).returncode == 0
    assert (tmp_path / MARK).exists()
    assert Run.open(run).summary["rounds"] == 3


@pytest.mark.parametrize(("keys", "code"), [(b"n\n", 2), (b"\n", 2), (b"\x04", 2), (b"y\n", 0)])
def test_in_a_terminal_the_user_is_asked(keys: bytes, code: int, run: Path, tmp_path: Path) -> None:
    resume = ["train", "--resume", "--out", "run", "--workers", "0"]
    shown, found = in_terminal(resume, tmp_path, "Do you trust it?", keys)
    assert "own_of_tests:encode" in shown
    assert found == code
    assert (tmp_path / MARK).exists() == (code == 0)


def test_no_other_command_imports_what_a_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may be harmless and the configuration not."""
    (tmp_path / "stranger_of_tests.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    train(Config(data="wine", clients=3, rounds=2, learner="mlp", oracle_steps=5), out, workers=0)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "learner": "stranger_of_tests:encode"}))
    for go in (
        lambda: distill_run(Run.open(out), out / "a.safetensors", by="clients", rounds=1),
        lambda: reweight_run(Run.open(out), out / "b.safetensors", rounds=1),
        lambda: go_on(out, {"data": "wine", "rounds": 2}, print),
    ):
        with pytest.raises(FFGBError, match=r"stranger_of_tests:encode.*(if you trust it|choose another --out)"):
            go()
    for command in ("evaluate", "report", "distill"):
        arguments = ["--steps", "1"] if command == "distill" else []
        assert ffgb(command, out, *arguments).returncode == 0
    assert not (tmp_path / MARK).exists()


def test_a_comparison_runs_no_code_that_its_folder_names(tmp_path: Path) -> None:
    (tmp_path / "stranger_of_tests.py").write_text(MODULE)
    command = ["compare", "fedavg", "fedprox", "--data", "wine", "--clients", "3", "--seeds", "1", "--no-tune"]
    command += ["--budget", "rounds=1", "--out", "c", "--json"]
    assert ffgb(*command, cwd=tmp_path).returncode == 0
    file = tmp_path / "c" / "fedavg-mlp" / "0" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "learner": "stranger_of_tests:encode", "rounds": 2}))
    (file.parent / "summary.json").unlink()
    answer = ffgb(*command, cwd=tmp_path)
    assert answer.returncode == 2
    assert "imports and runs the code stranger_of_tests:encode; it is no run of this comparison" in answer.stderr
    assert not (tmp_path / MARK).exists()


# Names that speak to terminals


EVIL = "\x1b]0;owned\x07\x1b[31m[/red]yes"


def test_what_is_printable_stays() -> None:
    assert printable("γ ± ω_W₁ … café 表 [red]") == "γ ± ω_W₁ … café 表 [red]"
    assert printable("a\x1b[2J\r\nb\x07\u202ec\x9bd\ud800") == "a?[2J  b??c?d?"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A file whose column and class names hold control characters."""
    rng, path = np.random.default_rng(0), tmp_path / "sites"
    path.mkdir()
    for name in ("a\x1b[1mb.csv", "[red]\x07.csv"):
        x = rng.standard_normal((40, 2))
        labels = [EVIL if row.sum() > 0 else "=1+\x1b[2Jno" for row in x]
        pd.DataFrame({"one\x1b[5m": x[:, 0], "two": x[:, 1], "label": labels}).to_csv(path / name, index=False)
    return path


def test_names_cannot_speak_to_a_terminal(evil: Path, tmp_path: Path) -> None:
    files = [option for file in sorted(evil.iterdir()) for option in ("--data", str(file))]
    outputs = [
        ffgb("train", *files, "--target", "label", "--rounds", "2", "--workers", "0", "--out", tmp_path / "run"),
        ffgb("evaluate", tmp_path / "run"),
        ffgb("data", "heterogeneity", *files, "--target", "label"),
        ffgb("train", *files, "--target", "labels\x1b[1m", "--out", tmp_path / "other"),
        ffgb("predict", tmp_path / "run\x1b[1m", tmp_path / "none.csv"),
        ffgb("report", tmp_path / "run", "-o", tmp_path / "page\x1b[1m.html"),
    ]
    assert [o.returncode for o in outputs] == [0, 0, 0, 2, 2, 0]
    for output in outputs:
        text = output.stdout + output.stderr
        assert "Traceback" not in text
        assert printable(text.replace("\n", "")) == text.replace("\n", "")
    assert "[/red]yes" in outputs[0].stderr  # how the target was read
    assert "[red]?" in outputs[1].stdout
    assert "[red]?.csv has no column" in outputs[3].stderr


def test_warnings_cannot_either(evil: Path, tmp_path: Path) -> None:
    first, second = sorted(evil.iterdir())
    pd.read_csv(second).drop(columns="one\x1b[5m").to_csv(second, index=False)
    answer = ffgb(
        "train", "--data", first, "--data", second, "--target", "label", "--rounds", "1", "--out", tmp_path / "r"
    )
    assert "site [red]? also has the column" in answer.stderr
    assert "\x1b" not in answer.stderr


def test_predictions_are_as_they_are_in_a_file_and_harmless_on_a_terminal(evil: Path, tmp_path: Path) -> None:
    files = sorted(evil.iterdir())
    train(Config(data=tuple(map(str, files)), target="label", rounds=2), tmp_path / "run", workers=0)
    shown, code = in_terminal(["predict", "run", str(files[0])], tmp_path)
    assert code == 0
    assert "\x1b" not in shown
    assert "prediction,probability_" in shown
    piped = ffgb("predict", tmp_path / "run", files[0]).stdout
    assert {row["prediction"] for row in csv.DictReader(io.StringIO(piped))} == {EVIL, "=1+\x1b[2Jno"}
    quoted = ffgb("predict", tmp_path / "run", files[0], "--spreadsheet").stdout
    assert {row["prediction"] for row in csv.DictReader(io.StringIO(quoted))} == {EVIL, "'=1+\x1b[2Jno"}


def test_only_cells_that_would_be_run_are_quoted() -> None:
    harmful = ["=1+1", "+1-2", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "-", "-1\n", "+-1", "-1e", "-.5.5"]
    harmless = ["yes", "-1", "+2", "-1.5", "-1e-05", "-.5", "", "a=1", "1-2", "'=1"]
    frame = pd.DataFrame({"prediction": [*harmful, *harmless], "p": -1.5, "n": -1, "=x": "a", "probability_=x": 0.5})
    found = for_spreadsheets(frame)
    assert found["prediction"].tolist() == ["'" + cell for cell in harmful] + harmless
    assert list(found.columns) == ["prediction", "p", "n", "'=x", "probability_=x"]
    assert found[["p", "n"]].equals(frame[["p", "n"]])
