"""Coefficients of a line: those of scikit-learn, and by how much the model's own f changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from ffgb import FFGBClassifier
from ffgb.report import page
from ffgb.runs.coefficients import INTERCEPT, coefficients
from ffgb.runs.config import Config, load_data
from ffgb.runs.explain import explain
from ffgb.runs.model import Model
from ffgb.runs.training import Result, train
from tests.cli.commands import ffgb


def trained(folder: Path, number: bool, **more: Any) -> Result:
    """Two sites with numbers, a category, missing values, and columns of very different units."""
    for k, name in enumerate("ab"):
        rng = np.random.default_rng(k)
        x, year = rng.normal(3, 0.01, 300), rng.integers(1950, 2000, 300).astype(float)
        town = rng.choice(["u", "v"], 300)
        z = 100 * (x - 3) + 0.05 * (year - 1975) + (town == "v")
        year[rng.random(300) < 0.1] = np.nan
        y: Any = z + rng.normal(size=300) if number else np.where(rng.random(300) < 1 / (1 + np.exp(-z)), "yes", "no")
        pd.DataFrame({"x": x, "year": year, "town": town, "y": y}).to_csv(folder / f"{name}.csv", index=False)
    data = tuple(str(folder / f"{name}.csv") for name in "ab")
    return train(Config(data=data, target="y", learner="linear", **more), folder / "run", workers=0)


def by_name(found: dict[str, Any] | None) -> dict[str, float]:
    assert found is not None
    return {row["column"]: row["values"][0] for row in found["coefficients"]}


def test_without_a_ridge_they_are_those_of_scikit_learn(tmp_path: Path) -> None:
    result = trained(tmp_path, True, ridge=0.0, least=1)
    assert result.run is not None
    data = load_data(Config.from_json(result.run.config))
    exact = LinearRegression().fit(data.x.astype(np.float64), data.y)
    found = coefficients(result.model, {"ridge": 0})
    own = by_name(found)
    assert list(own) == [INTERCEPT, *data.columns]
    # the indicators of both towns add up to 1: what is determined is their difference
    columns = list(data.columns)
    u, v = columns.index("town=u"), columns.index("town=v")
    assert own["town=v"] - own["town=u"] == pytest.approx(exact.coef_[v] - exact.coef_[u], rel=1e-4)
    for name in ("x", "year"):
        assert own[name] == pytest.approx(exact.coef_[columns.index(name)], rel=1e-4)
    assert found is not None
    assert "ffgb glm fits the same kind of model" in found["errors"]
    assert found["unit"] == "the target's own units"


@pytest.mark.parametrize("number", [False, True])
def test_they_are_the_differences_of_f(number: bool, tmp_path: Path) -> None:
    model = trained(tmp_path, number).model
    found = coefficients(model, {"ridge": None})
    assert found is not None
    assert "standard errors are not given" in found["errors"]
    own, target = by_name(found), model.job.target
    scale = 1.0 if target is None else float(target.scale[0])
    middle = np.array([[(r["low"] + r["high"]) / 2 for r in found["coefficients"][1:]]])
    for j, name in enumerate(model.columns):
        low, high = (found["coefficients"][1 + j][end] for end in ("low", "high"))
        first, last = middle.copy(), middle.copy()
        first[0, j], last[0, j] = low, high
        rise = model.decision(last.astype(np.float32)) - model.decision(first.astype(np.float32))
        rise = rise[:, -1] - (rise[:, 0] if rise.shape[1] == 2 else 0.0)
        step = float(np.float32(high)) - float(np.float32(low))
        assert own[name] * step == pytest.approx(float(rise[0]) * scale, rel=1e-3, abs=1e-6), name
        beyond = last.copy()
        beyond[0, j] = high + 10 * (high - low) + 1.0
        assert model.decision(beyond.astype(np.float32)) == pytest.approx(model.decision(last.astype(np.float32)))
    if number:
        assert float(model.predict(middle.astype(np.float32))[0]) == pytest.approx(
            own[INTERCEPT] + sum(own[n] * v for n, v in zip(model.columns, middle[0], strict=True)), rel=1e-4
        )


def test_several_classes_have_a_column_each() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = x.argmax(axis=1) + (x.sum(axis=1) > 1.5)
    model = FFGBClassifier(learner="linear").fit(x, y).model_
    found = coefficients(model, {})
    assert found is not None
    assert [len(row["values"]) for row in found["coefficients"]] == [3] * 3
    assert found["outputs"] == ["0", "1", "2"]
    assert coefficients(FFGBClassifier(learner="trees", rounds=2).fit(x, y).model_, {}) is None
    assert coefficients(FFGBClassifier(learner="features", rounds=2).fit(x, y).model_, {}) is None


def test_the_command_and_the_page_show_them(tmp_path: Path) -> None:
    result = trained(tmp_path, False)
    assert result.run is not None
    done = ffgb("explain", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "coefficients of log odds of yes, by one unit of a column" in done.stdout
    line = json.loads((tmp_path / "run" / "effects.json").read_text())["line"]
    assert line == coefficients(Model.load(tmp_path / "run"), result.run.config)
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<h3>Coefficients</h3>" in text
    assert "standard errors are not given" in text
    # between real sites rows are elsewhere, and coefficients need none
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"data": ["sites"], "sha256": {}}))
    found = explain(result.run)
    assert (found["importance"], found["line"]) == ([], line)
    (tmp_path / "run" / "effects.json").write_text(json.dumps(found))
    text = page([tmp_path / "run"])
    assert "<h3>Coefficients</h3>" in text
    assert "importance and shapes are computed there" in text
