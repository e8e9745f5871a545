"""What the paper leaves out: how much its choices matter, one at a time, on MNIST with nets.

The base is FFGB with K = 2, η₀ = 20, and 200 Adam steps an oracle call.  Each part changes one thing:

- the step size's offset: η₀/(Kt+k+1), the paper's, or η₀/(K(t+1)+k), its authors' code;
- the residual: from 0 in every round, as in the paper; kept from round to round; or none (K = 4);
- the oracle: how many Adam steps, and so which γ;
- the clients' weights, where clients have very different numbers of points: equal, or by size;
- how many clients take part in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms import Functional, Length, Notes
from ffgb.algorithms.ffgb import FFGB
from ffgb.core.functions import Family, OnPoints
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.oracles import Answer, Oracle
from ffgb.core.points import Points
from ffgb.core.types import Array
from ffgb.protocol.describe import register
from ffgb.runs.config import load_data
from ffgb.runs.holdings import make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import federate
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.figures import check
from ffgb.studies.reproduce.runs import config_of, curve, run

BASES: Mapping[str, dict[str, Any]] = {
    "full": {
        "data": "mnist", "clients": 56, "split": "similarity", "similarity": 0.1, "learner": "mlp", "rounds": 8,
        "local_steps": 2, "step_size": 20.0, "oracle_steps": 200,
    },
    "small": {
        "data": "digits", "clients": 10, "split": "similarity", "similarity": 0.1, "learner": "mlp", "rounds": 5,
        "local_steps": 2, "step_size": 20.0, "oracle_steps": 60,
    },
}  # fmt: skip
ORACLES = {"full": (20, 50, 100, 200, 500, 1000), "small": (10, 60, 200)}
PARTS = {"full": (7, 14, 28), "small": (2, 5)}
RESIDUAL_K = 4


@final
class Keeping(Oracle):
    """An oracle whose queries have Δ of the rounds before in them: FFGB's own Δ starts at 0 in each."""

    def __init__(self, inner: Oracle) -> None:
        self.inner = inner
        self.before: Array = np.zeros(())
        self.last: Array = np.zeros(())

    def sees(self, phi: Array) -> Array:
        return self.inner.sees(phi)

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        whole = query + self.before
        answer = self.inner(whole, rng)
        self.last = whole - answer.seen
        return answer


@register
@final
@dataclass(frozen=True)
class Kept(Functional):
    """FFGB with a residual that is kept from round to round."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = FFGB.totals
    inner: FFGB

    @property
    def K(self) -> int:  # type: ignore[override]
        return self.inner.K

    @property
    def mu(self) -> float:  # type: ignore[override]
        return self.inner.mu

    @property
    def length(self) -> Length:  # type: ignore[override]
        return self.inner.length

    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        return Keeping(self.inner.oracle(family, points, geometry, rng))

    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        assert isinstance(oracle, Keeping)
        oracle.before = oracle.last
        return self.inner.client(t, f, y, loss, oracle, rng)

    def eta(self, k: int, t: int) -> float:
        return self.inner.eta(k, t)


def kept(*, config: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """A run with the residual kept.  A client would lose it with its process, so all of them live in this one."""
    chosen = config_of(config)
    dataset = load_data(chosen)
    chosen = chosen.resolved(dataset)
    plain = make_algorithm(chosen)
    assert isinstance(plain, FFGB)
    clients = [(dataset.x[rows], dataset.y[rows]) for rows in make_parts(chosen, dataset)]
    _, lines = federate(
        *(clients, make_learner(chosen, dataset), make_loss(chosen, dataset), Kept(plain), int(chosen.rounds or 0)),
        tests=[(dataset.x_test, dataset.y_test)],
        seed=chosen.seed,
    )
    return {"curve": curve([line | {"setup_seconds": 0.0} for line in lines], unit)}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    base, groups = BASES[scale], dict[str, dict[str, Any]]()

    def add(group: str, label: str, **changed: Any) -> None:
        config = base | changed
        name = "ablation-" + "-".join(f"{k}-{v}" for k, v in changed.items()) if changed else "ablation"
        found = recall.resumable(name, run, config=config, unit=1)
        groups.setdefault(group, {})[label] = found["curve"]

    add("step size offset", "η₀/(Kt+k+1)")
    add("step size offset", "η₀/(K(t+1)+k)", step_offset="t+1")
    add("residual, K = 4", "from 0 each round", local_steps=RESIDUAL_K)
    groups["residual, K = 4"]["kept"] = recall(
        "ablation-kept", kept, config=base | {"local_steps": RESIDUAL_K}, unit=1
    )["curve"]
    add("residual, K = 4", "none", local_steps=RESIDUAL_K, residual=False)
    for steps in ORACLES[scale]:
        add("oracle", f"{steps} Adam steps", **({} if steps == base["oracle_steps"] else {"oracle_steps": steps}))
    for weights in ("uniform", "size"):
        add("client weights, Dirichlet 0.1", weights, split="dirichlet", alpha=0.1, client_weights=weights)
    N, T = base["clients"], base["rounds"]
    for m in PARTS[scale]:
        long = f"{m} of {N}, {T * N // m} rounds"
        add("participation", long, participation=m, rounds=T * N // m)
        rows = groups["participation"]
        rows[f"{m} of {N}, {T} rounds"] = {name: values[:T] for name, values in rows[long].items()}
    add("participation", f"{N} of {N}, {T} rounds")
    return {"base": base, "groups": groups}


def table(results: Results) -> str:
    lines = ["| what | how | test accuracy, % | training | median γ, first and last round |", "|---|---|---|---|---|"]
    for group, rows in results["groups"].items():
        for label, found in rows.items():
            test, train = (100 * found[name][-1] for name in ("test_accuracy", "train_accuracy"))
            gamma = f"{found['gamma_median'][0]:.2f}, {found['gamma_median'][-1]:.2f}"
            lines.append(f"| {group} | {label} | {test:.1f} | {train:.1f} | {gamma} |")
    base = results["base"]
    how = f"{base['data']}, {base['clients']} clients, s = 0.1, K = 2, η₀ = 20, {base['rounds']} rounds"
    return "\n".join([*lines, "", f"{how}, {base['oracle_steps']} oracle steps unless said otherwise; seed 0."]) + "\n"


def draw(results: Results, path: Path) -> None:
    plots.ablations(path, results["groups"])


def needs(scale: str) -> None:
    check(BASES[scale]["data"], scale)


EXPERIMENT = Experiment(tuple(BASES), needs, results, table, draw)
