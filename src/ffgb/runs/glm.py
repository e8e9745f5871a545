"""Generalised linear models over sites: coefficients and how sure they are, from totals (`ffgb glm`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy.special import ndtr, ndtri

from ffgb.core.questions import Ask
from ffgb.core.regression.design import DesignColumn, Records, Variable
from ffgb.core.regression.families import FAMILIES, GLMFamily, family_named
from ffgb.core.regression.formula import Formula
from ffgb.core.regression.formula import columns_of as design_columns
from ffgb.core.regression.glm import ERRORS, Errors, Estimates, Roles, fit
from ffgb.core.regression.stored import Stored
from ffgb.core.regression.sums import CellCounts
from ffgb.core.types import Array
from ffgb.data.records import SITE, SiteColumns, agreed_kinds, levels_of
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.protocol.costs import Costs
from ffgb.runs.site_totals import Kept, refuse_keeping
from ffgb.runs.statistics import Data, asking, read_sites


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
    bytes_up: float
    """Sent by a site, on average."""
    bytes_down: float

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
    if errors not in ERRORS:
        raise FFGBError(f"{option('errors')} is {', '.join(ERRORS[:-1])} or {ERRORS[-1]}, not {errors!r}")
    if not 0.0 < level < 1.0:
        raise FFGBError(f"{option('level')} is a number between 0 and 1, not {level:g}")
    parsed = _formula(formula, target, columns)
    extra = {name: word for word, name in (("weights", weights), ("offset", offset), ("exposure", exposure)) if name}
    text = parsed.categorical | set(categories)
    sites = read_sites(data, list(dict.fromkeys([parsed.response, *parsed.names, *extra])), text)
    coded = agreed_kinds(sites, [parsed.response, *parsed.names, *extra])
    kind = _family(family, parsed.response in coded, exposure)
    if keep is not None:
        refuse_keeping(keep, kind.name, errors)
    if secure and SITE in parsed.names and SITE in coded:
        raise FFGBError(
            f"sums for the term {SITE!r} are those of one site each, which masks are to hide; leave it out and use "
            f"{option('errors', 'site')}, or use {option('secure', 'off')}"
        )
    _refuse_unfit(sites, extra, coded)
    records = [site.complete() for site in sites]
    names = [site.name for site in sites]
    with asking(names, records, secure=secure) as asked:
        ask = asked.ask
        levels = levels_of(ask, coded, least, reference)
        refuse_unknown(reference or {}, levels)
        response, event = _response(parsed.response, levels, kind)
        _check_outcomes(response, kind, names, records)
        design = design_columns(parsed, {name: known for name, known in levels.items() if name != parsed.response})
        rows, left_out = check_cells(ask, parsed, levels, least)
        by_word = {word: Variable(name) for name, word in extra.items()}
        roles = Roles(response, by_word.get("offset"), by_word.get("exposure"), by_word.get("weights"))
        found = fit(ask, design, roles, kind, rows, len(sites), errors=errors, least=least, on_step=on_step)
        costs = asked.costs
    shown = formula or f"{parsed.response} ~ {' + '.join(parsed.names)}"
    given = {name: known[0] for name, known in levels.items() if name != parsed.response}
    if keep is not None:
        kept = Kept(shown, level, given, Stored.of(design, roles, records, least))
        kept.write(keep, dict(zip(names, records, strict=True)), roles, crossed(parsed, levels))
    return _result(found, shown, kind, event, design, level, errors, rows, left_out, names, given, secure, costs)


def _result(
    found: Estimates,
    formula: str,
    kind: GLMFamily,
    event: str | None,
    design: Sequence[DesignColumn],
    level: float,
    errors: str,
    rows: int,
    left_out: int,
    names: Sequence[str],
    reference: Mapping[str, str],
    secure: bool,
    costs: Costs,
) -> GLMResult:
    return GLMResult(
        formula,
        kind.name,
        kind.link,
        event,
        tuple(column.name for column in design),
        found.coefficients,
        found.covariance,
        level,
        errors,
        rows,
        left_out,
        tuple(names),
        found.dispersion,
        found.deviance,
        found.pearson,
        found.loglik,
        found.steps,
        reference,
        secure,
        costs.bytes_up / len(names),
        costs.bytes_down / len(names),
    )


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


def _refuse_unfit(sites: Sequence[SiteColumns], extra: Mapping[str, str], coded: Sequence[str]) -> None:
    """Refuse weights, offsets and exposures that are none."""
    for name, word in extra.items():
        if name in coded:
            raise FFGBError(f"{option(word, name)} is a column of text; name one of numbers")
        if word != "offset":
            for site in sites:
                values = site.numbers[name]
                if not (values[~np.isnan(values)] > 0).all():
                    raise FFGBError(f"{site.name}: {option(word, name)} must be above 0 in every row")


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


def _check_outcomes(response: Variable, family: GLMFamily, names: Sequence[str], records: Sequence[Records]) -> None:
    for name, each in zip(names, records, strict=True):
        try:
            family.check(response.of(each, slice(None)))
        except FFGBError as error:
            raise FFGBError(f"{name}: {error.raw}") from error


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
