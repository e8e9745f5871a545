"""Boosted trees of several kinds, blended by rows set aside (algorithms/blended.py): members are ordinary trees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

from ffgb.core.functions import Family
from ffgb.learners.boosted_trees import LEAF_ROWS, BoostedTrees, least_rows
from ffgb.settings import Values

MOST_ROUNDS = 100
FEW_ROWS = 1000
"""Of a table: its leaves may have half as many rows."""
MANY_ROWS, FAST = 10_000, 0.8
"""Of a table: its learning rate may be as of trees."""


def suiting(rows: int) -> dict[str, Any]:
    """Settings that suit a blend of a table of so many rows."""
    found: dict[str, Any] = {"leaf_rows": LEAF_ROWS // 2} if rows < FEW_ROWS else {}
    return found | ({"tree_rate": FAST} if rows >= MANY_ROWS else {})


@final
class Blend(BoostedTrees):
    """The trees of a blend."""

    name: ClassVar[str] = "blend"
    closing: ClassVar[int] = 1
    """Exchanges after the last round: clients get the result."""
    rehearsed: ClassVar[int] = 4000
    """Rows of a site's rehearsal, at least: with fewer, the additive model might be left out there, and not later."""
    defaults: ClassVar[Mapping[str, Any]] = {
        **BoostedTrees.defaults, "rounds": MOST_ROUNDS, "regression_rounds": MOST_ROUNDS, "tree_rate": 0.4,
    }  # fmt: skip

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run; bins have as many rows as usual although leaves may have fewer."""
        bins = inputs.bins(config.bins, max(least_rows(config), LEAF_ROWS), math.inf)
        return BoostedTrees(bins, inputs.outputs, config.leaves)
