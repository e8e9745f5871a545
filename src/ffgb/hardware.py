"""What this process may use of the machine: memory, so that what cannot fit is refused before any work, and cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may run on: all, or those that taskset, a scheduler or a container leaves it."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside, BLAS, LAPACK and OpenMP compute on one thread.

    Small products are faster so, and the bits of a result do not depend on the number of cores.  It costs 10 µs, a
    hundredth of `threadpoolctl.threadpool_limits`, which looks through all loaded libraries each time.
    """
    with _libraries(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=4)
def _libraries(modules: int) -> ThreadpoolController:
    """The libraries with threads: looked for again when more modules are loaded, for these may bring one along."""
    return ThreadpoolController()


def on_all_cores(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """work(item) of all items, in their order, computed on as many threads as there are cores.

    For work that NumPy does outside the interpreter's lock, such as products of large matrices.
    """
    if (threads := min(cores(), len(items))) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def physical() -> int:
    """Bytes of memory that this process may ever use: the machine's, or its container's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_limits()])


def available() -> int:
    """Bytes that are free now, or can be made free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # no Linux
        return physical()
    return max(0, min([free, *(limit - used for limit, used in _groups())]))


def _limits() -> list[int]:
    return [limit for limit, _ in _groups()]


def _groups() -> list[tuple[int, int]]:
    """What control groups allow and have used, in either of their versions."""
    groups = []
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            groups.append((int(Path(limit).read_text()), int(Path(used).read_text())))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return groups
