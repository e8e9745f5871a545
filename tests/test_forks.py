"""A command in a fork says and does what it says and does in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import command


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("predict", "run", "rows.csv"), 2), (("data", "list", "--json"), 0), (("train", "--no-such"), 2)],
)
def test_a_fork_is_a_process(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "72", "FFGB_DATA": str(tmp_path)}
    words = [sys.executable, "-m", "ffgb", *arguments]
    real = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    forked = command(arguments, tmp_path, env)
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)
    assert forked.returncode == code


def test_one_fork_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Neither a folder, nor what is set, nor modules of one's own."""
    (tmp_path / "own.py").write_text("def halves(x):\n    return 0.5 * x.reshape(len(x), -1)\n")
    job = ["train", "--data", "wine", "--clients", "3", "--rounds", "1", "--workers", "0", "--map", "own:halves"]
    assert command([*job, "--out", "run"], tmp_path).returncode == 0
    (tmp_path / "elsewhere").mkdir()
    done = command([*job, "--out", "run"], tmp_path / "elsewhere")
    assert done.returncode == 2
    assert "own" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())
