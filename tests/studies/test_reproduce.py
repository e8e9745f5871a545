"""Experiments: their parts are computed once, go on where they were stopped, and give what is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.data import Dataset
from ffgb.runs.learners import make_learner
from ffgb.runs.training import train
from ffgb.studies.reproduce import Recall, ablations, experiments, figures, niid, reproduce
from ffgb.studies.reproduce.figures import Scale, Study
from ffgb.studies.reproduce.runs import config_of, curve, run
from tests.conftest import ROOT

TINY: Scale = {"oracle_steps": 20, "clients": 4, "fedavg": 12, "batch": 0.2, "seeds": 2, "tuned_at": None}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 4 of digits, in seconds."""
    monkeypatch.setitem(figures.STUDIES, "mnist", Study("mlp", {0.1: 2}, 5, 0.02))
    monkeypatch.setattr(figures, "SPLITS", {0.1: 10.0})
    monkeypatch.setattr(figures, "BUDGET", 3 * 2 * figures.CLIENTS)
    monkeypatch.setattr(figures, "TUNING", {"FFGB": 1, "FedAvg": 1})


def test_a_figure_runs_every_method_on_one_split(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures.STUDIES, "digits", figures.STUDIES["mnist"])
    said: list[str] = []
    recall = Recall(tmp_path / "parts", said.append)
    results = figures.against_fedavg("digits", {"small": TINY}, "small", recall)
    (panel,) = results["panels"]
    labels = [c["label"] for c in panel["curves"]]
    assert labels == ["FFGB, as printed", "FFGB, tuned", "FedAvg, as printed", "FedAvg, tuned", "closed family"]
    ffgb, _, fedavg, tuned, closed = panel["curves"]
    # models in units of the paper's net, which digits' is smaller than: a client's own traffic, both ways
    assert len(ffgb["seeds"]) == 2
    assert ffgb["seeds"][0]["rounds"] == [1, 2, 3]
    size = 64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    assert ffgb["seeds"][0]["models"][-1] == pytest.approx(3 * 4 * 2 * size / 26_506, rel=0.05)
    assert fedavg["seeds"][0]["models"][-1] == pytest.approx(2 * 12 * size / 26_506, rel=0.05)
    assert tuned["seeds"][0]["test_accuracy"][-1] > fedavg["seeds"][0]["test_accuracy"][-1]
    assert closed["seeds"][0]["test_accuracy"][-1] > 0.95
    assert tuned["tuning"]["rounds"] > 9  # nine candidates, and more of the better ones
    assert any("closed" in text for text in said)
    said.clear()
    assert figures.against_fedavg("digits", {"small": TINY}, "small", recall) == results
    assert said == []  # nothing was computed again
    assert not [path for path in (tmp_path / "parts").iterdir() if path.is_dir()]  # runs are gone when they are done
    results |= {"experiment": "fig4", "scale": "small"}
    text = figures.table("models", results)
    assert "FedAvg, tuned" in text
    pytest.importorskip("matplotlib")
    figures.draw("models", results, tmp_path / "figure.png")
    assert 1000 < (tmp_path / "figure.png").stat().st_size < 200_000


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    config = {"data": "digits", "clients": 4, "algorithm": "fedavg", "learner": "mlp", "rounds": 6}

    class StopError(Exception):
        pass

    def stop(text: str) -> None:
        if "round 3" in text:
            raise StopError

    with pytest.raises(StopError):
        Recall(tmp_path, stop).resumable("part", run, config=config, unit=100)
    said: list[str] = []
    found = Recall(tmp_path, said.append).resumable("part", run, config=config, unit=100)
    assert next(text for text in said if "round" in text).endswith("round 4 of 6")
    whole = Recall(tmp_path / "other", said.append).resumable("part", run, config=config, unit=100)
    assert found["curve"]["test_accuracy"] == whole["curve"]["test_accuracy"]
    assert found["settings"] == {"config": config, "unit": 100}


def test_curves_keep_few_rounds_of_many() -> None:
    line = {"bytes_up": 4, "bytes_down": 4, "seconds": 0.5, "setup_seconds": 2.0}
    lines = [
        line | {"round": t, "parameters_up": t, "parameters_down": t, "test_accuracy": t / 1000} for t in range(1, 1001)
    ]
    kept = curve(lines, 1)
    assert kept["rounds"][:20] == list(range(1, 21))
    assert kept["rounds"][-1] == 1000
    assert len(kept["rounds"]) < 90
    # what a table has a column for is there, to the round: with two numbers a round, 448 of them are 224 rounds
    assert {30, 40, 50, 56, 224, 300, 448, 952} <= set(kept["rounds"])
    assert figures._at(kept, "models", 897, "test_accuracy") == 0.448
    assert kept["seconds"][-1] == 502.0
    assert kept["test_accuracy"][-1] == 1.0


@pytest.mark.parametrize("tuned_at", [None, 0.1])
def test_step_sizes_are_tuned_where_it_is_said(tuned_at: float | None) -> None:
    chosen, races = figures.CIFAR["reduced"], list[str]()
    assert (chosen["tuned_at"], figures.MNIST["full"]["tuned_at"]) == (0.1, None)

    class Asked:
        def resumable(self, part: str, compute: Any, **settings: Any) -> dict[str, Any]:
            if part.endswith("tuning"):
                races.append(part)
                assert f"-{settings['config']['similarity']:g}-" in part
            return {"step_size": 1.0, "rounds": 28, "edge": False, "curve": {}}

    figures.against_fedavg("cifar10", {"reduced": chosen | {"tuned_at": tuned_at}}, "reduced", Asked())  # type: ignore[arg-type]
    where = (0.1, tuned_at or 0.3)
    assert races == [f"cifar10-{s:g}-{method}-tuning" for s in where for method in ("ffgb", "fedavg")]


def test_a_step_size_that_diverges_is_halved_and_one_as_printed_is_told(tmp_path: Path) -> None:
    base = {"data": "wine", "clients": 3, "algorithm": "fedavg", "learner": "mlp", "rounds": 4, "local_steps": 20}
    recall = Recall(tmp_path, lambda text: None)
    wild = recall.resumable("wild", run, config=base | {"step_size": 1e9, "seed": 0}, unit=100)
    assert wild["diverged"]
    asked: list[float] = []

    class Asked:
        def resumable(self, part: str, compute: Any, *, config: dict[str, Any], **more: Any) -> dict[str, Any]:
            if part.endswith("tuning"):
                return {"step_size": 0.8, "rounds": 28, "edge": False}
            asked.append(config["step_size"] if config.get("algorithm") else 0.0)
            fine = config.get("step_size", 0.0) < 0.5 or "algorithm" not in config or config["seed"] == 0
            length = 5 if fine else 2
            curve = {name: [float(t) for t in range(length)] for name in ("rounds", "models", "test_accuracy")}
            return {"curve": curve} | ({} if fine else {"diverged": True})

    scales = {"full": figures.MNIST["full"]}
    found = figures.against_fedavg("mnist", scales, "full", Asked())  # type: ignore[arg-type]
    tuned = next(c for c in found["panels"][0]["curves"] if c["label"] == "FedAvg, tuned")
    assert tuned["config"]["step_size"] == 0.4
    assert not tuned["diverged"]
    assert [step for step in asked if step >= 0.4][:5] == [0.8, 0.8, 0.4, 0.4, 0.4]  # the second seed ended it
    text = figures.table("models", found | {"scale": "full"})
    assert "| FedAvg, tuned | 0.4 (0.8 diverged) |" in text


def test_what_diverges_at_once_is_told_in_the_table_and_the_picture(tmp_path: Path) -> None:
    seed = {"rounds": [1.0, 2.0], "models": [2.0, 4.0], "test_accuracy": [0.5, 0.75]}
    curves = [{"label": "good", "config": {"step_size": 1.0}, "diverged": False, "seeds": [seed]},
              {"label": "wild", "config": {"step_size": 9.0}, "diverged": True, "seeds": [{}]}]  # fmt: skip
    found = {"data": "digits", "settings": dict(TINY), "unit": 1, "how": "", "experiment": "fig4", "scale": "small"}
    found |= {"panels": [{"title": "s = 0.1", "curves": curves}]}
    text = figures.table("rounds", found)
    assert "| good | 1 | 50.0 | 75.0 | 75.0 | 2 |" in text
    assert "| wild | 9 (diverged) |  |  |  |  |" in text
    pytest.importorskip("matplotlib")
    figures.draw("models", found, tmp_path / "figure.png")


def test_niid_bench_has_the_net_of_its_paper() -> None:
    pytest.importorskip("torch")
    x = np.zeros((20, 3, 32, 32), np.float32)
    data = Dataset("c", "classification", x, np.arange(20) % 10, x[:5], np.arange(5), tuple("abcdefghij"), image=True)
    for name, chosen in niid.METHODS.items():
        config = config_of(niid.base("full") | chosen).resolved(data)
        family, _ = make_learner(config, data)(lambda statistic: None)
        assert family.size == 62_006, name


def test_every_experiment_has_a_small_scale() -> None:
    for name, experiment in experiments().items():
        assert {"full", "small"} <= set(experiment.scales), name


def test_distillation_is_reproduced(tmp_path: Path, real_data: Path) -> None:
    pytest.importorskip("matplotlib")
    text = reproduce("distillation", "small", tmp_path)
    found: dict[str, Any] = json.loads((tmp_path / "distillation.json").read_text())["rows"]
    assert text == (tmp_path / "distillation.md").read_text()
    assert found["none"]["learners"] == 10 * 2 * 6
    assert found["clients, K to 1, before they send"]["learners"] == 10 * 6
    for name in ("server, at the end", "clients by FedAvg, at the end", "clients by FedAvg, after every round"):
        assert found[name]["learners"] == 1
        assert found[name]["accuracy"] > 0.8
    assert (tmp_path / "distillation.png").stat().st_size < 200_000


@pytest.mark.parametrize(("row", "rounding"), [("η₀/(K(t+1)+k)", 1.0), ("kept", 3.0)])
def test_a_committed_row_is_what_the_code_gives(row: str, rounding: float) -> None:
    """`ffgb reproduce ablations --scale small --out experiments/small` made it; two of its rows are made again.

    Rounding depends on the machine's kind of processor.  A residual that is kept carries it from round to round.
    """
    committed = json.loads((ROOT / "experiments" / "small" / "ablations.json").read_text())
    expected = next(rows[row] for rows in committed["groups"].values() if row in rows)
    if row == "kept":
        again = ablations.kept(config=committed["base"] | {"local_steps": ablations.RESIDUAL_K}, unit=1)["curve"]
    else:
        again = curve(train(config_of(committed["base"] | {"step_offset": "t+1"}), workers=0).metrics, 1)
    for name in ("rounds", "models", "bytes"):
        assert again[name] == pytest.approx(expected[name], rel=1e-3), name
    for name in ("test_accuracy", "train_accuracy"):
        assert again[name] == pytest.approx(expected[name], rel=rounding * 1e-3), name
    for name in ("train_loss", "test_loss", "gamma_median"):
        assert again[name] == pytest.approx(expected[name], rel=rounding * 0.02), name
