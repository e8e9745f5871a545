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


@pytest.mark.parametrize("learner", ["trees", "features", "linear", "auto", "additive"])
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


@pytest.mark.parametrize("learner", ["trees", "features", "linear", "auto", "additive"])
def test_targets_with_heavy_tails(learner: str, tmp_path: Path) -> None:
    """Noise without a mean, and the loss that nobody chose for it: the median error is far from that of a constant."""
    frame, rng = a_table(1200), np.random.default_rng(0)
    truth = (frame["a"] + 2.0 * frame["b"]).to_numpy()
    frame["y"] = truth + 0.1 * rng.standard_cauchy(1200)
    result = trained(files(tmp_path, frame[:600], frame[600:]), learner)
    error = np.abs(result.model.predict(frame[["a", "b", "c"]].to_numpy(np.float32)).reshape(-1) - truth)
    assert np.median(error) < 0.5 * np.median(np.abs(truth))


@pytest.mark.parametrize("learner", ["trees", "features", "linear", "auto", "additive"])
def test_targets_that_are_all_equal_everywhere(learner: str, tmp_path: Path) -> None:
    """Numbers are predicted by that number; classes end in a sentence."""
    frame = a_table(200).assign(y=3.5)
    result = trained(files(tmp_path, frame[:100], frame[100:]), learner)
    assert result.model.predict(frame[["a", "b", "c"]].to_numpy(np.float32)) == pytest.approx(np.full(200, 3.5))
    for label in ("sick", 1):
        data = files(tmp_path, *(frame.assign(y=label)[rows::2] for rows in range(2)))
        with pytest.raises(FFGBError, match=f"'y' is '{label}' in every row of all files; .* at least two classes"):
            trained(data, learner)


def test_rows_of_a_group_stay_together_in_a_training(tmp_path: Path) -> None:
    """A label that only the group tells cannot be learnt, and `auto` says why it takes no blend."""
    rng = np.random.default_rng(0)
    frame = a_table(600)
    frame["patient"] = np.arange(600) // 15
    frame["a"] = frame["patient"] + 0.001 * rng.standard_normal(600)  # so that rows of a group are neighbours
    frame["y"] = rng.integers(0, 2, 40)[frame["patient"]]
    data = files(tmp_path, frame[:300], frame[300:])
    apart = trained(data, "auto", group="patient", leaf_rows=10).summary
    assert (apart["learner"], "group keeps rows together" in apart["because"]) == ("trees", True)
    mixed = trained(data, "trees", drop=("patient",), leaf_rows=10).summary
    assert apart["test_accuracy"] < 0.65 < 0.75 < mixed["test_accuracy"]


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
    with pytest.raises(FFGBError, match="column 'c' is text at site1 and numbers at site0; write it the same way"):
        trained(files(tmp_path, one, other), "trees")


def test_codes_end_in_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    frame = a_table(62 * 6)
    frame["y"] = np.arange(len(frame)) % 62
    data = [word for path in files(tmp_path, frame[:200], frame[200:]) for word in ("--data", path)]
    done = ffgb("train", *data, "--target", "y")
    assert done.returncode == 2
    assert "62 different whole numbers" in done.stderr
