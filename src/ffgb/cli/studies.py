"""Methods side by side: `ffgb compare`, `tune`, `reproduce`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ffgb.cli.common import (
    JSON,
    app,
    goes_on,
    number,
    print_rows,
    say,
    settings_of,
    was_given,
)
from ffgb.errors import FFGBError
from ffgb.runs.headline import in_bytes


@app.command()
def compare(
    methods: Annotated[
        list[str], typer.Argument(help="ffgb, ffgb:mlp, fedavg:mlp, package.module:Name, …: two or more.")
    ],
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
    from ffgb.protocol.costs import UNITS
    from ffgb.runs.config import Config
    from ffgb.studies import plots
    from ffgb.studies.compare import Budget, Method
    from ffgb.studies.compare import compare as run_comparison

    if len(methods) < 2:
        raise FFGBError("a comparison needs two methods or more")
    if unit not in UNITS and not (unit.isdecimal() and int(unit)):
        raise FFGBError(f"--unit is mlp, cnn or a number of parameters, not {unit!r}")
    dealt: dict[str, Any] = {"clients": clients, "split": split, "similarity": similarity, "alpha": alpha}
    dealt |= {"labels": labels, "seed": seed}
    if participation is not None:
        dealt["participation"] = number(participation, "--participation", "clients")
    base = Config(data=tuple(data or ("digits",)), target=target, **dealt)
    with goes_on(out), Console(stderr=True).status("comparing") as status:
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
        say(f"ffgb: {error}", error=True)  # the numbers are there all the same
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    print_rows([_compared(m) for m in found["methods"]])
    for m in found["methods"]:
        _warn_of(m)
    what = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    say(f"{what}; models of {found['unit']:,} parameters; all of it in {out}")


def _warn_of(method: dict[str, Any]) -> None:
    """Say what keeps a method's result from being its best."""
    from ffgb.studies.compare import MOST

    if method["edge"]:
        say(f"{method['method']}: the step size is the smallest or largest that was tried; another may be better")
    if method["capped"]:
        say(f"{method['method']} was stopped after {MOST:,} rounds, within its budget")


def _compared(method: dict[str, Any]) -> dict[str, str]:
    """A method's row of the table."""
    mean, spread = method["mean"], method["spread"]
    step = "" if method["step_size"] is None else f"{method['step_size']:g}"
    if method["halved"]:
        step += f" ({method['step_size'] * 2 ** method['halved']:g} diverged)"
    row = {"method": method["method"], "step size": step}
    score = method["score"].replace("_", " ")
    if mean is None:
        told = f"diverged with {method['diverged']} of {len(method['runs'])} seeds"
        return row | {score: told} | dict.fromkeys(("rounds", "models", "traffic", "seconds"), "")
    return row | {
        score: f"{mean[method['score']]:.4f}" + ("" if spread is None else f" ± {spread:.4f}"),
        "rounds": f"{mean['rounds']:g}",
        "models": f"{mean['models']:,.1f}",
        "traffic": in_bytes(mean["bytes"]),
        "seconds": f"{mean['seconds']:.1f}",
    }


@app.command()
def tune(
    ctx: typer.Context,
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
    out: Annotated[
        Path | None, typer.Option(help="Where to keep what was tried: started again, the race goes on from there.")
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="TOML with any options of train; what is given here comes first.",
            show_default=False,
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """The best step size of a method, by successive halving on rows that clients set aside."""
    from ffgb.runs.config import Config
    from ffgb.studies.tuning import tune as run_tuning

    options: dict[str, Any] = {
        "data": tuple(data or ("digits",)), "target": target, "clients": clients, "split": split, "labels": labels,
        "similarity": similarity, "alpha": alpha, "algorithm": algorithm, "learner": learner,
        "local_steps": local_steps, "step_size": step_size, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if was_given(ctx, name)}
    config = Config(**options | settings_of(settings_file) | given)
    with goes_on(out), Console(stderr=True).status("tuning") as status:

        def tell(score: dict[str, Any]) -> None:
            status.update(f"tuning: step size {score['step_size']:g}, {score['rounds']} rounds")

        found = run_tuning(config, rounds, out=out, on_score=tell)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), allow_nan=False))
        return
    shown = [
        {**s, **{k: "diverged" if s[k] is None else f"{s[k]:.4f}" for k in ("score", "loss")}} for s in found.scores
    ]
    print_rows(shown)
    print(f"best: --step-size {found.step_size:g}, after {found.rounds} rounds of training in all")
    if found.edge:
        print("it is the smallest or largest that was tried: repeat with --step-size there")


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="fig1, fig2a, fig2b, fig3, fig4 (the paper's), theory, distillation, ablations, niid, attackers, "
            "precision, privacy, or all."
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="full: the paper's, hours; reduced (fig1): fewer clients and steps; small: minutes, to look at."
        ),
    ] = "full",
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; what is there is not computed again.", show_default="reproduced"),
    ] = None,
) -> None:
    """Repeat an experiment: numbers, a table and a picture.  Started again, it goes on where it was stopped."""
    from rich.markdown import Markdown

    from ffgb.studies.reproduce import SCALES, experiments
    from ffgb.studies.reproduce import reproduce as run_experiment

    out = out or Path("reproduced" if scale == "full" else f"reproduced-{scale}")
    console, scales = Console(stderr=True), {experiment: scale}
    if experiment == "all":
        if scale not in SCALES:
            raise FFGBError(f"--scale is {' or '.join(SCALES)}, not {scale!r}")
        # the only one that is reduced may be so among others that are not
        scales = {
            name: scale if scale in e.scales or scale != "reduced" else "full" for name, e in experiments().items()
        }
        for name, chosen in scales.items():
            experiments()[name].needs(chosen)  # what is missing is said now, not after hours
    for name, chosen in scales.items():
        with goes_on(out), console.status("starting") as status:
            table = run_experiment(name, chosen, out, lambda text, name=name: status.update(f"{name}: {text}"))  # type: ignore[misc]
        if sys.stdout.isatty():
            Console().print(Markdown(table))
        else:
            print(table, end="")
    say(f"numbers and pictures: {out}", error=True)
