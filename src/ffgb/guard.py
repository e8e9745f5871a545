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

    started: set[int] = set()

    def watch() -> None:
        while (code := program.poll()) is None:
            started.update(_below(program.pid))  # while it lives: later no one knows whose they were
            time.sleep(LOOK)
        for pid in (*started, -program.pid):
            _signal(pid, signal.SIGKILL)  # what it started may live on, in sessions of its own
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


def _below(pid: int) -> set[int]:
    """All processes that this one started, and those that they started; none where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            # "pid (name) state parent …", and a name may hold anything
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


if __name__ == "__main__":
    main()
