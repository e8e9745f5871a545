"""Cox's proportional hazards model with one baseline a site: the sum of the sites' own partial likelihoods.

Risk sets are within a site, so no time of an event leaves it: a site sends its log-likelihood, its score and its
information at the coefficients that the server asks about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias, final

import numpy as np

from ffgb.core.concordance import concordance
from ffgb.core.exact_sums import Sizes, counted, whole
from ffgb.core.questions import Ask, Here, Question, Sum
from ffgb.core.regression.columns import check_collinear, check_sizes, listed, solve, standardised, to_own_units
from ffgb.core.regression.design import Design, DesignColumn, combined, records_of
from ffgb.core.regression.sums import ColumnOrders, ColumnSums, unit_of
from ffgb.core.regression.survival import Stratum, Survival, Ties
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option

CoxErrors: TypeAlias = Literal["model", "robust", "site"]
COX_ERRORS: tuple[CoxErrors, ...] = ("model", "robust", "site")
TIES: tuple[Ties, ...] = ("efron", "breslow")
MOST_STEPS = 40
HALVINGS = 30
NEAR = 1e-9
"""A step this small, in standard errors, is the last."""
DRIFT = 0.1
"""Steps of coefficients of standardised columns that have not become smaller than this go on for ever."""


def _strata(here: Here, design: Design, survival: Survival, beta: Array, ties: Ties) -> Iterator[Stratum]:
    records = records_of(here)
    time, event = survival.of(records)
    x = design.of(records, slice(None)).T
    for rows in survival.groups(records):
        yield Stratum.of(time[rows], event[rows], x[rows], beta, ties)


@final
@dataclass(frozen=True, eq=False)
class EventCounts(Question):
    """Rows, rows that are left out, and events."""

    what: ClassVar[str] = "rows and events"
    survival: Survival

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"counts": counted((3,))}

    def part(self, here: Here) -> Tensors:
        records = records_of(here)
        return {"counts": np.array([records.rows, records.left_out, self.survival.of(records)[1].sum()], np.float64)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["counts"] < 0).any() or own["counts"][2] > own["counts"][0]:
            raise FFGBError("its counts of rows and events are none")

    def total(self, sums: Tensors) -> Array:
        return sums["counts"]


class CoxTotals(NamedTuple):
    """Sums over all sites at β."""

    loglik: float
    score: Array
    information: Array


@final
@dataclass(frozen=True, eq=False)
class CoxSums(Question):
    """The log partial likelihood at β, its score and its information, with risk sets within a site."""

    what: ClassVar[str] = "partial likelihoods"
    design: Design
    survival: Survival
    beta: Array
    ties: Ties
    loglik_unit: float
    unit: float

    @property
    def sums(self) -> Mapping[str, Sum]:
        p = len(self.design.columns)
        return {"loglik": counted((1,)), "score": counted((p,)), "information": counted((p, p))}

    def part(self, here: Here) -> Tensors:
        p = len(self.design.columns)
        loglik, score, information = 0.0, np.zeros(p), np.zeros((p, p))
        for stratum in _strata(here, self.design, self.survival, self.beta, self.ties):
            loglik += stratum.loglik
            score += stratum.score
            information += stratum.information
        return {
            "loglik": whole(np.array([loglik]), self.loglik_unit),
            "score": whole(score, self.unit),
            "information": whole((information + information.T) / 2.0, self.unit),
        }

    def total(self, sums: Tensors) -> CoxTotals:
        loglik = float(sums["loglik"][0]) * self.loglik_unit
        return CoxTotals(loglik, sums["score"] * self.unit, sums["information"] * self.unit)


@final
@dataclass(frozen=True, eq=False)
class ResidualProducts(Question):
    """Σ r rᵀ over the score residuals of rows, or over their sums by site."""

    what: ClassVar[str] = "products of score residuals"
    design: Design
    survival: Survival
    beta: Array
    ties: Ties
    unit: float
    by_site: bool

    @property
    def sums(self) -> Mapping[str, Sum]:
        p = len(self.design.columns)
        return {"products": counted((p, p))}

    def part(self, here: Here) -> Tensors:
        parts = [each.residuals for each in _strata(here, self.design, self.survival, self.beta, self.ties)]
        rows = np.concatenate(parts)
        if self.by_site:
            rows = rows.sum(axis=0, keepdims=True)
        return {"products": whole(rows.T @ rows, self.unit)}

    def total(self, sums: Tensors) -> Array:
        found: Array = sums["products"] * self.unit
        return found


@final
@dataclass(frozen=True, eq=False)
class ConcordantPairs(Question):
    """Pairs within strata that are in the right order, of the same risk, and comparable; or by site, one row each."""

    what: ClassVar[str] = "concordant pairs"
    design: Design
    survival: Survival
    beta: Array
    sites: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"pairs": counted((self.sites, 3))}

    def part(self, here: Here) -> Tensors:
        records, found = records_of(here), np.zeros((self.sites, 3))
        time, event = self.survival.of(records)
        risk = combined(self.beta, self.design.of(records, slice(None)))
        row = here.points.i if self.sites > 1 else 0
        if row >= self.sites:
            raise FFGBError("a question about sites leaves one out")
        for rows in self.survival.groups(records):
            found[row] += concordance(time[rows], event[rows], risk[rows])
        return {"pairs": found}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        pairs = own["pairs"]
        if (pairs < 0).any() or (pairs[:, 0] + pairs[:, 1] > pairs[:, 2]).any():
            raise FFGBError("its counts of pairs are none")

    def total(self, sums: Tensors) -> Array:
        return sums["pairs"]


@final
@dataclass(frozen=True, eq=False)
class CoxEstimates:
    """A fitted model, in the units of the files."""

    coefficients: Array
    covariance: Array
    loglik: float
    null_loglik: float
    pairs: Array
    steps: int


@final
@dataclass(frozen=True)
class CoxModel:
    """What is fitted: by which ties, with which penalty and which standard errors."""

    survival: Survival
    ties: Ties = "efron"
    penalty: float = 0.0
    """λ of ℓ(β) − (λ/2) n Σ (β_k · deviation of x_k)²."""
    errors: CoxErrors = "model"


def fit_cox(
    ask: Ask,
    columns: Sequence[DesignColumn],
    model: CoxModel,
    rows: int,
    events: int,
    *,
    least: int = 10,
    sites: int = 1,
    on_step: Callable[[int, float], None] = lambda step, loglik: None,
) -> CoxEstimates:
    """Coefficients of largest (penalised) partial likelihood, and how sure they are.

    With `sites` > 1, pairs for the c-index are told by site.
    """
    p = len(columns)
    check_sizes(p, rows, least)
    _check_events(events, p, least, model.penalty)
    design, _, _ = standardised(ask, columns, rows, least, centred=True)
    ridge = np.zeros(p)
    if model.penalty > 0:
        ridge = model.penalty * rows * _variances(ask, columns, rows) / np.square(design.scale)
    beta, steps, null, last = _solved(ask, design, model, ridge, rows, events, on_step)
    bread = _inverse(last.information + np.diag(ridge))
    if model.errors == "model":
        covariance = bread
    else:
        unit = unit_of(16.0 * events * events)
        by_site = model.errors == "site"
        covariance = bread @ ask(ResidualProducts(design, model.survival, beta, model.ties, unit, by_site)) @ bread
    pairs = ask(ConcordantPairs(design, model.survival, beta, sites))
    back = to_own_units(design)
    return CoxEstimates(back @ beta, back @ covariance @ back.T, last.loglik, null, pairs, steps)


def _check_events(events: int, p: int, least: int, penalty: float) -> None:
    if events == 0:
        raise FFGBError("no row of any site has an event; there is nothing to explain")
    if events < least:
        raise FFGBError(
            f"all sites together have {events} events, and sums over fewer than {least} say too much about each"
        )
    if events <= p and penalty == 0:
        raise FFGBError(
            f"there are {events} events for {p} coefficients; choose fewer columns, or a {option('penalty')}"
        )


def _variances(ask: Ask, columns: Sequence[DesignColumn], rows: int) -> Array:
    """Of each column over all rows."""
    squares = (DesignColumn(column.name, column.variables * 2) for column in columns)
    both = (*columns, *squares)
    units = np.array([unit_of(total) for total in Sizes.of(ask(ColumnOrders(both, np.zeros(len(both))))).total])
    first, second = np.split(ask(ColumnSums(both, units)) / rows, 2)
    variance: Array = np.maximum(second - np.square(first), 0.0) * rows / (rows - 1)
    return variance


def _solved(
    ask: Ask,
    design: Design,
    model: CoxModel,
    ridge: Array,
    rows: int,
    events: int,
    on_step: Callable[[int, float], None],
) -> tuple[Array, int, float, CoxTotals]:
    """Where the likelihood is largest, after how many steps, the log-likelihood of β = 0, and the sums at the end."""

    def at(beta: Array) -> CoxTotals:
        # |η| ≤ Σ|β|, since no standardised value is beyond 1
        bound = events * (2.0 * float(np.abs(beta).sum()) + np.log(rows) + 1.0)
        found: CoxTotals = ask(CoxSums(design, model.survival, beta, model.ties, unit_of(bound), unit_of(4.0 * events)))
        return found

    beta = np.zeros(len(design.columns))
    totals = at(beta)
    null = totals.loglik
    if model.penalty == 0:
        check_collinear(totals.information, design.columns)
    step = np.zeros_like(beta)
    for number in range(1, MOST_STEPS + 1):
        gained = totals.loglik - 0.5 * float(ridge @ np.square(beta))
        on_step(number, totals.loglik)
        slope = totals.score - ridge * beta
        try:
            step = solve(totals.information + np.diag(ridge), slope)
        except np.linalg.LinAlgError:
            break
        size = float(np.sqrt(max(float(slope @ step), 0.0)))
        if size <= NEAR:
            return beta + step, number, null, at(beta + step)
        for _ in range(HALVINGS):
            after = at(beta + step)
            if after.loglik - 0.5 * float(ridge @ np.square(beta + step)) >= gained - 1e-9 * abs(gained):
                break
            step = step / 2.0
        beta, totals = beta + step, after
    raise _divergence(design, step)


def _divergence(design: Design, step: Array) -> FFGBError:
    """Why there is no maximum, in words."""
    far = np.abs(step)
    if far.max(initial=0.0) >= DRIFT:
        names = [c.name for c, size in zip(design.columns, far, strict=True) if size >= 0.3 * far.max()]
        return FFGBError(
            f"no finite estimate exists: all events, or none, are where {listed(names)} "
            f"{'is' if len(names) == 1 else 'are'} extreme; leave {'it' if len(names) == 1 else 'one of them'} out, "
            f"join categories, or give a {option('penalty')}"
        )
    return FFGBError(f"the fit has not settled after {MOST_STEPS} steps; rescale columns with very large values")


def _inverse(matrix: Array) -> Array:
    found = solve(matrix, np.eye(len(matrix)))
    return (found + found.T) / 2.0
