"""Small files that unpack to huge tables are refused before they are read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ffgb.data import load_sites, sizes
from ffgb.data.files import read_points
from ffgb.data.preprocess import Column, Table
from ffgb.errors import FFGBError

Array = np.ndarray


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A file is refused in words, and nothing of it is read; so much memory is free."""

    def check(path: Path, words: str, free: int = 10**12) -> None:
        def read(*_: object, **__: object) -> None:
            raise AssertionError("it was read")

        with monkeypatch.context() as patch:
            patch.setattr(sizes, "available", lambda: free)
            for module, name in ((np, "load"), (pd, "read_csv"), (pd, "read_parquet")):
                patch.setattr(module, name, read)
            with pytest.raises(FFGBError, match=words):
                load_sites([path], "y")
            with pytest.raises(FFGBError, match=words):
                read_points(path, Table((Column("a"),)))

    return check


def npy(array: Array, shape: str | None = None) -> bytes:
    """An array's file, with another shape in its header."""
    data = io.BytesIO()
    np.save(data, array)
    if shape is None:
        return data.getvalue()
    was = str(array.shape).encode()
    header, rest = data.getvalue()[:128], data.getvalue()[128:]
    assert was in header
    changed = header.replace(was, shape.encode()).rstrip(b" \n")
    return changed + b" " * (127 - len(changed)) + b"\n" + rest


def packed(path: Path, how: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2


def test_files_that_fit_are_read(tmp_path: Path) -> None:
    packed(tmp_path / "a.npz", x=npy(X), y=npy(Y), other=b"whatever it is")
    assert load_sites([tmp_path / "a.npz"]).x.shape[1] == 2
    frame = pd.DataFrame({"a": X[:, 0], "t": ["abc", "d"] * 10, "y": Y})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for file in ("a.parquet", "a.csv"):
        assert len(load_sites([tmp_path / file], "y").y) == 16


def test_an_npz_that_unpacks_to_much_more_than_its_size(tmp_path: Path, refused: Callable[..., None]) -> None:
    zeros = npy(np.zeros((20, 700_000)))
    path = packed(tmp_path / "a.npz", x=zeros, y=npy(Y))
    assert path.stat().st_size < 10**6
    refused(path, r"array x unpacks to 112,000,128 bytes, more than 200 times its size .* with numpy\.savez")
    packed(path, zipfile.ZIP_STORED, x=zeros, y=npy(Y))
    sizes.check_npz(path, ("x", "y"))


def test_an_npz_that_does_not_fit(tmp_path: Path, refused: Callable[..., None]) -> None:
    path = packed(tmp_path / "a.npz", x=npy(np.zeros((20, 1000))), y=npy(Y))
    refused(path, r"a\.npz fills 0\.0 GB of memory or more .* and 0\.0 GB are free; give a smaller file", 10**5)
    # bytes become numbers of eight
    packed(path, x=npy(np.zeros((20, 1000), np.uint8)), y=npy(Y))
    refused(path, "GB are free; give a smaller file", 10**5)


@pytest.mark.parametrize("shape", ["(1000000000, 2)", "(21, 2)", "(20, 1)"])
def test_an_array_that_is_not_as_large_as_it_says(shape: str, tmp_path: Path, refused: Callable[..., None]) -> None:
    path = packed(tmp_path / "a.npz", x=npy(X, shape), y=npy(Y))
    refused(path, r"cannot be read as NPZ \(x\.npy promises [\d,]+ bytes, and 320 follow\)")


def test_an_array_of_nothing_a_billion_times(tmp_path: Path, refused: Callable[..., None]) -> None:
    path = packed(tmp_path / "a.npz", x=npy(X), y=npy(np.zeros(0, "<U1"), "(1000000000000,)").replace(b"<U1", b"<U0"))
    refused(path, "fills 8,000.0 GB of memory")


def test_a_single_array_is_not_read_to_find_that_out(tmp_path: Path, refused: Callable[..., None]) -> None:
    (tmp_path / "a.npz").write_bytes(npy(X, "(1000000000, 2)"))
    refused(tmp_path / "a.npz", "it holds a single array")


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing(how: int, tmp_path: Path, refused: Callable[..., None]) -> None:
    refused(packed(tmp_path / "a.npz", how, x=npy(X), y=npy(Y)), r"cannot be read as NPZ \(x\.npy is packed in a way")


def test_a_parquet_of_equal_values(tmp_path: Path, refused: Callable[..., None]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array(np.zeros(3_000_000)), "y": pa.array(np.zeros(3_000_000))}), path)
    assert path.stat().st_size < 10**5
    refused(path, r"a\.parquet fills 0\.0 GB of memory or more", 40 * 10**6)


@pytest.mark.parametrize(("kind", "rows"), [(pa.string(), 50_000), (pa.binary(10**5), 500)])
def test_a_parquet_of_equal_texts(kind: pa.DataType, rows: int, tmp_path: Path, refused: Callable[..., None]) -> None:
    """A text stands in the file once, and in memory in every row."""
    path, long = tmp_path / "a.parquet", pa.array([b"x" * 10**5], pa.binary()).cast(kind)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), long)
    pq.write_table(pa.table({"t": text, "y": pa.array(np.arange(rows) % 2)}), path, store_schema=False)
    assert path.stat().st_size < 10**6
    refused(path, r"a\.parquet fills \d\.\d GB of memory or more", rows * 5 * 10**4)


def test_texts_that_fit_after_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number times the size of all different texts is only a bound."""
    path, rows = tmp_path / "a.parquet", 20_000
    pd.DataFrame({"t": [f"text {i % 100}" for i in range(rows)], "y": np.arange(rows) % 2}).to_parquet(path)
    monkeypatch.setattr(sizes, "available", lambda: 10**6)
    sizes.check_parquet(path)
    assert sizes._text(path, "t") == sum(len(f"text {i % 100}") for i in range(rows))


def test_a_parquet_of_too_many_rows(
    tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"a": X[:, 0], "y": Y}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(sizes, "MOST_ROWS", 19)
    refused(tmp_path / "a.parquet", "has 20 rows, and a site may have 19; give fewer")


def test_a_table_of_too_many_columns(tmp_path: Path, refused: Callable[..., None]) -> None:
    header = [f"c{i}" for i in range(sizes.MOST_COLUMNS - 1)]
    (tmp_path / "a.csv").write_text(",".join([*header, "y"]) + "\n1,2\n")
    refused(tmp_path / "a.csv", "has 100,000 columns, and a table must have fewer than 100,000; give fewer")


def test_a_parquet_of_too_many_columns(
    tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"a": X[:, 0], "b": 1, "y": Y}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(sizes, "MOST_COLUMNS", 3)
    refused(tmp_path / "a.parquet", "has 3 columns, and a table must have fewer than 3; give fewer")


@pytest.mark.parametrize("start", ["", "a,y\n", "\n\n"])
def test_an_endless_line(start: str, tmp_path: Path, refused: Callable[..., None]) -> None:
    with (tmp_path / "a.csv").open("w") as file:
        file.write(start)
        file.write("1" * (sizes.LONGEST_LINE + 10))
    refused(tmp_path / "a.csv", "has a line of more than 16,777,216 characters; is it a table")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_short_rows_under_a_long_header(end: str, tmp_path: Path, refused: Callable[..., None]) -> None:
    """What is missing in a row is filled up: two bytes of the file become a whole row."""
    columns, rows = 50_000, 200_000
    text = ",".join([*(f"c{i}" for i in range(columns - 1)), "y"]) + end + f"1{end}" * rows
    (tmp_path / "a.csv").write_bytes(text.encode())
    refused(tmp_path / "a.csv", r"a\.csv fills 80\.\d GB of memory or more", 24 * 10**9)


def test_a_csv_larger_than_memory(
    tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "_BLOCK", "not even its lines are counted")
    with (tmp_path / "a.csv").open("w") as file:
        file.write("a,y\n1,2\n")
        file.truncate(10**11)  # it takes no place on the disk
    refused(tmp_path / "a.csv", r"a\.csv fills 100\.0 GB of memory or more .*, and 24\.0 GB are free", 24 * 10**9)
