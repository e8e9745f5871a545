"""Totals of single sites that a Gaussian model is a function of: kept, the model without a site can be computed.

Least squares needs no more than Σ a u uᵀ over rows, u the columns of the design and the outcome.  So the model of some
sites follows from their sums, as if the others had never taken part; nobody is asked again.  What a fit refuses (few
rows of a category, columns that tell few rows) is refused by counts that are kept beside the sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ffgb.core.exact_sums import ORDERS, orders
from ffgb.core.regression.columns import check_collinear, check_column, check_sizes, solve, to_own_units
from ffgb.core.regression.design import Design, DesignColumn, Records, chunks
from ffgb.core.regression.families import LOG_TWO_PI
from ffgb.core.regression.glm import Estimates, Roles
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

EXACTLY = 1e-13
"""The share of the outcome's variance that is left if there is nothing but rounding."""


@final
@dataclass(frozen=True, eq=False)
class Stored:
    """The model whose totals are kept."""

    columns: tuple[DesignColumn, ...]
    centre: Array
    """What is subtracted from each column and from the outcome, so that squares keep their digits: (p + 1,)."""
    least: int

    @staticmethod
    def of(columns: Sequence[DesignColumn], roles: Roles, records: Sequence[Records], least: int) -> Stored:
        """With the means of all rows as centres, if a constant may be taken away."""
        p = len(columns)
        centre = np.zeros(p + 1)
        if any(not column.variables for column in columns):
            sums = np.zeros(p + 1)
            for each in records:
                for rows in chunks(each):
                    sums += np.append([c.of(each, rows).sum() for c in columns], _outcome(roles, each, rows).sum())
            numbers = [any(v.level is None for v in column.variables) for column in columns]
            means = sums / sum(each.rows for each in records)
            centre = np.where([*numbers, True], means.astype(np.float32).astype(np.float64), 0.0)
        return Stored(tuple(columns), centre, least)

    def totals(self, roles: Roles, records: Records, cells: Sequence[DesignColumn]) -> SiteTotals:
        """The sums over one site's rows."""
        p = len(self.columns)
        products, counts, log_weights = np.zeros((p + 1, p + 1)), np.zeros((p, ORDERS + 1)), 0.0
        in_cells = np.zeros(len(cells))
        for rows in chunks(records):
            x = np.stack([column.of(records, rows) for column in self.columns])
            weight = np.ones(x.shape[1]) if roles.weights is None else roles.weights.of(records, rows)
            u = np.vstack([x, _outcome(roles, records, rows)]) - self.centre[:, None]
            products += (u * weight) @ u.T
            counts += orders(x.T)
            log_weights += float(np.log(weight).sum())
            in_cells += [cell.of(records, rows).sum() for cell in cells] if cells else 0.0
        levels = {
            name: dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
            for name, (codes, names) in records.codes.items()
        }
        named = {cell.name: int(n) for cell, n in zip(cells, in_cells, strict=True)}
        return SiteTotals(records.rows, records.left_out, products, counts, levels, named, log_weights)

    def without_gone(self, totals: SiteTotals, reference: Mapping[str, str]) -> tuple[list[int], dict[str, str]]:
        """Columns that are left where categories are gone with a site, and what the references are.

        An FFGBError if a new fit would refuse these rows, or have other references.
        """
        there = totals.there(self.least)
        for name, first in reference.items():
            if name not in there or first not in there[name]:
                raise FFGBError(
                    f"no row is left with {name} = {first}, which other categories are compared with; fit the model "
                    f"anew with another {option('reference')}, and keep its totals"
                )
            if len(there[name]) < 2:
                raise FFGBError(f"all rows that are left have {name} = {first}; fit a model without this column")
        gone = {(v.name, v.level) for c in self.columns for v in c.variables if v.level is not None}
        gone = {(name, level) for name, level in gone if level not in there.get(name, ())}
        kept = [k for k, c in enumerate(self.columns) if not any((v.name, v.level) in gone for v in c.variables)]
        return kept, dict(reference)

    def fit(self, totals: SiteTotals, kept: Sequence[int]) -> Estimates:
        """Least squares by totals."""
        columns = tuple(self.columns[k] for k in kept)
        p, rows = len(columns), totals.rows
        check_sizes(p, rows, self.least)
        for column, counts in zip(columns, totals.orders[list(kept)], strict=True):
            check_column(column, counts, self.least)
        places = [*kept, len(self.columns)]
        products = totals.products[np.ix_(places, places)]
        gram, inner, square = products[:p, :p], products[:p, p], float(products[p, p])
        check_collinear(gram, columns)
        beta = solve(gram, inner)
        beta = beta + solve(gram, inner - gram @ beta)
        deviance = square - float(beta @ inner)
        if not deviance > EXACTLY * square:
            raise FFGBError("the columns explain the outcome exactly; look for one that was computed from it")
        dispersion, spread = deviance / (rows - p), deviance / rows
        loglik = -0.5 * (rows + rows * np.log(spread) - totals.log_weights + rows * LOG_TWO_PI)
        back = to_own_units(Design(columns, self.centre[list(kept)], np.ones(p)))
        coefficients = back @ beta
        for k, column in enumerate(columns):
            if not column.variables:
                coefficients[k] += self.centre[-1]
                break
        inverse = solve(gram, np.eye(p))
        covariance = dispersion * back @ ((inverse + inverse.T) / 2.0) @ back.T
        return Estimates(coefficients, covariance, dispersion, deviance, deviance, float(loglik), 1)


def _outcome(roles: Roles, records: Records, rows: slice) -> Array:
    """What is explained: the outcome, less its offset."""
    found = roles.response.of(records, rows)
    return found if roles.offset is None else found - roles.offset.of(records, rows)


@final
@dataclass(frozen=True, eq=False)
class SiteTotals:
    """Sums over the rows of a site, or of several."""

    rows: int
    left_out: int
    products: Array
    """Σ a u uᵀ, u the columns and the outcome about their centres, (p + 1, p + 1)."""
    orders: Array
    """Of each column, rows by order of magnitude."""
    levels: Mapping[str, Mapping[str, int]]
    """Rows of each category."""
    cells: Mapping[str, int]
    """Rows of the cells of categories that interact."""
    log_weights: float

    def plus(self, other: SiteTotals, sign: int = 1) -> SiteTotals:
        """The totals of both; with the sign −1, of this one without the other."""
        levels = {
            name: {
                level: self.levels.get(name, {}).get(level, 0) + sign * other.levels.get(name, {}).get(level, 0)
                for level in {**self.levels.get(name, {}), **other.levels.get(name, {})}
            }
            for name in {**self.levels, **other.levels}
        }
        cells = {n: self.cells.get(n, 0) + sign * other.cells.get(n, 0) for n in {**self.cells, **other.cells}}
        found = replace(
            self,
            rows=self.rows + sign * other.rows,
            left_out=self.left_out + sign * other.left_out,
            products=self.products + sign * other.products,
            orders=self.orders + sign * other.orders,
            levels=levels,
            cells=cells,
            log_weights=self.log_weights + sign * other.log_weights,
        )
        counts = [found.rows, found.left_out, *cells.values(), *(n for own in levels.values() for n in own.values())]
        if min(counts) < 0 or (found.orders < 0).any() or found.rows == 0:
            raise FFGBError("what is left has no rows, or fewer than none: these totals are not of the same model")
        return found

    def there(self, least: int) -> dict[str, list[str]]:
        """Categories that have rows; an FFGBError if one, or a cell of several, has too few."""
        for name, own in self.levels.items():
            for level, rows in own.items():
                if 0 < rows < least:
                    raise FFGBError(
                        f"only {rows} rows would be left with {name} = {level}, and sums over fewer than {least} say "
                        "too much about each; fit the model anew, with this category joined to another"
                    )
        for cell, rows in self.cells.items():
            if 0 < rows < least:
                raise FFGBError(
                    f"only {rows} rows would be left with {cell}, and sums over fewer than {least} say too much about "
                    "each; fit the model anew, without this interaction"
                )
        return {name: [level for level, rows in own.items() if rows] for name, own in self.levels.items()}

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "products": self.products.tolist(), "orders": self.orders.astype(int).tolist()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> SiteTotals:
        products, counts = (np.array(values[name], np.float64) for name in ("products", "orders"))
        if products.shape != (len(counts) + 1,) * 2 or counts.shape[1:] != (ORDERS + 1,):
            raise ValueError("sums have other shapes")
        if not np.isfinite(products).all():
            raise ValueError("sums are not finite")
        levels = {str(name): {str(k): int(n) for k, n in own.items()} for name, own in values["levels"].items()}
        cells = {str(name): int(n) for name, n in values["cells"].items()}
        rows, left_out = int(values["rows"]), int(values["left_out"])
        return SiteTotals(rows, left_out, products, counts, levels, cells, float(values["log_weights"]))
