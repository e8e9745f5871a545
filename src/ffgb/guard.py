"""Run a program, and end it with all that it started as soon as whoever asked for it is gone, however it went.

`python guard.py PROGRAM …`, with a pipe as standard input: when the pipe closes, the program ends.  A process that is
killed with -9 cannot end what it started; its pipes close all the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK = 1.0
"""Seconds between two looks at what it has started."""
PATIENCE = 5.0
"""Seconds that a program has after each of the signals."""


def main() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # for the program: what is ignored here is ignored there
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, process_group=0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are meant for whoever asked for it

    started: dict[int, str] = {}

    def watch() -> None:
        while (code := program.poll()) is None:
            started.update(_below(program.pid))  # while it lives: later no one knows whose they were
            time.sleep(LOOK)
        _signal(-program.pid, signal.SIGKILL)
        for pid, when in started.items():  # what it started may live on, in sessions of its own
            if _since(pid) == when:  # a number may be another process's by now
                _signal(pid, signal.SIGKILL)
        os._exit(code if code >= 0 else 128 - code)

    threading.Thread(target=watch, daemon=True).start()
    while os.read(0, 4096):
        pass
    started.update(_below(program.pid))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        _signal(-program.pid, number)
        time.sleep(PATIENCE)  # `watch` ends us before


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _below(pid: int) -> dict[int, str]:
    """All processes that this one started, and those that they started, with when; none where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(entry.name)):
            parents[int(entry.name)] = int(stat[1])
    found: dict[int, str] = {}
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found.keys()
        found |= {child: _since(child) for child in new}
    return {child: when for child, when in found.items() if when}


def _since(pid: int) -> str:
    """When a process began, in the system's own ticks; nothing if there is none."""
    stat = _stat(pid)
    return stat[19] if stat else ""


def _stat(pid: int) -> list[str]:
    """What the system says of a process, from its state on; nothing if there is none."""
    try:
        # "pid (name) state parent …", and a name may hold anything
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
