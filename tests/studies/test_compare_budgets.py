"""Budgets of a comparison: how many rounds, models or bytes a method has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffgb.runs.config import Config
from ffgb.studies.compare import Budget, Method, compare
from tests.studies.comparisons import BASE, metrics


@pytest.mark.parametrize("budget", ["models=20", "bytes=100000"])
def test_budgets_are_kept_and_runs_go_on(budget: str, tmp_path: Path) -> None:
    methods = [Method.read("fedavg:mlp"), Method.read("ffgb:tree")]
    limit = Budget.read(budget)
    found = compare(methods, BASE, limit, tmp_path, seeds=1, unit=1000, tuned=False)
    for method in found["methods"]:
        (run,) = method["runs"]
        assert run["rounds"][-1][limit.kind] <= limit.amount
        assert len(metrics(tmp_path, method["method"], 0)) == len(run["rounds"]) + 1  # one more would be too much
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


def test_one_exchange_for_all_rounds_is_of_so_many_rounds(tmp_path: Path) -> None:
    base, methods = Config(data="diabetes", clients=3), [Method.read("ffgb-l:linear")]

    def last(rounds: int, folder: str) -> float:
        found = compare(methods, base, Budget("rounds", rounds), tmp_path / folder, seeds=1, tuned=False)
        rmse: float = found["methods"][0]["mean"]["test_rmse"]
        return rmse

    assert last(8, "a") != last(2, "b")
    assert last(2, "a") == last(2, "b")
    assert last(8, "b") == last(8, "c")
