"""Every command of the README is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.cli.commands import site
from tests.conftest import ROOT


def blocks(language: str, file: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README speaks of."""
    folder = tmp_path_factory.mktemp("readme")
    for seed, name in enumerate(("north.csv", "south.csv", "new.csv")):
        site(folder / name, seed=seed)
    return folder


def test_the_readme_shows_its_commands() -> None:
    assert commands()[:3] == ["make run", "make test", "ffgb train"]
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("make")])
def test_a_command_of_the_readme_works(command: str, workplace: Path) -> None:
    assert command.startswith("ffgb ")
    result = forks.command(command.split()[1:], workplace)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("code", blocks("python") + blocks("python", "CONTRIBUTING.md"))
def test_a_python_example_works(code: str, workplace: Path) -> None:
    result = subprocess.run([sys.executable, "-c", code], cwd=workplace, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[0]) > 0.9
