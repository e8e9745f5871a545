"""What it costs to send fewer bits: increments as float32, float16 or int8, for one learner of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ffgb.protocol.codec import PRECISIONS
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.figures import check
from ffgb.studies.reproduce.runs import go_on, mean_spread

BASES: Mapping[str, dict[str, Any]] = {
    "full": {"clients": 20, "split": "similarity", "similarity": 0.1, "stop": False, "least": 1},
    "small": {"clients": 10, "split": "similarity", "similarity": 0.1, "stop": False},
}
DATA = {"full": ("digits", "adult"), "small": ("digits",)}
SEEDS = {"full": 3, "small": 1}
SHARED = "features, shared geometry"
FIXED: Mapping[str, dict[str, Any]] = {"digits": {}, "adult": {"ridge": 1 / 32561}}
"""λ = 1/n of the shared geometry, of images and of a table."""
LEARNERS: Mapping[str, dict[str, Any]] = {
    SHARED: {"rounds": 10, "learner": "features"},
    "linear, local geometry": {"rounds": 10, "learner": "linear", "geometry": "local"},
    "MLP": {"rounds": 5, "learner": "mlp", "oracle_steps": 100},
    "trees": {"rounds": 5, "learner": "tree"},
    "FedAvg of an MLP": {"rounds": 50, "algorithm": "fedavg", "learner": "mlp"},
}


def sent(scratch: Path, say: Callable[[str], None], *, config: Mapping[str, Any]) -> dict[str, Any]:
    last = go_on(scratch, config, say).metrics[-1]
    return {"accuracy": last["test_accuracy"], "bytes": last["bytes_up"] + last["bytes_down"]}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    rows = []
    for data in DATA[scale]:
        for learner, settings in LEARNERS.items():
            for precision in PRECISIONS:
                fixed = FIXED[data] if learner == SHARED else {}
                config = {**BASES[scale], **settings, **fixed, "data": data, "precision": precision}
                name = f"precision-{data}-{learner}-{precision}".replace(" ", "-").replace(",", "")
                found = [
                    recall.resumable(f"{name}-{seed}", sent, config=config | {"seed": seed})
                    for seed in range(SEEDS[scale])
                ]
                measured = {key: [part[key] for part in found] for key in ("accuracy", "bytes")}
                rows.append({"data": data, "learner": learner, "precision": precision, **measured})
    return {"base": BASES[scale], "seeds": SEEDS[scale], "rows": rows}


def table(results: Results) -> str:
    head = " | ".join(f"{p} | MB" for p in PRECISIONS)
    lines = [f"| data | learner | {head} |", "|---|---|" + "---|---|" * len(PRECISIONS)]
    rows = {(row["data"], row["learner"], row["precision"]): row for row in results["rows"]}
    for data, learner in dict.fromkeys((row["data"], row["learner"]) for row in results["rows"]):
        cells = []
        for precision in PRECISIONS:
            row = rows[data, learner, precision]
            cells += [f"{100 * mean_spread(row['accuracy'])[0]:.2f}", f"{mean_spread(row['bytes'])[0] / 1e6:.2f}"]
        lines.append(f"| {data} | {learner} | {' | '.join(cells)} |")
    base = results["base"]
    how = f"{base['clients']} clients, s = {base['similarity']:g}, {results['seeds']} seeds"
    return "\n".join([*lines, "", f"Test accuracy, %, and what a client sends and is sent in all; {how}."]) + "\n"


def draw(results: Results, path: Path) -> None:
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for row in results["rows"]:
        groups = panels.setdefault(row["data"], {})
        groups.setdefault(row["learner"], {})[row["precision"]] = 100 * mean_spread(row["accuracy"])[0]
    plots.bars(path, panels, "test accuracy, %")


def needs(scale: str) -> None:
    for data in DATA[scale]:
        check(data, scale)


EXPERIMENT = Experiment(tuple(BASES), needs, results, table, draw)
