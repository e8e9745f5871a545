"""Files as hospitals export them: read as their clean form, or refused with the remedy; none is silently wrong."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.data import Dataset, load_sites, read_points
from ffgb.data.dates import expand, names_of
from ffgb.data.preprocess import Column, Table
from ffgb.data.reading import Reading, bare_name
from ffgb.errors import FFGBError

N = 30
YEAR = 365.25


def clean() -> pd.DataFrame:
    """Numbers with and without fractions, umlauts, and a target."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, N),
            "kreatinin": rng.integers(5, 40, N) / 16,
            "stadt": np.array(["Zürich", "Basel", "Köln"])[np.arange(N) % 3],
            "tod": np.array(["ja", "nein"])[rng.permutation(N) % 2],
        }
    )


def text(frame: pd.DataFrame, sep: str = ",", decimal: str = ".", **more: object) -> str:
    return str(frame.to_csv(index=False, sep=sep, decimal=decimal, **more))  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("clean") / "clean.csv"
    path.write_text(text(clean()), encoding="utf-8")
    return load_sites([path], "tod", least=1, rare=1)


def same(path: Path, expected: Dataset, reading: Reading | None = None) -> Dataset:
    data = load_sites([path], "tod", least=1, rare=1, reading=reading or Reading())
    assert data.columns == expected.columns
    assert data.classes == expected.classes
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)
    np.testing.assert_array_equal(data.x_test, expected.x_test)
    return data


SEPS = {"comma": ",", "semicolons": ";", "tabs": "\t", "bars": "|"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("sep", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", ","), ("|", ".")])
def test_marks_encodings_and_packing(
    tmp_path: Path, expected: Dataset, sep: str, decimal: str, encoding: str, packed: bool
) -> None:
    content = text(clean(), sep, decimal).encode(encoding)
    path = tmp_path / f"{'site.tsv' if sep == chr(9) else 'site.csv'}{'.gz' * packed}"
    path.write_bytes(gzip.compress(content) if packed else content)
    data = same(path, expected)
    plain = sep == "," and not packed and encoding.startswith("utf-8")
    assert bool(data.told) != plain
    assert data.sites == ("site",)


def excel(path: Path, frame: pd.DataFrame, **more: object) -> None:
    pytest.importorskip("openpyxl")
    frame.to_excel(path, index=False, **more)  # type: ignore[arg-type]


LINES: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "crlf": lambda f: text(f, lineterminator="\r\n").encode(),
    "old mac": lambda f: text(f, lineterminator="\r").encode(),
    "blank lines": lambda f: text(f).replace("\n", "\n\n").encode(),
    "excel's first line": lambda f: ("sep=;\r\n" + text(f, ";", ",", lineterminator="\r\n")).encode("utf-8-sig"),
    "spaces after marks": lambda f: text(f).replace(",", ", ").encode(),
    "spaces in the header": lambda f: text(f).replace("age", " age ", 1).encode(),
    "all quoted": lambda f: text(f, quoting=1).encode(),
    "all quoted, decimal commas": lambda f: text(f, ";", ",", quoting=1).encode(),
    "quoted marks": lambda f: text(f.assign(stadt=f["stadt"] + ", CH")).replace(", CH", "").encode(),
}


@pytest.mark.parametrize("name", LINES)
def test_lines(tmp_path: Path, expected: Dataset, name: str) -> None:
    path = tmp_path / "site.csv"
    path.write_bytes(LINES[name](clean()))
    same(path, expected)


@pytest.mark.parametrize("kind", ["xlsx", "two sheets", "parquet", "gzip without its ending"])
def test_other_kinds(tmp_path: Path, expected: Dataset, kind: str) -> None:
    path, frame, reading = tmp_path / "site.xlsx", clean(), Reading()
    if kind == "xlsx":
        excel(path, frame)
    elif kind == "two sheets":
        excel(path, frame)
        with pd.ExcelWriter(path, mode="a") as book:
            pd.DataFrame({"legend": ["age in years"]}).to_excel(book, sheet_name="Legende", index=False)
        with pytest.raises(FFGBError, match=r"site\.xlsx has the sheets 'Sheet1', 'Legende'; say which with --sheet"):
            same(path, expected)
        with pytest.raises(FFGBError, match=r"no sheet 'Daten' \(--sheet\); it has 'Sheet1', 'Legende'"):
            same(path, expected, Reading(sheet="Daten"))
        reading = Reading(sheet="Sheet1")
    elif kind == "parquet":
        path = tmp_path / "site.parquet"
        frame.astype({"stadt": "category"}).to_parquet(path)
    else:
        path = tmp_path / "site.csv"
        path.write_bytes(gzip.compress(text(frame).encode()))
    same(path, expected, reading)


@pytest.mark.parametrize("how", ["csv", "decimal commas", "xlsx", "parquet"])
def test_values_that_stand_for_unknown_ones(tmp_path: Path, how: str) -> None:
    frame = clean().astype({"age": float, "kreatinin": object})
    known = frame.copy()
    known.loc[3, "age"] = known.loc[5, "kreatinin"] = known.loc[7, "stadt"] = None
    known.to_csv(tmp_path / "known.csv", index=False)
    frame.loc[3, "age"], frame.loc[5, "kreatinin"], frame.loc[7, "stadt"] = -999, "unbekannt", "unbekannt"
    path = tmp_path / f"site.{how if how in ('xlsx', 'parquet') else 'csv'}"
    if how == "xlsx":
        excel(path, frame)
    elif how == "parquet":
        frame["kreatinin"] = frame["kreatinin"].astype(str)
        frame.to_parquet(path)
    elif how == "csv":
        path.write_text(text(frame))
    else:
        frame["kreatinin"] = frame["kreatinin"].map(lambda v: str(v).replace(".", ","))
        path.write_text(text(frame, ";", ","))
    with pytest.raises(FFGBError, match=r"'unbekannt' in row 6; .*--missing"):
        load_sites([path], "tod")
    same(path, load_sites([tmp_path / "known.csv"], "tod", least=1, rare=1), Reading(missing=("-999", "unbekannt")))


def test_columns_that_are_left_out(tmp_path: Path, expected: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "site.csv"
    clean().assign(name=[f"Frau {i}" for i in range(N)], fehler=["1,2 oder so"] * N).to_csv(path, index=False)
    same(path, expected, Reading(drop=("name", "fehler")))
    with caplog.at_level("WARNING", "ffgb"):
        same(path, expected, Reading(drop=("name", "fehler", "nmae")))
    assert "site.csv: there is no column 'nmae' to drop" in caplog.text
    with pytest.raises(FFGBError, match="--drop names the target 'tod'"):
        load_sites([path], "tod", reading=Reading(drop=("tod",)))


# What is refused, with the remedy


def in_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "thousands or decimals, commas": ("a.csv", "a;y\n1,250;0\n2,500;1\n", r"'1,250', in which the mark .* --decimal$"),
    "thousands or decimals, points": ("a.csv", "a;y\n1.250;0\n2.500;1\n", r"'1\.250', in which the mark .* --decimal$"),
    "thousands in one row": (
        "a.csv", "a;b;y\n" + "1,5;2,5;0\n" * 9 + "1.250;2;1\n", r"'1\.250' in row 10, where decimals have commas"),
    "two marks": ("a.csv", "a,b;c,y\n1,2;3,0\n", r"may have commas or semicolons between its values; .*--sep$"),
    "commas in a number among commas": ("a.csv", 'a,y\n"1,5",0\n"2,5",1\n', "with a decimal point"),
    "another encoding": ("a.csv", "a,y\nKöln,0\n".encode("cp850"), r"its encoding is not clear; .*--encoding$"),
    "japanese": ("a.csv", "a,y\n東京都,0\n京都府,1\n".encode("shift_jis"), r"its encoding is not clear; .*--encoding$"),
    "a short row": ("a.csv", "a,b,y\n1,2,0\n3,1\n", r"has 2 values in row 2 and 3 names in its header; complete"),
    "a long row": (
        "a.csv", "a;b;y\n1;2;0\n3;4;1;5\n",
        r"has 4 values in row 2 and 3 names in its header; quote the values that contain semicolons"),
    "a title above the header": ("a.csv", "Export vom 1.5.\na,b,y\n1,2,0\n", r"has 3 values in row 1 and 1 name"),
    "half a gzip": ("a.csv.gz", gzip.compress(b"a,y\n1,0\n" * 99)[:-9], r"is not a whole gzip file; copy it again"),
    "a workbook called csv": ("a.csv", b"PK\3\4 and more", r"an Excel workbook or an archive; name it \.xlsx"),
    "no workbook": ("a.xlsx", b"PK\3\4 and more", r"cannot be read as xlsx"),
    "an old workbook": ("a.xls", b"\xd0\xcf", r"of an unknown kind; save it as \.xlsx or CSV"),
    "an archive": ("a.zip", b"PK\3\4", r"of an unknown kind; unpack it"),
    "polish": ("a.csv", "a,y\nŁódź,0\n".encode("cp1250"), r"its encoding is not clear; .*--encoding$"),
    "russian": ("a.csv", "a,y\nМосква,0\n".encode("cp1251"), r"its encoding is not clear; .*--encoding$"),
    "dates in two orders": (
        "a.csv", "d,y\n13/01/2020,0\n01/13/2020,1\n", r"in different orders, '01/13/2020' in row 2"),
    "no such day": ("a.csv", "d,y\n2020-01-31,0\n2020-02-31,1\n", r"has '2020-02-31' among dates, in row 2"),
    "a word among dates": (
        "a.csv", "d,y\n2020-01-31,0\n2020-02-01,1\nheute,1\n", r"has 'heute' among dates, in row 3; .*--missing$"),
    "a date without end": ("a.csv", "d,y\n2020-01-31,0\n9999-12-31,1\n", r"the date 9999-12-31 in row 2; if it stands"),
    "below the limit": ("a.csv", "a,y\n1,0\n<0.1,1\n2,0\n", r"'<0\.1' in row 2; .*--missing"),
    "only dates of two digits": ("a.csv", "d,y\n17.05.23,0\n18.05.23,1\n", r"no feature columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    file, content, words = REFUSED[name]
    with pytest.raises(FFGBError, match=words) as caught:
        load_sites([in_file(tmp_path / file, content)], "y")
    assert file in str(caught.value)


def test_what_decides_can_be_said(tmp_path: Path) -> None:
    path = in_file(tmp_path / "a.csv", "a;y\n1,250;0\n2,500;1\n")
    found = load_sites([path], "y", holdout=0.0, reading=Reading(decimal=","))
    assert found.x[:, 0].tolist() == [1.25, 2.5]
    path = in_file(tmp_path / "b.csv", "a,b;c,y\n1,2;3,0\n2,4;5,1\n")
    assert load_sites([path], "y", holdout=0.0, rare=1, reading=Reading(sep="comma", drop=("b;c",))).columns == ("a",)
    path = in_file(tmp_path / "c.csv", "a^y\n1^0\n2^1\n")
    assert load_sites([path], "y", holdout=0.0, reading=Reading(sep="^")).x.tolist() == [[1], [2]]
    path = in_file(tmp_path / "d.csv", "stadt,y\nKöln,0\nUlm,1\n".encode("cp850"))
    found = load_sites([path], "y", holdout=0.0, rare=1, least=1, reading=Reading(encoding="cp850"))
    assert found.columns == ("stadt=Köln", "stadt=Ulm")
    with pytest.raises(FFGBError, match=r"--encoding is a name such as utf-8, latin-1 or cp1250, not 'klingon'"):
        load_sites([path], "y", reading=Reading(encoding="klingon"))
    with pytest.raises(FFGBError, match="is not text in the encoding 'ascii'; name another with --encoding"):
        load_sites([path], "y", reading=Reading(encoding="ascii"))


# Small files that unpack to large ones


def test_bombs(tmp_path: Path) -> None:
    with (tmp_path / "a.csv.gz").open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb") as file:
        file.write(b"a,y\n")
        for _ in range(110):
            file.write(b"0,0\n" * 2**18)
    with pytest.raises(FFGBError, match=r"unpacks to more than 200 times its size; if you trust it, unpack it first"):
        load_sites([tmp_path / "a.csv.gz"], "y")
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b" " * 110 * 2**20)
    with pytest.raises(FFGBError, match=r"sheet1\.xml unpacks to 115,343,360 bytes, more than 200 times"):
        load_sites([tmp_path / "a.xlsx"], "y")
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", b"<?xml version='1.0'?><!DOCTYPE lolz [<!ENTITY lol 'lol'>]>")
    with pytest.raises(FFGBError, match=r"is no workbook that Excel writes"):
        load_sites([tmp_path / "b.xlsx"], "y")


def test_a_formula_that_was_never_computed(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("a", "y"), (1, 0), ("=A2+1", 1)):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(FFGBError, match="has a formula without a value in row 2, column 1; open it in Excel and save"):
        load_sites([tmp_path / "a.xlsx"], "y")


# Dates


def dated(values: list[object], **more: object) -> pd.DataFrame:
    return pd.DataFrame({"d": values, **more})


FORMS: dict[str, list[object]] = {
    "iso": ["2020-05-17", "2021-12-01", None],
    "slashes first": ["2020/05/17", "2021/12/1", ""],
    "german": ["17.05.2020", "1.12.2021", None],
    "british": ["17/05/2020", "01/12/2021", None],
    "american": ["05/17/2020", "12/01/2021", None],
    "named": ["17-May-2020", "01DEC2021", None],
    "datetimes": [pd.Timestamp("2020-05-17"), pd.Timestamp("2021-12-01"), pd.NaT],
    "days": [pd.Timestamp("2020-05-17").date(), pd.Timestamp("2021-12-01").date(), None],
    "with a zone": [*pd.to_datetime(["2020-05-17", "2021-12-01"]).tz_localize("Europe/Zurich"), pd.NaT],
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_dates(name: str) -> None:
    frame, notes = expand(dated(FORMS[name], x=[1, 2, 3]), Path("a.csv"))
    assert list(frame.columns) == [*names_of("d"), "x"]
    days = (pd.to_datetime(["2020-05-17", "2021-12-01"]) - pd.Timestamp("2000-01-01")).days.to_numpy()
    np.testing.assert_allclose(frame.iloc[:2, 0], days / YEAR)
    angle = 2 * np.pi * np.array([137, 334]) / YEAR
    np.testing.assert_allclose(frame.iloc[:2, 1], np.cos(angle))
    np.testing.assert_allclose(frame.iloc[:2, 2], np.sin(angle))
    assert frame.iloc[2, :3].isna().all()
    assert notes == ["dates become elapsed time and season: d"]


@pytest.mark.parametrize(
    ("text", "part"),
    [("2020-05-17T18:00:00Z", 0.75), ("2020-05-17 06:00", 0.25), ("5/17/2020 6:00 PM", 0.75),
     ("17.05.2020 12:00 AM", 0)],
)  # fmt: skip
def test_times_of_day(text: str, part: float) -> None:
    frame, _ = expand(dated([text]), Path("a.csv"))
    assert frame.to_numpy()[0, 0] * YEAR == pytest.approx(7442 + part)


def test_dates_that_cannot_be_told_are_named_and_left_out() -> None:
    frame, notes = expand(dated(["01/02/2020", "03/04/2020"], x=[1, 2]), Path("a.csv"))
    assert list(frame.columns) == ["x"]
    assert notes == [
        "the column 'd' is left out: day and month of its dates cannot be told apart; write 2023-05-17, "
        "or say it in a schema (order)"
    ]
    frame, _ = expand(dated(["01/02/2020", "03/04/2020"]), Path("a.csv"), orders={"d": "dmy"})
    assert (frame.to_numpy()[1, 0] - frame.to_numpy()[0, 0]) * YEAR == pytest.approx(62)
    frame, notes = expand(dated(["17.05.23", "18.05.23"], x=[1, 2]), Path("a.csv"))
    assert list(frame.columns) == ["x"]
    assert "years of two digits" in notes[0]


def test_days_between_dates(tmp_path: Path) -> None:
    frame = pd.DataFrame({"out": ["2020-05-20", "2020-06-01"], "in": ["2020-05-17", None], "y": [0, 1]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found, _ = expand(frame, Path("a.csv"), {"y"})
    assert found["in to out: days"].tolist()[0] == 3
    assert np.isnan(found["in to out: days"].tolist()[1])
    table = Table((Column("in to out: days", fill=9.0), Column("in: years since 2000", fill=0.0)))
    assert read_points(tmp_path / "a.csv", table)[:, 0].tolist() == [3, 9]


def test_new_rows_with_dates_need_not_look_like_dates(tmp_path: Path) -> None:
    """What a column of the model is, decides, and not what most of its values look like here."""
    table = Table((Column("d: years since 2000", fill=5.0), Column("a")))
    path = in_file(tmp_path / "new.csv", "d,a\n,1\n,2\n")
    assert read_points(path, table).tolist() == [[5, 1], [5, 2]]
    path = in_file(tmp_path / "new.csv", "d,a\nheute,1\n2020-01-01,2\n")
    with pytest.raises(FFGBError, match="has 'heute' among dates, in row 1"):
        read_points(path, table)


def test_bare_name() -> None:
    assert [bare_name(Path(name)) for name in ("a/north.csv.gz", "north.v2.csv", "north.xlsx")] == [
        "north", "north.v2", "north",
    ]  # fmt: skip


def test_a_gzip_of_bytes_is_read_as_it_is(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb") as file:
        file.write(b"a,y\n1,0\n2,1\n")
    assert load_sites([in_file(tmp_path / "a.tsv.gz", buffer.getvalue())], "y", holdout=0.0).x.tolist() == [[1], [2]]
