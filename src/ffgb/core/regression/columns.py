"""The columns of a model before it is fitted: on public scales, none that tells few rows or follows from others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ffgb.core.exact_sums import Sizes
from ffgb.core.questions import Ask
from ffgb.core.regression.design import Design, DesignColumn
from ffgb.core.regression.sums import ColumnOrders, ColumnSums, largest_of, power_of_two, unit_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

COLLINEAR = 1e-9
"""The share of a column's square that others must leave over."""
MOST_OF_ROWS = 1.0 / 3.0
"""Coefficients for each row of all sites: with more, sums say too much about single rows."""


def check_sizes(p: int, rows: int, least: int) -> None:
    """Refuse more coefficients than so many rows can have."""
    if least > 1 and p > MOST_OF_ROWS * rows:
        raise FFGBError(
            f"the model has {p} coefficients for {rows} rows, and sums for more than one in three say too much about "
            f"single rows; choose fewer columns, or {option('least', 1)} if the rows are no secret"
        )
    if rows <= p:
        raise FFGBError(f"the model has {p} coefficients for {rows} rows; choose fewer columns")


def standardised(
    ask: Ask,
    columns: Sequence[DesignColumn],
    rows: int,
    least: int,
    *,
    centred: bool,
    others: Sequence[DesignColumn] = (),
) -> tuple[Design, Array, Array]:
    """The columns on scales of powers of two, numbers about their means if a constant may be taken away.

    Of other columns, the counts of rows by order of magnitude, and the means.
    """
    every = (*columns, *others)
    counts = ask(ColumnOrders(every, np.zeros(len(every))))
    for column, row in zip(columns, counts, strict=False):
        check_column(column, row, least)
    units = np.array([unit_of(total) for total in Sizes.of(counts).total])
    means = ask(ColumnSums(every, units)) / rows
    numbers = np.array([any(v.level is None for v in column.variables) for column in columns])
    p = len(columns)
    centre = np.where(numbers & centred, means[:p].astype(np.float32).astype(np.float64), 0.0)
    about = ask(ColumnOrders(tuple(columns), centre))
    scale = np.array([power_of_two(largest_of(row)) for row in about])
    return Design(tuple(columns), centre, scale), counts[p:], means[p:]


def check_column(column: DesignColumn, counts: Array, least: int) -> None:
    """Refuse a column that is 0 almost everywhere, or one that tells few rows from others: by orders of magnitude."""
    zeros, others = int(counts[0]), int(counts[1:].sum())
    if others == 0:
        raise FFGBError(
            f"the column {column.name!r} is 0 in every row (no row has these categories together); leave it out"
        )
    kinds = int((counts[1:] > 0).sum())
    if others < least or (0 < zeros < least and kinds == 1):
        few = min(others, zeros) if kinds == 1 else others
        raise FFGBError(
            f"the column {column.name!r} tells {few} rows from all others, and sums over fewer than {least} say too "
            "much about each; leave it out, or join categories"
        )


def check_collinear(gram: Array, columns: Sequence[DesignColumn]) -> None:
    """Name a column that others add up to."""
    size = np.sqrt(np.diag(gram))
    unit = gram / np.outer(size, size)
    for k in range(1, len(columns)):
        solution = np.linalg.lstsq(unit[:k, :k], unit[:k, k], rcond=None)[0]
        if 1.0 - unit[k, :k] @ solution <= COLLINEAR:
            part = np.abs(solution)
            others = [columns[j].name for j in range(k) if part[j] > 1e-4 * max(part.max(), 1e-300)]
            others = [name for name in others if name != "Intercept"] or others
            one = columns[k].name
            if others == ["Intercept"]:
                raise FFGBError(f"the column {one!r} is the same in every row; leave it out")
            raise FFGBError(f"the column {one!r} follows from {listed(others)}; leave one of them out")


def solve(matrix: Array, vector: Array) -> Array:
    """The solution for a positive definite matrix, whatever the sizes of its rows; a LinAlgError if it is none."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    found: Array = cho_solve(cho_factor(matrix / np.outer(size, size)), (vector.T / size).T)
    solution: Array = (found.T / size).T
    return solution


def to_own_units(design: Design) -> Array:
    """The matrix that makes coefficients of the columns as they are of those of the standardised ones."""
    back = np.diag(1.0 / design.scale)
    for k, column in enumerate(design.columns):
        if not column.variables:
            back[k] -= design.centre / design.scale
            back[k, k] = 1.0 / design.scale[k]
    return back


def listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:6]] + ([f"{len(names) - 6} more"] if len(names) > 6 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
