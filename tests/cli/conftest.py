"""Commands that must fail, and a run that is there already."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ffgb import cli
from tests.cli.commands import QUICK, ffgb


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one sentence on standard error of a command that must fail with exit code 2 and print nothing else.

    The command runs in this process, because there are many of them.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["ffgb", *(str(a) for a in arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfd.readouterr()
        assert (end.value.code, out) == (2, ""), err
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("ffgb: ")
        return lines[0]

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `QUICK`, trained once; tests copy it."""
    folder = tmp_path_factory.mktemp("trained")
    assert ffgb("train", *QUICK, "--out", "run", cwd=folder).returncode == 0
    return folder / "run"


@pytest.fixture
def quick(trained: Path, tmp_path: Path) -> Path:
    """A run of `QUICK` of a test's own: `run`, where the test is."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
