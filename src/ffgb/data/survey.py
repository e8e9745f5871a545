"""What sites must know of one another's files before they agree on a table, from sums over all of them alone.

A site says of its file only which columns it has, and of what kind they are.  Missing values, means, categories and
classes come from totals (core/survey.py), under masks or not: the table is that of one machine with all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import numpy as np

from ffgb.core.limbs import from_limbs
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here
from ffgb.core.survey import (
    ALL_BITS,
    FIRST_BITS,
    HEADS,
    MARK,
    MORE_BITS,
    FileCounts,
    FileSums,
    NameCounts,
    NamesIn,
    Surveyed,
    read_out,
)
from ffgb.core.types import Array
from ffgb.data.files import Columns
from ffgb.data.preprocess import MOST_CATEGORIES, NUMBER, TEXT, Said
from ffgb.errors import FFGBError
from ffgb.privacy.integers import to_integers
from ffgb.protocol.codec import Message
from ffgb.protocol.messages import Asked
from ffgb.protocol.sending import Sending

TARGET = "\0target"
"""Stands for the target among the columns; no column has this name."""
NAMES = 2000
"""Names that are asked for by one question, at most."""


# At a site


def surveyed(said: Columns, labels: Mapping[str, int], rare: int, least: int) -> Surveyed:
    """What a site answers from: what it knows of its file."""
    columns = {name: (each.missing, each.count, each.total) for name, each in said.columns.items()}
    names = {name: each.categories for name, each in said.columns.items() if each.kind == TEXT}
    fewest = {TARGET: least, "": max(rare, least)}
    return Surveyed((said.rows, said.test_rows), columns, {**names, TARGET: dict(labels)}, fewest=fewest)


def without_counts(said: Columns, *, rows: bool = False) -> Columns:
    """What a site says of its file at once: which columns, of what kind, and whether it holds out rows; or how many
    `rows` it has, and holds out."""
    columns = {name: Said(each.kind, 0, 0, 0.0, {}) for name, each in said.columns.items()}
    sizes = (said.rows, said.test_rows) if rows else (1, min(said.test_rows, 1))
    return replace(said, rows=sizes[0], test_rows=sizes[1], columns=columns, classes=())


def survey_bytes(said: Columns) -> int:
    """Bytes of the questions about a site's file that are asked in any case: names, and buckets that are divided, are
    besides."""
    text = [name for name, each in said.columns.items() if each.kind == TEXT] + [TARGET] * bool(said.classes)
    numbers = tuple(name for name, each in said.columns.items() if each.kind == NUMBER)
    counts = NameCounts(tuple(text), (0,) * len(text), (0,) * len(text), FIRST_BITS)
    return sum(question.size for question in (FileCounts(tuple(said.columns)), FileSums(numbers), counts))


@final
class Respondent:
    """A client before there are points: it answers questions about a site's file."""

    def __init__(self, i: int, said: Surveyed, secret: Callable[[], tuple[bytes, bool]] = lambda: (b"", False)) -> None:
        """`secret` is asked for before names are hashed: in a secure training, what all sites know, and whether this
        one leads."""
        self.i, self.said, self.version, self.secret = i, said, -1, secret
        self.named: set[tuple[str, str]] = set()
        """Columns, and names in them that this site was asked for."""
        self.points = Points(i, np.zeros((1, 1), np.float32), np.zeros(1))

    def answer(self, sending: Sending) -> Message:
        if not isinstance(sending, Asked):
            raise FFGBError("before sites agree on a table they answer questions about their files alone")
        question = sending.question
        if isinstance(question, NameCounts | NamesIn):
            salt, leads = self.secret()
            if (salt, leads) != (self.said.salt, self.said.leads):
                self.said = replace(self.said, salt=salt, leads=leads)
        here = Here(self.points, sending.weighting.share(1.0), said=self.said)
        part = to_integers(question.part(here), question.sums)
        if isinstance(question, NamesIn):
            self.named |= question.named(self.said)
        return Message("part", sending.round, self.i, {"points": 1}, part)

    def forget(self) -> None:
        """It keeps nothing that could be computed again."""


# At the server


@final
@dataclass(frozen=True)
class Counts:
    """Rows of all sites together."""

    rows: int
    test_rows: int


def survey(
    ask: Ask, sites: Mapping[str, Columns], labelled: Sequence[str], rare: int, least: int
) -> tuple[dict[str, Columns], Counts]:
    """What sites know of their files, with the sums over all of them at the first that has such a column.

    `sites` is what they said without counts, `labelled` are those whose target may be a class.
    """
    # a column that half of the sites or fewer have is not used, and its sums would be those of few
    having = Counter(name for said in sites.values() for name in said.columns)
    columns = tuple(name for name in having if 2 * having[name] > len(sites))
    counted = ask(FileCounts(columns))
    there = dict(zip(columns, counted["counts"].astype(int).tolist(), strict=True))
    kinds = {name: {_kind(said, name) for said in sites.values()} & {NUMBER, TEXT} for name in columns}
    # the sum of few numbers says too much about each; where there are so few, their mean is not used
    numbers = tuple(name for name in columns if kinds[name] == {NUMBER} and there[name][1] >= rare)
    totals = dict(zip(numbers, from_limbs(ask(FileSums(numbers))).tolist(), strict=True)) if numbers else {}
    wanted = {name: Wanted(max(rare, least), MOST_CATEGORIES) for name in columns if kinds[name] == {TEXT}}
    names = names_of(ask, {**wanted, TARGET: Wanted(least, refuse=_refuse_class)} if labelled else wanted)
    found = {site: dict(said.columns) for site, said in sites.items()}
    for name, (missing, values) in there.items():
        for kind in (NUMBER, TEXT):
            first = next((site for site, said in sites.items() if _kind(said, name) == kind), None)
            if first is not None:
                total, named = (totals.get(name, 0.0), {}) if kind == NUMBER else (0.0, names.get(name, {}))
                found[first][name] = Said(kind, missing, values, total, named)
    classes = names.get(TARGET, {})
    described = {
        site: replace(said, columns=found[site], classes=_classes(classes, said.kind) if site in labelled else ())
        for site, said in sites.items()
    }
    return described, Counts(*(int(n) for n in counted["rows"]))


def _refuse_class(column: str, rows: int, least: int) -> FFGBError:
    return FFGBError(
        f"a class has {rows} rows at all sites together, and sums over fewer than {least} say too much about each; "
        "sites leave its rows out, or join it with another class"
    )


def even(total: int, places: int) -> tuple[int, ...]:
    """A number dealt out evenly: where only the sum is known.

    >>> even(8, 3)
    (3, 3, 2)
    """
    return tuple(total // places + (k < total % places) for k in range(places))


Refusing: TypeAlias = Callable[[str, int, int], FFGBError]
"""The error for a column in which a name has so many rows, and not as many as it must have."""


@final
@dataclass(frozen=True)
class Wanted:
    """Which names of a column are asked for."""

    least: int = 1
    """Those with so many rows at all sites together."""
    most: int | None = None
    """So many, those with the most rows, and those with as many as the last of them; None: all."""
    refuse: Refusing | None = None
    """If a name has fewer rows; None: it is left out."""


@final
@dataclass(frozen=True)
class _Bucket:
    """Rows of one or several names: those whose hash begins with `depth` bits, the number `head`."""

    depth: int
    head: int
    rows: int
    mark: int | None
    """Of its name; None if it has several, or a name that is not told."""
    proof: int = 0

    @staticmethod
    def parts(depth: int, head: int, bits: int, counts: Array, marks: Array, proofs: Array) -> Iterator[_Bucket]:
        """The buckets that a bucket is divided into, as far as they hold rows."""
        for k in np.flatnonzero(counts):
            rows, marked = int(counts[k]), int(marks[k])
            mark = marked // rows if marked % rows == 0 and marked // rows < 2**MARK else None
            yield _Bucket(depth + bits, (head << bits) + int(k), rows, mark, int(proofs[k]))


@final
@dataclass
class _Search:
    """What is known of the names in a column."""

    column: str
    wanted: Wanted
    names: dict[str, int] = field(default_factory=dict)
    buckets: list[_Bucket] = field(default_factory=list)

    def add(self, buckets: Iterable[_Bucket]) -> None:
        for one in buckets:
            if one.rows >= self.wanted.least:
                self.buckets.append(one)
            elif self.wanted.refuse is not None:
                raise self.wanted.refuse(self.column, one.rows, self.wanted.least)

    def due(self) -> list[_Bucket]:
        """Buckets in which there may be a name that is wanted, taken out of those that are left."""
        rows = sorted([*self.names.values(), *(one.rows for one in self.buckets)], reverse=True)
        most = self.wanted.most
        cut = rows[most - 1] if most is not None and len(rows) > most else 0
        due = [one for one in self.buckets if one.rows >= cut]
        self.buckets = [one for one in self.buckets if one.rows < cut]
        return due


def names_of(ask: Ask, wanted: Mapping[str, Wanted]) -> dict[str, dict[str, int]]:
    """The names that sites have in each of these columns, with the rows of all sites, from sums alone."""
    searches = [_Search(column, each) for column, each in wanted.items()]
    _divide(ask, [(search, _Bucket(0, 0, 0, None)) for search in searches], FIRST_BITS)
    while due := [(search, one) for search in searches for one in search.due()]:
        mixed = [(search, one) for search, one in due if one.mark is None]
        mixed += _read(ask, [(search, one) for search, one in due if one.mark is not None])
        if any(one.depth + MORE_BITS > ALL_BITS for _, one in mixed):
            raise FFGBError("the names of categories cannot be told apart; a site has sent wrong numbers")
        _divide(ask, mixed, MORE_BITS)
    return {search.column: search.names for search in searches}


def _divide(ask: Ask, buckets: Sequence[tuple[_Search, _Bucket]], bits: int) -> None:
    """Ask for the parts of buckets."""
    for some in _pieces(buckets, HEADS):
        depths, heads = tuple(one.depth for _, one in some), tuple(one.head for _, one in some)
        sums = ask(NameCounts(tuple(search.column for search, _ in some), depths, heads, bits))
        found = (sums["counts"], sums["marks"], sums["proofs"])
        for (search, one), *arrays in zip(some, *found, strict=True):
            search.add(_Bucket.parts(one.depth, one.head, bits, *arrays))


def _read(ask: Ask, buckets: Sequence[tuple[_Search, _Bucket]]) -> list[tuple[_Search, _Bucket]]:
    """Ask for the names of buckets that seem to have one; those that have not are left."""
    left = []
    for some in _pieces(buckets, NAMES):
        places = ((search.column, one.depth, one.head, one.mark or 0, one.rows, one.proof) for search, one in some)
        for (search, one), row in zip(some, ask(NamesIn(*zip(*places, strict=True))), strict=True):
            name = read_out(row)
            if name is None:
                left.append((search, one))
            else:
                search.names[name] = one.rows
    return left


def _pieces(buckets: Sequence[tuple[_Search, _Bucket]], most: int) -> Iterator[Sequence[tuple[_Search, _Bucket]]]:
    """Some buckets at a time."""
    for first in range(0, len(buckets), most):
        yield buckets[first : first + most]


def _kind(said: Columns, column: str) -> str | None:
    return said.columns[column].kind if column in said.columns else None


def _classes(names: Mapping[str, int], kind: str) -> tuple[str, ...] | tuple[float, ...]:
    """Classes as a site of this kind of target would have said them."""
    if kind == "text":
        return tuple(sorted(names))
    try:
        return tuple(sorted(float(name) for name in names))
    except ValueError as error:
        raise FFGBError(
            "the target is text at one site and a number at another; write it the same everywhere"
        ) from error
