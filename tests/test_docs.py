"""Every example in docs/ is run as it stands there (those of docs/sites.md in test_deploy.py)."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest

from ffgb.runs.config import Config
from ffgb.runs.training import train
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


def steps_of_one_row() -> list[str]:
    """Of docs/one-row.md, each as module.function."""
    page = (ROOT / "docs" / "one-row.md").read_text()
    steps = re.findall(r"^\| (\d+) \|.*\| `([\w/]+)\.py` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 10 <= len(steps) <= 12
    return [f"{file.replace('/', '.')}:{function}" for _, file, function in steps]


def code_of(step: str) -> CodeType:
    module, _, names = step.partition(":")
    thing = importlib.import_module(f"ffgb.{module}")
    for name in names.split("."):
        thing = getattr(thing, name)
    code: CodeType = inspect.unwrap(thing).__code__  # type: ignore[arg-type]
    return code


OF_TREES = {
    "algorithms.ffgb_shared:FFGBShared.round": "algorithms.trees_shared:TreesShared.round",
    "core.gradients:GradientOf.part": "core.histograms:HistogramsOf.part",
}
"""Steps that differ for boosted trees, as the page says."""


@pytest.mark.parametrize("learner", ["features", "trees"])
def test_a_row_takes_the_steps_of_the_page_in_their_order(learner: str, tmp_path: Path) -> None:
    """They end in this order; three of them, which hold the next steps, begin in it."""
    pytest.importorskip("cryptography")
    steps = steps_of_one_row()
    if learner == "trees":
        page = (ROOT / "docs" / "one-row.md").read_text()
        for step in OF_TREES.values():
            module, _, function = step.partition(":")
            assert re.search(rf"`{function}`\s+in\s+`{module.replace('.', '/')}\.py`", page)
        steps = [OF_TREES.get(step, step) for step in steps]
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        x = rng.standard_normal((60, 2))
        table = np.column_stack([x, x.sum(axis=1) > 0])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="u,v,y", comments="")
    files = tuple(str(tmp_path / f"{name}.csv") for name in ("a", "b", "c"))
    config = Config(data=files, target="y", rounds=1, learner=learner, secure="on")
    places = {code_of(step): number for number, step in enumerate(steps)}
    began = {number for number, step in enumerate(steps) if step.endswith((":load_sites", ".round", ".answer"))}
    done = list[int]()

    def heed(frame: FrameType, event: str, _: object) -> None:
        number = places.get(frame.f_code)
        if number == len(done) and event == ("call" if number in began else "return"):
            done.append(number)

    sys.setprofile(heed)
    try:
        model = train(config, workers=0).model
        model.predict(np.zeros((1, 2), np.float32))
    finally:
        sys.setprofile(None)
    assert [steps[number] for number in done] == steps
