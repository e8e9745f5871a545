"""What is done with the model of a run: `evaluate`, `predict`, `distill`, `reweight`; and learners of one's own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import ffgb, site


def test_evaluate_and_predict_use_the_model_of_a_run(tmp_path: Path) -> None:
    files = [site(tmp_path / f"{name}.csv", seed=seed) for seed, name in enumerate(("north", "south"))]
    trained = ffgb(
        "train", "--data", files[0], "--data", files[1], "--target", "outcome", "--out", tmp_path / "run", "--json"
    )
    summary = json.loads(trained.stdout)
    assert summary["clients"] == 2
    scores = json.loads(ffgb("evaluate", tmp_path / "run", "--json", cwd=tmp_path.parent).stdout)
    assert list(scores) == ["all", "north", "south"]
    assert scores["all"]["accuracy"] == pytest.approx(summary["test_accuracy"])
    new = site(tmp_path / "new.csv", rows=9, seed=7)
    assert "new" in ffgb("evaluate", tmp_path / "run", "--data", new, "--data", files[0]).stdout
    predicted = list(csv.DictReader(ffgb("predict", tmp_path / "run", new).stdout.splitlines()))
    assert len(predicted) == 9
    assert {row["prediction"] for row in predicted} <= {"yes", "no"}
    for row in predicted:
        assert float(row["probability_yes"]) + float(row["probability_no"]) == pytest.approx(1)
        assert (float(row["probability_yes"]) > 0.5) == (row["prediction"] == "yes")
    assert ffgb("predict", tmp_path / "run", new, "-o", tmp_path / "out.csv").stdout == ""
    assert (tmp_path / "out.csv").read_text().startswith("prediction,")


def test_distill_makes_one_learner_of_an_ensemble(quick: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    run = tmp_path / "ensemble"
    ffgb("train", "--learner", "mlp", "--data", "wine", "--clients", "3", "--rounds", "3", "--out", run)
    result = ffgb("distill", run, "--steps", "500")
    assert result.returncode == 0, result.stderr
    assert "nothing was exchanged" in result.stdout
    assert "rows that the run was trained on" in result.stdout
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for name in ("model.safetensors", "config.json"):
        assert "a file of the run itself" in refused("distill", run, "--steps", "1", "-o", run / name)
    assert "does not exist" in refused("reweight", run, "-o", tmp_path / "none" / "m.safetensors")
    assert "--sampled is a share" in refused("reweight", run, "--sampled", "0")
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert ffgb("predict", run / "distilled.safetensors", site(tmp_path / "x.csv")).returncode == 2  # other columns
    assert "one array already" in refused("distill", quick)
    weighted = json.loads(ffgb("reweight", run, "--rounds", "5", "--json").stdout)
    assert weighted["after"]["learners"] == weighted["before"]["learners"]
    assert weighted["after"]["loss"] < weighted["before"]["loss"]
    shown = ffgb("reweight", run, "--rounds", "5").stdout
    assert "exchanged a client" in shown
    assert "as fast" not in shown  # it has as many learners as before
    ffgb("train", "--out", run, "--resume", "--rounds", "4")
    assert not (run / "distilled.safetensors").exists()  # it was made of another model
    assert "one array" in refused("reweight", quick)
    assert "--distill-rounds is for" in refused("train", "--learner", "mlp", "--distill-rounds", "3")
    assert "trees have none" in refused("train", "--learner", "tree", "--distill", "rounds")


def test_a_learner_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef net(shape, outputs):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))\n"
        "\n\ndef narrow(shape, outputs):\n    return torch.nn.Linear(3, outputs)\n"
        "\n\ndef wide(shape, outputs):\n    return torch.nn.Linear(shape[0], outputs + 1)\n"
    )
    files = [site(tmp_path / f"{name}.csv", seed=seed) for seed, name in enumerate(("north", "south"))]
    options: list[str | Path] = ["--data", files[0], "--data", files[1], "--target", "outcome"]
    options += ["--oracle-steps", "30", "--rounds", "2", "--workers", "0"]
    trained = ffgb("train", *options, "--learner", "mine:net", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(trained.stdout)["test_accuracy"] > 0.7, trained.stderr
    refused = ffgb("predict", "run", files[0], cwd=tmp_path)
    assert refused.returncode == 2
    assert "--learner mine:net" in refused.stderr
    assert ffgb("predict", "run", files[0], "--learner", "mine:net", cwd=tmp_path).stdout.count("\n") == 41
    assert "north" in ffgb("evaluate", "run", "--learner", "mine:net", cwd=tmp_path).stdout
    for command in (("distill", "run", "--steps", "5"), ("reweight", "run", "--rounds", "2")):
        done = ffgb(*command, "--learner", "mine:net", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["before"]["learners"] > 1, done.stderr
    for name in ("narrow", "wide"):
        bad = ffgb("train", *options, "--learner", f"mine:{name}", "--out", name, cwd=tmp_path)
        assert bad.returncode == 2
        assert len(bad.stderr.strip().splitlines()) == 1, bad.stderr
        assert not (tmp_path / name).exists()


def test_evaluate_and_predict_refuse_what_is_no_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "holds no run" in refused("evaluate", tmp_path)
    assert "no model" in refused("predict", tmp_path, tmp_path / "x.csv")
