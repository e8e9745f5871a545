"""Comparisons: the table adds up, budgets are kept, and what is there is not run again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffgb.compare import Budget, Method, compare
from ffgb.config import Config
from ffgb.errors import FFGBError
from ffgb.learners.mlp import MLP

BASE = Config(data="wine", clients=3)


def test_the_table_adds_up(tmp_path: Path) -> None:
    methods = [Method.read(m) for m in ("ffgb", "fedavg", "scaffold")]
    found = compare(methods, BASE, Budget("rounds", 6), tmp_path, seeds=2, unit=1000, tuned=False)
    assert json.loads((tmp_path / "compare.json").read_text()) == json.loads(json.dumps(found))
    by_name = {m["method"]: m for m in found["methods"]}
    assert list(by_name) == ["ffgb:features", "fedavg:mlp", "scaffold:mlp"]
    size = MLP.__dataclass_fields__["hidden"].default  # the paper's sizes
    parameters = 13 * size[0] + size[0] + size[0] * size[1] + size[1] + size[1] * 3 + 3
    setup = 2 * 13 + 1  # moments up; the job's own arrays, means and scales, down: as many numbers less one
    for name, arrays in (("fedavg:mlp", 1), ("scaffold:mlp", 2)):
        for run in by_name[name]["runs"]:
            assert len(run["rounds"]) == 6
            exchanged = run["rounds"][-1]["models"] * 1000
            assert exchanged == pytest.approx(6 * 2 * arrays * parameters + 2 * setup - 1, abs=2)
            files = list((tmp_path / name.replace(":", "-") / str(run["seed"])).iterdir())
            assert {"config.json", "metrics.jsonl", "model.safetensors"} <= {f.name for f in files}
            lines = [json.loads(line) for line in _metrics(tmp_path, name, run["seed"])]
            assert run["rounds"][-1]["bytes"] == lines[-1]["bytes_up"] + lines[-1]["bytes_down"]
            seconds = sum(line["seconds"] for line in lines) + lines[0]["setup_seconds"]
            assert run["rounds"][-1]["seconds"] == pytest.approx(seconds)
    mean = by_name["fedavg:mlp"]["mean"]["test_accuracy"]
    assert mean == pytest.approx(sum(r["rounds"][-1]["test_accuracy"] for r in by_name["fedavg:mlp"]["runs"]) / 2)


def _metrics(folder: Path, name: str, seed: int) -> list[str]:
    return (folder / name.replace(":", "-") / str(seed) / "metrics.jsonl").read_text().splitlines()


@pytest.mark.parametrize("budget", ["models=20", "bytes=100000"])
def test_budgets_are_kept_and_runs_go_on(budget: str, tmp_path: Path) -> None:
    methods = [Method.read("fedavg:mlp"), Method.read("ffgb:tree")]
    limit = Budget.read(budget)
    found = compare(methods, BASE, limit, tmp_path, seeds=1, unit=1000, tuned=False)
    for method in found["methods"]:
        (run,) = method["runs"]
        assert run["rounds"][-1][limit.kind] <= limit.amount
        assert len(_metrics(tmp_path, method["method"], 0)) == len(run["rounds"]) + 1  # one more would be too much
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")}
    began = time.perf_counter()
    assert compare(methods, BASE, limit, tmp_path, seeds=1, unit=1000, tuned=False) == found
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")} == before
    more = Budget(limit.kind, 2 * limit.amount)
    longer = compare(methods, BASE, more, tmp_path, seeds=1, unit=1000, tuned=False)
    for method, old in zip(longer["methods"], found["methods"], strict=True):
        new = method["runs"][0]["rounds"]
        assert len(new) > len(old["runs"][0]["rounds"])
        assert new[0] == old["runs"][0]["rounds"][0]
    assert time.perf_counter() > began


def test_a_folder_is_of_one_comparison(tmp_path: Path) -> None:
    methods, options = [Method.read("fedavg"), Method.read("ffgb")], {"seeds": 1, "tuned": False}
    short = compare(methods[:1], BASE, Budget("rounds", 2), tmp_path, **options)
    # more methods, seeds and rounds may come
    found = compare(methods, BASE, Budget("rounds", 4), tmp_path, seeds=2, tuned=False)
    assert [len(r["rounds"]) for m in found["methods"] for r in m["runs"]] == [4, 4, 4, 4]
    assert found["methods"][0]["runs"][0]["rounds"][:2] == short["methods"][0]["runs"][0]["rounds"]
    assert compare(methods[:1], BASE, Budget("rounds", 2), tmp_path, **options) == short
    # results of other settings must not be told as those of today
    for other, what in ((replace(BASE, data=("digits",)), "data"), (replace(BASE, clients=4), "clients 3, not 4")):
        with pytest.raises(FFGBError, match=what):
            compare(methods, other, Budget("rounds", 2), tmp_path, **options)
    with pytest.raises(FFGBError, match="tuned False, not True"):
        compare(methods, BASE, Budget("rounds", 2), tmp_path, seeds=1)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(FFGBError, match="something else"):
        compare(methods, BASE, Budget("rounds", 2), tmp_path, **options)


def test_step_sizes_are_tuned_by_the_same_rule_and_remembered(tmp_path: Path) -> None:
    methods = [Method.read("fedavg"), Method.read("ffgb")]
    found = compare(methods, BASE, Budget("rounds", 3), tmp_path, seeds=1)
    fedavg, ffgb = found["methods"]
    tuned = json.loads((tmp_path / "fedavg-mlp" / "tuned.json").read_text())
    assert fedavg["step_size"] == tuned["step_size"] > 0
    assert ffgb["step_size"] is None  # it searches in every round
    assert not (tmp_path / "fedavg-mlp" / "tuning").exists()
    config = json.loads((tmp_path / "fedavg-mlp" / "0" / "config.json").read_text())
    assert config["step_size"] == tuned["step_size"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    for text in ("models", "models=", "models=-1", "time=3", "rounds=nan"):
        with pytest.raises(FFGBError, match="--budget"):
            Budget.read(text)
    with pytest.raises(FFGBError, match="no algorithm 'sgd'"):
        Method.read("sgd")
    twice = [Method.read("ffgb"), Method.read("ffgb:features")]
    with pytest.raises(FFGBError, match="named twice"):
        compare(twice, BASE, Budget("rounds", 1), tmp_path)
    with pytest.raises(FFGBError, match="no round within"):
        compare([Method.read("fedavg")], BASE, Budget("bytes", 10), tmp_path, seeds=1, tuned=False)
    with pytest.raises(FFGBError, match="trees have none"):
        compare([Method.read("fedavg:tree")], BASE, Budget("rounds", 1), tmp_path / "new", seeds=1, tuned=False)


def test_the_command_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "ffgb", "compare", "ffgb", "fedavg", "--data", "wine", "--clients", "3"]
    options = ["--budget", "rounds=2", "--seeds", "1", "--no-tune", "--out", str(tmp_path / "c")]
    result = subprocess.run([*command, *options], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "fedavg:mlp" in result.stdout
    assert (tmp_path / "c" / "compare.png").stat().st_size < 200_000
    alone = subprocess.run([*command[:5], "--out", str(tmp_path / "d")], capture_output=True, text=True)
    assert (alone.returncode, "two methods or more" in alone.stderr) == (2, True)
