"""Questions about sites' files before they agree on a table: sums of counts, and names without their owners.

Categories and classes are found by sums alone.  Each site adds up its rows in buckets, by a hash of the name.  Then,
for the buckets that hold anything, sites are asked for the sum of the bytes of their names: if all names in a bucket
are one, this is the name times the number of sites that have it.  A checksum tells if they are not; those names are
looked for again with another hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.limbs import LIMBS, to_limbs
from ffgb.core.questions import Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

BUCKETS = 2048
LETTERS = 200
"""Bytes of a name; a category with a longer one is not named."""
CHECK = 8
"""Bytes of a checksum."""


@final
@dataclass(frozen=True)
class Surveyed:
    """What a site answers a survey from: sums over its rows."""

    rows: tuple[int, int]
    """To train with, and held out."""
    columns: Mapping[str, tuple[int, int, int, float]]
    """Values that are missing, that are there, of how many the sum is told, and the sum."""
    names: Mapping[str, Mapping[str, int]]
    """Categories of each column of text, and the classes of the target, with their rows."""


def surveyed(here: Here) -> Surveyed:
    if not isinstance(here.said, Surveyed):
        raise FFGBError("a question about files is asked of a client that has none")
    return here.said


@final
@dataclass(frozen=True, eq=False)
class FileSums(Question):
    """Rows of all sites, and of each column the values that are missing, those that are there, and their sum."""

    what: ClassVar[str] = "rows and missing values"
    columns: tuple[str, ...]

    @property
    def sums(self) -> Mapping[str, Sum]:
        C = len(self.columns)
        return {
            "rows": Sum((2,), 2.0**62, kind="count"),
            "counts": Sum((C, 3), 2.0**62, kind="count"),
            "totals": Sum((C, LIMBS), 2.0**62, kind="count"),
        }

    def part(self, here: Here) -> Tensors:
        said = surveyed(here)
        columns = [said.columns.get(name, (0, 0, 0, 0.0)) for name in self.columns]
        return {
            "rows": np.array(said.rows),
            "counts": np.array([column[:3] for column in columns]).reshape(-1, 3),
            "totals": to_limbs([column[3] for column in columns]),
        }

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        missing, there, told = own["counts"].T
        if (own["rows"] < 0).any() or (own["counts"] < 0).any() or (told > there).any():
            raise FFGBError("its counts of rows and values are none")
        if (missing + there > own["rows"].sum()).any():
            raise FFGBError("it counts more values in a column than it has rows")

    def total(self, sums: Tensors) -> Tensors:
        return sums


@final
@dataclass(frozen=True, eq=False)
class NameCounts(Question):
    """Rows in each bucket of each column's names."""

    what: ClassVar[str] = "counts of categories"
    columns: tuple[str, ...]
    attempt: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"counts": Sum((len(self.columns), BUCKETS), 2.0**31 - 1, 32, "count")}

    def part(self, here: Here) -> Tensors:
        names, counts = surveyed(here).names, np.zeros((len(self.columns), BUCKETS))
        for row, column in zip(counts, self.columns, strict=True):
            for name, number in names.get(column, {}).items():
                row[bucket(column, name, self.attempt)] += number
        return {"counts": counts}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["counts"] < 0).any():
            raise FFGBError("its counts of categories are negative")

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


@final
@dataclass(frozen=True, eq=False)
class NamesIn(Question):
    """The sum of the names in some buckets, as bytes, and of their checksums."""

    what: ClassVar[str] = "names of categories"
    columns: tuple[str, ...]
    buckets: tuple[int, ...]
    """One of each entry of `columns`."""
    attempt: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"letters": Sum((len(self.buckets), 2 + LETTERS + CHECK), 2.0**31 - 1, 32, "count")}

    def part(self, here: Here) -> Tensors:
        names, found = surveyed(here).names, np.zeros((len(self.buckets), 2 + LETTERS + CHECK))
        for row, column, k in zip(found, self.columns, self.buckets, strict=True):
            for name in names.get(column, {}):
                if bucket(column, name, self.attempt) == k:
                    row += spelled(name)
        return {"letters": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["letters"] < 0).any():
            raise FFGBError("its names of categories are none")

    def total(self, sums: Tensors) -> Array:
        return sums["letters"]


def fits(name: str) -> bool:
    """Is a name short enough to be told?"""
    return len(name.encode()) <= LETTERS


def bucket(column: str, name: str, attempt: int) -> int:
    """Where a name is counted."""
    digest = hashlib.sha256(f"{attempt}/{len(column)}/{column}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def spelled(name: str) -> Array:
    """One site's name as numbers: a one, its length, its bytes, and a checksum."""
    letters, check = name.encode(), hashlib.sha256(name.encode()).digest()[:CHECK]
    return np.array([1, len(letters), *letters.ljust(LETTERS, b"\0"), *check], np.float64)


def read_out(row: Array) -> str | None:
    """The name that several sites have spelled out, if it is one name."""
    sites = int(row[0])
    if sites < 1:
        return None
    each = row[1:] / sites
    if (each != np.round(each)).any() or (each[1:] > 255).any() or not 0 <= each[0] <= LETTERS:
        return None
    letters = bytes(int(v) for v in each[1 : 1 + LETTERS])[: int(each[0])]
    try:
        name = letters.decode()
    except UnicodeDecodeError:
        return None
    return name if np.array_equal(spelled(name)[1:], each) else None


def in_pieces(items: Sequence[tuple[str, int]], most: int = 2000) -> list[Sequence[tuple[str, int]]]:
    """Buckets as they are asked about: some at a time."""
    return [items[first : first + most] for first in range(0, len(items), most)]
