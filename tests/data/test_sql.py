"""A query as a site's data: the rows that a file with them has, and nothing is written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ffgb
from ffgb.data.files import load_sites
from ffgb.data.sql import query
from ffgb.errors import FFGBError

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, pd.DataFrame]:
    """Three sites with the same rows in a CSV file and in a database."""
    found = {}
    for k, name in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(k)
        frame = pd.DataFrame({"id": np.arange(90), "age": rng.normal(60, 10, 90).round(2)})
        frame["sex"] = rng.choice(["F", "M"], 90)
        frame["outcome"] = np.where(rng.random(90) < 0.5, "yes", "no")
        frame.loc[3, "age"] = np.nan
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        found[name] = frame
    for name in ("north", "south"):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as connection:
            connection.register("frame", found[name])
            connection.execute("CREATE TABLE patients AS SELECT * REPLACE (nullif(age, 'nan') AS age) FROM frame")
    with closing(sqlite3.connect(tmp_path / "west.db")) as connection:
        found["west"].to_sql("patients", connection, index=False)
    for name, database in (("north", "north.duckdb"), ("south", "south.duckdb"), ("west", "west.db")):
        lines = (f"-- database: {database}", "-- all of them", "SELECT age, sex, outcome FROM patients", "ORDER BY id;")
        (tmp_path / f"{name}.sql").write_text("\n".join(lines))
    return found


def test_a_query_is_as_good_as_a_file(tables: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    for name, frame in tables.items():
        frame.drop(columns="id").to_csv(tmp_path / f"{name}.csv", index=False)
    files = [[tmp_path / f"{name}.{kind}" for name in tables] for kind in ("csv", "sql")]
    one, other = (load_sites(some, "outcome") for some in files)
    for name in ("x", "y", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.classes, one.columns) == (other.classes, other.columns)
    first, second = (ffgb.glm(some, "outcome ~ age * sex") for some in files)
    assert np.array_equal(first.coefficients, second.coefficients)
    assert first.left_out == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("north", "SELECT 1 AS a", "names no database"),
        ("north", "-- database: north.csv\nSELECT 1 AS a", "no database that can be read"),
        ("north", "-- database: east.duckdb\nSELECT 1 AS a", "does not exist"),
        ("north", "-- database: north.duckdb\nDROP TABLE patients", "must have one SELECT"),
        ("north", "-- database: north.duckdb\nSELECT 1 AS a; DROP TABLE patients", "must have one SELECT"),
        ("north", "-- database: north.duckdb\nWITH a AS (SELECT 1) DELETE FROM patients", "fails|one SELECT"),
        ("north", "-- database: north.duckdb\nSELECT agee FROM patients", "fails .*agee"),
        ("north", "-- database: north.duckdb\nSELECT * FROM read_csv('north.csv')", "fails"),
        (
            "north",
            "-- database: north.duckdb\nSELECT age AS a, id AS a FROM patients WHERE id < 0",
            "two columns|no rows",
        ),
        ("west", "-- database: west.db\nSELECT age AS a, id AS a FROM patients", "two columns called 'a'"),
        ("west", "-- database: west.db\nSELECT * FROM patients WHERE id < 0", "gives no rows"),
        ("west", "-- database: west.db\nWITH a AS (SELECT 1) DELETE FROM patients", "fails"),
        ("west", "-- database: west.db\nSELECT 1; DELETE FROM patients", "fails"),
        ("west", "-- database: west.db\nSELECT agee FROM patients", "fails .*agee"),
        ("west", "", "names no database"),
    ],
)
def test_what_cannot_be_read_is_said(
    tables: dict[str, pd.DataFrame], tmp_path: Path, name: str, text: str, said: str
) -> None:
    file = tmp_path / f"{name}.sql"
    before = query(file)
    file.write_text(text)
    with pytest.raises(FFGBError, match=said):
        query(file)
    kind = "west.db" if name == "west" else "north.duckdb"
    file.write_text(f"-- database: {kind}\nSELECT age, sex, outcome FROM patients ORDER BY id")
    pd.testing.assert_frame_equal(query(file), before)
