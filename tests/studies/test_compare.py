"""Comparisons: the table adds up, budgets are kept, and what is there is not run again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffgb.cli.studies import _compared
from ffgb.core.moments import MAGNITUDES
from ffgb.errors import FFGBError
from ffgb.learners.mlp import MLP
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate
from ffgb.studies import plots
from ffgb.studies.compare import Budget, Method, compare

BASE = Config(data="wine", clients=3)


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
        folder = tmp_path / method["method"].replace(":", "-") / "0"
        # a run that its budget ends has ended: it can be evaluated, and has a report
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["rounds"] == len(run["rounds"]) + 1 == json.loads((folder / "config.json").read_text())["rounds"]
        assert (folder / "model.safetensors").exists()
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")}
    assert compare(methods, BASE, limit, tmp_path, seeds=1, unit=1000, tuned=False) == found
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("metrics.jsonl")} == before
    more = Budget(limit.kind, 2 * limit.amount)
    longer = compare(methods, BASE, more, tmp_path, seeds=1, unit=1000, tuned=False)
    for method, old in zip(longer["methods"], found["methods"], strict=True):
        new = method["runs"][0]["rounds"]
        assert len(new) > len(old["runs"][0]["rounds"])
        assert new[0] == old["runs"][0]["rounds"][0]
        summary = json.loads((tmp_path / method["method"].replace(":", "-") / "0" / "summary.json").read_text())
        assert summary["rounds"] == len(new) + 1  # the model is that of the longer run


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


def test_step_sizes_are_tuned_by_the_same_rule_and_remembered(tmp_path: Path) -> None:
    methods = [Method.read("fedavg"), Method.read("ffgb")]
    found = compare(methods, BASE, Budget("rounds", 3), tmp_path, seeds=1)
    fedavg, ffgb = found["methods"]
    tuned = json.loads((tmp_path / "fedavg-mlp" / "tuned.json").read_text())
    assert fedavg["step_size"] == tuned["step_size"] > 0
    assert ffgb["step_size"] is None  # it searches in every round
    assert (fedavg["edge"], fedavg["tuning_rounds"]) == (tuned["edge"], tuned["rounds"])
    assert not (tmp_path / "fedavg-mlp" / "tuned").exists()
    config = json.loads((tmp_path / "fedavg-mlp" / "0" / "config.json").read_text())
    assert config["step_size"] == tuned["step_size"]


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


def test_budgets_of_one_kind_and_then_another(tmp_path: Path) -> None:
    def rounds(budget: str) -> int:
        method = Method.read("fedavg")
        found = compare([method], BASE, Budget.read(budget), tmp_path, seeds=1, unit=1000, tuned=False)
        return len(found["methods"][0]["runs"][0]["rounds"])

    some, more = rounds("models=20"), rounds("models=40")
    assert rounds("rounds=3") == 3
    assert rounds("models=20") == some
    assert rounds("models=80") > more > some > 3


def test_a_round_of_mime_is_two_exchanges(tmp_path: Path) -> None:
    methods = [Method.read("mime"), Method.read("fedavg")]
    found = compare(methods, BASE, Budget("rounds", 3), tmp_path, seeds=1, unit=1000, tuned=False)
    mime, fedavg = (m["runs"][0]["rounds"] for m in found["methods"])
    assert [line["rounds"] for line in mime] == [0.5, 1, 1.5, 2, 2.5, 3]
    assert [line["rounds"] for line in fedavg] == [1, 2, 3]
    assert json.loads((tmp_path / "mime-mlp" / "0" / "summary.json").read_text())["rounds"] == 3
    longer = compare(methods, BASE, Budget("models", 40), tmp_path, seeds=1, unit=1000, tuned=False)
    last = longer["methods"][0]["runs"][0]["rounds"][-1]
    assert last["rounds"] > 3
    assert last["rounds"].is_integer()  # whole rounds only
    assert last["models"] <= 40


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


def test_a_tuned_step_that_diverges_is_halved_for_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods, folder = [Method.read("fedavg"), Method.read("ffgb:tree")], tmp_path / "fedavg-mlp"
    compare(methods, BASE, Budget("rounds", 1), tmp_path, seeds=1)
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


def test_one_exchange_for_all_rounds_is_of_so_many_rounds(tmp_path: Path) -> None:
    base, methods = Config(data="diabetes", clients=3), [Method.read("ffgb-l:linear")]

    def last(rounds: int, folder: str) -> float:
        found = compare(methods, base, Budget("rounds", rounds), tmp_path / folder, seeds=1, tuned=False)
        rmse: float = found["methods"][0]["mean"]["test_rmse"]
        return rmse

    assert last(8, "a") != last(2, "b")
    assert last(2, "a") == last(2, "b")
    assert last(8, "b") == last(8, "c")


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
    command = [sys.executable, "-m", "ffgb", "compare", "ffgb", "fedavg", "--data", "wine", "--clients", "3"]
    options = ["--budget", "rounds=2", "--seeds", "1", "--no-tune", "--out", str(tmp_path / "c")]
    result = subprocess.run([*command, *options], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "fedavg:mlp" in result.stdout
    assert (tmp_path / "c" / "compare.png").stat().st_size < 200_000
    alone = subprocess.run([*command[:5], "--out", str(tmp_path / "d")], capture_output=True, text=True)
    assert (alone.returncode, "two methods or more" in alone.stderr) == (2, True)
