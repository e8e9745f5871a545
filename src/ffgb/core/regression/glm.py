"""Generalised linear models by iteratively reweighted least squares, with sums over all rows asked for.

Reads like the central program: where that would add up over its rows, `ask` puts a question to all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from ffgb.core.exact_sums import Sizes
from ffgb.core.questions import Ask
from ffgb.core.regression.columns import check_collinear, check_sizes, listed, solve, standardised, to_own_units
from ffgb.core.regression.design import DesignColumn, Variable
from ffgb.core.regression.families import GLMFamily
from ffgb.core.regression.sums import ClusterProducts, RowModel, RowOrders, RowTotals, sums_at, unit_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError, command, option

Errors: TypeAlias = Literal["model", "hc0", "hc1", "site"]
ERRORS: tuple[Errors, ...] = ("model", "hc0", "hc1", "site")
MOST_STEPS = 30
HALVINGS = 30
NEAR = 1e-9
"""A step this small, in standard errors, is the last."""
EXACTLY = 1e-20
"""The share of the deviance that is left if there is nothing but rounding."""
DRIFT = 0.1
"""Steps of linear predictors that have not become smaller than this go on for ever."""


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
    check_sizes(p, rows, least)
    known = [v for v in (roles.offset, roles.exposure) if v is not None]
    others = [DesignColumn("the outcome", (roles.response,)), *(DesignColumn(v.name, (v,)) for v in known)]
    intercept = any(not column.variables for column in columns)
    design, counts, means = standardised(ask, columns, rows, least, centred=intercept, others=others)
    _check_outcome(counts[0], rows, least, family)
    model = RowModel(design, roles.response, family, roles.offset, roles.exposure, roles.weights)
    beta, steps, first = _solved(ask, model, _start(model, means), rows, on_step)
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
    back = to_own_units(design)
    return Estimates(back @ beta, back @ covariance @ back.T, dispersion, deviance, pearson, loglik, steps)


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


def _start(model: RowModel, means: Array) -> Array:
    """Coefficients to begin with: the mean of all rows, if there is an intercept.

    `means` are those of the outcome, of the offset and of the exposure, as far as there are such.
    """
    level = model.family.start(float(means[0]))
    if model.offset is not None:
        level -= float(means[1])
    if model.exposure is not None:
        level -= float(np.log(means[-1]))
    beta = np.zeros(len(model.design.columns))
    for k, column in enumerate(model.design.columns):
        if not column.variables:
            beta[k] = level * model.design.scale[k]
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
    check_collinear(totals.grams[0], model.design.columns)
    step = np.zeros_like(beta)
    for number in range(1, MOST_STEPS + 1):
        deviance = float(totals.numbers[0])
        on_step(number, deviance)
        try:
            step = solve(totals.grams[0], totals.vectors[0])
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
            f"no finite estimate exists: {listed(names)} separate{'s' * (len(names) == 1)} the outcome perfectly "
            f"(for some of the values {which}); leave {'it' if len(names) == 1 else 'one of them'} out, join "
            f"categories, or train a penalised model with {command('train', learner='linear')}"
        )
    return FFGBError(
        f"the fit has not settled after {MOST_STEPS} steps; rescale columns with very large values, or choose another "
        f"{option('family')}"
    )


def _inverse(matrix: Array) -> Array:
    try:
        found = solve(matrix, np.eye(len(matrix)))
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
