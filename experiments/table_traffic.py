"""Accuracy against traffic and exchanges, round by round, for Adult and California housing; and FedTree's split of a9a.

    python experiments/table_traffic.py run adult cal_housing a9a      # measures what is missing: tables/traffic.json
    python experiments/table_traffic.py draw                           # tables/traffic.png

Bytes are those that a site sends, set-up included, without compression.  For trees bagged by site they are those of
XGBoost's own JSON form.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import roc_auc_score

from ffgb import Config
from ffgb.data import Dataset, load, partition
from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from table_central import bagged
from table_list import TABLES, shared
from table_ours import counted
from table_rows import Array, Rows

FILE = Path(__file__).parent / "tables" / "traffic.json"

SPLITS: dict[str, dict[str, Any]] = {
    "adult": {"split": "similarity", "clients": 20, "similarity": 0.1},
    "cal_housing": {"split": "similarity", "clients": 20, "similarity": 0.0, "by": "longitude"},
    "a9a": {"split": "natural"},
}
FEDTREE: dict[str, Any] = {
    "learner": "trees", "rounds": 50, "trees_a_round": 1, "tree_rate": 0.1, "levels": 6, "leaves": 64,
    "growth": "level", "column_share": 1.0, "row_share": 1.0, "bins": 255,
}  # fmt: skip
"""50 trees of depth 6 with rate 0.1, as in FedTree's example."""
OURS: dict[str, dict[str, dict[str, Any]]] = {
    "trees": {name: {"learner": "trees"} for name in SPLITS},
    "features": {name: {"learner": "features"} for name in ("adult", "cal_housing")},
    "FedAvg of an MLP": {name: {"algorithm": "fedavg", "learner": "mlp"} for name in ("adult", "cal_housing")},
    "trees, one by one": {"adult": {"learner": "trees", "trees_a_round": 1, "tree_rate": 0.1, "rounds": 100}},
    "trees, FedTree's settings": {"a9a": FEDTREE},
}
BAGGED = {"bagged trees (Flower), rate 0.1": (10, False), "bagged trees (Flower), rate 0.1/N": (100, True)}

POOLED = "XGBoost with all rows, FedTree's settings"

Curve = list[tuple[float, int, float]]
"""Megabytes that a site has sent, exchanges, and the score."""


def a9a() -> Dataset:
    """FedTree's two parties, and its test rows."""
    files = [shared("fedtree_a9a", f"a9a_horizontal_{part}") for part in ("p0", "p1", "test")]
    parts = [load_svmlight_file(str(file), n_features=123) for file in files]
    x = [part[0].toarray().astype(np.float32) for part in parts]
    y = [(part[1] > 0).astype(np.int64) for part in parts]
    return Dataset(
        name="a9a",
        task="classification",
        x=np.concatenate(x[:2]),
        y=np.concatenate(y[:2]),
        x_test=x[2],
        y_test=y[2],
        classes=("0", "1"),
        columns=tuple(f"x{i}" for i in range(123)),
        sites=("p0", "p1"),
        site=np.repeat([0, 1], [len(y[0]), len(y[1])]),
        site_test=np.zeros(len(y[2]), np.int64),
    )


def dataset(name: str) -> Dataset:
    return a9a() if name == "a9a" else load(name, seed=0)


def parts_of(name: str, data: Dataset) -> list[Array]:
    how = dict(SPLITS[name])
    return partition(data, how.pop("split"), how.pop("clients", None), **how)


def score(data: Dataset, predicted: Array) -> float:
    """The AUC of values of f, or the RMSE of predictions."""
    if data.classes:
        return float(roc_auc_score(data.y_test, predicted))
    return float(np.sqrt(np.square(predicted - data.y_test).mean()))


def curve(data: Dataset, parts: list[Array], settings: dict[str, Any]) -> Curve:
    """Ours, after every few rounds."""
    config = Config(data=(data.name,), **settings).resolved(data)
    assert config.rounds is not None
    found: Curve = []
    with counted() as sent, InProcess([Holding(data.x, data.y, rows) for rows in parts]) as engine:
        server = Server(engine, [len(rows) for rows in parts], seed=0, by_size=config.client_weights == "size")
        loss = make_loss(config, data)
        state = server.start(
            make_algorithm(config), make_learner(config, data), loss, scale_target=not loss.classification
        )
        every = max(1, config.rounds // 10)
        for after, line in server.rounds(state, config.rounds, stop=bool(config.stop)):
            exchanges = len(sent)
            if line["round"] % every == 0 or line["round"] == config.rounds:
                values = after.f(data.x_test)
                if data.classes:
                    predicted = after.job.loss.probability(values)[:, 1]
                else:
                    predicted = after.job.predicted(values)[:, 0]
                found.append((line["bytes_up"] / 1e6, exchanges, score(data, predicted)))
    return found


def bagged_curve(data: Dataset, parts: list[Array], rounds: int, rate: float) -> Curve:
    """Trees bagged by site, after every few rounds."""
    entry = next(entry for entry in TABLES if entry.name == data.name)
    site = np.zeros(len(data.x) + len(data.x_test), np.int64)
    for i, rows in enumerate(parts):
        site[rows] = i
    x = pd.DataFrame(np.concatenate([data.x, data.x_test]), columns=list(data.columns))
    test = np.arange(len(x)) >= len(data.x)
    site[test] = 0
    y = np.concatenate([data.y, data.y_test])
    whole = Rows(entry, 0, x, y, data.classes, site, test, len(x))
    found: Curve = []

    def note(predicted: Array, sent: float, done: int) -> None:
        if done % max(1, rounds // 10) == 0:
            values = predicted[:, 1] if data.classes else predicted
            found.append((sent / 1e6, done, score(data, values)))

    bagged(whole, rounds, rate, note)
    return found


def pooled(data: Dataset) -> Curve:
    """XGBoost with the rows of all sites: 50 trees of depth 6 with rate 0.1."""
    library = importlib.import_module("xgboost")
    settings = {"eta": 0.1, "max_depth": 6, "tree_method": "hist", "objective": "binary:logistic", "nthread": 1}
    model = library.train(settings, library.DMatrix(data.x, data.y), 50)
    return [(0.0, 0, score(data, model.predict(library.DMatrix(data.x_test))))]


def measure(names: list[str]) -> None:
    found: dict[str, dict[str, Curve]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names:
        data = dataset(name)
        parts = parts_of(name, data)
        for method in (*OURS, *BAGGED, *([POOLED] if name == "a9a" else [])):
            if method in found.setdefault(name, {}) or (method in OURS and name not in OURS[method]):
                continue
            if method == POOLED:
                points = pooled(data)
            elif method in OURS:
                points = curve(data, parts, OURS[method][name])
            else:
                rounds, scaled = BAGGED[method]
                points = bagged_curve(data, parts, rounds, 0.1 / len(parts) if scaled else 0.1)
            found[name][method] = [(round(mb, 4), sent, round(value, 5)) for mb, sent, value in points]
            FILE.write_text(json.dumps(found, indent=1) + "\n")
            print(name, method, found[name][method][-1], flush=True)


def draw() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    found = json.loads(FILE.read_text())
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained", sharey="row")
    titles = {"adult": "Adult, 20 sites, s = 0.1: AUC", "cal_housing": "California housing by longitude: RMSE"}
    bounds = {"adult": (0.87, 0.932), "cal_housing": (0.42, 1.2)}
    colours = {method: f"C{i}" for i, method in enumerate((*OURS, *BAGGED))}
    for row, name in zip(axes, titles, strict=True):
        for axis, column, label in zip(row, (0, 1), ("MB that a site has sent", "exchanges"), strict=True):
            for method, points in found[name].items():
                axis.plot(
                    [p[column] for p in points],
                    [p[2] for p in points],
                    ".-",
                    color=colours[method],
                    label=method,
                    linewidth=1.4,
                )
            axis.set(xscale="log", xlabel=label, ylim=bounds[name], title=titles[name])
            axis.grid(alpha=0.3)
        row[0].legend(fontsize=8)
    figure.savefig(FILE.with_suffix(".png"), dpi=85)


if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw()
    else:
        measure(sys.argv[2:])
