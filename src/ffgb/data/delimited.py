"""Text files with a mark between values, as they come: how one is written is found out, and said, or given.

Nothing is guessed where two ways of reading a file would give different numbers: such a file is refused, and the error
names the setting that decides.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, final

import pandas as pd

from ffgb.data.numerals import is_text, surely_grouped
from ffgb.data.sizes import check_csv, check_gzip, is_gzip, must_fit, short_lines, unpacked
from ffgb.data.slips import plain, zeros_in_words
from ffgb.errors import FFGBError, SettingError, option

MARKS: Final[Mapping[str, str]] = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
"""Marks between values, by the words that name them."""
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
UNKNOWN = ("?",)
"""What stands for a missing value, besides empty cells, NA, NaN, None and null."""
SAMPLE: Final = 1000
"""Rows by which it is found out how a file is written."""
_BLOCK: Final = 2**20
_BYTE_ORDER = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_WESTERN = "cp1252"
_COMMA = re.compile(r"[-+]?\d+,\d+")
_POINT = re.compile(r"[-+]?\d+\.\d+")
_COMMA_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_POINT_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
_ZEROS = re.compile(r"0\d+")
_CUT = re.compile(r"\d\.\d{1,5}E\+(1\d|\d{3,})")
"""A long number as Excel writes it."""
_NUL = re.compile("\0")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_IMPROBABLE = re.compile(
    r"[A-Za-z][„”‚‘“†‡…‰ˆ•¡¢¤¥¦¨©ª«¬®¯][A-Za-z]|[^\x00-\x7f]{3}|£[^\W\d_]|[^\W\d_][¹³¼¾¿][^\W\d_]"
    r"|[A-Za-z]Ÿ[a-z]|[a-z][ŠŽ][a-z]"
)
"""Signs inside words, and words without plain letters: the file is in another encoding."""


@final
@dataclass(frozen=True)
class Written:
    """How a text file is written, as far as someone said so; None: it is found out."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None


@final
@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    sep: str = ","
    decimal: str = "."
    encoding: str = "utf-8-sig"
    packed: bool = False
    skip: int = 0
    """Lines above the header: Excel writes `sep=;` there."""

    def in_words(self) -> str:
        """How it is read, if that is not the usual way."""
        return ", ".join(
            [
                *([f"{_WORDS.get(self.sep, repr(self.sep))} between values"] if self.sep != "," else []),
                *(["decimal commas"] if self.decimal == "," else []),
                *([f"encoding {self.encoding}"] if self.encoding != "utf-8-sig" else []),
                *(["unpacked"] if self.packed else []),
            ]
        )


@final
@dataclass(frozen=True, eq=False)
class Delimited:
    """The table in a text file, how it is written, and its first rows as they are written."""

    frame: pd.DataFrame
    dialect: Dialect
    rows: Sequence[Sequence[str]]

    def hints(self) -> dict[str, str]:
        """What the first rows show that is lost where numbers are read, by column: zeros before them, and digits."""
        found = {}
        for j, name in enumerate(self.frame.columns):
            if is_text(self.frame.iloc[:, j]):
                continue
            cells = [row[j].strip() for row in self.rows if j < len(row)]
            if (cell := next(filter(_ZEROS.fullmatch, cells), None)) is not None:
                found[name] = zeros_in_words(name, cell)
            elif (cell := next(filter(_CUT.fullmatch, cells), None)) is not None:
                found[name] = (
                    f"the column {name!r} has {cell!r}: Excel has cut off the last digits of a long number; if these "
                    f"are ids, say --drop={name}"
                )
        return found


def read_delimited(path: Path, text: Collection[str], how: Written, missing: Sequence[str] = ()) -> Delimited:
    """The table in a text file.

    Columns in `text` are read as they are written; `missing` stands for values that are not known.
    """
    must_fit(path, path.stat().st_size)
    if is_gzip(path):
        check_gzip(path)
    dialect, header, rows = _dialect(path, how.sep, how.decimal, how.encoding)
    check_csv(path, len(header))
    try:
        frame = _read(path, dialect, [i for i, name in enumerate(header) if name in text], [*UNKNOWN, *missing])
    except pd.errors.ParserError as error:
        if "EOF inside string" in str(error):
            raise FFGBError(f"{path} has a quotation mark that is never closed; remove it, or double it") from error
        _refuse_uneven_rows(path, dialect, len(header))
        raise
    frame.columns = pd.Index(header)  # stripped, and "" where pandas made a name up
    if len(frame) and bool(frame.iloc[:, -1].isna().any()):
        _refuse_uneven_rows(path, dialect, len(header))
    return Delimited(frame, dialect, rows)


def _read(path: Path, dialect: Dialect, text: Sequence[int], missing: Sequence[str]) -> pd.DataFrame:
    how: dict[str, Any] = {
        "sep": dialect.sep,
        "skipinitialspace": True,
        "encoding": dialect.encoding,
        "compression": "gzip" if dialect.packed else None,
        "skiprows": dialect.skip,
    }
    own = pd.read_csv(path, nrows=0, **how).columns if text else ()  # pandas' names: they need not be stripped
    frame: pd.DataFrame = pd.read_csv(
        path,
        low_memory=False,
        na_values=missing,
        decimal=dialect.decimal,
        dtype={own[i]: str for i in text},
        **how,
    )
    return frame


# How a file is written


def _dialect(
    path: Path, sep: str | None, decimal: str | None, encoding: str | None
) -> tuple[Dialect, list[str], list[list[str]]]:
    """How the file is written, its header, and its first rows."""
    packed = is_gzip(path)
    dialect = Dialect(encoding=_encoding(path, encoding), packed=packed)
    with _text(path, dialect) as file:
        first = file.readline(100)
    if (said := re.fullmatch(r"sep=(.)\s*", first)) is not None:
        dialect, sep = replace(dialect, skip=1), sep or said[1]
    mark = MARKS.get(sep, sep) if sep is not None else _mark(path, dialect)
    if len(mark) != 1:
        raise SettingError("sep", f"is one character, or one of {', '.join(MARKS)}, not {sep!r}")
    dialect = replace(dialect, sep=mark)
    header, rows = _sample(path, dialect)
    _check_header(path, header, rows, mark)
    if decimal == mark and decimal is not None:
        raise FFGBError(f"{path}: {option('sep')} and {option('decimal')} cannot both be {mark!r}")
    return replace(dialect, decimal=decimal or _decimal(path, rows, mark)), header, rows


def _encoding(path: Path, given: str | None) -> str:
    """The encoding of a text file: UTF-8, or UTF-16 with a mark, or else Windows' western one if that makes sense."""
    if given is not None:
        try:
            name = codecs.lookup(given).name
        except LookupError as error:
            raise SettingError("encoding", f"is a name such as utf-8, latin-1 or cp1250, not {given!r}") from error
        _decoded(path, name, given)
        return "utf-8-sig" if name == "utf-8" else name
    with unpacked(path) as file:
        start = file.read(4)
    for mark, name in _BYTE_ORDER:
        if start.startswith(mark):
            _decoded(path, name, name)
            return name
    if _decodes(path, "utf-8", _NUL):
        return "utf-8-sig"
    with unpacked(path) as file:
        if _CONTROL.search(file.read(_BLOCK)):
            raise FFGBError(
                f"{path} is not text in UTF-8; if it is a text file, save it as UTF-8, or name its encoding with "
                f"{option('encoding')}"
            )
    if not _decodes(path, _WESTERN, _IMPROBABLE):
        raise FFGBError(
            f"{path} is not UTF-8 text, and its encoding is not clear; save it as UTF-8, or name the encoding with "
            f"{option('encoding')}"
        )
    return _WESTERN


def _decoded(path: Path, name: str, given: str) -> None:
    if not _decodes(path, name):
        raise FFGBError(f"{path} is not text in the encoding {given!r}; name another with {option('encoding')}")


def _decodes(path: Path, name: str, never: re.Pattern[str] | None = None) -> bool:
    decoder = codecs.getincrementaldecoder(name)()
    try:
        with unpacked(path) as file:
            while block := file.read(_BLOCK):
                text = decoder.decode(block)
                if never is not None and never.search(text):
                    return False
            decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


@contextmanager
def _text(path: Path, dialect: Dialect) -> Iterator[IO[str]]:
    """The file as text, from its header on."""
    with unpacked(path) as raw:
        file = io.TextIOWrapper(raw, dialect.encoding, newline="")
        for _ in range(dialect.skip):
            file.readline()
        yield file


def _rows(path: Path, dialect: Dialect) -> Iterator[list[str]]:
    """Rows with a value in them."""
    with _text(path, dialect) as file:
        for row in csv.reader(short_lines(file, path), delimiter=dialect.sep, skipinitialspace=True):
            if any(cell.strip() for cell in row):
                yield row


def _sample(path: Path, dialect: Dialect) -> tuple[list[str], list[list[str]]]:
    rows = list(islice(_rows(path, dialect), SAMPLE + 1))
    return ([plain(cell) for cell in rows[0]], rows[1:]) if rows else ([], [])


def _mark(path: Path, dialect: Dialect) -> str:
    """The mark that gives every row as many values as the header has names."""
    even, wide = list[str](), list[str]()
    for mark in MARKS.values():
        try:
            header, rows = _sample(path, replace(dialect, sep=mark))
        except csv.Error:
            continue
        if len(header) > 1:
            wide.append(mark)
            if all(len(row) == len(header) for row in rows):
                even.append(mark)
    if len(even) > 1:
        raise FFGBError(
            f"{path} may have {' or '.join(_WORDS[mark] for mark in even)} between its values; say which with "
            f"{option('sep')}"
        )
    found = even or wide
    return found[0] if len(found) == 1 else ","


def _check_header(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], mark: str) -> None:
    if not header:
        raise FFGBError(f"{path} is empty; give a file with rows in it")
    first = rows[0] if rows else []
    if any("\0" in cell for cell in (*header, *first)):
        raise ValueError("it is not text")
    if len(first) > len(header):
        # Pandas would take the first value of each row for the row's name, and shift the others.
        marks = _WORDS.get(mark, repr(mark))
        remedy = f"give every column a name, or quote the values that contain {marks}"
        if all(len(row) == len(header) + 1 and not row[-1].strip() for row in rows):
            remedy = f"remove the mark at the end of each row, or end the header with one too (marks are {marks})"
        elif len(header) == 1:
            remedy = "the first line must be the header: remove what stands above it, or give every column a name"
        raise FFGBError(
            f"{path} has {_count(len(first), 'value')} in row 1 and {_count(len(header), 'name')} in its header; "
            f"{remedy}"
        )
    if len(header) == 1 and re.search(r"\S[ :^~]+\S", header[0]) and all(len(row) == 1 for row in rows):
        raise FFGBError(
            f"{path} has one column, {header[0]!r}; say which mark stands between its values with {option('sep')}"
        )


def _decimal(path: Path, rows: Sequence[Sequence[str]], mark: str) -> str:
    """The decimal mark of a file's numbers, by its first rows."""
    if mark == ",":
        return "."
    cells = [cell.strip() for row in rows for cell in row]
    commas = [c for c in cells if _COMMA.fullmatch(c) or _COMMA_THOUSANDS.fullmatch(c) or surely_grouped(c, ",")]
    points = [c for c in cells if _POINT.fullmatch(c) or _POINT_THOUSANDS.fullmatch(c) or surely_grouped(c, ".")]
    for found, thousands in ((commas, _COMMA_THOUSANDS), (points, _POINT_THOUSANDS)):
        others = points if found is commas else commas
        if found and not others and all(map(thousands.fullmatch, found)):
            raise FFGBError(
                f"{path} has numbers such as {found[0]!r}, in which the mark may stand for decimals or for thousands; "
                f"say which mark is the decimal one, with {option('decimal')}"
            )
    return "," if commas and not [p for p in points if not _POINT_THOUSANDS.fullmatch(p)] else "."


def _refuse_uneven_rows(path: Path, dialect: Dialect, width: int) -> None:
    """A row with too few values is cut off, or has lost one in the middle: then the others would be shifted."""
    for i, row in enumerate(islice(_rows(path, dialect), 1, None)):
        if len(row) != width:
            marks = _WORDS.get(dialect.sep, repr(dialect.sep))
            remedy = "complete it" if len(row) < width else f"quote the values that contain {marks}"
            raise FFGBError(
                f"{path} has {_count(len(row), 'value')} in row {i + 1} and {_count(width, 'name')} in its header; "
                f"{remedy}, or remove the row"
            )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
