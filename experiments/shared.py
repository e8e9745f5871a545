"""Closed families with a shared geometry: what the tables in experiments/README.md are made of.

    python experiments/shared.py                 # everything that is not there yet
    python experiments/shared.py cifar10-s0 …    # these

Each run leaves one small file in experiments/shared/: its whole configuration, a line a round, the summary.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ffgb import Config, train
from ffgb.runs.config import load_data

HERE = Path(__file__).parent / "shared"
CIFAR = {"data": "cifar10", "clients": 56, "rounds": 10}
LARGE = {**CIFAR, "features": 6400, "similarity": 0.0}
# What were the defaults for tables in version 0.1, with λ = 1/n.  Today's is a blend, features have a prior that fits
# itself, and bins of fewer than ten rows are merged.
TABLE = {"learner": "features", "least": 1, "clients": 20}
ADULT = {**TABLE, "data": "adult", "rounds": 10, "ridge": 1 / 32561}
HOUSING = {**TABLE, "data": "cal_housing", "by": "longitude", "similarity": 0.0, "ridge": 1 / 16512}
FASHION = {"data": "fashion-mnist", "clients": 56, "split": "dirichlet", "alpha": 0.1, "rounds": 10}

RUNS: dict[str, dict[str, Any]] = {
    # the default of `ffgb train --data cifar10`, one or two classes a client; alike; and all rows at one client
    **{f"cifar10-s{s:g}-{seed}": {**CIFAR, "similarity": s, "seed": seed} for s in (0.0, 1.0) for seed in (0, 1, 2)},
    **{f"cifar10-central-{seed}": {**CIFAR, "clients": 1, "split": "iid", "seed": seed} for seed in (0, 1, 2)},
    "cifar10-local": {**CIFAR, "similarity": 0.0, "geometry": "local", "rounds": 40},
    # more features
    "cifar10-6400": {**LARGE, "rounds": 20},
    "cifar10-12800": {**LARGE, "features": 12800},
    **{f"mnist-{seed}": {"data": "mnist", "clients": 56, "rounds": 10, "seed": seed} for seed in (0, 1, 2)},
    **{f"fashion-{seed}": {**FASHION, "seed": seed} for seed in (0, 1, 2)},
    **{f"fashion-central-{seed}": {**FASHION, "clients": 1, "split": "iid", "seed": seed} for seed in (0, 1, 2)},
    **{f"adult-{seed}": {**ADULT, "seed": seed} for seed in (0, 1, 2)},
    **{f"adult-iid-{seed}": {**ADULT, "split": "iid", "seed": seed} for seed in (0, 1, 2)},
    "adult-local": {**ADULT, "geometry": "local", "rounds": 30, "ridge": None},
    "adult-trees": {**ADULT, "map": "inputs+trees"},
    **{f"housing-{seed}": {**HOUSING, "seed": seed} for seed in (0, 1, 2)},
    **{f"housing-central-{seed}": {**HOUSING, "clients": 1, "by": None, "seed": seed} for seed in (0, 1, 2)},
    "housing-trees": {**HOUSING, "map": "inputs+trees"},
    "housing-local": {**HOUSING, "geometry": "local", "rounds": 30, "ridge": None},
    **{f"digits-{seed}": {"seed": seed} for seed in (0, 1, 2)},
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or RUNS:
        file = HERE / f"{name}.json"
        if file.exists() and not sys.argv[1:]:
            continue
        config = Config(**RUNS[name])
        result = train(config)
        data = load_data(config)
        score = {name: value for name, value in result.summary.items() if name.startswith("test_")}
        if len(data.classes) == 2:
            score["auc"] = result.model.score(data.x_test, data.y_test)["auc"]
        content = {
            "config": config.resolved(data).to_json(),
            "summary": result.summary,
            "score": score,
            "rounds": result.metrics,
        }
        file.write_text(json.dumps(content, indent=1) + "\n")
        print(name, score, f"{result.summary['seconds_total']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
