"""Statistical models over sites: `ffgb glm`, `ffgb cox`, `ffgb survival`."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ffgb.cli.common import JSON, app, numbers_of, say, words
from ffgb.errors import FFGBError, option, printable
from ffgb.runs.headline import in_bytes

if TYPE_CHECKING:
    from ffgb.runs.cox import CoxResult
    from ffgb.runs.glm import GLMResult
    from ffgb.runs.kaplan_meier import SurvivalResult
    from ffgb.runs.statistics import Data, Result

    Others: TypeAlias = Mapping[str, GLMResult | CoxResult | FFGBError]

WIDE = 100
"""Columns of a terminal that has room for ratios beside coefficients."""
DATA = Annotated[list[Path], typer.Option(help="A site's CSV, Parquet or SQL file: repeat it.", show_default=False)]
LEAST = Annotated[int, typer.Option(help="Rows of all sites that each category and cell must have.", min=1)]
FORMULA = Annotated[str | None, typer.Option(help="For example 'outcome ~ age + C(stage) * sex + site'.")]
TARGET = Annotated[str | None, typer.Option(help="The outcome, if there is no formula.")]
COLUMNS = Annotated[str, typer.Option(help="The columns that explain it, if there is no formula: age,sex.")]
FAMILY = Annotated[
    str | None,
    typer.Option(help="gaussian, binomial, poisson or gamma.", show_default="binomial for text, gaussian for numbers"),
]
WEIGHTS = Annotated[str | None, typer.Option(help="A column of prior weights.")]
OFFSET = Annotated[str | None, typer.Option(help="A column that is added to the linear predictor.")]
EXPOSURE = Annotated[str | None, typer.Option(help="A column that counts are a rate of (poisson, gamma).")]
CATEGORIES = Annotated[str, typer.Option(help="Columns that are categories though they look like numbers.")]
REFERENCE = Annotated[list[str] | None, typer.Option(help="The reference category of a column: sex=F.  Repeat it.")]
ERRORS = Annotated[str, typer.Option(help="Standard errors: model, hc0 or hc1 (robust), site (clustered).")]
TIME = Annotated[str, typer.Option(help="The time until the event, or until the end of observation.")]
EVENT = Annotated[str, typer.Option(help="1 for an event, 0 for none.")]
COX_FORMULA = Annotated[str | None, typer.Option(help="The columns that explain the time: 'age + C(stage) * sex'.")]
COX_COLUMNS = Annotated[str, typer.Option(help="The same without a formula: age,sex.")]
STRATA = Annotated[str, typer.Option(help="Columns whose categories have baselines of their own.")]
TIES = Annotated[str, typer.Option(help="How events at the same time count: efron or breslow.")]
PENALTY = Annotated[float, typer.Option(help="Penalty on squared coefficients of standardised columns, a row.")]
COX_ERRORS = Annotated[str, typer.Option(help="Standard errors: model, robust, site (clustered).")]
BY = Annotated[str | None, typer.Option(help="A column with groups to compare, or site.")]
TIMES = Annotated[
    str, typer.Option(help="Ends of intervals: 365,730,1095.", show_default="about 20, by the number of events")
]
SECURE = Annotated[str, typer.Option(help="on: add totals up under masks, to try them (needs three sites).")]
LEVEL = Annotated[float, typer.Option(help="Level of the confidence intervals.")]
LEAVE_OUT = Annotated[bool, typer.Option("--leave-out", help="Also fit it without each site, one after the other.")]


@app.command()
def glm(
    data: DATA,
    formula: FORMULA = None,
    target: TARGET = None,
    columns: COLUMNS = "",
    family: FAMILY = None,
    weights: WEIGHTS = None,
    offset: OFFSET = None,
    exposure: EXPOSURE = None,
    categories: CATEGORIES = "",
    reference: REFERENCE = None,
    errors: ERRORS = "model",
    level: LEVEL = 0.95,
    least: LEAST = 10,
    secure: SECURE = "off",
    leave_out: LEAVE_OUT = False,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for each site's totals, for ffgb withdraw (gaussian).")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Fit a generalised linear model to all sites' rows, by totals: coefficients, standard errors, p-values.

    The files of all sites are read on this machine.  `ffgb server glm` asks sites elsewhere.
    """
    from ffgb.runs.glm import glm as fit
    from ffgb.runs.statistics import references, without_each

    chosen: dict[str, Any] = {"errors": errors, "target": target, "columns": words(columns), "family": family}
    with Console(stderr=True).status("reading the files") as status:

        def fitted(tables: Data, keep: Path | None = None) -> GLMResult:
            return fit(
                tables,
                formula,
                keep=keep,
                weights=weights,
                offset=offset,
                exposure=exposure,
                categories=words(categories),
                reference=references(reference or []),
                level=level,
                least=least,
                secure=switch(secure),
                on_step=lambda step, deviance: status.update(f"step {step}: deviance {deviance:.6g}"),
                **chosen,
            )

        found, others = fitted(data, keep), without_each(data, fitted) if leave_out else {}
    if as_json:
        print(json.dumps(found.to_json() | _left_out(others), allow_nan=False))
    else:
        show(found)
        _show_without(found.names, others)


@app.command()
def cox(
    data: DATA,
    time: TIME,
    event: EVENT,
    formula: COX_FORMULA = None,
    columns: COX_COLUMNS = "",
    strata: STRATA = "",
    categories: CATEGORIES = "",
    reference: REFERENCE = None,
    ties: TIES = "efron",
    penalty: PENALTY = 0.0,
    errors: COX_ERRORS = "model",
    level: LEVEL = 0.95,
    least: LEAST = 10,
    secure: SECURE = "off",
    leave_out: LEAVE_OUT = False,
    as_json: JSON = False,
) -> None:
    """Fit Cox's proportional hazards model, with a baseline for each site, by totals: hazard ratios.

    The files of all sites are read on this machine.  `ffgb server cox` asks sites elsewhere.
    """
    from ffgb.runs.cox import cox as fit
    from ffgb.runs.statistics import references, without_each

    chosen: dict[str, Any] = {"ties": ties, "errors": errors}
    with Console(stderr=True).status("reading the files") as status:

        def fitted(tables: Data) -> CoxResult:
            return fit(
                tables,
                formula,
                time=time,
                event=event,
                columns=words(columns),
                strata=words(strata),
                categories=words(categories),
                reference=references(reference or []),
                penalty=penalty,
                level=level,
                least=least,
                secure=switch(secure),
                on_step=lambda step, loglik: status.update(f"step {step}: log-likelihood {loglik:.6g}"),
                **chosen,
            )

        found, others = fitted(data), without_each(data, fitted) if leave_out else {}
    if as_json:
        print(json.dumps(found.to_json() | _left_out(others), allow_nan=False))
    else:
        _show_cox(found)
        _show_without(found.names, others)


@app.command()
def survival(
    data: DATA,
    time: TIME,
    event: EVENT,
    by: BY = None,
    times: TIMES = "",
    level: LEVEL = 0.95,
    least: LEAST = 10,
    secure: SECURE = "off",
    as_json: JSON = False,
) -> None:
    """Kaplan and Meier's survival curves of all sites' rows, by totals, and the log-rank test of groups.

    The files of all sites are read on this machine.  `ffgb server survival` asks sites elsewhere.
    """
    from ffgb.runs.kaplan_meier import survival_curves

    ends = numbers_of("times", times)
    found = survival_curves(
        data,
        time=time,
        event=event,
        by=by,
        times=ends or None,
        level=level,
        least=least,
        secure=switch(secure),
    )
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        _show_curves(found)


def _left_out(others: Others) -> dict[str, Any]:
    """Models without each site, as JSON has them; None where there is none."""
    if not others:
        return {}
    return {"without": {n: None if isinstance(each, FFGBError) else each.to_json() for n, each in others.items()}}


def _show_without(names: Sequence[str], others: Others) -> None:
    """Coefficients without each site."""
    known = {name: each for name, each in others.items() if not isinstance(each, FFGBError)}
    if known:
        say("")
        say("coefficients (standard errors) without")
        table = Table(box=None, pad_edge=False)
        for k, head in enumerate(("", *known)):
            table.add_column(Text(printable(head)), justify="left" if k == 0 else "right", no_wrap=k > 0)
        for name in names:
            cells = []
            for each in known.values():
                of = dict(zip(each.names, zip(each.coefficients, each.standard_errors, strict=True), strict=True))
                cells.append(f"{shown(of[name][0])} ({shown(of[name][1])})" if name in of else "–")
            table.add_row(Text(printable(name)), *cells)
        console = Console()
        console.print(table, soft_wrap=not console.is_terminal)
    for name, error in others.items():
        if isinstance(error, FFGBError):
            say(f"none without {name}: {error}")


def switch(word: str) -> bool:
    if word not in ("on", "off"):
        raise FFGBError(f"{option('secure')} is on or off, not {word!r}")
    return word == "on"


def _show(found: GLMResult) -> None:
    """The model as a table, with what it rests on above and how well it fits below."""
    console = Console()
    dropped = f", {found.left_out:,} left out because a value is missing" if found.left_out else ""
    event = f"; odds of {found.event!r}" if found.event is not None else ""
    say(f"{found.formula}")
    say(f"{found.family}, {found.link} link{event}; {found.rows:,} rows at {len(found.sites)} sites{dropped}")
    low, high = (f"{x:g} %" for x in (50 * (1 - found.level), 50 * (1 + found.level)))
    ratios = found.link != "identity" and console.width >= WIDE
    heads = ["", "coefficient", "std. error", "z", "p", low, high, *(["ratio", low, high] if ratios else [])]
    table = Table(box=None, pad_edge=False)
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k == 0 else "right", overflow="fold", no_wrap=k > 0)
    for row in found.to_json()["coefficients"]:
        cells = [row[word] for word in ("coefficient", "standard_error")]
        ends = [row["coefficient"], row["low"], row["high"]]
        table.add_row(
            Text(printable(row["name"])),
            *(shown(v) for v in cells),
            f"{row['z']:.2f}",
            p_value(row["p_value"]),
            *(shown(v) for v in ends[1:]),
            *(_ratio(v) for v in ends if ratios),
        )
    console.print(table, soft_wrap=not console.is_terminal)
    kinds = {
        "model": "of the model",
        "hc0": "robust (HC0)",
        "hc1": "robust (HC1)",
        "site": "clustered by site",
    }
    say(f"standard errors {kinds[found.errors]}; z and p from the normal distribution")
    if found.reference:
        say("reference: " + ", ".join(f"{name} = {level}" for name, level in found.reference.items()))
    say(
        f"deviance {shown(found.deviance)} on {found.df_residual:,} degrees of freedom, dispersion "
        f"{shown(found.dispersion)}, AIC {found.aic:.2f}, BIC {found.bic:.2f}"
    )
    say(f"{found.steps} steps{_sent(found.bytes_up, masked=found.masked)}")


def _sent(size: float, *, masked: bool) -> str:
    """What a site has sent, as far as it is known where the result is shown."""
    return (f"; {in_bytes(size)} sent by a site" if size else "") + " under masks" * masked


def _show_cox(found: CoxResult) -> None:
    """Hazard ratios as a table, with what they rest on above and how well they order below."""
    dropped = f", {found.left_out:,} left out because a value is missing" if found.left_out else ""
    say(f"{found.formula}")
    say(f"Cox model, a baseline a site, {found.ties} ties; {found.rows:,} rows and {found.events:,} events at "
        f"{len(found.sites)} sites{dropped}")  # fmt: skip
    low, high = (f"{x:g} %" for x in (50 * (1 - found.level), 50 * (1 + found.level)))
    table = Table(box=None, pad_edge=False)
    for k, head in enumerate(("", "coefficient", "std. error", "z", "p", "ratio", low, high)):
        table.add_column(head, justify="left" if k == 0 else "right", overflow="fold", no_wrap=k > 0)
    for row in found.to_json()["coefficients"]:
        table.add_row(
            Text(printable(row["name"])),
            shown(row["coefficient"]),
            shown(row["standard_error"]),
            f"{row['z']:.2f}",
            p_value(row["p_value"]),
            *(_ratio(row[word]) for word in ("coefficient", "low", "high")),
        )
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)
    kinds = {"model": "of the model", "robust": "robust", "site": "clustered by site"}
    say(f"standard errors {kinds[found.errors]}; z and p from the normal distribution")
    if found.reference:
        say("reference: " + ", ".join(f"{name} = {level}" for name, level in found.reference.items()))
    by_site = ", ".join(f"{site} {'–' if c is None else f'{c:.3f}'}" for site, c in found.c_index_by_site.items())
    overall = "–" if found.c_index is None else f"{found.c_index:.3f}"
    say(f"c-index {overall} within sites, on the rows of the fit")
    if by_site:
        console.print(Text(printable(f"by site: {by_site}")), soft_wrap=not console.is_terminal)
    say(f"log partial likelihood {found.loglik:.2f}, without columns {found.null_loglik:.2f}")
    say(f"{found.steps} steps{_sent(found.bytes_up, masked=found.masked)}")


def _show_curves(found: SurvivalResult) -> None:
    """The curves as a table, and the test below it."""
    low, high = (f"{x:g} %" for x in (50 * (1 - found.level), 50 * (1 + found.level)))
    table = Table(box=None, pad_edge=False)
    for k, head in enumerate((found.by or "", "until", "at risk", "events", "censored", "survival", low, high)):
        table.add_column(Text(printable(head)), justify="left" if k == 0 else "right", overflow="fold")
    for group in found.to_json()["groups"]:
        for row in group["curve"]:
            counts = (f"{row[word]:,.0f}" for word in ("at_risk", "events", "censored"))
            shares = (f"{row[word]:.4f}" for word in ("survival", "low", "high"))
            table.add_row(Text(printable(group["group"])), shown(row["time"]), *counts, *shares)
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)
    if found.left_out:
        say(f"{found.left_out:,} rows left out because a value is missing")
    for name, curve in found.curves.items():
        median = "not reached" if curve.median is None else f"until {shown(curve.median)}"
        say(f"median{f' of {name}' if found.by else ''}: {median}")
    if found.test is not None:
        test = found.test
        say(f"log-rank test: chi2 {test.chi2:.2f} on {test.degrees} degrees of freedom, p {p_value(test.p_value)}")


def show(found: Result) -> None:
    """A result as people read it."""
    from ffgb.runs.cox import CoxResult
    from ffgb.runs.glm import GLMResult
    from ffgb.runs.kaplan_meier import SurvivalResult

    match found:
        case GLMResult():
            _show(found)
        case CoxResult():
            _show_cox(found)
        case SurvivalResult():
            _show_curves(found)


def text_of(found: Result) -> str:
    """The same, as a text."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        show(found)
    return text.getvalue()


def shown(value: float) -> str:
    """A number in five digits."""
    return f"{value:.5g}"


def p_value(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _ratio(value: float) -> str:
    """e to a coefficient."""
    return f"{math.exp(value):.4g}" if value < 700 else "∞"
