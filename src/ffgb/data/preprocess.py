"""Tables as they are: from raw columns at each site to numbers that mean the same at all of them.

A little is known about each column of each site (`Said`): of what kind it is, how many values are missing, the sum of
the others, and its categories with their rows.  The totals over all sites give the `Table`, which turns raw columns to
numbers, and travels with the model.  It depends on totals alone, never on which site has a row; where no one has all
rows, totals are found by sums (survey.py).  Means, variances and quantiles of the numbers are asked for later, by the
maps that need them.

A category is known if all sites together have enough rows of it, and then it is known in the rows of every site: if it
were unknown at a site with few rows of it, to be unknown would tell the site.

A number that is missing becomes the mean of all sites, and a column of its own says that it was missing.  A category
that is missing, rare, or unknown is none of the known ones: zeros in all of their columns.

Whatever a column of zeros and ones tells apart, at least `least` rows of all sites together are on either side.  Where
fewer numbers are missing, or are there, no column says so.  Where fewer rows are in none of the known categories, the
smallest of these joins them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, final

import numpy as np
import pandas as pd

from ffgb.core.limbs import exact_sum
from ffgb.core.survey import fits
from ffgb.core.types import Array
from ffgb.data.slips import plain
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST, MISSING

RARE: Final = 10
"""Rows that all sites together must have of a category for it to be named."""
MOST_CATEGORIES: Final = 100
"""Categories of a column: those with the most rows.  The others are none of the known ones."""
LARGEST: Final = 1e18
"""Of a number in a table: squares of float32 numbers, and their sums, must be finite."""
NUMBER, TEXT, NONE = "number", "text", "none"
"""Kinds of columns; of one without any value it is not known."""


@final
@dataclass(frozen=True)
class Said:
    """What is known of a column: at one site, or at all sites together."""

    kind: str
    missing: int
    count: int
    """Values that are there."""
    total: float | Fraction
    """Their sum, if they are numbers; 0 otherwise."""
    categories: Mapping[str, int]
    """Values that are text, with their rows."""

    def check(self) -> None:
        """Raise an FFGBError if a site may not say that: of a column it tells its kind, and nothing that is counted."""
        if self.kind not in (NUMBER, TEXT, NONE):
            raise FFGBError("a site describes a column in a way that is not understood")
        if (self.missing, self.count, self.total, self.categories) != (0, 0, 0.0, {}):
            raise FFGBError("a site counts over its rows before it is asked; upgrade all sites")


@final
@dataclass(frozen=True)
class Column:
    """A raw column, and what becomes of it."""

    name: str
    categories: tuple[str, ...] | None = None
    """Each has a column of zeros and ones; None if it holds numbers."""
    fill: float = 0.0
    """What stands for a number that is missing."""
    flagged: bool = False
    """Whether a column of its own says which numbers were missing."""


@final
@dataclass(frozen=True)
class Table:
    """Raw columns to numbers, as all sites have agreed."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of numbers: as the raw ones, then what says that numbers were missing."""
        found: list[str] = []
        for c in self.columns:
            found += [c.name] if c.categories is None else [f"{c.name}={value}" for value in c.categories]
        return (*found, *(f"{c.name} {MISSING}" for c in self.columns if c.flagged))

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """Float32 numbers (n, D) from raw columns: float64 with NaN, or text with None, where nothing is known."""
        n = len(next(iter(values.values())))
        blocks: list[Array] = []
        flags: list[Array] = []
        for c in self.columns:
            raw = values.get(c.name)
            if c.categories is not None:
                known = np.full(n, None, object) if raw is None else raw
                blocks.append((known[:, None] == np.array(c.categories, object)[None, :]).astype(np.float32))
                continue
            number = np.full(n, np.nan) if raw is None else raw
            gone = np.isnan(number)
            blocks.append(np.where(gone, c.fill, number).astype(np.float32)[:, None])
            if c.flagged:
                flags.append(gone.astype(np.float32)[:, None])
        return np.hstack([*blocks, *flags])

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(c) for c in self.columns]

    @staticmethod
    def from_json(values: Sequence[Mapping[str, Any]]) -> Table:
        try:
            return Table(
                tuple(
                    Column(
                        str(v["name"]),
                        None if v["categories"] is None else tuple(map(str, v["categories"])),
                        float(v["fill"]),
                        bool(v["flagged"]),
                    )
                    for v in values
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FFGBError(f"a table's columns cannot be read ({error})") from error


def describe(values: Mapping[str, Array]) -> dict[str, Said]:
    """What a site knows about its columns."""
    return {name: _said(column) for name, column in values.items()}


def _said(column: Array) -> Said:
    there = column[~pd.isna(column)]
    missing = len(column) - len(there)
    if len(there) == 0:
        return Said(NONE, missing, 0, 0.0, {})
    if column.dtype != object:
        return Said(NUMBER, missing, len(there), exact_sum(there), {})
    counts = pd.Series(there).value_counts()
    return Said(TEXT, missing, len(there), 0.0, {str(c): int(n) for c, n in counts.items() if fits(str(c))})


def agree(sites: Mapping[str, Mapping[str, Said]], rare: int = RARE, least: int = LEAST) -> tuple[Table, list[str]]:
    """The table that these sites can share, and what is to be told: what a site lacks, has more, or cannot use.

    What is counted is added up over the sites: that of all may as well stand at one of them.
    A column is used if more than half of the sites have it, in the order of the first that does; where it is lacking,
    its values are missing.
    """
    order: dict[str, list[str]] = {}
    for site, said in sites.items():
        for name in said:
            order.setdefault(name, []).append(site)
    columns: list[Column] = []
    told: list[str] = []
    for name, having in order.items():
        lacking = [site for site in sites if site not in having]
        if 2 * len(having) <= len(sites):
            told.append(f"{_sites(having)} also {_have(having)} the column {name!r}, which is not used")
            continue
        if lacking:
            told.append(f"{_sites(lacking)} {_lack(lacking)} the column {name!r}; its values count as missing there")
        column = _settled(name, {site: sites[site][name] for site in having}, rare, least, bool(lacking))
        empty = [site for site in having if sites[site][name].kind == NONE]
        if column is not None:
            columns.append(column)
            if empty:
                told.append(f"{_sites(empty)} {_have(empty)} no value in the column {name!r}")
        elif len(empty) == len(having):
            told.append(f"the column {name!r} is empty everywhere, and is not used")
        elif max(_rows(sites[site][name] for site in having).values(), default=0) < max(rare, least):
            told.append(
                f"the column {name!r} is read as text, and no value of it has {max(rare, least)} rows: it is not used "
                "(dates, and numbers with units, must be written as numbers)"
            )
        else:
            told.append(
                f"the column {name!r} is the same in all rows, or in all but fewer than {least}: it is not used"
            )
    if not columns:
        raise FFGBError("the sites have no column in common that can be used; give all sites the same columns")
    return Table(tuple(columns)), told


def _settled(name: str, said: Mapping[str, Said], rare: int, least: int, lacking: bool) -> Column | None:
    """A column as all sites that have it can read it; None if no value of it can be used.

    A site that lacks the column has rows enough for others to be among them.
    """
    kinds = {s.kind for s in said.values()} - {NONE}
    if kinds == {NUMBER, TEXT}:
        text, number = (next(site for site, s in said.items() if s.kind == kind) for kind in (TEXT, NUMBER))
        raise FFGBError(
            f"column {name!r} is text at {text} and numbers at {number}; write it the same way everywhere, or name it "
            f"with {option('categories')}"
        )
    if not kinds:
        return None
    missing = sum(s.missing for s in said.values())
    there = sum(s.count for s in said.values())
    if kinds == {NUMBER}:
        total = float(sum((Fraction(s.total) for s in said.values()), Fraction(0)))
        fill = total / there if there >= rare else 0.0
        return Column(name, None, fill, (lacking or missing >= least) and there >= least)
    named = _named(_rows(said.values()), missing + there, 1 if lacking else least, max(rare, least))
    return Column(name, tuple(sorted(named))) if named else None


def _rows(said: Iterable[Said]) -> Counter[str]:
    """Rows of each category, of all sites together."""
    counts = Counter[str]()
    for s in said:
        counts.update(s.categories)
    return counts


def _named(counts: Mapping[str, int], rows: int, others: int, fewest: int) -> list[str]:
    """The categories to tell apart, each with enough rows: rows that are in none of them are none, or enough too."""
    named = [c for c in sorted(counts, key=lambda c: (-counts[c], c))[:MOST_CATEGORIES] if counts[c] >= fewest]
    rest = rows - sum(counts[c] for c in named)
    while named and 0 < rest < others:
        rest += counts[named.pop()]
    return named


def raw(frame: pd.DataFrame, column: str, where: str, kind: str | None = None) -> Array:
    """A column of a table: float64 with NaN, or text with None, where nothing is known.

    If it is not known of which kind it is, it holds numbers if more than half of its values are some.  Text among
    numbers is refused, by its row.
    """
    values = frame[column]
    what = f"{where}: column {column!r}"
    if values.dtype.kind in "mMc" or isinstance(values.dtype, pd.PeriodDtype | pd.DatetimeTZDtype):
        raise FFGBError(f"{what} holds {values.dtype} values; turn them into plain numbers or remove the column")
    if isinstance(values.dtype, pd.CategoricalDtype):
        values, kind = values.astype(object), kind or TEXT
    if pd.api.types.is_bool_dtype(values.dtype):
        values = values.astype(str) if kind == TEXT else values.astype("float64")
    gone = values.isna().to_numpy(bool)
    if not pd.api.types.is_numeric_dtype(values.dtype):  # blanks are no text
        gone = gone | np.array([isinstance(value, str) and not value.strip() for value in values.tolist()], bool)
    numbers = None if kind == TEXT else _as_numbers(values, gone, what, certain=kind == NUMBER)
    return _as_text(values, gone, what) if numbers is None else numbers


def _as_numbers(values: pd.Series[Any], gone: Array, what: str, *, certain: bool) -> Array | None:
    """A column as numbers; None if it holds text, which is refused where that is certainly, or likely, a mistake."""
    try:
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except TypeError as error:  # lists and the like in a Parquet file
        raise FFGBError(f"{what} holds {values.dtype} values; replace them by plain numbers") from error
    bad = np.isnan(numbers) & ~gone
    if not bad.any():
        return _finite(numbers, what)
    commas = values[~gone].astype(str).str.fullmatch(r"\s*[-+]?\d+,\d+\s*").to_numpy(bool)
    if not certain and 2 * (bad.sum() - commas.sum()) >= (~gone).sum():
        return None
    row = int(np.argmax(bad))
    shown = repr(str(values.iloc[row]))
    how = "there, or leave it empty"
    if not certain:
        how = (
            f"there, leave it empty, name what stands for unknown with {option('missing')}, or name the column with "
            f"{option('categories')}"
        )
    if commas.any():
        thousands = values[~gone & bad].astype(str).str.fullmatch(r"\s*[-+]?\d{1,3}(,\d{3})+\s*").all()
        how = "without commas in them" if thousands else "with a decimal point"
    raise FFGBError(
        f"{what} has text where numbers belong, {shown if len(shown) <= 40 else shown[:36] + '…'} in row "
        f"{row + 1}; write numbers {how}"
    )


def _as_text(values: pd.Series[Any], gone: Array, what: str) -> Array:
    """A column as text, with None where nothing is known."""
    text = np.full(len(values), None, object)
    for i, value in enumerate(values.tolist()):
        if gone[i]:
            continue
        if not isinstance(value, str | int | float):
            raise FFGBError(
                f"{what} holds values that are neither numbers nor text, in row {i + 1} ({type(value).__name__}); "
                "replace them, or remove the column"
            )
        if isinstance(value, bool):
            text[i] = str(value)
        else:
            text[i] = f"{value:.15g}" if isinstance(value, float | int) else _WHOLE.sub(r"\1", plain(str(value)))
    return text


_WHOLE = re.compile(r"^(-?\d+)\.0+$")
"""4.0 is the code 4: where a value is missing, many programs write whole numbers so.  01 and 1 are two codes."""


def _finite(numbers: Array, what: str) -> Array:
    bad = np.abs(numbers) > LARGEST
    if bad.any():
        row = int(np.argmax(bad))
        raise FFGBError(f"{what} has the infinite or too large value {numbers[row]:g} in row {row + 1}; correct it")
    return numbers


def _sites(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"site{'s' * (len(names) > 1)} {shown}"


def _have(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"


def _lack(names: Sequence[str]) -> str:
    return "lack" if len(names) > 1 else "lacks"
