"""`ffgb recalibrate`: the model of a run with corrected probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.core.judgement import scores_of
from ffgb.core.recalibration import WAYS, recalibration
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError
from ffgb.files import atomic_write
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import held_out
from ffgb.runs.held_out import HeldOut
from ffgb.runs.model import Model

FOLDS = 10


def recalibrate_run(
    run: Run, output: Path, way: str = "platt", files: Sequence[str] = (), target: str | None = None
) -> dict[str, Any]:
    """Fit the map to held-out rows, or to files, write the model, and say what changes.

    Scores after are cross-fitted: rows of each tenth are corrected by a map that the others made.
    """
    model = Model.load(run.path)
    if not model.classes:
        raise FFGBError("only probabilities of classes are recalibrated; the model predicts a number")
    if way not in WAYS:
        raise SettingError("by", f"is {', '.join(WAYS)}, not {way!r}")
    rows = held_out(run, model, files, target)
    p = model.predict_proba(rows.x)
    found = replace(model, recalibration=recalibration(p, rows.y, rows.weights, way))
    after = cross_fitted(p, rows, way)
    atomic_write(output, found.to_bytes())
    return {
        "by": way,
        "rows": len(rows.y),
        "before": _scores(p, rows),
        "after": _scores(after, rows),
    }


def cross_fitted(p: Array, rows: HeldOut, way: str) -> Array:
    """Probabilities that were corrected by maps of other rows; folds are alike in classes and sites."""
    site = np.zeros(len(rows.y), np.int64) if rows.site is None else rows.site
    order = np.lexsort((stream(0, "recalibrate").permutation(len(rows.y)), rows.y, site))
    fold = np.empty(len(rows.y), np.int64)
    fold[order] = np.arange(len(rows.y)) % FOLDS
    found = np.empty_like(p)
    for k in range(FOLDS):
        others, own = fold != k, fold == k
        weights = None if rows.weights is None else rows.weights[others]
        found[own] = recalibration(p[others], rows.y[others], weights, way)(p[own])
    return found


def _scores(p: Array, rows: HeldOut) -> dict[str, float]:
    chances = np.maximum(p[np.arange(len(p)), rows.y], 1e-12)
    loss = float(np.average(-np.log(chances), weights=rows.weights))
    some = ("auc", "calibration_intercept", "calibration_slope")
    scores = scores_of(p, rows.y, rows.weights)
    return {"loss": loss} | {name: scores[name] for name in some if name in scores}
