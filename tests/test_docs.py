"""Every example in docs/ is run as it stands there (those of docs/sites.md in test_deploy.py)."""

from __future__ import annotations

import importlib
import inspect
import json
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
from tests.forks import command


def blocks(page: str) -> list[tuple[str, str]]:
    """The examples of a page in their order, each with its language."""
    return re.findall(r"```(python|sh)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run(language: str, text: str, folder: Path) -> str:
    said = []
    for line in text.splitlines() if language == "sh" else [text]:
        if language == "sh":
            name, *arguments = shlex.split(line)
            assert name == "ffgb"
            done = command(arguments, folder)
        else:
            done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
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


@pytest.mark.parametrize("name", ["statistics", "fit"])
def test_the_pages_of_statistics(name: str, tmp_path: Path, real_data: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    said, compared = "", 0
    for language, text in re.findall(r"```(python|sh|text)\n(.*?)```", page, re.DOTALL):
        if language == "text":  # what the command before it prints first
            assert said.startswith(text)
            compared += 1
        else:
            said = run(language, text, tmp_path)
    assert compared == page.count("```text\n")


def test_what_the_page_of_fit_says_was_measured() -> None:
    page = (ROOT / "docs" / "fit.md").read_text()
    found = json.loads((ROOT / "experiments" / "conformal.json").read_text())
    assert len(found["tables"]) == 10
    assert f"each of the {found['sites that count']} sites" in page
    assert f"is within {100 * found['farthest']:.1f} points of it" in page
    assert found["farthest"] < 0.01
    slopes = json.loads((ROOT / "experiments" / "recalibration.json").read_text())["mean and deviation of slopes"]
    few = {name.partition(", ")[2]: slopes.pop(name) for name in list(slopes) if name.startswith("breast_cancer")}
    after = [own["platt"][0] for own in slopes.values()]
    assert len(after) == 12
    assert f"mean slopes are between {min(after)} and {max(after)} on four tables" in page
    assert 0.9 <= min(after) <= max(after) <= 1.1
    said = [f"{few[learner]['platt'][0]} (`{learner}`)" for learner in ("features", "trees", "additive")]
    assert f"{said[0]}, {said[1]} and {said[2]}" in page
    right = [own["right"][0] for own in few.values()]
    assert f"the same estimate says {min(right)} to {max(right)}" in page


def test_what_the_page_of_effects_says_was_measured() -> None:
    """FLamby's Fed-TCGA-BRCA: the numbers of the page are those of the file, and reach what was aimed at."""
    page = (ROOT / "docs" / "statistics.md").read_text()
    models = json.loads((ROOT / "experiments" / "tcga_brca.json").read_text())["models"]
    for name in ("default", "Cox's model", "fedavg of a line"):
        for score in ("mean", "pooled"):
            value, (low, high) = (models[name][score][word] for word in ("value", "interval"))
            assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in page
            low, high = models[name][score]["interval of default less this"]
            assert low <= 0.0 <= high
    assert models["default"]["mean"]["value"] >= 0.821
    assert models["default"]["pooled"]["value"] >= 0.849


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


ROUND, PART = "algorithms.ffgb_posterior:FFGBPosterior.round", "core.gradients:GradientOf.part"
OTHERWISE = {
    "features": {},
    "trees": {ROUND: "algorithms.trees_shared:TreesShared.round", PART: "core.histograms:HistogramsOf.part"},
    "auto": {ROUND: "algorithms.blended:Blended.round", PART: "core.histograms:HistogramsOf.part"},
}
"""Steps that differ by learner, as the page says."""


@pytest.mark.parametrize("learner", OTHERWISE)
def test_a_row_takes_the_steps_of_the_page_in_their_order(learner: str, tmp_path: Path) -> None:
    """They end in this order; three of them, which hold the next steps, begin in it."""
    pytest.importorskip("cryptography")
    page = (ROOT / "docs" / "one-row.md").read_text()
    for step in OTHERWISE[learner].values():
        module, _, function = step.partition(":")
        assert re.search(rf"`{function}`\s+in\s+`{module.replace('.', '/')}\.py`", page)
    steps = [OTHERWISE[learner].get(step, step) for step in steps_of_one_row()]
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
