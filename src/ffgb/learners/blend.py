"""Boosted trees of several kinds, blended by rows set aside (algorithms/blended.py): members are ordinary trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from ffgb.learners.boosted_trees import BoostedTrees

MOST_ROUNDS = 100


@final
class Blend(BoostedTrees):
    """The trees of a blend."""

    name: ClassVar[str] = "blend"
    closing: ClassVar[int] = 1
    """Exchanges after the last round: clients get the result."""
    defaults: ClassVar[Mapping[str, Any]] = {
        **BoostedTrees.defaults, "rounds": MOST_ROUNDS, "regression_rounds": MOST_ROUNDS, "tree_rate": 0.4,
    }  # fmt: skip
