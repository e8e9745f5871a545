"""From target columns to class indices or numbers, the same way for all sites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffgb.core.types import Array
from ffgb.data.dataset import CLASSIFICATION, REGRESSION
from ffgb.errors import FFGBError, option


def time_and_event(target: str | None) -> tuple[str, str] | None:
    """The columns of a time and of an event, if a target names both; None if it is one column.

    >>> time_and_event("days,died"), time_and_event("price")
    (('days', 'died'), None)
    """
    names = [name.strip() for name in (target or "").split(",")]
    if len(names) == 1:
        return None
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise FFGBError(
            f"{option('target', target)} is neither one column nor the columns of a time and of an event, days,died"
        )
    return names[0], names[1]


def target_columns(target: str | None) -> tuple[str, ...]:
    """The columns that a target is made of."""
    return () if target is None else time_and_event(target) or (target,)


# Whole numbers that take no more values than this are class labels, unless the user says otherwise.
FEW_CLASSES = 20


def is_text(values: Array) -> bool:
    """Whether a target column holds text; otherwise it holds numbers."""
    return values.dtype.kind == "U"


def infer_task(targets: Sequence[Array]) -> str:
    """Text and few distinct whole numbers are classes; everything else is a number to predict.

    Whole numbers are recognised by value: one site may have stored 0 and 1 and another 0.0 and 1.0.
    """
    if any(values.ndim > 1 for values in targets):
        return REGRESSION
    if any(is_text(values) for values in targets):
        return CLASSIFICATION
    distinct = np.unique(np.concatenate([np.unique(values) for values in targets]))
    return CLASSIFICATION if len(distinct) <= FEW_CLASSES and np.all(distinct == np.round(distinct)) else REGRESSION


def encode(targets: Sequence[Array]) -> tuple[tuple[str, ...], list[Array]]:
    """Names of all classes that occur anywhere, sorted, and each site's labels as indices into them."""
    distinct = np.unique(np.concatenate([np.unique(values) for values in targets]))
    labels = [np.searchsorted(distinct, values).astype(np.int64) for values in targets]
    return tuple(class_names(distinct)), labels


def class_names(values: Array) -> list[str]:
    """Each row's class by name: 1.0 and 1 are the same class and print alike."""
    return [str(value) if isinstance(value, str) else f"{value:.15g}" for value in values.tolist()]
