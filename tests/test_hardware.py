"""Memory and cores of this machine, or of its container."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from ffgb import hardware as machine


def test_memory_is_there_and_some_of_it_is_free() -> None:
    assert 0 < machine.available() <= machine.physical()


@pytest.mark.skipif(sys.platform != "linux", reason="who may run where is Linux's to say")
def test_only_cores_that_are_ours_count() -> None:
    asked = "import os; os.sched_setaffinity(0, [0]); from ffgb.hardware import cores; print(cores())"
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


def threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info()}


def test_one_blas_thread_is_one_thread_and_ends_where_it_began() -> None:
    assert np.ones((2, 2)) @ np.ones(2) is not None  # BLAS is loaded
    with threadpool_limits(limits=2):
        before = threads()
        with machine.one_blas_thread():
            assert threads() == {1}
            with machine.one_blas_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before
        with pytest.raises(ZeroDivisionError), machine.one_blas_thread():
            _ = 1 / 0
        assert threads() == before


def test_libraries_are_looked_for_once_and_again_when_another_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    class Counted(ThreadpoolController):  # type: ignore[misc]
        def __init__(self) -> None:
            looks.append(1)
            super().__init__()

    monkeypatch.setattr(machine, "ThreadpoolController", Counted)
    machine._libraries.cache_clear()
    for _ in range(3):
        with machine.one_blas_thread():
            pass
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "just_imported", ModuleType("just_imported"))
    with machine.one_blas_thread():
        assert len(looks) == 2
    machine._libraries.cache_clear()


@pytest.mark.parametrize("count", [1, 3])
def test_work_on_all_cores_comes_back_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: count)
    assert machine.on_all_cores(lambda i: i * i, range(20)) == [i * i for i in range(20)]
    assert machine.on_all_cores(lambda i: i, []) == []
    with pytest.raises(ZeroDivisionError):
        machine.on_all_cores(lambda i: 1 / i, [1, 0, 2])


def test_work_on_all_cores_is_done_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    both = threading.Barrier(2, timeout=30)  # which one thread alone would never pass
    assert sorted(machine.on_all_cores(lambda i: both.wait(), [0, 1])) == [0, 1]
