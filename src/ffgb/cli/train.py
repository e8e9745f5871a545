"""`ffgb train`."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ffgb.cli.common import (
    INTERRUPTED,
    Display,
    app,
    interruptible,
    number,
    print_summary,
    settings_of,
    was_given,
)
from ffgb.errors import FFGBError


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
    categories: Annotated[
        str | None, _option(DATA, "Columns that are categories though they look like numbers: cp,thal.", False)
    ] = None,
    rare: Annotated[int, _option(DATA, "Rows that a site must have of a category before it names it.", min=1)] = 10,
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
        str | None,
        _option(DATA, "uniform, as in the paper, or size.", "size if the geometry is shared, or by fedavg …"),
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
    hidden: Annotated[str | None, _option(LEARNER, "Hidden sizes (mlp, cnn).", "32,32; ffgb-l: 64,64")] = None,
    augment: Annotated[
        bool,
        typer.Option(
            "--augment",
            help="Shift images by up to 4 pixels and mirror them at random in every step (cnn by fedavg and the like).",
            rich_help_panel=LEARNER,
        ),
    ] = False,
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
    engine: Annotated[
        str, _option(RUN, "local: this machine's cores; flower: Flower's simulation, for clusters under Ray.")
    ] = "local",
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A TOML file with these options; what is given here comes first.",
            rich_help_panel=RUN,
            show_default=False,
        ),
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
    given = {name: value for name, value in ctx.params.items() if name in settings and was_given(ctx, name)}
    for name, read in (
        ("data", tuple),
        ("categories", lambda text: tuple(name.strip() for name in text.split(","))),
        ("hidden", _sizes),
        ("participation", partial(number, name="--participation", what="clients")),
        ("lipschitz", _steepness),
        ("batch", partial(number, name="--batch", what="points")),
    ):
        if name in given:
            given[name] = read(given[name])
    given = settings_of(settings_file) | given
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
        with interruptible() as interrupted, Display(quiet=as_json) as display:
            result = run_training(
                *(config, out),
                resume=resume,
                workers=workers,
                engine=engine,
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
        print_summary(result.summary, out)


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


def _stopped(out: Path) -> NoReturn:
    if (out / "config.json").exists():
        print(f"ffgb: stopped; continue with: ffgb train --resume --out {out}", file=sys.stderr)
    else:
        print("ffgb: stopped before a round was finished; nothing was written", file=sys.stderr)
    sys.exit(INTERRUPTED)


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


def _shown(value: Any) -> str:
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _new_directory(config: Any) -> Path:
    name = Path(config.data[0]).stem if config.files else config.data[0].replace(":", "-")
    number = 1
    while (out := Path("runs") / f"{name}-{config.algorithm}-{config.learner.replace(':', '.')}-{number}").exists():
        number += 1
    return out
