"""The terms of an additive model: their sum is the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.terms import terms
from ffgb.runs.training import train
from tests.cli.commands import ffgb

OPTIONS = {"learner": "additive", "clients": 3, "rounds": 2, "bins": 8, "leaf_rows": 10}


def looked_up(frame: pd.DataFrame, columns: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """f from the table alone, for columns of numbers."""
    found = []
    for _, own in frame.groupby("output", sort=False):
        f = np.full(len(x), own.loc[own["bin"] == "constant", "value"].item())
        for name, term in own[own["bin"] != "constant"].groupby("column"):
            ends, column = term["low"].to_numpy()[1:], x[:, columns.index(str(name))]
            f += term["value"].to_numpy()[np.searchsorted(ends, column)]
        found.append(f)
    return np.stack(found, axis=1)


@pytest.mark.parametrize("data", ["wine", "diabetes"])
def test_the_terms_add_up_to_the_model(data: str) -> None:
    model = train(Config(data=(data,), **OPTIONS), workers=0).model
    frame = terms(model)
    x = (np.random.default_rng(0).standard_normal((200, *model.shape)) * 5.0).astype(np.float32)
    expected = model.decision(x) if model.classes else np.asarray(model.predict(x))[:, None]
    assert np.allclose(looked_up(frame, model.columns, x), expected, atol=1e-9)
    assert set(frame["output"]) == (set(model.classes) if model.classes else {"0"})


def test_categories_and_missing_values_have_their_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 400), "job": rng.choice(["nurse", "clerk", "smith"], 400)})
    frame.loc[rng.random(400) < 0.2, "age"] = np.nan
    frame["y"] = np.where((frame["job"] == "nurse") ^ (rng.random(400) < 0.1), "yes", "no")
    frame.to_csv(tmp_path / "a.csv", index=False)
    options = {**OPTIONS, "clients": 1}
    result = train(Config(data=(str(tmp_path / "a.csv"),), target="y", **options), tmp_path / "run", workers=0)
    found = terms(result.model)
    job = found[found["column"] == "job"].set_index("bin")["value"]
    values = {name: value for bins, value in job.items() for name in str(bins).split(" or ")}
    assert set(values) == {"nurse", "clerk", "smith", "any other"}  # unknown ones go with the most common
    assert values["nurse"] > 1.0 > values["clerk"]
    assert "missing" in set(found.loc[found["column"] == "age", "bin"])
    assert set(found["output"]) == {"yes"}
    printed = ffgb("terms", tmp_path / "run").stdout.splitlines()
    assert printed[0] == "column,bin,low,high,output,value"
    assert len(printed) == len(found) + 1
    ffgb("terms", tmp_path / "run", "-o", tmp_path / "terms.csv")
    assert pd.read_csv(tmp_path / "terms.csv")["value"].to_numpy() == pytest.approx(found["value"].to_numpy())


def test_other_models_have_no_terms(tmp_path: Path) -> None:
    train(Config(data=("wine",), **OPTIONS), tmp_path / "first", workers=0)
    more = Config(data=("wine",), clients=3, learner="trees", rounds=1, start=str(tmp_path / "first"))
    for model in (
        train(more, workers=0).model,
        train(Config(data=("wine",), clients=3, rounds=1, learner="features"), workers=0).model,
    ):
        with pytest.raises(FFGBError, match="only an additive model"):
            terms(model)
    assert terms(Model.load(tmp_path / "first"))["value"].notna().all()
