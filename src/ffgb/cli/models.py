"""What is done with a model that was trained: `ffgb evaluate`, `predict`, `export`, `report`, `distill`, `reweight`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ffgb.cli.common import (
    JSON,
    app,
    in_bytes,
    print_change,
    print_rows,
    say,
    score_of,
    trust,
)
from ffgb.errors import FFGBError

if TYPE_CHECKING:
    from ffgb.runs.model import Model

RUN_FILES = ("config.json", "summary.json", "clients.json", "metrics.jsonl", "report.html")
"""What no export may take the place of, besides models."""
MODULE = Annotated[
    str | None,
    typer.Option(
        *("--learner", "--map"),
        help="package.module:name, if the run has such a learner or map: its code is imported and run here.",
    ),
]


SHORT = {
    "base_rate": "base",
    "average_precision": "AP",
    "calibration_intercept": "intercept",
    "calibration_slope": "slope",
}
"""Names of scores that fit above a column of numbers."""


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
    from ffgb.runs import evaluate as scoring
    from ffgb.runs.directory import Run

    trust(learner)
    scores = scoring.evaluate(Run.open(run), data or (), target)
    if as_json:
        print(json.dumps(scores, allow_nan=False))
    else:
        print_rows([{"part": name, **{SHORT.get(k, k): v for k, v in some.items()}} for name, some in scores.items()])


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory, or its model.safetensors.")],
    file: Annotated[
        Path, typer.Argument(help="CSV, Parquet or SQL with the training columns, or NPZ with an array x.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write CSV here instead of to the terminal.")
    ] = None,
    spreadsheet: Annotated[
        bool,
        typer.Option("--spreadsheet", help="Put ' before cells that a spreadsheet would run as a formula."),
    ] = False,
    learner: MODULE = None,
) -> None:
    """Predict a file's rows, as CSV: the class and its probabilities, or the value."""
    from ffgb.data.reading import PLAIN, Reading
    from ffgb.runs import evaluate as scoring
    from ffgb.runs.directory import Run
    from ffgb.runs.model import Model

    trust(learner)
    kept = (run / "config.json").exists()
    reading = Reading.of(Run.open(run).config).of_values if kept else PLAIN
    frame = scoring.predict(Model.load(run), file, reading)
    text = (scoring.for_spreadsheets(frame) if spreadsheet else frame).to_csv(index=False)
    if output is None and sys.stdout.isatty():
        for line in text.rstrip("\n").split("\n"):
            say(line)
    elif output is None:
        print(text, end="")
    else:
        output.write_text(text)
        say(f"{len(frame):,} predictions written to {output}", error=True)


@app.command()
def terms(
    run: Annotated[Path, typer.Argument(help="A run directory, or its model.safetensors.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write CSV here instead of to the terminal.")
    ] = None,
) -> None:
    """What each bin of each column adds to f, as CSV: the whole of an additive model."""
    from ffgb.runs.model import Model
    from ffgb.runs.terms import terms as terms_of

    frame = terms_of(Model.load(run))
    text = frame.to_csv(index=False)
    if output is None:
        for line in text.rstrip("\n").split("\n"):
            say(line)
    else:
        output.write_text(text)
        say(f"{len(frame):,} values written to {output}", error=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    onnx: Annotated[Path | None, typer.Option(help="Where to.", show_default="model.onnx in the run")] = None,
    card: Annotated[
        Path | None, typer.Option(help="Where the model card goes.", show_default="model-card.md beside the file")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Which file of the run: model.safetensors, distilled.safetensors, …")
    ] = "model.safetensors",
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """One ONNX file of the model with its preprocessing, checked against our own predictions, and a model card."""
    from ffgb.runs import onnx as exporting
    from ffgb.runs.card import card as make_card
    from ffgb.runs.directory import Run

    trust(learner)
    opened, onnx = Run.open(run), onnx or run / "model.onnx"
    exporting.must_be_writable(onnx)
    card = card or onnx.with_name("model-card.md")
    exporting.must_be_writable(card, "model-card.md")
    if onnx.resolve() == card.resolve():
        raise FFGBError(f"{onnx} cannot be both the ONNX file and the model card; choose another --card")
    for path in (onnx, card):
        _must_not_be_the_runs(path, run)
    loaded = _model_of(run, model)
    with Console(stderr=True).status("exporting"):
        made = exporting.checked(loaded)
        text = make_card(opened, loaded, (onnx, made.data), model)
        exporting.write({onnx: made.data, card: text.encode()})
    names = exporting.output_names(loaded)
    if as_json:
        found = {
            "onnx": str(onnx), "card": str(card), "model": model, "bytes": len(made.data),
            "difference": made.difference, "tried": made.tried, "outputs": names,
        }  # fmt: skip
        print(json.dumps(found, allow_nan=False))
        return
    say(f"{onnx}: {model}, {in_bytes(len(made.data))}; as our own predictions up to {made.difference:.0e}, in "
        f"onnxruntime, on {made.tried}")  # fmt: skip
    for name, given in names.items():
        if name != given:
            say(f"a column is called {name}, so that output is called {given}")
    say(f"model card: {card}")


def _model_of(run: Path, name: str) -> Model:
    """The run's model in this file."""
    from ffgb.runs.card import OWN
    from ffgb.runs.model import Model

    own = Model.load(run)
    if name == OWN:
        return own
    if not (run / name).is_file():
        raise FFGBError(
            f"there is no {name} in {run}; ffgb distill {run} makes distilled.safetensors, ffgb reweight {run} "
            "reweighted.safetensors"
        )
    found = Model.load(run / name)
    if (found.shape, found.classes, found.columns, found.table) != (own.shape, own.classes, own.columns, own.table):
        raise FFGBError(
            f"{run / name} has other columns or classes than the model of the run in {run}; name a file that "
            f"ffgb distill {run} or ffgb reweight {run} wrote"
        )
    return found


def _must_not_be_the_runs(path: Path, run: Path, *may: str) -> None:
    """Files of the run itself are not written over, but for these."""
    own = path.suffix == ".safetensors" or path.name in RUN_FILES
    if own and path.exists() and path.resolve().parent == run.resolve() and path.name not in may:
        raise FFGBError(f"{path} is a file of the run itself; choose another place")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are laid side by side.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to.", show_default="report.html in the run, or here for several"),
    ] = None,
) -> None:
    """A page about a run, or about several side by side: one HTML file that needs no network."""
    from ffgb import report as reporting

    output = output or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    reporting.write(runs, output)
    say(str(output))


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
    step_size: Annotated[
        float | None, typer.Option(help="Its step size (clients).", show_default="by learner, 0.3 for an mlp")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to.", show_default="distilled.safetensors in the run")
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """One learner in place of an ensemble, by its values at points without labels."""
    from ffgb.runs.directory import Run
    from ffgb.runs.onnx import must_be_writable
    from ffgb.runs.postprocess import distill_run

    trust(learner)
    output = output or run / "distilled.safetensors"
    must_be_writable(output, "distilled.safetensors")
    _must_not_be_the_runs(output, run, "distilled.safetensors")
    with Console(stderr=True).status("distilling"):
        found = distill_run(*(Run.open(run), output, by, data or ()), steps=steps, rounds=rounds, step_size=step_size)
    print(json.dumps(found, allow_nan=False)) if as_json else print_change(found, output)


@app.command()
def reweight(
    run: Annotated[Path, typer.Argument(help="A run directory with an ensemble.")],
    rounds: Annotated[int, typer.Option(help="Rounds of mirror descent.", min=1)] = 50,
    step_size: Annotated[float, typer.Option(help="Its step size.")] = 0.03,
    sampled: Annotated[float, typer.Option(help="The share of the learners that a round looks at.")] = 1.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to.", show_default="reweighted.safetensors in the run")
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """FedBoost: how much each learner of an ensemble should count, by the clients' labels."""
    from ffgb.runs.directory import Run
    from ffgb.runs.onnx import must_be_writable
    from ffgb.runs.postprocess import reweight_run

    trust(learner)
    output = output or run / "reweighted.safetensors"
    must_be_writable(output, "reweighted.safetensors")
    _must_not_be_the_runs(output, run, "reweighted.safetensors")
    with Console(stderr=True).status("reweighting") as status:
        found = reweight_run(
            *(Run.open(run), output),
            rounds=rounds,
            step_size=step_size,
            sampled=sampled,
            on_round=lambda line: status.update(f"round {line['round']} of {rounds}: {score_of(line)}"),
        )
    print(json.dumps(found, allow_nan=False)) if as_json else print_change(found, output)
