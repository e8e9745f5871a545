"""Prediction sets and intervals of a model: their thresholds from held-out rows, and their use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from ffgb.core.conformal import Conformal
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option
from ffgb.runs.held_out import HeldOut
from ffgb.runs.model import Model

FILE = "conformal.json"
NONE = "none"
"""An empty set: the row is like no class at this coverage."""


def calibrated(model: Model, rows: HeldOut) -> Conformal | None:
    """Thresholds from rows that the model was not trained on; None for several targets, and for times."""
    if not model.classes and (model.job.loss.outputs != 1 or not model.job.loss.alone):
        return None
    site = np.zeros(len(rows.y), np.int64) if rows.site is None else rows.site
    names = list(rows.names) if rows.site is not None else ["all"]
    if model.classes:
        p = model.predict_proba(rows.x)
        return Conformal.of_scores(1.0 - p[np.arange(len(p)), rows.y], site, names, None)
    values = np.asarray(model.predict(rows.x)).reshape(-1)
    target = model.job.target
    scale = 1.0 if target is None else float(target.scale[0])
    return Conformal.of_scores(np.abs(values - rows.y.reshape(-1)), site, names, scale)


def load(path: Path) -> Conformal:
    """The thresholds of a run, or of a folder of a site."""
    file = path / FILE
    if not file.is_file():
        raise FFGBError(
            f"{option('coverage')} needs rows that were held out, and {path} has no {FILE}; name a run directory of a "
            "training that held out rows on this machine"
        )
    try:
        return Conformal.from_json(json.loads(file.read_text()))
    except (OSError, ValueError, FFGBError) as error:
        raise FFGBError(f"{file} cannot be read: {error}") from error


def sets(model: Model, x: Array, threshold: float) -> Array:
    """The classes of each row whose score stays below the threshold, (n, classes), bool."""
    held: Array = 1.0 - model.predict_proba(x) <= threshold
    return held


def intervals(model: Model, x: Array, threshold: float) -> tuple[Array, Array]:
    """The ends of the interval of each row, (n,) each."""
    values = np.asarray(model.predict(x)).reshape(-1)
    return values - threshold, values + threshold


def columns(model: Model, x: Array, threshold: float) -> pd.DataFrame:
    """The same as columns beside predictions: `set`, or `low` and `high`."""
    if model.classes:
        names = np.asarray(model.classes, object)
        return pd.DataFrame({"set": [" | ".join(names[row]) or NONE for row in sets(model, x, threshold)]})
    low, high = intervals(model, x, threshold)
    return pd.DataFrame({"low": low, "high": high})
