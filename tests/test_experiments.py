"""The scripts of experiments/ still run what the committed results were made with, whatever the defaults are today."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ffgb import Config
from ffgb.runs.config import load_data
from tests.conftest import ROOT

FOLDER = ROOT / "experiments"
IMAGES = ("cifar10", "mnist", "fashion-mnist")
"""They take long to load, and a default for tables does not touch them."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"experiments_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resolved(settings: dict[str, Any]) -> dict[str, Any]:
    config = Config(**settings)
    found: dict[str, Any] = json.loads(json.dumps(config.resolved(load_data(config)).to_json()))
    return found


def test_the_shared_geometry_has_the_settings_of_its_files(real_data: Path) -> None:
    compared = 0
    for name, settings in script("shared").RUNS.items():
        file = FOLDER / "shared" / f"{name}.json"
        if file.exists() and settings.get("data", "digits") not in IMAGES and settings.get("seed", 0) == 0:
            then, now = json.loads(file.read_text())["config"], resolved(settings)
            differ = {key: (then[key], now.get(key)) for key in then if key != "versions" and then[key] != now.get(key)}
            assert not differ, f"{name}: {differ}"
            compared += 1
    assert compared == 9


def test_algorithms_for_clients_that_differ_have_the_learners_of_their_file() -> None:
    module, compared = script("heterogeneous"), 0
    for line in map(json.loads, (FOLDER / "heterogeneous" / "results.jsonl").read_text().splitlines()):
        settings, _ = module.RUNS[line["name"]]
        if settings["data"] not in (*IMAGES, "cal_housing") and line["seed"] == 0:
            assert resolved(settings)["learner"] == line["summary"]["learner"], line["name"]
            assert settings.items() >= line["settings"].items()
            compared += 1
    assert compared == 18


@pytest.mark.parametrize("study", ["attackers", "precision"])
def test_studies_of_a_shared_geometry_name_its_learner(study: str) -> None:
    """Of a table the default would be another."""
    module = importlib.import_module(f"ffgb.studies.reproduce.{study}")
    chosen = {**module.BASES["full"], **next(iter(module.LEARNERS.values()))}
    assert (chosen["learner"], chosen["least"]) == ("features", 1)
