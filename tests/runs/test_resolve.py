"""Which ridge and which Gram a training in a shared geometry has, where none is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ffgb import Config
from ffgb.algorithms.ffgb_posterior import FFGBPosterior
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.data import Dataset
from ffgb.runs.learners import make_algorithm

N = 40


def table(columns: int) -> Dataset:
    x, y = np.zeros((N, columns), np.float32), np.arange(N) % 2
    return Dataset("x", "classification", x, y, x[:0], y[:0], ("0", "1"), tuple(f"x{j}" for j in range(columns)))


@pytest.mark.parametrize(
    ("columns", "settings", "gram", "ridge"),
    [
        (5, {}, "exact", None),
        (5, {"learner": "linear"}, "exact", None),
        (5, {"ridge": 0.5}, "exact", 0.5),
        (5, {"participation": 2}, "exact", 1 / N),
        (5, {"schedule": "constant"}, "exact", 1 / N),
        (5, {"validation": 0.2}, "exact", 1 / N),
        (5, {"gram": "nystrom"}, "nystrom", 0.1 / N),
        (600, {}, "exact", 1 / N),  # its features are too many for eigenvectors
        (600, {"learner": "linear"}, "exact", None),
        (5000, {"learner": "linear"}, "nystrom", 0.1 / N),
    ],
)
def test_the_ridge_is_chosen_by_evidence_where_nothing_else_chooses_it(
    columns: int, settings: dict[str, Any], gram: str, ridge: float | None
) -> None:
    given = {"learner": "features", **settings}
    config = Config(data=("x",), clients=4, split="iid", **given).resolved(table(columns))
    assert config.gram == gram
    assert config.ridge == pytest.approx(ridge)
    assert isinstance(make_algorithm(config), FFGBPosterior if ridge is None else FFGBShared)
