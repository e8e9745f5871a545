"""A program ends with whoever asked for it, and so does all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ffgb import guard

PROGRAM = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def started(tmp_path: Path, seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    note = tmp_path / "child"
    command = [sys.executable, guard.__file__, sys.executable, "-c", PROGRAM, str(note), str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    while not (note.exists() and note.read_text()):
        time.sleep(0.05)
    time.sleep(1.5 * guard.LOOK)
    return process, int(note.read_text())


def gone(pid: int) -> bool:
    limit = time.monotonic() + 20
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    return not alive(pid)


def test_it_ends_when_the_pipe_closes(tmp_path: Path) -> None:
    process, child = started(tmp_path, 100.0)
    assert process.stdin is not None
    process.send_signal(signal.SIGINT)  # this is not for the program
    time.sleep(0.2)
    assert alive(child)
    process.stdin.close()
    process.wait(timeout=20)
    assert gone(child)


def test_it_ends_with_a_process_that_was_killed(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, {guard.__file__!r}, sys.executable, "-c", {PROGRAM!r}, {str(note)!r}, "100"],
                 stdin=subprocess.PIPE)
time.sleep(100)
"""
    asked = subprocess.Popen([sys.executable, "-c", code])
    while not (note.exists() and note.read_text()):
        time.sleep(0.05)
    time.sleep(1.5 * guard.LOOK)
    os.kill(asked.pid, signal.SIGKILL)
    asked.wait()
    assert gone(int(note.read_text()))


def test_it_says_how_the_program_ended(tmp_path: Path) -> None:
    process, child = started(tmp_path, 3.0)
    assert process.wait(timeout=20) == 7
    assert process.stdin is not None
    process.stdin.close()
    assert gone(child)
