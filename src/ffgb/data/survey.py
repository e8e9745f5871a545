"""What sites must know of one another's files before they agree on a table, from sums over all of them alone.

In a secure training a site says of its file only which columns it has, and of what kind they are.  Rows, missing
values, means, categories and classes come from totals (core/survey.py): the table is as if each site had told its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ffgb.core.limbs import from_limbs
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here
from ffgb.core.survey import FileSums, NameCounts, NamesIn, Surveyed, bucket, fits, in_pieces, read_out, spelled
from ffgb.core.types import Array
from ffgb.data.files import Columns
from ffgb.data.preprocess import NUMBER, TEXT, Said
from ffgb.errors import FFGBError
from ffgb.privacy.integers import to_integers
from ffgb.protocol.codec import Message, shown
from ffgb.protocol.messages import Asked
from ffgb.protocol.sending import Sending

TARGET = "\0target"
"""Stands for the target among the columns; no column has this name."""
ATTEMPTS = 8
"""Hashes that are tried until no two names share a bucket."""


# At a site


def surveyed(said: Columns, labels: Mapping[str, int], rare: int) -> Surveyed:
    """What a site answers from: the same sums that it would tell on its own in the open."""
    columns = {
        name: (each.missing, each.count, each.count if each.count >= rare else 0, each.total)
        for name, each in said.columns.items()
    }
    names = {name: {c: n for c, n in each.categories.items() if fits(c)} for name, each in said.columns.items()}
    return Surveyed((said.rows, said.test_rows), columns, {**names, TARGET: dict(labels)})


def without_counts(said: Columns) -> Columns:
    """What a site says of its file at once: which columns, of what kind, and whether it holds out rows."""
    columns = {name: Said(each.kind, 0, 0, 0.0, {}) for name, each in said.columns.items()}
    return replace(said, rows=1, test_rows=min(said.test_rows, 1), columns=columns, classes=())


@final
class Respondent:
    """A client before there are points: it answers questions about a site's file."""

    def __init__(self, i: int, said: Surveyed) -> None:
        self.i, self.said, self.version = i, said, -1
        self.points = Points(i, np.zeros((1, 1), np.float32), np.zeros(1))

    def answer(self, sending: Sending) -> Message:
        if not isinstance(sending, Asked):
            raise FFGBError("before sites agree on a table they answer questions about their files alone")
        question = sending.question
        here = Here(self.points, sending.weighting.share(1.0), said=self.said)
        part = to_integers(question.part(here), question.sums)
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
    ask: Ask, sites: Mapping[str, Columns], labelled: Sequence[str], least: int
) -> tuple[dict[str, Columns], Counts]:
    """What sites would have said of their files, with the sums over all of them at the first that has such a column.

    `sites` is what they said without counts, `labelled` are those whose target may be a class.
    """
    # a column that half of the sites or fewer have is not used, and its sums would be those of few
    having = Counter(name for said in sites.values() for name in said.columns)
    columns = tuple(name for name in having if 2 * having[name] > len(sites))
    sums = ask(FileSums(columns))
    text = tuple(c for c in columns if any(_kind(said, c) == TEXT for said in sites.values()))
    names = names_of(ask, (*text, TARGET) if labelled else text, {TARGET: least})
    found = {site: dict(said.columns) for site, said in sites.items()}
    for column, counted, total in zip(columns, sums["counts"], from_limbs(sums["totals"]), strict=True):
        missing, there, told = (int(n) for n in counted)
        for kind in (NUMBER, TEXT):
            first = next((site for site, said in sites.items() if _kind(said, column) == kind), None)
            if first is not None:
                counts = (missing, told, float(total)) if kind == NUMBER else (missing, there, 0.0)
                found[first][column] = Said(kind, *counts, names.get(column, {}) if kind == TEXT else {})
    classes = names.get(TARGET, {})
    if labelled:
        check_classes(classes, least)  # two that shared a bucket
    described = {
        site: replace(said, columns=found[site], classes=_classes(classes, said.kind) if site in labelled else ())
        for site, said in sites.items()
    }
    return described, Counts(*(int(n) for n in sums["rows"]))


def check_classes(classes: Mapping[str, int], least: int) -> None:
    """Raise an FFGBError if all sites together have too few rows of a class to hide a single one among them."""
    few = sorted((rows, name) for name, rows in classes.items() if rows < least)
    if few:
        rows, name = few[0]
        raise FFGBError(
            f"a class{f' ({shown(name)})' * bool(name)} has {rows} rows at all sites together, and sums over fewer "
            f"than {least} say too much about each; sites leave its rows out, or join it with another class"
        )


def even(total: int, places: int) -> tuple[int, ...]:
    """A number dealt out evenly: where only the sum is known.

    >>> even(8, 3)
    (3, 3, 2)
    """
    return tuple(total // places + (k < total % places) for k in range(places))


def names_of(ask: Ask, columns: Sequence[str], fewest: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
    """The names that sites have in each of these columns, with the rows of all sites, from sums alone.

    Where a column must have so many rows of each name, and has not, no name of it is asked for.
    """
    found: dict[str, dict[str, tuple[int, int]]] = {column: {} for column in columns}
    for attempt in range(ATTEMPTS if columns else 0):
        left = _left(ask(NameCounts(tuple(columns), attempt)), found, attempt)
        for column, row in zip(columns, left, strict=True):
            if row.any():
                check_classes({"": int(row[row > 0].min())}, (fewest or {}).get(column, 0))
        items = [(columns[c], int(k)) for c, k in zip(*np.nonzero(left), strict=True)]
        resolved = True
        for some in in_pieces(items):
            question = NamesIn(tuple(c for c, _ in some), tuple(k for _, k in some), attempt)
            for (column, k), row in zip(some, ask(question), strict=True):
                for name, (_, sites) in found[column].items():
                    if bucket(column, name, attempt) == k:
                        row = row - sites * spelled(name)
                read = read_out(row)
                resolved = resolved and read is not None
                if read is not None:
                    found[column][read] = int(left[columns.index(column), k]), int(row[0])
        if resolved:
            break
    else:
        if columns:
            raise FFGBError("the names of categories cannot be told apart; give columns with fewer categories")
    return {column: {name: rows for name, (rows, _) in names.items()} for column, names in found.items()}


def _left(counts: Array, found: Mapping[str, Mapping[str, tuple[int, int]]], attempt: int) -> Array:
    """Counts of buckets without the names that are known."""
    left = counts.astype(np.int64)
    for row, (column, names) in zip(left, found.items(), strict=True):
        for name, (rows, _) in names.items():
            row[bucket(column, name, attempt)] -= rows
    return left


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
