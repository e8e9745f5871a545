"""Slopes of calibration before and after `ffgb recalibrate`, on tables of two classes.

    python experiments/recalibration.py

Tables and sites are those of conformal.py.  A model is trained on half of the rows.  The others are dealt out 50 times,
half to fit the map, half to look at the slope (1 is right).  The mean over deals is what a user may expect; a single
deal is as uncertain as its few rows.

With few rows that are nearly separated, the slope itself is biased away from 0.  `right` is what the same estimate says
of the probabilities after `platt` if classes are drawn from them, so that they are right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from conformal import MOST, TABLES
from ffgb import FFGBClassifier
from ffgb.core.judgement import scores_of
from ffgb.core.recalibration import WAYS, recalibration
from ffgb.errors import FFGBError

NAMES = ("adult", "fair", "hastie", "breast_cancer", "heart")
LEARNERS, DEALS = ("features", "trees", "additive"), 50


def slopes(name: str, learner: str) -> dict[str, Any]:
    x, y, _ = TABLES[name]()
    some = np.random.default_rng(0).permutation(len(y))[:MOST]
    x, y = np.asarray(x, np.float32)[some], np.asarray(y)[some]
    rng = np.random.default_rng(3)
    train = rng.random(len(y)) < 0.5
    p = FFGBClassifier(learner=learner).fit(x[train], y[train]).predict_proba(x[~train])
    y = y[~train]
    found: dict[str, list[float]] = {way: [] for way in ("before", *WAYS, "right")}
    drawing = np.random.default_rng(4)
    for _ in range(DEALS):
        first = rng.random(len(y)) < 0.5
        for way, own in found.items():
            labels = y[~first]
            try:
                used = "platt" if way == "right" else way
                after = p[~first] if way == "before" else recalibration(p[first], y[first], None, used)(p[~first])
            except FFGBError:
                continue
            if way == "right":
                labels = (drawing.random(len(after)) < after[:, 1]).astype(int)
            if (slope := scores_of(after, labels).get("calibration_slope")) is not None:
                own.append(slope)
    rows = {"rows that fit the map": len(y) // 2}
    return rows | {
        way: [round(float(np.mean(own)), 3), round(float(np.std(own)), 3)] for way, own in found.items() if own
    }


def main() -> None:
    found = {}
    for name in sys.argv[1:] or NAMES:
        for learner in LEARNERS:
            found[f"{name}, {learner}"] = slopes(name, learner)
            print(name, learner, found[f"{name}, {learner}"], flush=True)
    content = {"deals": DEALS, "mean and deviation of slopes": found}
    Path(__file__).with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
