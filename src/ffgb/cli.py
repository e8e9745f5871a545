"""The command line.  Everything it does is a library call; here are only options, display and exit codes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
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

from ffgb._version import __version__
from ffgb.errors import FFGBError

app = typer.Typer(
    help="Federated functional gradient boosting: sites train one function together, and no row leaves a site.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="What data there is, and where it comes from.", no_args_is_help=True)
app.add_typer(data_app, name="data")

INTERRUPTED = 130


def main() -> None:
    """The entry point: a user's mistake becomes one sentence and exit code 2."""
    logging.basicConfig(format="ffgb: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        app()
    except FFGBError as error:
        print(f"ffgb: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(1)


def _version(value: bool) -> None:
    if value:
        print(f"ffgb {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


JSON = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, and nothing else.")]


@app.command()
def train(
    ctx: typer.Context,
    data: Annotated[
        list[str] | None, typer.Option(help="A named set ('ffgb data list'), or one file a client: repeat it.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, for CSV and Parquet files.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. [default: 20, or the natural sites]")] = None,
    split: Annotated[
        str | None, typer.Option(help="similarity, dirichlet, iid or natural. [default: natural if there are sites]")
    ] = None,
    similarity: Annotated[float, typer.Option(help="Share of rows dealt out evenly; the rest goes by label.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Concentration of the dirichlet split.")] = 0.5,
    algorithm: Annotated[str, typer.Option(help="ffgb.")] = "ffgb",
    learner: Annotated[
        str, typer.Option(help="features, linear, mlp, cnn, tree, or package.module:factory of a torch module.")
    ] = "features",
    loss: Annotated[str, typer.Option(help="auto, cross-entropy, logistic, square or huber.")] = "auto",
    rounds: Annotated[int | None, typer.Option(min=0, help="Communication rounds T. [default: by learner]")] = None,
    local_steps: Annotated[int | None, typer.Option(min=1, help="Local steps K. [default: by learner]")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="power η₀/(Kt+k+1)^p, constant, theorem1 2/(μ(tK+k+1)), theorem2 4/(μ(tK+k+1)).")
    ] = None,
    step_size: Annotated[float | None, typer.Option(help="η₀, or the constant step. [default: by learner]")] = None,
    step_power: Annotated[float, typer.Option(help="p of the power schedule.")] = 1.0,
    step_offset: Annotated[str, typer.Option(help="t: the paper's Kt+k+1; t+1: the authors' code, K(t+1)+k.")] = "t",
    mu: Annotated[float, typer.Option(min=0.0, help="Tikhonov regularisation μ.")] = 0.0,
    residual: Annotated[
        bool, typer.Option("--residual/--no-residual", help="Carry the oracle's error Δ into the next local step.")
    ] = True,
    participation: Annotated[
        float | None, typer.Option(help="Clients sampled a round: a number, or a share below 1. [default: all]")
    ] = None,
    client_weights: Annotated[str, typer.Option(help="uniform, as in the paper, or size.")] = "uniform",
    features: Annotated[int, typer.Option(min=1, help="Random Fourier features D (learner features).")] = 1024,
    ridge: Annotated[float, typer.Option(min=0.0, help="Ridge of the closed families' oracle.")] = 1e-3,
    hidden: Annotated[str, typer.Option(help="Hidden sizes (learner mlp).")] = "32,32",
    oracle_steps: Annotated[
        int, typer.Option(min=1, help="Adam steps of an oracle call (mlp, cnn); the paper: 1000.")
    ] = 200,
    learning_rate: Annotated[float, typer.Option(help="Adam's step size (mlp, cnn).")] = 0.005,
    batch: Annotated[int, typer.Option(min=1, help="Minibatch of an oracle step (mlp, cnn).")] = 128,
    depth: Annotated[int, typer.Option(help="Depth of trees (learner tree).")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="All randomness comes from it.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The run directory. [default: a new one under runs/]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; its configuration is kept.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes; 0: all in this one. [default: one a core]")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Train across clients, and write a run directory with the model."""
    from ffgb import training

    given = {
        name: value
        for name, value in ctx.params.items()
        if name not in ("out", "resume", "workers", "as_json") and _was_given(ctx, name)
    }
    if "data" in given:
        given["data"] = tuple(given["data"])
    if "hidden" in given:
        given["hidden"] = _sizes(given["hidden"])
    if resume:
        if out is None:
            raise FFGBError("--resume needs the run directory to continue: add --out DIR")
        config = _resumed(out, given)
    else:
        config = training.Config(**given)
        out = out or _new_directory(config)
    with _interruptible() as interrupted, _Display(quiet=as_json) as display:
        result = training.train(
            *(config, out),
            resume=resume,
            workers=workers,
            on_start=display.start,
            on_round=display.round,
            should_stop=lambda: bool(interrupted),
        )
    if not result.finished:
        print(
            f"ffgb: stopped after round {len(result.metrics)}; continue with: ffgb train --resume --out {out}",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps({**result.summary, "run": str(out)}))
    else:
        _print_summary(result.summary, out)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        list[str] | None, typer.Option(help="Score the model on these files instead of the run's test rows.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Score a run's model on its test rows, or on files of your own."""
    from ffgb import scoring
    from ffgb.runs import Run

    scores = scoring.evaluate(Run.open(run), data or ())
    _print_rows([{"part": name, **values} for name, values in scores.items()], as_json)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory, or its model.safetensors.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with the training columns, or NPZ with an array x.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write CSV here instead of to the terminal.")
    ] = None,
) -> None:
    """Predict a file's rows, as CSV: the class and its probabilities, or the value."""
    from ffgb import scoring
    from ffgb.model import Model

    text = scoring.predict(Model.load(run), file).to_csv(index=False)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


@data_app.command("list")
def data_list(as_json: JSON = False) -> None:
    """The data sets that can be named, what is in them, and whether they are here."""
    from ffgb.data import listing

    rows = [
        {
            "name": s.name,
            "here": "yes" if s.present else "no",
            "task": s.task,
            "rows": s.rows,
            "columns": s.columns,
            "classes": s.classes,
            "sites": s.sites,
            "where it comes from": s.origin,
        }
        for s in listing()
    ]
    _print_rows(rows, as_json)
    if not as_json:
        _say_where()


@data_app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Which sets. [default: all]")] = None,
    as_json: JSON = False,
) -> None:
    """Check the files of data sets against their published checksums; exit code 2 if one is damaged."""
    from ffgb.data import SOURCES, verify

    rows = [
        {"name": name, "file": str(path), "status": status}
        for name in names or SOURCES
        for path, status in verify(name) or [(Path("inside scikit-learn"), "ok")]
    ]
    _print_rows(rows, as_json)
    if corrupt := [row["file"] for row in rows if row["status"] == "corrupt"]:
        raise FFGBError(f"{', '.join(corrupt)} is damaged; delete it and fetch it again")
    if names and any(row["status"] == "missing" for row in rows):
        raise FFGBError(f"files of {', '.join(names)} are missing; put them into the folder shown, or set FFGB_DATA")


def _was_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise FFGBError(f"--hidden {text!r} is not a list of sizes such as 32,32")
    return sizes


def _resumed(out: Path, given: dict[str, Any]) -> Any:
    """The run's own configuration.  Flags may repeat it; only the number of rounds may differ."""
    import dataclasses

    from ffgb.runs import Run
    from ffgb.training import Config

    config = Config.from_json(Run.open(out).config)
    for name, value in given.items():
        if name != "rounds" and getattr(config, name) != value:
            flag = "--" + name.replace("_", "-")
            raise FFGBError(
                f"the run in {out} was started with {flag} {_shown(getattr(config, name))}, not {_shown(value)}; "
                f"leave {flag} out to continue it, or start another run with another --out"
            )
    return dataclasses.replace(config, rounds=given.get("rounds", config.rounds))


def _shown(value: Any) -> str:
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _new_directory(config: Any) -> Path:
    name = Path(config.data[0]).stem if config.files else config.data[0].replace(":", "-")
    number = 1
    while (out := Path("runs") / f"{name}-{config.algorithm}-{config.learner.replace(':', '.')}-{number}").exists():
        number += 1
    return out


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """The first Ctrl-C asks for a stop after this round; the second stops at once."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        print("\nffgb: finishing this round; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


class _Display:
    """Progress on a terminal: round, accuracy, γ, models exchanged, time left.  Nothing where there is no terminal."""

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

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, config: Any, dataset: Any) -> None:
        if not self.on:
            return
        what = f"{len(dataset.classes)} classes" if dataset.classes else "regression"
        self.console.print(
            f"{dataset.name}: {len(dataset.y):,} training rows, {what}, {config.clients} clients "
            f"({config.split} split), learner {config.learner}, {config.local_steps} local steps"
        )
        self.task = self.progress.add_task("train", total=config.rounds, text="set up")

    def round(self, metrics: dict[str, Any]) -> None:
        if self.task is None:
            return
        models = metrics["models_up"] + metrics["models_down"]
        text = f"{_score(metrics)}  γ {metrics['gamma_median']:.2f}  {models:,.0f} models"
        self.progress.update(self.task, completed=metrics["round"], text=text)


def _score(metrics: dict[str, Any]) -> str:
    for name in ("test_accuracy", "test_rmse", "train_accuracy", "train_rmse"):
        if name in metrics:
            return f"{name.replace('_', ' ')} {metrics[name]:.4f}"
    return ""


def _print_summary(summary: dict[str, Any], out: Path | None) -> None:
    console = Console()
    if "models_up" in summary:
        console.print(
            f"[bold]{_score(summary)}[/bold] after {summary['rounds']} rounds with {summary['clients']} clients; "
            f"{summary['communication_models']:,.1f} models exchanged a client "
            f"({_bytes(summary['bytes_up'] + summary['bytes_down'])}), {summary['seconds_total']:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"run directory: {out}", highlight=False, soft_wrap=True)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _say_where() -> None:
    where = os.environ.get("FFGB_DATA")
    text = f"files are looked for in FFGB_DATA={where}" if where else "set FFGB_DATA to the folder that holds the files"
    print(f"\n{text}; also: openml:NAME (downloads), or your own CSV, Parquet or NPZ files, one a client")


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(*(Column(name, overflow="fold") for name in rows[0]), box=None, pad_edge=False)
    shown = {int: "{:,}", float: "{:.4f}", str: "{}"}
    for row in rows:
        table.add_row(*[shown[type(value)].format(value) for value in row.values()])
    Console().print(table, soft_wrap=not sys.stdout.isatty())


if __name__ == "__main__":
    main()
