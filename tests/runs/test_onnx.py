"""ONNX files say what our models say, for every family, map and kind of sum, on rows that no one has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.core.functions import from_tensors
from ffgb.data.preprocess import Column, Table
from ffgb.errors import FFGBError
from ffgb.runs import onnx as export
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.onnx_trials import trials
from ffgb.runs.training import train
from tests.data.test_preprocess import mixed

JOBS: dict[str, dict[str, Any]] = {
    "features": {"learner": "features"},
    "local": {"geometry": "local"},
    "linear": {"learner": "linear"},
    "fourier": {"map": "fourier"},
    "laplace": {"map": "laplace"},
    "arc-cosine": {"map": "arc-cosine"},
    "steps": {"map": "steps"},
    "waves": {"map": "waves"},
    "trees map": {"map": "trees"},
    "several maps": {"map": "steps+waves+trees+fourier"},
    "mlp": {"learner": "mlp", "oracle_steps": 20},
    "tree": {"learner": "tree"},
    "boosted trees": {"learner": "trees", "leaf_rows": 5},
    "additive": {"learner": "additive", "leaf_rows": 5, "leaves": 8},
    "ffgb-c": {"algorithm": "ffgb-c", "learner": "mlp", "oracle_steps": 20},
    "ffgb-c, linear": {"algorithm": "ffgb-c", "learner": "linear"},
    "ffgb-c, tree": {"algorithm": "ffgb-c", "learner": "tree", "bound": 3.0},
    "fedavg": {"algorithm": "fedavg", "learner": "mlp"},
}


def run(data: bytes, given: dict[str, Any]) -> list[Any]:
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, given)
    return found


@pytest.mark.parametrize("job", JOBS)
def test_a_file_says_what_the_model_says(job: str, tmp_path: Path) -> None:
    result = train(Config(data="wine", clients=3, rounds=3, **JOBS[job]), workers=0)
    model = result.model
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, *model.shape)) * 5 + 10).astype(np.float32)
    labels, p = run(export.to_onnx(model), {"x": x})
    np.testing.assert_allclose(p, model.predict_proba(x), atol=1e-5)
    sure = np.sort(p, axis=1)[:, -1] - np.sort(p, axis=1)[:, -2] > 1e-4
    assert (labels == model.predict(x))[sure].all()
    assert export.export(model, tmp_path / "m.onnx", x) <= export.TOLERANCE


def clipped_models() -> dict[str, tuple[Model, Model]]:
    """Models of which every term, or the whole sum, is clipped nearly everywhere; and the same without the clip."""
    found = {}
    settings: dict[str, dict[str, Any]] = {
        **{name: {"algorithm": "ffgb-c", "oracle_steps": 20} for name in ("tree", "linear", "mlp")},
        "trees": {"leaf_rows": 5},
    }
    for learner, more in settings.items():
        model = train(Config(data="wine", clients=3, rounds=2, learner=learner, **more), workers=0).model
        tensors = model.f.tensors()
        without = replace(model, f=from_tensors(model.family, tensors | {"radii": np.full(model.f.terms, 1e9)}))
        small = np.geomspace(0.01, 0.1, model.f.terms)  # each its own
        found[f"terms, {learner}"] = replace(model, f=from_tensors(model.family, tensors | {"radii": small})), without
        found[f"sum, {learner}"] = replace(model, f=model.f.clip(0.02)), model
    return found


def test_clips_that_act_are_in_the_file() -> None:
    """The file contains the radii of the terms and the projection of the sum."""
    for name, (model, without) in clipped_models().items():
        x = (np.random.default_rng(0).standard_normal((200, *model.shape)) * 50 + 10).astype(np.float32)
        p = model.predict_proba(x)
        assert np.abs(without.predict_proba(x) - p).max() > 1e-3, name
        _, found = run(export.to_onnx(model), {"x": x})
        np.testing.assert_allclose(found, p, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "job",
    [{"learner": "features"}, {"learner": "blend", "trees_a_round": 1}, {"learner": "tree"},
     {"algorithm": "ffgb-l", "learner": "mlp", "oracle_steps": 30},
     {"algorithm": "ffgb-l", "learner": "features", "map": "fourier"}],
)  # fmt: skip
def test_numbers_are_predicted_in_their_own_units(job: dict[str, Any]) -> None:
    model = train(Config(data="diabetes", clients=3, rounds=3, **job), workers=0).model
    x = (np.random.default_rng(0).standard_normal((100, *model.shape)) * 0.05).astype(np.float32)
    (values,) = run(export.to_onnx(model), {"x": x})
    assert values.shape == (100,)
    np.testing.assert_allclose(values, model.predict(x), rtol=1e-5, atol=1e-5 * 77)


@pytest.mark.parametrize("learner", ["cnn", "features"])
def test_images(learner: str, tmp_path: Path) -> None:
    if learner == "cnn":
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.random((60, 3, 18, 20), np.float32)
    y = (x[:, 0].mean(axis=(1, 2)) > 0.5).astype(int)
    files = []
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=x[i::2], y=y[i::2])
        files.append(str(tmp_path / f"{i}.npz"))
    more: dict[str, Any] = (
        {"oracle_steps": 5, "hidden": (7, 5, 3)} if learner == "cnn" else {"features": 64, "map": "patches"}
    )
    model = train(Config(data=tuple(files), learner=learner, rounds=2, **more), workers=0).model
    _, p = run(export.to_onnx(model), {"x": x})
    np.testing.assert_allclose(p, model.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize("job", [{}, {"learner": "mlp", "oracle_steps": 20}, {"learner": "tree"}])
def test_tables_as_they_are(job: dict[str, Any], tmp_path: Path) -> None:
    """One file takes raw columns: text, missing values, categories that no one knew."""
    files = [mixed(tmp_path / f"{name}.csv", seed) for seed, name in enumerate("abc")]
    config = Config(data=tuple(map(str, files)), target="y", rounds=3, categories=("code",), **job)
    train(config, tmp_path / "run", workers=0)
    model = Model.load(tmp_path / "run")
    worst = export.export(model, tmp_path / "model.onnx")
    assert worst <= 1e-5
    new = tmp_path / "new.csv"
    new.write_text("code,job,age\n1,nurse,50\n7,astronaut,\n,,30\n2,clerk,-5\n")
    frame = pd.read_csv(new)
    given = {
        "age": frame["age"].to_numpy(np.float32)[:, None],
        "job": frame["job"].astype(object).fillna("").to_numpy()[:, None],
        "code": np.array([["1"], ["7"], [""], ["2"]], object),
    }
    labels, p = run((tmp_path / "model.onnx").read_bytes(), given)
    np.testing.assert_allclose(p, model.predict_proba(model.read(new)), atol=1e-5)
    assert labels.tolist() == model.predict(model.read(new)).tolist()


def test_what_has_no_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = train(Config(data="wine", clients=3, rounds=2, learner="features"), workers=0).model
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(FFGBError, match="was not written"):
        export.export(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_estimators_of_others_have_no_form() -> None:
    from sklearn.tree import DecisionTreeRegressor

    x, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    fitted = FFGBClassifier(learner=DecisionTreeRegressor(max_depth=2), rounds=2).fit(x, y)
    with pytest.raises(FFGBError, match=r"has no format that is safe to read.*choose the learner 'tree'"):
        export.to_onnx(fitted.model_)


# Names


@pytest.mark.parametrize("numbers", [False, True])
def test_columns_may_be_called_what_they_like(tmp_path: Path, numbers: bool) -> None:
    """Names of outputs, and of what is inside the file, give way to those of columns."""
    rng = np.random.default_rng(0)
    names = ["label", "probabilities", "probabilities_", "prediction", "v1", "c0", "ffgb_v0", "_ffgb_c1", "n", "x"]
    frame = pd.DataFrame(rng.standard_normal((80, len(names))), columns=names)
    frame["v2"] = rng.choice(["a", "b"], 80)
    frame["y"] = frame["label"] if numbers else np.where(frame["label"] > 0, "yes", "no")
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = Config(data=(str(tmp_path / "a.csv"),), target="y", rounds=2, map="inputs+steps", features=32)
    model = train(config, workers=0).model
    assert model.table is not None
    expected = {"prediction": "prediction_"} if numbers else {"label": "label_", "probabilities": "probabilities__"}
    assert export.output_names(model) == expected
    assert export.export(model, tmp_path / "m.onnx") <= export.TOLERANCE
    session = ort.InferenceSession((tmp_path / "m.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == list(expected.values())
    assert [each.name for each in session.get_inputs()] == [c.name for c in model.table.columns]


def test_names_that_a_file_cannot_have_are_refused() -> None:
    x, y = np.random.default_rng(0).standard_normal((40, 1)), np.arange(40) % 2
    blank = pd.DataFrame({"": x[:, 0], "b": y})
    with pytest.raises(FFGBError, match="a column has no name"):
        export.to_onnx(FFGBClassifier(learner="linear", rounds=1).fit(blank, y).model_)
    spaces = pd.DataFrame({"a": x[:, 0], "b": np.where(y == 0, "  ", "there")})
    model = FFGBClassifier(learner="linear", rounds=1).fit(spaces, y).model_
    assert model.table is not None
    assert model.table.columns[1].categories == ("there",)  # blanks are missing
    blanks = Table((Column("a"), Column("b", ("", "there"))))
    with pytest.raises(FFGBError, match="column 'b' has blanks as a category"):
        export.to_onnx(replace(model, table=blanks))


def test_several_targets(tmp_path: Path) -> None:
    """Each in its own units, however far they are from 0."""
    x = np.random.default_rng(0).standard_normal((60, 3))
    y = np.c_[x.sum(axis=1) * 1e-3, 1e6 + 100.0 * x[:, 0]]
    fitted = FFGBRegressor(learner="tree", rounds=2, depth=2).fit(x, y)
    assert fitted.export(tmp_path / "m.onnx") <= export.TOLERANCE
    (values,) = run((tmp_path / "m.onnx").read_bytes(), {"x": x.astype(np.float32)})
    np.testing.assert_allclose(values, fitted.predict(x), rtol=1e-6)


# The check before a file is written


def ages(path: Path, rows: int = 120) -> Path:
    """A table whose only thresholds are far from 0."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 90, rows) + 0.5, "dose": rng.normal(500.0, 20.0, rows)})
    frame["y"] = np.where((frame["age"] > 60) ^ (frame["dose"] > 510), "sick", "well")
    frame.to_csv(path, index=False)
    return path


def test_trees_are_tried_at_their_thresholds(tmp_path: Path) -> None:
    config = Config(data=(str(ages(tmp_path / "a.csv")),), target="y", rounds=3, learner="tree", depth=2)
    model = train(config, workers=0).model
    stack = model.f.tensors()
    feature, threshold = (np.ravel(stack[f"parameters/{name}"]) for name in ("feature", "threshold"))
    ((raw,), tried) = trials(model, None)
    assert "around the model's own thresholds and ranges, with missing values" in tried
    for j, name in enumerate(("age", "dose")):
        cuts = np.unique(threshold[(feature == j) & (threshold < 1e30)])
        assert len(cuts)
        for cut in cuts:
            for side in (cut >= raw[name], cut < raw[name]):
                assert np.abs(raw[name] - cut)[side].min() < 1e-3
        assert np.isnan(raw[name]).any()
    # every leaf that counts is reached: a file with another value in any of them is found
    for leaf in range(stack["parameters/value"].shape[1]):
        values = stack["parameters/value"].copy()
        values[0, leaf] += 0.1
        other = from_tensors(model.family, {**stack, "parameters/value": values})
        assert export.difference(replace(model, f=other), export.to_onnx(model), [raw]) > export.TOLERANCE


def test_labels_are_compared(tmp_path: Path) -> None:
    model = train(Config(data="wine", clients=3, rounds=2, learner="linear"), workers=0).model
    data = export.to_onnx(model)
    rows, tried = trials(model, None)
    assert tried == "1,000 random rows around the model's own thresholds and ranges"
    assert export.difference(model, data, rows) <= export.TOLERANCE
    renamed = replace(model, classes=("other", *model.classes[1:]))
    assert export.difference(renamed, data, rows) == np.inf


def test_a_file_that_gives_no_numbers_is_found() -> None:
    model = train(Config(data="diabetes", clients=3, rounds=2, learner="linear"), workers=0).model
    assert model.job.target is not None
    broken = replace(model.job.target, mean=model.job.target.mean * np.nan)
    data = export.to_onnx(replace(model, job=replace(model.job, target=broken)))
    assert export.difference(model, data, trials(model, None)[0]) == np.inf


# Places


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    model = train(Config(data="wine", clients=3, rounds=1, learner="linear"), workers=0).model
    with pytest.raises(FFGBError, match=r"the folder .*such does not exist, so m\.onnx cannot be written there"):
        export.export(model, tmp_path / "no" / "such" / "m.onnx")
    with pytest.raises(FFGBError, match=r"is a folder; name a file in it, such as .*model\.onnx"):
        export.export(model, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FFGBError, match="file is no folder"):
        export.export(model, tmp_path / "file" / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FFGBError, match="folder cannot be written"):
        export.write({tmp_path / "old": b"after", tmp_path / "new": b"after", tmp_path / "folder": b"after"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "old"]
    assert (tmp_path / "old").read_text() == "before"
    export.write({tmp_path / "old": b"after", tmp_path / "new": b"after"})
    assert (tmp_path / "old").read_text() == (tmp_path / "new").read_text() == "after"
