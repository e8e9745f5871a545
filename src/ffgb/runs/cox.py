"""Cox's model over sites, each with its own baseline: from totals (`ffgb cox`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from ffgb.core.concordance import c_index
from ffgb.core.questions import Ask
from ffgb.core.regression.cox import COX_ERRORS, TIES, CoxErrors, CoxModel, EventCounts, fit_cox
from ffgb.core.regression.design import DesignColumn, Variable
from ffgb.core.regression.formula import Formula
from ffgb.core.regression.formula import columns_of as design_columns
from ffgb.core.regression.survival import Survival, Ties
from ffgb.core.types import Array
from ffgb.data.records import SITE, SiteColumns, columns_of, levels_of
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.protocol.costs import Costs
from ffgb.runs.glm import check_cells, refuse_unknown
from ffgb.runs.statistics import Agreed, Analysis, Data, Step, analysed, check_times


@final
@dataclass(frozen=True, eq=False)
class CoxResult:
    """A proportional hazards model over all sites, stratified by site."""

    formula: str
    names: tuple[str, ...]
    coefficients: Array
    """Log hazard ratios."""
    covariance: Array
    level: float
    """Of the confidence intervals."""
    errors: str
    """Where the standard errors come from: model, robust or site."""
    ties: str
    penalty: float
    rows: int
    left_out: int
    """Rows with a missing value."""
    events: int
    sites: tuple[str, ...]
    loglik: float
    """The log partial likelihood."""
    null_loglik: float
    """That of a model without columns."""
    c_index: float | None
    """The share of pairs in the right order, over pairs of rows of the same stratum."""
    c_index_by_site: Mapping[str, float | None]
    """The same by site; empty under masks."""
    steps: int
    reference: Mapping[str, str]
    """The reference category of each categorical column."""
    columns: tuple[DesignColumn, ...]
    masked: bool
    bytes_up: float = 0.0
    """Sent by a site, on average."""

    def at_cost(self, costs: Costs) -> CoxResult:
        """The same, with what it cost."""
        return replace(self, bytes_up=costs.bytes_up / len(self.sites))

    @property
    def standard_errors(self) -> Array:
        """Square roots of the diagonal of `covariance`."""
        found: Array = np.sqrt(np.diag(self.covariance))
        return found

    @property
    def z(self) -> Array:
        """Coefficients in standard errors."""
        found: Array = self.coefficients / self.standard_errors
        return found

    @property
    def p_values(self) -> Array:
        """Two-sided, from the normal distribution."""
        found: Array = 2.0 * ndtr(-np.abs(self.z))
        return found

    @property
    def intervals(self) -> Array:
        """Confidence intervals, (coefficients, 2), from the normal distribution."""
        half = ndtri(0.5 + self.level / 2.0) * self.standard_errors
        return np.stack([self.coefficients - half, self.coefficients + half], axis=1)

    def risk(self, frame: pd.DataFrame) -> Array:
        """The log hazard ratio of each row to one of zeros and references; NaN where a value is missing."""
        variables = {v for column in self.columns for v in column.variables}
        text = {v.name for v in variables if v.level is not None}
        raw = columns_of(frame, "the table", "the table", sorted({v.name for v in variables}), text)
        found = np.full(len(frame), np.nan)
        records, whole = raw.complete(), raw.whole()
        columns = [column.of(records, slice(None)) for column in self.columns]
        found[whole] = np.array(columns).T @ self.coefficients
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        low, high = self.intervals.T
        values = self.coefficients, np.exp(self.coefficients), self.standard_errors, self.z, self.p_values, low, high
        words = ("name", "coefficient", "hazard_ratio", "standard_error", "z", "p_value", "low", "high")
        return {
            "formula": self.formula,
            "rows": self.rows,
            "left_out": self.left_out,
            "events": self.events,
            "sites": list(self.sites),
            "ties": self.ties,
            "penalty": self.penalty,
            "errors": self.errors,
            "level": self.level,
            "coefficients": [
                {word: v if isinstance(v, str) else float(v) for word, v in zip(words, row, strict=True)}
                for row in zip(self.names, *values, strict=True)
            ],
            "covariance": self.covariance.tolist(),
            "reference": dict(self.reference),
            "log_likelihood": self.loglik,
            "null_log_likelihood": self.null_loglik,
            "c_index": self.c_index,
            "c_index_by_site": dict(self.c_index_by_site),
            "steps": self.steps,
            "secure": self.masked,
            "bytes_up": self.bytes_up,
        }


def cox(
    data: Data,
    formula: str | None = None,
    *,
    time: str,
    event: str,
    columns: Sequence[str] = (),
    strata: Sequence[str] = (),
    categories: Sequence[str] = (),
    reference: Mapping[str, str] | None = None,
    ties: Ties = "efron",
    penalty: float = 0.0,
    errors: CoxErrors = "model",
    level: float = 0.95,
    least: int = LEAST,
    secure: bool = False,
    on_step: Callable[[int, float], None] = lambda step, loglik: None,
) -> CoxResult:
    """Fit Cox's proportional hazards model with a baseline hazard of its own for each site.

    Risk sets are within a site, so no time of an event leaves it.

    Parameters
    ----------
    data
        One table a site: paths of CSV or Parquet files or data frames, perhaps by the names of the sites.
    formula
        What explains the time: `age + C(stage) * sex`; or `columns` without one.
    time, event
        Columns: the time until the event or the end of observation, and 1 for an event, 0 for none.
    strata
        Categorical columns whose categories have baselines of their own, besides the sites.
    categories, reference
        Columns that are categories though they look like numbers, and reference categories: {"sex": "F"}.
    ties
        How events at the same time count: efron or breslow.
    penalty
        λ of −(λ/2) n Σ (coefficient · deviation)², added to the log-likelihood.
    errors
        Standard errors of the model, robust ones, or clustered by site.
    level
        Of the confidence intervals.
    least
        Rows of all sites that each category, cell and indicator must have.
    secure
        Add totals up under masks.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> def site() -> pd.DataFrame:
    ...     x = rng.normal(size=100)
    ...     return pd.DataFrame({"x": x, "days": rng.exponential(np.exp(-x)), "died": 1})
    >>> [round(float(b), 1) for b in cox([site(), site(), site()], "x", time="days", event="died").coefficients]
    [1.0]
    """
    analysis = Cox(
        formula,
        time,
        event,
        tuple(columns),
        tuple(strata),
        tuple(categories),
        reference or {},
        ties,
        penalty,
        errors,
        level,
        least,
    )
    return analysed(analysis, data, secure=secure, on_step=on_step)


@final
@dataclass(frozen=True)
class Cox(Analysis[CoxResult]):
    """The question that `cox` answers: its options."""

    name = "cox"
    measure = "log-likelihood"
    questions = (
        "CellCounts",
        "EventCounts",
        "ColumnOrders",
        "ColumnSums",
        "CoxSums",
        "ResidualProducts",
        "ConcordantPairs",
    )

    formula: str | None = None
    time: str = ""
    event: str = ""
    columns: tuple[str, ...] = ()
    strata: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    reference: Mapping[str, str] = field(default_factory=dict)
    ties: Ties = "efron"
    penalty: float = 0.0
    errors: CoxErrors = "model"
    level: float = 0.95
    least: int = LEAST

    def check(self) -> None:
        _check_options(self.ties, self.errors, self.penalty, self.level)
        if wrong := [name for name in (*self.parsed.names, *self.strata) if name in (self.time, self.event)]:
            raise FFGBError(f"{wrong[0]!r} is the time or the event, and cannot explain it; leave it out")
        if SITE in self.strata:
            raise FFGBError(f"the model is stratified by site already; leave {SITE!r} out of {option('strata')}")

    def in_words(self) -> str:
        return (
            f"It fits Cox's model: how the time {self.time!r} until the event {self.event!r} depends on "
            f"{' and '.join(self.parsed.names)}.  Rows of this site are compared with each other only."
        )

    @property
    def parsed(self) -> Formula:
        """The formula, or what stands for one."""
        return _formula(self.formula, self.columns, self.time)

    @property
    def survival(self) -> Survival:
        return Survival(Variable(self.time), Variable(self.event), self.strata)

    @property
    def columns_used(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.time, self.event, *self.parsed.names, *self.strata]))

    @property
    def columns_of_text(self) -> frozenset[str]:
        return self.parsed.categorical | set(self.categories) | set(self.strata)

    def check_agreed(self, agreed: Agreed) -> None:
        if SITE in self.parsed.names and agreed.own_site:
            raise FFGBError(f"the model is stratified by site already, so {SITE!r} explains nothing; leave it out")
        refuse_text((self.time, self.event), agreed)

    def check_site(self, site: SiteColumns) -> None:
        check_times(self.survival, site)

    def asked(self, ask: Ask, agreed: Agreed, on_step: Step) -> CoxResult:
        parsed, survival, least = self.parsed, self.survival, self.least
        levels = levels_of(ask, agreed.coded, least, self.reference)
        refuse_unknown(self.reference, levels)
        check_cells(ask, parsed, levels, least)
        design = design_columns(parsed, levels)[1:]  # a constant is part of the baseline
        rows, left_out, events = (int(n) for n in ask(EventCounts(survival)))
        model = CoxModel(survival, self.ties, self.penalty, self.errors)
        told = 1 if agreed.secure else len(agreed.names)
        found = fit_cox(ask, design, model, rows, events, least=least, sites=told, on_step=on_step)
        by_site = dict(zip(agreed.names, map(c_index, found.pairs), strict=True)) if told > 1 else {}
        return CoxResult(
            self.formula or " + ".join(parsed.names),
            tuple(column.name for column in design),
            found.coefficients,
            found.covariance,
            self.level,
            self.errors,
            self.ties,
            self.penalty,
            rows,
            left_out,
            events,
            agreed.names,
            found.loglik,
            found.null_loglik,
            c_index(found.pairs.sum(axis=0)),
            by_site,
            found.steps,
            {name: levels[name][0] for name in parsed.names if name in levels},
            tuple(design),
            agreed.secure,
        )


def refuse_text(names: Sequence[str], agreed: Agreed) -> None:
    """Refuse a time or an event that is text."""
    if wrong := [name for name in names if name in agreed.coded]:
        raise FFGBError(f"{wrong[0]!r} is a column of text; times are numbers, and events are 0 or 1")


def _check_options(ties: str, errors: str, penalty: float, level: float) -> None:
    if ties not in TIES:
        raise FFGBError(f"{option('ties')} is {' or '.join(TIES)}, not {ties!r}")
    if errors not in COX_ERRORS:
        raise FFGBError(f"{option('errors')} is {', '.join(COX_ERRORS[:-1])} or {COX_ERRORS[-1]}, not {errors!r}")
    if not (penalty >= 0 and math.isfinite(penalty)):
        raise FFGBError(f"{option('penalty')} is a number from 0 on, not {penalty:g}")
    if not 0.0 < level < 1.0:
        raise FFGBError(f"{option('level')} is a number between 0 and 1, not {level:g}")


def _formula(formula: str | None, columns: Sequence[str], time: str) -> Formula:
    if (formula is None) == (not columns):
        raise FFGBError(f"give {option('formula')}, for example 'age + sex', or {option('columns')}")
    if formula is None:
        return Formula.of(time, columns)
    parsed = Formula.parse(formula if "~" in formula else f"`{time}` ~ {formula}")
    if parsed.response != time:
        raise FFGBError(f"{option('formula')} explains {parsed.response!r}, and {option('time')} is {time!r}")
    if not parsed.intercept:
        raise FFGBError("the baseline hazard takes the place of an intercept; leave - 1 out")
    if not parsed.terms:
        raise FFGBError(f"{option('formula')} has no column; name one")
    return parsed
