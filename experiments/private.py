"""Private additive models beside DP-EBM (interpret) on the same rows: `experiments/private.py SET [SEEDS [EPSILON …]]`.

SET is adult (20 clients, similarity 0.1), cal_housing (20 clients by longitude) or heart (four hospitals, 20 splits).
experiments/private.json has all scores and their means; bounds are in experiments/private/SET.toml.
`experiments/private.py SET costs` measures one training at each ε: seconds of the processor, and bytes a client
(experiments/private_costs.json).
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from ffgb.data import Dataset, load
from ffgb.data.schema_file import SchemaFile
from ffgb.runs.config import Config
from ffgb.runs.private import public_of
from ffgb.runs.training import train

HERE = Path(__file__).parent
OUT, COSTS = HERE / "private.json", HERE / "private_costs.json"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
SETTINGS: dict[str, dict[str, Any]] = {
    "adult": {"clients": 20, "similarity": 0.1},
    "cal_housing": {"clients": 20, "similarity": 0.0, "by": "longitude"},
    "heart": {},
}


def ours(name: str, dataset: Dataset, epsilon: float, seed: int, split: int) -> tuple[float, dict[str, float]]:
    """The score at the test rows of a training under masks, its seconds and bytes."""
    schema = str(HERE / "private" / f"{name}.toml")
    config = Config(data=name, epsilon=epsilon, schema=schema, seed=split, noise_seed=seed, **SETTINGS[name])
    result = train(config, workers=0)
    summary = result.summary
    assert summary["privacy"]["epsilon"] == epsilon
    cost = {"seconds": summary["seconds_total"], "up": summary["bytes_up"], "down": summary["bytes_down"]}
    return float(summary["test_auc" if dataset.classes else "test_rmse"]), cost


def frame(dataset: Dataset, x: Any) -> pd.DataFrame:
    """Points as a table with a column a category, as DP-EBM takes it: missing numbers are the lower bound."""
    schema = SchemaFile.read(HERE / "private" / f"{dataset.name}.toml")
    public = public_of(dataset, schema)
    found: dict[str, Any] = {}
    for name, inputs, flag, low in zip(public.names, public.inputs, public.flag, public.low, strict=True):
        if len(inputs) == 1 and "=" not in dataset.columns[inputs[0]]:
            column = x[:, inputs[0]].astype(np.float64)
            found[name] = np.where(x[:, flag] == 1, low, column) if flag >= 0 else column
            continue
        some = x[:, list(inputs)] == 1
        names = np.array([dataset.columns[i].partition("=")[2] for i in inputs], object)
        found[name] = np.where(some.any(axis=1), names[some.argmax(axis=1)], "other")
    return pd.DataFrame(found)


def ebm(dataset: Dataset, epsilon: float, seed: int) -> float:
    """DP-EBM by default, given the same bounds."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    schema = SchemaFile.read(HERE / "private" / f"{dataset.name}.toml")
    train_rows, test_rows = frame(dataset, dataset.x), frame(dataset, dataset.x_test)
    kinds = ["continuous" if c in schema.columns else "nominal" for c in train_rows]
    bounds = {str(c): schema.columns[str(c)].bounds for c in train_rows if c in schema.columns}
    known = {"epsilon": epsilon, "delta": DELTA, "privacy_bounds": bounds, "feature_types": kinds, "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dataset.classes:
            model = DPExplainableBoostingClassifier(**known).fit(train_rows, dataset.y)
            return float(roc_auc_score(dataset.y_test, model.predict_proba(test_rows)[:, 1]))
        low, high = schema.columns[schema.target or ""].bounds or (0.0, 1.0)
        model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **known)
        model.fit(train_rows, dataset.y)
        found = np.clip(model.predict(test_rows), low, high)
        return float(np.sqrt(np.mean(np.square(found - dataset.y_test))))


def costs(name: str) -> None:
    """What a training costs, with one seed."""
    for epsilon in EPSILONS:
        dataset, began = load(name, seed=0), time.process_time()
        score, cost = ours(name, dataset, epsilon, 0, 0)
        results = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        results[f"{name} {epsilon:g}"] = {
            "score": round(score, 5),
            "processor_seconds": round(time.process_time() - began, 1),
            "bytes_up": round(cost["up"]),
            "bytes_down": round(cost["down"]),
        }
        COSTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        print(name, epsilon, results[f"{name} {epsilon:g}"], flush=True)


def main(name: str, seeds: int, epsilons: Sequence[float]) -> None:
    for epsilon in epsilons:
        key, mine, theirs, costs = f"{name} {epsilon:g}", [], [], []
        for seed in range(seeds):
            split = seed if name == "heart" else 0
            dataset = load(name, seed=split)
            score, cost = ours(name, dataset, epsilon, seed, split)
            mine.append(score)
            costs.append(cost)
            theirs.append(ebm(dataset, epsilon, seed))
        results = json.loads(OUT.read_text()) if OUT.exists() else {}
        results[key] = {
            "measure": "auc" if dataset.classes else "rmse",
            "ours": [round(v, 5) for v in mine],
            "dp_ebm": [round(v, 5) for v in theirs],
            "mean": [round(float(np.mean(mine)), 4), round(float(np.mean(theirs)), 4)],
            "seconds": round(float(np.median([c["seconds"] for c in costs])), 2),
            "bytes_up": round(float(np.mean([c["up"] for c in costs]))),
            "bytes_down": round(float(np.mean([c["down"] for c in costs]))),
        }
        OUT.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        print(time.strftime("%H:%M"), key, results[key]["mean"], flush=True)


if __name__ == "__main__":
    _, which, *words = sys.argv
    if words == ["costs"]:
        costs(which)
    else:
        main(which, int(words[0]) if words else 5, [float(word) for word in words[1:]] or EPSILONS)
