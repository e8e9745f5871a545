"""Boosted trees of several kinds, blended by rows set aside (algorithms/blended.py): members are ordinary trees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

from ffgb.core.functions import Family
from ffgb.learners.additive import CELLS_A_ROW
from ffgb.learners.boosted_trees import LEAF_ROWS, BoostedTrees, least_rows
from ffgb.settings import Values

MOST_ROUNDS, MOST_REGRESSION_ROUNDS = 100, 200
FEW_ROWS = 1000
"""Of a table: its leaves may have half as many rows, as those of every regression."""
MANY_ROWS, FAST = 10_000, 0.8
"""Of a table: its learning rate may be as of trees."""
REGRESSION_RATE = 0.5
"""Of a table that does not have few rows, where numbers are predicted."""
ENOUGH_ROWS = 2_000
LARGE: Mapping[str, int] = {"leaves": 63, "levels": 7}
"""Of a table: where numbers are predicted, its trees may be larger."""
CELLS = 1200
"""Of all columns of numbers together, about: few columns may have more bins each."""
BINS, FINEST = 100, 255
"""Of a column, at least and at most, where numbers are predicted."""


def suiting(rows: int, columns: int, *, regression: bool) -> dict[str, Any]:
    """Settings that suit a blend of a table of so many rows, and columns of numbers.

    Where numbers are predicted, thresholds matter more than where classes are, and there is less to overfit.
    """
    found: dict[str, Any] = {"leaf_rows": LEAF_ROWS // 2} if regression or rows < FEW_ROWS else {}
    if regression:
        found["bins"] = max(BINS, min(FINEST, CELLS // max(columns, 1)))
        found |= {"tree_rate": REGRESSION_RATE} if rows >= FEW_ROWS else {}
        return {**found, **(LARGE if rows >= ENOUGH_ROWS else {})}
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
        **BoostedTrees.defaults, "rounds": MOST_ROUNDS, "regression_rounds": MOST_REGRESSION_ROUNDS, "tree_rate": 0.4,
        "trees_a_round": 6,
    }  # fmt: skip

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run; bins have as many rows as usual although leaves may have fewer.

        With few columns bins may have fewer rows, too: no more of them than an additive model takes.
        """
        usual = LEAF_ROWS
        if config.task == "regression":
            usual = min(usual, math.ceil(math.prod(inputs.shape) / CELLS_A_ROW))
        bins = inputs.bins(config.bins, max(least_rows(config), usual), math.inf)
        return BoostedTrees(bins, inputs.outputs, config.leaves)
