"""FFGB, FFGB.C and FFGB.L on clients that differ: what a table in experiments/README.md is made of.

    python experiments/heterogeneous.py                # everything that is not there yet
    python experiments/heterogeneous.py digits-c …     # these

Each line of experiments/heterogeneous/results.jsonl is one run: its name, seed, settings and summary.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ffgb import Config, train

FILE = Path(__file__).parent / "heterogeneous" / "results.jsonl"
DIGITS = {"data": "digits", "clients": 20, "similarity": 0.0}
MNIST = {"data": "mnist", "clients": 56, "rounds": 8}
# Tables as in version 0.1, which merged no bins of few rows.
DIABETES = {"data": "diabetes", "clients": 5, "least": 1}
HOUSING = {"data": "cal_housing", "clients": 20, "by": "longitude", "similarity": 0.0, "least": 1}
C, L = {"algorithm": "ffgb-c"}, {"algorithm": "ffgb-l"}
SHARED: dict[str, Any] = {"learner": "features", "ridge": 1 / 354}  # λ = 1/n
LOCAL = {"geometry": "local"}

RUNS: dict[str, tuple[dict[str, Any], int]] = {
    # name: settings, seeds.  FFGB in a client's own geometry is what FFGB.C and FFGB.L are variants of.
    **{f"digits-{n}": ({**DIGITS, "learner": n}, 3) for n in ("mlp", "tree")},
    "digits-features": ({**DIGITS, **LOCAL}, 3),
    **{f"digits-{n}-c": ({**DIGITS, **C, "learner": n}, 3) for n in ("features", "mlp", "tree")},
    **{
        f"diabetes-{split}-{n}": ({**DIABETES, "split": split, **more}, 3)
        for split in ("similarity", "iid")
        for n, more in {
            "shared": SHARED,
            "local": LOCAL,
            "features-l": L,
            "linear-l": {**L, "learner": "linear"},
            "mlp-l": {**L, "learner": "mlp"},
            "max-l": {**L, "learner": "mlp", "lipschitz": "max"},
        }.items()
    },
    "housing-local": ({**HOUSING, **LOCAL}, 1),
    "housing-features-l": ({**HOUSING, **L}, 1),
    "housing-mlp-l": ({**HOUSING, **L, "learner": "mlp"}, 1),
    "mnist-mlp": ({**MNIST, "learner": "mlp"}, 1),
    "mnist-mlp-c": ({**MNIST, **C, "learner": "mlp"}, 1),
    "mnist-features": ({**MNIST, **LOCAL}, 1),
    "mnist-features-c": ({**MNIST, **C}, 1),
}


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    asked = sys.argv[1:]
    if asked:
        rows = [row for row in rows if row["name"] not in asked]
    there = {(row["name"], row["seed"]) for row in rows}
    for name in asked or RUNS:
        settings, seeds = RUNS[name]
        for seed in range(seeds):
            if (name, seed) in there:
                continue
            summary = train(Config(**settings, seed=seed)).summary
            rows.append({"name": name, "seed": seed, "settings": settings, "summary": summary})
            FILE.write_text("".join(json.dumps(row) + "\n" for row in rows))
            shown = ("test_", "gamma", "lipschitz")
            scores = {key: round(value, 4) for key, value in summary.items() if key.startswith(shown)}
            print(name, seed, scores, f"{summary['seconds_total']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
