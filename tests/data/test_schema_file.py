"""Schemas: drafted, edited, read by; wrong ones are refused by their lines, and values outside them by their rows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.data import load_sites, read_points
from ffgb.data.reading import Reading
from ffgb.data.schema_file import ColumnRule, SchemaFile, draft
from ffgb.errors import FFGBError

SCHEMA = """\
target = "sick"
missing = ["-999"]
[columns.age]
type = "number"
unit = "years"
bounds = [0, 120]
[columns.code]
type = "category"
categories = ["1", "2"]
[columns.day]
type = "date"
order = "mdy"
[columns.id]
type = "drop"
[columns.sick]
type = "category"
categories = ["no", "yes"]
"""
TABLE = "id,age,code,day,sick,more\n" + "".join(
    f"k{i},{20 + i if i else -999},{1 + i % 2},0{1 + i % 9}/02/2020,{'yes' if i % 3 else 'no'},{i}\n" for i in range(40)
)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA)
    return path


def table(folder: Path, text: str = TABLE) -> Path:
    path = folder / "a.csv"
    path.write_text(text)
    return path


def test_a_file_is_read_by_its_schema(tmp_path: Path, schema: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = load_sites([table(tmp_path)], "sick", holdout=0.0, least=1, reading=Reading.of({"schema": str(schema)}))
    day = ("day: years since 2000", "day: season (cosine)", "day: season (sine)")
    assert data.columns == ("age", "code=1", "code=2", *day, "age missing")
    assert data.x[0, -1] == 1  # -999
    # month first: from January on
    np.testing.assert_allclose(data.x[:2, 3] * 365.25, [7306, 7337], atol=0.01)
    assert "a.csv: not in the schema, and not used: more" in caplog.text
    points = read_points(table(tmp_path), data.table, Reading.of({"schema": str(schema)}))
    np.testing.assert_array_equal(points, data.x)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("k3,23,", "k3,230,", "column 'age' has 230 in row 4; the schema allows numbers from 0 to 120 years"),
        ("k3,23,2", "k3,23,7", "column 'code' has '7' in row 4; the schema allows one of 1, 2"),
        ("yes,4", "Yes,4", "column 'sick' has 'Yes' in row 5; the schema allows one of no, yes"),
        ("k3,23,", "k3,alt,", "has text where numbers belong, 'alt' in row 4"),
    ],
)
def test_values_outside_it_are_named_by_row(tmp_path: Path, schema: Path, old: str, new: str, words: str) -> None:
    assert TABLE.count(old) == 1
    with pytest.raises(FFGBError, match=re.escape(words)):
        load_sites([table(tmp_path, TABLE.replace(old, new))], "sick", reading=Reading.of({"schema": str(schema)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[columns.a]\ntype = 'numbr'\n", "line 2: type of 'a' is one of number, category, date, drop, not 'numbr'"),
        ("[columns.a]\nbound = [0, 1]\n", r"line 2, has 'bound', which is no part of a column \(did you mean 'bounds'"),
        ("[columns.a]\nbounds = [3, 1]\n", "line 2: bounds of 'a' is the least and the largest number"),
        ("[columns.a]\nbounds = [0, inf]\n", "line 2: bounds of 'a' is the least and the largest number"),
        ("[columns.a]\ntype = 'date'\nbounds = [0, 1]\n", "line 3: bounds is for columns of the type number, and 'a'"),
        (
            "[columns.a]\ntype = 'category'\ncategories = [1]\n",
            "line 3: categories of 'a' is a list of different texts",
        ),
        ("[columns.a]\ntype = 'date'\norder = 'ymd'\n", "line 3: order of 'a' is one of dmy, mdy, not 'ymd'"),
        ("[columns]\na = 'number'\n", r"line 2: a column is a table such as \[columns.age\], not 'number'"),
        ("colums = 3\n", r"line 1, has 'colums', which is no part of a schema \(did you mean 'columns'"),
        ("target = 'a'\n", "has no columns; each has a table"),
        ("target = 3\n[columns.a]\n", "line 1: target is the name of a column, not 3"),
        ("missing = -999\n[columns.a]\n", "line 1: missing is a list of texts"),
        ("target = 'a'\n[columns.a]\ntype = 'drop'\n", "line 2: the target 'a' is a number or a category"),
        ("[columns.a]\ntype = number\n", "line 2.*put quotes around text"),
    ],
)
def test_wrong_schemas(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(FFGBError, match=words):
        SchemaFile.read(path)


def test_a_draft_says_nothing_of_single_rows() -> None:
    rng = np.random.default_rng(0)
    raw = {
        "age": np.concatenate([rng.uniform(30, 80, 50), [103.7]]),
        "row": np.arange(51.0),
        "name": np.array([f"Frau {i}" for i in range(51)], object),
        "ward": np.array(["north"] * 30 + ["south"] * 20 + ["Frau Meier's own"], object),
        "sodium": np.where(np.arange(51) < 3, -999.0, rng.normal(140, 2, 51).round()),
    }
    found, notes = draft(raw, ["day"], None, 10)
    assert found.columns["age"].bounds == (0.0, 200.0)
    assert [name for name, rule in found.columns.items() if rule.type == "drop"] == ["name"]
    assert found.columns["ward"].categories == ("north", "south")
    assert "1 more in this file, each in fewer than 10 rows" in notes["ward"]
    assert "every value is different" in notes["row"]
    assert "-999 may stand for unknown values" in notes["sodium"]
    text = found.to_toml(notes)
    assert "Frau" not in text
    assert "103.7" not in text


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
RULES = st.one_of(
    st.builds(ColumnRule, unit=NAMES, label=NAMES, bounds=st.sampled_from([None, (-1.5, 2.0), (0.0, 1e300)])),
    st.builds(ColumnRule, st.just("category"), categories=st.lists(NAMES, unique=True, max_size=4).map(tuple)),
    st.builds(ColumnRule, st.just("date"), order=st.sampled_from([None, "dmy", "mdy"])),
)


@given(columns=st.dictionaries(NAMES, RULES, min_size=1, max_size=5), missing=st.lists(NAMES, max_size=3))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, ColumnRule], missing: list[str]
) -> None:
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    schema = SchemaFile(columns, None, tuple(missing))
    path.write_text(schema.to_toml(), encoding="utf-8", newline="")
    tomllib.loads(path.read_text(encoding="utf-8"))
    assert SchemaFile.read(path) == schema


def test_outside() -> None:
    rule = ColumnRule(bounds=(0.0, 1.0))
    assert rule.outside(np.array([0.0, 1.0, 1.1, -0.1, np.nan])).tolist() == [False, False, True, True, False]
    rule = ColumnRule("category", categories=("a",))
    assert rule.outside(np.array(["a", "b", None], object)).tolist() == [False, True, False]
    assert not ColumnRule("category").outside(np.array(["a"], object)).any()


def test_missing_values_are_masked_in_every_kind_of_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, -9], "b": [True, False], "t": ["-9", "x"], "y": ["n", "j"]})
    frame.to_parquet(tmp_path / "a.parquet")
    reading = Reading(missing=("-9",))
    data = load_sites([tmp_path / "a.parquet"], "y", holdout=0.0, rare=1, least=1, reading=reading)
    assert data.columns == ("a", "b", "t=x", "a missing")
    assert data.x[:, 3].tolist() == [0, 1]
