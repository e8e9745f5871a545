"""Data on the command line: sets with names, files of sites, and what is wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import ffgb, site


def test_data_list_and_verify(real_data: Path) -> None:
    listed = ffgb("data", "list").stdout
    for name in ("digits", "mnist", "cifar10", "adult", "heart", "cal_housing", "openml:NAME"):
        assert name in listed
    rows = json.loads(ffgb("data", "verify", "mnist", "heart", "digits", "--json").stdout)
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["name"] for row in rows} == {"mnist", "heart", "digits"}


def test_a_target_of_whole_numbers_can_be_a_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        days = rng.integers(1, 9, 40)
        rows = "".join(f"{d + rng.standard_normal():.3f},{d}\n" for d in days)
        (tmp_path / f"{name}.csv").write_text("x,days\n" + rows)
    files = ["--data", "a.csv", "--data", "b.csv", "--target", "days", "--rounds", "2", "--workers", "0", "--json"]
    assert "test_accuracy" in json.loads(ffgb("train", *files, cwd=tmp_path).stdout)
    for words in (["--task", "regression"], ["--loss", "huber"]):
        assert "test_rmse" in json.loads(ffgb("train", *files, *words, cwd=tmp_path).stdout)


def test_grey_pixels_as_bytes_are_scaled_as_those_of_mnist(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b", "new"):
        y = rng.integers(0, 2, 60)
        x = rng.integers(0, 100, (60, 1, 6, 6)).astype(np.uint8) + (y * 120).astype(np.uint8)[:, None, None, None]
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        np.savez(tmp_path / f"{name}-float.npz", x=(x / 255).astype(np.float32), y=y)
    options = ["--data", "a.npz", "--data", "b.npz", "--rounds", "3", "--workers", "0", "--out", "run"]
    assert ffgb("train", *options, cwd=tmp_path).returncode == 0
    scores = json.loads(
        ffgb("evaluate", "run", "--data", "new.npz", "--data", "new-float.npz", "--json", cwd=tmp_path).stdout
    )
    assert scores["new"] == pytest.approx(scores["new-float"])
    assert scores["new"]["accuracy"] > 0.9


# Wrong input: one sentence, exit code 2, nothing half-written.


def train_on(*files: Path, target: str = "outcome") -> list[str | Path]:
    return ["train", *(part for file in files for part in ("--data", str(file))), "--target", target, "--out", "run"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,result\n1,2,yes\n3,4,no\n", "has no column 'outcome'.*a, b|outcome"),
        ("a,b,outcome\n1,2,yes\n3,4,no\n5,oops,no\n", "'b'.*'oops'"),
        ("a,b,outcome\n1,two,yes\n3,four,no\n", "'b' is text at bad and numbers at good; .* --categories"),
        ("a,b,outcome\n1,2,yes\n3,4,\n", "outcome.*row 2"),
        ("a,b,outcome\n", "no rows|empty"),
        ("", "empty"),
    ],
    ids=["no target", "text", "only text", "no label", "no rows", "empty"],
)
def test_a_bad_site_file_is_refused_by_name(
    content: str, words: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(content)
    error = refused(*train_on(site(tmp_path / "good.csv"), bad))
    assert re.search(r"\bbad\b", error)
    assert re.search(words, error)
    assert not (tmp_path / "run").exists()


def test_one_class_only_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,outcome\n" + "".join(f"{i},yes\n" for i in range(9)))
    error = refused(*train_on(tmp_path / "a.csv", tmp_path / "b.csv"))
    assert "'yes'" in error
    assert not (tmp_path / "run").exists()


def test_a_corrupt_data_file_is_refused(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for file in (data_folder / "mnist").iterdir():
        content = bytearray(file.read_bytes())
        if "t10k-labels" in file.name:
            content[len(content) // 2] ^= 255
        (folder / file.name).write_bytes(content)
    monkeypatch.setenv("FFGB_DATA", str(tmp_path / "data"))
    error = refused("train", "--data", "mnist", "--out", "run")
    assert "t10k-labels-idx1-ubyte.gz" in error
    assert not (tmp_path / "run").exists()


def test_missing_data_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    monkeypatch.delenv("FFGB_DATA", raising=False)
    assert "FFGB_DATA" in refused("train", "--data", "mnist")
