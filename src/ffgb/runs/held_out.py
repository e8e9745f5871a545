"""Rows that a model is judged by, and their subgroups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from ffgb.core.baseline import Baseline
from ffgb.core.types import Array
from ffgb.errors import SettingError
from ffgb.features.tables import MISSING
from ffgb.runs.model import Model

FEW_VALUES = 6
"""A column of at most so many numbers is one of categories, for subgroups."""
QUARTERS = (0.25, 0.5, 0.75)


@final
@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that a model is judged by."""

    x: Array
    y: Array
    names: Sequence[str]
    """Of sites."""
    site: Array | None
    """The number of each row's site; None if rows are of no site."""
    weights: Array | None = None
    baseline: Baseline | None = None
    """Hazards of a model of times until an event."""


def subgroups(model: Model, x: Array, column: str) -> tuple[list[str], Array]:
    """The groups of a column in words, and the group of each row: categories, few numbers, or quarters."""
    names = list(model.columns)
    categories = [name for name in names if name.startswith(f"{column}=")]
    if categories:
        place = x[:, [names.index(name) for name in categories]]
        group = np.where(place.any(axis=1), place.argmax(axis=1), len(categories))
        words = [name.partition("=")[2] for name in categories]
        return [*words, "any other"], group
    if column not in names:
        raws = dict.fromkeys(name.partition("=")[0] for name in names if not name.endswith(f" {MISSING}"))
        raise SettingError("by", f"names {column!r}, which the model has no column of; there are {', '.join(raws)}")
    values = x[:, names.index(column)].astype(np.float64)
    different = np.unique(values)
    if len(different) <= FEW_VALUES:
        words, group = [f"{v:g}" for v in different], np.searchsorted(different, values)
    else:
        cuts = np.unique([rounded(c) for c in np.quantile(values, QUARTERS)])
        ends = [f"{c:g}" for c in cuts]
        words = [
            f"below {ends[0]}",
            *(f"{a} to {b}" for a, b in pairwise(ends)),
            f"{ends[-1]} or more",
        ]
        group = np.searchsorted(cuts, values, side="right")
    flag = f"{column} {MISSING}"
    if flag in names:
        gone = x[:, names.index(flag)] == 1
        words, group = [*words, "missing"], np.where(gone, len(words), group)
    return words, group


def rounded(value: float) -> float:
    """A number in two figures: a quantile itself is a row's value.

    >>> rounded(53.7), rounded(0.01234)
    (54.0, 0.012)
    """
    return float(f"{value:.1e}") if math.isfinite(value) else value
