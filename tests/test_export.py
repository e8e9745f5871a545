"""ONNX files say what our models say, for every family, map and kind of sum, on rows that no one has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort

from ffgb import export
from ffgb.config import Config
from ffgb.errors import FFGBError
from ffgb.model import Model
from ffgb.training import train
from tests.data.test_preprocess import mixed

JOBS: dict[str, dict[str, Any]] = {
    "features": {},
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


@pytest.mark.parametrize(
    "job",
    [{}, {"learner": "tree"}, {"algorithm": "ffgb-l", "learner": "mlp", "oracle_steps": 30},
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
    more: dict[str, Any] = {"oracle_steps": 5} if learner == "cnn" else {"features": 64, "map": "patches"}
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
    model = train(Config(data="wine", clients=3, rounds=2), workers=0).model
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(FFGBError, match="was not written"):
        export.export(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_estimators_of_others_have_no_form() -> None:
    from sklearn.tree import DecisionTreeRegressor

    from ffgb import FFGBClassifier

    x, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    fitted = FFGBClassifier(learner=DecisionTreeRegressor(max_depth=2), rounds=2).fit(x, y)
    with pytest.raises(FFGBError, match=r"has no format that is safe to read.*choose the learner 'tree'"):
        export.to_onnx(fitted.model_)
