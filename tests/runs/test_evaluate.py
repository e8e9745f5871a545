"""Using a finished run: the scores of each site are those of its own rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate, predict
from ffgb.runs.model import Model
from ffgb.runs.training import train


def site(path: Path, rows: int, noise: float, seed: int) -> Path:
    """A table whose label is told by its first column, but for some noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 2))
    y = np.where(x[:, 0] + noise * rng.standard_normal(rows) > 0, "yes", "no")
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}).to_csv(path, index=False)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    files = [site(tmp_path / f"{k}.csv", 60 + 20 * k, noise, k) for k, noise in enumerate((0.0, 1.0, 3.0))]
    train(Config(data=tuple(map(str, files)), target="y", rounds=3, learner="linear"), tmp_path / "run", workers=0)
    return Run.open(tmp_path / "run")


def test_each_site_is_scored_on_its_own_test_rows(run: Run) -> None:
    """The scores of a site equal the model's scores on that site's rows."""
    scores, data, model = evaluate(run), load_data(Config.from_json(run.config)), Model.load(run.path)
    assert list(scores) == ["all", "0", "1", "2"]
    for k, name in enumerate(data.sites):
        own = np.asarray(data.site_test == k)
        assert scores[name] == {"rows": own.sum(), **model.score(data.x_test[own], data.y_test[own])}
    assert scores["all"] == {"rows": len(data.y_test), **model.score(data.x_test, data.y_test)}
    assert scores["0"]["loss"] < scores["1"]["loss"] < scores["2"]["loss"]  # as noisy as they are
    means = [scores[name]["rows"] * scores[name]["loss"] for name in data.sites]
    assert scores["all"]["loss"] == pytest.approx(sum(means) / len(data.y_test))


def test_new_files_are_scored_one_by_one(run: Run, tmp_path: Path) -> None:
    """Each file has the scores that it has alone, and they follow from its predictions."""
    files = [str(site(tmp_path / f"{name}.csv", rows, noise, 9)) for name, rows, noise in (("c", 40, 0), ("d", 90, 3))]
    both = evaluate(run, files)
    assert [(name, score["rows"]) for name, score in both.items()] == [("all", 130), ("c", 40), ("d", 90)]
    for name, file in zip("cd", files, strict=True):
        assert both[name] == evaluate(run, [file])["all"]
        frame, model = predict(Model.load(run.path), Path(file)), Model.load(run.path)
        truth = pd.read_csv(file)["y"].to_numpy()
        assert both[name]["accuracy"] == pytest.approx((frame["prediction"] == truth).mean())
        chance = frame[[f"probability_{name}" for name in model.classes]].to_numpy()
        own = chance[np.arange(len(truth)), [model.classes.index(label) for label in truth]]
        assert both[name]["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-6)


def weighted_site(path: Path, rows: int, seed: int, target: str) -> str:
    """A table whose second half is noise, with weights 0 … 3 that favour the first half."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 2))
    noise = np.where(np.arange(rows) < rows // 2, 0.1, 3.0)
    y = x[:, 0] + noise * rng.standard_normal(rows)
    w = np.where(np.arange(rows) < rows // 2, rng.integers(1, 4, rows), rng.integers(0, 2, rows))
    labels = np.where(y > 0, "yes", "no") if target == "class" else y
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "w": w, "y": labels}).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("target", ["class", "number"])
def test_rows_count_as_much_as_they_weigh(tmp_path: Path, target: str) -> None:
    """Whole weights count as repeated rows: in all, site by site, in files, and as during training."""
    files = tuple(weighted_site(tmp_path / f"{k}.csv", 120, k, target) for k in range(2))
    config = Config(data=files, target="y", weights="w", rounds=3, learner="linear")
    result = train(config, tmp_path / "run", workers=0)
    run, data, model = Run.open(tmp_path / "run"), load_data(config), result.model
    assert data.site_test is not None
    assert data.weights_test is not None
    scores = evaluate(run)
    assert list(scores) == ["all", "0", "1"]
    for name, own in (("all", data.site_test >= 0), ("0", data.site_test == 0), ("1", data.site_test == 1)):
        rows = np.repeat(np.flatnonzero(own), data.weights_test[own].astype(int))
        repeated = model.score(data.x_test[rows], data.y_test[rows])
        assert scores[name] == {"rows": own.sum(), **{k: pytest.approx(v) for k, v in repeated.items()}}
        plain = model.score(data.x_test[own], data.y_test[own])
        assert all(abs(plain[k] - repeated[k]) > 1e-3 for k in plain)
    name = "accuracy" if target == "class" else "rmse"
    assert scores["all"][name] == pytest.approx(result.summary[f"test_{name}"])
    assert run.clients is not None
    assert [client["test"][name] for client in run.clients["clients"]] == [scores[k][name] for k in "01"]
    new = pd.read_csv(weighted_site(tmp_path / "new.csv", 90, 9, target))
    new.loc[new.index.repeat(new["w"])].assign(w=1).to_csv(tmp_path / "repeated.csv", index=False)
    weighed, copies = (evaluate(run, [str(tmp_path / f"{k}.csv")])["all"] for k in ("new", "repeated"))
    assert weighed == pytest.approx(copies | {"rows": 90})


def test_a_file_that_was_trained_on_is_scored_on_its_held_out_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = [str(site(tmp_path / f"{name}.csv", rows, 1, 2)) for name, rows in (("a", 60), ("b", 50))]
    config = Config(data=tuple(own), target="y", rounds=1, seed=3)
    train(config, tmp_path / "run", workers=0)
    run = Run.open(tmp_path / "run")
    (tmp_path / "copy").mkdir()
    copy = str(Path(own[0]).rename(tmp_path / "copy" / "other.csv"))  # known by its content
    scores = evaluate(run, [copy])
    assert scores["all"]["rows"] == 12
    assert "the model was trained on other: only its 12 rows that were held out are scored" in caplog.text
    Path(copy).rename(own[0])
    assert scores["all"] == evaluate(run)["a"]
    new = str(site(tmp_path / "c.csv", 40, 1, 5))
    both = evaluate(run, [own[0], new])
    assert [part["rows"] for part in both.values()] == [52, 12, 40]
    assert both["c"] == evaluate(run, [new])["all"]
