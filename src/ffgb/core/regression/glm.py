"""Generalised linear models by iteratively reweighted least squares, with sums over all rows asked for.

Reads like the central program: where that would add up over its rows, `ask` puts a question to all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ffgb.core.exact_sums import Sizes
from ffgb.core.questions import Ask
from ffgb.core.regression.design import Design, DesignColumn, Variable
from ffgb.core.regression.families import GLMFamily
from ffgb.core.regression.sums import (
    ClusterProducts,
    ColumnOrders,
    ColumnSums,
    RowModel,
    RowOrders,
    RowTotals,
    largest_of,
    power_of_two,
    sums_at,
    unit_of,
)
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option

Errors: TypeAlias = Literal["model", "hc0", "hc1", "site"]
ERRORS: tuple[Errors, ...] = ("model", "hc0", "hc1", "site")
MOST_STEPS = 30
HALVINGS = 30
NEAR = 1e-9
"""A step this small, in standard errors, is the last."""
COLLINEAR = 1e-9
"""The share of a column's square that others must leave over."""
EXACTLY = 1e-20
"""The share of the deviance that is left if there is nothing but rounding."""
DRIFT = 0.1
"""Steps of linear predictors that have not become smaller than this go on for ever."""
MOST_OF_ROWS = 1.0 / 3.0
"""Coefficients for each row of all sites: with more, sums say too much about single rows."""


@final
@dataclass(frozen=True)
class Roles:
    """Which columns are the outcome, and what each row is offset by, exposed to and weighed with."""

    response: Variable
    offset: Variable | None = None
    exposure: Variable | None = None
    weights: Variable | None = None


@final
@dataclass(frozen=True, eq=False)
class Estimates:
    """A fitted model, in the units of the files."""

    coefficients: Array
    covariance: Array
    dispersion: float
    deviance: float
    pearson: float
    loglik: float
    steps: int


def fit(
    ask: Ask,
    columns: Sequence[DesignColumn],
    roles: Roles,
    family: GLMFamily,
    rows: int,
    sites: int,
    *,
    errors: Errors = "model",
    least: int = 10,
    on_step: Callable[[int, float], None] = lambda step, deviance: None,
) -> Estimates:
    """Coefficients of largest likelihood, and how sure they are."""
    p = len(columns)
    if least > 1 and p > MOST_OF_ROWS * rows:
        raise FFGBError(
            f"the model has {p} coefficients for {rows} rows, and sums for more than one in three say too much about "
            f"single rows; choose fewer columns, or {option('least', 1)} if the rows are no secret"
        )
    if rows <= p:
        raise FFGBError(f"the model has {p} coefficients for {rows} rows; choose fewer columns")
    design, mean = _standardised(ask, columns, roles, rows, least, family)
    model = RowModel(design, roles.response, family, roles.offset, roles.exposure, roles.weights)
    beta, steps, first = _solved(ask, model, _start(model, mean), rows, on_step)
    robust = errors != "model" and family.observed_differs
    grams = ("information", *(("observed",) if robust else ()), *(("squared score",) if errors[:2] == "hc" else ()))
    found = sums_at(ask, model, beta, ("deviance", "pearson", "score"), ("score",), grams)
    deviance, pearson = (float(v) for v in found.numbers[:2])
    dispersion = pearson / (rows - p) if family.dispersed else 1.0
    for_likelihood = pearson / rows if family.name == "gaussian" else dispersion
    if family.dispersed and not deviance > EXACTLY * first:
        raise FFGBError("the columns explain the outcome exactly; look for one that was computed from it")
    loglik = float(sums_at(ask, model, beta, ("log-likelihood",), dispersion=for_likelihood).numbers[0])
    grams_by_name = dict(zip(grams, found.grams, strict=True))
    bread = _inverse(grams_by_name["observed" if robust else "information"])
    match errors:
        case "model":
            covariance = dispersion * bread
        case "hc0" | "hc1":
            covariance = bread @ grams_by_name["squared score"] @ bread * (rows / (rows - p) if errors == "hc1" else 1)
        case "site":
            covariance = bread @ _products(ask, model, beta) @ bread * _for_clusters(sites, rows, p)
    back = _to_own_units(design)
    return Estimates(back @ beta, back @ covariance @ back.T, dispersion, deviance, pearson, loglik, steps)


def _standardised(
    ask: Ask, columns: Sequence[DesignColumn], roles: Roles, rows: int, least: int, family: GLMFamily
) -> tuple[Design, float]:
    """The columns on scales of powers of two, about their means if there is an intercept; the mean of the outcome."""
    every = (*columns, DesignColumn("the outcome", (roles.response,)))
    counts = ask(ColumnOrders(every, np.zeros(len(every))))
    for column, row in zip(columns, counts, strict=False):
        _check_column(column, row, least)
    _check_outcome(counts[-1], rows, least, family)
    units = np.array([unit_of(total) for total in Sizes.of(counts).total])
    means = ask(ColumnSums(every, units)) / rows
    numbers = np.array([any(v.level is None for v in column.variables) for column in columns])
    intercept = any(not column.variables for column in columns)
    centre = np.where(numbers & intercept, means[:-1].astype(np.float32).astype(np.float64), 0.0)
    about = ask(ColumnOrders(tuple(columns), centre))
    scale = np.array([power_of_two(largest_of(row)) for row in about])
    return Design(tuple(columns), centre, scale), float(means[-1])


def _check_column(column: DesignColumn, counts: Array, least: int) -> None:
    """Refuse a column that is 0 almost everywhere, or one that tells few rows from all others."""
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


def _check_outcome(counts: Array, rows: int, least: int, family: GLMFamily) -> None:
    """Refuse an outcome that is the same in all rows, or an event that almost none or almost all have."""
    zeros = int(counts[0])
    if family.unbounded and zeros == rows:
        raise FFGBError("the outcome is 0 in every row of all sites; there is nothing to explain")
    if family.name == "binomial":
        few = min(zeros, rows - zeros)
        if 0 < few < least:
            raise FFGBError(
                f"only {few} rows of all sites have one of the two outcomes, and sums over fewer than {least} say too "
                "much about each; choose another outcome"
            )


def _start(model: RowModel, mean: float) -> Array:
    """Coefficients to begin with: the mean of all rows, if there is an intercept."""
    beta = np.zeros(len(model.design.columns))
    for k, column in enumerate(model.design.columns):
        if not column.variables:
            beta[k] = model.family.start(mean) * model.design.scale[k]
            break
    return beta


def _solved(
    ask: Ask, model: RowModel, beta: Array, rows: int, on_step: Callable[[int, float], None]
) -> tuple[Array, int, float]:
    """Where the likelihood is largest, after how many steps, and the deviance before them."""

    def at(beta: Array) -> RowTotals:
        return sums_at(ask, model, beta, ("deviance",), ("score",), ("information",))

    totals = at(beta)
    first = float(totals.numbers[0])
    _check_collinear(totals.grams[0], model.design.columns)
    step = np.zeros_like(beta)
    for number in range(1, MOST_STEPS + 1):
        deviance = float(totals.numbers[0])
        on_step(number, deviance)
        try:
            step = _solve(totals.grams[0], totals.vectors[0])
        except np.linalg.LinAlgError:
            break
        size = float(np.sqrt(max(float(totals.vectors[0] @ step), 0.0)))
        dispersion = deviance / rows if model.family.dispersed else 1.0
        if size <= NEAR * np.sqrt(dispersion) or np.abs(step).max() <= 1e-13 * np.abs(beta).max():
            return beta + step, number, first
        for _ in range(HALVINGS):
            after = at(beta + step)
            if after.numbers[0] <= deviance * (1.0 + 1e-9):
                break
            step = step / 2.0
        beta, totals = beta + step, after
    raise _divergence(model, step)


def _divergence(model: RowModel, step: Array) -> FFGBError:
    """Why there is no maximum, in words."""
    far = np.abs(step) * np.array([1.0 if c.variables else 0.0 for c in model.design.columns])
    if model.family.unbounded and far.max(initial=0.0) >= DRIFT:
        names = [c.name for c, size in zip(model.design.columns, far, strict=True) if size >= 0.3 * far.max()]
        which = "outcomes are all alike" if model.family.name == "binomial" else "counts are all 0"
        return FFGBError(
            f"no finite estimate exists: {_listed(names)} separate{'s' * (len(names) == 1)} the outcome perfectly "
            f"(for some of the values {which}); leave {'it' if len(names) == 1 else 'one of them'} out, join "
            "categories, or train a penalised model with ffgb train --learner linear"
        )
    return FFGBError(
        f"the fit has not settled after {MOST_STEPS} steps; rescale columns with very large values, or choose another "
        f"{option('family')}"
    )


def _check_collinear(gram: Array, columns: Sequence[DesignColumn]) -> None:
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
            raise FFGBError(f"the column {one!r} follows from {_listed(others)}; leave one of them out")


def _solve(matrix: Array, vector: Array) -> Array:
    """The solution for a positive definite matrix, whatever the sizes of its rows; a LinAlgError if it is none."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    found: Array = cho_solve(cho_factor(matrix / np.outer(size, size)), (vector.T / size).T)
    solution: Array = (found.T / size).T
    return solution


def _inverse(matrix: Array) -> Array:
    try:
        found = _solve(matrix, np.eye(len(matrix)))
    except np.linalg.LinAlgError as error:
        raise FFGBError(
            "the observed information is not positive definite, so robust errors cannot be computed; choose "
            f"{option('errors', 'model')}, or another {option('family')}"
        ) from error
    return (found + found.T) / 2.0


def _products(ask: Ask, model: RowModel, beta: Array) -> Array:
    """Σ_i s_i s_iᵀ over the sites."""
    counts = ask(RowOrders(model, beta, ("score",)))
    total = float(Sizes.of(counts).total[0])
    found: Array = ask(ClusterProducts(model, beta, unit_of(total), unit_of(total * total)))
    return found


def _for_clusters(sites: int, rows: int, p: int) -> float:
    if sites < 2:
        raise FFGBError(f"{option('errors', 'site')} needs at least two sites; choose {option('errors', 'hc1')}")
    return sites / (sites - 1.0) * (rows - 1.0) / (rows - p)


def _to_own_units(design: Design) -> Array:
    """The matrix that makes coefficients of the columns as they are of those of the standardised ones."""
    back = np.diag(1.0 / design.scale)
    for k, column in enumerate(design.columns):
        if not column.variables:
            back[k] -= design.centre / design.scale
            back[k, k] = 1.0 / design.scale[k]
    return back


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:6]] + ([f"{len(names) - 6} more"] if len(names) > 6 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
