"""What is done with a model that was trained: `ffgb evaluate`, `predict`, `export`, `report`, `distill`, `reweight`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ffgb.cli.common import (
    JSON,
    app,
    numbers_of,
    print_change,
    print_rows,
    say,
    trust,
    words,
)
from ffgb.core.disclosure import LEAST
from ffgb.core.statistics import LEVEL
from ffgb.errors import FFGBError
from ffgb.runs.headline import in_bytes, score_of

if TYPE_CHECKING:
    from ffgb.runs.directory import Run
    from ffgb.runs.model import Model

RUN_FILES = (
    *("config.json", "summary.json", "clients.json", "metrics.jsonl", "report.html"),
    *("fit.json", "conformal.json", "effects.json", "worth.json"),
)
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
    "integrated_brier": "Brier",
    "brier_gain": "less than no model",
    "c_index": "c-index",
    "average_precision": "AP",
    "calibration_intercept": "intercept",
    "calibration_slope": "slope",
}
"""Names of scores that fit above a column of numbers."""
OF_TIMES = ("c_index", "integrated_brier", "brier_gain")
WITH_INTERVALS = ("auc", "accuracy", "brier", "calibration_slope", "rmse", "r2", *OF_TIMES)
"""Scores whose intervals a terminal has room for; JSON has all."""


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        list[str] | None, typer.Option(help="Score the model on these files instead of the run's test rows.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The files' target column, if the run has none.")] = None,
    by: Annotated[str, typer.Option(help="Columns whose subgroups are scored: sex,age.")] = "",
    threshold: Annotated[float, typer.Option(help="The probability from which a row is called positive.")] = 0.5,
    least: Annotated[int, typer.Option(help="Rows of each class that a site or a subgroup must have.", min=1)] = LEAST,
    level: Annotated[float, typer.Option(help="Level of the confidence intervals.")] = LEVEL,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Score a run's model on its test rows, or on files of your own: scores, intervals, calls, subgroups."""
    from ffgb.runs import evaluate as scoring
    from ffgb.runs.directory import Run
    from ffgb.runs.fit import fit
    from ffgb.runs.model import Model

    trust(learner)
    opened, model = Run.open(run), Model.load(run)
    rows = scoring.held_out(opened, model, data or (), target)
    scores = scoring.scores_of_parts(model, rows)
    found = fit(model, rows, by=words(by), threshold=threshold, least=least, level=level)
    if as_json:
        whole = {**found, "parts": {name: part for name, part in found["parts"].items() if name != "all"}}
        scores["all"] |= {"intervals": found["parts"]["all"]["scores"], "fit": whole}
        print(json.dumps(scores, allow_nan=False))
        return
    print_rows([{"part": name, **{SHORT.get(k, k): v for k, v in some.items()}} for name, some in scores.items()])
    _print_fit(found)


def _print_fit(found: dict[str, Any]) -> None:
    """Intervals by part, calls at the threshold, and subgroups."""

    def line(head: dict[str, str], part: dict[str, Any]) -> dict[str, str]:
        some = {name: score for name, score in part["scores"].items() if name in WITH_INTERVALS}
        shown = {SHORT.get(name, name): _interval(score) for name, score in some.items()}
        return {**head, "rows": f"{part['rows']:,}", **shown}

    def table(rows: list[dict[str, str]]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        print_rows([{name: row.get(name, "–") for name in names} for row in rows])

    say("")
    say(f"with intervals of {100 * found['level']:g} %")
    table([line({"part": name}, part) for name, part in found["parts"].items()])
    if any(part.get("horizons") for part in found["parts"].values()):
        say("")
        say("events by a time, expected and come")
        table(
            [
                {"part": name, "until": f"{at['time']:.4g}", "expected": f"{at['expected']:.3f}",
                 "came": _interval(at["observed"])}
                for name, part in found["parts"].items()
                for at in part["horizons"]
            ]
        )  # fmt: skip
    if (calls := found.get("confusion")) is not None:
        say("")
        say(f"calls of {found['classes'][1]} from a probability of {calls['threshold']:g}")
        counts = {
            "true_positives": "right", "false_positives": "wrong", "false_negatives": "missed",
            "true_negatives": "rightly not",
        }  # fmt: skip
        table(
            [
                {"part": name, **{word: f"{part[k]:,}" for k, word in counts.items()},
                 **{k: _interval(part[k]) for k in ("sensitivity", "specificity")}}
                for name, part in calls["parts"].items()
            ]
        )  # fmt: skip
    for group in found["subgroups"]:
        say("")
        table([line({group["column"]: part["group"]}, part) for part in group["groups"]])
    for sentence in found["left_out"]:
        say(f"left out: {sentence}")


def _interval(score: dict[str, float | None]) -> str:
    if score["low"] is None:
        return f"{score['value']:.3f}"
    return f"{score['value']:.3f} ({score['low']:.3f}–{score['high']:.3f})"


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
    coverage: Annotated[
        float | None, typer.Option(help="Add sets of classes, or intervals, that hold the truth with this chance.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="The site that the rows are of.", show_default="any")] = None,
    times: Annotated[
        str, typer.Option(help="Add the chance to have no event until these times: 365,730 (models of times).")
    ] = "",
    learner: MODULE = None,
) -> None:
    """Predict a file's rows, as CSV: the class and its probabilities, or the value."""
    from ffgb.data.reading import PLAIN, Reading
    from ffgb.runs import conformal, fit_times
    from ffgb.runs import evaluate as scoring
    from ffgb.runs.directory import Run
    from ffgb.runs.model import Model

    trust(learner)
    kept = (run / "config.json").exists()
    reading = Reading.of(Run.open(run).config).of_values if kept else PLAIN
    threshold = None if coverage is None else conformal.load(run).threshold(coverage, site)
    ends = numbers_of("times", times)
    baseline = fit_times.load(run) if ends else None
    hazards = None if baseline is None else baseline.known(site)
    frame = scoring.predict(Model.load(run), file, reading, threshold, hazards, ends)
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
    """Print what each bin of each column adds to f, as CSV: the whole of an additive model."""
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
def explain(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    file: Annotated[
        Path | None, typer.Argument(help="Rows of which you want to know what each column adds (sums of trees).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write CSV here instead of to the terminal.")
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Measure how much each column matters, and how; with FILE, print what each column adds at a row."""
    from ffgb import report as reporting
    from ffgb.runs import explain as explaining
    from ffgb.runs.directory import Run

    trust(learner)
    opened = Run.open(run)
    if file is not None:
        frame = explaining.contributions_of(opened, file)
        text = frame.to_json(orient="records") if as_json else frame.to_csv(index=False)
        if output is None:
            for line in text.rstrip("\n").split("\n"):
                say(line)
        else:
            output.write_text(text)
            say(f"{len(frame):,} rows written to {output}", error=True)
        return
    with Console(stderr=True).status("shuffling columns"):
        found = explaining.explain(opened)
    opened.write_json(explaining.FILE, found)
    if (run / "metrics.jsonl").exists():
        reporting.write([run], run / "report.html")
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    if found["importance"]:
        _print_importance(opened, found)
    if found.get("line") is not None:
        _print_line(found["line"])
    say(f"shapes are in {run / explaining.FILE} and in {run / 'report.html'}")


def _print_importance(opened: Run, found: Mapping[str, Any]) -> None:
    squared = opened.config.get("task") == "regression" and opened.config.get("loss") != "cox"
    what = "squared error" if squared else "loss"
    rows = [{"column": row["column"], f"rise of the {what}": _interval(row)} for row in found["importance"]]
    print_rows(rows)
    say(f"if a column is shuffled within each site, on {'held-out' if found['held_out'] else 'training'} rows")


def _print_line(line: Mapping[str, Any]) -> None:
    """Coefficients in the units of the columns."""
    outputs = ["coefficient"] if line["outputs"] == [""] else line["outputs"]
    print_rows(
        [
            {"column": row["column"]}
            | {name: f"{value:.5g}" for name, value in zip(outputs, row["values"], strict=True)}
            for row in line["coefficients"]
        ]
    )
    say(f"coefficients of {line['unit']}, by one unit of a column.  {line['errors']}")


@app.command()
def worth(
    run: Annotated[Path, typer.Argument(help="A run directory whose sites are files, or are known by its data set.")],
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Measure what training together is worth: each site alone, and all sites without each one."""
    from ffgb import report as reporting
    from ffgb.runs import worth as comparing
    from ffgb.runs.directory import Run

    trust(learner)
    opened = Run.open(run)
    with Console(stderr=True).status("training") as status:
        found = comparing.worth(opened, lambda what: status.update(f"training {what}"))
    opened.write_json(comparing.FILE, found)
    reporting.write([run], run / "report.html")
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    names = {"alone": "alone", "without": "without it", "others": "others without it"}
    rows = [
        {"site": row["site"], "rows": row["rows"], "together": "–" if row["together"] is None else row["together"],
         **{head: "–" if row[name] is None else _interval(row[name]) for name, head in names.items()}}
        for row in found["sites"]
    ]  # fmt: skip
    print_rows(rows)
    say(f"together is the mean {found['loss']} at the site's held-out rows; the others are how much it rises")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    onnx: Annotated[Path | None, typer.Option(help="The file to write.", show_default="model.onnx in the run")] = None,
    card: Annotated[
        Path | None, typer.Option(help="The model card to write.", show_default="model-card.md beside the file")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Which file of the run: model.safetensors, distilled.safetensors, …")
    ] = "model.safetensors",
    coverage: Annotated[
        float | None, typer.Option(help="Add sets of classes, or intervals, that hold the truth with this chance.")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="The site whose rows they are for, for --coverage.", show_default="each site")
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Write the model with its preprocessing as one ONNX file, check its predictions, and write a model card."""
    from ffgb.deployment.site_report import is_kept
    from ffgb.runs import conformal
    from ffgb.runs import onnx as exporting
    from ffgb.runs.card import OWN
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
    loaded, covered = _model_of(run, model), None
    if coverage is not None:
        if model != OWN:
            raise FFGBError(f"--coverage is of the run's own model ({OWN}), and not of {model}; leave one of them out")
        threshold = conformal.load(run).threshold(coverage, site)
        covered = exporting.Covered(threshold, f"{coverage:g} at {'each site' if site is None else site}")
    with Console(stderr=True).status("exporting"):
        made = exporting.checked(loaded, None, covered)
        # a site has the model, and not the run that a card tells of
        text = None if is_kept(run) else make_card(opened, loaded, (onnx, made.data), model)
        exporting.write({onnx: made.data} if text is None else {onnx: made.data, card: text.encode()})
    names = exporting.output_names(loaded, covered)
    if as_json:
        found = {
            "onnx": str(onnx), "card": str(card) if text is not None else None, "model": model, "bytes": len(made.data),
            "difference": made.difference, "tried": made.tried, "outputs": names,
        }  # fmt: skip
        print(json.dumps(found, allow_nan=False))
        return
    say(f"{onnx}: {model}, {in_bytes(len(made.data))}; as our own predictions up to {made.difference:.0e}, in "
        f"onnxruntime, on {made.tried}")  # fmt: skip
    for name, given in names.items():
        if name != given:
            say(f"a column is called {name}, so that output is called {given}")
    say(f"model card: {card}" if text is not None else "the model card is made at the server, which has the run")


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
            f"reweighted.safetensors, ffgb recalibrate {run} recalibrated.safetensors"
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
        typer.Option(
            "--output", "-o", help="The file to write.", show_default="report.html in the run, or here for several"
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Columns whose subgroups are scored (one run): sex,age.")] = "",
) -> None:
    """Write a page about a run, or about several side by side: one HTML file that needs no network."""
    from ffgb import report as reporting
    from ffgb.runs.evaluate import judge_again

    if by:
        if len(runs) > 1:
            raise FFGBError("--by scores subgroups of one run; name one run directory")
        judge_again(runs[0], words(by))
    from ffgb.deployment.site_report import REPORT, is_kept

    for kept in filter(is_kept, runs):
        raise FFGBError(
            f"{kept} is a model that a site has kept, and its report is {kept / REPORT}; the run itself is at the "
            "server"
        )
    output = output or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    reporting.write(runs, output)
    say(str(output))


@app.command()
def distill(
    run: Annotated[Path, typer.Argument(help="A run directory with an ensemble.")],
    by: Annotated[
        str, typer.Option(help="server: by Adam, at points of its own; clients: by FedAvg, at theirs.")
    ] = "server",
    data: Annotated[
        list[str] | None, typer.Option(help="The server's points, files without labels.", show_default="the run's own")
    ] = None,
    steps: Annotated[int, typer.Option(help="Adam steps of the fit (server).", min=1)] = 10_000,
    rounds: Annotated[int, typer.Option(help="Rounds of FedAvg (clients).", min=1)] = 300,
    step_size: Annotated[
        float | None, typer.Option(help="Step size of FedAvg (clients).", show_default="by learner, 0.3 for an mlp")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write.", show_default="distilled.safetensors in the run"),
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Fit one learner in place of an ensemble, to its values at points without labels."""
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
    step_size: Annotated[float, typer.Option(help="Step size of mirror descent.")] = 0.03,
    sampled: Annotated[float, typer.Option(help="The share of the learners that a round looks at.")] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write.", show_default="reweighted.safetensors in the run"),
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Learn from the clients' labels how much each learner of an ensemble should count (FedBoost)."""
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


@app.command()
def recalibrate(
    run: Annotated[Path, typer.Argument(help="A run directory whose model predicts classes.")],
    by: Annotated[str, typer.Option(help="The correction: intercept, platt, isotonic.")] = "platt",
    data: Annotated[
        list[str] | None, typer.Option(help="Rows to recalibrate by.", show_default="the run's held-out rows")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The files' target column, if the run has none.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write.", show_default="recalibrated.safetensors in the run"),
    ] = None,
    learner: MODULE = None,
    as_json: JSON = False,
) -> None:
    """Correct probabilities by rows that the model was not trained on, so that they are right on average."""
    from ffgb.runs.directory import Run
    from ffgb.runs.onnx import must_be_writable
    from ffgb.runs.recalibrate import recalibrate_run

    trust(learner)
    output = output or run / "recalibrated.safetensors"
    must_be_writable(output, "recalibrated.safetensors")
    _must_not_be_the_runs(output, run, "recalibrated.safetensors")
    found = recalibrate_run(Run.open(run), output, by, data or (), target)
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    shown = ({"model": name, **{SHORT.get(k, k): v for k, v in found[name].items()}} for name in ("before", "after"))
    print_rows(list(shown))
    say(f"by {found['rows']:,} rows; the scores after are cross-fitted; {output}")
