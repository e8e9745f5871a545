"""Questions about a generalised linear model: sums over all rows that have the same bits over any split of the rows.

Each row's number is rounded to a whole multiple of a public unit before it is added (core/exact_sums.py).  A Gram
matrix Σ v x xᵀ is taken of rows √|v| x as integers of 20 bits, and of what they leave over, as 20 bits more: products
of blocks of such rows are exact in float64, however they are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.exact_sums import EXACT, LOWEST, ORDERS, Sizes, counted, orders, unit_for, whole
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.regression.design import Design, DesignColumn, Records, Variable, chunks, combined, records_of
from ffgb.core.regression.families import GLMFamily
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

BITS = 20
"""Of each of the two integers that stand for a number in a Gram matrix."""
SPLIT = 2.0**26
"""Sums of such products travel as two numbers, of units of this and of the rest."""
MOST_ROWS = 2.0**48
"""Of all sites: units leave room for the rounding of so many."""
LARGEST = 2.0**90
"""Numbers of a row are cut off here: a step that leads there is taken back."""


@final
@dataclass(frozen=True, eq=False)
class RowModel:
    """What a row contributes: its outcome, the columns of its design, its offset, exposure and weight."""

    design: Design
    response: Variable
    family: GLMFamily
    offset: Variable | None = None
    exposure: Variable | None = None
    weights: Variable | None = None

    def outcome(self, records: Records, rows: slice) -> Array:
        y = self.response.of(records, rows)
        self.family.check(y)
        return y

    def weight(self, records: Records, rows: slice) -> Array:
        return _ones(records, rows) if self.weights is None else self.weights.of(records, rows)

    def shift(self, records: Records, rows: slice) -> Array:
        """The part of the linear predictor that is known."""
        found = np.zeros(len(range(*rows.indices(records.rows))))
        if self.offset is not None:
            found += self.offset.of(records, rows)
        if self.exposure is not None:
            found += np.log(self.exposure.of(records, rows))
        return found


def _ones(records: Records, rows: slice) -> Array:
    return np.ones(len(range(*rows.indices(records.rows))))


@final
@dataclass(frozen=True, eq=False)
class Values:
    """Numbers of some rows at β, by the names that questions have for them."""

    model: RowModel
    dispersion: float
    y: Array
    mu: Array
    a: Array

    @staticmethod
    def at(model: RowModel, beta: Array, dispersion: float, records: Records, rows: slice, columns: Array) -> Values:
        eta = combined(beta, columns) + model.shift(records, rows)
        y = model.outcome(records, rows)
        return Values(model, dispersion, y, model.family.mean(eta), model.weight(records, rows))

    def named(self, name: str) -> Array:
        found: Array = np.clip(self._named(name), -LARGEST, LARGEST)
        return found

    def _named(self, name: str) -> Array:
        family, y, mu, a = self.model.family, self.y, self.mu, self.a
        match name:
            case "information":
                return a * family.weight(mu)
            case "observed":
                return a * family.observed(y, mu)
            case "score":
                return a * family.score(y, mu)
            case "squared score":
                squared: Array = np.square(a * family.score(y, mu))
                return squared
            case "deviance":
                return a * family.deviance(y, mu)
            case "pearson":
                pearson: Array = a * np.square(y - mu) / family.variance(mu)
                return pearson
            case "log-likelihood":
                return family.loglik(y, mu, a, self.dispersion)
        raise FFGBError(f"a question asks for {name!r} of rows, which is not known")


@final
@dataclass(frozen=True, eq=False)
class CellCounts(Question):
    """Rows with all values, rows that are left out, and rows of each cell of some categories."""

    what: ClassVar[str] = "rows and cells"
    cells: tuple[DesignColumn, ...] = ()

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"rows": counted((2,)), "cells": counted((len(self.cells),))}

    def part(self, here: Here) -> Tensors:
        records, found = records_of(here), np.zeros(len(self.cells))
        for rows in chunks(records):
            found += [cell.of(records, rows).sum() for cell in self.cells] if self.cells else 0.0
        return {"rows": np.array([records.rows, records.left_out], np.float64), "cells": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["rows"] < 0).any() or (own["cells"] < 0).any() or (own["cells"] > own["rows"][0]).any():
            raise FFGBError("its counts of rows are none")

    def total(self, sums: Tensors) -> Tensors:
        return sums


@final
@dataclass(frozen=True, eq=False)
class ColumnOrders(Question):
    """How many rows have each order of magnitude in each column, about a centre."""

    what: ClassVar[str] = "orders of magnitude of the columns"
    columns: tuple[DesignColumn, ...]
    centre: Array

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"orders": counted((len(self.columns), ORDERS + 1))}

    def part(self, here: Here) -> Tensors:
        records, found = records_of(here), np.zeros((len(self.columns), ORDERS + 1))
        for rows in chunks(records):
            for count, column, centre in zip(found, self.columns, self.centre, strict=True):
                count += orders((column.of(records, rows) - centre)[:, None])[0]
        return {"orders": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        _check_orders(own["orders"])

    def total(self, sums: Tensors) -> Array:
        return sums["orders"]


@final
@dataclass(frozen=True, eq=False)
class ColumnSums(Question):
    """The sum of each column over all rows."""

    what: ClassVar[str] = "means of the columns"
    columns: tuple[DesignColumn, ...]
    units: Array

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"sums": counted(self.units.shape)}

    def part(self, here: Here) -> Tensors:
        records, found = records_of(here), np.zeros(len(self.columns))
        for rows in chunks(records):
            for k, (column, unit) in enumerate(zip(self.columns, self.units, strict=True)):
                found[k] += whole(column.of(records, rows), unit).sum()
        return {"sums": found}

    def total(self, sums: Tensors) -> Array:
        found: Array = sums["sums"] * self.units
        return found


@final
@dataclass(frozen=True, eq=False)
class RowOrders(Question):
    """How many rows have each order of magnitude of some numbers at β."""

    what: ClassVar[str] = "orders of magnitude at the coefficients"
    model: RowModel
    beta: Array
    names: tuple[str, ...]
    dispersion: float = 1.0

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"orders": counted((len(self.names), ORDERS + 1))}

    def part(self, here: Here) -> Tensors:
        records, found = records_of(here), np.zeros((len(self.names), ORDERS + 1))
        for rows in chunks(records):
            columns = self.model.design.of(records, rows)
            values = Values.at(self.model, self.beta, self.dispersion, records, rows, columns)
            found += orders(np.stack([values.named(name) for name in self.names], axis=1))
        return {"orders": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        _check_orders(own["orders"])

    def total(self, sums: Tensors) -> Array:
        return sums["orders"]


class RowTotals(NamedTuple):
    """Sums over all rows at β."""

    numbers: Array
    vectors: Array
    grams: Array


@final
@dataclass(frozen=True, eq=False)
class RowSums(Question):
    """At β: Σ v, Σ v x and Σ v x xᵀ over all rows, each for some numbers v of a row by name."""

    what: ClassVar[str] = "sums at the coefficients"
    model: RowModel
    beta: Array
    numbers: tuple[str, ...]
    vectors: tuple[str, ...]
    grams: tuple[str, ...]
    number_units: Array
    vector_units: Array
    gram_bounds: Array
    """Powers of two that no √|v| is beyond."""
    dispersion: float = 1.0

    @property
    def sums(self) -> Mapping[str, Sum]:
        p = len(self.model.design.columns)
        found = {"numbers": counted((len(self.numbers),)), "vectors": counted((len(self.vectors), p))}
        return {**found, "grams": counted((len(self.grams), 6, p, p))} if self.grams else found

    def part(self, here: Here) -> Tensors:
        records, p = records_of(here), len(self.model.design.columns)
        numbers, vectors = np.zeros(len(self.numbers)), np.zeros((len(self.vectors), p))
        grams = np.zeros((len(self.grams), 6, p, p))
        for rows in chunks(records):
            x = self.model.design.of(records, rows)
            values = Values.at(self.model, self.beta, self.dispersion, records, rows, x)
            for k, (name, unit) in enumerate(zip(self.numbers, self.number_units, strict=True)):
                numbers[k] += whole(values.named(name), unit).sum()
            for vector, name, unit in zip(vectors, self.vectors, self.vector_units, strict=True):
                vector += whole(x * values.named(name), unit).sum(axis=1)
            for gram, name, bound in zip(grams, self.grams, self.gram_bounds, strict=True):
                gram += _gram_in_parts(x, values.named(name), float(bound))
        return {"numbers": numbers, "vectors": vectors, **({"grams": grams} if self.grams else {})}

    def total(self, sums: Tensors) -> RowTotals:
        grams = np.array([_gram_of(g, float(b)) for g, b in zip(sums.get("grams", ()), self.gram_bounds, strict=True)])
        return RowTotals(
            sums["numbers"] * self.number_units,
            sums["vectors"] * self.vector_units[:, None],
            grams.reshape(-1, *(len(self.model.design.columns),) * 2),
        )


@final
@dataclass(frozen=True, eq=False)
class ClusterProducts(Question):
    """Σ_i s_i s_iᵀ over the sites, s_i the sum of v x over the rows of site i, with v a number of a row."""

    what: ClassVar[str] = "products of the sites' scores"
    model: RowModel
    beta: Array
    unit: float
    product_unit: float

    @property
    def sums(self) -> Mapping[str, Sum]:
        p = len(self.model.design.columns)
        return {"products": counted((p, p))}

    def part(self, here: Here) -> Tensors:
        records = records_of(here)
        score = np.zeros(len(self.model.design.columns))
        for rows in chunks(records):
            x = self.model.design.of(records, rows)
            values = Values.at(self.model, self.beta, 1.0, records, rows, x)
            score += whole(x * values.named("score"), self.unit).sum(axis=1)
        score = score * self.unit
        return {"products": whole(np.outer(score, score), self.product_unit)}

    def total(self, sums: Tensors) -> Array:
        found: Array = sums["products"] * self.product_unit
        return found


def _gram_in_parts(x: Array, v: Array, bound: float) -> Array:
    """Σ v x xᵀ in six arrays of whole numbers, from which it is put together."""
    z = x * (np.sqrt(np.abs(v)) * (2.0**BITS / bound))
    high = np.rint(z)
    low = np.rint((z - high) * 2.0**BITS)
    sign = np.sign(v) if (v < 0).any() else 1.0
    found = []
    for product in ((sign * high) @ high.T, (sign * high) @ low.T, (sign * low) @ low.T):
        upper = np.floor(product / SPLIT)
        found += [upper, product - upper * SPLIT]
    return np.stack(found)


def _gram_of(parts: Array, bound: float) -> Array:
    """Σ v x xᵀ from its parts."""
    high, mixed, low = (upper * SPLIT + lower for upper, lower in (parts[:2], parts[2:4], parts[4:]))
    found: Array = (high + ((mixed + mixed.T) + low * 2.0**-BITS) * 2.0**-BITS) * (bound / 2.0**BITS) ** 2
    return found


def _check_orders(counts: Array) -> None:
    if (counts < 0).any() or (counts.sum(axis=1) != counts[0].sum()).any():
        raise FFGBError("its counts of orders of magnitude are none")


def power_of_two(largest: float) -> float:
    """The least power of two that is no smaller; 1 for 0."""
    return float(2.0 ** np.ceil(np.log2(largest))) if largest > 0 else 1.0


def sums_at(
    ask: Ask,
    model: RowModel,
    beta: Array,
    numbers: Iterable[str],
    vectors: Iterable[str] = (),
    grams: Iterable[str] = (),
    dispersion: float = 1.0,
) -> RowTotals:
    """Sums at β, in units that follow from the orders of magnitude of what is added."""
    names = tuple(numbers), tuple(vectors), tuple(grams)
    distinct = tuple(dict.fromkeys(name for some in names for name in some))
    counts = ask(RowOrders(model, beta, distinct, dispersion))
    totals = dict(zip(distinct, Sizes.of(counts).total, strict=True))
    tops = {name: largest_of(row) for name, row in zip(distinct, counts, strict=True)}
    units = [np.array([unit_of(totals[name]) for name in some]) for some in names[:2]]
    bounds = np.array([power_of_two(np.sqrt(tops[name])) for name in names[2]])
    found: RowTotals = ask(RowSums(model, beta, *names, units[0], units[1], bounds, dispersion))
    return found


def unit_of(total: float) -> float:
    """In what sums of sizes up to this total are counted."""
    return unit_for(float(total), MOST_ROWS, EXACT)


def largest_of(counts: Array) -> float:
    """What no number is beyond, from counts by order of magnitude."""
    top = int(np.max(np.flatnonzero(counts), initial=0))
    return float(np.ldexp(1.0, LOWEST + top - 1)) if top else 0.0
