"""Commands as a stranger gives them, in real processes and terminals, and a small table to give them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.forks import command

FFGB = [sys.executable, "-m", "ffgb"]
QUICK = ["--rounds", "2", "--clients", "3", "--workers", "0", "--data", "wine", "--learner", "features"]


def ffgb(
    *arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return command(arguments, cwd, {**os.environ, **(env or {})})


def in_a_new_process(*arguments: str | Path, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The same in a process that begins as a user's does: it may have other code than this one."""
    command = [*FFGB, *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **env})


def in_terminal(
    arguments: list[str], cwd: Path, interrupt_after: str | None = None, keys: bytes = b"\x03"
) -> tuple[str, int]:
    """What a person sees, and the exit code; Ctrl-C, or other keys, are typed once a text has shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ.update(TERM="xterm-256color", COLUMNS="120")
        os.execv(sys.executable, [*FFGB, *arguments])
    shown, typed = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if interrupt_after and not typed and interrupt_after.encode() in shown:
            os.write(terminal, keys)
            typed = True
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return shown.decode(errors="replace"), code


def site(path: Path, rows: int = 40, seed: int = 0, header: str = "a,b,outcome") -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        for i in range(rows):
            a, b = rng.standard_normal(2)
            file.write(f"{a:.4f},{b:.4f},{'yes' if a + b + 0.1 * i % 2 > 0.5 else 'no'}\n")
    return path
