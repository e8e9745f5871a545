"""Weights and exposures of rows, as columns of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb import Config, train
from ffgb.errors import FFGBError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 2))
E = RNG.uniform(0.2, 3.0, 300)
Y = RNG.poisson(E * np.exp(0.5 * X[:, 0] + 0.2))


def files(folder: Path, frame: pd.DataFrame) -> tuple[str, ...]:
    paths = []
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        paths.append(folder / f"site{i}.csv")
        frame.iloc[part].to_csv(paths[-1], index=False)
    return tuple(map(str, paths))


def test_a_column_of_weights_is_no_feature_and_weighs_rows(tmp_path: Path) -> None:
    """Rows of weight 0 change nothing: a model without them is the same."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "w": np.where(np.arange(300) % 3 == 0, 0.0, 1.0)})
    frame["y"] = X[:, 0] + np.where(frame["w"] == 0.0, 50.0, 0.0)
    data = files(tmp_path, frame)
    options = {"data": data, "target": "y", "task": "regression", "learner": "linear", "rounds": 5, "ridge": 1e-6}
    options |= {"least": 1}  # nothing is clipped, so that the slope is known
    weighed = train(Config(**options, weights="w"), workers=0)
    assert weighed.model.columns == ("a", "b")
    slope = weighed.model.predict(np.array([[1.0, 0.0], [0.0, 0.0]], np.float32))
    assert slope[0] - slope[1] == pytest.approx(1.0, abs=1e-3)
    plain = train(Config(**options), workers=0)
    assert "w" in plain.model.columns


def test_an_exposure_is_an_offset(tmp_path: Path) -> None:
    """The rate of a Poisson regression with exposures is that of statsmodels with log e as its offset."""
    statsmodels = pytest.importorskip("statsmodels.api")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "e": E, "y": Y})
    data = files(tmp_path, frame)
    config = Config(
        data=data, target="y", task="regression", loss="poisson", exposure="e", learner="linear", rounds=60,
        ridge=1e-9, stop=False, least=1,
    )  # fmt: skip
    result = train(config, workers=0)
    held = train(Config(data=data, target="y", task="regression", rounds=1, exposure="e"), workers=0)
    assert held.model.columns == ("a", "b")
    kept = _training_rows(config, frame)
    design = statsmodels.add_constant(kept[["a", "b"]])
    fit = statsmodels.GLM(kept["y"], design, family=statsmodels.families.Poisson(), offset=np.log(kept["e"])).fit()
    at = np.array([[0.3, -0.2], [1.0, 1.0]], np.float32)
    expected = np.exp(fit.predict(statsmodels.add_constant(at, has_constant="add"), which="linear"))
    np.testing.assert_allclose(result.model.predict(at), expected, rtol=2e-3)


def _training_rows(config: Config, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that were not held out."""
    from ffgb.runs.config import load_data

    dataset = load_data(config)
    table = dataset.table
    assert table is not None
    all_points = table({name: frame[name].to_numpy(np.float64) for name in ("a", "b")})
    known = {row.tobytes() for row in np.ascontiguousarray(dataset.x)}
    return frame[[row.tobytes() in known for row in np.ascontiguousarray(all_points)]]


def test_wrong_columns_are_told(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "w": -np.ones(300), "y": Y})
    data = files(tmp_path, frame)
    with pytest.raises(FFGBError, match="has no column 'v', which --weights names"):
        train(Config(data=data, target="y", weights="v"), workers=0)
    with pytest.raises(FFGBError, match="--weights w must have numbers from 0 on"):
        train(Config(data=data, target="y", weights="w"), workers=0)
    with pytest.raises(FFGBError, match="--exposure w must have positive numbers"):
        train(Config(data=data, target="y", task="regression", exposure="w"), workers=0)
    with pytest.raises(FFGBError, match="--weights names a column of files"):
        train(Config(data="wine", weights="w"), workers=0)
