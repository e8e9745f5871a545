"""`ffgb train`: what it prints and writes, and how it goes on."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.cli.commands import QUICK, ffgb, in_terminal


def test_the_default_job_reaches_its_bar(tmp_path: Path) -> None:
    """`ffgb train` with no arguments: digits, 20 clients, s = 0.1."""
    began = time.perf_counter()
    result = ffgb("train", "--json", cwd=tmp_path)
    seconds = time.perf_counter() - began
    summary = json.loads(result.stdout)  # one JSON object, and nothing else on standard output
    assert (summary["data"], summary["clients"]) == ("digits", 20)
    assert summary["test_accuracy"] >= 0.95
    assert seconds < 60
    assert (tmp_path / summary["run"] / "model.safetensors").exists()
    config = json.loads((tmp_path / summary["run"] / "config.json").read_text())
    assert (config["split"], config["similarity"]) == ("similarity", 0.1)


def test_without_a_terminal_the_result_is_two_plain_lines(tmp_path: Path) -> None:
    result = ffgb("train", *QUICK, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    beside = (
        r"\(95 % interval 0\.\d{4} to [01]\.\d{4}; guessing the most frequent class: 0\.\d{4}\), log loss \d\.\d{4}"
    )
    took = r"after \d+ rounds? with 3 clients( \(another round changed nothing\))?; each sent [\d.]+ .B and received"
    words = rf"test accuracy [01]\.\d+ {beside}\n{took}"
    assert re.match(words, result.stdout)
    assert "run directory: runs/wine-ffgb-features-1" in result.stdout.replace("\n", " ")
    assert "\x1b" not in result.stdout
    assert ffgb("train", *QUICK, cwd=tmp_path).returncode == 0  # a second run gets a directory of its own
    assert (tmp_path / "runs" / "wine-ffgb-features-2").is_dir()


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    shown, code = in_terminal(["train", "--data", "digits", "--rounds", "12", "--workers", "1"], tmp_path)
    assert code == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"digits: 1,4\d\d training rows, 10 classes, 20 clients", shown)
    assert re.search(r"12/12.*test accuracy [01]\.\d{4}.*\d\.\d .B a client", shown)


def test_a_regression_run_reports_rmse(tmp_path: Path) -> None:
    result = ffgb("train", "--data", "diabetes", "--clients", "4", "--rounds", "3", "--json", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert 40 < summary["test_rmse"] < 80
    assert "test_accuracy" not in summary


def test_a_share_of_clients_and_a_number_of_them(tmp_path: Path) -> None:
    for text, expected in (("1", 1), ("1.0", 3), ("0.67", 2)):
        result = ffgb("train", *QUICK, "--participation", text, "--json", cwd=tmp_path)
        assert json.loads(result.stdout)["participants"] == expected


def test_the_same_command_with_resume_goes_on(tmp_path: Path) -> None:
    command = ["train", *QUICK, "--participation", "0.67", "--loss", "auto", "--split", "iid", "--out", "run"]
    assert ffgb(*command, cwd=tmp_path).returncode == 0
    again = ffgb(*command, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
