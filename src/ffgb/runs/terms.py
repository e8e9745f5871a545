"""The terms of an additive model as a table: what each bin of each column adds to f."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ffgb.core.losses.links import Identity
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option
from ffgb.learners.additive import is_additive, terms_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.model import Model


def terms(model: Model) -> pd.DataFrame:
    """A row for each column, bin and output: the bin in words, its ends if it is one of numbers, and its value.

    The first rows have the constant.  Values are added to f; for a loss with the identity link they are in the target's
    own units.
    """
    family = model.family
    if not isinstance(family, BoostedTrees) or not is_additive(model.f):
        raise FFGBError(
            "only an additive model has a term for each column; train one with "
            f"{option('learner', 'additive')}, and without trees on top of it"
        )
    columns = family.layout.usable
    values = _in_units(model, terms_of(model.f, columns))
    names = _outputs(model, len(values))
    rows: list[dict[str, Any]] = []
    for name, (constant, *_) in zip(names, values, strict=True):
        rows.append({"column": "", "bin": "constant", "low": np.nan, "high": np.nan, "output": name, "value": constant})
    at = 1
    for column in columns.tolist():
        for cell, (words, low, high) in enumerate(_bins(model, family, column)):
            for name, own in zip(names, values, strict=True):
                rows.append(
                    {
                        "column": family.features.names[column], "bin": words, "low": low, "high": high,
                        "output": name, "value": own[at + cell],
                    }
                )  # fmt: skip
        at += int(family.layout.cells[column])
    return pd.DataFrame(rows)


def _in_units(model: Model, values: Array) -> Array:
    target = model.job.target
    if model.job.loss.classification or target is None or not isinstance(model.job.loss.link, Identity):
        return values
    found: Array = values * target.scale[:, None]
    found[:, 0] += target.mean
    return found


def _outputs(model: Model, number: int) -> list[str]:
    """A class for each output, the second class if there is one output for two, or a number."""
    if not model.classes:
        return [str(k) for k in range(number)]
    return list(model.classes) if number == len(model.classes) else [model.classes[-1]]


def _bins(model: Model, family: BoostedTrees, column: int) -> Iterator[tuple[str, float, float]]:
    """Each cell in words, with the ends of a bin of numbers."""
    bins = family.features
    cuts, cells = bins.cuts_of(column), int(bins.layout.cells[column])
    if bins.categorical[column]:
        known = [model.columns[j] if j < len(model.columns) else f"x{j}" for j in bins.inputs_of(column)]
        for cell in range(cells):
            own = [name.partition("=")[2] for name, place in zip(known, cuts, strict=True) if place == cell]
            other = cell == int(bins.otherwise[column])
            yield " or ".join([*own, *(["any other"] if other else [])]), np.nan, np.nan
        return
    ends = [-np.inf, *cuts.astype(float).tolist(), np.inf]
    for low, high in pairwise(ends):
        yield f"{low:g} to {high:g}", low, high
    if bins.missing[column]:
        yield "missing", np.nan, np.nan
