"""What a model makes of its columns: shapes are the terms of an additive model, and contributions add up to f."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.errors import FFGBError
from ffgb.report import page
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.explain import contributions_of, explain, raw_columns, shape_of
from ffgb.runs.model import Model
from ffgb.runs.terms import terms
from ffgb.runs.training import train
from tests.cli.commands import ffgb


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two sites; the outcome depends on age and ward, not on noise, and between sites on their base rates."""
    path, rng = tmp_path_factory.mktemp("explain"), np.random.default_rng(0)
    for k, name in enumerate(("a", "b")):
        n = 900
        frame = pd.DataFrame(
            {
                "age": rng.normal(60, 10, n).round(1),
                "ward": rng.choice(["east", "north", "west"], n),
                "noise": rng.standard_normal(n),
                "hospital": np.full(n, k) + 0.0,
            }
        )
        odds = (frame["age"] - 60) / 5 + 2 * (frame["ward"] == "west") - 1 + 2 * k
        frame["y"] = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")
        frame.loc[rng.random(n) < 0.1, "age"] = np.nan
        frame.to_csv(path / f"{name}.csv", index=False)
    files = tuple(str(path / f"{name}.csv") for name in ("a", "b"))
    train(Config(data=files, target="y", learner="additive", rounds=3), path / "run", workers=0)
    return Run.open(path / "run")


def test_importance_is_that_of_columns_within_sites(run: Run) -> None:
    found = explain(run)
    by = {row["column"]: row for row in found["importance"]}
    assert list(by)[:2] == ["age", "ward"]
    assert by["age"]["low"] > 0.05
    assert by["noise"]["low"] <= 0.0 <= by["noise"]["high"] + 0.01
    assert by["hospital"]["value"] == 0.0  # it is the same for all rows of a site
    assert found["held_out"]
    assert found["unit"] == "probability of yes"
    assert [shape["column"] for shape in found["shapes"]] == list(by)[: len(found["shapes"])]
    assert min(count for shape in found["shapes"] for count in shape["rows"]) >= 10


def test_shapes_of_an_additive_model_are_its_terms(run: Run) -> None:
    model, data = Model.load(run.path), load_data(Config.from_json(run.config))
    frame = terms(model)
    columns = {column.name: column for column in raw_columns(model.columns, model.shape[0])}
    assert list(columns) == ["age", "ward", "noise", "hospital"]
    for name in ("age", "ward"):
        shape, own = shape_of(model, data.x, columns[name]), frame[frame["column"] == name]
        assert shape is not None
        assert sum(shape["rows"]) == len(data.x)
        effects, values = [], []
        for value in shape["values"]:
            if value["number"] is not None:
                inside = (own["low"] < value["number"]) & (value["number"] <= own["high"])
            else:
                inside = own["bin"].map(lambda words, v=value["value"]: v in words.split(" or "))
            if inside.any():
                values.append(own.loc[inside, "value"].item())
                effects.append(value["f"])
        assert len(values) >= 2
        np.testing.assert_allclose(np.diff(effects), np.diff(values), atol=1e-9)


def test_contributions_add_up_to_the_prediction(run: Run, tmp_path: Path) -> None:
    new = pd.read_csv(load_data_files(run)[0]).drop(columns="y").head(20)
    new.to_csv(tmp_path / "new.csv", index=False)
    frame, model = contributions_of(run, tmp_path / "new.csv"), Model.load(run.path)
    own = frame[["age", "ward", "noise", "hospital"]].sum(axis=1) + frame["mean"]
    np.testing.assert_allclose(own, frame["f"], atol=1e-9)
    np.testing.assert_allclose(frame["f"], model.decision(model.read(tmp_path / "new.csv"))[:, 0], atol=1e-9)
    printed = ffgb("explain", run.path, tmp_path / "new.csv", "--json").stdout
    assert json.loads(printed)[0]["f"] == pytest.approx(frame["f"][0], abs=1e-6)


def load_data_files(run: Run) -> list[str]:
    return list(run.config["data"])


def test_the_command_adds_effects_to_the_report(run: Run) -> None:
    assert "<code>ffgb explain RUN</code> measures" in (run.path / "report.html").read_text()
    found = json.loads(ffgb("explain", run.path, "--json").stdout)
    assert found == json.loads((run.path / "effects.json").read_text())
    text = (run.path / "report.html").read_text()
    assert "What matters to the model" in text
    assert f">{found['shapes'][0]['values'][0]['prediction']:.4g}<" in text
    content = json.loads((run.path / "effects.json").read_text())
    (run.path / "effects.json").write_text(json.dumps(content | {"importance": 3}))
    with pytest.raises(FFGBError, match=r"effects\.json cannot be read"):
        page([run.path])
    (run.path / "effects.json").unlink()


def test_what_cannot_be_explained_is_refused(tmp_path: Path) -> None:
    result = train(Config(data=("wine",), clients=2, rounds=1, learner="features"), tmp_path / "run", workers=0)
    assert result.run is not None
    pd.DataFrame(np.zeros((1, 13)), columns=list(Model.load(result.run.path).columns)).to_csv(tmp_path / "x.csv")
    with pytest.raises(FFGBError, match="exact for sums of trees and for lines only"):
        contributions_of(result.run, tmp_path / "x.csv")
    found = explain(result.run)
    assert found["shapes"] == []  # of three classes
    assert len(found["importance"]) == 13
    result.run.write_json("config.json", result.run.config | {"data": ["sites"]})
    with pytest.raises(FFGBError, match="the rows of this run are at its sites"):
        explain(result.run)


def test_interactions_are_what_a_sum_of_columns_does_not_say(run: Run, tmp_path: Path) -> None:
    """None in an additive model; in trees the product that the outcome depends on."""
    assert max(pair["strength"] for pair in explain(run)["interactions"]) < 1e-9
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        frame = pd.DataFrame(rng.choice([-1.0, 1.0], (400, 3)), columns=["u", "v", "w"])
        frame["y"] = 3.0 * frame.u * frame.v + frame.w + 0.1 * rng.standard_normal(400)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = tuple(str(tmp_path / f"{name}.csv") for name in ("a", "b"))
    result = train(Config(data=files, target="y", learner="trees", column_share=1.0), tmp_path / "run", workers=0)
    assert result.run is not None
    found = explain(result.run)["interactions"]
    assert set(found[0]["columns"]) == {"u", "v"}
    assert found[0]["strength"] == pytest.approx(3.0, rel=0.15)  # the deviation of 3uv
    assert found[1]["strength"] < 0.3
    left = np.array(found[0]["interaction"])
    assert np.sign(left).tolist() == [[1, -1], [-1, 1]]
    ffgb("explain", result.run.path)
    page = (result.run.path / "report.html").read_text()
    assert "Columns that act together" in page
    assert "The strongest in numbers" in page


def test_contributions_of_a_line_are_shapley_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"u": rng.normal(5, 2, 200), "ward": rng.choice(["east", "west"], 200)})
    frame["y"] = 2.0 * frame.u + 3.0 * (frame.ward == "west") + 0.1 * rng.standard_normal(200)
    frame.to_csv(tmp_path / "a.csv", index=False)
    result = train(Config(data=(str(tmp_path / "a.csv"),), target="y", learner="linear"), tmp_path / "run", workers=0)
    assert result.run is not None
    found = contributions_of(result.run, tmp_path / "a.csv")
    assert list(found.columns) == ["prediction", "f", "mean", "u", "ward"]
    np.testing.assert_allclose(found[["mean", "u", "ward"]].sum(axis=1), found["f"], atol=1e-6)
    np.testing.assert_allclose(found["f"], found["prediction"], rtol=1e-5)  # in the target's own units
    model, known = Model.load(result.run.path), load_data(Config.from_json(result.run.config)).x
    x = model.read(tmp_path / "a.csv")

    def v(some: list[int], row: int) -> float:
        """The mean prediction if these places are as in the row, and the column of the others is drawn."""
        there = known.copy()
        there[:, some] = x[row, some]
        return float(model.predict(there).mean())

    for row in range(5):  # by the definition: the mean over both orders
        u = (v([0], row) - v([], row) + v([0, 1, 2], row) - v([1, 2], row)) / 2.0
        ward = (v([1, 2], row) - v([], row) + v([0, 1, 2], row) - v([0], row)) / 2.0
        assert [found[name][row] for name in ("mean", "u", "ward")] == pytest.approx([v([], row), u, ward], abs=1e-4)
