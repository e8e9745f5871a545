"""All trees at once, for clients with few rows: the same sums as a tree at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ffgb import FFGBClassifier
from ffgb.core import histograms
from ffgb.learners import boosted_trees


@pytest.mark.parametrize("learner", ["trees", "blend"])
def test_all_trees_at_once_or_one_after_the_other(learner: str, monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 5)).astype(np.float32)
    y = np.where(x[:, 0] * x[:, 1] + rng.normal(size=len(x)) > 0, 1, 0) + (x[:, 2] > 1)

    def model() -> bytes:
        classifier = FFGBClassifier(learner=learner, rounds=2, options={"leaf_rows": 10})
        return classifier.fit(x, y, clients=np.arange(len(x)) % 3).model_.to_bytes()

    together = model()
    monkeypatch.setattr(histograms, "FEW_ROWS", 0)
    monkeypatch.setattr(boosted_trees, "FEW_ROWS", 0)
    assert model() == together
