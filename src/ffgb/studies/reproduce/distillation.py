"""Section 5 of the paper, which only sketches it: one net in place of an ensemble, in three ways, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ffgb.runs.directory import Run
from ffgb.runs.postprocess import distill_run, reweight_run
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.figures import check
from ffgb.studies.reproduce.runs import curve, go_on

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "full": {
        "config": {"data": "mnist", "clients": 56, "learner": "mlp", "rounds": 8, "oracle_steps": 200},
        # Each distillation loses a little of what boosting gained: so more rounds, and steps that stay long.
        "between": {"rounds": 16, "step_size": 14.0, "step_power": 0.5, "distill_rounds": 100},
        "end": {"rounds": 400, "steps": 20_000, "reweighting": (0.001, 0.003, 0.01, 0.03)},
    },
    "small": {
        "config": {"data": "digits", "clients": 10, "learner": "mlp", "rounds": 6, "oracle_steps": 60},
        "between": {"rounds": 6, "distill_rounds": 20},
        "end": {"rounds": 60, "steps": 2_000, "reweighting": (0.03,)},
    },
}  # fmt: skip


def trained(scratch: Path, say: Callable[[str], None], *, config: Mapping[str, Any]) -> dict[str, Any]:
    """A run: how good its model is, how large, and what it cost."""
    result = go_on(scratch, config, say)
    last = result.metrics[-1]
    return {
        "learners": result.model.f.terms,
        "accuracy": last["test_accuracy"],
        "loss": last["test_loss"],
        "models": last["models_up"] + last["models_down"],
        "bytes": last["bytes_up"] + last["bytes_down"],
        "curve": curve(result.metrics, result.model.family.size),
    }


def at_the_end(
    scratch: Path,
    say: Callable[[str], None],
    *,
    config: Mapping[str, Any],
    rounds: int,
    steps: int,
    reweighting: Sequence[float],
) -> dict[str, Any]:
    """The ensemble, and what becomes of it when training is over; by FedBoost with every step size that is given."""
    ensemble = trained(scratch / "run", say, config=config)
    rows, run = {"none": ensemble}, Run.open(scratch / "run")
    for name, how in (
        ("server, at the end", partial(distill_run, by="server", steps=steps)),
        ("clients by FedAvg, at the end", partial(distill_run, by="clients", rounds=rounds)),
        *(
            (f"none, but weighted anew by FedBoost, η = {eta:g}", partial(reweight_run, step_size=eta))
            for eta in reweighting
        ),
    ):
        say(name)
        found = how(run, scratch / "out.safetensors")
        rows[name] = {
            "learners": found["after"]["learners"],
            "accuracy": found["after"]["accuracy"],
            "loss": found["after"]["loss"],
            "models": ensemble["models"] + found["models"],
            "bytes": ensemble["bytes"] + found["bytes"],
            "faster": found.get("speedup"),
        }
    return {"rows": rows}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    settings = SETTINGS[scale]
    config = settings["config"]
    end = recall.resumable("distillation-end", at_the_end, config=config, **settings["end"])
    clients = recall.resumable("distillation-clients", trained, config=config | {"distill": "clients"})
    between = recall.resumable(
        "distillation-rounds", trained, config=config | {"distill": "rounds"} | settings["between"]
    )
    rows = {
        **end["rows"],
        "clients, K to 1, before they send": clients,
        "clients by FedAvg, after every round": between,
    }
    return {"settings": settings, "rows": rows}


def table(results: Results) -> str:
    lines = ["| distilled by | learners | test accuracy, % | test loss | models exchanged in all | predicts faster |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in results["rows"].items():
        faster = f"{row['faster']:,.0f} ×" if row.get("faster") else ""
        scores = f"{100 * row['accuracy']:.1f} | {row['loss']:.3f}"
        lines.append(f"| {name} | {row['learners']:,} | {scores} | {row['models']:,.0f} | {faster} |")
    config, between, end = (results["settings"][name] for name in ("config", "between", "end"))
    how = f"{config['data']}, {config['clients']} clients, s = 0.1, K = 2, {config['rounds']} boosting rounds"
    more = (
        f"{end['rounds']} rounds of FedAvg at the end, or {between['distill_rounds']} after each of "
        f"{between['rounds']} boosting rounds"
    )
    return "\n".join([*lines, "", f"{how}, {config['oracle_steps']} oracle steps; {more}; seed 0."]) + "\n"


def draw(results: Results, path: Path) -> None:
    plots.distillation(path, results["rows"])


def needs(scale: str) -> None:
    check(SETTINGS[scale]["config"]["data"], scale)


EXPERIMENT = Experiment(tuple(SETTINGS), needs, results, table, draw)
