"""`make run` works from nothing; the source distribution is the whole repository."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_make_run_works_from_nothing(tmp_path: Path) -> None:
    """`make run` in a fresh copy: an environment of its own, the default job, and no torch in it."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["tar", "--null", "-T", "-", "-c"], cwd=ROOT, input=tracked, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=archive.stdout, check=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    result = subprocess.run(["make", "run"], cwd=tmp_path, capture_output=True, text=True, env=clean)
    if "No matching distribution" in result.stderr or "ConnectionError" in result.stderr:
        pytest.skip("no package index can be reached from here")
    assert result.returncode == 0, result.stderr
    accuracy = re.search(r"test accuracy ([01]\.\d+)", result.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.95
    assert next((tmp_path / "runs").glob("*/model.safetensors")).stat().st_size > 1000
    assert not list((tmp_path / ".venv").glob("lib/*/site-packages/torch"))


def test_the_source_distribution_has_every_folder() -> None:
    """MANIFEST.in names each folder and each file at the top, but for those that every distribution has."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line and line[0] != "#"]
    named = {name for command, *names in lines if command in ("graft", "include") for name in names}
    assert {name.split("/")[0] for name in tracked.splitlines()} == named | {
        *("LICENSE", "README.md", "pyproject.toml", "src")
    }
