"""A query as a site's data: a .sql file that names a database and has one SELECT, which is run read-only.

    -- database: hospital.duckdb
    SELECT age, sex, outcome FROM patients WHERE year >= 2015 ORDER BY id

The database is a file of DuckDB or of SQLite (.sqlite, .db), beside the .sql file or at an absolute path.
"""

from __future__ import annotations

import importlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from ffgb.errors import FFGBError, missing_extra

LONGEST = 2**20
"""Bytes of a .sql file."""
DUCKDB, SQLITE = (".duckdb", ".ddb"), (".sqlite", ".sqlite3", ".db")
_DATABASE = re.compile(r"^--\s*database:\s*(\S.*?)\s*$", re.MULTILINE)


def query(path: Path) -> pd.DataFrame:
    """The rows that the query in a file gives."""
    if path.stat().st_size > LONGEST:
        raise FFGBError(f"{path} is too long for a query; give a file with one SELECT")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    named = _DATABASE.search(text)
    if named is None:
        raise FFGBError(f"{path} names no database; begin it with a line such as: -- database: hospital.duckdb")
    database = path.parent / named[1]
    kind = database.suffix.lower()
    if kind not in (*DUCKDB, *SQLITE):
        raise FFGBError(
            f"{path}: {named[1]} is no database that can be read; give a file of DuckDB ({', '.join(DUCKDB)}) or of "
            f"SQLite ({', '.join(SQLITE)})"
        )
    if not database.is_file():
        raise FFGBError(f"{path}: the database {named[1]} does not exist; check the path, from the folder of {path}")
    statement = re.sub(r"(?m)^\s*--.*$", "", text).strip().rstrip(";")
    if re.match(r"(?i)(select|with)\b", statement) is None:
        raise FFGBError(f"{path} must have one SELECT after the line with the database")
    found = _duckdb(path, database, statement) if kind in DUCKDB else _sqlite(path, database, statement)
    for name in found.columns[found.columns.duplicated()]:
        raise FFGBError(f"{path} gives two columns called {name!r}; rename or leave out one")
    if found.empty:
        raise FFGBError(f"the query in {path} gives no rows; give one with rows")
    return found


def _duckdb(path: Path, database: Path, statement: str) -> pd.DataFrame:
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise missing_extra("duckdb", "sql", f"the database {database.name}") from error
    try:
        # no file but the database is read or written
        config = {"enable_external_access": "false"}
        with duckdb.connect(str(database), read_only=True, config=config) as connection:
            parsed = connection.extract_statements(statement)
            if len(parsed) != 1 or parsed[0].type != duckdb.StatementType.SELECT:
                raise FFGBError(f"{path} must have one SELECT after the line with the database")
            result: pd.DataFrame = connection.execute(parsed[0]).df()
            return result
    except duckdb.Error as error:
        raise _failed(path, error) from error


def _sqlite(path: Path, database: Path, statement: str) -> pd.DataFrame:
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            cursor = connection.execute(statement)
            return pd.DataFrame(cursor.fetchall(), columns=[each[0] for each in cursor.description or ()])
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: Exception) -> FFGBError:
    return FFGBError(f"the query in {path} fails ({' '.join(str(error).split())}); correct it, or the database")
