"""Questions about sites' files before they agree on a table: sums of counts, and names without their owners.

Categories and classes are found by sums alone.  Each site adds up its rows in buckets, by a hash of the name, and a
number that the hash gives the name (its mark) as often as it has rows.  A bucket with too few rows is let be: no name
in it has more.  If the marks of a bucket are its rows times one number, all of its rows have one name: sites are asked
for the sum of the bytes of this name, which is the name times the number of sites that have it.  Other buckets are
divided into smaller ones.  So a site never spells out a name that all sites together have too few rows of.

Where sites have a secret that the server does not know, they need not believe it: beside the rows of a bucket they add
up a proof, rows times one secret number and another one, and spell out a name only if the rows and the proof that the
question shows fit together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from ffgb.core.limbs import LIMBS, to_limbs
from ffgb.core.questions import Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

FIRST_BITS, MORE_BITS, ALL_BITS = 11, 4, 51
"""Bits of a hash by which names are told apart at first, further bits for what is divided, and how many there are."""
PROOF, COVER = 20, 52
"""Bits of the two secret numbers of a proof."""
MARK = 22
"""Bits of a mark: sums of marks over 2³⁰ rows are exact in float64."""
LETTERS = 200
"""Bytes of a name; a category with a longer one is not named."""
CHECK = 8
"""Bytes of a checksum."""
HEADS = 2**16
"""Buckets that are divided by one question, at most."""


@final
@dataclass(frozen=True, eq=False)
class Hashed:
    """The names of a column at one site."""

    names: tuple[str, ...]
    rows: Array
    places: Array
    """Of each name DEEPEST bits."""
    marks: Array

    def within(self, depth: int, head: int) -> Array:
        """Which names are in the bucket of the first `depth` bits."""
        found: Array = self.places >> (ALL_BITS - depth) == head
        return found


@final
@dataclass(frozen=True, eq=False)
class Surveyed:
    """What a site answers a survey from: sums over its rows."""

    rows: tuple[int, int]
    """To train with, and held out."""
    columns: Mapping[str, tuple[int, int, float | Fraction]]
    """Values that are missing, that are there, and the sum of these."""
    names: Mapping[str, Mapping[str, int]]
    """Categories of each column of text, and the classes of the target, with their rows."""
    salt: bytes = b""
    """What all sites know and the server does not: with it no one else can say where a name is counted."""
    leads: bool = False
    """Whether this is the site of all that adds the second number of proofs."""
    fewest: Mapping[str, int] = field(default_factory=dict)
    """Rows of all sites that a name of a column must have, by column, before this site spells it out; "" for others."""

    @cached_property
    def hashed(self) -> dict[str, Hashed]:
        return {column: hashed(column, names, self.salt) for column, names in self.names.items()}


def surveyed(here: Here) -> Surveyed:
    if not isinstance(here.said, Surveyed):
        raise FFGBError("a question about files is asked of a client that has none")
    return here.said


@final
@dataclass(frozen=True, eq=False)
class FileCounts(Question):
    """Rows of all sites, and of each column the values that are missing, and those that are there."""

    what: ClassVar[str] = "rows and missing values"
    columns: tuple[str, ...]

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {
            "rows": Sum((2,), 2.0**62, kind="count"),
            "counts": Sum((len(self.columns), 2), 2.0**62, kind="count"),
        }

    def part(self, here: Here) -> Tensors:
        said = surveyed(here)
        columns = [said.columns.get(name, (0, 0, 0.0))[:2] for name in self.columns]
        return {"rows": np.array(said.rows), "counts": np.array(columns).reshape(-1, 2)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        missing, there = own["counts"].T
        if (own["rows"] < 0).any() or (own["counts"] < 0).any():
            raise FFGBError("its counts of rows and values are none")
        if (missing + there > own["rows"].sum()).any():
            raise FFGBError("it counts more values in a column than it has rows")

    def total(self, sums: Tensors) -> Tensors:
        return sums


@final
@dataclass(frozen=True, eq=False)
class FileSums(Question):
    """Sums of the values in columns of numbers."""

    what: ClassVar[str] = "sums of columns"
    columns: tuple[str, ...]

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"totals": Sum((len(self.columns), LIMBS), 2.0**62, kind="count")}

    def part(self, here: Here) -> Tensors:
        said = surveyed(here)
        return {"totals": to_limbs([said.columns.get(name, (0, 0, 0.0))[2] for name in self.columns])}

    def total(self, sums: Tensors) -> Array:
        return sums["totals"]


def _check_buckets(columns: Sequence[str], depths: Sequence[int], heads: Sequence[int]) -> None:
    """Raise an FFGBError if there can be no such buckets."""
    if not 0 < len(columns) == len(depths) == len(heads):
        raise FFGBError("a question about names names no buckets")
    if not all(type(d) is int and 0 <= d <= ALL_BITS for d in depths):
        raise FFGBError("a question about names has buckets that are too small")
    if not all(type(h) is int and 0 <= h < 2**ALL_BITS for h in heads):
        raise FFGBError("a question about names has buckets that there are not")


@final
@dataclass(frozen=True, eq=False)
class NameCounts(Question):
    """Rows, and sums of marks, in the 2^bits parts of some buckets of columns' names."""

    what: ClassVar[str] = "counts of categories"
    columns: tuple[str, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    bits: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        shape = (len(self.columns), 2**self.bits)
        count, large = Sum(shape, 2.0**31 - 1, 32, "count"), Sum(shape, 2.0**53, 64, "count")
        return {"counts": count, "marks": large, "proofs": large}

    def part(self, here: Here) -> Tensors:
        _check_buckets(self.columns, self.depths, self.heads)
        if not 0 < self.bits <= FIRST_BITS or max(self.depths) + self.bits > ALL_BITS:
            raise FFGBError("a question about names divides buckets into too many parts")
        names, shape = surveyed(here).hashed, (len(self.columns), 2**self.bits)
        counts, marks, proofs = (np.zeros(shape) for _ in range(3))
        for k, (column, depth, head) in enumerate(zip(self.columns, self.depths, self.heads, strict=True)):
            times, more = secret_numbers(surveyed(here).salt, column, depth, head, self.bits)
            if surveyed(here).leads:
                proofs[k] = more
            if (own := names.get(column)) is None:
                continue
            inside = own.within(depth, head)
            parts = own.places[inside] >> (ALL_BITS - depth - self.bits) & (2**self.bits - 1)
            rows = own.rows[inside]
            counts[k] = np.bincount(parts, rows, 2**self.bits)
            marks[k] = np.bincount(parts, rows * own.marks[inside], 2**self.bits)
            proofs[k] += counts[k] * times
        return {"counts": counts, "marks": marks, "proofs": proofs}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if any((array < 0).any() for array in own.values()):
            raise FFGBError("its counts of categories are negative")
        if (own["marks"] > own["counts"] * (2.0**MARK - 1.0)).any():
            raise FFGBError("its marks of categories are larger than there are")

    def total(self, sums: Tensors) -> Tensors:
        return sums


@final
@dataclass(frozen=True, eq=False)
class NamesIn(Question):
    """The sum of the names with some marks in some buckets, as bytes, and of their checksums."""

    what: ClassVar[str] = "names of categories"
    columns: tuple[str, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    marks: tuple[int, ...]
    rows: tuple[int, ...]
    """Of all sites in each bucket."""
    proofs: tuple[int, ...]
    """Of these rows."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"letters": Sum((len(self.columns), 2 + LETTERS + CHECK), 2.0**31 - 1, 32, "count")}

    def part(self, here: Here) -> Tensors:
        _check_buckets(self.columns, self.depths, self.heads)
        said, found = surveyed(here), np.zeros((len(self.columns), 2 + LETTERS + CHECK))
        self._check_proofs(said)
        for row, own in zip(found, self._asked(said), strict=True):
            for name in own:
                row += spelled(name)
        return {"letters": found}

    def _asked(self, said: Surveyed) -> Iterator[list[str]]:
        """This site's names with the mark, in each of the buckets."""
        for column, depth, head, mark in zip(self.columns, self.depths, self.heads, self.marks, strict=True):
            if (own := said.hashed.get(column)) is None:
                yield []
            else:
                inside = own.within(depth, head) & (own.marks == mark)
                yield [own.names[k] for k in np.flatnonzero(inside)]

    def named(self, said: Surveyed) -> set[tuple[str, str]]:
        """The columns and names that a site spells out."""
        return {(column, name) for column, own in zip(self.columns, self._asked(said), strict=True) for name in own}

    def _check_proofs(self, said: Surveyed) -> None:
        """Raise an FFGBError if the server asks for a name that all sites together have too few rows of.

        Without a secret that it does not know this cannot be found out.
        """
        if not said.salt:
            return
        buckets = list(zip(self.columns, self.depths, self.heads, strict=True))
        if len(set(buckets)) < len(buckets):
            raise FFGBError("a question about names asks for a bucket twice")
        for (column, depth, head), rows, proof in zip(buckets, self.rows, self.proofs, strict=True):
            bits = FIRST_BITS if depth == FIRST_BITS else MORE_BITS
            if depth < bits:
                raise FFGBError("a question about names has buckets that there are not")
            times, more = secret_numbers(said.salt, column, depth - bits, head >> bits, bits)
            place = head & (2**bits - 1)
            if rows * int(times[place]) + int(more[place]) != proof:
                raise FFGBError("the server says other rows of a category than it got from all sites")
            if rows < said.fewest.get(column, said.fewest.get("", 1)):
                raise FFGBError("the server asks for the name of a category that has too few rows at all sites")

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["letters"] < 0).any():
            raise FFGBError("its names of categories are none")

    def total(self, sums: Tensors) -> Array:
        return sums["letters"]


def fits(name: str) -> bool:
    """Is a name short enough to be told, and made of characters that have bytes?"""
    try:
        return len(name.encode()) <= LETTERS
    except UnicodeEncodeError:
        return False


def hashed(column: str, names: Mapping[str, int], salt: bytes = b"") -> Hashed:
    """The names of a column with their rows, and where they are counted."""
    start = hashlib.blake2b(f"{len(column)}/{column}/".encode(), key=salt, digest_size=16)
    digests = bytearray()
    for name in names:
        one = start.copy()
        one.update(name.encode())
        digests += one.digest()
    words = np.frombuffer(bytes(digests), ">u8").reshape(-1, 2)
    places = (words[:, 0] >> np.uint64(64 - ALL_BITS)).astype(np.int64)
    marks = (words[:, 1] >> np.uint64(64 - MARK)).astype(np.int64)
    return Hashed(tuple(names), np.array(list(names.values()), np.int64), places, marks)


def secret_numbers(salt: bytes, column: str, depth: int, head: int, bits: int) -> tuple[Array, Array]:
    """For each part of a bucket the two numbers of its proof: zeros if there is no secret."""
    if not salt:
        return np.zeros(2**bits), np.zeros(2**bits)
    start = hashlib.blake2b(f"{len(column)}/{column}/{depth}/{head}/{bits}".encode(), key=salt, person=b"ffgb proofs")
    words = np.frombuffer(hashlib.shake_256(start.digest()).digest(16 * 2**bits), ">u8").reshape(2, -1)
    times, more = words[0] >> np.uint64(64 - PROOF), words[1] >> np.uint64(64 - COVER)
    return times.astype(np.float64), more.astype(np.float64)


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
    letters = bytes(int(v) for v in each[1 : 1 + int(each[0])])
    try:
        name = letters.decode()
    except UnicodeDecodeError:
        return None
    return name if np.array_equal(spelled(name)[1:], each) else None
