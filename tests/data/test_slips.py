"""Tables as people export them, with rows and columns that are no data, numbers written for people, and their pairs.

Each is read as its clean form, or refused by its row with the remedy, or read with a sentence that names the doubt.
"""

from __future__ import annotations

import datetime
import decimal
import gzip
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ffgb.data import Dataset, load_sites
from ffgb.data.numerals import plain_numbers
from ffgb.data.reading import Reading
from ffgb.data.schema_file import SchemaFile
from ffgb.data.slips import plain
from ffgb.errors import FFGBError

N = 40


def clean() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "cost": rng.integers(1000, 9_999_999, N) / 4,
            "age": rng.integers(20, 90, N),
            "stadt": np.array(["Zürich", "Basel", "Köln"])[np.arange(N) % 3],
            "tod": np.array(["ja", "nein"])[rng.permutation(N) % 2],
        }
    )


def rows(frame: pd.DataFrame, write: Callable[[str, Any], str], sep: str = ",") -> list[str]:
    """The lines of a file, each cell as it is to be written."""
    body = [sep.join(write(str(name), value) for name, value in row.items()) for row in frame.to_dict("records")]
    return [sep.join(map(str, frame.columns)), *body]


def as_is(name: str, value: Any) -> str:
    return str(value)


def swiss(name: str, value: Any) -> str:
    return f"{value:,.2f}".replace(",", "'") if name == "cost" else str(value)


def french(name: str, value: Any) -> str:
    return f"{value:,.2f}".replace(",", "\u202f").replace(".", ",") if name == "cost" else str(value)


def german(name: str, value: Any) -> str:
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,")) if name == "cost" else str(value)


def english(name: str, value: Any) -> str:
    return f'"{value:,.2f}"' if name == "cost" else str(value)


def apart(name: str, value: Any) -> str:
    """Letters and their accents apart, as on a Mac; hard spaces; a mark of no width."""
    return f"\u00a0{unicodedata.normalize('NFD', str(value))}\u200b" if name == "stadt" else str(value)


def tail(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


SEMI = ";"
RIGHT: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "swiss thousands": lambda f: tail(rows(f, swiss, SEMI)).encode(),
    "swiss thousands among commas": lambda f: tail(rows(f, swiss)).encode(),
    "french thousands, tabs": lambda f: tail(rows(f, french, "\t")).encode(),
    "french thousands, latin-1": lambda f: tail(rows(f, french, SEMI)).replace("\u202f", "\u00a0").encode("latin-1"),
    "german thousands": lambda f: tail(rows(f, german, SEMI)).encode(),
    "german thousands, UTF-16, packed": lambda f: gzip.compress(tail(rows(f, german, SEMI)).encode("utf-16")),
    "english thousands, quoted": lambda f: tail(rows(f, english)).encode(),
    "english thousands, bars": lambda f: tail(rows(f, english, "|")).encode(),
    "a minus of a word processor": lambda f: tail(rows(f, as_is)).encode(),
    "empty columns at the end": lambda f: tail([line + ",,," for line in rows(f, as_is)]).encode(),
    "empty columns in the middle": lambda f: tail([line.replace(",", ",,", 1) for line in rows(f, as_is)]).encode(),
    "empty rows at the end": lambda f: tail([*rows(f, as_is, SEMI), ";;;", ";;;", " ; ;;"]).encode(),
    "empty rows and columns, german": lambda f: tail([s + ";" for s in [*rows(f, german, SEMI), ";;;"]]).encode(),
    "accents apart": lambda f: tail(rows(f, apart)).encode(),
    "accents apart, UTF-16, swiss": lambda f: tail(rows(f, lambda n, v: swiss(n, apart(n, v)) if n != "cost" else
                                                       swiss(n, v), "\t")).encode("utf-16"),
    "two marks of order": lambda f: ("\ufeff\ufeff" + tail(rows(f, as_is))).encode(),
    "line breaks in quotes": lambda f: tail(rows(f, as_is)).replace("Basel", '"Basel\n"').encode(),
    "gzip called csv, with an empty column": lambda f: gzip.compress(tail([s + "," for s in rows(f, as_is)]).encode()),
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("clean") / "clean.csv"
    path.write_text(tail(rows(clean(), as_is)), encoding="utf-8")
    return load_sites([path], "tod", least=1, rare=1)


def same(path: Path, expected: Dataset, reading: Reading | None = None) -> Dataset:
    data = load_sites([path], "tod", least=1, rare=1, reading=reading or Reading())
    assert data.columns == expected.columns
    assert data.classes == expected.classes
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)
    return data


@pytest.mark.parametrize("name", RIGHT)
def test_read_as_the_clean_file(tmp_path: Path, expected: Dataset, name: str) -> None:
    path = tmp_path / "site.csv"
    path.write_bytes(RIGHT[name](clean()))
    data = same(path, expected)
    if "thousands" in name:
        assert any("marks between thousands are left out: cost" in line for line in data.told)
    if "empty" in name:
        assert any("left out" in line for line in data.told)


def excel(path: Path, lines: list[list[Any]], merged: str = "") -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for line in lines:
        book.active.append(line)
    if merged:
        book.active.merge_cells(merged)
    book.save(path)
    return path


def cells(frame: pd.DataFrame) -> list[list[Any]]:
    return [list(frame.columns), *frame.astype(object).to_numpy().tolist()]


def test_workbooks(tmp_path: Path, expected: Dataset) -> None:
    frame = clean()
    offset = [[], [], *([None, None, *line] for line in cells(frame))]
    same(excel(tmp_path / "site.xlsx", offset), expected)
    texts = frame.assign(cost=frame["cost"].map(lambda v: f"{v:,.2f}".translate(str.maketrans(",.", ".,"))))
    same(excel(tmp_path / "site.xlsx", cells(texts)), expected)
    plain_commas = frame.assign(cost=frame["cost"].map(lambda v: f"{v:.2f}".replace(".", ",")))
    excel(tmp_path / "site.xlsx", cells(plain_commas))
    with pytest.raises(FFGBError, match="with a decimal point"):
        same(tmp_path / "site.xlsx", expected)
    same(tmp_path / "site.xlsx", expected, Reading(decimal=","))


def test_merged_cells(tmp_path: Path) -> None:
    lines: list[list[Any]] = [["ward", "age", "y"], *[["A" if i == 0 else None, 30 + i, i % 2] for i in range(8)]]
    with pytest.raises(FFGBError, match=r"merged cells, A2:A5, of which only the first has the value; unmerge"):
        load_sites([excel(tmp_path / "a.xlsx", lines, "A2:A5")], "y")
    title: list[list[Any]] = [["Export 2020", None, None], ["ward", "age", "y"], *lines[1:]]
    with pytest.raises(FFGBError, match=r"it may be a second header or the units|has no name"):
        load_sites([excel(tmp_path / "b.xlsx", title, "A1:C1")], "y")


def test_words_for_unknown_values_are_the_same_in_files_of_all_kinds(tmp_path: Path) -> None:
    words = ["", "NA", "n/a", "NULL", "null", "None", "nan", "NaN", "#N/A", "?"]
    frame = pd.DataFrame({"a": words + ["x", "z"] * 10, "b": range(30), "y": [0, 1] * 15})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    files = [tmp_path / "a.csv", tmp_path / "a.parquet", excel(tmp_path / "a.xlsx", cells(frame))]
    found = [load_sites([file], "y", holdout=0.0, rare=1, least=1) for file in files]
    for data in found:
        assert data.columns == ("a=x", "a=z", "b")
        np.testing.assert_array_equal(data.x, found[0].x)


def lines_of(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def many(form: str, n: int = 25) -> list[str]:
    return [form.format(i=i, j=i + 1, k=i % 2, l="ab"[i % 2]) for i in range(n)]


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a row of totals": (
        lines_of("id,age,y", *many("{i},{j},{k}"), "Total,325,12"), r"has 'Total' in row 26, its last one; remove"),
    "totals in german, with semicolons": (
        lines_of("ward;cost;y", *many("w{k};{j},5;{l}"), "Summe:;325,5;4"), r"has 'Summe:' in row 26"),
    "totals without a word": (
        lines_of("age,cost,y", *many("{j},{j}.5,{k}"), "325,337.5,12"), r"row 26, its last one, are the sums of those"),
    "means at the end": (
        lines_of("ward,age,y", *many("w{k},{j},{l}"), "Mean,13,a"), r"has 'Mean' in row 26, its last one"),
    "two headers": (
        lines_of("Lab,,Person,y", "na,k,age,", *many("{i},{j},{i},{k}")), r"text in row 1 where .* a second header"),
    "a row of units": (
        lines_of("na,k,sex,y", "mmol/l,mmol/l,f/m,0/1", *many("{i},{j},f,{k}")), r"'na' has 'mmol/l', .* the units"),
    "units, decimal commas, UTF-16": (
        lines_of("na;k;y", "mmol/l;g/l;-", *many("{i},5;{j},5;{l}")).encode("utf-16"), r"text in row 1 where"),
    "the header again": (
        lines_of("a,y", *many("p{k},{l}"), "a,y", *many("p{k},{l}")), r"has its header again in row 26; remove"),
    "the header again, numbers": (
        lines_of("a;b;y", *many("{i};{j},5;{k}"), "a;b;y", *many("{i};{j},5;{k}")), r"its header again in row 26"),
    "percent": (lines_of("a,y", *many("{j}%,{k}")), r"has '1%' in row 1, a number with something around it; .*unit"),
    "percent, decimal commas": (lines_of("a;y", *many("{j},5 %;{k}")), r"has '1,5 %' in row 1"),
    "units in cells": (lines_of("a,y", *many("{j} mg/dl,{k}")), r"has '1 mg/dl' in row 1, .*--categories"),
    "money": (lines_of("a;y", *many("{j},50 €;{k}")).encode("cp1252"), r"has '1,50 €' in row 1"),
    "below the limit of detection": (
        lines_of("a,y", *many("<0.01,{k}"), *many("0.{j},{k}")), r"has '<0.01' in row 1, a number with something"),
    "percent in the target": (lines_of("a,y", *many("{i},{j}%")), r"column 'y' has '1%' .* --task classification"),
    "a long number": (
        lines_of("id,y", *many("12345678901234{j:03},{k}")), r"more digits .* --drop, or .* --categories"),
    "a long number and blanks": (
        lines_of("id,b,y", ",1,0", *many("12345678901234{j:03},{i},{k}")), r"in row 2, with more digits"),
    "thousands that may be decimals": (
        lines_of("a;b;y", *many("{j},5;1,5;{k}"), "1.250;1,5;0"),
        r"'1\.250' in row 26, where decimals .* --decimal$"),
    "two ways of writing thousands": (
        lines_of("a;y", "1.250,5;0", *many("{j},5;{k}"), "1,250.5;1"), r"text where numbers belong, '1\.250,5'"),
    "a quotation mark": ('a,note,y\n1,"open,0\n2,ok,1\n', r"has a quotation mark that is never closed; remove it"),
    "marks at the ends of rows": (lines_of("a;y", "1;0;", "2;1;"), r"remove the mark at the end of each row"),
    "a long row, late": (lines_of("a,y", *many("{i},{k}"), "1,2,3"), r"has 3 values in row 26 and 2 names"),
    "spaces between values": (lines_of("a y", "1 0", "2 1"), r"has one column, 'a y'; say which mark .* --sep$"),
    "a title": (lines_of("Export of 1 May", "", "a,y", "1,0"), r"the first line must be the header: remove what"),
    "a web page": ("<html><table><tr><td>a</td></tr></table></html>\n", r"is no text but a web page or XML; save"),
    "JSON": ('[{"a": 1, "y": 0},\n{"a": 2, "y": 1}]\n', r"is no text but JSON; save the table as CSV"),
    "Parquet called csv": (b"PAR1....PAR1", r"is no text but a Parquet file; name it \.parquet"),
    "a workbook with a password": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", r"old Excel workbook, or one with a password"),
    "bzip2": (b"BZh91AY&SY", r"is packed by bzip2|is no text but packed by bzip2; unpack it"),
    "UTF-16 without a mark": (lines_of("a,y", "1,0").encode("utf-16-le"), r"name its encoding with --encoding"),
    "UTF-32": (lines_of("a,y", "1,0").encode("utf-32"), r"it is not text"),
    "zeros in text": (b"a,y\n1,0\n2\x00,1\n", r"is not text in UTF-8"),
    "an old Mac": (lines_of("stadt,y", "Zürich,0", "Köln,1").encode("mac_roman"), r"its encoding is not clear"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(FFGBError, match=words):
        load_sites([path], "y")


@pytest.mark.parametrize("kind", ["xlsx", "parquet"])
def test_text_under_another_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(FFGBError, match=rf"is no {kind}|Parquet file but something else; if it is text, name it \.csv"):
        load_sites([path], "y")
    path.write_bytes(gzip.compress(b"PK"))
    with pytest.raises(FFGBError, match="but packed by gzip; unpack it"):
        load_sites([path], "y")


DOUBTS: dict[str, tuple[list[str], str]] = {
    "zeros before numbers": (["zip,y", *many("01{i:03},{k}")], "'zip' has '01000', .* --categories=zip"),
    "-999": (["a,y", *many("{j},{k}"), "-999,0", "-999,1"], "'a' has -999 in 2 rows, far .* --missing=-999"),
    "999": (["a,y", *many("{j},{k}"), "999,0", "999,1"], "'a' has 999 in 2 rows, far"),
    "-9 and -99": (["a,y", *many("{j},{k}"), "-9,0", "-9,1", "-99,0", "-99,1"], "'a' has -99 in 2 rows, far"),
    "a word": (["a,y", *many("p,{k}"), *many("unknown,{k}")], "'a' has 'unknown' in 25 rows, .* --missing=unknown"),
    "a point": (["a,y", *many("p,{k}"), *many(".,{k}")], r"'a' has '\.' in 25 rows, .* --missing='\.'"),
    "days of Excel": (["admitted,y", *many("439{j:02},{k}")], "'admitted' has numbers from 43901 to 43925, as Excel"),
    "a range that became a date": (["age,y", *many("0-9,{k}"), *many("Oct-19,{k}")], "'Oct-19': if it was a range"),
    "a number cut off": (["id,y", *many("1.234{i:02}E+12,{k}")], "Excel has cut off the last digits .* --drop=id"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_what_may_be_wrong_is_said(tmp_path: Path, name: str) -> None:
    lines, words = DOUBTS[name]
    path = tmp_path / "a.csv"
    path.write_text(lines_of(*lines))
    told = load_sites([path], "y", rare=1, least=1).told
    assert [line for line in told if pd.Series([line]).str.contains(words).all()], told


def test_what_is_not_doubtful_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = many("{j},-{i},1{k} mg,none,{i},{k}")
    path.write_text(lines_of("age,change,dose,stage,visit,y", *lines, "99,-9,11 mg,x,3,0"))
    assert load_sites([path], "y", rare=1, least=1).told == ()


def test_dates_without_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(lines_of("d,y", "20200517,0", ",1", "20211201,1"))
    marked = tmp_path / "b.csv"
    marked.write_text(lines_of("d,y", "2020-05-17,0", ",1", "2021-12-01,1"))
    found, expected = (load_sites([file], "y", holdout=0.0, least=1) for file in (path, marked))
    assert found.columns == expected.columns
    np.testing.assert_array_equal(found.x, expected.x)
    path.write_text(lines_of("d,y", *many("202005{j:02}120000,{k}")))
    assert load_sites([path], "y", least=1).columns[0] == "d: years since 2000"
    path.write_text(lines_of("d,y", *many("2020{j:02}{j:02},{k}")))  # months beyond 12
    assert load_sites([path], "y", least=1).columns == ("d",)


def test_days_of_excel_by_a_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(lines_of("admitted,y", "43968,0", "44531,1"))
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns.admitted]\ntype = "date"\n')
    reading = Reading(schema=SchemaFile.read(schema))
    found = load_sites([path], "y", holdout=0.0, least=1, reading=reading)
    days = (pd.to_datetime(["2020-05-17", "2021-12-01"]) - pd.Timestamp("2000-01-01")).days.to_numpy()
    np.testing.assert_allclose(found.x[:, 0], days / 365.25, rtol=1e-6)


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_of_all_kinds(tmp_path: Path) -> None:
    y = [i % 2 for i in range(8)]
    days = [datetime.date(2020, 5, 1 + i) for i in range(8)]
    found = load_sites(
        [
            table(
                tmp_path / "a.parquet",
                price=pa.array([None, *[decimal.Decimal("1.25") + i for i in range(7)]]),
                when=pa.array([datetime.datetime(2020, 5, 1 + i, 23) for i in range(8)], pa.timestamp("us", "UTC")),
                day=pa.array(days),
                ward=pa.array(list("abababab")).dictionary_encode(),
                level=pa.array([10, 20] * 4).dictionary_encode(),
                smokes=pa.array([True, None] * 4),
                y=y,
            )
        ],
        "y",
        holdout=0.0,
        rare=1,
        least=1,
    )
    named = dict(zip(found.columns, found.x.T, strict=True))
    assert named["price"][1:].tolist() == [1.25 + i for i in range(7)]
    assert named["price missing"].tolist() == [1.0] + [0.0] * 7
    assert named["ward=a"].tolist() == [1.0, 0.0] * 4
    assert named["level"].tolist() == [10.0, 20.0] * 4
    hours = (named["when: years since 2000"] - named["day: years since 2000"]) * 365.25
    np.testing.assert_allclose(hours, 23 / 24, atol=0.01)
    smokes = load_sites(
        [table(tmp_path / "b.parquet", smokes=pa.array([True, None, False] * 3), y=[0, 1, 1] * 3),
         table(tmp_path / "c.parquet", smokes=pa.array([True, False, True] * 3), y=[0, 1, 1] * 3)],
        "y", rare=1, least=1, categories=["smokes"],
    )  # fmt: skip
    assert smokes.columns == ("smokes=False", "smokes=True")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1, 2]] * 8), "neither numbers nor text, in row 1"),
        (pa.array([{"u": 1}] * 8), "neither numbers nor text, in row 1"),
        (pa.array([b"\xff"] * 8), "holds bytes, which are neither numbers nor text; .* --drop"),
        (pa.array([datetime.time(5, i) for i in range(8)]), "neither numbers nor text, in row 1"),
        (pa.array([datetime.timedelta(days=i) for i in range(8)]), "turn them into plain numbers or remove"),
        (pa.array([2**60 + i for i in range(8)]), "with more digits than a measurement has"),
        (pa.array([datetime.date(9999, 12, 31)] * 8), "the date 9999-12-31 in row 1"),
    ],
)
def test_columns_of_parquet_that_are_refused(tmp_path: Path, column: Any, words: str) -> None:
    path = table(tmp_path / "a.parquet", a=column, b=[1, 2] * 4, y=[0, 1] * 4)
    with pytest.raises(FFGBError, match=words):
        load_sites([path], "y")
    assert load_sites([path], "y", least=1, reading=Reading(drop=("a",))).columns == ("b",)


def test_a_mark_that_was_said_decides(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text, mark, numbers in (
        ("a;y\n1.250;0\n1,5;1\n", ",", [1250, 1.5]),
        ("a;y\n1,250;0\n1.5;1\n", ".", [1250, 1.5]),
        ("a;y\n1.250;0\n2.500;1\n", ",", [1250, 2500]),
        ("a;y\n1.250;0\n2.500;1\n", ".", [1.25, 2.5]),
    ):
        path.write_text(text)
        found = load_sites([path], "y", holdout=0.0, reading=Reading(decimal=mark))
        assert found.x[:, 0].tolist() == numbers
    path.write_text("a;y\n1.25;0\n1,5;1\n")
    with pytest.raises(FFGBError, match=r"'1\.25' in row 1, where decimals have commas"):
        load_sites([path], "y", reading=Reading(decimal=","))


def test_text_stays_text() -> None:
    for words in (["a", "1'000"], ["079 123", "x", "y"], ["10-19", "20-29"], ["12:30", "13:30"], ["1.2.3", "4.5.6"]):
        values = pd.Series(words, dtype=object)
        assert plain_numbers(values, None, "it", given=False)[0] is values
    assert plain("a\u00a0b\ufeff") == "a b"
