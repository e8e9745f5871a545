"""Excel workbooks (.xlsx) as tables: one sheet, a header in its first row, values as they were last computed."""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ffgb.data.sizes import MOST_ROWS, PACKED, RATIO, check_columns, must_fit
from ffgb.errors import FFGBError, missing_extra, option

MAGIC = b"PK\x03\x04"
EXPANSION = 12
"""Bytes of memory for each byte of a sheet: cells become objects."""
_DOCTYPE = re.compile(rb"<!\s*(DOCTYPE|ENTITY)", re.IGNORECASE)
_MERGED = re.compile(rb'<mergeCell\s[^>]*?ref="([A-Z]+\d+:[A-Z]+(\d+))"')
_HEAD, _BLOCK = 4096, 2**20


def read_workbook(path: Path, sheet: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """The table in a workbook, and what is to be told of it."""
    _check(path)
    openpyxl = _openpyxl()
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        name = _sheet(path, book, sheet)
        _refuse_merged(path, book[name])
        rows = list(_rows(path, book[name]))
    finally:
        book.close()
    if not rows:
        raise FFGBError(f"{path} is empty; give a file with rows in it")
    width = max(map(_width, rows))
    check_columns(path, width)
    header = [_name(cell) for cell in _filled(rows[0], width)]
    values = [_filled(row, width) for row in rows[1:]]
    _refuse_uncomputed(path, openpyxl, name, values)
    columns = [pd.Series([row[j] for row in values], dtype=object).infer_objects() for j in range(width)]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    frame.columns = pd.Index(header)
    return frame, ([f"sheet {name!r} of the workbook"] if len(book.sheetnames) > 1 else [])


def _openpyxl() -> Any:
    try:
        return importlib.import_module("openpyxl")
    except ImportError as error:
        raise missing_extra("openpyxl", "excel", "an .xlsx file") from error


def _check(path: Path) -> None:
    """The workbook fits into memory, by what its members unpack to, and its XML defines nothing of its own."""
    need = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > PACKED and member.file_size > RATIO * max(member.compress_size, 1):
                raise FFGBError(
                    f"{path}: {member.filename} unpacks to {member.file_size:,} bytes, more than {RATIO} times its "
                    "size in the file; save the table as CSV"
                )
            need += EXPANSION * member.file_size
            if member.filename.endswith((".xml", ".rels")):
                with archive.open(member) as file:
                    if _DOCTYPE.search(file.read(_HEAD)):
                        raise FFGBError(f"{path} is no workbook that Excel writes; save the table as CSV")
    must_fit(path, need)


def _sheet(path: Path, book: Any, sheet: str | None) -> str:
    """The sheet to read: the one that is named, or the only one with values."""
    names: list[str] = list(book.sheetnames)
    if sheet is not None:
        if sheet not in names:
            raise FFGBError(f"{path} has no sheet {sheet!r} ({option('sheet')}); it has {', '.join(map(repr, names))}")
        return sheet
    full = [name for name in names if next(_rows(path, book[name]), None) is not None]
    if len(full) > 1:
        raise FFGBError(f"{path} has the sheets {', '.join(map(repr, full))}; say which with {option('sheet')}")
    return (full or names)[0]


def _refuse_merged(path: Path, sheet: Any) -> None:
    """Only the first of merged cells has their value: the others would pass for empty ones."""
    part = str(getattr(sheet, "_worksheet_path", "")).lstrip("/")
    header = next((n for n, row in enumerate(sheet.iter_rows(values_only=True), 1) if _width(row)), 0)
    with zipfile.ZipFile(path) as archive:
        if part not in archive.namelist():  # a chart
            return
        with archive.open(part) as file:
            kept = b""
            while block := file.read(_BLOCK):
                for found in _MERGED.finditer(kept + block):
                    if int(found[2]) > header:
                        raise FFGBError(
                            f"{path} has merged cells, {found[1].decode()}, of which only the first has the value; "
                            "unmerge them, and fill in every cell"
                        )
                kept = block[-_HEAD:]


def _rows(path: Path, sheet: Any) -> Iterator[tuple[Any, ...]]:
    """Rows with a value in them."""
    if not hasattr(sheet, "iter_rows"):  # a chart
        return
    for n, row in enumerate(sheet.iter_rows(values_only=True)):
        if n > MOST_ROWS:
            raise FFGBError(f"{path} has more than {MOST_ROWS:,} rows; give fewer")
        if _width(row):
            yield row


def _width(row: Sequence[Any]) -> int:
    return max((j + 1 for j, cell in enumerate(row) if cell is not None and cell != ""), default=0)


def _filled(row: Sequence[Any], width: int) -> list[Any]:
    return [*row[:width], *[None] * (width - len(row))]


def _name(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.15g}" if isinstance(cell, float) else str(cell).strip()


def _refuse_uncomputed(path: Path, openpyxl: Any, name: str, values: Sequence[Sequence[Any]]) -> None:
    """A formula without a value would pass for an empty cell."""
    if not any(cell is None for row in values for cell in row):
        return
    book = openpyxl.load_workbook(path, read_only=True)
    try:
        formulas = list(_rows(path, book[name]))[1:]
    finally:
        book.close()
    where = [
        (i + 1, j + 1)
        for i, formula in enumerate(formulas)
        for j, cell in enumerate(formula)
        if isinstance(cell, str) and cell.startswith("=")
        and (len(formulas) != len(values) or j >= len(values[i]) or values[i][j] is None)
    ]  # fmt: skip
    if where:
        raise FFGBError(
            f"{path} has a formula without a value in row {where[0][0]}, column {where[0][1]}; open it in Excel and "
            "save it, or save the table as CSV"
        )
