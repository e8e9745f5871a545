"""Training between sites: `ffgb server` and `ffgb client`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.console import Console

from ffgb.cli.common import JSON, app, goes_on, print_rows, print_summary, settings_of
from ffgb.cli.lines import tell
from ffgb.errors import FFGBError, printable
from ffgb.files import content_hash

PORT = 9443
LONGEST_INVITATION = 10_000
"""Letters of it that are read."""
KEYS = Path("keys")

server_app = typer.Typer(
    help="Train with sites elsewhere, or fit a statistical model to their rows.", no_args_is_help=False
)
app.add_typer(server_app, name="server")
client_app = typer.Typer(no_args_is_help=False)
app.add_typer(client_app, name="client")
tls_app = typer.Typer(hidden=True)
app.add_typer(tls_app, name="tls")

Tls = Annotated[
    Path, typer.Option(help="The folder with the server's certificate and the sites' keys; made if it is not there.")
]
NoPage = Annotated[bool, typer.Option("--no-page", help="Do not serve a status page on this machine.")]
TaskName = Annotated[str | None, typer.Option(help="classification or regression.", show_default="by the target")]
Secure = Annotated[
    str | None,
    typer.Option(help="on or off: sums under masks, so that no one sees those of a single site.", show_default="on"),
]
# of the server
Clients = Annotated[int | None, typer.Option(help="How many sites take part.", min=1)]
Options = Annotated[
    Path | None, typer.Option(help="A TOML file with the options of train.", show_default="train's defaults")
]
SharedTarget = Annotated[str | None, typer.Option(help="The column to predict.", show_default="each site's own")]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of them.")]
Port = Annotated[int, typer.Option(help="The port that sites connect to.", min=1, max=65535)]
NoKeys = Annotated[bool, typer.Option("--insecure", help="No TLS, and any key: on this machine, to try.")]
Minimum = Annotated[int | None, typer.Option(help="How few sites may answer in a round.", show_default="all", min=1)]
Deadline = Annotated[float, typer.Option(help="Seconds that a site has to answer.", min=1.0)]
Patience = Annotated[float, typer.Option(help="Seconds to wait for sites before training.", min=1.0)]
Out = Annotated[Path, typer.Option(help="The run directory; what is there goes on.")]
# of a site
Data = Annotated[Path | None, typer.Option(help="This site's file: CSV, Parquet, NPZ or SQL.")]
Join = Annotated[
    str | None,
    typer.Option(help="The invitation that the server's operator has sent, or a file with it; - reads standard input."),
]
Server = Annotated[str | None, typer.Option(help="HOST:PORT of the server.", show_default="the invitation's")]
Target = Annotated[str | None, typer.Option(help="The column to predict, in tables; or time,event.")]
Name = Annotated[
    str | None, typer.Option(help="What others call this site.", show_default="as invited, or its key's file")
]
OwnTls = Annotated[
    Path | None, typer.Option(help="A folder with the ca.crt of certificates of your own.", show_default=False)
]
Key = Annotated[Path | None, typer.Option(help="This site's own key, with --tls.", show_default=False)]
NoTls = Annotated[bool, typer.Option("--insecure", help="No TLS: on this machine, to try.")]
ServerOptions = Annotated[
    Path | None, typer.Option(help="The server's TOML file, to see what it asks for.", show_default="its defaults")
]
NoGeometry = Annotated[
    bool, typer.Option("--no-shared-geometry", help="Refuse to send a Gram matrix, whatever is asked for.")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(help="A TOML file with this site's own rules (docs/sites.md).", show_default="careful rules"),
]
Technical = Annotated[bool, typer.Option("--technical", help="Show every array that would be sent.")]
RULE = {"show_default": "the policy's", "min": 1}
Trainings = Annotated[int | None, typer.Option(help="How many trainings with this server to agree to.", **RULE)]
LeastRows = Annotated[int | None, typer.Option(help="Fewest rows to train with.", **RULE)]
LeastClass = Annotated[int | None, typer.Option(help="Fewest rows of each class.", **RULE)]
LeastCell = Annotated[int | None, typer.Option(help="Fewest rows in a cell of a histogram, without masks.", **RULE)]
FileOption = Annotated[str | None, typer.Option(help="How this file is read: docs/files.md.", show_default=False)]
Log = Annotated[Path | None, typer.Option(help="Write down every message that comes and goes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to it without being asked.")]


@server_app.callback(invoke_without_command=True)
def server(
    context: typer.Context,
    clients: Clients = None,
    config: Options = None,
    target: SharedTarget = None,
    task: TaskName = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    tls: Tls = KEYS,
    insecure: NoKeys = False,
    minimum: Minimum = None,
    deadline: Deadline = 120.0,
    patience: Patience = 600.0,
    out: Out = Path("runs/federation"),
    secure: Secure = None,
    no_page: NoPage = False,
    as_json: JSON = False,
) -> None:
    """Train with sites elsewhere: invite them with `ffgb server invite`, they connect with `ffgb client`.

    Started again, it goes on where it was.  glm, cox and survival answer a statistician's questions instead.
    """
    if context.invoked_subcommand is not None:
        return
    from ffgb.deployment.board import ServerBoard
    from ffgb.deployment.keys import is_loopback
    from ffgb.deployment.server import Service, Task, ended, serve
    from ffgb.runs.config import Config
    from ffgb.runs.directory import Run
    from ffgb.runs.resolve import refuse_at_once

    if clients is None:
        raise FFGBError("say how many sites take part: --clients N")
    if insecure and not is_loopback(host):
        raise FFGBError(f"--insecure is for this machine alone, and {host} can be reached from others; leave it out")
    if minimum is not None and minimum > clients:
        raise FFGBError(f"--minimum is {minimum}, but only {clients} sites take part")
    settings, target, task = _settings(config, target, task, secure)
    refuse_at_once(Config(**{**settings, "data": ("sites",)}), clients)
    if not (out / "config.json").exists():
        Run.must_be_free(out)
    elif ended(out, settings):
        print(f"ffgb: the run in {out} has ended; for another one name a new --out", file=sys.stderr)
        _print_summary(out, as_json)
        return
    keys = None if insecure else tls.absolute()
    service = Service(clients, minimum or clients, host, port, keys, deadline, patience)
    board, console = ServerBoard(str(out), clients), Console(stderr=True)

    def warn(text: str) -> None:
        tell(console, text)

    states = ["starting"]

    def state(text: str) -> None:
        states.append(text)
        status.update(printable(text)) if console.is_terminal else tell(console, text)

    with (
        goes_on(out),
        stopped() as stop,
        served_page(board, "server", no_page, warn),
        console.status("starting") as status,
    ):
        result = serve(
            *(service, Task(settings, target, task), out),
            board=board,
            say=state,
            warn=warn,
            stop=stop.is_set,
        )
        if not result.finished:
            raise KeyboardInterrupt
    if console.is_terminal:
        tell(console, states[-1])  # what was shown in one place until now
    _print_summary(out, as_json)


@server_app.command()
def invite(
    name: Annotated[str, typer.Argument(help="What others call the site.")],
    address: Annotated[str, typer.Option(help="HOST:PORT by which the site reaches the server.")] = f"127.0.0.1:{PORT}",
    tls: Tls = KEYS,
    days: Annotated[float, typer.Option(help="How long the invitation can be used.", min=0.01, max=90.0)] = 3.0,
) -> None:
    """Print one line of text that lets one site in, once: send it to the site over a channel that you trust."""
    from ffgb.deployment.keys import invite as open_invitation
    from ffgb.deployment.keys import registered

    if ":" not in address or address.endswith("]"):
        address = f"{address}:{PORT}"
    there = name in registered(tls.absolute())
    invitation = open_invitation(tls.absolute(), name, address, days)
    if there:
        print(f"ffgb: {name} has joined before: whoever uses this line takes its place", file=sys.stderr)
    print(f"ffgb: for {name}, within {days:g} days: ffgb client --join LINE --data FILE …", file=sys.stderr)
    print(invitation)


@server_app.command()
def sites(tls: Tls = KEYS) -> None:
    """List the sites that may come in, with the fingerprints of their keys; remove a .pub file to keep one out."""
    from ffgb.deployment.keys import der, fingerprint, registered

    rows = [
        {"site": name, "fingerprint of its key": fingerprint(der(pem, name))} for name, pem in registered(tls).items()
    ]
    if not rows:
        raise FFGBError(f"no site has joined: there is no key in {tls / 'sites'}; invite one: ffgb server invite NAME")
    print_rows(rows)


@client_app.callback(invoke_without_command=True)
def client(
    context: typer.Context,
    data: Data = None,
    join: Join = None,
    server: Server = None,
    target: Target = None,
    task: TaskName = None,
    name: Name = None,
    tls: OwnTls = None,
    key: Key = None,
    insecure: NoTls = False,
    config: ServerOptions = None,
    policy: PolicyFile = None,
    secure: Secure = None,
    no_geometry: NoGeometry = False,
    trainings: Trainings = None,
    least_rows: LeastRows = None,
    least_class: LeastClass = None,
    least_cell: LeastCell = None,
    log: Log = None,
    technical: Technical = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    no_page: NoPage = False,
    sep: FileOption = None,
    decimal: FileOption = None,
    encoding: FileOption = None,
    sheet: FileOption = None,
    drop: FileOption = None,
    missing: FileOption = None,
    schema: FileOption = None,
) -> None:
    """Be a site: answer a server's questions about this file's rows, until Ctrl-C.

    The job comes from the server.  First this command shows it, and what will be sent, and asks.  What was not agreed
    to is not answered.  When a training ends, the site keeps the model; of an analysis it keeps the result.
    """
    if context.invoked_subcommand is not None:
        return
    if data is None:
        raise FFGBError("say which file has this site's rows: --data FILE")
    from ffgb.data.reading import refuse_unreadable
    from ffgb.deployment.keys import check_name
    from ffgb.deployment.site import Home

    way = _way(join, server, tls, key, name, insecure=insecure, dry_run=dry_run)
    called = check_name(name or way.name or _called(way.address, data, key, insecure or dry_run))
    home = Home.of(way.address, called)
    refuse_unreadable(data)  # before anyone is asked
    rows = {"least_rows": least_rows, "least_class": least_class, "least_cell": least_cell}
    given = {name: value for name, value in {"trainings": trainings, **rows}.items() if value is not None}
    job = None if config is not None else home.job if dry_run else _proposed(way, home)
    ways = _Ways(way, home, data, _reading(context), policy, given, key, log, technical, dry_run, yes, no_page)
    if (analysis := _analysis(job, config, secure, policy, target or task)) is not None:
        _analysed(ways, *analysis, job)
    elif job is not None:
        _trained(ways, *_of_job(job, target, task, secure, policy), job, no_geometry=no_geometry)
    else:
        _trained(ways, *_settings(config, target, task, secure), job, no_geometry=no_geometry)


@client_app.command()
def ledger(data: Annotated[Path, typer.Option(help="This site's file.")], as_json: JSON = False) -> None:
    """Show what this site has spent of its file's privacy budget, and on what."""
    from ffgb.deployment.site import privacy_ledger
    from ffgb.privacy.ledger import in_rows

    rows = in_rows(privacy_ledger(data))
    if not rows and not as_json:
        raise FFGBError(f"no private training has used {data}: nothing is spent")
    print(json.dumps(rows)) if as_json else print_rows(rows)


@final
@dataclass(frozen=True)
class _Ways:
    """How a site takes part, as its owner says on the command line."""

    way: _Way
    home: Any
    data: Path
    reading: Callable[[Mapping[str, Any]], Any]
    """How the file is read, given the options of the training."""
    policy: Path | None
    rules: Mapping[str, int]
    """Rules that come before those of the policy."""
    key: Path | None
    log: Path | None
    technical: bool
    dry_run: bool
    yes: bool
    no_page: bool


def _trained(
    ways: _Ways, settings: dict[str, Any], target: str | None, task: str | None, job: bytes | None, *, no_geometry: bool
) -> None:
    """Be a site of a training, if the owner agrees."""
    from ffgb.data.sites import Site
    from ffgb.deployment.agreement import Ledger
    from ffgb.deployment.attendant import Attendant, Least
    from ffgb.deployment.board import SiteBoard
    from ffgb.deployment.identity import SiteIdentity
    from ffgb.deployment.keepsake import Keepsake
    from ffgb.deployment.site import inputs_of

    home, data, rules = ways.home, ways.data, _rules(ways.policy, settings, ways.rules)
    bounded, purse = _private(settings, rules, data)
    known = {**_only(settings, "categories", "rare"), "reading": ways.reading(settings), "bounded": bounded}
    site = Site(home.name, data.absolute(), target, task, **known, content=content_hash(data))
    least = Least(rules.least_rows, rules.least_class, rules.least_cell)
    said = _introduced(site, least)
    refused = frozenset({"GramOf", "SketchOf"} if no_geometry else ()) | frozenset(rules.refuse)
    inputs = inputs_of(data, settings, target, task, site.name, rules, site.reading)
    agreement = None if ways.dry_run else home.agreed(inputs)
    if agreement is None:
        _show_job(job)
        agreement = _rehearsed(site, said, settings, rules, refused, technical=ways.technical)
        if ways.dry_run:
            return
        home.agree(inputs, _consented(agreement, home, rules, ways.yes))
    if job is not None:
        home.keep_job(job)
    _allow(purse, settings, rules)
    screen = _Screen()
    attendant = Attendant(
        *(site, settings, agreement, Ledger(home.ledger)),
        refused=refused,
        least=least,
        policy=rules,
        identity=SiteIdentity.of(
            *(site.name, home.folder, ways.key, rules, _acquainted(ways.yes, screen), purse),
            rows_of_a_unit=int(settings.get("unit_rows") or 1),
        ),
        log=ways.log and ways.log.absolute(),
        board=SiteBoard(site.name, ways.way.address),
        keepsake=Keepsake(home.folder, settings, agreement.files),
        job=job,
    )
    _attend(ways.way, home, attendant, screen, no_page=ways.no_page)
    print("ffgb: this site has left", file=sys.stderr)


def _analysis(
    job: bytes | None, config: Path | None, secure: str | None, policy: Path | None, more: str | None
) -> tuple[Any, bool] | None:
    """The analysis that is proposed, or in a file of the owner's, and whether it is under masks; None: a training."""
    from ffgb.deployment.analysis_job import is_analysis, read_analysis

    text = job if config is None or not config.exists() else config.read_bytes()
    if text is None or not is_analysis(text):
        return None
    analysis, masked = read_analysis(text.decode("utf-8", "replace"))
    if more is not None:
        raise FFGBError(
            "the server's job is an analysis, which names its columns itself; leave --target and --task out"
        )
    if not masked:
        _refuse_open(secure, policy)
    return analysis, masked


def _analysed(ways: _Ways, analysis: Any, masked: bool, job: bytes | None) -> None:
    """Be a site of an analysis, if the owner agrees."""
    from ffgb.cli.statistics import text_of
    from ffgb.data.records import read_columns
    from ffgb.data.sites import Site
    from ffgb.deployment.agreement import Ledger
    from ffgb.deployment.attendant import Attendant, Least
    from ffgb.deployment.board import SiteBoard
    from ffgb.deployment.course import AnalysisKeepsake, Course
    from ffgb.deployment.identity import SiteIdentity
    from ffgb.deployment.site import inputs_of

    home, data = ways.home, ways.data.absolute()
    options = {"least": analysis.least, **({} if masked else {"secure": "off"})}
    rules, reading = _rules(ways.policy, options, ways.rules), ways.reading({})
    if rules.epsilon:
        raise FFGBError(
            "the rules of this site have a privacy budget (epsilon), and an analysis adds no noise; remove epsilon "
            "from the policy to take part"
        )
    content = content_hash(data)
    least = Least(rules.least_rows, rules.least_class, rules.least_cell)
    with _excused(ways):
        columns = read_columns(data, home.name, analysis.columns_used, analysis.columns_of_text, reading)
        analysis.check_site(columns)
        course = Course(analysis, columns, secure=rules.secure)
        least.check(course.said, {})
    print(f"site {home.name}: {course.records.rows:,} rows with a value in every column", file=sys.stderr)
    agreement = course.agreement(rules.trainings)
    inputs = inputs_of(data, {}, *agreement.questions, home.name, rules, reading)
    if ways.dry_run or home.agreed(inputs) is None:
        _show_analysis(course, rules, technical=ways.technical)
        if ways.dry_run:
            return
        home.agree(inputs, _consented(agreement, home, rules, ways.yes))
    if job is not None:
        home.keep_job(job)
    screen = _Screen()
    attendant = Attendant(
        *(Site(home.name, data, content=content), None, agreement, Ledger(home.ledger)),
        refused=frozenset(rules.refuse),
        least=least,
        policy=rules,
        identity=SiteIdentity.of(home.name, home.folder, ways.key, rules, _acquainted(ways.yes, screen)),
        log=ways.log and ways.log.absolute(),
        board=SiteBoard(home.name, ways.way.address),
        keepsake=AnalysisKeepsake(home.folder, job or agreement.questions[0][1].encode(), text_of),
        job=job,
        course=course,
    )
    _attend(ways.way, home, attendant, screen, no_page=ways.no_page)
    print("ffgb: this site has left", file=sys.stderr)


@contextlib.contextmanager
def _excused(ways: _Ways) -> Iterator[None]:
    """If this site's file does not fit the analysis, the server hears that: of columns it has named them itself."""
    from ffgb.data.files import MissingColumnsError
    from ffgb.deployment.site import connection, excuse

    try:
        yield
    except FFGBError as error:
        why = error.lacking if isinstance(error, MissingColumnsError) else None
        if not ways.dry_run:
            way, console = ways.way, Console(stderr=True)
            with ways.home.alone(), stopped() as stop:
                node = connection(way.address, ways.home, way.tls, way.key, insecure=way.insecure)
                text = f"its file has {why}" if why else "its file does not fit; its owner sees why"
                excuse(node, text, stop, lambda text: tell(console, text))
        raise


def _show_analysis(course: Any, rules: Any, *, technical: bool) -> None:
    """The analysis that the owner is asked to agree to, and what would leave the site."""
    from ffgb.deployment.consent import analysis_in_words, course_in_words

    if technical:
        sent, size = course.rehearsed()
        rows: list[dict[str, Any]] = [
            {
                "what": each.what,
                "arrays": ", ".join(f"{n} {d}{list(s)}" for n, d, s in each.arrays),
                "bytes": each.bytes,
            }
            for each in sent
        ]
        print_rows(rows)
        masks = "All sums are under masks." if rules.secure else "The server can compute rows from these sums."
        print(f"{size:,.0f} bytes in all, with the rows of this site alone.  {masks}", file=sys.stderr)
        return
    console = Console(stderr=True, highlight=False)
    titles = ("The analysis that the server proposes", "What leaves this site", "The rules of this site")
    told = (analysis_in_words(course.analysis), course_in_words(course, rules), rules.in_words())
    for title, texts in zip(titles, told, strict=True):
        console.print(f"\n[bold]{title}[/bold]")
        for text in texts:
            tell(console, text, "• ")
    console.print("\nEvery array that would be sent: --technical", markup=False)


def _refuse_open(secure: str | None, policy: Path | None) -> None:
    """Raise an FFGBError at a job without masks, unless the owner has said that it may be."""
    if secure != "off" and policy is None:
        raise FFGBError(
            'the server\'s job is without masks (secure = "off"): the server would see the sums of this site alone, '
            "and could compute rows from them; agree to that with --secure off"
        )


def _private(settings: Mapping[str, Any], rules: Any, data: Path) -> tuple[Any, Any]:
    """How rows are taken in a private training, and the ledger of the file; None for others."""
    from ffgb.deployment.site import privacy_ledger
    from ffgb.runs.private import private_rows

    if settings.get("epsilon") is None:
        if rules.epsilon:
            raise FFGBError(
                "the rules of this site have a privacy budget (epsilon), and this training adds no noise; ask the "
                "server's operator for one with --epsilon, or remove epsilon from the policy"
            )
        return None, None
    if not rules.secure:
        raise FFGBError("between sites --epsilon needs secure totals; leave --secure off out")
    return private_rows(settings), privacy_ledger(data)


def _allow(purse: Any, settings: Mapping[str, Any], rules: Any) -> None:
    """Write down what the owner allows of the file, if there is a ledger."""
    if purse is not None:
        purse.allow(_budget(settings, rules, purse))


def _budget(settings: Mapping[str, Any], rules: Any, purse: Any) -> Any:
    """What the owner allows of the file: by the policy, or what was agreed to first; of this training, by its job."""
    from ffgb.privacy.ledger import Budget
    from ffgb.runs.config import SETTINGS
    from ffgb.runs.private import DELTA

    delta = settings.get("delta", SETTINGS["delta"].default)
    delta = DELTA if delta == SETTINGS["delta"].default else delta
    job = Budget(float(settings["epsilon"]), float(delta), int(settings.get("unit_rows") or 1))
    purse.most, purse.rows = job.mu, job.rows
    known = Budget(rules.epsilon, rules.delta) if rules.epsilon else purse.budget() or job
    before = purse.budget() or job
    return replace(known, rows=max(job.rows, before.rows))


def _consented(agreement: Any, home: Any, rules: Any, yes: bool) -> Any:
    """The agreement, if the site's owner agrees to it."""
    if not (yes or home.covers(agreement) or _confirmed(home.address, rules.trainings)):
        raise FFGBError("nothing was sent; agree with --yes, or answer the question in a terminal")
    return agreement


@tls_app.command("init")
def tls_init() -> None:
    """Say what has replaced this command."""
    raise FFGBError(
        "ffgb tls init is gone: a site's key is made at the site, and the server makes its certificate by itself; "
        "run: ffgb server invite NAME"
    )


@final
@dataclass(frozen=True)
class _Way:
    """How a site comes to its server: invited, with certificates of its own, or without TLS on this machine."""

    address: str
    invitation: Any
    tls: Path | None
    key: Path | None
    insecure: bool
    given: str | None
    """The site's name, if the command says it."""

    @property
    def name(self) -> str | None:
        """The site's name, if its invitation says it."""
        return None if self.invitation is None else str(self.invitation.name)

    def check(self) -> None:
        """Raise an FFGBError if the server would not know the site by it."""
        from ffgb.deployment.site import Home

        if self.tls is not None and self.key is None:
            raise FFGBError("with --tls a site needs its own --key, whose public half the server's operator registers")
        if self.invitation is not None or self.tls is not None or self.insecure:
            return
        known = Home.known(self.address)
        if not known:
            raise FFGBError(
                f"this site has not joined {self.address}; give the invitation of its operator with --join, "
                "or certificates of your own with --tls and --key"
            )
        if self.given is not None and self.given not in known:
            raise FFGBError(
                f"this machine has joined {self.address} as {', '.join(known)}, and not as {self.given}; change "
                "--name, or give an invitation for that name with --join"
            )


def _way(
    join: str | None,
    server: str | None,
    tls: Path | None,
    key: Path | None,
    name: str | None,
    *,
    insecure: bool,
    dry_run: bool,
) -> _Way:
    """The way to a server, if there is one; a dry run needs none."""
    from ffgb.deployment.keys import check_address, is_loopback

    invitation = _invitation(join)
    address = check_address(server or (invitation.address if invitation else "127.0.0.1:9443"))
    if invitation is not None and (server is not None or tls is not None or insecure):
        raise FFGBError("--join says which server it is and how to know it; leave out --server, --tls and --insecure")
    if insecure and not is_loopback(address.rpartition(":")[0]):
        raise FFGBError(f"--insecure is for this machine alone, and {address} is elsewhere; ask for an invitation")
    way = _Way(address, invitation, tls, key, insecure, name)
    if not dry_run:
        way.check()
    return way


def _introduced(site: Any, least: Any) -> Any:
    """What a site says about its file; what is wrong with it is said here, to its owner."""
    said = site.describe()
    least.check(said, site.labels())
    print(f"site {site.name}: {said.rows:,} rows to train with, {said.test_rows:,} held out, "
          f"{len(said.columns) or 'image'} columns", file=sys.stderr)  # fmt: skip
    return said


def _rules(file: Path | None, settings: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The site's rules: those of its file, or careful ones; options of the command line come first."""
    from ffgb.deployment.policy import Policy

    off = settings.get("secure") == "off"
    rules = Policy(secure=not off) if file is None else Policy.read(file)
    if off and rules.secure:
        raise FFGBError(f"{file} wants secure totals (secure = true), and the options say --secure off; change one")
    rules = replace(rules, **given)
    if (least := int(settings.get("least", rules.least))) < rules.least:
        raise FFGBError(
            f"the options allow intervals and categories with {least} rows of all sites (least), and the rules of this "
            f"site want {rules.least}; change one"
        )
    return rules


@final
@dataclass
class _Screen:
    """What is shown while a site waits: it must not write over a question."""

    status: Any = None

    def asked(self, question: str) -> bool:
        """The owner's answer to a question."""
        if self.status is None:
            return _asked(question)
        self.status.stop()
        try:
            return _asked(question)
        finally:
            self.status.start()


def _acquainted(yes: bool, screen: _Screen) -> Callable[[Mapping[str, str]], bool]:
    """Asks the owner about participants that this site meets for the first time."""

    def confirm(participants: Mapping[str, str]) -> bool:
        print("ffgb: the other participants, with the fingerprints of their keys:", file=sys.stderr)
        for name, mark in sorted(participants.items()):
            print(f"ffgb:   {printable(name)}  {mark}", file=sys.stderr)
        return yes or screen.asked("Add this site's numbers to theirs?")

    return confirm


def _rehearsed(
    site: Any, said: Any, settings: Mapping[str, Any], rules: Any, refused: frozenset[str], *, technical: bool
) -> Any:
    """What would be agreed to, after it was shown: in words, or as a table of all that would be sent."""
    from ffgb.data.sites import hello
    from ffgb.deployment.attendant import rehearse
    from ffgb.deployment.consent import in_words, private_in_words

    rehearsal, agreement = rehearse(site, settings, trainings=rules.trainings)
    if technical:
        size = len(hello(site, said, private=rules.secure))
        _print_sent(rehearsal, agreement, said, size, refused, secure=rules.secure)
    else:
        console = Console(stderr=True, highlight=False)
        console.print("\n[bold]What leaves this site[/bold]")
        told = in_words(said, agreement, rehearsal.once, rehearsal.each, rules, rehearsal.last)
        for text in told if site.bounded is None else private_in_words(said, settings, rules):
            tell(console, text, "• ")
        console.print("\n[bold]The rules of this site[/bold]")
        for text in rules.in_words():
            tell(console, text, "• ")
        console.print("\nEvery array that would be sent: --technical", markup=False)
    return agreement


def _attend(way: _Way, home: Any, attendant: Any, screen: _Screen, *, no_page: bool) -> None:
    """Join the server if that is still to be done, and answer until told to stop."""
    from ffgb.deployment.keys import der, fingerprint
    from ffgb.deployment.site import attend, connection

    console = Console(stderr=True)

    def say(text: str) -> None:
        tell(console, text)

    with home.alone(), stopped() as stop:
        if way.invitation is not None and home.join(way.invitation, stop, say):
            say(f"joined {way.address} as {home.name}")
        node = connection(way.address, home, way.tls, way.key, insecure=way.insecure)
        if not way.insecure:
            say(f"the fingerprint of this site's key is {fingerprint(der(node.key, 'its key'))}")
        with served_page(attendant.board, "site", no_page, say), console.status("starting") as status:

            def state(text: str) -> None:
                attendant.board.state(text)
                status.update(printable(text)) if console.is_terminal else say(text)

            attendant.say, attendant.announce, screen.status = state, say, status
            attend(node, attendant, stop, say)


def _proposed(way: _Way, home: Any) -> bytes | None:
    """The job that the server proposes, or the one agreed to, if its training is under way; None: it proposes none."""
    from ffgb.deployment.site import connection, fetch_job

    console = Console(stderr=True)

    def say(text: str) -> None:
        tell(console, text)

    with home.alone(), stopped() as stop:
        if way.invitation is not None and home.join(way.invitation, stop, say):
            say(f"joined {way.address} as {home.name}")
        node = None if stop.is_set() else connection(way.address, home, way.tls, way.key, insecure=way.insecure)
        job = None if node is None else fetch_job(node, stop, say)
        if stop.is_set():
            raise KeyboardInterrupt
    if job is None and (job := home.job) is None:
        raise FFGBError(
            "the server has a training under way that this site has not agreed to; wait for its end, or give the "
            "options of this site with --config"
        )
    return job or None


def _of_job(
    job: bytes, target: str | None, task: str | None, secure: str | None, policy: Path | None
) -> tuple[dict[str, Any], str | None, str | None]:
    """The options of the server's job, if what was said here does not contradict it."""
    from ffgb.deployment.job_file import read_job

    values = read_job(job.decode("utf-8", "replace"))
    for name, given in (("target", target), ("task", task)):
        if given is not None and values.get(name) not in (None, given):
            raise FFGBError(
                f"the server's job has {name} = {printable(values[name])!r}, and here it is {given!r}; leave it out "
                "here and make the file fit, or ask the server's operator"
            )
    if values.get("secure") == "off":
        _refuse_open(secure, policy)
    target, task = (given or values.pop(name, None) for name, given in (("target", target), ("task", task)))
    rest = {name: value for name, value in values.items() if name not in ("target", "task")}
    return {**rest, "data": ["sites"]}, target, task


def _show_job(job: bytes | None) -> None:
    """The job that the owner is asked to agree to, in words and as it came."""
    from ffgb.deployment.job_file import in_words, read_job

    if job is None:
        return
    console = Console(stderr=True, highlight=False)
    console.print("\n[bold]The job that the server proposes[/bold]")
    for text in in_words(read_job(job.decode("utf-8", "replace"))):
        tell(console, text, "• ")
    for line in job.decode("utf-8", "replace").splitlines():
        console.print(f"    {printable(line)}", markup=False, soft_wrap=True)


def _reading(context: typer.Context) -> Callable[[Mapping[str, Any]], Any]:
    """How this site's file is read: by the options of the training, and those given here, which come first."""
    from ffgb.data.reading import SETTINGS, Reading

    own = {}
    for each in SETTINGS:
        if (text := context.params.get(each.name)) is not None:
            own[each.name] = each.check(each.read(text))
    return lambda settings: Reading.of({**settings, **own})


def _only(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names if name in settings}


def _confirmed(address: str, trainings: int) -> bool:
    return _asked(f"Send this, in up to {trainings} trainings with {address}?")


def _asked(question: str) -> bool:
    """The owner's answer, if there is a terminal: also if the invitation came by standard input."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
        return typer.confirm(question, err=True)
    if not sys.stderr.isatty():
        return False
    try:
        with Path("/dev/tty").open() as terminal:
            termios.tcflush(terminal, termios.TCIFLUSH)
            print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
            return terminal.readline().strip().lower() in ("y", "yes")
    except OSError:
        return False


def _invitation(line: str | None) -> Any:
    from ffgb.deployment.keys import Invitation

    if line is None:
        return None
    # whoever types ends with a line; a file may have the line in parts, as mail breaks it
    if line == "-":
        given = sys.stdin.readline() if sys.stdin.isatty() else sys.stdin.read(LONGEST_INVITATION)
    else:
        given = _in_file(line) or line
    return Invitation.read(given)


def _in_file(name: str) -> str:
    """What is in the file of this name; nothing if there is none."""
    try:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_INVITATION)
    except OSError:  # an invitation is no name of a file
        return ""


def _called(address: str, data: Path, key: Path | None, trial: bool) -> str:
    """A site's name, if neither the command nor an invitation says it."""
    from ffgb.data.reading import bare_name
    from ffgb.deployment.site import Home

    if key is not None:
        return key.stem
    if trial:
        return "".join(c if c.isalnum() or c in "-_" else "-" for c in bare_name(data)).lstrip("-_") or "site"
    names = Home.known(address)
    if len(names) != 1:
        raise FFGBError(f"this machine has joined {address} as {', '.join(names)}; say which with --name")
    return names[0]


@contextlib.contextmanager
def stopped() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set this; a second Ctrl-C ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # not by print: the signal may come in the middle of one
        os.write(2, b"\nffgb: ending what is under way; Ctrl-C again ends at once\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def served_page(board: Any, kind: str, off: bool, say: Callable[[str], None]) -> Iterator[None]:
    """A page on this machine that shows what is going on."""
    if off:
        yield
        return
    from ffgb.deployment.page import served

    with served(board.snapshot, kind) as address:
        say(f"watch it at {address}")
        yield


def _print_sent(rehearsal: Any, agreement: Any, said: Any, size: int, refused: frozenset[str], *, secure: bool) -> None:
    """What leaves a site: when it is asked who it is, once, and in each round."""
    from ffgb.data.survey import survey_bytes

    categories = sum(len(c.categories) for c in said.columns.values())
    told = [f"names and kinds of {len(said.columns)} columns" if said.columns else "the shape of an image"]
    asked = [
        "missing values and sums of columns",
        *([f"rows of {categories} categories, and names of common ones"] if categories else []),
        *([f"{len(said.classes)} classes with their rows"] if said.classes else []),
    ]
    if not secure:
        told.insert(0, "numbers of rows")
    rows: list[dict[str, Any]] = [
        {"when": "once", "what": "who is here", "arrays": "; ".join(told), "bytes": size},
        {"when": "once", "what": "questions about its file", "arrays": "; ".join(asked), "bytes": survey_bytes(said)},
    ]
    in_turn = (("once", rehearsal.once), ("each round", rehearsal.each), ("after training", rehearsal.last))
    for when, messages in in_turn:
        for sent in messages:
            arrays = ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in sent.arrays) or "no arrays"
            if sent.what.removeprefix("question ").partition(",")[0] in refused:
                arrays = "refused: --no-shared-geometry or the policy"
            rows.append({"when": when, "what": sent.what, "arrays": arrays, "bytes": sent.bytes})
    print_rows(rows)
    print(
        f"{agreement.exchanges} rounds, {agreement.bytes:,} bytes in all.  With the columns and classes of all sites "
        "together, arrays may be larger.  "
        + (
            "All sums are under masks: the server learns totals over all sites."
            if secure
            else "The server can compute rows from these sums: docs/what-leaves.md."
        ),
        file=sys.stderr,
    )


def _print_summary(out: Path, as_json: bool) -> None:
    from ffgb.runs.directory import Run

    summary = Run.open(out).summary
    print(json.dumps(summary, allow_nan=False)) if as_json else print_summary(summary, out)


def _settings(
    file: Path | None, target: str | None, task: str | None, secure: str | None
) -> tuple[dict[str, Any], str | None, str | None]:
    """The training's options in a file, and what is predicted, which may also be there."""
    from ffgb.runs.config import code_in

    values = settings_of(file, but=("data", "clients", "split"))
    if secure not in (None, "on", "off"):
        raise FFGBError(f"--secure is on or off, not {secure!r}")
    if secure is not None:
        values["secure"] = secure
    if code := code_in(values):
        raise FFGBError(
            f"{file} names code of your own, {', '.join(code)}: between sites only classes of ffgb are used, because "
            "no site should run code for another; take a map as FILE.onnx, or train on one machine with ffgb train"
        )
    target, task = (given or values.pop(name, None) for name, given in (("target", target), ("task", task)))
    return {**values, "data": ["sites"]}, target, task
