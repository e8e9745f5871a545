"""CIFAR-10, one or two classes a client: test accuracy against traffic, for each kind of Gram and number of features.

    python experiments/frontier.py          # measures what is missing, then draws frontier.png

Traffic is a client's mean, both ways, set-up included, in CNN-sized models of 17,090 parameters, the paper's unit.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffgb import Config
from ffgb.data import partition
from ffgb.engines.local import in_parts, local_engine
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.runs.config import load_data
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss

CNN = 17_090
ROUNDS = 20
FILE = Path(__file__).parent / "shared" / "frontier.json"
RANKS = (64, 128, 256, 512)
KINDS: list[tuple[str, int]] = [("tied", 0), ("blocks", 0), ("exact", 0), *(("nystrom", r) for r in RANKS)]
SIZES = (512, 1024, 2048)


def measure(results: dict[str, Any]) -> None:
    base = Config(data=("cifar10",), clients=56, similarity=0.0, rounds=ROUNDS)
    data = load_data(base)
    parts = partition(data, "similarity", 56, similarity=0.0)
    holdings = [Holding(data.x, data.y, rows) for rows in parts] + in_parts(data.x_test, data.y_test)
    for size in SIZES:
        if all(f"{size}-{kind}-{rank}" in results for kind, rank in KINDS):
            continue
        with local_engine(holdings) as engine:
            server = Server(engine, [len(rows) for rows in parts], len(holdings) - 56, by_size=True)
            known: dict[str, Any] = {}

            def start(config: Config, server: Server = server, known: dict[str, Any] = known) -> State:
                config = config.resolved(data)
                assert config.step_size is not None
                algorithm = make_algorithm(config)
                return server.start(algorithm, make_learner(config, data), make_loss(config, data), known=known)

            # The feature map is made once and paid for by every kind: what the first start costs more than the second.
            local = replace(base, features=size, geometry="local")
            first, second = start(local).costs, start(local).costs
            paid = first.parameters_up + first.parameters_down - second.parameters_up - second.parameters_down
            for kind, rank in KINDS:
                state, lines = start(replace(base, features=size, gram=kind, rank=rank or 256)), []
                for _, line in server.rounds(state, ROUNDS):
                    numbers = line["parameters_up"] + line["parameters_down"] + paid / 56
                    lines.append([round(numbers / CNN, 2), line["test_accuracy"]])
                results[f"{size}-{kind}-{rank}"] = lines
                FILE.write_text(json.dumps(results) + "\n")
                print(size, kind, rank, lines[4], lines[9], lines[-1], flush=True)


def draw(results: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    colours = {"tied": "C2", "blocks": "C1", "exact": "C0", "nystrom": "C3"}
    styles: dict[str, Any] = {"512": ":", "1024": "--", "2048": "-", "6400": (0, (6, 1, 1, 1))}
    for name, lines in results.items():
        size, kind, rank = name.split("-")
        thin = kind == "nystrom"
        axes.plot(
            *zip(*lines, strict=True),
            color=colours[kind],
            linestyle=styles[size],
            alpha=0.6 if thin else 0.95,
            linewidth=0.9 if thin else 1.8,
        )
        if thin and size == "2048":
            traffic, accuracy = lines[-1]
            where: dict[str, Any] = {"xytext": (3, -3), "textcoords": "offset points"}
            axes.annotate(f"r = {rank}", (traffic, accuracy), fontsize=7, color="C3", **where)
    kinds = [Line2D([], [], color=colour, label=f"{kind} Gram") for kind, colour in colours.items()]
    sizes = [Line2D([], [], color="0.3", linestyle=style, label=f"D = {size}") for size, style in styles.items()]
    axes.legend(handles=[*kinds, *sizes], loc="lower right", fontsize=8)
    axes.set(
        xscale="log",
        xlabel="traffic of a client, both ways, set-up included (CNN-sized models of 17,090 numbers)",
        ylabel="test accuracy",
        title="CIFAR-10, 56 clients with one or two classes each (s = 0), 20 rounds along each line",
        ylim=(0.6, 0.83),
        xlim=(7, 400),
    )
    axes.set_xticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
    axes.grid(alpha=0.3)
    figure.savefig(FILE.with_suffix(".png"), dpi=110)


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    results: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    measure(results)
    large = FILE.with_name("cifar10-6400.json")  # one more point of the frontier, from shared.py
    if large.exists():
        rounds = json.loads(large.read_text())["rounds"]
        results["6400-tied-0"] = [
            [(r["parameters_up"] + r["parameters_down"]) / CNN, r["test_accuracy"]] for r in rounds
        ]
    draw(results)


if __name__ == "__main__":
    main()
