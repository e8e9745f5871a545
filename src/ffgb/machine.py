"""What this process may use of the machine: memory, so that what cannot fit is refused before any work, and cores."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Cores that this process may run on: all, or those that taskset, a scheduler or a container leaves it."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
