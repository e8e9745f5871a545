"""What slips into tables that people export: a second header, a row of units, a row of totals, columns of nothing.

Rows that are no data are refused, by their numbers.  What may be wrong, and may be right, is said: values that stand
far from all others, as codes for unknown ones do, and columns that look like dates counted in days.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from ffgb.core.types import Array
from ffgb.data.dates import EXCEL
from ffgb.data.numerals import is_text
from ffgb.errors import FFGBError, option

SAMPLE: Final = 200
"""Rows by which a column is looked at."""
TOTALS: Final = frozenset(
    {"total", "totals", "sum", "subtotal", "grand total", "mean", "average", "median", "summe", "gesamt", "gesamtsumme"}
    | {"mittelwert", "durchschnitt", "somme", "moyenne", "totale", "somma", "media", "suma", "promedio"}
)
"""What people write beside a row of totals."""
CODES: Final = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999)
"""Numbers that often stand for unknown values."""
UNKNOWN_WORDS: Final = frozenset(
    {".", "-", "--", "---", "n.a.", "nil", "unknown", "missing", "not known", "not recorded", "unbekannt", "fehlend"}
    | {
        "k.a.",
        "keine angabe",
        "inconnu",
        "desconocido",
        "sconosciuto",
        "onbekend",
        "\\n",
        "#div/0!",
        "#value!",
        "#ref!",
    }
)
"""Texts that often stand for unknown values."""
OFTEN: Final = 2
EXACT: Final = 2**53
"""Whole numbers beyond it are not told apart as numbers."""
LARGEST: Final = 1e18
_DATE_WORDS: Final = (
    "date", "datum", "fecha", "admi", "aufnahme", "discharge", "entlass", "birth", "geburt", "naiss", "visit", "onset",
)  # fmt: skip
_MONTHS = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_MANGLED = re.compile(rf"\d{{1,2}}-{_MONTHS}|{_MONTHS}-\d{{2}}", re.IGNORECASE)
_ZEROS, _WHOLE = re.compile(r"0\d+"), re.compile(r"\d+")
_INVISIBLE: Final = str.maketrans({**dict.fromkeys("\ufeff\u200b\u200c\u200d\u2060"), "\u00a0": " ", "\u202f": " "})


def plain(text: str) -> str:
    """A name or a category without what cannot be seen: two ways of writing ü, hard spaces, marks of no width.

    >>> plain(" Zu\u0308rich\u00a0")
    'Zürich'
    """
    if text.isascii():
        return text.strip()
    return unicodedata.normalize("NFC", text.translate(_INVISIBLE)).strip()


def without_nothing(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without nameless columns and last rows in which there is nothing, and what is to be told of it."""
    notes = []
    empty = [j for j, name in enumerate(frame.columns) if name == "" and not _there(frame.iloc[:, j]).any()]
    if empty:
        frame = frame.iloc[:, [j for j in range(frame.shape[1]) if j not in set(empty)]]
        notes.append(f"{len(empty)} empty column{'s' * (len(empty) > 1)} without a name left out")
    if len(frame) and not any(_there(frame.iloc[-1:, j]).any() for j in range(frame.shape[1])):
        full = np.zeros(len(frame), bool)
        for j in range(frame.shape[1]):
            full |= _there(frame.iloc[:, j])
        last = int(np.flatnonzero(full)[-1]) + 1 if full.any() else 0
        gone = len(frame) - last
        frame = frame.iloc[:last]
        notes.append(f"{gone} empty row{'s' * (gone > 1)} at the end left out")
    return frame, notes


def _there(values: pd.Series[Any]) -> Array:
    found: Array = values.notna().to_numpy(bool)
    if is_text(values):
        found = found & np.array([not isinstance(v, str) or bool(v.strip()) for v in values.tolist()], bool)
    return found


def refuse_rows(frame: pd.DataFrame, path: Path) -> None:
    """Refuse rows that are no data: the header again, units below it, totals at the end."""
    texts = [j for j in range(frame.shape[1]) if is_text(frame.iloc[:, j])]
    if frame.shape[1] > 1 and len(texts) == frame.shape[1]:
        again = np.ones(len(frame), bool)
        for j, name in enumerate(frame.columns):
            again &= np.array([isinstance(v, str) and plain(v) == name for v in frame.iloc[:, j].tolist()], bool)
        if again.any():
            raise FFGBError(f"{path} has its header again in row {int(np.argmax(again)) + 1}; remove that row")
    odd = [j for j in texts if _odd_one(frame.iloc[: SAMPLE + 1, j])]
    if len(odd) > 1:
        first, second = (f"{frame.columns[j]!r} has {str(frame.iloc[0, j])[:20]!r}" for j in odd[:2])
        raise FFGBError(
            f"{path} has text in row 1 where the other rows have numbers ({first}, {second}): it may be a second "
            "header or the units; write one header, and remove that row"
        )
    _refuse_totals(frame, path, texts)


def _odd_one(values: pd.Series[Any]) -> bool:
    """Is the first value text, and are the others numbers?"""
    first, rest = values.iloc[0], values.iloc[1:].dropna()
    if not isinstance(first, str) or len(rest) < 2 or pd.notna(pd.to_numeric(first, errors="coerce")):
        return False
    numbers = pd.to_numeric(rest.astype(str).str.replace(",", "."), errors="coerce")
    return bool(numbers.notna().mean() > 0.8)


def _refuse_totals(frame: pd.DataFrame, path: Path, texts: Collection[int]) -> None:
    row = len(frame)
    if row < 3:
        return
    for j in texts:
        word = _word(frame.iloc[-1, j])
        # a column of such words has categories of this name
        if word in TOTALS and sum(_word(value) == word for value in frame.iloc[:, j].tolist()) == 1:
            raise FFGBError(f"{path} has {frame.iloc[-1, j]!r} in row {row}, its last one; remove a row of totals")
    numbers = [frame.iloc[:, j] for j in range(frame.shape[1]) if j not in texts]
    sums = [found for values in numbers if (found := _is_sum(values)) is not None]
    if all(sums) and (len(sums) > 1 or (len(sums) == 1 and row > 10)):
        raise FFGBError(
            f"{path}: the numbers in row {row}, its last one, are the sums of those above it; remove a row of totals"
        )


def _word(value: Any) -> str:
    return plain(value).rstrip(":").casefold() if isinstance(value, str) else ""


def _is_sum(values: pd.Series[Any]) -> bool | None:
    """Is the last number the sum of those before it?  None if it is no number."""
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return None
    numbers = values.to_numpy(np.float64, na_value=np.nan)
    last, above = numbers[-1], numbers[:-1]
    above = above[np.isfinite(above) & (above != 0)]
    if not np.isfinite(last):
        return None
    return len(above) > 2 and bool(abs(last) > np.abs(above).max() and np.isclose(above.sum(), last, rtol=1e-9))


def refuse_long_numbers(values: pd.Series[Any], what: str) -> None:
    """Refuse whole numbers of so many digits that different ones would become the same."""
    if values.dtype.kind not in "iuf" or len(values) == 0:
        return
    numbers = np.abs(values.to_numpy(np.float64, na_value=0.0))
    long = numbers > EXACT
    if not long.any() or (values.dtype.kind == "f" and (long.mean() <= 0.5 or numbers.max() > LARGEST)):
        return
    row = int(np.argmax(long))
    shown = values.iloc[row] if values.dtype.kind != "f" else f"{values.iloc[row]:.0f}"
    raise FFGBError(
        f"{what} has the number {shown} in row {row + 1}, with more digits than a measurement has; if it is an id, "
        f"leave the column out with {option('drop')}, or name it with {option('categories')}"
    )


def doubts(frame: pd.DataFrame, missing: Collection[str], texts: Collection[str]) -> Iterator[str]:
    """Sentences about columns that may not be what they look like; `texts` are those that are known as text."""
    for j, name in enumerate(frame.columns):
        values = frame.iloc[:, j]
        if is_text(values):
            yield from _doubtful_text(name, values, missing, certain=name in texts)
        elif pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            numbers = values.to_numpy(np.float64, na_value=np.nan)
            yield from _doubtful_numbers(name, numbers[np.isfinite(numbers)], missing)


def _doubtful_numbers(name: str, numbers: Array, missing: Collection[str]) -> Iterator[str]:
    if len(numbers) < 5:
        return
    if numbers.min() in CODES or numbers.max() in CODES:
        others = numbers[~np.isin(numbers, CODES)]
        for code in CODES:
            rows = int((numbers == code).sum())
            if rows >= OFTEN and f"{code}" not in missing and _far(others, code):
                yield (
                    f"the column {name!r} has {code} in {rows} rows, far from its other values; if it stands for "
                    f"unknown ones, say --missing={code}"
                )
    low, high = numbers.min(), numbers.max()
    named = any(word in name.casefold() for word in _DATE_WORDS)
    if named and EXCEL[0] <= low < high <= EXCEL[1]:
        yield (
            f"the column {name!r} has numbers from {low:g} to {high:g}, as Excel counts days; if they are dates, write "
            "2023-05-17, or say it in a schema (type)"
        )


def _far(others: Array, code: int) -> bool:
    """Is a code far from all values of its column that are none?"""
    if len(others) < 3:
        return False
    return bool(others.min() >= 0 if code < 0 else code > 2 * others.max() > 0)


def _doubtful_text(name: str, values: pd.Series[Any], missing: Collection[str], *, certain: bool) -> Iterator[str]:
    counts = Counter(plain(value) for value in values.tolist() if isinstance(value, str))
    for word, rows in counts.items():
        if word.casefold() in UNKNOWN_WORDS and word not in missing and rows < sum(counts.values()):
            yield (
                f"the column {name!r} has {word!r} in {rows} row{'s' * (rows > 1)}, which is a category; if it stands "
                f"for unknown ones, say --missing={word if word.isalpha() else repr(word)}"
            )
    if (mangled := next((w for w in counts if _MANGLED.fullmatch(w)), None)) is not None:
        yield f"the column {name!r} has {mangled!r}: if it was a range of numbers, Excel has made a date of it"
    zeros = next((w for w in counts if _ZEROS.fullmatch(w)), None)
    if zeros is not None and not certain and _mostly_numbers(counts):
        yield zeros_in_words(name, zeros)


def _mostly_numbers(counts: Counter[str]) -> bool:
    return 2 * sum(n for word, n in counts.items() if _WHOLE.fullmatch(word)) > sum(counts.values())


def zeros_in_words(name: str, value: str) -> str:
    """What is told of a column whose numbers begin with zeros."""
    return f"the column {name!r} has {value!r}, and is read as numbers; if these are codes, say --categories={name}"
