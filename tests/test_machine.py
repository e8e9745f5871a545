"""Memory and cores of this machine, or of its container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ffgb import machine


def test_memory_is_there_and_some_of_it_is_free() -> None:
    assert 0 < machine.available() <= machine.physical()


@pytest.mark.skipif(sys.platform != "linux", reason="who may run where is Linux's to say")
def test_only_cores_that_are_ours_count() -> None:
    asked = "import os; os.sched_setaffinity(0, [0]); from ffgb.machine import cores; print(cores())"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "1\n"


def files(monkeypatch: pytest.MonkeyPatch, folder: Path, contents: dict[str, str]) -> None:
    """Let the system's files have these contents, and no others be there."""
    for name, text in contents.items():
        file = folder / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(machine, "Path", lambda name: folder / name.lstrip("/"))


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ],
)
def test_a_containers_limit_counts(limit: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"/proc/meminfo": "MemTotal: 9999 kB\nMemAvailable: 9999 kB\n"}
    files(monkeypatch, tmp_path, {limit: "1048576\n", used: "48576\n", **free})
    assert machine.physical() == 1 << 20
    assert machine.available() == 1_000_000


def test_a_container_without_a_limit_has_the_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    physical = machine.physical()
    files(monkeypatch, tmp_path, {"/sys/fs/cgroup/memory.max": "max\n", "/proc/meminfo": "MemAvailable:   64 kB\n"})
    assert machine.physical() >= physical
    assert machine.available() == 64 * 1024


@pytest.mark.parametrize("contents", [{}, {"/proc/meminfo": "MemTotal: 9999 kB\n"}], ids=["no Linux", "old Linux"])
def test_where_nobody_says_what_is_free_it_is_all(
    contents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(monkeypatch, tmp_path, contents)
    assert machine.available() == machine.physical() > 0
