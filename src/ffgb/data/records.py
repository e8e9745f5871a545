"""A site's rows for statistics: the columns that a model names, as numbers or codes of categories, without rows that
miss a value.

Rows stay as they are: nothing is standardised, filled in or held out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from ffgb.core.points import Points
from ffgb.core.proofs import Keyed, Proven, key_of
from ffgb.core.questions import Ask, Here, Question
from ffgb.core.regression.design import Records
from ffgb.core.survey import NameCounts, NamesIn, Surveyed, fits
from ffgb.core.types import Array
from ffgb.data.files import MissingColumnsError, read_table
from ffgb.data.preprocess import NUMBER, TEXT, raw
from ffgb.data.reading import PLAIN, Reading
from ffgb.data.survey import Wanted, names_of
from ffgb.errors import FFGBError, option
from ffgb.privacy.integers import to_integers
from ffgb.protocol.codec import Message
from ffgb.protocol.describe import hash_of
from ffgb.protocol.messages import Asked
from ffgb.protocol.sending import Sending

SITE = "site"
"""Stands for the site itself in a formula, unless files have a column of that name."""


@final
@dataclass(frozen=True, eq=False)
class SiteColumns:
    """One site's columns before rows are left out: numbers with NaN, or codes with −1, where a value is missing."""

    name: str
    numbers: Mapping[str, Array]
    codes: Mapping[str, tuple[Array, tuple[str, ...]]]
    rows: int
    own_site: tuple[str, ...] = ()
    """The column that stands for the site itself, if the file has none of that name."""

    def kind(self, column: str) -> str:
        return TEXT if column in self.codes else NUMBER

    def whole(self) -> Array:
        """Which rows have a value in every column."""
        whole = np.ones(self.rows, bool)
        for values in self.numbers.values():
            whole &= ~np.isnan(values)
        for places, _ in self.codes.values():
            whole &= places >= 0
        return whole

    def complete(self) -> Records:
        """The rows that have a value in every column."""
        whole = self.whole()
        left = int(whole.sum())
        if left == 0:
            raise FFGBError(f"{self.name} has no row with a value in every column; leave it, or a column, out")
        if left == self.rows:
            return Records(self.numbers, self.codes, left)
        numbers = {name: values[whole] for name, values in self.numbers.items()}
        codes = {name: (values[whole], names) for name, (values, names) in self.codes.items()}
        return Records(numbers, codes, left, self.rows - left)


def read_columns(
    file: Path, site: str, names: Collection[str], text: Collection[str], reading: Reading = PLAIN
) -> SiteColumns:
    """The columns of a file that have these names; `text` are categories though they may look like numbers."""
    kinds = dict.fromkeys(text, TEXT)
    return columns_of(read_table(file, kinds, reading), site, str(file), names, text)


def columns_of(
    frame: pd.DataFrame, site: str, where: str, names: Collection[str], text: Collection[str]
) -> SiteColumns:
    """The columns of a table that have these names."""
    numbers, codes = dict[str, Array](), dict[str, tuple[Array, tuple[str, ...]]]()
    lacking = [name for name in names if name not in frame.columns]
    own = tuple(name for name in lacking if name == SITE)
    if own:
        codes[SITE] = np.zeros(len(frame), np.int8), (site,)
        lacking.remove(SITE)
    if lacking:
        raise MissingColumnsError(where, lacking, list(map(str, frame.columns)))
    for name in names:
        if name in codes:
            continue
        found = _column(frame, name, where, TEXT if name in text else None)
        if isinstance(found, tuple):
            codes[name] = found
        else:
            numbers[name] = found
    return SiteColumns(site, numbers, codes, len(frame), own)


def _column(frame: pd.DataFrame, name: str, where: str, kind: str | None) -> Array | tuple[Array, tuple[str, ...]]:
    """A column of a table: numbers, or codes with the names of categories."""
    values = frame[name]
    plain = isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufb"
    if kind != TEXT and plain:
        if values.dtype.kind == "f":
            return raw(frame, name, where, NUMBER)
        return values.to_numpy()
    codes, different = pd.factorize(values)
    few = pd.DataFrame({name: np.asarray(different, object)})
    if kind != TEXT and not isinstance(values.dtype, pd.CategoricalDtype):
        looks = pd.to_numeric(few[name], errors="coerce").notna()
        if bool(looks.any()):  # numbers, or numbers with slips: by their rows
            found = raw(frame, name, where, kind)
            return found if found.dtype != object else _coded(*pd.factorize(pd.Series(found)))
    if len(few) == 0:
        raise FFGBError(f"{where}: column {name!r} has no value; leave it out")
    names = raw(few, name, where, TEXT)
    place = {value: k for k, value in enumerate(dict.fromkeys(v for v in names if v is not None))}
    moved = np.array([-1 if v is None else place[v] for v in names] + [-1], np.int32)
    return moved[codes], tuple(_named(list(place), name, where))


def _coded(codes: Array, names: Any) -> tuple[Array, tuple[str, ...]]:
    return codes.astype(np.int32), tuple(map(str, names))


def _named(names: Sequence[str], column: str, where: str) -> Sequence[str]:
    for name in names:
        if not fits(name):
            raise FFGBError(f"{where}: column {column!r} has a category with a very long name; shorten it")
    return names


@final
class RowRespondent:
    """A client of a statistical model: it answers questions about names of categories, and about its rows."""

    def __init__(
        self,
        i: int,
        records: Records,
        least: int = 1,
        *,
        secret: Callable[[], tuple[bytes, bool]] = lambda: (b"", False),
        guard: Callable[[Question, bytes], None] = lambda question, secret: None,
    ) -> None:
        """`secret` is what all sites know and the server does not, and whether this one leads; `guard` raises an
        FFGBError at a question that is not to be answered.  Names are spelled out of categories with `least` rows."""
        self.i, self.records, self.version, self.secret, self.guard = i, records, -1, secret, guard
        self.points = Points(i, np.zeros((1, 1), np.float32), np.zeros(1))
        names = {name: _counts(*c) for name, c in records.codes.items()}
        self.surveyed = Surveyed((records.rows, 0), {}, names, fewest={"": least})

    def answer(self, sending: Sending) -> Message:
        if not isinstance(sending, Asked):
            raise FFGBError("a site of a statistical model answers questions alone")
        secret, leads = self.secret()
        question = sending.question
        self.guard(question, secret)
        asked = question.question if isinstance(question, Proven) else question
        said: object = self.records
        if isinstance(asked, NameCounts | NamesIn):
            if (secret, leads) != (self.surveyed.salt, self.surveyed.leads):
                self.surveyed = replace(self.surveyed, salt=secret, leads=leads)
            said = self.surveyed
        if isinstance(question, Proven):
            said = Keyed(said, key_of(secret, question.number, hash_of(asked)), leads)
        here = Here(self.points, sending.weighting.share(1.0), said=said)
        part = to_integers(question.part(here), question.sums)
        return Message("part", sending.round, self.i, {"points": 1}, part)

    def forget(self) -> None:
        """It keeps nothing that could be computed again."""


def _counts(codes: Array, names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(n) for name, n in zip(names, counts, strict=True) if n}


def agreed_kinds(sites: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """The columns that are categories, from the kinds of each site's: they are the same at all sites."""
    for name in names:
        kinds = {kinds[name]: site for site, kinds in sites.items()}
        if len(kinds) > 1:
            raise FFGBError(
                f"column {name!r} is text at {kinds[TEXT]} and numbers at {kinds[NUMBER]}; write it the same way "
                f"everywhere, or name it with {option('categories')}"
            )
    first = next(iter(sites.values()))
    return [name for name in names if first[name] == TEXT]


def levels_of(
    ask: Ask, columns: Sequence[str], least: int, reference: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """The categories of each column, the reference first: all that any site has, found by sums alone.

    The reference is the first in order (of numbers, if all are some), unless another is named.
    """
    found = {}
    for column, names in names_of(ask, dict.fromkeys(columns, Wanted(least, refuse=_refuse))).items():
        levels = sorted(names, key=_order_of(list(names)))
        first = (reference or {}).get(column)
        if first is not None:
            if first not in names:
                known = ", ".join(levels[:12])
                raise FFGBError(f"{option('reference', first)} is no category of {column!r}; it has {known}")
            levels.remove(first)
            levels.insert(0, first)
        found[column] = levels
    return found


def _refuse(column: str, rows: int, least: int) -> FFGBError:
    return FFGBError(
        f"the column {column!r} has a category with {rows} rows at all sites together, and sums over fewer than "
        f"{least} say too much about each; join it with another category, or leave its rows out"
    )


def _order_of(names: Sequence[str]) -> Any:
    try:
        for name in names:
            float(name)
    except ValueError:
        return lambda name: name
    return float
