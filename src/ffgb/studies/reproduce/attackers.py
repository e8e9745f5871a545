"""What malicious clients can do, and what it costs to stop them: the paper trusts everyone.

Attackers send what is in order in every way that can be checked: finite, of the right form and round.  They send either
the opposite of what they found, times ten (`opposite`), or noise of ten times its length (`noise`), and lie in the same
way about how good a step is.  Their own points are lost to the training in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.engines.local import local_engine
from ffgb.federation.server import Server
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.runs.config import load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.figures import check
from ffgb.studies.reproduce.runs import config_of, mean_spread

BASES: Mapping[str, dict[str, Any]] = {
    "full": {"data": "adult", "clients": 20, "split": "similarity", "rounds": 10, "learner": "features", "least": 1},
    "small": {"data": "digits", "clients": 10, "split": "similarity", "rounds": 5},
}
SEEDS = {"full": 3, "small": 1}
FIXED: Mapping[str, dict[str, Any]] = {"full": {"ridge": 1 / 32561}, "small": {}}
"""λ = 1/n of the shared geometry with every aggregate: a robust mean leaves no evidence to choose it by."""
LEARNERS: Mapping[str, dict[str, Any]] = {
    "shared geometry": {},
    "local geometry": {"geometry": "local", "schedule": "constant", "local_steps": 2},
}
SIMILARITIES = (1.0, 0.3)
SHARES = (0.0, 0.1, 0.3)
AGGREGATES: Mapping[str, dict[str, Any]] = {
    "mean": {"aggregate": "mean"},
    "norm": {"aggregate": "norm"},
    "trimmed 0.3": {"aggregate": "trimmed", "trim": 0.3},
}
ATTACKS = ("opposite", "noise")
TIMES = 10.0


@final
class Poisoned(Engine):
    """Some clients' answers are not what they found."""

    def __init__(self, inner: Engine, attackers: Sequence[int], attack: str, seed: int) -> None:
        self.inner, self.attackers, self.attack, self.seed = inner, frozenset(attackers), attack, seed

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        answers = self.inner.exchange(data, clients)
        return {i: encode(self._lie(i, decode(a))) if i in self.attackers else a for i, a in answers.items()}

    def _lie(self, i: int, answer: Message) -> Message:
        if answer.kind not in ("answer", "part") or answer.round < 0:
            return answer
        rng = stream(self.seed, "attack", answer.round, i)
        return replace(answer, tensors={name: self._changed(a, rng) for name, a in sorted(answer.tensors.items())})

    def _changed(self, a: Array, rng: np.random.Generator) -> Array:
        if self.attack == "opposite":
            return (-TIMES * a).astype(a.dtype)
        noise = rng.standard_normal(a.shape)
        length = TIMES * float(np.linalg.norm(a)) / max(float(np.linalg.norm(noise)), 1e-300)
        lie: Array = (length * noise).astype(a.dtype)
        return lie

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)


def attacked(*, config: Mapping[str, Any], attack: str, share: float) -> dict[str, Any]:
    """The accuracy of a training in which so many clients attack."""
    chosen = config_of(config)
    dataset = load_data(chosen)
    chosen = chosen.resolved(dataset)
    loss = make_loss(chosen, dataset)
    holdings, options = make_holdings(chosen, dataset, make_parts(chosen, dataset))
    # by lot: clients are in the order of their labels, and no class should be theirs alone
    N = len(options["points"])
    attackers = [int(i) for i in stream(chosen.seed, "attack").permutation(N)[: round(share * N)]]
    with Poisoned(local_engine(holdings), attackers, attack, chosen.seed) as engine:
        server = Server(engine, **options)
        state = server.start(make_algorithm(chosen), make_learner(chosen, dataset), loss)
        lines = [line for _, line in server.rounds(state, chosen.exchanges)]
    return {"accuracy": lines[-1]["test_accuracy"]}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    rows = []
    for learner, settings in LEARNERS.items():
        for s in SIMILARITIES:
            for name, aggregate in AGGREGATES.items():
                fixed = {} if "geometry" in settings else FIXED[scale]
                config = {**BASES[scale], **settings, **aggregate, **fixed, "similarity": s, "stop": False}
                for share in SHARES:
                    for attack in ATTACKS if share else ATTACKS[:1]:
                        label = f"attackers-{learner}-{s:g}-{name}-{share:g}-{attack}".replace(" ", "-")
                        found = [
                            recall(f"{label}-{seed}", attacked, config=config | {"seed": seed}, attack=attack,
                                   share=share)["accuracy"]
                            for seed in range(SEEDS[scale])
                        ]  # fmt: skip
                        rows.append(
                            {"learner": learner, "similarity": s, "aggregate": name, "share": share,
                             "attack": attack if share else "none", "accuracy": found}
                        )  # fmt: skip
    return {"base": BASES[scale], "seeds": SEEDS[scale], "times": TIMES, "rows": rows}


def table(results: Results) -> str:
    """A row for each way of averaging, a column for each attack."""
    columns = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in SHARES if share)]
    head = " | ".join(attack if not share else f"{attack}, {share:.0%}" for attack, share in columns)
    lines = [f"| learner | s | aggregate | {head} |", "|---|---|---|" + "---|" * len(columns)]
    for learner in LEARNERS:
        for s in SIMILARITIES:
            for name in AGGREGATES:
                mine = {
                    (row["attack"], row["share"]): row["accuracy"]
                    for row in results["rows"]
                    if (row["learner"], row["similarity"], row["aggregate"]) == (learner, s, name)
                }
                cells = " | ".join(f"{100 * mean_spread(mine[column])[0]:.1f}" for column in columns)
                lines.append(f"| {learner} | {s:g} | {name} | {cells} |")
    base = results["base"]
    how = f"{base['data']}, {base['clients']} clients, {base['rounds']} rounds, {results['seeds']} seeds"
    said = f"Test accuracy, %; {how}; attackers send {results['times']:g} times as much."
    return "\n".join([*lines, "", said]) + "\n"


def draw(results: Results, path: Path) -> None:
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for row in results["rows"]:
        what = row["attack"] if not row["share"] else f"{row['attack']}, {row['share']:.0%}"
        groups = panels.setdefault(f"{row['learner']}, s = {row['similarity']:g}", {})
        groups.setdefault(what, {})[row["aggregate"]] = 100 * mean_spread(row["accuracy"])[0]
    plots.bars(path, panels, "test accuracy, %")


def needs(scale: str) -> None:
    check(BASES[scale]["data"], scale)


EXPERIMENT = Experiment(tuple(BASES), needs, results, table, draw)
