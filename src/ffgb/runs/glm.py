"""Generalised linear models over sites: coefficients and how sure they are, from totals (`ffgb glm`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy.special import ndtr, ndtri

from ffgb.core.questions import Ask
from ffgb.core.regression.design import DesignColumn, Variable
from ffgb.core.regression.families import FAMILIES, GaussianFamily, GLMFamily, family_named
from ffgb.core.regression.formula import Formula
from ffgb.core.regression.formula import columns_of as design_columns
from ffgb.core.regression.glm import ERRORS, Errors, Roles, fit
from ffgb.core.regression.stored import Stored
from ffgb.core.regression.sums import CellCounts
from ffgb.core.types import Array
from ffgb.data.records import SITE, SiteColumns, levels_of
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.protocol.costs import Costs
from ffgb.runs.site_totals import Kept, refuse_keeping
from ffgb.runs.statistics import Agreed, Analysis, Data, Step, analysed, asking, prepared


@final
@dataclass(frozen=True, eq=False)
class GLMResult:
    """A generalised linear model over all sites."""

    formula: str
    family: str
    link: str
    event: str | None
    """The category of the outcome whose odds are modelled, if the outcome is text."""
    names: tuple[str, ...]
    coefficients: Array
    covariance: Array
    level: float
    """Of the confidence intervals."""
    errors: str
    """Where the standard errors come from: model, hc0, hc1 or site."""
    rows: int
    left_out: int
    """Rows with a missing value."""
    sites: tuple[str, ...]
    dispersion: float
    deviance: float
    pearson: float
    loglik: float
    steps: int
    reference: Mapping[str, str]
    """The reference category of each categorical column."""
    masked: bool
    bytes_up: float = 0.0
    """Sent by a site, on average."""
    bytes_down: float = 0.0

    def at_cost(self, costs: Costs) -> GLMResult:
        """The same, with what it cost."""
        N = len(self.sites)
        return replace(self, bytes_up=costs.bytes_up / N, bytes_down=costs.bytes_down / N)

    @property
    def df_residual(self) -> int:
        """Rows less coefficients."""
        return self.rows - len(self.names)

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

    @property
    def aic(self) -> float:
        """−2 log-likelihood + 2 · coefficients."""
        return -2.0 * self.loglik + 2.0 * len(self.names)

    @property
    def bic(self) -> float:
        """−2 log-likelihood + log(rows) · coefficients."""
        return float(-2.0 * self.loglik + np.log(self.rows) * len(self.names))

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        low, high = self.intervals.T
        values = self.coefficients, self.standard_errors, self.z, self.p_values, low, high
        columns = zip(self.names, *values, strict=True)
        words = ("name", "coefficient", "standard_error", "z", "p_value", "low", "high")
        return {
            "formula": self.formula,
            "family": self.family,
            "link": self.link,
            "event": self.event,
            "rows": self.rows,
            "left_out": self.left_out,
            "sites": list(self.sites),
            "errors": self.errors,
            "level": self.level,
            "coefficients": [
                {word: v if isinstance(v, str) else float(v) for word, v in zip(words, row, strict=True)}
                for row in columns
            ],
            "covariance": self.covariance.tolist(),
            "reference": dict(self.reference),
            "dispersion": self.dispersion,
            "deviance": self.deviance,
            "pearson_chi2": self.pearson,
            "df_residual": self.df_residual,
            "log_likelihood": self.loglik,
            "aic": self.aic,
            "bic": self.bic,
            "steps": self.steps,
            "secure": self.masked,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }


def glm(
    data: Data,
    formula: str | None = None,
    *,
    target: str | None = None,
    columns: Sequence[str] = (),
    family: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    categories: Sequence[str] = (),
    reference: Mapping[str, str] | None = None,
    errors: Errors = "model",
    level: float = 0.95,
    least: int = LEAST,
    secure: bool = False,
    keep: Path | None = None,
    on_step: Callable[[int, float], None] = lambda step, deviance: None,
) -> GLMResult:
    """Fit a generalised linear model to the rows of all sites together, from totals alone.

    The result does not depend on how rows are split between sites (except for what is about sites: the term `site` and
    clustered errors).

    Parameters
    ----------
    data
        One table a site: paths of CSV or Parquet files or data frames, perhaps by the names of the sites.
    formula
        `outcome ~ age + C(stage) * sex + site`; or `target` and `columns` without one.
    family
        gaussian, binomial, poisson or gamma; without a word, binomial for an outcome of text and gaussian for numbers.
    weights, offset, exposure
        Columns: prior weights, what is added to the linear predictor, and what counts are a rate of (log link).
    categories
        Columns that are categories though they look like numbers.
    reference
        The reference category of columns: {"sex": "F"}.
    errors
        Standard errors of the model, robust ones (hc0, hc1), or clustered by site.
    level
        Of the confidence intervals.
    least
        Rows of all sites that each category, cell and indicator must have.
    secure
        Add totals up under masks.
    keep
        A folder for the totals of each site, from which `withdraw` computes the model without one (gaussian).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> sites = [pd.DataFrame({"x": x, "y": 1 + 2 * x + rng.normal(size=50)}) for x in rng.normal(size=(3, 50))]
    >>> [round(float(b), 1) for b in glm(sites, "y ~ x").coefficients]
    [0.9, 1.9]
    """
    analysis = GLM(
        formula,
        target,
        tuple(columns),
        family,
        weights,
        offset,
        exposure,
        tuple(categories),
        reference or {},
        errors,
        level,
        least,
    )
    if keep is None:
        return analysed(analysis, data, secure=secure, on_step=on_step)
    return _with_totals(analysis, data, keep, secure, on_step)


def _with_totals(analysis: GLM, data: Data, keep: Path, secure: bool, on_step: Step) -> GLMResult:
    """The same; the totals of each site are kept in a folder."""
    refuse_keeping(keep, analysis.family or GaussianFamily.name, analysis.errors)
    agreed, records = prepared(analysis, data, secure=secure)
    refuse_keeping(keep, analysis.kind(agreed).name, analysis.errors)
    with asking(agreed.names, records, secure=secure) as asked:
        found = analysis.asked(asked.ask, agreed, on_step).at_cost(asked.costs)
        model = analysis.model(asked.ask, agreed)  # of totals that are known
    stored = Stored.of(model.design, model.roles, records, analysis.least)
    kept = Kept(found.formula, analysis.level, found.reference, stored)
    kept.write(keep, dict(zip(agreed.names, records, strict=True)), model.roles, crossed(analysis.parsed, model.levels))
    return found


@final
@dataclass(frozen=True, eq=False)
class Model:
    """What is fitted, once it is known which categories there are."""

    levels: Mapping[str, Sequence[str]]
    event: str | None
    design: Sequence[DesignColumn]
    roles: Roles
    rows: int
    left_out: int

    @property
    def explaining(self) -> dict[str, Sequence[str]]:
        """Categories of the columns other than the outcome."""
        return {name: known for name, known in self.levels.items() if name != self.roles.response.name}


@final
@dataclass(frozen=True)
class GLM(Analysis[GLMResult]):
    """The question that `glm` answers: its options."""

    name = "glm"
    measure = "deviance"
    questions = ("CellCounts", "ColumnOrders", "ColumnSums", "RowOrders", "RowSums", "ClusterProducts")

    formula: str | None = None
    target: str | None = None
    columns: tuple[str, ...] = ()
    family: str | None = None
    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    categories: tuple[str, ...] = ()
    reference: Mapping[str, str] = field(default_factory=dict)
    errors: Errors = "model"
    level: float = 0.95
    least: int = LEAST

    def check(self) -> None:
        if self.errors not in ERRORS:
            raise FFGBError(f"{option('errors')} is {', '.join(ERRORS[:-1])} or {ERRORS[-1]}, not {self.errors!r}")
        if not 0.0 < self.level < 1.0:
            raise FFGBError(f"{option('level')} is a number between 0 and 1, not {self.level:g}")
        _ = self.parsed
        if self.family is not None:
            family_named(self.family)

    def in_words(self) -> str:
        errors = {"model": "of the model", "site": "clustered by site"}.get(self.errors, "robust")
        family = f" ({self.family} family)" if self.family else ""
        by = " and ".join(self.parsed.names) or "nothing but a constant"
        return (
            f"It fits a generalised linear model{family}: how the column {self.parsed.response!r} depends on {by}.  "
            f"Standard errors are {errors}."
        )

    @property
    def parsed(self) -> Formula:
        """The formula, or what stands for one."""
        return _formula(self.formula, self.target, self.columns)

    @property
    def extra(self) -> dict[str, str]:
        """Columns that are neither the outcome nor explain it, and what each is."""
        named = ((self.weights, "weights"), (self.offset, "offset"), (self.exposure, "exposure"))
        return {column: word for column, word in named if column}

    @property
    def columns_used(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.parsed.response, *self.parsed.names, *self.extra]))

    @property
    def columns_of_text(self) -> frozenset[str]:
        return self.parsed.categorical | set(self.categories)

    def kind(self, agreed: Agreed) -> GLMFamily:
        """The family, by its name or by the outcome."""
        return _family(self.family, self.parsed.response in agreed.coded, self.exposure)

    def check_agreed(self, agreed: Agreed) -> None:
        self.kind(agreed)
        if agreed.secure and SITE in self.parsed.names and SITE in agreed.coded:
            raise FFGBError(
                f"sums for the term {SITE!r} are those of one site each, which masks are to hide; leave it out and use "
                f"{option('errors', 'site')}, or use {option('secure', 'off')}"
            )
        for name, word in self.extra.items():
            if name in agreed.coded:
                raise FFGBError(f"{option(word, name)} is a column of text; name one of numbers")

    def check_site(self, site: SiteColumns) -> None:
        for name, word in self.extra.items():
            values = site.numbers.get(name, np.ones(0))
            if word != "offset" and not (values[~np.isnan(values)] > 0).all():
                raise FFGBError(f"{site.name}: {option(word, name)} must be above 0 in every row")
        response = self.parsed.response
        if response in site.numbers:
            try:
                _family(self.family, False, self.exposure).check(site.complete().numbers[response])
            except FFGBError as error:
                raise FFGBError(f"{site.name}: {error.raw}") from error

    def asked(self, ask: Ask, agreed: Agreed, on_step: Step) -> GLMResult:
        model, kind = self.model(ask, agreed), self.kind(agreed)
        sites, errors, least = len(agreed.names), self.errors, self.least
        known = model.design, model.roles, kind, model.rows, sites
        found = fit(ask, *known, errors=errors, least=least, on_step=on_step)
        return GLMResult(
            self.formula or f"{self.parsed.response} ~ {' + '.join(self.parsed.names)}",
            kind.name,
            kind.link,
            model.event,
            tuple(column.name for column in model.design),
            found.coefficients,
            found.covariance,
            self.level,
            errors,
            model.rows,
            model.left_out,
            agreed.names,
            found.dispersion,
            found.deviance,
            found.pearson,
            found.loglik,
            found.steps,
            {name: known[0] for name, known in model.explaining.items()},
            agreed.secure,
        )

    def model(self, ask: Ask, agreed: Agreed) -> Model:
        """What is fitted, by the categories that there are."""
        parsed, kind = self.parsed, self.kind(agreed)
        levels = levels_of(ask, agreed.coded, self.least, self.reference)
        refuse_unknown(self.reference, levels)
        response, event = _response(parsed.response, levels, kind)
        design = design_columns(parsed, {name: known for name, known in levels.items() if name != parsed.response})
        rows, left_out = check_cells(ask, parsed, levels, self.least)
        by_word = {word: Variable(name) for name, word in self.extra.items()}
        roles = Roles(response, by_word.get("offset"), by_word.get("exposure"), by_word.get("weights"))
        return Model(levels, event, design, roles, rows, left_out)


def _formula(formula: str | None, target: str | None, columns: Sequence[str]) -> Formula:
    if formula is not None:
        if target is not None or columns:
            raise FFGBError(f"{option('formula')} says it all; leave {option('target')} and {option('columns')} out")
        return Formula.parse(formula)
    if target is None or not columns:
        raise FFGBError(
            f"give {option('formula')}, for example 'outcome ~ age + sex', or {option('target')} and "
            f"{option('columns')}"
        )
    if target in columns:
        raise FFGBError(f"{option('columns')} has the target {target!r}; leave it out")
    return Formula.of(target, columns)


def _family(name: str | None, text: bool, exposure: str | None) -> GLMFamily:
    """The family by name, or by the outcome."""
    found = family_named(name) if name is not None else FAMILIES["binomial" if text else "gaussian"]
    if text and found.name != "binomial":
        raise FFGBError(f"the outcome is text, and {option('family', found.name)} needs numbers; use binomial")
    if exposure is not None and found.link != "log":
        raise FFGBError(f"{option('exposure')} is for a log link (poisson or gamma), not for {found.name}")
    return found


def refuse_unknown(reference: Mapping[str, str], levels: Mapping[str, Sequence[str]]) -> None:
    for name in reference:
        if name not in levels:
            raise FFGBError(f"{option('reference')} names {name!r}, which is no categorical column of the formula")


def _response(name: str, levels: Mapping[str, Sequence[str]], family: GLMFamily) -> tuple[Variable, str | None]:
    """The outcome as a number, and the category that counts as an event."""
    if name not in levels:
        return Variable(name), None
    known = levels[name]
    if len(known) != 2:
        raise FFGBError(
            f"the outcome {name!r} has {len(known)} categories, and {family.name} needs two; choose rows with two of "
            "them, or an outcome of 0 and 1"
        )
    return Variable(name, known[1]), known[1]


def crossed(formula: Formula, levels: Mapping[str, Sequence[str]]) -> list[DesignColumn]:
    """The cells of categories that interact."""
    cells = []
    for term in formula.terms:
        together = [factor.name for factor in term if factor.name in levels]
        if len(together) > 1:
            for chosen in product(*([Variable(name, level) for level in levels[name]] for name in together)):
                named = " and ".join(f"{v.name} = {v.level}" for v in chosen)
                cells.append(DesignColumn(named, chosen))
    return cells


def check_cells(ask: Ask, formula: Formula, levels: Mapping[str, Sequence[str]], least: int) -> tuple[int, int]:
    """Rows, and rows left out; an FFGBError if categories that interact have cells with few rows."""
    cells = crossed(formula, levels)
    found = ask(CellCounts(tuple(cells)))
    for cell, count in zip(cells, found["cells"], strict=True):
        if 0 < count < least:
            raise FFGBError(
                f"only {int(count)} rows of all sites have {cell.name}, and sums over fewer than {least} say too much "
                "about each; join categories, or leave the interaction out"
            )
    rows, left_out = (int(n) for n in found["rows"])
    return rows, left_out
