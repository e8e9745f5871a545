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

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 5.0
"""Seconds that a program has after each of the signals."""


def main() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # for the program: what is ignored here is ignored there
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, process_group=0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are meant for whoever asked for it

    def watch() -> None:
        code = program.wait()
        _signal(program.pid, signal.SIGKILL)  # what it started may live on
        os._exit(code if code >= 0 else 128 - code)

    threading.Thread(target=watch, daemon=True).start()
    while os.read(0, 4096):
        pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        _signal(program.pid, number)
        time.sleep(PATIENCE)  # `watch` ends us before


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    main()
