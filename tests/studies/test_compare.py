"""Comparisons: the table adds up, budgets are kept, and what is there is not run again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffgb.core.moments import MAGNITUDES
from ffgb.errors import FFGBError
from ffgb.learners.mlp import MLP
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate
from ffgb.studies.compare import Budget, Method, compare
from tests.forks import command
from tests.studies.comparisons import BASE, metrics


def test_the_table_adds_up(tmp_path: Path) -> None:
    methods = [Method.read(m) for m in ("ffgb", "fedavg", "scaffold")]
    found = compare(methods, BASE, Budget("rounds", 6), tmp_path, seeds=2, unit=1000, tuned=False)
    assert json.loads((tmp_path / "compare.json").read_text()) == json.loads(json.dumps(found))
    by_name = {m["method"]: m for m in found["methods"]}
    assert list(by_name) == ["ffgb:features", "fedavg:mlp", "scaffold:mlp"]
    size = MLP.hidden  # the paper's sizes
    parameters = 13 * size[0] + size[0] + size[0] * size[1] + size[1] + size[1] * 3 + 3
    # orders of magnitude and moments up; down the questions' centres and bounds, and the job's own means and scales
    setup = 13 * (len(MAGNITUDES) + 2) + 13 * (1 + 2) + 2 * 13
    for name, arrays in (("fedavg:mlp", 1), ("scaffold:mlp", 2)):
        for run in by_name[name]["runs"]:
            assert len(run["rounds"]) == 6
            exchanged = run["rounds"][-1]["models"] * 1000
            assert exchanged == pytest.approx(6 * 2 * arrays * parameters + setup, abs=1e-6)
            files = list((tmp_path / name.replace(":", "-") / str(run["seed"])).iterdir())
            assert {"config.json", "metrics.jsonl", "model.safetensors"} <= {f.name for f in files}
            lines = [json.loads(line) for line in metrics(tmp_path, name, run["seed"])]
            assert run["rounds"][-1]["bytes"] == lines[-1]["bytes_up"] + lines[-1]["bytes_down"]
            seconds = sum(line["seconds"] for line in lines) + lines[0]["setup_seconds"]
            assert run["rounds"][-1]["seconds"] == pytest.approx(seconds)
    mean = by_name["fedavg:mlp"]["mean"]["test_accuracy"]
    assert mean == pytest.approx(sum(r["rounds"][-1]["test_accuracy"] for r in by_name["fedavg:mlp"]["runs"]) / 2)


def test_a_folder_is_of_one_comparison(tmp_path: Path) -> None:
    methods = [Method.read("fedavg"), Method.read("ffgb")]
    options: dict[str, Any] = {"seeds": 1, "tuned": False}
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
    with pytest.raises(FFGBError, match="seed 0, not 1"):  # which step sizes are tuned at
        compare(methods, replace(BASE, seed=1), Budget("rounds", 2), tmp_path, **options)
    with pytest.raises(FFGBError, match="tuned False, not True"):
        compare(methods, BASE, Budget("rounds", 2), tmp_path, seeds=1)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(FFGBError, match="something else"):
        compare(methods, BASE, Budget("rounds", 2), tmp_path, **options)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    for text in ("models", "models=", "models=-1", "time=3", "rounds=nan", "rounds=2.5"):
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


def test_all_methods_weight_clients_by_their_rows(tmp_path: Path) -> None:
    methods = [Method.read("ffgb:tree"), Method.read("fedavg")]
    compare(methods, BASE, Budget("rounds", 1), tmp_path, seeds=1, tuned=False)
    configs = [json.loads(file.read_text()) for file in tmp_path.glob("*/0/config.json")]
    assert [config["client_weights"] for config in configs] == ["size", "size"]


def test_files_without_enough_rows_are_refused_and_others_can_be_evaluated_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("few", 3), ("many", 40)):
        for site in "ab":
            lines = [f"{j % 7},{j % 5},{'yes' if j % 2 else 'no'}" for j in range(rows)]
            Path(f"{name}-{site}.csv").write_text("\n".join(["u,v,y", *lines]) + "\n")
    options: dict[str, Any] = {"seeds": 1, "tuned": False}
    few, many = (Config(data=(f"{name}-a.csv", f"{name}-b.csv"), target="y") for name in ("few", "many"))
    with pytest.raises(FFGBError, match="too few rows"):
        compare([Method.read("fedavg")], few, Budget("rounds", 1), tmp_path / "c", **options)
    compare([Method.read("fedavg")], many, Budget("rounds", 1), tmp_path / "d", **options)
    monkeypatch.chdir(tmp_path / "d")
    assert "all" in evaluate(Run.open(tmp_path / "d" / "fedavg-mlp" / "0"))


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    method = Method.read("fedavg")
    for wrong in (replace(BASE, clients=1000), replace(BASE, similarity=7.0)):
        with pytest.raises(FFGBError):
            compare([method], wrong, Budget("rounds", 1), tmp_path / "c", seeds=1, tuned=False)
        assert not (tmp_path / "c").exists()
    with pytest.raises(FFGBError, match="no learner 'foo'"):
        compare([Method.read("fedavg:foo")], BASE, Budget("rounds", 1), tmp_path / "c", seeds=1, tuned=False)
    assert not (tmp_path / "c").exists()


def test_the_command_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["compare", "ffgb", "fedavg", "--data", "wine", "--clients", "3"]
    options = ["--budget", "rounds=2", "--seeds", "1", "--no-tune", "--out", str(tmp_path / "c")]
    result = command([*words, *options])
    assert result.returncode == 0, result.stderr
    assert "fedavg:mlp" in result.stdout
    assert (tmp_path / "c" / "compare.png").stat().st_size < 200_000
    alone = command([*words[:2], "--out", tmp_path / "d"])
    assert (alone.returncode, "two methods or more" in alone.stderr) == (2, True)
