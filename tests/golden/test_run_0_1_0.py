"""Runs that ffgb 0.1.0 wrote, of either kind, are read, scored, used and continued.

`run_0_1_0` holds what these commands left behind, but for report.html and the lock:

    ffgb train --data diabetes --clients 3 --learner linear --rounds 2 --ridge 0.03 --out shared
    ffgb train --data wine --clients 3 --learner mlp --hidden 4 --oracle-steps 20 --rounds 2 --out increments

and in expected.json what `ffgb evaluate` and `ffgb predict` of that version said, at the points of files.py; also after
a third round.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden import files
from tests.golden.perform import ffgb, predicted
from tests.golden.record import TOLERANCE, apart, difference

FOLDER = Path(__file__).with_name("run_0_1_0")
DATA = {"shared": "diabetes", "increments": "wine"}


@pytest.fixture(params=DATA)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy."""
    files.write_points(tmp_path)
    copy: Path = tmp_path / request.param
    shutil.copytree(FOLDER / request.param, copy)
    return copy


def expected(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())[run.name]
    return found


def points(run: Path) -> str:
    return str(run.parent / f"{DATA[run.name]}.csv")


def said(run: Path) -> dict[str, float]:
    """What `ffgb evaluate` says about the test rows."""
    scores: dict[str, float] = json.loads(ffgb("evaluate", str(run), "--json"))["all"]
    return scores


def test_it_is_complete() -> None:
    for name in DATA:
        config = json.loads((FOLDER / name / "config.json").read_text())
        assert (config["versions"]["ffgb"], config["data"]) == ("0.1.0", [DATA[name]])
        found = {file.name for file in (FOLDER / name).iterdir()}
        assert found == {
            *("config.json", "metrics.jsonl", "model.safetensors", "summary.json", "clients.json", "checkpoint")
        }


def test_it_is_scored(run: Path) -> None:
    before, now = expected(run)["scores"], said(run)
    assert now.keys() >= before.keys()
    for name, value in before.items():
        assert apart(value, now[name]) <= TOLERANCE, name
    summary = json.loads((run / "summary.json").read_text())
    assert apart(summary["test_loss"], now["loss"]) <= TOLERANCE


@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_it_predicts(file: str, run: Path) -> None:
    now = predicted(str(run / file), points(run))
    assert difference(expected(run)["predictions"], now) <= TOLERANCE


def test_it_is_shown(run: Path) -> None:
    ffgb("report", str(run))
    assert (run / "report.html").read_text().rstrip().endswith("</html>")


def test_it_goes_on(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    ffgb("train", "--resume", "--out", str(run), "--rounds", "3", "--workers", "0")
    after = (run / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 3
    assert difference(expected(run)["resumed"], predicted(str(run), points(run))) <= TOLERANCE
