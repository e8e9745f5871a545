"""Section 5 of the paper, which only sketches it: one net in place of an ensemble, in three ways, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ffgb.ensembles import distill_run, reweight_run
from ffgb.reproduce import Experiment, Recall, Results
from ffgb.reproduce.figures import check
from ffgb.reproduce.runs import go_on
from ffgb.runs import Run

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "full": {
        "config": {"data": "mnist", "clients": 56, "learner": "mlp", "rounds": 8, "oracle_steps": 200},
        "distill_rounds": 100, "rounds": 400, "steps": 20_000,
    },
    "small": {
        "config": {"data": "digits", "clients": 10, "learner": "mlp", "rounds": 6, "oracle_steps": 60},
        "distill_rounds": 10, "rounds": 60, "steps": 2_000,
    },
}  # fmt: skip


def compute(
    scratch: Path,
    say: Callable[[str], None],
    *,
    config: Mapping[str, Any],
    distill_rounds: int,
    rounds: int,
    steps: int,
) -> dict[str, Any]:
    """The ensemble, and what becomes of it."""

    def trained(name: str, **more: Any) -> dict[str, Any]:
        result = go_on(scratch / name, {**config, **more}, lambda text: say(f"{name}, {text}"))
        last = result.metrics[-1]
        return {
            "learners": result.model.f.terms,
            "accuracy": last["test_accuracy"],
            "models": last["models_up"] + last["models_down"],
            "bytes": last["bytes_up"] + last["bytes_down"],
        }

    ensemble = trained("ensemble")
    rows = {"none": ensemble, "clients, before they send": trained("clients", distill="clients")}
    both = trained("rounds", distill="rounds", distill_rounds=distill_rounds)
    run = Run.open(scratch / "ensemble")
    for name, how in (
        ("server, at the end", partial(distill_run, by="server", steps=steps)),
        ("clients by FedAvg, at the end", partial(distill_run, by="clients", rounds=rounds)),
        ("none, but weighted anew by FedBoost", reweight_run),
    ):
        say(name)
        found = how(run, scratch / "out.safetensors")
        rows[name] = {
            "learners": found["after"]["learners"],
            "accuracy": found["after"]["accuracy"],
            "models": ensemble["models"] + found["models"],
            "bytes": ensemble["bytes"] + found["bytes"],
            "faster": found["speedup"],
        }
    rows["clients by FedAvg, after every round"] = both
    return {"rows": rows}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    return {"found": recall.resumable("distillation", compute, **SETTINGS[scale])}


def table(results: Results) -> str:
    found = results["found"]
    lines = ["| distilled by | learners | test accuracy, % | models exchanged in all | predicts faster |"]
    lines.append("|---|---|---|---|---|")
    for name, row in found["rows"].items():
        faster = f"{row['faster']:,.0f} ×" if "faster" in row else ""
        lines.append(
            f"| {name} | {row['learners']:,} | {100 * row['accuracy']:.1f} | {row['models']:,.0f} | {faster} |"
        )
    config = found["settings"]["config"]
    how = f"{config['data']}, {config['clients']} clients, s = 0.1, K = 2, {config['rounds']} boosting rounds"
    once, each = found["settings"]["rounds"], found["settings"]["distill_rounds"]
    more = f"{once} rounds of FedAvg at the end, or {each} after each"
    return "\n".join([*lines, "", f"{how}, {config['oracle_steps']} oracle steps; {more}; seed 0."]) + "\n"


def draw(results: Results, path: Path) -> None:
    from ffgb import plots

    plots.distillation(path, results["found"]["rows"])


def needs(scale: str) -> None:
    check(SETTINGS[scale]["config"]["data"], scale)


EXPERIMENT = Experiment(tuple(SETTINGS), needs, results, table, draw)
