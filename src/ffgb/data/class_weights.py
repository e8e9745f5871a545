"""What rows of each class weigh in training: a rare class may count more than its share of the rows.

>>> weights_of("balanced", ("absent", "present"), np.array([0, 0, 0, 1]))
array([0.66666667, 2.        ])
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ffgb.core.types import Array
from ffgb.data.dataset import Dataset
from ffgb.errors import SettingError
from ffgb.settings import DATA, Setting

BALANCED = "balanced"


def weighted_by_class(dataset: Dataset, class_weight: str | None) -> Dataset:
    """The data set with this weight of each class in the weights of its training rows; rows held out keep theirs."""
    if class_weight is None:
        return dataset
    if not dataset.classes:
        raise SettingError("class_weight", "is for classes, and the target is a number; leave it out")
    each = weights_of(class_weight, dataset.classes, dataset.y)[dataset.y]
    return dataclasses.replace(dataset, weights=each if dataset.weights is None else dataset.weights * each)


def weights_of(text: str, classes: Sequence[str], y: Array) -> Array:
    """The weight of a row of each class: n / (classes · rows of the class) if balanced, 1 where none is given."""
    if text == BALANCED:
        rows = np.bincount(y, minlength=len(classes))
        return len(y) / (np.count_nonzero(rows) * np.maximum(rows, 1))
    given = dict(map(_pair, text.split(",")))
    if strange := [name for name in given if name not in classes]:
        some = ", ".join(map(repr, classes[:6])) + ", …" * (len(classes) > 6)
        raise SettingError("class_weight", f"names the class {strange[0]!r}; the classes are {some}")
    return np.array([given.get(name, 1.0) for name in classes])


def _pair(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not name.strip() or not 0.0 < weight < math.inf:
        raise SettingError(
            "class_weight", f"is {BALANCED}, or classes with positive weights such as sick=3,well=1, not {text!r}"
        )
    return name.strip(), weight


SETTINGS = (
    Setting(
        "class_weight",
        "text",
        "Weights of classes in training: balanced, or sick=3,well=1.",
        DATA,
        unset="all weigh the same",
        when="A rare class that must not be missed may count more. Predicted probabilities are then too high for it.",
    ),
)
