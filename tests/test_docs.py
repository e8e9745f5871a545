"""Every example in docs/ is run as it stands there (those of docs/sites.md in test_deploy.py)."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def blocks(page: str) -> list[tuple[str, str]]:
    """The examples of a page in their order, each with its language."""
    return re.findall(r"```(python|sh)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run(language: str, text: str, folder: Path) -> str:
    commands = [[sys.executable, "-c", text]]
    if language == "sh":
        commands = [[sys.executable, "-m", *shlex.split(line)] for line in text.splitlines()]
        assert all(command[2] == "ffgb" for command in commands)
    said = []
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        said.append(done.stdout)
    return "".join(said)


@pytest.mark.parametrize("example", range(3))
def test_something_of_your_own(example: int, tmp_path: Path) -> None:
    page = blocks("extending.md")
    assert len(page) == 3
    assert run(*page[example], tmp_path)


def test_the_walk_from_tables_to_production(tmp_path: Path, real_data: Path) -> None:
    pytest.importorskip("onnxruntime")
    said = [run(*block, tmp_path) for block in blocks("walk.md")]
    assert len(said) == 6
    assert "test accuracy 0.8" in said[2]
    assert (tmp_path / "runs" / "heart" / "report.html").stat().st_size < 300_000
    assert (tmp_path / "model-card.md").exists()
    assert said[-1].startswith("present [")


def test_the_page_of_statistics(tmp_path: Path, real_data: Path) -> None:
    page = (ROOT / "docs" / "statistics.md").read_text()
    said, compared = "", 0
    for language, text in re.findall(r"```(python|sh|text)\n(.*?)```", page, re.DOTALL):
        if language == "text":  # what the command before it prints first
            assert said.startswith(text)
            compared += 1
        else:
            said = run(language, text, tmp_path)
    assert compared == page.count("```text\n")


def test_the_way_of_one_row_names_functions_that_exist() -> None:
    """At most twelve steps, each a function of a file of the package."""
    page = (ROOT / "docs" / "one-row.md").read_text()
    steps = re.findall(r"^\| (\d+) \|.*\| `([\w/]+)\.py` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 10 <= len(steps) <= 12
    for _, file, function in steps:
        thing = importlib.import_module("ffgb." + file.replace("/", "."))
        for name in function.split("."):
            thing = getattr(thing, name)
        assert callable(thing)
