"""Tables of a site as they come: text files of any mark and encoding, packed or not, Excel workbooks, Parquet.

Whatever the kind of the file, the same follows: columns that are left out, values that stand for unknown ones, dates.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ffgb.core.types import Array
from ffgb.data.dates import expand, sources
from ffgb.data.delimited import MARKS, Written, read_delimited
from ffgb.data.preprocess import TEXT
from ffgb.data.schema_file import DATE, DROP, SchemaFile
from ffgb.data.sizes import check_parquet
from ffgb.data.sql import query
from ffgb.data.targets import target_columns
from ffgb.data.workbooks import MAGIC, read_workbook
from ffgb.errors import FFGBError, command, option
from ffgb.settings import DATA, Setting

DELIMITED: Final = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
WORKBOOK: Final = (".xlsx", ".xlsm")
PARQUET: Final = (".parquet", ".pq")
NPZ: Final = (".npz",)
QUERY: Final = (".sql",)
_KINDS: Final = ((DELIMITED, "text"), (WORKBOOK, "xlsx"), (PARQUET, "Parquet"), (NPZ, "NPZ"), (QUERY, "SQL"))
_OLD: Final = {".xls": "save it as .xlsx or CSV", ".ods": "save it as .xlsx or CSV", ".zip": "unpack it",
               ".sav": "save it as CSV or Parquet", ".dta": "save it as CSV or Parquet",
               ".sas7bdat": "save it as CSV or Parquet", ".rds": "save it as CSV or Parquet"}  # fmt: skip


@final
@dataclass(frozen=True)
class Reading:
    """How a site's files are to be read, as far as someone said so."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    schema: SchemaFile | None = None

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Reading:
        """From settings by their names; those that are not there are as by default."""
        given: dict[str, Any] = {
            each.name: settings[each.name] for each in SETTINGS if settings.get(each.name) is not None
        }
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        if "schema" in given:
            given["schema"] = SchemaFile.read(Path(given["schema"]))
        return Reading(**given)

    @property
    def of_values(self) -> Reading:
        """What it says about values: another file may be written in another way."""
        return Reading(drop=self.drop, missing=self.missing, schema=self.schema)

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns whose kind the schema says."""
        return {} if self.schema is None else self.schema.kinds

    def check(self, path: Path, raw: Mapping[str, Array]) -> None:
        """Raise an FFGBError if a value is none that the schema allows."""
        if self.schema is not None and (wrong := self.schema.violations(raw)):
            more = f"; so have {len(wrong) - 1} more columns" if len(wrong) > 1 else ""
            raise FFGBError(f"{path}: {wrong[0]}{more}: {command('data', 'check', path.name, schema='FILE')} lists all")


PLAIN: Final = Reading()


def kind_of(path: Path) -> str | None:
    """The kind of a file by its name: "text", "xlsx", "Parquet", "NPZ" or "SQL"; None if it is none of them."""
    name = path.name.lower()
    return next((kind for endings, kind in _KINDS if name.endswith(endings)), None)


def bare_name(path: Path) -> str:
    """A file's name without its ending.

    >>> bare_name(Path("north.csv.gz"))
    'north'
    """
    return path.with_suffix("").stem if path.suffix.lower() == ".gz" else path.stem


def refuse_unreadable(path: Path) -> None:
    """Raise an FFGBError that says what to do if this cannot be a site's file."""
    if path.is_dir():
        raise FFGBError(f"{path} is a folder; name the files in it, one a client")
    if not path.exists():
        raise FFGBError(f"{path} does not exist; check the path")
    if kind_of(path) is None:
        remedy = _OLD.get(path.suffix.lower(), "give a .csv, .tsv, .xlsx, .parquet, .npz or .sql file")
        raise FFGBError(f"{path} is of an unknown kind; {remedy}")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise FFGBError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if not start:
        raise FFGBError(f"{path} is empty; give a file with rows in it")
    if kind_of(path) == "text" and start == MAGIC:
        raise FFGBError(f"{path} is no text but an Excel workbook or an archive; name it .xlsx, or unpack it")


def read_frame(
    path: Path, kinds: Mapping[str, str], reading: Reading = PLAIN, names: Sequence[str] = (), target: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """A table with at least one row, whose columns are told apart by their names; and how it was read, in sentences.

    Text is read as it is written: whether 01 is a number must not depend on the other rows.  `kinds` are the kinds of
    columns that are known, and `names` those of a table that was agreed on.
    """
    try:
        frame, notes = _read(path, kinds, reading)
    except (ValueError, OSError, EOFError, KeyError, pa.ArrowException, csv.Error, zlib.error, zipfile.BadZipFile) as e:
        raise unreadable(path, e) from e  # pandas' parser errors are ValueErrors
    for name, times in Counter(frame.columns).items():
        if name and times > 1:
            raise FFGBError(f"{path} has two columns called {name!r}; rename or remove one")
    if frame.empty:
        raise FFGBError(f"{path} has a header but no rows; give a file with rows in it")
    wanted = target_columns(target)
    if dropped := [name for name in wanted if name in reading.drop]:
        raise FFGBError(f"{option('drop')} names the target {dropped[0]!r}; leave it out there")
    schema = reading.schema or SchemaFile({})
    lost = [f"there is no column {name!r} to drop" for name in reading.drop if name not in frame.columns]
    extra = [name for name in frame.columns if schema.columns and name not in (*schema.columns, *reading.drop, *wanted)]
    if extra:
        lost.append(f"not in the schema, and not used: {', '.join(extra)}")
    gone = {*reading.drop, *schema.of_type(DROP), *extra}
    frame = frame.drop(columns=[name for name in frame.columns if name in gone])
    frame = _without(frame, (*reading.missing, *schema.missing))
    kept = {*wanted, *kinds}
    frame, dated = expand(frame, path, kept, (sources(names) | {*schema.of_type(DATE)}) - kept, schema.orders)
    said = [f"{path.name} is read with {', '.join(notes)}"] if notes else []
    return frame, [*said, *(f"{path.name}: {note}" for note in (*lost, *dated))]


def _read(path: Path, kinds: Mapping[str, str], reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    match kind_of(path):
        case "text":
            text = {name for name, kind in kinds.items() if kind == TEXT}
            how = Written(reading.sep, reading.decimal, reading.encoding)
            missing = (*reading.missing, *(reading.schema.missing if reading.schema is not None else ()))
            return read_delimited(path, text, how, missing)
        case "xlsx":
            return read_workbook(path, reading.sheet)
        case "SQL":
            return query(path), []
    check_parquet(path)
    names = [str(name) for name in pq.read_schema(path).empty_table().to_pandas().columns]
    if len(set(names)) == len(names):
        return pd.read_parquet(path), []
    return pd.DataFrame(columns=pd.Index(names)), []  # it is refused by its names


def _without(frame: pd.DataFrame, missing: Sequence[str]) -> pd.DataFrame:
    """The table without values that stand for unknown ones, as text or as the same number."""
    if not missing:
        return frame
    words = {word.strip() for word in missing}
    numbers = [number for number in map(_number, words) if number is not None]
    columns: list[pd.Series[Any]] = []
    for j in range(frame.shape[1]):
        values = frame.iloc[:, j]
        if pd.api.types.is_bool_dtype(values.dtype) or values.dtype.kind in "mMc":
            mask: Array = np.zeros(len(values), bool)
        elif pd.api.types.is_numeric_dtype(values.dtype):
            mask = values.isin(numbers).to_numpy(bool, na_value=False)
        else:
            mask = np.array([_stands(value, words, numbers) for value in values], bool)
        columns.append(values.mask(mask) if mask.any() else values)
    return pd.concat(columns, axis=1) if columns else frame


def _stands(value: object, words: set[str], numbers: Sequence[float]) -> bool:
    if isinstance(value, str):
        return value.strip() in words or _number(value) in numbers
    return isinstance(value, int | float) and value in numbers


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def unreadable(path: Path, error: Exception) -> FFGBError:
    """The error for a file that is not what its name says."""
    kind = kind_of(path) or "NPZ"
    kind = "CSV" if kind == "text" else kind
    if isinstance(error, gzip.BadGzipFile | zlib.error | EOFError) and kind == "CSV":
        return FFGBError(f"{path} is not a whole gzip file; copy it again")
    return FFGBError(f"{path} cannot be read as {kind} ({' '.join(str(error).split())}); save it again as {kind}")


SETTINGS = (
    Setting(
        "sep",
        "text",
        "The mark between values of text files: one character, or comma, semicolon, tab, bar.",
        DATA,
        unset="found out, and said",
        accepts=lambda value: len(value) == 1,
        choices=tuple(MARKS),
    ),
    Setting(
        "decimal",
        "text",
        "The decimal mark of text files: . or a comma.",
        DATA,
        unset="found out, and said",
        choices=(".", ","),
    ),
    Setting("encoding", "text", "The encoding of text files, such as latin-1.", DATA, unset="found out, and said"),
    Setting("sheet", "text", "The sheet of an Excel workbook.", DATA, unset="the only one"),
    Setting("drop", "names", "Columns of files that are not used: patient_id,ward.", DATA, ()),
    Setting("missing", "names", "Values of files that stand for unknown ones: -999,unknown.", DATA, ()),
    Setting("schema", "text", "A schema of files (TOML): types, bounds, categories.", DATA, unset="by the values"),
)
