"""What the commands have in common: the app itself, how they are stopped, and how they show things."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from ffgb.errors import FFGBError, option, printable
from ffgb.runs.headline import headline, in_bytes, score_of

app = typer.Typer(
    help="Federated functional gradient boosting: sites that do not pool their data train one function together.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
JSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


def say(text: str, *, error: bool = False) -> None:
    """Print a line; names in it may come from anyone's file."""
    print(printable(text), file=sys.stderr if error else sys.stdout)


def number(text: str, name: str, what: str) -> int | float:
    """5 is a number of clients or points, 0.5 and 1.0 are shares."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise FFGBError(f"{name} {text!r} is neither a number of {what} such as 5 nor a share such as 0.5")


def words(text: str) -> list[str]:
    """Names that are separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers_of(name: str, text: str) -> list[float]:
    """The numbers of an option that are separated by commas."""
    try:
        return [float(word) for word in words(text)]
    except ValueError as error:
        raise FFGBError(f"{option(name, text)} is not a list of numbers, for example 365,730") from error


def settings_of(file: Path | None, but: Sequence[str] = ()) -> dict[str, Any]:
    """Options of `ffgb train` in a TOML file, by their names."""
    from ffgb.runs.config import read_settings

    return read_settings(file, but)


def was_given(ctx: typer.Context, name: str) -> bool:
    """Is the value of this option the user's, and not its default?"""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def trust(learner: str | None) -> None:
    """The user names code of their own that a model needs: only then is it imported."""
    if learner is not None:
        from ffgb.user_code import allow

        allow(learner)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C and a supervisor's SIGTERM come to the handler, also where a shell had them ignored."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def goes_on(out: Path | None) -> Iterator[None]:
    """Work that is kept part by part, if there is a folder for it: Ctrl-C or SIGTERM ends it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        with _handled(stop):
            yield
    except KeyboardInterrupt:
        if out is not None:
            say(f"ffgb: stopped; the same command goes on from what is in {out}", error=True)
        sys.exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM asks for a stop after this round; the second stops at once."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        print("\nffgb: stopping after this round; Ctrl-C again stops at once", file=sys.stderr)

    with _handled(handler):
        yield seen


class Display:
    """Progress on a terminal: round, score, traffic, time left.  Nothing where there is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console()
        self.on = self.console.is_terminal and not quiet
        self.progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.on,
        )
        self.task: TaskID | None = None
        self.read = ""
        """How the target of files was read."""

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, config: Any, dataset: Any) -> None:
        number = "a time until an event" if config.loss == "cox" else "a number to predict"
        what = f"{len(dataset.classes)} classes" if dataset.classes else number
        if config.files:  # how a target was read is for its owner to check
            some = ", ".join(dataset.classes[:6]) + ", …" * (len(dataset.classes) > 6)
            what += f" ({some})" if dataset.classes else ""
            self.read = f"{config.target or 'y'} is read as {what}"
        if not self.on:
            return
        text = (
            f"{dataset.name}: {len(dataset.y):,} training rows, {what}, {_clients(config.clients)} "
            f"({config.split} split), learner {config.learner}, {config.geometry} geometry, "
            f"{config.local_steps} local step{'s' if config.local_steps > 1 else ''}"
        )
        if config.because:
            text = f"learner {config.learner}: {config.because}\n{text}"
        self.console.print(printable(text), highlight=False, markup=False)
        self.task = self.progress.add_task("train", total=config.exchanges, text="set up")

    def setup(self, what: str, done: int, clients: int) -> None:
        if self.task is not None:
            self.progress.update(self.task, text=f"set up: {what}, {done} of {clients} clients")

    def round(self, metrics: dict[str, Any]) -> None:
        if self.task is None:
            if self.read:  # once, when it is clear that there will be a result
                say(f"ffgb: {self.read}", error=True)
            self.read = ""
            return
        text = f"{score_of(metrics)}  {in_bytes(metrics['bytes_up'] + metrics['bytes_down'])} a client"
        self.progress.update(self.task, completed=metrics["round"], text=text)


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count != 1)}"


def print_summary(summary: dict[str, Any], out: Path | None) -> None:
    console = Console()
    plain: dict[str, Any] = {"highlight": False, "soft_wrap": not console.is_terminal}
    for bold, line in zip((True, False, False), headline(summary), strict=False):
        console.print(Text(line, style="bold" if bold else ""), **plain)
    console.print(printable(f"run directory: {out}"), markup=False, **plain)
    if out is not None and (out / "report.html").exists():
        console.print(printable(f"report: {out / 'report.html'}"), markup=False, **plain)


def print_change(found: dict[str, Any], output: Path) -> None:
    """A model before and after, and what that cost."""
    print_rows([{"model": name, **found[name]} for name in ("before", "after")])
    faster = f"predicts {found['speedup']:,.0f} times as fast; " if found.get("speedup", 0.0) > 1.5 else ""
    traffic = f"{found['models']:,.1f} models ({in_bytes(found['bytes'])}) exchanged a client"
    say(f"{faster}{traffic if found['bytes'] else 'nothing was exchanged'}; {output}")
    if found.get("clients_own"):
        print(
            f"at the {found['points']:,} rows that the run was trained on; a server that has none of them needs --data"
        )


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    # as texts of their own: a class may be called [red], too
    table = Table(*(Column(_cell(name), overflow="fold") for name in rows[0]), box=None, pad_edge=False)
    shown = {int: "{:,}", float: "{:.4f}", str: "{}"}
    for row in rows:
        table.add_row(*[_cell(shown[type(value)].format(value)) for value in row.values()])
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)


def _cell(text: str) -> Text:
    return Text(printable(text))
