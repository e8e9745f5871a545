"""Signals: Ctrl-C and SIGTERM end what runs, and it can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import FFGB, ffgb, in_terminal
from tests.runs.test_directory import same


def test_ctrl_c_ends_after_the_round_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    options = ["--data", "digits", "--learner", "mlp", "--oracle-steps", "150", "--rounds", "6", "--clients", "8"]
    shown, code = in_terminal(["train", *options, "--out", "run"], tmp_path, interrupt_after="2/6")
    assert code == 130
    assert "stopping after this round" in shown
    assert "continue with: ffgb train --resume --out run" in shown.replace("\r\n", " ")
    rounds = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 2 <= rounds < 6
    assert not (tmp_path / "run" / "summary.json").exists()
    result = ffgb("train", "--resume", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["rounds"] == 6


def busy(pids: list[str]) -> float:
    """Seconds of processor time that the least busy of these processes has used."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11] for pid in pids]
    return min(int(t) for t in ticks) / os.sysconf("SC_CLK_TCK")


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_worker(tmp_path: Path) -> None:
    command = [*FFGB, "train", "--data", "digits", "--learner", "mlp", "--oracle-steps", "100000", "--workers", "2"]
    command += ["--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children: list[str] = []
    while len(children) < 2 or busy(children) < 1.0:  # the workers are in the first round
        time.sleep(0.1)
        listed = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True)
        children = listed.stdout.split()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping after this round" in process.stderr.readline() + process.stderr.readline()
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.perf_counter() - began < 5
    error = process.communicate()[1]
    assert "nothing was written" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()
    for pid in children:
        assert subprocess.run(["ps", "-p", pid], capture_output=True).returncode != 0


def test_ctrl_c_ends_a_comparison_and_begins_no_other_run(tmp_path: Path) -> None:
    command = [
        *FFGB,
        "compare",
        "fedavg",
        "scaffold",
        "--no-tune",
        "--budget",
        "rounds=100000",
        "--jobs",
        "1",
        "--seeds",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--out", "c"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, process_group=0
    )
    metrics = tmp_path / "c" / "fedavg-mlp" / "0" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    try:
        error = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command goes on" in error
    assert "Traceback" not in error
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"settings.json", "fedavg-mlp"}
    assert [path.name for path in (tmp_path / "c" / "fedavg-mlp").iterdir()] == ["0"]
    rounds = metrics.read_text().count("\n")
    time.sleep(1.0)
    assert metrics.read_text().count("\n") == rounds  # nothing goes on behind our back


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def catches(pid: int, number: int) -> bool:
    """Does a process do something of its own when this signal comes?"""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", status)
    return bool(int(mask, 16) >> (number - 1) & 1)


def rounds_in(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def ended(process: subprocess.Popen[str]) -> str:
    """Standard error of a process that a signal was sent to; it must say as much as after Ctrl-C."""
    try:
        error = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("workers", ["0", "2"])
def test_sigterm_ends_training_after_the_round(workers: str, tmp_path: Path) -> None:
    options = ["--data", "digits", "--learner", "mlp", "--oracle-steps", "150", "--rounds", "6", "--clients", "8"]
    command = [*FFGB, "train", *options, "--workers", workers, "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, process_group=0)
    wait_for(lambda: rounds_in(tmp_path / "run" / "metrics.jsonl") >= 2, process)
    os.killpg(process.pid, signal.SIGTERM)  # as a supervisor does
    error = ended(process)
    assert "stopping after this round" in error
    assert "continue with: ffgb train --resume --out run" in error
    assert 2 <= rounds_in(tmp_path / "run" / "metrics.jsonl") < 6
    assert ffgb("train", "--resume", "--out", "run", cwd=tmp_path).returncode == 0
    if workers == "0":
        assert ffgb("train", *options, "--out", "whole", cwd=tmp_path).returncode == 0
        same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("command", ["compare", "tune", "tune with --out", "reproduce"])
def test_sigterm_ends_studies_as_ctrl_c_does(command: str, tmp_path: Path) -> None:
    name, *kept = command.split(" with ")
    arguments = {
        "compare": ["fedavg", "scaffold", "--no-tune", "--budget", "rounds=100000", "--jobs", "1", "--out", "out"],
        "tune": ["--rounds", "3000", "--data", "wine"],
        "reproduce": ["ablations", "--scale", "small", "--out", "out"],
    }[name] + (["--out", "out"] if kept else [])
    process = subprocess.Popen(
        [*FFGB, name, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if command == "tune":
        wait_for(lambda: catches(process.pid, signal.SIGTERM), process)
        time.sleep(2.0)
    else:
        wait_for(lambda: any(rounds_in(f) >= 2 for f in tmp_path.rglob("metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    assert ("the same command goes on from what is in out" in ended(process)) == (command != "tune")
