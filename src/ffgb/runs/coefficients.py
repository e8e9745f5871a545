"""Coefficients of a line (`--learner linear`) in the units of the columns, as a statistician reads them.

The learner sees columns that are cut off at their ends and standardised.  Undone, f is an intercept and a coefficient
for each column: of log odds, of the target's own units, or on the scale of a loss's link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ffgb.core.functions import ClosedSum
from ffgb.core.losses.links import Identity
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array
from ffgb.features.basic import Clip, Flatten, Standardize
from ffgb.learners.linear import Linear
from ffgb.runs.model import Model

INTERCEPT = "(intercept)"


def coefficients(model: Model, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Coefficients of a model, and what they are of; None if it is no line in its columns.

    `outputs` has a name for each f, `coefficients` a row for each column: its name, a value for each output, and the
    ends beyond which the column counts as at its end.
    """
    line = line_of(model)
    if line is None:
        return None
    slopes, intercept, low, high = line
    outputs, unit = [""], "log odds"
    if len(model.classes) == 2:
        if slopes.shape[1] == 2:
            slopes, intercept = slopes[:, 1:] - slopes[:, :1], intercept[1:] - intercept[:1]
        unit = f"log odds of {model.classes[1]}"
    elif model.classes:
        outputs, unit = list(model.classes), "scores, whose differences are log odds"
    elif not model.job.loss.alone:
        unit = "log hazard ratio"
    elif isinstance(model.job.loss.link, Identity):
        scale, mean = _target(model, slopes.shape[1])
        slopes, intercept, unit = slopes * scale, intercept * scale + mean, "the target's own units"
        outputs = [""] if slopes.shape[1] == 1 else [str(k) for k in range(slopes.shape[1])]
    else:
        unit = "log of the mean, over that of the training rows"
    names = list(model.columns) or [f"x{j}" for j in range(len(slopes))]
    rows = [
        {"column": name, "values": slope.tolist(), "low": _end(a), "high": _end(b)}
        for name, slope, a, b in zip(names, slopes, low, high, strict=True)
    ]
    first = {"column": INTERCEPT, "values": intercept.tolist(), "low": None, "high": None}
    return {"unit": unit, "outputs": outputs, "coefficients": [first, *rows], "errors": _errors(config)}


def line_of(model: Model) -> tuple[Array, Array, Array, Array] | None:
    """f as a line in the numbers of a point: slopes (D, c), intercept (c,), and the ends of each column."""
    family = model.family
    if not (isinstance(family, Linear) and isinstance(model.f, ClosedSum)):
        return None
    weight = model.f.parameters["weight"].astype(np.float64)
    slopes, intercept = weight[:-1], weight[-1]
    features: FeatureMap = family.features
    low, high = np.full(len(slopes), -np.inf), np.full(len(slopes), np.inf)
    while not isinstance(features, Flatten):
        match features:
            case Standardize(inner=inner, mean=mean, scale=scale):
                slopes = slopes / scale[:, None]
                intercept = intercept - mean @ slopes
                low, high = low * scale + mean, high * scale + mean
            case Clip(inner=inner, low=a, high=b):
                low, high = np.maximum(low, a), np.minimum(high, b)
            case _:
                return None
        features = inner
    return slopes, intercept, low, high


def _target(model: Model, outputs: int) -> tuple[Array, Array]:
    target = model.job.target
    if target is None:
        return np.ones(outputs), np.zeros(outputs)
    return np.broadcast_to(target.scale, outputs), np.broadcast_to(target.mean, outputs)


def _end(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _errors(config: Mapping[str, Any]) -> str:
    """Why there are no standard errors, and where there are some."""
    if config.get("ridge") == 0:
        return "The model has no penalty; ffgb glm fits the same kind of model, and has standard errors and p-values."
    return (
        "The model has a ridge, which draws coefficients towards 0: standard errors are not given. ffgb glm fits a "
        "model without a penalty, and has standard errors and p-values."
    )
