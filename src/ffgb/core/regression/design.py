"""The design matrix at a site: rows without missing values, and the columns that a model makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.questions import Here
from ffgb.core.types import Array
from ffgb.errors import FFGBError

CHUNK = 4096
"""Rows at a time: products of integers of 20 bits, so many of them, add up exactly in float64."""


@final
@dataclass(frozen=True, eq=False)
class Records:
    """One site's rows, those with a value in every column that is used."""

    numbers: Mapping[str, Array]
    """Columns of numbers, (n,) each."""
    codes: Mapping[str, tuple[Array, tuple[str, ...]]]
    """Columns of categories: the place of each row's category among these names."""
    rows: int
    left_out: int = 0
    """Rows with a missing value."""


@final
@dataclass(frozen=True)
class Variable:
    """A column of numbers, or the indicator of one category."""

    name: str
    level: str | None = None

    def of(self, records: Records, rows: slice) -> Array:
        """Its values at some rows, as float64."""
        if self.level is None:
            if self.name not in records.numbers:
                raise FFGBError(f"this site has no column {self.name!r} of numbers")
            return np.ascontiguousarray(records.numbers[self.name][rows], np.float64)
        if self.name not in records.codes:
            raise FFGBError(f"this site has no column {self.name!r} of categories")
        codes, names = records.codes[self.name]
        if self.level not in names:
            return np.zeros(len(codes[rows]))
        found: Array = (codes[rows] == names.index(self.level)).astype(np.float64)
        return found


@final
@dataclass(frozen=True)
class DesignColumn:
    """A product of variables; of none, it is 1."""

    name: str
    variables: tuple[Variable, ...]

    def of(self, records: Records, rows: slice) -> Array:
        if not self.variables:
            return np.ones(len(range(*rows.indices(records.rows))))
        found = self.variables[0].of(records, rows)
        for variable in self.variables[1:]:
            found = found * variable.of(records, rows)
        return found


@final
@dataclass(frozen=True, eq=False)
class Design:
    """Columns that are standardised by public numbers: (x − centre)/scale."""

    columns: tuple[DesignColumn, ...]
    centre: Array
    scale: Array
    """Powers of two, so that no standardised value is beyond 1."""

    def __post_init__(self) -> None:
        p = len(self.columns)
        if self.centre.shape != (p,) or self.scale.shape != (p,) or not (self.scale > 0).all():
            raise FFGBError("a design has other numbers of columns and of scales")

    def of(self, records: Records, rows: slice) -> Array:
        """The standardised columns at some rows, (columns, rows)."""
        found = np.empty((len(self.columns), len(range(*rows.indices(records.rows)))))
        for row, column, centre, scale in zip(found, self.columns, self.centre, self.scale, strict=True):
            np.subtract(column.of(records, rows), centre, out=row)
            np.multiply(row, 1.0 / scale, out=row)
        return found


def records_of(here: Here) -> Records:
    """What a site answers questions about rows from."""
    if not isinstance(here.said, Records):
        raise FFGBError("a question about rows is asked of a client that has none")
    return here.said


def chunks(records: Records) -> Iterator[slice]:
    for first in range(0, records.rows, CHUNK):
        yield slice(first, min(first + CHUNK, records.rows))


def combined(beta: Array, columns: Array) -> Array:
    """Σ_k β_k x_k at each row, added up in the order of the columns: the same bits for a row among any others."""
    found = np.zeros(columns.shape[1])
    for b, x in zip(beta, columns, strict=True):
        found += b * x
    return found
