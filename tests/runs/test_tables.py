"""Training on data frames in memory is training on their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ffgb import FFGB, Config, FFGBClassifier, FFGBError, federate, train
from ffgb.core.losses import Logistic
from ffgb.core.schedules import Constant
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear

SETTINGS: dict[str, Any] = {"target": "sick", "rounds": 2}


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    rng = np.random.default_rng(0)
    found = {}
    for name in ("north", "south"):
        age, sex = rng.normal(60, 10, 60), rng.choice(["f", "m"], 60)
        sick = np.where(age + 5 * (sex == "m") + rng.normal(0, 5, 60) > 62, "yes", "no")
        found[name] = pa.table({"age": age, "sex": sex, "sick": sick})
    return found


def test_the_model_is_that_of_the_files(tables: dict[str, pa.Table], tmp_path: Path) -> None:
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    files = tuple(str(tmp_path / f"{name}.parquet") for name in tables)
    by_files = train(Config(data=files, **SETTINGS), workers=0)
    mixed = {"north": tables["north"].to_pandas(), "south": tables["south"]}
    by_tables = train(Config(**SETTINGS), tables=mixed, workers=0)
    assert by_tables.model.to_bytes() == by_files.model.to_bytes()
    assert by_tables.summary["data"] == ["north", "south"]
    assert "on north, south" in repr(by_tables)


def test_tables_that_cannot_be_trained_on_are_named(tables: dict[str, pa.Table], tmp_path: Path) -> None:
    for wrong, words in (
        ({}, "tables is empty"),
        ({"north": np.ones((3, 2))}, "the table of 'north' is ndarray, which is no data frame"),
        ({"no/rth": tables["north"]}, "a table is called 'no/rth'"),
    ):
        with pytest.raises(FFGBError, match=words):
            train(Config(**SETTINGS), tables=wrong)
    with pytest.raises(FFGBError, match="the settings name data, and tables are given too"):
        train(Config(data="wine"), tables=tables)
    with pytest.raises(FFGBError, match="a run directory remembers its files"):
        train(Config(**SETTINGS), tmp_path / "run", tables=tables)


def test_estimators_take_any_frame(tables: dict[str, pa.Table]) -> None:
    whole = pa.concat_tables(tables.values())
    x, y, clients = whole.drop_columns(["sick"]), whole["sick"], pa.array(["a", "b"] * 60)
    frame = x.to_pandas()
    ours = FFGBClassifier(rounds=2).fit(x, y, clients=clients)
    pandas = FFGBClassifier(rounds=2).fit(frame, pd.Series(y.to_pylist()), clients=clients.to_pylist())
    assert ours.model_.to_bytes() == pandas.model_.to_bytes()
    np.testing.assert_array_equal(ours.predict_proba(x), pandas.predict_proba(frame))


def test_federate_takes_any_frame_of_numbers() -> None:
    rng = np.random.default_rng(0)
    arrays = [(x, (x[:, 0] > 0).astype(int)) for x in rng.standard_normal((2, 30, 2))]
    frames = [(pa.table({"a": x[:, 0], "b": x[:, 1]}), pa.array(y)) for x, y in arrays]
    states = [
        federate(some, Linear(Flatten(2), outputs=1), Logistic(), FFGB(Constant(4.0), K=2), rounds=2)[0]
        for some in (arrays, frames)
    ]
    points = arrays[0][0]
    np.testing.assert_array_equal(states[0].f(points), states[1].f(points))
