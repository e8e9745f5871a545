"""Tables as they come: each either works, or ends in a sentence and exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.training import Result, train
from tests.cli.commands import ffgb

Array = np.ndarray
LEARNERS = pytest.mark.parametrize("learner", ["trees", "features", "linear", "auto"])


def a_table(rows: int, seed: int = 0) -> pd.DataFrame:
    """Two columns that say something, and one that does not."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": (x[:, 0] + x[:, 1] > 0).astype(int)})


def files(folder: Path, *frames: pd.DataFrame) -> tuple[str, ...]:
    paths = [folder / f"site{i}.csv" for i in range(len(frames))]
    for path, frame in zip(paths, frames, strict=True):
        frame.to_csv(path, index=False)
    return tuple(str(path) for path in paths)


def trained(data: tuple[str, ...], learner: str, **settings: Any) -> Result:
    return train(Config(data=data, target="y", learner=learner, **{"rounds": 4, **settings}), workers=0)


@LEARNERS
def test_outliers_of_1e12_in_some_cells(learner: str, tmp_path: Path) -> None:
    """In 0.2 % of the cells; accuracy as without them."""
    frame, rng = a_table(1500), np.random.default_rng(1)
    frame[["a", "b", "c"]] = frame[["a", "b", "c"]].mask(rng.random((1500, 3)) < 0.002, 1e12)
    summary = trained(files(tmp_path, frame[:700], frame[700:]), learner).summary
    assert summary["test_accuracy"] > 0.85


@LEARNERS
def test_constant_and_duplicate_columns(learner: str, tmp_path: Path) -> None:
    frame = a_table(300)
    frame["one"], frame["a again"], frame["empty"] = 1.0, frame["a"], np.nan
    assert trained(files(tmp_path, frame[:150], frame[150:]), learner).summary["test_accuracy"] > 0.8


@LEARNERS
def test_a_hundred_classes(learner: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(800) % 100
    near = y[:, None] // [10, 1] % 10 + 0.1 * rng.standard_normal((800, 2))
    frame = pd.DataFrame(near, columns=["a", "b"])
    frame["y"] = [f"class {k}" for k in y]
    summary = trained(
        files(tmp_path, frame[:400], frame[400:]), learner, rounds=1 if learner in ("trees", "auto") else 4
    ).summary
    assert summary["test_accuracy"] > (0.04 if learner == "linear" else 0.1)


@LEARNERS
def test_sites_with_few_rows_and_with_one_class(learner: str, tmp_path: Path) -> None:
    frame = a_table(400)
    zeros, ones = frame[frame["y"] == 0], frame[frame["y"] == 1]
    result = trained(files(tmp_path, zeros, ones[:-4], ones[-4:-1], ones[-1:]), learner)
    assert result.summary["clients"] == 4
    assert result.summary["test_accuracy"] > 0.8


@LEARNERS
def test_targets_that_are_all_equal_at_some_sites(learner: str, tmp_path: Path) -> None:
    frame = a_table(300)
    frame["y"] = frame["a"] + 2.0 * frame["b"]
    same = a_table(100, 1)
    same["y"] = 0.25
    assert trained(files(tmp_path, frame, same), learner).summary["test_rmse"] < 2.0


@LEARNERS
def test_targets_with_heavy_tails_and_the_huber_loss(learner: str, tmp_path: Path) -> None:
    """The median error is as if there were no outliers: the scale of the loss is that of most rows."""
    frame = a_table(800)
    frame["y"] = frame["a"] + 2.0 * frame["b"]
    truth = frame["y"].to_numpy().copy()
    frame.loc[::160, "y"] = 1e9
    result = trained(files(tmp_path, frame[:400], frame[400:]), learner, loss="huber")
    error = np.abs(result.model.predict(frame[["a", "b", "c"]].to_numpy(np.float32)).reshape(-1) - truth)
    assert np.median(error) < 1.0


@LEARNERS
def test_a_category_that_only_rows_to_predict_have(learner: str, tmp_path: Path) -> None:
    frame = a_table(300)
    frame["town"] = np.where(frame["c"] > 0, "north", "south")
    result = trained(files(tmp_path, frame[:150], frame[150:]), learner)
    table = result.model.table
    assert table is not None
    row = {"a": np.zeros(1), "b": np.zeros(1), "c": np.zeros(1), "town": np.array(["elsewhere"], object)}
    assert result.model.predict(table(row))[0] in ("0", "1")


def test_text_here_and_numbers_there_is_a_sentence(tmp_path: Path) -> None:
    one, other = a_table(60), a_table(60, 1)
    other["c"] = "high"
    with pytest.raises(FFGBError, match="c"):
        trained(files(tmp_path, one, other), "trees")


def test_codes_end_in_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    frame = a_table(62 * 6)
    frame["y"] = np.arange(len(frame)) % 62
    data = [word for path in files(tmp_path, frame[:200], frame[200:]) for word in ("--data", path)]
    done = ffgb("train", *data, "--target", "y")
    assert done.returncode == 2
    assert "62 different whole numbers" in done.stderr
