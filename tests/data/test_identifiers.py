"""Ids among the columns, codes among the targets, and groups of rows that stay together."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.data.dataset import hold_out_groups
from ffgb.data.files import load_sites
from ffgb.data.identifiers import identifiers, looks_like_codes
from ffgb.errors import FFGBError

Array = np.ndarray


def files(folder: Path, frame: pd.DataFrame, sites: int = 2) -> list[Path]:
    paths = [folder / f"site{i}.csv" for i in range(sites)]
    for i, path in enumerate(paths):
        frame.iloc[i::sites].to_csv(path, index=False)
    return paths


def a_frame(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.standard_normal(rows), "b": rng.integers(0, 5, rows), "y": rng.integers(0, 2, rows)})


def test_columns_with_another_value_in_every_row_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = a_frame()
    frame["patient"] = np.arange(len(frame)) + 1000
    frame["name"] = [f"n{k}" for k in range(len(frame))]
    with caplog.at_level(logging.WARNING):
        load_sites(files(tmp_path, frame), "y")
    assert "'patient', 'name' have a different value in every row; if these are ids, remove them" in caplog.text


def test_measurements_few_rows_and_values_that_come_twice_are_no_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = a_frame()
    frame["visits"] = np.arange(len(frame)) // 3
    with caplog.at_level(logging.WARNING):
        load_sites(files(tmp_path, frame), "y")
    assert not caplog.text
    assert identifiers([{"k": np.arange(20.0)}, {"k": np.arange(20.0)}]) == []
    assert identifiers([{"k": np.arange(30.0)}, {"k": np.arange(30.0)}]) == ["k"]
    assert identifiers([{"k": np.arange(30.0)}, {"k": np.zeros(30)}]) == []
    assert identifiers([{"k": np.arange(60.0) + 0.5}]) == []


def test_whole_numbers_that_may_be_classes_are_asked_about(tmp_path: Path) -> None:
    frame = a_frame(62 * 8)
    frame["y"] = np.arange(len(frame)) % 62
    paths = files(tmp_path, frame)
    asked = r"'y' has 62 different whole numbers, 0 to 61; say --task classification if they are classes, or --task"
    with pytest.raises(FFGBError, match=asked):
        load_sites(paths, "y")
    assert len(load_sites(paths, "y", task="classification").classes) == 62
    assert load_sites(paths, "y", task="regression").classes == ()


def test_amounts_are_not_asked_about() -> None:
    rng = np.random.default_rng(0)
    assert looks_like_codes([np.arange(600.0) % 30], 20)
    assert not looks_like_codes([np.arange(600.0) % 20], 20)  # classes anyway
    assert not looks_like_codes([rng.poisson(30.0, 5000).astype(float)], 20)
    assert not looks_like_codes([17.0 + np.arange(600.0) % 70], 20)
    assert not looks_like_codes([2.0 * (np.arange(600.0) % 40)], 20)
    assert not looks_like_codes([rng.standard_normal(500)], 20)
    assert not looks_like_codes([np.arange(600.0)], 20)


def test_rows_of_a_group_are_held_out_together(tmp_path: Path) -> None:
    frame = a_frame(400)
    frame["patient"] = np.arange(400) // 8
    frame["a"] = frame["patient"].astype(float)  # so that a row's group can be told from its features
    dataset = load_sites(files(tmp_path, frame), "y", group="patient")
    assert dataset.columns == ("a", "b")
    for i in range(2):
        train = set(dataset.x[dataset.site == i, 0])
        test = set(dataset.x_test[dataset.site_test == i, 0])
        assert not train & test
    assert 0.1 <= len(dataset.x_test) / 400 <= 0.21
    assert dataset.group is not None
    assert all(len(set(dataset.x[dataset.group == g, 0])) == 1 for g in np.unique(dataset.group))


def test_a_group_needs_a_column_with_values(tmp_path: Path) -> None:
    frame = a_frame()
    with pytest.raises(FFGBError, match=r"no column 'patient', which --group names"):
        load_sites(files(tmp_path, frame), "y", group="patient")
    frame["patient"] = np.where(np.arange(120) == 4, np.nan, np.arange(120) // 4)
    with pytest.raises(FFGBError, match=r"--group patient must have a value in every row; it has none in row 3"):
        load_sites(files(tmp_path, frame), "y", group="patient")


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.floats(0.0, 0.6), st.integers(0, 1000))
def test_groups_are_never_split(group: list[int], share: float, seed: int) -> None:
    names = np.array(group)
    train, test = hold_out_groups(names, share, np.random.default_rng(seed))
    assert sorted([*train, *test]) == list(range(len(names)))
    assert not set(names[train]) & set(names[test])
    assert len(test) <= share * len(names) + 0.5
