"""Sets from openml.org, downloaded when asked for by name: `openml:NAME`, `openml:NAME@VERSION` or `openml:ID`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data.dataset import CLASSIFICATION, HOLDOUT, REGRESSION, Dataset, hold_out
from ffgb.data.targets import encode, infer_task
from ffgb.errors import FFGBError

PREFIX = "openml:"


def load_openml(name: str, seed: int) -> Dataset:
    """Downloads a set, or takes it from scikit-learn's cache.  Version 1 unless a version is named: the bits must not
    change when someone uploads another."""
    from sklearn.datasets import fetch_openml

    which, _, version = name.removeprefix(PREFIX).partition("@")
    if not which or (version and not version.isdecimal()):
        raise FFGBError(f"{name!r} names no OpenML set; write openml:NAME, openml:NAME@VERSION or openml:ID")
    options: dict[str, Any] = {"data_id": int(which)} if which.isdecimal() else {"name": which}
    if "name" in options:
        options["version"] = int(version or 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "version 1 is inactive", which is what was asked for
            bunch = fetch_openml(**options, as_frame=True, n_retries=1)
    except ValueError as error:  # OpenML's own "no such set" is one, too
        raise FFGBError(f"OpenML has no table {which!r} that can be read ({error}); check it at openml.org") from error
    except OSError as error:
        raise FFGBError(
            f"{name} could not be downloaded ({error}); check the network connection, or save the set as CSV files and "
            "give those"
        ) from error
    return from_frame(name, bunch.data, bunch.target, seed)


def from_frame(name: str, data: pd.DataFrame, target: pd.Series[Any] | pd.DataFrame | None, seed: int) -> Dataset:
    """A table of numbers and categories as a data set.

    Categories become one column each, from the list that is published with the set.  A missing number is 0 with an
    indicator column besides, a missing category all zeros; rows without a target are left out, as are columns of free
    text or dates.
    """
    if not isinstance(target, pd.Series):
        raise FFGBError(f"{name} has no single target column; save the set as a CSV file and name the target")
    known = target.notna()
    data, target = data[known], target[known]
    blocks: list[Array] = []
    columns: list[str] = []
    for column in data.columns:
        values = data[column]
        if isinstance(values.dtype, pd.CategoricalDtype):
            categories = [str(category) for category in values.cat.categories]
            codes = values.cat.codes.to_numpy()
            blocks.append((codes[:, None] == np.arange(len(categories))).astype(np.float32))
            columns += [f"{column}={category}" for category in categories]
        elif pd.api.types.is_numeric_dtype(values.dtype):
            number = values.to_numpy(np.float64, na_value=np.nan)
            missing = ~np.isfinite(number)
            blocks.append(np.where(missing, 0, number)[:, None].astype(np.float32))
            columns.append(str(column))
            if missing.any():
                blocks.append(missing[:, None].astype(np.float32))
                columns.append(f"{column} missing")
    if not blocks or len(target) == 0:
        raise FFGBError(f"{name} has no rows with a target and numeric or categorical columns; choose another set")
    x = np.hstack(blocks)
    text = isinstance(target.dtype, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(target.dtype)
    values_y = target.astype(str).to_numpy(str) if text else target.to_numpy(np.float64)
    task = infer_task([values_y])
    classes: tuple[str, ...] = ()
    if task == CLASSIFICATION:
        classes, (y,) = encode([values_y])
    else:
        task, y = REGRESSION, values_y
    if task == CLASSIFICATION and len(classes) < 2:
        raise FFGBError(f"{name} has only one class, {classes[0]}; choose another set")
    train, test = hold_out(y, HOLDOUT, stream(seed, "holdout"))
    return Dataset(name, task, x[train], y[train], x[test], y[test], classes, tuple(columns))
