"""Our baselines beside published numbers of others: NIID-Bench's CIFAR-10 with two classes a client.

Li, Diao, Chen, He, "Federated learning on non-IID data silos: an experimental study", ICDE 2022: ten parties of two
classes each, LeNet-like CNN with 120 and 84 units, 50 rounds of 10 local epochs, batches of 64, SGD at 0.01 with
momentum 0.9, images shifted by up to four pixels and mirrored at random.  Parties count by their number of points.
SCAFFOLD has no momentum in its own paper: it takes steps of 0.01/(1 − 0.9), as long as theirs are in the end.
Their numbers are means of three seeds, and FedProx's that of the best of four μ, from 0.001 to 1; ours has μ = 0.01.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ffgb.protocol.costs import UNITS
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.figures import cell, check, curves_of, draw
from ffgb.studies.reproduce.runs import within

PUBLISHED = {"FedAvg": 49.8, "FedProx": 50.7, "SCAFFOLD": 49.1}
"""Test accuracy after 50 rounds, %."""
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "step_size": 0.01, "momentum": 0.9, "augment": True},
    "FedProx": {"algorithm": "fedprox", "step_size": 0.01, "momentum": 0.9, "prox": 0.01, "augment": True},
    "SCAFFOLD": {"algorithm": "scaffold", "step_size": 0.1, "augment": True},
    "FedAvg, images as they are": {"algorithm": "fedavg", "step_size": 0.01, "momentum": 0.9},
}
SEEDS = {"FedProx": 2}
"""Where one draw of who has which classes was not enough to say whether a method is as published."""
ROUNDS = {"full": 50, "small": 2}
EPOCHS = {"full": 10, "small": 1}
MARKS = (1, 2, 5, 10, 20, 30, 40, 50)


def base(scale: str) -> dict[str, Any]:
    return {
        "data": "cifar10", "clients": 10, "split": "labels", "labels": 2, "learner": "cnn", "hidden": [120, 84],
        "local_epochs": EPOCHS[scale], "batch": 64, "rounds": ROUNDS[scale], "client_weights": "size",
    }  # fmt: skip


def results(scale: str, recall: Recall) -> dict[str, Any]:
    curves = [
        curves_of(
            recall,
            f"{name} (published: {PUBLISHED[name]})" if name in PUBLISHED else name,
            f"niid-{chosen['algorithm']}",
            base(scale) | chosen,
            UNITS["cnn"],
            SEEDS.get(name, 1),
        )
        for name, chosen in METHODS.items()
    ]
    how = f"two classes each, {EPOCHS[scale]} local epochs" + "".join(f", {n} seeds of {m}" for m, n in SEEDS.items())
    panels = [{"title": "CIFAR-10, as in NIID-Bench", "curves": curves}]
    settings = {"clients": 10, "seeds": 1}
    return {"data": "cifar10", "settings": settings, "unit": UNITS["cnn"], "how": how, "panels": panels}


def table(results: Results) -> str:
    """Ours after some rounds, beside the published value."""
    (panel,) = results["panels"]
    marks = [m for m in MARKS if m <= panel["curves"][0]["seeds"][0]["rounds"][-1]]
    lines = [f"| method | seeds | {' | '.join(f'{m} round' + 's' * (m > 1) for m in marks)} | published, 50 rounds |",
             "|---|---|" + "---|" * (len(marks) + 1)]  # fmt: skip
    for name, curve in zip(METHODS, panel["curves"], strict=True):
        seeds = curve["seeds"]
        cells = [cell([s["test_accuracy"][within(s, "rounds", m) or 0] for s in seeds]) for m in marks]
        lines.append(f"| {name} | {len(seeds)} | {' | '.join(cells)} | {PUBLISHED.get(name, '')} |")
    how = "mean ± standard deviation where there are several seeds"
    return "\n".join([*lines, "", f"Test accuracy, %; {how}; scale {results['scale']}."]) + "\n"


def _draw(results: Results, path: Path) -> None:
    draw("rounds", results, path)


EXPERIMENT = Experiment(tuple(ROUNDS), partial(check, "cifar10"), results, table, _draw)
