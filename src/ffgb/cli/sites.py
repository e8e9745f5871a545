"""Training between sites: `ffgb server`, `ffgb client`, `ffgb tls`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ffgb.cli.common import (
    JSON,
    app,
    goes_on,
    print_rows,
    print_summary,
    settings_of,
)
from ffgb.errors import FFGBError

tls_app = typer.Typer(help="Certificates and keys for a trial.", no_args_is_help=True)
app.add_typer(tls_app, name="tls")


@app.command()
def server(
    clients: Annotated[int, typer.Option(help="How many sites take part.", min=1)],
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with the options of train.", show_default="train's defaults")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.", show_default="each site's own")] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression.", show_default="by the target")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port that sites connect to.", min=1, max=65535)] = 9443,
    tls: Annotated[Path | None, typer.Option(help="The folder of `ffgb tls init`.", show_default=False)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: on this machine, to try.")] = False,
    minimum: Annotated[
        int | None, typer.Option(help="How few sites may answer in a round.", show_default="all", min=1)
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has to answer.", min=1.0)] = 120.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for sites before training.", min=1.0)] = 600.0,
    out: Annotated[Path, typer.Option(help="The run directory; what is there goes on.")] = Path("runs/federation"),
    as_json: JSON = False,
) -> None:
    """Train with sites elsewhere: they connect with `ffgb client`.  Started again, it goes on where it was."""
    from ffgb.deploy import Service, ended
    from ffgb.deploy import serve as run_server
    from ffgb.runs import Run

    _tls_or_not(tls, insecure)
    if minimum is not None and minimum > clients:
        raise FFGBError(f"of {clients} sites {minimum} cannot be the fewest that answer; lower --minimum")
    settings, target, task = _settings(config, target, task)
    if not (out / "config.json").exists():
        Run.must_be_free(out)
    elif ended(out, settings):
        print(f"ffgb: the run in {out} has ended; for another one name a new --out", file=sys.stderr)
        _print_summary(out, as_json)
        return
    service = Service(clients, minimum or clients, host, port, tls, deadline, patience)
    console = Console(stderr=True)
    with goes_on(out), console.status("starting") as status:

        def warn(text: str) -> None:
            console.print(f"ffgb: {text}", highlight=False, markup=False, soft_wrap=True)

        run_server(*(service, settings, out, target, task), lambda text: _tell(status, text), warn)
    _print_summary(out, as_json)


@app.command()
def client(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[Path, typer.Option(help="This site's file: CSV, Parquet or NPZ.")],
    target: Annotated[str | None, typer.Option(help="The column to predict, for CSV and Parquet files.")] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression.", show_default="by the target")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What others call this site.", show_default="its key's name, or the file's")
    ] = None,
    tls: Annotated[Path | None, typer.Option(help="The folder with the server's ca.crt.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="This site's own key.", show_default=False)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no key: on this machine, to try.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="The server's TOML file, to see what it asks for.", show_default="its defaults")
    ] = None,
    no_geometry: Annotated[
        bool, typer.Option("--no-shared-geometry", help="Refuse to send a Gram matrix, whatever is asked for.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="Write down every message that comes and goes.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to it without being asked.")] = False,
) -> None:
    """Be a site: answer a server's questions about this file's rows, until Ctrl-C.

    First it shows what will be sent, and asks.  What was not agreed to is not answered.
    """
    from ffgb.deploy import attend, rehearse
    from ffgb.sites import Attendant, Site, hello

    if not dry_run:
        _tls_or_not(tls, insecure)
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}", server):
        raise FFGBError(f"--server is HOST:PORT, such as ffgb.example.org:9443, not {server!r}")
    if tls is not None and key is None:
        raise FFGBError("with --tls a site needs its own --key, which the server's operator registers")
    for file in (path for path in (key, tls and tls / "ca.crt") if path is not None):
        if not Path(file).exists():
            raise FFGBError(f"{file} is not there")
    settings, target, task = _settings(config, target, task)
    known = {k: settings[k] for k in ("categories", "rare") if k in settings}
    # with a key it bears its key's name: that of the public one at the server
    site = Site(name or (data.stem if key is None else key.name), data.absolute(), target, task, **known)
    said = site.describe()  # what is wrong with the file is said here, to its owner
    print(f"site {site.name}: {said.rows:,} rows to train with, {said.test_rows:,} held out, "
          f"{len(said.columns) or 'image'} columns", file=sys.stderr)  # fmt: skip
    rehearsal = rehearse(site, settings, target, task)
    refused = {"GramOf", "SketchOf"} & rehearsal.kinds if no_geometry else set()
    _print_sent(rehearsal, said, len(hello(site)), refused)
    if dry_run:
        return
    if not yes and not _agreed_before(site.path, server, rehearsal.kinds):
        if not sys.stdin.isatty() or not typer.confirm("Send this, in every training with this server?"):
            raise FFGBError("nothing was sent; agree with --yes, or answer the question in a terminal")
        _agreed_before(site.path, server, rehearsal.kinds, remember=True)
    attendant = Attendant(site, frozenset(rehearsal.kinds - refused), log and log.absolute())
    stopped: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: stopped.append(number)) for n in (signal.SIGINT, signal.SIGTERM)
    }
    console = Console(stderr=True)
    try:
        with console.status("starting") as status:

            def say(text: str) -> None:
                console.print(f"ffgb: {text}", highlight=False, markup=False, soft_wrap=True)

            attendant.say = status.update if console.is_terminal else say
            attend(*(server, attendant, tls, key), say, lambda: bool(stopped))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print("ffgb: this site has left", file=sys.stderr)


@tls_app.command("init")
def tls_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as sites will call it.")] = "127.0.0.1",
) -> None:
    """Write an authority, the server's certificate and a key for each site: for a trial, good for a year."""
    from ffgb.deploy import make_keys

    for path in make_keys(folder, host, [name.strip() for name in sites.split(",")]):
        print(path)
    print(
        f"give each site {folder}/ca.crt and its own file in {folder}/sites; keep the others at the server",
        file=sys.stderr,
    )


def _print_sent(rehearsal: Any, said: Any, size: int, refused: set[str]) -> None:
    """What leaves a site: when it is asked who it is, once, and in each round."""
    categories = sum(len(c.categories) for c in said.columns.values())
    told = [
        f"numbers of rows; {len(said.columns)} columns: name, kind, missing values, sum of numbers"
        if said.columns
        else "numbers of rows; the shape of an image",
        *([f"{categories} categories with their rows"] if categories else []),
        *([f"{len(said.classes)} classes"] if said.classes else []),
    ]
    rows: list[dict[str, Any]] = [{"when": "once", "what": "who is here", "arrays": "; ".join(told), "bytes": size}]
    for when, messages in (("once", rehearsal.once), ("each round", rehearsal.each)):
        for sent in messages:
            arrays = ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in sent.arrays) or "no arrays"
            if sent.what.removeprefix("statistic ").partition(",")[0] in refused:
                arrays = "refused: --no-shared-geometry"
            rows.append({"when": when, "what": sent.what, "arrays": arrays, "bytes": sent.bytes})
    print_rows(rows)
    print("With the classes of all sites together, arrays may have more columns.", file=sys.stderr)


def _print_summary(out: Path, as_json: bool) -> None:
    from ffgb.runs import Run

    summary = Run.open(out).summary
    print(json.dumps(summary, allow_nan=False)) if as_json else print_summary(summary, out)


def _agreed_before(data: Path, server: str, kinds: set[str], *, remember: bool = False) -> bool:
    """Has the owner of this file agreed to send this to this server?  It is kept in the user's own folder."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file, what = base / "ffgb" / "agreed.json", [str(data), server, sorted(kinds)]
    try:
        known = json.loads(file.read_text()) if file.exists() else []
    except ValueError:
        known = []  # damaged: whoever agreed is asked again
    if remember and what not in known:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([*known, what]))
    return what in known


def _settings(file: Path | None, target: str | None, task: str | None) -> tuple[dict[str, Any], str | None, str | None]:
    """The training's options in a file, and what is predicted, which may also be there."""
    values = settings_of(file, but=("data", "clients", "split"))
    target, task = (given or values.pop(name, None) for name, given in (("target", target), ("task", task)))
    return {**values, "data": ["sites"]}, target, task


def _tls_or_not(tls: Path | None, insecure: bool) -> None:
    if (tls is None) != insecure:
        raise FFGBError("give --tls DIR (make one with: ffgb tls init DIR), or --insecure to try it on one machine")


def _tell(status: Any, text: str) -> None:
    """On a terminal in one place, elsewhere line by line."""
    status.update(text)
    if not sys.stderr.isatty():
        print(f"ffgb: {text}", file=sys.stderr, flush=True)
