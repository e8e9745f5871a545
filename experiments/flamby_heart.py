"""FLamby's Fed-Heart-Disease by its own splits and metric, with our defaults, and other learners.

    python experiments/flamby_heart.py

Four hospitals; FLamby's columns (without slope, ca and thal), rows without missing values, its split of each hospital
(two thirds to train with, random state 43), and its metric: accuracy, as the mean over hospitals and over all rows.
Seeds are those of the random features, where the learner has any.  Intervals: 95 %, of the first seed; the bootstrap of
test rows within hospitals.  FLamby's best federated strategy has 0.731 / 0.779, its pooled training 0.735 / 0.795.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from ffgb import FFGBClassifier
from ffgb.core.types import Array

NAMES = [
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
]
CENTRES = ("cleveland", "hungarian", "switzerland", "va")
SEEDS, DRAWS = range(20), 2000
METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "features": {"learner": "features"},
    "additive": {"learner": "additive"},
    "linear": {"learner": "linear"},
    "trees": {"learner": "trees"},
    "fedavg of a net": {"algorithm": "fedavg", "learner": "mlp"},
}
FIRST = METHODS["features"]
Part = tuple[pd.DataFrame, Array]


def centre(name: str) -> tuple[Part, Part]:
    """A hospital's rows to train with and to test on."""
    for folder in os.environ["FFGB_DATA"].split(":"):
        if (file := Path(folder, "heart", f"processed.{name}.data")).exists():
            break
    rows = pd.read_csv(file, names=NAMES, na_values="?").drop(columns=["slope", "ca", "thal"]).dropna()
    y = (rows.pop("num") > 0).to_numpy().astype(int)
    for column in ("cp", "restecg"):  # FLamby, too, has an indicator for each
        rows[column] = rows[column].map(lambda value: f"kind {value:g}")
    few = np.bincount(y, minlength=2).min() < 3
    train, test = train_test_split(
        np.arange(len(y)), train_size=0.66, test_size=0.34, random_state=43, shuffle=True, stratify=None if few else y
    )
    return (rows.iloc[train], y[train]), (rows.iloc[test], y[test])


def right(parts: list[Part], tests: list[Part], settings: dict[str, Any]) -> list[Array]:
    """Which test rows of each hospital a model gets right."""
    x, y = pd.concat([part[0] for part in parts], ignore_index=True), np.concatenate([part[1] for part in parts])
    clients = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])
    fitted = FFGBClassifier(**settings).fit(x, y, clients=clients)
    return [fitted.predict(rows) == own for rows, own in tests]


def scores(found: list[Array]) -> tuple[float, float]:
    return float(np.mean([own.mean() for own in found])), float(np.concatenate(found).mean())


def line(runs: list[list[Array]]) -> dict[str, Any]:
    """The mean over seeds, each seed, and the interval of the first."""
    each = np.array([scores(found) for found in runs])
    rng = np.random.default_rng(0)
    drawn = [scores([rng.choice(own, len(own)) for own in runs[0]]) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    found: dict[str, Any] = {}
    for k, name in enumerate(("mean over hospitals", "all rows")):
        found[name] = {
            "mean": round(float(each[:, k].mean()), 4),
            "seeds": each[:, k].round(4).tolist(),
            "interval": [round(float(end[k]), 4) for end in (low, high)],
        }
    means = [round(float(np.mean([run[i].mean() for run in runs])), 4) for i in range(len(CENTRES))]
    return found | {"by hospital": dict(zip(CENTRES, means, strict=True))}


def main() -> None:
    halves = [centre(name) for name in CENTRES]
    trains, tests = [train for train, _ in halves], [test for _, test in halves]
    found: dict[str, Any] = {"rows": {"train": [len(y) for _, y in trains], "test": [len(y) for _, y in tests]}}
    for name, settings in METHODS.items():
        runs = [right(trains, tests, {**settings, "random_state": seed}) for seed in SEEDS]
        found[name] = line(runs)
        print(name, found[name], flush=True)
    pooled = [(pd.concat([x for x, _ in trains], ignore_index=True), np.concatenate([y for _, y in trains]))]
    found["features, pooled"] = line([right(pooled, tests, {**FIRST, "random_state": seed}) for seed in SEEDS])
    several = [i for i, (_, y) in enumerate(trains) if len(np.unique(y)) > 1]
    alone = []
    for seed in SEEDS:
        own = []
        for i, (part, test) in enumerate(zip(trains, tests, strict=True)):
            one_class = test[1] == part[1][0]
            own.append(right([part], [test], {**FIRST, "random_state": seed})[0] if i in several else one_class)
        alone.append(own)
    found["features, each hospital alone"] = line(alone)
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: row for name, row in found.items() if name.startswith("features")}, indent=1))


if __name__ == "__main__":
    main()
