"""Step sizes in a comparison: tuned by one rule, and what becomes of those that diverge."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ffgb.cli.studies import _compared
from ffgb.studies import plots
from ffgb.studies.compare import Budget, Method, compare
from tests.studies.comparisons import BASE


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, one of which is tuned."""
    folder = tmp_path_factory.mktemp("tuned")
    compare([Method.read("fedavg"), Method.read("ffgb")], BASE, Budget("rounds", 3), folder, seeds=1)
    return folder


def test_step_sizes_are_tuned_by_the_same_rule_and_remembered(tuned: Path) -> None:
    folder = tuned
    fedavg, ffgb = json.loads((folder / "compare.json").read_text())["methods"]
    race = json.loads((folder / "fedavg-mlp" / "tuned.json").read_text())
    assert fedavg["step_size"] == race["step_size"] > 0
    assert ffgb["step_size"] is None  # it searches in every round
    assert (fedavg["edge"], fedavg["tuning_rounds"]) == (race["edge"], race["rounds"])
    assert not (folder / "fedavg-mlp" / "tuned").exists()
    config = json.loads((folder / "fedavg-mlp" / "0" / "config.json").read_text())
    assert config["step_size"] == race["step_size"]


def test_a_method_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = replace(BASE, step_size=1e6)
    methods = [Method.read("fedavg"), Method.read("ffgb:tree")]
    for _ in range(2):  # and it is the same when it is run again
        found = compare(methods, wild, Budget("rounds", 3), tmp_path, seeds=2, tuned=False)
        fedavg, trees = found["methods"]
        assert (fedavg["diverged"], fedavg["mean"], fedavg["spread"]) == (2, None, None)
        assert trees["mean"]["rounds"] == 3
    pytest.importorskip("matplotlib")
    plots.compare(tmp_path / "c.png", found)


def test_a_tuned_step_that_diverges_is_halved_for_every_seed(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods, folder = [Method.read("fedavg"), Method.read("ffgb:tree")], tmp_path / "fedavg-mlp"
    shutil.copytree(tuned, tmp_path, dirs_exist_ok=True)
    race = json.loads((folder / "tuned.json").read_text())

    def tell(step: float) -> None:
        """As if that had been found best."""
        (folder / "tuned.json").write_text(json.dumps(race | {"step_size": step, "edge": True, "halved": 0}))
        for run in folder.glob("[0-9]*"):
            shutil.rmtree(run)

    tell(4.0)
    found = compare(methods, BASE, Budget("rounds", 4), tmp_path, seeds=2)
    fedavg, trees = found["methods"]
    assert fedavg["halved"] >= 1
    assert (fedavg["diverged"], fedavg["edge"], fedavg["mean"]["rounds"]) == (0, False, 4)
    assert fedavg["step_size"] == 4.0 / 2 ** fedavg["halved"]
    configs = [json.loads(file.read_text()) for file in sorted(folder.glob("*/config.json"))]
    assert [c["step_size"] for c in configs] == [fedavg["step_size"]] * 2
    assert (trees["halved"], trees["mean"]["rounds"]) == (0, 4)
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")}
    assert compare(methods, BASE, Budget("rounds", 4), tmp_path, seeds=2) == found
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")} == before
    step = _compared(fedavg)["step size"]
    assert step == f"{fedavg['step_size']:g} (4 diverged)"
    # not for ever
    monkeypatch.setattr("ffgb.studies.compare.HALVINGS", 1)
    tell(1e9)
    fedavg, _ = compare(methods, BASE, Budget("rounds", 4), tmp_path, seeds=1)["methods"]
    assert (fedavg["halved"], fedavg["diverged"], fedavg["mean"]) == (1, 1, None)
