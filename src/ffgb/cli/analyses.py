"""Statistical models between sites: `ffgb server glm`, `ffgb server cox`, `ffgb server survival`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.console import Console

from ffgb.cli.common import JSON, goes_on, numbers_of, words
from ffgb.cli.lines import tell
from ffgb.cli.sites import (
    KEYS,
    PORT,
    Clients,
    Deadline,
    Host,
    NoKeys,
    NoPage,
    Patience,
    Port,
    Secure,
    Tls,
    served_page,
    server_app,
    stopped,
)
from ffgb.cli.statistics import (
    BY,
    CATEGORIES,
    COLUMNS,
    COX_COLUMNS,
    COX_ERRORS,
    COX_FORMULA,
    ERRORS,
    EVENT,
    EXPOSURE,
    FAMILY,
    FORMULA,
    LEAST,
    LEVEL,
    OFFSET,
    PENALTY,
    REFERENCE,
    STRATA,
    TARGET,
    TIES,
    TIME,
    TIMES,
    WEIGHTS,
    show,
    switch,
    text_of,
)
from ffgb.errors import FFGBError, printable

Out = Annotated[Path, typer.Option(help="The folder that keeps the result.")]


@server_app.command()
def glm(
    clients: Clients = None,
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
    host: Host = "127.0.0.1",
    port: Port = PORT,
    tls: Tls = KEYS,
    insecure: NoKeys = False,
    deadline: Deadline = 120.0,
    patience: Patience = 600.0,
    out: Out = Path("runs/glm"),
    secure: Secure = None,
    no_page: NoPage = False,
    as_json: JSON = False,
) -> None:
    """Fit a generalised linear model to the rows of sites elsewhere, as `ffgb glm` does with files that are here.

    Invite sites with `ffgb server invite`.  They connect with `ffgb client`, and all must answer.
    """
    from ffgb.runs.glm import GLM
    from ffgb.runs.statistics import references

    chosen: dict[str, Any] = {"errors": errors, "reference": references(reference or [])}
    analysis = GLM(
        formula,
        target,
        tuple(words(columns)),
        family,
        weights,
        offset,
        exposure,
        tuple(words(categories)),
        level=level,
        least=least,
        **chosen,
    )
    listening = _Listening(clients, host, port, tls, insecure, deadline, patience, out, secure, no_page, as_json)
    _analyse(analysis, listening)


@server_app.command()
def cox(
    time: TIME,
    event: EVENT,
    clients: Clients = None,
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
    host: Host = "127.0.0.1",
    port: Port = PORT,
    tls: Tls = KEYS,
    insecure: NoKeys = False,
    deadline: Deadline = 120.0,
    patience: Patience = 600.0,
    out: Out = Path("runs/cox"),
    secure: Secure = None,
    no_page: NoPage = False,
    as_json: JSON = False,
) -> None:
    """Fit Cox's proportional hazards model to the rows of sites elsewhere, with a baseline for each site.

    It is the model of `ffgb cox`.  Invite sites with `ffgb server invite`.  They connect with `ffgb client`, and all
    must answer.
    """
    from ffgb.runs.cox import Cox
    from ffgb.runs.statistics import references

    chosen: dict[str, Any] = {"ties": ties, "errors": errors, "reference": references(reference or [])}
    analysis = Cox(
        formula,
        time,
        event,
        tuple(words(columns)),
        tuple(words(strata)),
        tuple(words(categories)),
        penalty=penalty,
        level=level,
        least=least,
        **chosen,
    )
    listening = _Listening(clients, host, port, tls, insecure, deadline, patience, out, secure, no_page, as_json)
    _analyse(analysis, listening)


@server_app.command()
def survival(
    time: TIME,
    event: EVENT,
    clients: Clients = None,
    by: BY = None,
    times: TIMES = "",
    level: LEVEL = 0.95,
    least: LEAST = 10,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    tls: Tls = KEYS,
    insecure: NoKeys = False,
    deadline: Deadline = 120.0,
    patience: Patience = 600.0,
    out: Out = Path("runs/survival"),
    secure: Secure = None,
    no_page: NoPage = False,
    as_json: JSON = False,
) -> None:
    """Kaplan and Meier's survival curves of the rows of sites elsewhere, and the log-rank test of groups.

    They are those of `ffgb survival`.  Invite sites with `ffgb server invite`.  They connect with `ffgb client`, and
    all must answer.
    """
    from ffgb.runs.kaplan_meier import SurvivalCurves

    ends = tuple(numbers_of("times", times)) or None
    analysis = SurvivalCurves(time, event, by, ends, level, least)
    listening = _Listening(clients, host, port, tls, insecure, deadline, patience, out, secure, no_page, as_json)
    _analyse(analysis, listening)


@final
@dataclass(frozen=True)
class _Listening:
    """How a server waits for sites, and what it does with the result."""

    clients: int | None
    host: str
    port: int
    tls: Path
    insecure: bool
    deadline: float
    patience: float
    out: Path
    secure: str | None
    no_page: bool
    as_json: bool


def _analyse(analysis: Any, asked: _Listening) -> None:
    """Wait for sites, ask them, and print the result."""
    from ffgb.deployment.analysis_server import RESULT, RESULT_TEXT, analyse, place_of
    from ffgb.deployment.board import ServerBoard
    from ffgb.deployment.keys import is_loopback
    from ffgb.deployment.server import Service

    secure, clients, out = switch(asked.secure or "on"), asked.clients, asked.out
    analysis.check()
    if clients is None:
        raise FFGBError("say how many sites take part: --clients N")
    if asked.insecure and not is_loopback(asked.host):
        raise FFGBError(
            f"--insecure is for this machine alone, and {asked.host} can be reached from others; leave it out"
        )
    place = place_of(out, analysis, secure=secure)
    place.training()
    if place.ended:
        print(f"ffgb: the analysis in {out} has ended; for another one name a new --out", file=sys.stderr)
        print((out / (RESULT if asked.as_json else RESULT_TEXT)).read_text(), end="")
        return
    keys = None if asked.insecure else asked.tls.absolute()
    service = Service(clients, clients, asked.host, asked.port, keys, asked.deadline, asked.patience)
    board, console = ServerBoard(str(out), clients), Console(stderr=True)

    def warn(text: str) -> None:
        tell(console, text)

    def state(text: str) -> None:
        status.update(printable(text)) if console.is_terminal else tell(console, text)

    page = served_page(board, "server", asked.no_page, warn)
    with goes_on(out), stopped() as stop, page, console.status("starting") as status:
        found = analyse(
            *(service, analysis, place),
            secure=secure,
            board=board,
            show=text_of,
            say=state,
            warn=warn,
            stop=stop.is_set,
        )
    if asked.as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        show(found)
