"""The run directory: an interrupted run goes on to the same bits, whatever moment it was stopped at."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.catalogue import ALGORITHMS
from ffgb.errors import FFGBError
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.model import Model
from ffgb.runs.training import train

SMALL = {"data": ("wine",), "clients": 5, "rounds": 5, "oracle_steps": 20, "mu": 0.01, "participation": 3}
FIELDS = {
    "round", "train_loss", "test_loss", "test_accuracy", "parameters_up", "parameters_down", "models_up",
    "models_down", "bytes_up", "bytes_down", "gamma_min", "gamma_median", "seconds",
}  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without its seconds, which differ from run to run."""
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "setup_seconds")}
        for line in (path / "metrics.jsonl").read_text().splitlines()
    ]


def same(a: Path, b: Path) -> None:
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert lines(a) == lines(b)
    summaries = [json.loads((p / "summary.json").read_text()) for p in (a, b)]
    for summary in summaries:
        del summary["seconds_total"]
    assert summaries[0] == summaries[1]


@pytest.mark.parametrize(
    ("algorithm", "learner"),
    [
        *(("ffgb", learner) for learner in ("features", "linear", "tree", "mlp")),
        *(("ffgb-c", learner) for learner in ("features", "tree", "mlp")),
        *(("ffgb-l", learner) for learner in ("features", "mlp")),
        *((algorithm, "mlp") for algorithm in ("fedavg", "fedprox", "scaffold", "mime")),
        ("fedavg", "features"),
    ],
)
def test_a_run_stopped_after_any_round_goes_on_to_the_same_bits(algorithm: str, learner: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = SMALL | ({} if algorithm in ("ffgb", "ffgb-c") else {"mu": None})
    settings |= {"data": ("diabetes",)} if algorithm == "ffgb-l" else {}
    config = Config(algorithm=algorithm, learner=learner, **settings)
    whole = train(config, tmp_path / "whole", workers=0)
    assert whole.finished
    seen: list[int] = []
    first = train(
        config,
        tmp_path / "broken",
        workers=0,
        on_round=lambda m: seen.append(m["round"]),
        should_stop=lambda: len(seen) == 2,
    )
    assert not first.finished
    assert not (tmp_path / "broken" / "model.safetensors").exists()
    again = train(config, tmp_path / "broken", resume=True, workers=0)
    assert again.finished
    same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("learner", ["features", "linear", "mlp", "tree"])
def test_what_was_chosen_once_is_chosen_again(algorithm: str, learner: str) -> None:
    """A run is resumed with its choices made: none of them may be refused as one that the method has no use for."""
    config = Config(data="diabetes", clients=3, algorithm=algorithm, learner=learner)
    dataset = load_data(config)
    if learner == "tree" and algorithm not in ("ffgb", "ffgb-c"):
        with pytest.raises(FFGBError):
            config.resolved(dataset)
        return
    chosen = config.resolved(dataset)
    assert chosen.resolved(dataset) == chosen
    assert Config.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


@pytest.mark.parametrize("settings", [{"oracle_steps": 3}, {"algorithm": "mime", "augment": True}])
def test_a_run_of_convolutional_nets_on_image_files_goes_on_to_the_same_bits(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for name, rows in (("a", 30), ("b", 50)):
        x = rng.integers(0, 255, (rows, 1, 16, 16)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=rng.integers(0, 2, rows))
    files = (str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    config = Config(data=files, learner="cnn", rounds=3, local_steps=2, **settings)
    train(config, tmp_path / "whole", workers=0)
    train(config, tmp_path / "broken", workers=0, should_stop=lambda: (tmp_path / "broken").exists())
    train(config, tmp_path / "broken", workers=2, resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(("learner", "workers"), [("features", "0"), ("tree", "2")])
def test_kill_minus_nine_loses_at_most_the_round_in_progress(learner: str, workers: str, tmp_path: Path) -> None:
    """A real process, killed again and again at arbitrary moments, then resumed to the end."""
    options = ["--data", "digits", "--clients", "6", "--rounds", "8", "--learner", learner, "--workers", workers]
    command = [sys.executable, "-m", "ffgb", "train", "--json"]
    subprocess.run([*command, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    broken, kills = tmp_path / "broken", 0
    while not (broken / "summary.json").exists():
        resume = ["--resume"] if (broken / "config.json").exists() else []
        process = subprocess.Popen([*command, *options, *resume, "--out", str(broken)], stdout=subprocess.DEVNULL)
        before = len(lines(broken)) if (broken / "metrics.jsonl").exists() else 0
        while process.poll() is None and kills < 4:  # let it do a round or so, then kill it wherever it is
            time.sleep(0.003)
            if (broken / "metrics.jsonl").exists() and len(lines(broken)) > before:
                time.sleep(0.004 * kills)
                process.kill()
                kills += 1
        assert process.wait() in (0, -signal.SIGKILL)
    assert kills >= 1
    same(tmp_path / "whole", broken)


def test_the_directory_holds_what_the_contract_says(tmp_path: Path) -> None:
    result = train(Config(**SMALL), tmp_path / "run", workers=0)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    files = {"config.json", "metrics.jsonl", "model.safetensors", "summary.json", "clients.json", "report.html"}
    assert names == files | {"checkpoint", "fit.json", "conformal.json"}  # the last two: of rows held out here
    assert not list((tmp_path / "run").rglob("*.tmp"))
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(written) == 5
    assert all(line.keys() >= FIELDS for line in written)
    assert [line["round"] for line in written] == [1, 2, 3, 4, 5]
    summary = result.run.summary  # type: ignore[union-attr]
    assert summary["communication_models"] == written[-1]["models_up"] + written[-1]["models_down"]
    for name, value in {"algorithm": "ffgb", "learner": "features", "data": "wine", "clients": 5, "rounds": 5}.items():
        assert summary[name] == value
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["versions"].keys() >= {"ffgb", "python", "numpy"}
    assert Config.from_json(config).rounds == 5


def test_a_configuration_from_a_run_repeats_it(tmp_path: Path) -> None:
    train(Config(**SMALL), tmp_path / "a", workers=0)
    train(Config.from_json(Run.open(tmp_path / "a").config), tmp_path / "b", workers=0)
    same(tmp_path / "a", tmp_path / "b")


def test_more_rounds_can_be_asked_for_when_resuming(tmp_path: Path) -> None:
    short, long = Config(**{**SMALL, "rounds": 3}), Config(**SMALL)
    train(short, tmp_path / "a", workers=0)
    train(long, tmp_path / "a", resume=True, workers=0)
    train(long, tmp_path / "b", workers=0)
    same(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FFGBError, match="has 5 rounds already"):
        train(short, tmp_path / "a", resume=True, workers=0)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    config = Config(**SMALL)
    train(config, tmp_path / "a", workers=0, should_stop=lambda: (tmp_path / "a").exists())
    with Run.open(tmp_path / "a").locked(), pytest.raises(FFGBError, match="another process is training"):
        train(config, tmp_path / "a", resume=True, workers=0)
    assert train(config, tmp_path / "a", resume=True, workers=0).finished


def test_what_fails_before_the_first_round_is_over_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match=r"smaller --step-size|diverged"):
        train(Config(data=("diabetes",), step_size=1e300, clients=3, geometry="local"), tmp_path / "a", workers=0)
    assert not (tmp_path / "a").exists()


def test_a_site_file_that_changed_is_noticed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.csv", "b.csv"):
        rows = [f"{v:.3f},{int(v > 0)}" for v in rng.standard_normal(30)]
        (tmp_path / name).write_text("\n".join(["v,label", *rows]))
    config = Config(data=(str(tmp_path / "a.csv"), str(tmp_path / "b.csv")), target="label", rounds=2)
    train(config, tmp_path / "run", workers=0)
    assert Config.from_json(Run.open(tmp_path / "run").config).target == "label"
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text())
    with pytest.raises(FFGBError, match=r"b\.csv has changed"):
        Config.from_json(Run.open(tmp_path / "run").config)


def test_metrics_that_were_cut_are_noticed(tmp_path: Path) -> None:
    config = Config(**SMALL)
    train(config, tmp_path / "a", workers=0)
    for folder in ("a", "a/checkpoint"):
        (tmp_path / folder / "metrics.jsonl").write_text("")
    with pytest.raises(FFGBError, match="0 rounds of 5"):
        train(config, tmp_path / "a", resume=True, workers=0)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    config = Config(**SMALL)
    train(config, tmp_path / "a", workers=0)
    for file in (tmp_path / "a" / "checkpoint").glob("f-*.safetensors"):
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(FFGBError, match=r"checkpoint in .* is damaged"):
        train(config, tmp_path / "a", resume=True, workers=0)


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FFGBError, match="not an empty directory"):
        train(Config(**SMALL), tmp_path, workers=0)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("data", ["wine", "breast_cancer", "diabetes"])
@pytest.mark.parametrize("learner", ["features", "tree"])
def test_the_saved_model_predicts_what_the_clients_saw(data: str, learner: str, tmp_path: Path) -> None:
    from ffgb.data import load

    result = train(Config(data=(data,), learner=learner, clients=4, rounds=3), tmp_path / "run", workers=0)
    model, dataset = Model.load(tmp_path / "run"), load(data)
    scores = model.score(dataset.x_test, dataset.y_test)
    name = "rmse" if data == "diabetes" else "accuracy"
    assert scores[name] == pytest.approx(result.summary[f"test_{name}"], rel=1e-5)
    assert scores["loss"] == pytest.approx(result.summary["test_loss"], rel=1e-4)
    predicted = model.predict(dataset.x_test)
    if data == "diabetes":
        assert np.sqrt(np.mean((predicted - dataset.y_test) ** 2)) == pytest.approx(scores["rmse"])
    else:
        expected = np.asarray(dataset.classes)[dataset.y_test]
        assert np.mean(predicted == expected) == pytest.approx(scores["accuracy"])
        np.testing.assert_allclose(model.predict_proba(dataset.x_test).sum(axis=1), 1.0)
    with pytest.raises(FFGBError, match="was trained on points of"):
        model.predict(dataset.x_test[:, :-1])


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match="there is no model"):
        Model.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"hello, this is no model")
    with pytest.raises(FFGBError, match="not a model that ffgb wrote"):
        Model.load(tmp_path)
