"""Coverage of prediction sets and intervals, at each site, on ten tables.

    python experiments/conformal.py

Four sites hold ranges of the first column that has many values, so they differ (a9a: its own two parties; heart: its
hospitals).  Boosted trees with default settings are trained on half of each site's rows.  The others are dealt out 100
times, half to set thresholds, half to look at the coverage.  A single deal is as uncertain as its few rows; the mean
over deals shows whether the method keeps its word.  A site counts if at least 200 of its rows set its thresholds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from sklearn.datasets import load_svmlight_file, make_friedman1, make_hastie_10_2

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.core.types import Array
from ffgb.data import load
from ffgb.runs.conformal import calibrated, intervals, sets
from ffgb.runs.held_out import HeldOut

COVERAGE, DEALS, MOST, ENOUGH, SITES = 0.9, 100, 6_000, 200, 4
Rows = tuple[Any, Array, Array | None]


def named(name: str) -> Rows:
    """A table of ffgb: its rows, targets, and natural sites."""
    data = load(name, seed=0)
    x, y = np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test])
    site = None
    if data.site is not None and data.site_test is not None:
        site = np.concatenate([data.site, data.site_test])
    return x.reshape(len(x), -1), y, site


def fair() -> Rows:
    frame = sm.datasets.fair.load_pandas().data
    return frame.drop(columns="affairs").to_numpy(), (frame["affairs"] > 0).to_numpy().astype(int), None


def randhie() -> Rows:
    frame = sm.datasets.randhie.load_pandas().data
    return frame.drop(columns="mdvis").to_numpy(), np.log1p(frame["mdvis"].to_numpy()), None


def a9a() -> Rows:
    """FedTree's two parties."""
    for folder in os.environ["FFGB_DATA"].split(":"):
        if (place := Path(folder, "fedtree_a9a")).is_dir():
            break
    parts = [load_svmlight_file(str(place / f"a9a_horizontal_p{k}"), n_features=123) for k in (0, 1)]
    site = np.repeat([0, 1], [len(y) for _, y in parts])
    x = np.concatenate([x.toarray() for x, _ in parts])
    return x, (np.concatenate([y for _, y in parts]) > 0).astype(int), site


def friedman() -> Rows:
    return (*make_friedman1(8000, noise=2.0, random_state=0), None)


def hastie() -> Rows:
    x, y = make_hastie_10_2(8000, random_state=0)
    return x, (y > 0).astype(int), None


TABLES: dict[str, Callable[[], Rows]] = {
    "adult": lambda: named("adult"),
    "cal_housing": lambda: named("cal_housing"),
    "digits": lambda: named("digits"),
    "a9a": a9a,
    "heart": lambda: named("heart"),
    "breast_cancer": lambda: named("breast_cancer"),
    "fair": fair,
    "randhie": randhie,
    "friedman1": friedman,
    "hastie": hastie,
}


def dealt(x: Array) -> Array:
    """Sites by ranges of the column with the most values, with noise, so that they overlap."""
    column = x[:, int(np.argmax([len(np.unique(c)) for c in x.T[:64]]))]
    rank = pd.Series(column).rank(method="first").to_numpy() / len(x)
    noisy = rank + 0.1 * np.random.default_rng(1).standard_normal(len(x))
    return np.minimum((pd.Series(noisy).rank().to_numpy() - 1) * SITES // len(x), SITES - 1).astype(int)


def covered(model: Any, x: Array, y: Array, site: Array, names: list[str], rng: np.random.Generator) -> Array:
    """For each site: the coverage of the other half, with the site's own threshold."""
    first = np.zeros(len(y), bool)
    for k in range(len(names)):
        rows = rng.permutation(np.flatnonzero(site == k))
        first[rows[: len(rows) // 2]] = True
    thresholds = calibrated(model, HeldOut(x[first], y[first], names, site[first]))
    assert thresholds is not None
    found = []
    for k, name in enumerate(names):
        own = ~first & (site == k)
        threshold = thresholds.threshold(COVERAGE, name)
        if model.classes:
            inside = sets(model, x[own], threshold)[np.arange(own.sum()), y[own]]
        else:
            low, high = intervals(model, x[own], threshold)
            inside = (low <= y[own]) & (y[own] <= high)
        found.append(float(inside.mean()))
    return np.array(found)


def measured(name: str) -> dict[str, Any]:
    x, y, site = TABLES[name]()
    some = np.random.default_rng(0).permutation(len(y))[:MOST]
    x, y = np.asarray(x, np.float32)[some], np.asarray(y)[some]
    site = dealt(x) if site is None else site[some]
    names = [f"site {k}" for k in range(int(site.max()) + 1)]
    rng = np.random.default_rng(2)
    train = rng.random(len(y)) < 0.5
    kind: Any = FFGBRegressor if y.dtype.kind == "f" else FFGBClassifier
    fitted = kind(learner="trees").fit(x[train], y[train], clients=site[train])
    model, rest = fitted.model_, np.flatnonzero(~train)
    xs, ys, ss = x[rest], y[rest], site[rest]
    deals = np.stack([covered(model, xs, ys, ss, names, rng) for _ in range(DEALS)])
    rows = np.bincount(ss, minlength=len(names)) // 2
    return {
        "task": "classes" if model.classes else "number",
        "rows that set thresholds": rows.tolist(),
        "mean coverage": deals.mean(axis=0).round(4).tolist(),
        "deviation of a deal": deals.std(axis=0).round(4).tolist(),
    }


def main() -> None:
    names, file = sys.argv[1:] or list(TABLES), Path(__file__).with_suffix(".json")
    own = {name: measured(name) for name in names}
    found: dict[str, Any] = (json.loads(file.read_text())["tables"] if file.exists() else {}) | own
    counted = [
        abs(coverage - COVERAGE)
        for table in found.values()
        for rows, coverage in zip(table["rows that set thresholds"], table["mean coverage"], strict=True)
        if rows >= ENOUGH
    ]
    summary = {
        "coverage": COVERAGE,
        "deals": DEALS,
        "sites that count": len(counted),
        "farthest": max(counted, default=0.0),
    }
    file.write_text(json.dumps({**summary, "tables": found}, indent=1) + "\n")
    print(own, summary)


if __name__ == "__main__":
    main()
