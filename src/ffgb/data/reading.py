"""Tables of a site as they come: text files of any mark and encoding, packed or not, Excel workbooks, Parquet.

Whatever the kind of the file, the same follows: columns that are left out, values that stand for unknown ones, dates.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ffgb.core.types import Array
from ffgb.data.dates import expand, sources
from ffgb.data.delimited import MARKS, UNKNOWN, Written, read_delimited
from ffgb.data.numerals import is_text, plain_numbers, refuse_wrapped
from ffgb.data.preprocess import TEXT
from ffgb.data.schema_file import DATE, DROP, SchemaFile
from ffgb.data.sizes import check_parquet
from ffgb.data.slips import doubts, plain, refuse_long_numbers, refuse_rows, without_nothing
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
STANDARD: Final = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Words for unknown values, in files of any kind; pandas knows them in text files."""


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
            start = file.read(64)
    except OSError as error:
        raise FFGBError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if not start:
        raise FFGBError(f"{path} is empty; give a file with rows in it")
    _refuse_disguised(path, start)


_MAGIC: Final = {
    MAGIC: ("an Excel workbook or an archive", "name it .xlsx, or unpack it"),
    b"PAR1": ("a Parquet file", "name it .parquet"),
    b"\xd0\xcf\x11\xe0": ("an old Excel workbook, or one with a password", "save it as .xlsx, without a password"),
    b"SQLite format 3": ("a database", "write a query: docs/first-steps.md"),
    b"BZh": ("packed by bzip2", "unpack it"),
    b"\xfd7zXZ": ("packed by xz", "unpack it"),
    b"<": ("a web page or XML", "save the table as CSV or .xlsx"),
    b"{": ("JSON", "save the table as CSV"),
    b"[{": ("JSON", "save the table as CSV"),
}
"""How files begin that are no text with marks, what they are, and what to do."""


def _refuse_disguised(path: Path, start: bytes) -> None:
    """Refuse a file that is of another kind than its name says."""
    kind, first = kind_of(path), start.removeprefix(b"\xef\xbb\xbf").lstrip()
    what, remedy = next((said for magic, said in _MAGIC.items() if first.startswith(magic)), ("", ""))
    if kind == "text" and what:
        raise FFGBError(f"{path} is no text but {what}; {remedy}")
    if start.startswith(b"\x1f\x8b"):
        what, remedy = "packed by gzip", "unpack it"
    own = {"xlsx": MAGIC, "Parquet": b"PAR1"}.get(kind or "")
    if own is not None and not start.startswith(own):
        what, remedy = (what, remedy) if what else ("something else", "if it is text, name it .csv")
        raise FFGBError(f"{path} is no {kind} file but {what}; {remedy}")


def read_frame(
    path: Path, kinds: Mapping[str, str], reading: Reading = PLAIN, names: Sequence[str] = (), target: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """A table with at least one row, whose columns are told apart by their names; and how it was read, in sentences.

    Text is read as it is written: whether 01 is a number must not depend on the other rows.  `kinds` are the kinds of
    columns that are known, and `names` those of a table that was agreed on.
    """
    try:
        found = _read(path, kinds, reading)
    except (ValueError, OSError, EOFError, KeyError, pa.ArrowException, csv.Error, zlib.error, zipfile.BadZipFile) as e:
        raise unreadable(path, e) from e  # pandas' parser errors are ValueErrors
    frame, notes = found.frame, list(found.notes)
    for name, times in Counter(frame.columns).items():
        if name and times > 1:
            raise FFGBError(f"{path} has two columns called {name!r}; rename or remove one")
    frame, nothing = without_nothing(frame)
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
    refuse_rows(frame, path)
    gone = {*reading.drop, *schema.of_type(DROP), *extra}
    frame = frame.drop(columns=[name for name in frame.columns if name in gone])
    missing = (*reading.missing, *schema.missing)
    frame = _without(frame, (*missing, *(() if found.words else (*STANDARD, *UNKNOWN))))
    kept = {*wanted, *kinds}
    certain = (sources(names) | {*schema.of_type(DATE)}) - kept
    frame, dated = expand(frame, path, kept, certain, schema.orders)
    texts = {name for name, kind in kinds.items() if kind == TEXT}
    frame, changed = _as_numbers(frame, path, texts, wanted, found.decimal, given=reading.decimal is not None)
    said = [f"{path.name} is read with {', '.join(notes)}"] if notes else []
    hints = [hint for name, hint in found.hints.items() if name not in (*gone, *texts)]
    more = (*lost, *nothing, *dated, *changed, *hints, *doubts(frame, missing, texts))
    return frame, [*said, *(f"{path.name}: {note}" for note in more)]


@final
@dataclass(frozen=True, eq=False)
class _Found:
    """A table as it stands in a file, and how it was read."""

    frame: pd.DataFrame
    notes: Sequence[str] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    """What may be wrong with columns, by their names."""
    decimal: str | None = None
    """The mark of its numbers; None: each column shows its own."""
    words: bool = False
    """Whether words for unknown values were found while it was read."""


def _read(path: Path, kinds: Mapping[str, str], reading: Reading) -> _Found:
    kind = kind_of(path)
    if kind == "text":
        text = {name for name, kind in kinds.items() if kind == TEXT}
        how = Written(reading.sep, reading.decimal, reading.encoding)
        missing = (*reading.missing, *(reading.schema.missing if reading.schema is not None else ()))
        table = read_delimited(path, text, how, missing)
        words = table.dialect.in_words()
        decimal = None if table.dialect.sep == "," and reading.decimal is None else table.dialect.decimal
        return _Found(table.frame, [words] if words else [], table.hints(), decimal, words=True)
    if kind == "xlsx":
        frame, notes = read_workbook(path, reading.sheet)
    elif kind == "SQL":
        frame, notes = query(path), []
    else:
        check_parquet(path)
        names = [str(name) for name in pq.read_schema(path).empty_table().to_pandas().columns]
        if len(set(names)) < len(names):
            return _Found(pd.DataFrame(columns=pd.Index(names)))  # it is refused by its names
        frame, notes = pd.read_parquet(path), []
    frame.columns = pd.Index([plain(str(name)) for name in frame.columns])
    return _Found(frame, notes, decimal=reading.decimal)


def _as_numbers(
    frame: pd.DataFrame,
    path: Path,
    texts: Collection[str],
    wanted: Collection[str],
    decimal: str | None,
    *,
    given: bool,
) -> tuple[pd.DataFrame, list[str]]:
    """The table with its numbers written plainly, and what is to be told; numbers that are none are refused."""
    grouped: list[str] = []
    columns: list[pd.Series[Any]] = []
    for j, name in enumerate(frame.columns):
        values, what = frame.iloc[:, j], f"{path}: column {name!r}"
        if is_text(values) and pd.api.types.infer_dtype(values, skipna=True) == "bytes":
            raise FFGBError(f"{what} holds bytes, which are neither numbers nor text; remove the column, or {_DROP}")
        if name not in texts:
            values, marked = plain_numbers(values, decimal, what, given=given)
            grouped += [name] * marked
            refuse_wrapped(values, what, _OF_TARGET if name in wanted else _OF_COLUMN)
            refuse_long_numbers(values, what)
        columns.append(values)
    notes = [f"marks between thousands are left out: {', '.join(grouped)}"] if grouped else []
    return (pd.concat(columns, axis=1) if columns else frame), notes


_DROP: Final = f"leave it out with {option('drop')}"
_OF_COLUMN: Final = f"name the column with {option('categories')} if its values are categories"
_OF_TARGET: Final = f"say {option('task', 'classification')} if these are classes"


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
