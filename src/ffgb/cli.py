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
from functools import partial
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
tls_app = typer.Typer(help="Certificates and keys for a trial.", no_args_is_help=True)
app.add_typer(tls_app, name="tls")

INTERRUPTED = 130
FEW = 10
"""Points that a classifier needs of a client."""


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
        _option(DATA, "similarity, dirichlet, labels, iid or natural.", "natural if there are sites, else similarity"),
    ] = None,
    similarity: Annotated[float, _option(DATA, "Share of the rows dealt out evenly; the rest goes by label.")] = 0.1,
    alpha: Annotated[float, _option(DATA, "Concentration of the dirichlet split.")] = 0.5,
    labels: Annotated[int, _option(DATA, "Classes that a client has, in the labels split.", min=1)] = 2,
    by: Annotated[str | None, _option(DATA, "Sort rows by this column instead of the label.", False)] = None,
    participation: Annotated[
        str | None, _option(DATA, "Clients sampled a round: a number such as 5, or a share such as 0.5.", "all")
    ] = None,
    client_weights: Annotated[
        str | None, _option(DATA, "uniform, as in the paper, or size.", "size if the geometry is shared")
    ] = None,
    algorithm: Annotated[
        str,
        _option(
            METHOD,
            "ffgb; ffgb-c: clipped, for clients that differ; ffgb-l: Lipschitz, for regression; "
            "fedavg, fedprox, scaffold, mime: one net's parameters, averaged.",
        ),
    ] = "ffgb",
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
    mu: Annotated[
        float | None, _option(METHOD, "Tikhonov regularisation μ.", "0; ffgb-c: 0.001; ffgb-l: 1", min=0.0)
    ] = None,
    gamma: Annotated[float | None, _option(METHOD, "γ that clips are made for (ffgb-c).", "as measured")] = None,
    bound: Annotated[
        float | None, _option(METHOD, "B: ball to project onto (ffgb-c), or that labels must keep (ffgb-l).", "none")
    ] = None,
    lipschitz: Annotated[
        str,
        _option(METHOD, "L of the labels (ffgb-l): a number; max: their largest slope; auto: what predicts them best."),
    ] = "auto",
    extension: Annotated[
        str | None,
        _option(METHOD, "mcshane: through the labels; middle: or between them (ffgb-l).", "middle if L is auto"),
    ] = None,
    one_round: Annotated[
        bool | None,
        typer.Option(
            "--one-round/--many-rounds",
            help="All rounds in one exchange (ffgb-l): the same function.",
            rich_help_panel=METHOD,
            show_default="one-round",
        ),
    ] = None,
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
    distill: Annotated[
        str | None,
        _option(
            METHOD,
            "clients: each sends one learner for its K; rounds: all make one of the ensemble after each round (ffgb).",
            "no",
        ),
    ] = None,
    distill_rounds: Annotated[int, _option(METHOD, "Rounds of FedAvg that make one of the ensemble.", min=1)] = 20,
    momentum: Annotated[
        float | None, _option(METHOD, "Of local steps (fedavg, fedprox), or the server's (mime).", "0; mime: 0.9")
    ] = None,
    prox: Annotated[float, _option(METHOD, "Pull towards where the round began (fedprox).", min=0.0)] = 0.01,
    local_epochs: Annotated[
        int, _option(METHOD, "Passes over a client's rows instead of local steps (fedavg and the like).", "no", min=0)
    ] = 0,
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
    hidden: Annotated[str | None, _option(LEARNER, "Hidden sizes (mlp).", "32,32; ffgb-l: 64,64")] = None,
    oracle_steps: Annotated[
        int | None,
        _option(LEARNER, "Adam steps of an oracle call (mlp, cnn); the paper: 1000.", "200; ffgb-l: 400", min=1),
    ] = None,
    learning_rate: Annotated[
        float | None, _option(LEARNER, "Adam's step size (mlp, cnn).", "0.005; ffgb-l: 0.015")
    ] = None,
    batch: Annotated[
        str | None,
        _option(
            LEARNER, "Minibatch: points such as 128, or, for fedavg and the like, a share such as 0.2.", "128; 0.2"
        ),
    ] = None,
    depth: Annotated[int, _option(LEARNER, "Depth of trees (tree).")] = 4,
    precision: Annotated[str, _option(METHOD, "In which increments travel: float32, float16 or int8.")] = "float32",
    aggregate: Annotated[
        str, _option(METHOD, "mean; norm or trimmed: means that no client can pull far (features, linear, fedavg …).")
    ] = "mean",
    trim: Annotated[float, _option(METHOD, "The share of answers put aside at either end (trimmed).")] = 0.2,
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
    for name, read in (
        ("data", tuple),
        ("hidden", _sizes),
        ("participation", partial(_number, name="--participation", what="clients")),
        ("lipschitz", _steepness),
        ("batch", partial(_number, name="--batch", what="points")),
    ):
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


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="ffgb, ffgb:mlp, fedavg:mlp, scaffold:cnn, …: two or more.")],
    data: Annotated[list[str] | None, typer.Option(help="As for train.", show_default="digits")] = None,
    target: Annotated[str | None, typer.Option(help="As for train.")] = None,
    clients: Annotated[int | None, typer.Option(help="As for train.", show_default="20, or the sites", min=1)] = None,
    split: Annotated[str | None, typer.Option(help="As for train.", show_default="similarity, or natural")] = None,
    similarity: Annotated[float, typer.Option(help="As for train.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="As for train.")] = 0.5,
    labels: Annotated[int, typer.Option(help="As for train.", min=1)] = 2,
    participation: Annotated[str | None, typer.Option(help="As for train.", show_default="all")] = None,
    budget: Annotated[str, typer.Option(help="rounds=, models=, bytes= or seconds=, of every method.")] = "rounds=20",
    unit: Annotated[str, typer.Option(help="What a model is: mlp, cnn, or a number of parameters.")] = "mlp",
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="The first.", min=0)] = 0,
    tuned: Annotated[
        bool, typer.Option("--tune/--no-tune", help="Find every method's step size by the same rule first.")
    ] = True,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.", show_default="one a core", min=1)] = None,
    out: Annotated[Path, typer.Option(help="The folder; what is there goes on.")] = Path("compared"),
    as_json: JSON = False,
) -> None:
    """Several methods on one split and one budget: a table, a picture, compare.json."""
    from ffgb import plots
    from ffgb.compare import UNITS, Budget, Method
    from ffgb.compare import compare as run_comparison
    from ffgb.config import Config

    if len(methods) < 2:
        raise FFGBError("a comparison needs two methods or more")
    if unit not in UNITS and not (unit.isdigit() and int(unit)):
        raise FFGBError(f"--unit is mlp, cnn or a number of parameters, not {unit!r}")
    dealt: dict[str, Any] = {"clients": clients, "split": split, "similarity": similarity, "alpha": alpha}
    dealt |= {"labels": labels, "seed": seed}
    if participation is not None:
        dealt["participation"] = _number(participation, "--participation", "clients")
    base = Config(data=tuple(data or ("digits",)), target=target, **dealt)
    with _goes_on(out), Console(stderr=True).status("comparing") as status:
        found = run_comparison(
            *([Method.read(m) for m in methods], base, Budget.read(budget), out),
            seeds=seeds,
            tuned=tuned,
            unit=UNITS.get(unit) or int(unit),
            jobs=jobs,
            on_news=lambda text: status.update(f"comparing: {text}"),
        )
    try:
        plots.compare(out / "compare.png", found)
    except FFGBError as error:
        print(f"ffgb: {error}", file=sys.stderr)  # the numbers are there all the same
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    _print_rows(
        [
            {
                "method": m["method"],
                "step size": "" if m["step_size"] is None else f"{m['step_size']:g}",
                m["score"].replace("_", " "): f"{m['mean'][m['score']]:.4f} ± {m['spread']:.4f}",
                "rounds": f"{m['mean']['rounds']:g}",
                "models": f"{m['mean']['models']:,.1f}",
                "traffic": _bytes(m["mean"]["bytes"]),
                "seconds": f"{m['mean']['seconds']:.1f}",
            }
            for m in found["methods"]
        ]
    )
    print(f"mean ± standard deviation of {seeds} seeds; models of {found['unit']:,} parameters; all of it in {out}")


@app.command()
def tune(
    data: Annotated[list[str] | None, typer.Option(help="As for train.", show_default="digits")] = None,
    target: Annotated[str | None, typer.Option(help="As for train.")] = None,
    clients: Annotated[int | None, typer.Option(help="As for train.", show_default="20, or the sites", min=1)] = None,
    split: Annotated[str | None, typer.Option(help="As for train.", show_default="similarity, or natural")] = None,
    similarity: Annotated[float, typer.Option(help="As for train.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="As for train.")] = 0.5,
    labels: Annotated[int, typer.Option(help="As for train.", min=1)] = 2,
    algorithm: Annotated[str, typer.Option(help="As for train.")] = "fedavg",
    learner: Annotated[str, typer.Option(help="As for train.")] = "mlp",
    local_steps: Annotated[int | None, typer.Option(help="As for train.", show_default="by method", min=1)] = None,
    step_size: Annotated[
        float | None, typer.Option(help="The middle of what is tried.", show_default="by method")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds before the first half is dropped.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="All randomness comes from it.", min=0)] = 0,
    as_json: JSON = False,
) -> None:
    """The best step size of a method, by successive halving on rows that clients set aside."""
    from ffgb.config import Config
    from ffgb.tuning import tune as run_tuning

    dealt: dict[str, Any] = {"clients": clients, "split": split, "similarity": similarity, "alpha": alpha}
    dealt |= {"labels": labels, "seed": seed}
    method: dict[str, Any] = {"algorithm": algorithm, "learner": learner, "local_steps": local_steps}
    config = Config(data=tuple(data or ("digits",)), target=target, step_size=step_size, **dealt, **method)
    with Console(stderr=True).status("tuning") as status:

        def tell(score: dict[str, Any]) -> None:
            status.update(f"tuning: step size {score['step_size']:g}, {score['rounds']} rounds")

        found = run_tuning(config, rounds, on_score=tell)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), allow_nan=False))
        return
    shown = [
        {**s, **{k: "diverged" if s[k] is None else f"{s[k]:.4f}" for k in ("score", "loss")}} for s in found.scores
    ]
    _print_rows(shown)
    print(f"best: --step-size {found.step_size:g}, after {found.rounds} rounds of training in all")
    if found.edge:
        print("it is the smallest or largest that was tried: repeat with --step-size there")


@app.command()
def distill(
    run: Annotated[Path, typer.Argument(help="A run directory with an ensemble.")],
    by: Annotated[
        str, typer.Option(help="server: at points it has; clients: by FedAvg, at theirs, when it has none.")
    ] = "server",
    data: Annotated[
        list[str] | None, typer.Option(help="The server's points, files without labels.", show_default="the run's own")
    ] = None,
    steps: Annotated[int, typer.Option(help="Adam steps of the fit (server).", min=1)] = 10_000,
    rounds: Annotated[int, typer.Option(help="Rounds of FedAvg (clients).", min=1)] = 300,
    step_size: Annotated[float, typer.Option(help="Its step size (clients).")] = 0.3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to.", show_default="distilled.safetensors in the run")
    ] = None,
    as_json: JSON = False,
) -> None:
    """One learner in place of an ensemble, by its values at points without labels."""
    from ffgb.ensembles import distill_run
    from ffgb.runs import Run

    output = output or run / "distilled.safetensors"
    with Console(stderr=True).status("distilling"):
        found = distill_run(*(Run.open(run), output, by, data or ()), steps=steps, rounds=rounds, step_size=step_size)
    print(json.dumps(found, allow_nan=False)) if as_json else _print_change(found, output)


@app.command()
def reweight(
    run: Annotated[Path, typer.Argument(help="A run directory with an ensemble.")],
    rounds: Annotated[int, typer.Option(help="Rounds of mirror descent.", min=1)] = 50,
    step_size: Annotated[float, typer.Option(help="Its step size.")] = 0.03,
    sampled: Annotated[float, typer.Option(help="The share of the learners that a round looks at.")] = 1.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to.", show_default="reweighted.safetensors in the run")
    ] = None,
    as_json: JSON = False,
) -> None:
    """FedBoost: how much each learner of an ensemble should count, by the clients' labels."""
    from ffgb.ensembles import reweight_run
    from ffgb.runs import Run

    output = output or run / "reweighted.safetensors"
    with Console(stderr=True).status("reweighting") as status:
        found = reweight_run(
            *(Run.open(run), output),
            rounds=rounds,
            step_size=step_size,
            sampled=sampled,
            on_round=lambda line: status.update(f"round {line['round']} of {rounds}: {_score(line)}"),
        )
    print(json.dumps(found, allow_nan=False)) if as_json else _print_change(found, output)


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="fig1, fig2a, fig2b, fig3, fig4 (the paper's), theory, distillation, ablations, niid, or all."
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="full: the paper's, hours; reduced (fig1): fewer steps; small: minutes, to look at.")
    ] = "full",
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; what is there is not computed again.", show_default="reproduced"),
    ] = None,
) -> None:
    """Repeat an experiment: numbers, a table and a picture.  Started again, it goes on where it was stopped."""
    from rich.markdown import Markdown

    from ffgb.reproduce import experiments
    from ffgb.reproduce import reproduce as run_experiment

    out = out or Path("reproduced" if scale == "full" else f"reproduced-{scale}")
    console = Console(stderr=True)
    for name in experiments() if experiment == "all" else [experiment]:
        with _goes_on(out), console.status("starting") as status:
            table = run_experiment(name, scale, out, lambda text, name=name: status.update(f"{name}: {text}"))  # type: ignore[misc]
        if sys.stdout.isatty():
            Console().print(Markdown(table))
        else:
            print(table, end="")
    print(f"numbers and pictures: {out}", file=sys.stderr)


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
    from ffgb.deploy import Service
    from ffgb.deploy import serve as run_server
    from ffgb.runs import Run

    _tls_or_not(tls, insecure)
    if not (out / "config.json").exists():
        Run.must_be_free(out)
    settings = _settings(config)
    service = Service(clients, minimum or clients, host, port, tls, deadline, patience)
    with _goes_on(out), Console(stderr=True).status("starting") as status:
        run_server(*(service, settings, out, target, task), lambda text: _tell(status, text))
    summary = Run.open(out).summary
    print(json.dumps(summary, allow_nan=False)) if as_json else _print_summary(summary, out)


@app.command()
def client(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[Path, typer.Option(help="This site's file: CSV, Parquet or NPZ.")],
    target: Annotated[str | None, typer.Option(help="The column to predict, for CSV and Parquet files.")] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression.", show_default="by the target")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What others call this site.", show_default="the file's name")
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
    from ffgb.sites import Site

    if not dry_run:
        _tls_or_not(tls, insecure)
    if tls is not None and key is None:
        raise FFGBError("with --tls a site needs its own --key, which the server's operator registers")
    for file in (path for path in (key, tls and tls / "ca.crt") if path is not None):
        if not Path(file).exists():
            raise FFGBError(f"{file} is not there")
    site = Site(name or data.stem, data.absolute(), target, task)
    said = site.describe()  # what is wrong with the file is said here, to its owner
    print(f"site {site.name}: {said.rows:,} rows to train with, {said.test_rows:,} held out, "
          f"{len(said.columns) or 'image'} columns", file=sys.stderr)  # fmt: skip
    rehearsal = rehearse(site, _settings(config), target, task)
    _print_sent(rehearsal)
    if dry_run:
        return
    if not yes and not _agreed_before(site.path, server, rehearsal.kinds):
        if not sys.stdin.isatty() or not typer.confirm("Send this, in every training with this server?"):
            raise FFGBError("nothing was sent; agree with --yes, or answer the question in a terminal")
        _agreed_before(site.path, server, rehearsal.kinds, remember=True)
    kinds = rehearsal.kinds - ({"GramOf", "SketchOf"} if no_geometry else set())
    node = {"data": str(site.path), "name": site.name, "agreed": " ".join(sorted(kinds))}
    more = {"target": target, "task": task, "log": None if log is None else str(log.absolute())}
    node |= {k: v for k, v in more.items() if v is not None}
    stopped: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: stopped.append(number)) for n in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        attend(server, node, tls, key, lambda text: print(f"ffgb: {text}", file=sys.stderr), lambda: bool(stopped))
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


@data_app.command("heterogeneity")
def data_heterogeneity(
    data: Annotated[
        list[str] | None, typer.Option(help="A named set, or a client's file: repeat it.", show_default="digits")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target column, for CSV and Parquet files.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients N.", show_default="20, or the natural sites", min=1)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="similarity, dirichlet, labels, iid or natural.",
            show_default="natural if there are sites, else similarity",
        ),
    ] = None,
    similarity: Annotated[float, typer.Option(help="Share of the rows dealt out evenly.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Concentration of the dirichlet split.")] = 0.5,
    labels: Annotated[int, typer.Option(help="Classes that a client has, in the labels split.", min=1)] = 2,
    by: Annotated[str | None, typer.Option(help="Sort rows by this column instead of the label.")] = None,
    seed: Annotated[int, typer.Option(help="All randomness comes from it.", min=0)] = 0,
    method: Annotated[str, typer.Option(help="auto (exact if that takes seconds), exact or estimate.")] = "auto",
    points: Annotated[int, typer.Option(help="Measure at most so many points a client.", min=1)] = 1000,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture of it, to this PNG file.")] = None,
    as_json: JSON = False,
) -> None:
    """How different the clients' points are: total variation and Wasserstein distances, as the paper has them."""
    from ffgb import plots
    from ffgb.config import Config, load_data
    from ffgb.data import partition
    from ffgb.data.heterogeneity import measure

    if plot is not None:
        plots.check(plot)
    dealt: dict[str, Any] = {"similarity": similarity, "alpha": alpha, "labels": labels, "by": by, "seed": seed}
    config = Config(data=tuple(data or ("digits",)), target=target, clients=clients, split=split, **dealt)
    dataset = load_data(config)
    config = config.resolved(dataset)
    assert config.split is not None
    parts = partition(dataset, config.split, config.clients, **dealt)
    held_labels = [dataset.y[rows] for rows in parts]
    found = measure([dataset.x[rows] for rows in parts], held_labels, method, points, seed)
    names = dataset.sites if config.split == "natural" else [str(i) for i in range(len(parts))]
    bins, counts, held = _label_counts(held_labels, dataset.classes)
    if plot is not None:
        what = "class" if dataset.classes else "target"
        plots.heterogeneity(plot, found, counts, bins, clients=names, what=what)
    if as_json:
        settings = {"data": list(config.data), "split": config.split, "seed": seed, "clients": list(names)}
        print(json.dumps({**settings, "bins": bins, "counts": counts.tolist(), **found.to_json()}, allow_nan=False))
        return
    distances = {"TV to all": found.tv, "W₁ to all": found.w1, "W₂ to all": found.w2}
    shown = {name: values.tolist() for name, values in distances.items() if values is not None}
    rows = [{"client": n, "points": p, **h} for n, p, h in zip(names, found.points, held, strict=True)]
    _print_rows([{**row, **{name: values[i] for name, values in shown.items()}} for i, row in enumerate(rows)])
    lines = (
        ("ω_TV", found.omega_tv, "mean TV to all: FFGB.C ends within a radius that grows with it (Theorem 2)"),
        ("ω_W₁", found.omega_w1, "mean W₁ to all: FFGB.L ends within a radius that grows with it (Theorem 3)"),
        ("W₂²", found.w2_squared, "mean over pairs of clients: in G² of Theorem 3"),
        ("D", found.D, "every point of a client has one of each other client as near as this (Assumption 3)"),
        ("B", found.B, "no target is larger, whatever its sign, in its own units (Assumption 3)"),
    )
    print()
    for symbol, value, meaning in lines:
        if value is not None:
            print(f"{symbol:5} {value:9.4f}  {meaning}")
    how = {"exact": "exact", "classifier": "a classifier's lower bound", "sliced": "sliced, a lower bound"}
    print(
        f"\nTV: {how[found.tv_method]}; W₁: {how[found.w1_method]}; from {sum(found.measured):,} of "
        f"{sum(found.points):,} points.  Lower bounds are estimates, up to noise.",
        "Samples differ by chance, too: --split iid shows how much.",
        sep="\n",
    )
    if dataset.x.ndim == 2:
        print("Distances are between columns of unit variance.")
    if found.tv_method != "exact" and (few := sum(n < FEW for n in found.measured)):
        print(f"{few} clients have fewer than {FEW} points: a classifier learns nothing about them, and TV says 0.")


def _label_counts(labels: Sequence[Any], classes: Sequence[str]) -> tuple[list[str], Any, list[dict[str, Any]]]:
    """Classes, or bins of the (first) target; how many points of each client are in them; and that in a few words."""
    import numpy as np

    if classes:
        counts = np.array([np.bincount(y, minlength=len(classes)) for y in labels])
        shares = counts / counts.sum(axis=1, keepdims=True)
        most = [{"classes": int((s > 0).sum()), "most": f"{classes[s.argmax()]} ({s.max():.0%})"} for s in shares]
        return list(classes), counts, most
    firsts = [y.reshape(len(y), -1)[:, 0] for y in labels]
    edges = np.histogram_bin_edges(np.concatenate(firsts), 12)
    counts = np.array([np.histogram(y, edges)[0] for y in firsts])
    bins = [f"{middle:.3g}" for middle in (edges[1:] + edges[:-1]) / 2]
    return bins, counts, [{"targets from": float(y.min()), "to": float(y.max())} for y in firsts]


def _print_sent(rehearsal: Any) -> None:
    """What leaves a site: once, and in each round."""
    rows = []
    for when, messages in (("once", rehearsal.once), ("each round", rehearsal.each)):
        for sent in messages:
            arrays = ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in sent.arrays) or "no arrays"
            rows.append({"when": when, "what": sent.what, "arrays": arrays, "bytes": sent.bytes})
    _print_rows(rows)
    print("With the classes of all sites together, arrays may have more columns.", file=sys.stderr)


def _agreed_before(data: Path, server: str, kinds: set[str], *, remember: bool = False) -> bool:
    """Has the owner of this file agreed to send this to this server?  It is kept in the user's own folder."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file, what = base / "ffgb" / "agreed.json", [str(data), server, sorted(kinds)]
    known = json.loads(file.read_text()) if file.exists() else []
    if remember and what not in known:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([*known, what]))
    return what in known


def _tls_or_not(tls: Path | None, insecure: bool) -> None:
    if (tls is None) != insecure:
        raise FFGBError("give --tls DIR (make one with: ffgb tls init DIR), or --insecure to try it on one machine")


def _tell(status: Any, text: str) -> None:
    """On a terminal in one place, elsewhere line by line."""
    status.update(text)
    if not sys.stderr.isatty():
        print(f"ffgb: {text}", file=sys.stderr, flush=True)


def _settings(file: Path | None) -> dict[str, Any]:
    """The options of train in a TOML file, by their names."""
    import tomllib

    from ffgb.config import Config

    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FFGBError(f"{file} cannot be read as TOML: {error}") from error
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = {field.name for field in dataclasses.fields(Config)} - {"data", "target", "task", "clients", "split"}
    if strange := sorted(values.keys() - known):
        raise FFGBError(f"{file} has {strange[0]!r}, which is no option here; see: ffgb train --help")
    try:
        Config(data="sites", **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})  # type: ignore[arg-type]
    except TypeError as error:
        raise FFGBError(f"{file} has a value of the wrong kind: {error}") from error
    return {"data": ["sites"], **values}


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


def _steepness(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _number(text: str, name: str, what: str) -> int | float:
    """5 is a number of clients or points, 0.5 and 1.0 are shares."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise FFGBError(f"{name} {text!r} is neither a number of {what} such as 5 nor a share such as 0.5")


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
def _goes_on(out: Path) -> Iterator[None]:
    """Work that is kept part by part: Ctrl-C or a supervisor's SIGTERM ends it, also where a shell had it ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        print(f"ffgb: stopped; the same command goes on from what is in {out}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        self.task = self.progress.add_task("train", total=config.exchanges, text="set up")

    def setup(self, what: str, done: int, clients: int) -> None:
        if self.task is not None:
            self.progress.update(self.task, text=f"set up: {what}, {done} of {clients} clients")

    def round(self, metrics: dict[str, Any]) -> None:
        if self.task is None:
            return
        models = metrics["models_up"] + metrics["models_down"]
        gamma = "" if metrics["gamma_median"] is None else f"  γ {metrics['gamma_median']:.2f}"
        text = f"{_score(metrics)}{gamma}  {models:,.0f} models"
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
            f"[bold]{_score(summary)}[/bold] after {summary['rounds']} round{'s' * (summary['rounds'] != 1)} with "
            f"{summary['clients']} clients; "
            f"{summary['communication_models']:,.1f} models exchanged a client "
            f"({_bytes(summary['bytes_up'] + summary['bytes_down'])}), {summary['seconds_total']:.1f} s",
            **plain,
        )
    console.print(f"run directory: {out}", **plain)


def _print_change(found: dict[str, Any], output: Path) -> None:
    """A model before and after, and what that cost."""
    _print_rows([{"model": name, **found[name]} for name in ("before", "after")])
    faster = f"predicts {found['speedup']:,.0f} times as fast; " if found["speedup"] > 1.5 else ""
    traffic = f"{found['models']:,.1f} models ({_bytes(found['bytes'])}) exchanged a client"
    print(f"{faster}{traffic if found['bytes'] else 'nothing was exchanged'}; {output}")


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
