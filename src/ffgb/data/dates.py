"""Dates as numbers: a date column becomes columns of elapsed time and season, the same way at every site.

What becomes of a column depends on its own values only, so that sites need not agree on anything more.  A date whose
day and month cannot be told apart is not guessed: the column is left out, and named.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

YEAR: Final = 365.25
"""Days."""
START: Final = np.datetime64("2000-01-01", "D")
EARLIEST, LATEST = 1850, 2150
"""Years: 9999-12-31 and 0001-01-01 stand for something else."""
SAMPLE = 200
"""Values by which a column of text is first looked at."""
MOST_PAIRED = 4
"""Date columns between which all differences are taken."""
_TIME = (
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?"
    r"\s*(?P<half>[AaPp][Mm])?\s*(?:Z|[+-]\d{2}:?\d{2})?)?"
)
_FIRST = re.compile(r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})" + _TIME)
_LAST = re.compile(r"(?P<one>\d{1,2})([-/.])(?P<two>\d{1,2})\2(?P<year>\d{4})" + _TIME)
_NAMED = re.compile(r"(?P<day>\d{1,2})[- ]?(?P<name>[A-Za-z]{3})[- ]?(?P<year>\d{4})" + _TIME)
_COMPACT = re.compile(
    r"(?P<year>(?:18|19|20|21)\d\d)(?P<month>\d\d)(?P<day>\d\d)(?:(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d))?"
)
"""As hospitals' messages have them."""
EXCEL: Final = (14_000, 60_000)
"""Days as Excel counts them, from 1938 to 2064: those of dates in a column of numbers."""
_SHORT = re.compile(r"\d{1,2}([-/.])\d{1,2}\1\d{2}" + _TIME)
_MONTHS = {
    month: i // 4 + 1
    for i in range(0, 48, 4)
    if (month := "jan feb mar apr may jun jul aug sep oct nov dec "[i : i + 3])
}
_NAMES: Final = ("{}: years since 2000", "{}: season (cosine)", "{}: season (sine)")
_BETWEEN: Final = "{} to {}: days"


def names_of(column: str) -> tuple[str, ...]:
    """The columns of numbers that a date column becomes.

    >>> names_of("birth")
    ('birth: years since 2000', 'birth: season (cosine)', 'birth: season (sine)')
    """
    return tuple(form.format(column) for form in _NAMES)


def sources(names: Iterable[str]) -> set[str]:
    """The date columns that columns of these names come from.

    >>> sources(["age", "birth: years since 2000"])
    {'birth'}
    """
    ending = _NAMES[0].removeprefix("{}")
    return {name.removesuffix(ending) for name in names if name.endswith(ending)}


def expand(
    frame: pd.DataFrame,
    path: Path,
    kept: Collection[str] = (),
    certain: Collection[str] = (),
    orders: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The table with numbers in place of dates, and a sentence about each column that was dates.

    `kept` are columns that stay as they are; `certain` are dates, whatever they look like.  `orders` are "dmy" or
    "mdy", where the values themselves do not tell the day from the month.
    """
    days, gone, notes = dict[str, Array](), list[str](), list[str]()
    for name in frame.columns:
        if name in kept or not name:
            continue
        values = _texts(_counted(frame[name], certain=name in certain))
        if not (name in certain or _likely(values)):
            continue
        if isinstance(found := _days(values, f"{path}: column {name!r}", (orders or {}).get(name)), str):
            gone.append(name)
            notes.append(f"the column {name!r} is left out: {found}")
        else:
            days[name] = found
    if not days and not gone:
        return frame, []
    if days:
        notes.insert(0, f"dates become elapsed time and season: {', '.join(days)}")
    if len(days) > MOST_PAIRED:
        notes.append(f"differences between dates are not taken: there are more than {MOST_PAIRED} date columns")
    return _replaced(frame, days, gone, path), notes


def _replaced(frame: pd.DataFrame, days: dict[str, Array], gone: Sequence[str], path: Path) -> pd.DataFrame:
    columns: list[pd.Series[Any]] = []
    for j, name in enumerate(frame.columns):
        if name in days:
            made = zip(names_of(name), _numbers(days[name]), strict=True)
            columns += [pd.Series(values, frame.index, name=part) for part, values in made]
        elif name not in gone:
            columns.append(frame.iloc[:, j])
    if len(days) <= MOST_PAIRED:
        for one, other in combinations(sorted(days), 2):
            columns.append(pd.Series(days[other] - days[one], frame.index, name=_BETWEEN.format(one, other)))
    clash = [n for name in days for n in names_of(name) if n in frame.columns]
    if clash:
        raise FFGBError(f"{path} has a column {clash[0]!r}, which is the name of what a date becomes; rename it")
    return pd.concat(columns, axis=1) if columns else frame.loc[:, []]


def _numbers(days: Array) -> tuple[Array, Array, Array]:
    """Years since 2000, and where in the year, as a point on a circle."""
    there = np.isfinite(days)
    whole = START + np.where(there, np.floor(days), 0).astype("timedelta64[D]")
    angle = 2 * math.pi * (whole - whole.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.float64) / YEAR
    cosine, sine = (np.where(there, f(angle), np.nan) for f in (np.cos, np.sin))
    return days / YEAR, cosine, sine


def _counted(values: pd.Series[Any], *, certain: bool) -> pd.Series[Any]:
    """Numbers that are all dates such as 20230517, as texts; what is certainly a date may also be days of Excel."""
    if values.dtype.kind not in "iuf":
        return values
    there = values[values.notna()].astype(float)
    if len(there) == 0 or not (there == there.round()).all():
        return values
    if certain and there.between(*EXCEL).all():
        return pd.to_datetime(values, unit="D", origin="1899-12-30")
    if not there.between(1.85e7, 2.16e13).all():
        return values
    texts = there.map(lambda value: f"{value:.0f}")
    if not all(_day(text, "dmy") is not None for text in texts[:SAMPLE]) or len(set(texts[:SAMPLE])) < 2 - certain:
        return values
    if not all(_day(text, "dmy") is not None for text in texts):
        return values
    return texts.reindex(values.index).astype(object).where(values.notna(), None)


def _texts(values: pd.Series[Any]) -> pd.Series[Any]:
    """Dates of any type in ISO form; other values as they are."""
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_localize(None)
    if isinstance(values.dtype, pd.PeriodDtype):
        values = values.dt.to_timestamp()
    if values.dtype.kind == "M" or not (pd.api.types.is_object_dtype(values) or pd.api.types.is_string_dtype(values)):
        return values
    return values.map(_iso).where(values.notna(), None).astype(object)


def _iso(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


def _likely(values: pd.Series[Any]) -> bool:
    """Are most values dates?"""
    if values.dtype.kind == "M":
        return True
    if values.dtype != object:
        return False
    there = [v for v in values if isinstance(v, str) and v.strip()][:SAMPLE]
    return len(there) > 0 and 2 * sum(map(_is_date, there)) > len(there)


def _is_date(text: str) -> bool:
    return any(form.fullmatch(text.strip()) for form in (_FIRST, _LAST, _SHORT, _COMPACT)) or (
        (named := _NAMED.fullmatch(text.strip())) is not None and named["name"].lower() in _MONTHS
    )


def _days(values: pd.Series[Any], what: str, order: str | None) -> Array | str:
    """Days since the start of 2000, NaN where nothing is known; or why the column cannot be used."""
    if values.dtype.kind == "M":
        found = (values.to_numpy("datetime64[s]") - START.astype("datetime64[s]")).astype("timedelta64[s]")
        days = np.where(np.isnat(found), np.nan, found.astype(np.float64) / 86400)
        _check_years(days, values, what)
        return days
    texts = [value.strip() if isinstance(value, str) else value for value in values]
    if any(isinstance(t, str) and _SHORT.fullmatch(t) for t in texts):
        return "its dates have years of two digits; write 2023-05-17"
    order = order or _order([t for t in texts if isinstance(t, str)])
    if order == "both":
        row = next(
            i for i, t in enumerate(texts) if isinstance(t, str) and (m := _LAST.fullmatch(t)) and int(m["two"]) > 12
        )
        raise FFGBError(
            f"{what} has days and months in different orders, {texts[row]!r} in row {row + 1}; write all dates in one "
            "form, such as 2023-05-17"
        )
    if order == "unknown":
        return "day and month of its dates cannot be told apart; write 2023-05-17, or say it in a schema (order)"
    days = np.full(len(texts), np.nan)
    for i, text in enumerate(texts):
        if text is None or text == "" or (isinstance(text, float) and math.isnan(text)):
            continue
        day = _day(text, order) if isinstance(text, str) else None
        if day is None:
            raise FFGBError(
                f"{what} has {str(text)[:30]!r} among dates, in row {i + 1}; write a date there, leave it empty, or "
                f"name it with {option('missing')}"
            )
        days[i] = day
    _check_years(days, values, what)
    return days


def _check_years(days: Array, values: pd.Series[Any], what: str) -> None:
    low, high = ((np.datetime64(f"{year}-01-01", "D") - START).astype(int) for year in (EARLIEST, LATEST))
    bad = (days < low) | (days >= high)
    if bad.any():
        row = int(np.argmax(bad))
        raise FFGBError(
            f"{what} has the date {str(values.iloc[row])[:10]} in row {row + 1}; if it stands for an unknown date, "
            f"leave it empty or name it with {option('missing')}"
        )


def _order(texts: Sequence[str]) -> str:
    """Does the day come first, or the month?  Dots are written with the day first everywhere."""
    found = [m for m in map(_LAST.fullmatch, texts) if m is not None and m[2] != "."]
    first = any(int(m["one"]) > 12 for m in found)
    second = any(int(m["two"]) > 12 for m in found)
    if first and second:
        return "both"
    return "dmy" if first or not found else "mdy" if second else "unknown"


def _day(text: str, order: str) -> float | None:
    """Days since the start of 2000; None if it is no date."""
    if (m := _FIRST.fullmatch(text) or _COMPACT.fullmatch(text)) is not None:
        month, day = int(m["month"]), int(m["day"])
    elif (m := _LAST.fullmatch(text)) is not None:
        day, month = int(m["one"]), int(m["two"])
        if order == "mdy" and m[2] != ".":
            day, month = month, day
    elif (m := _NAMED.fullmatch(text)) is not None:
        day, month = int(m["day"]), _MONTHS.get(m["name"].lower(), 0)
    else:
        return None
    try:
        date = datetime.date(int(m["year"]), month, day)
    except ValueError:
        return None
    return (date - datetime.date(2000, 1, 1)).days + _part_of_day(m)


def _part_of_day(m: re.Match[str]) -> float:
    if m["hour"] is None:
        return 0.0
    hour = int(m["hour"])
    if m.groupdict().get("half") is not None:
        hour = hour % 12 + 12 * (m["half"].lower() == "pm")
    return (hour * 3600 + int(m["minute"]) * 60 + int(m["second"] or 0)) / 86400
