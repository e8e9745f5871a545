"""The numbers of docs/what-leaves.md, trees.md and blend.md: what can be computed about rows of data sets.

    FFGB_DATA=… python -m tests.privacy.measured sites heart wine breast_cancer adult cal_housing
    FFGB_DATA=… python -m tests.privacy.measured totals heart wine breast_cancer
    FFGB_DATA=… python -m tests.privacy.measured membership breast_cancer adult

`sites`: rows that are read from messages of single sites and from totals, of `--learner features` with all of its
features.  `totals`: what the totals of twenty rounds of trees, of a blend and of an additive model tell.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ffgb.core.merged_cells import MergedHistograms
from ffgb.features.tables import LEAST
from tests.privacy.attacks import judged, membership, read_by_the_curious, trained
from tests.privacy.cells import (
    alone_between_versions,
    few_between_trees,
    few_in_cells,
    pairs_that_follow,
    rows_by_counts,
)
from tests.privacy.totals import Totals, in_total

CLIENTS = {"heart": None, "wine": 5, "breast_cancer": 20, "adult": 20, "cal_housing": 20}
ONE: dict[str, Any] = {"clients": 1, "split": "iid"}


def sites(name: str) -> dict[str, int]:
    """Rows that are read."""
    settings: dict[str, Any] = {"data": (name,)} | ({"clients": CLIENTS[name]} if CLIENTS[name] else {})
    found: dict[str, int] = {}
    ways: dict[str, dict[str, Any]] = {"open, least 1": {"least": 1}, "open": {}, "masks": {"secure": "on"}}
    for what, more in ways.items():
        found[what] = read_by_the_curious(trained(**settings, **more)).read
    for least in (1, LEAST):
        seen = in_total(data=(name,), least=least)
        totals = Totals.of(seen)
        sets = np.column_stack([totals.intervals(), totals.complements()])
        found[f"total, least {least}"] = judged(seen, 0, [*totals.alone(sets), *totals.extremes()]).read
    return found


def totals(name: str, rounds: int = 20) -> dict[str, Any]:
    """Of each learner: rows."""
    found: dict[str, Any] = {}
    for learner in ("trees", "blend"):
        seen = trained(rounds, data=(name,), learner=learner, **ONE)
        known, few = rows_by_counts(seen), few_between_trees(seen, LEAST)
        columns = len(seen.state.job.family.layout.usable)  # type: ignore[attr-defined]
        counts = np.concatenate([answers[0].tensors["rows"] for _, answers in seen.answers(MergedHistograms)])
        found[learner] = {
            "rows": len(seen.dataset.y),
            "cells of gradients with few rows": int(((counts > 0) & (counts < LEAST)).sum()),
            "in a difference of trees over fewer than least": len(few),
            "alone in such a difference": sum(each == 1 for each in few.values()),
            "alone in a count": len(known),
            "half of the columns by counts": sum(k >= columns / 2 for k in known.values()),
            "all columns by counts": sum(k == columns for k in known.values()),
        }
        if learner == "blend":
            found[learner]["alone between versions"] = len(alone_between_versions(seen))
    seen = trained(8, data=(name,), learner="additive", **ONE)
    found["additive"] = {
        "in cells of few": len(few_in_cells(seen, LEAST)),
        "pairs that follow": pairs_that_follow(seen),
    }
    return found


def of_members(name: str) -> dict[str, float]:
    """Mean AUC by which members are told from others, with the standard error of the mean."""
    found: dict[str, float] = {}
    ways: dict[str, dict[str, Any]] = {"open": {}, "masks": {"secure": "on"}}
    for what, more in ways.items():
        clients = 100 if name == "adult" else CLIENTS[name]
        settings: dict[str, Any] = {"data": (name,), "features": 48} | ({"clients": clients} if clients else {})
        areas = membership(trained(3, **settings, **more), rounds=3)
        found |= {what: float(np.mean(areas)), f"{what}, ±": float(np.std(areas) / len(areas) ** 0.5)}
    return found


if __name__ == "__main__":
    for data in sys.argv[2:]:
        print(data, {"sites": sites, "totals": totals, "membership": of_members}[sys.argv[1]](data), flush=True)
