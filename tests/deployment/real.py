"""Real processes on loopback: `ffgb server` and `ffgb client`, started, watched and stopped by their pids."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.forks import Forked, command

FFGB = [sys.executable, "-m", "ffgb"]
NAMES = ("east", "north", "west")
LINEAR = {"secure": "off", "learner": "linear", "geometry": "local", "schedule": "constant"}
CONFIG = 'target = "digit"\nsecure = "off"\nlearner = "linear"\ngeometry = "local"\nschedule = "constant"\n'
SEED_CORN = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def write_sites(
    folder: Path, rounds: int, config: str = CONFIG, classes: int = 10, pixels: Sequence[int] = range(64)
) -> None:
    """Digits, or the first few and some of their pixels, dealt out to three files, and a job."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    order = order[digits.target[order] < classes]
    for k, name in enumerate(NAMES):
        rows = order[k::3]
        table = np.column_stack([digits.data[rows][:, pixels], digits.target[rows]]).astype(int)
        header = ",".join([*(f"p{i}" for i in pixels), "digit"])
        np.savetxt(folder / f"{name}.csv", table, "%d", ",", header=header, comments="")
    (folder / "run.toml").write_text(f"{config}rounds = {rounds}\n")


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def environment(folder: Path) -> dict[str, str]:
    """Of commands in a folder: their own state, one thread each."""
    return {**os.environ, **SEED_CORN, "XDG_STATE_HOME": str(folder / "state")}


def run(folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return command(arguments, folder, environment(folder))


def run_alone(folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """The same in a process that begins as a user's does: for commands that start clusters."""
    words, env = [*FFGB, *map(str, arguments)], environment(folder)
    return subprocess.run(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@contextmanager
def started(folder: Path, log: str, *arguments: Any, stdin: str = os.devnull) -> Iterator[Forked]:
    """A command under way; it is gone afterwards."""
    (folder / log).touch()
    streams = (stdin, str(folder / log), str(folder / log))
    process = Forked([str(a) for a in arguments], streams, folder, environment(folder))
    try:
        yield process
    finally:
        end(process)


@contextmanager
def started_anew(folder: Path, log: str, *arguments: Any, stdin: str = os.devnull) -> Iterator[Any]:
    """The same in a process that begins as a user's does: where it matters how long that takes."""
    with (folder / log).open("ab") as file, Path(stdin).open("rb") as given:
        words = [*FFGB, *map(str, arguments)]
        process = subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=file, stderr=file, stdin=given)
        try:
            yield process
        finally:
            end(process)


def end(process: Forked | subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def invite(folder: Path, port: int) -> dict[str, str]:
    """An invitation for each site."""
    done = [run(folder, "server", "invite", name, "--address", f"127.0.0.1:{port}") for name in NAMES]
    return {name: one.stdout.strip() for name, one in zip(NAMES, done, strict=True)}


def client(folder: Path, name: str, line: str, *more: Any, start: Any = started) -> Any:
    arguments = ("--join", line, "--data", f"{name}.csv", "--config", "run.toml", "--yes", "--no-page", *more)
    return start(folder, f"{name}.log", "client", *arguments)


def server(folder: Path, port: int, *more: Any, log: str = "server.log", start: Any = started) -> Any:
    arguments = ("--clients", 3, "--config", "run.toml", "--port", port, "--out", "run", "--no-page", *more)
    return start(folder, log, "server", *arguments)


def until(done: Callable[[], Any], seconds: float, what: str) -> float:
    """Wait for something; how long it took."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() < began + seconds, what
        time.sleep(0.02)
    return time.monotonic() - began


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rounds so far."""
    file = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def files(folder: Path) -> tuple[str, ...]:
    return tuple(str(folder / f"{name}.csv") for name in NAMES)


def listeners(pid: int) -> list[str]:
    """Addresses on which a process listens."""
    found = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in found.splitlines() if f"pid={pid}," in line]


@contextmanager
def growth(pid: int) -> Iterator[Callable[[], float]]:
    """How many megabytes more a process has had at most than at the beginning, by looking at it all the time.

    The system's own peak is no use: it may be from before, and not every kernel lets one reset it.
    """
    before, most, over = memory(pid), memory(pid), threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, memory(pid))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: (max(most, memory(pid)) - before) / 2**20
    finally:
        over.set()
        thread.join()


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    file = Path(f"/proc/{pid}/statm")
    if not file.exists():
        pytest.skip("no /proc here to see memory in")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[str]:
    """Processes that a process has started."""
    return subprocess.run(["ps", "--ppid", str(pid), "-o", "args="], capture_output=True, text=True).stdout.split()
