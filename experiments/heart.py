"""Four hospitals: one model together, each alone, each in its own geometry, and all rows in one place.

Five folds inside each hospital; a method sees four fifths of every hospital and is scored on the fifth that is left,
hospital by hospital and over all patients.  Every method has what were the defaults of `ffgb train` for tables:
features with λ = 1/n, and no bins merged.  No setting was chosen here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.core.judgement import auc
from ffgb.core.types import Array
from ffgb.data import Dataset, load
from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.runs.config import Config
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss

FOLDS, SEEDS = 5, (0, 1, 2)
METHODS = ("together", "alone", "local geometry", "pooled")


def folds(site: Array, seed: int) -> Array:
    """The fold of each row: five inside each hospital."""
    rng, fold = np.random.default_rng(seed), np.empty(len(site), int)
    for i in np.unique(site):
        rows = rng.permutation(np.flatnonzero(site == i))
        fold[rows] = np.arange(len(rows)) % FOLDS
    return fold


def scores(data: Dataset, parts: list[Array], method: str, seed: int) -> Any:
    """Train on these clients' rows: the trained function."""
    local = method == "local geometry"
    ridge = None if local else 1 / sum(len(rows) for rows in parts)
    geometry = "local" if local else "shared"
    config = Config(data=("heart",), seed=seed, learner="features", least=1, geometry=geometry, ridge=ridge)
    config = config.resolved(data)
    assert config.rounds is not None
    assert config.step_size is not None
    assert config.local_steps is not None
    algorithm = make_algorithm(config)
    with InProcess([Holding(data.x, data.y, rows) for rows in parts]) as engine:
        server = Server(engine, [len(rows) for rows in parts], seed=seed, by_size=config.client_weights == "size")
        state = server.start(algorithm, make_learner(config, data), make_loss(config, data))
        for after, _ in server.rounds(state, config.rounds, stop=bool(config.stop)):
            state = after
    return state.f


def main() -> None:
    whole = load("heart", seed=0)
    assert whole.site is not None
    assert whole.site_test is not None
    x, y = np.concatenate([whole.x, whole.x_test]), np.concatenate([whole.y, whole.y_test])
    site = np.concatenate([whole.site, whole.site_test])
    values = {method: np.zeros((len(SEEDS), len(y))) for method in METHODS}
    for s, seed in enumerate(SEEDS):
        fold = folds(site, seed)
        for k in range(FOLDS):
            train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            data = Dataset(
                *("heart", whole.task, x[train], y[train], x[test], y[test], whole.classes, whole.columns, False),
                *(whole.sites, site[train], site[test]),
            )
            by_site = [np.flatnonzero(site[train] == i) for i in range(len(whole.sites))]
            for method in METHODS:
                if method == "alone":
                    for i, rows in enumerate(by_site):
                        own = test[site[test] == i]
                        alone = Dataset(
                            *("heart", whole.task, x[train][rows], y[train][rows], x[own], y[own]),
                            *(whole.classes, whole.columns, False, ("one",)),
                            *(np.zeros(len(rows), int), np.zeros(len(own), int)),
                        )
                        f = scores(alone, [np.arange(len(rows))], method, seed)
                        values[method][s, own] = f(x[own])[:, 0]
                else:
                    parts = [np.arange(len(train))] if method == "pooled" else by_site
                    values[method][s, test] = scores(data, parts, method, seed)(x[test])[:, 0]
    table: dict[str, Any] = {}
    for method, f in values.items():
        lines: dict[str, Any] = {}
        for name, some in [*((n, site == i) for i, n in enumerate(whole.sites)), ("all", site >= 0)]:
            accuracy = [float(((v > 0) == y)[some].mean()) for v in f]
            area = [auc(v[some], y[some]) for v in f]
            lines[name] = {
                "patients": int(some.sum()),
                "accuracy": [round(float(np.mean(accuracy)), 4), round(float(np.std(accuracy)), 4)],
                "auc": [round(float(np.mean(area)), 4), round(float(np.std(area)), 4)],
            }
        table[method] = lines
        print(method, {name: (row["accuracy"][0], row["auc"][0]) for name, row in lines.items()}, flush=True)
    out = Path(__file__).parent / "shared" / "heart.json"
    out.parent.mkdir(exist_ok=True)
    content = {"folds": FOLDS, "seeds": SEEDS, "mean and standard deviation over seeds": table}
    out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
