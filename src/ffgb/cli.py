"""The command line.  Everything it does is a library call; here are only options, display and exit codes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

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
    except MemoryError:
        print("ffgb: not enough memory; choose a smaller learner or fewer workers", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        print(f"ffgb: {error.filename or 'a file'}: {error.strerror or error}; choose another place", file=sys.stderr)
        sys.exit(2)


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


JSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
MODULE = Annotated[
    str | None,
    typer.Option(
        "--learner", help="package.module:factory, if the run has such a learner: its code is imported and run here."
    ),
]


def _option(panel: str, help: str, default: str | bool = True, **more: Any) -> Any:
    """An option of `train`, in one of the panels of its help."""
    return typer.Option(help=help, rich_help_panel=panel, show_default=default, **more)


DATA, METHOD, LEARNER, RUN = "Data and clients", "Algorithm and steps", "Weak learners", "Run"
BY_LEARNER = "by learner"


@app.command()
def train(
    ctx: typer.Context,
    data: Annotated[
        list[str] | None, _option(DATA, "A named set ('ffgb data list'), or a client's file: repeat it.", "digits")
    ] = None,
    target: Annotated[str | None, _option(DATA, "The column to predict, for CSV and Parquet files.", False)] = None,
    task: Annotated[
        str | None, _option(DATA, "classification or regression, for files.", "by the target's values")
    ] = None,
    clients: Annotated[int | None, _option(DATA, "Number of clients N.", "20, or the natural sites", min=1)] = None,
    split: Annotated[
        str | None,
        _option(DATA, "similarity, dirichlet, iid or natural.", "natural if there are sites, else similarity"),
    ] = None,
    similarity: Annotated[float, _option(DATA, "Share of the rows dealt out evenly; the rest goes by label.")] = 0.1,
    alpha: Annotated[float, _option(DATA, "Concentration of the dirichlet split.")] = 0.5,
    by: Annotated[str | None, _option(DATA, "Sort rows by this column instead of the label.", False)] = None,
    participation: Annotated[
        str | None, _option(DATA, "Clients sampled a round: a number such as 5, or a share such as 0.5.", "all")
    ] = None,
    client_weights: Annotated[
        str | None, _option(DATA, "uniform, as in the paper, or size.", "size if the geometry is shared")
    ] = None,
    algorithm: Annotated[str, _option(METHOD, "ffgb.")] = "ffgb",
    rounds: Annotated[int | None, _option(METHOD, "Communication rounds T.", BY_LEARNER, min=1)] = None,
    local_steps: Annotated[int | None, _option(METHOD, "Local steps K.", BY_LEARNER, min=1)] = None,
    residual: Annotated[
        bool,
        typer.Option(
            "--residual/--no-residual",
            help="Carry the oracle's error Δ into the next local step.",
            rich_help_panel=METHOD,
        ),
    ] = True,
    mu: Annotated[float, _option(METHOD, "Tikhonov regularisation μ.", min=0.0)] = 0.0,
    schedule: Annotated[
        str | None,
        _option(
            METHOD,
            "search: the best length along the mean step; power: η₀/(Kt+k+1)^p; constant; "
            "theorem1: 2/(μ(tK+k+1)); theorem2: 4/(…).",
            BY_LEARNER,
        ),
    ] = None,
    step_size: Annotated[float | None, _option(METHOD, "η₀, or the constant step.", BY_LEARNER)] = None,
    step_power: Annotated[float, _option(METHOD, "p of the power schedule.")] = 1.0,
    step_offset: Annotated[str, _option(METHOD, "t: the paper's Kt+k+1; t+1: its authors' code, K(t+1)+k.")] = "t",
    loss: Annotated[str, _option(METHOD, "auto, cross-entropy, logistic, square or huber.")] = "auto",
    learner: Annotated[
        str, _option(LEARNER, "features, linear, mlp, cnn, tree, or package.module:factory of your own torch module.")
    ] = "features",
    geometry: Annotated[
        str | None,
        _option(METHOD, "shared: fit in L² of all clients' points; local: of each client's own.", BY_LEARNER),
    ] = None,
    gram: Annotated[
        str | None,
        _option(METHOD, "What of the Gram is shared: exact, blocks, tied or nystrom.", "tied for patches, else exact"),
    ] = None,
    rank: Annotated[int, _option(METHOD, "Rank of the nystrom sketch.", min=1)] = 256,
    stop: Annotated[
        bool | None,
        typer.Option(
            "--stop/--no-stop",
            help="End when there is nothing left to learn but noise.",
            rich_help_panel=METHOD,
            show_default="stop, unless --rounds is given",
        ),
    ] = None,
    map: Annotated[
        str | None,
        _option(
            LEARNER,
            "Feature map (features): patches, mirrored-patches, random-patches, inputs, steps, waves, trees, fourier, "
            "laplace, arc-cosine, FILE.onnx or package.module:function; join several by +.",
            "by the data",
        ),
    ] = None,
    features: Annotated[int | None, _option(LEARNER, "Features D of a map (features).", "by the map", min=1)] = None,
    ridge: Annotated[
        float | None,
        _option(LEARNER, "Ridge of the oracle, relative (features, linear).", "1e-3, or by the points", min=0.0),
    ] = None,
    validation: Annotated[
        float,
        _option(RUN, "Choose λ and the rounds by the loss on this share of each client's rows, then use all.", "no"),
    ] = 0.0,
    hidden: Annotated[str, _option(LEARNER, "Hidden sizes (mlp).")] = "32,32",
    oracle_steps: Annotated[
        int, _option(LEARNER, "Adam steps of an oracle call (mlp, cnn); the paper: 1000.", min=1)
    ] = 200,
    learning_rate: Annotated[float, _option(LEARNER, "Adam's step size (mlp, cnn).")] = 0.005,
    batch: Annotated[int, _option(LEARNER, "Minibatch of an oracle step (mlp, cnn).", min=1)] = 128,
    depth: Annotated[int, _option(LEARNER, "Depth of trees (tree).")] = 4,
    seed: Annotated[int, _option(RUN, "All randomness comes from it.", min=0)] = 0,
    out: Annotated[Path | None, _option(RUN, "The run directory.", "a new one under runs/")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --out; its configuration is kept.", rich_help_panel=RUN),
    ] = False,
    workers: Annotated[
        int | None, _option(RUN, "Worker processes; 0: none, all in this one.", "one a core", min=0)
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as one JSON object, and nothing else.", rich_help_panel=RUN),
    ] = False,
) -> None:
    """Train across clients, and write a run directory with the model."""
    from ffgb.config import Config
    from ffgb.training import train as run_training

    settings = {field.name for field in dataclasses.fields(Config)}
    given = {name: value for name, value in ctx.params.items() if name in settings and _was_given(ctx, name)}
    for name, read in (("data", tuple), ("hidden", _sizes), ("participation", _number)):
        if name in given:
            given[name] = read(given[name])
    if resume:
        if out is None:
            raise FFGBError("--resume needs the run directory to continue: add --out DIR")
        config = _resumed(out, given)
    else:
        config = Config(**given)
        if config.files:  # as absolute paths, so that the run can be evaluated from anywhere
            config = Config(**{**given, "data": tuple(str(Path(file).absolute()) for file in config.data)})
        out = out or _new_directory(config)
    try:
        with _interruptible() as interrupted, _Display(quiet=as_json) as display:
            result = run_training(
                *(config, out),
                resume=resume,
                workers=workers,
                on_start=display.start,
                on_setup=display.setup,
                on_round=display.round,
                should_stop=lambda: bool(interrupted),
            )
    except KeyboardInterrupt:
        _stopped(out)
    if not result.finished:
        _stopped(out)
    if as_json:
        print(json.dumps({**result.summary, "run": str(out)}, allow_nan=False))
    else:
        _print_summary(result.summary, out)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        list[str] | None, typer.Option(help="Score the model on these files instead of the run's test rows.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The files' target column, if the run has none.")] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Score a run's model on its test rows, or on files of your own."""
    from ffgb import scoring
    from ffgb.runs import Run

    _trust(learner)
    scores = scoring.evaluate(Run.open(run), data or (), target)
    if as_json:
        print(json.dumps(scores, allow_nan=False))
    else:
        _print_rows([{"part": name, **values} for name, values in scores.items()])


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory, or its model.safetensors.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with the training columns, or NPZ with an array x.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write CSV here instead of to the terminal.")
    ] = None,
    learner: MODULE = None,
) -> None:
    """Predict a file's rows, as CSV: the class and its probabilities, or the value."""
    from ffgb import scoring
    from ffgb.model import Model

    _trust(learner)
    text = scoring.predict(Model.load(run), file).to_csv(index=False)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)
        print(f"{text.count(chr(10)) - 1:,} predictions written to {output}", file=sys.stderr)


@data_app.command("list")
def data_list(as_json: JSON = False) -> None:
    """The data sets that can be named, what is in them, and whether they are here."""
    from ffgb.data import listing

    if as_json:
        print(json.dumps([dataclasses.asdict(s) for s in listing()]))
        return
    names = ("name", "task", "rows", "columns", "classes", "sites")
    _print_rows([{**{n: getattr(s, n) or "" for n in names}, "here": "yes" if s.present else "no"} for s in listing()])
    print("\nwhere they come from:")
    for s in listing():
        print(f"  {s.name}: {s.origin}")
    where = os.environ.get("FFGB_DATA")
    print(
        f"\nfiles are looked for in {where} (FFGB_DATA)" if where else "\nset FFGB_DATA to the folder with the files",
        "also: openml:NAME, which downloads, and files of your own, one a client",
        sep="\n",
    )


@data_app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Which sets.", show_default="all that are here")] = None,
    as_json: JSON = False,
) -> None:
    """Check the files of data sets against their published sums; exit code 2 if one is damaged or missing."""
    from ffgb.data import SOURCES, available, verify

    rows = [
        {"name": name, "file": str(path), "status": status}
        for name in names or filter(available, SOURCES)
        for path, status in verify(name) or [(Path("inside scikit-learn"), "ok")]
    ]
    if as_json:
        print(json.dumps(rows))
    else:
        _print_rows(rows)
    for status, advice in (("corrupt", "delete it and fetch it again"), ("missing", "put it there, or set FFGB_DATA")):
        if bad := [row["file"] for row in rows if row["status"] == status]:
            raise FFGBError(f"{', '.join(bad)}: {status}; {advice}")


def _trust(learner: str | None) -> None:
    """The user names code of their own that a model needs: only then is it imported."""
    if learner is not None:
        from ffgb.trust import allow

        allow(learner)


def _stopped(out: Path) -> NoReturn:
    if (out / "config.json").exists():
        print(f"ffgb: stopped; continue with: ffgb train --resume --out {out}", file=sys.stderr)
    else:
        print("ffgb: stopped before a round was finished; nothing was written", file=sys.stderr)
    sys.exit(INTERRUPTED)


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


def _number(text: str) -> int | float:
    """5 is a number of clients, 0.5 and 1.0 are shares."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise FFGBError(f"--participation {text!r} is neither a number of clients such as 5 nor a share such as 0.5")


def _resumed(out: Path, given: dict[str, Any]) -> Any:
    """The run's own configuration.  Flags may repeat it; only the number of rounds may differ."""
    from ffgb.config import Config, load_data
    from ffgb.runs import Run

    config = Config.from_json(Run.open(out).config)
    config = dataclasses.replace(config, rounds=given.pop("rounds", config.rounds))
    if config.files and "data" in given:
        given["data"] = tuple(str(Path(file).absolute()) for file in given["data"])
    if given:
        asked = dataclasses.replace(config, **given)
        same_data = (asked.data, asked.target, asked.task) == (config.data, config.target, config.task)
        asked = asked.resolved(load_data(config)) if same_data else asked
        for name in given:
            before, now = getattr(config, name), getattr(asked, name)
            if before != now:
                flag = "--" + name.replace("_", "-")
                raise FFGBError(
                    f"the run in {out} was started with {flag} {_shown(before)}, not {_shown(now)}; "
                    f"leave {flag} out to continue it, or start another run with another --out"
                )
    return config


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
        print("\nffgb: stopping after this round; Ctrl-C again stops at once", file=sys.stderr)

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
            f"({config.split} split), learner {config.learner}, {config.geometry} geometry, "
            f"{config.local_steps} local step{'s' if config.local_steps > 1 else ''}",
            highlight=False,
        )
        self.task = self.progress.add_task("train", total=config.rounds, text="set up")

    def setup(self, what: str, done: int, clients: int) -> None:
        if self.task is not None:
            self.progress.update(self.task, text=f"set up: {what}, {done} of {clients} clients")

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
    plain: dict[str, Any] = {"highlight": False, "soft_wrap": not console.is_terminal}
    if "models_up" in summary:
        console.print(
            f"[bold]{_score(summary)}[/bold] after {summary['rounds']} rounds with {summary['clients']} clients; "
            f"{summary['communication_models']:,.1f} models exchanged a client "
            f"({_bytes(summary['bytes_up'] + summary['bytes_down'])}), {summary['seconds_total']:.1f} s",
            **plain,
        )
    console.print(f"run directory: {out}", **plain)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(*(Column(name, overflow="fold") for name in rows[0]), box=None, pad_edge=False)
    shown = {int: "{:,}", float: "{:.4f}", str: "{}"}
    for row in rows:
        table.add_row(*[shown[type(value)].format(value) for value in row.values()])
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)


if __name__ == "__main__":
    main()
