"""Trees over binned columns: a sum of them is what gradient boosting from totals trains (algorithms/trees_shared.py).

A tree adds to one entry of f.  It is a list of splits, each of which sends a set of cells to the left (core/splits.py),
and a value for each of its nodes, of which those of leaves count.  Values are whole multiples of 2^-40, so that sums of
them are exact: f has the same bits whatever the order of its trees, and wherever its rows are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ffgb.core.functions import Block, Family, OpenFamily, OpenSum
from ffgb.core.kernels import compiled
from ffgb.core.splits import Layout, Splits, by_column, check_trees, route
from ffgb.core.together import FEW_ROWS, route_all
from ffgb.core.tree_growth import Grown
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.bins import Bins
from ffgb.settings import LEARNER, Setting, Values

STEP = 2.0**-40
"""Of values."""
LARGEST_VALUE = 2.0**10
"""Of a leaf: thousands of such leaves still add up exactly."""
POINTS_IN_A_BLOCK, POINTS_FOR_NUMPY = 2**20, 2**15
"""Of which a sum of trees is computed; sums are exact, so they do not depend on it."""
LEAF_ROWS = 20
"""Of a leaf at least, all clients together, if no one says."""
ROW_SHARE = 0.7
"""Of a tree, if no one says."""
LEAST = 10
"""Rows of a bin and of a leaf, all clients together, if no one says."""


@dataclass(frozen=True, eq=False)
class BoostedTrees(OpenFamily):
    """Trees of so many leaves at most."""

    name: ClassVar[str] = "trees"
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20, "regression_rounds": 40, "local_steps": 1, "schedule": "constant", "bins": 100, "tree_rate": 0.8,
        "leaves": 31, "levels": 6, "trees_a_round": 8, "row_share": ROW_SHARE,
    }  # fmt: skip

    features: Bins
    outputs: int
    leaves: int = 31

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run."""
        return BoostedTrees(inputs.bins(config.bins, least_rows(config), math.inf), inputs.outputs, config.leaves)

    @property
    def layout(self) -> Layout:
        """The columns that trees split."""
        return self.features.layout

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        splits = max(self.leaves - 1, 1)
        return {
            "node": ((splits,), "int32"),
            "column": ((splits,), "int32"),
            "left": ((splits, self.layout.width), "int8"),
            "value": ((2 * splits + 1,), "float64"),
            "output": ((), "int32"),
        }

    def largest(self, name: str) -> float:
        return LARGEST_VALUE

    def check(self, parameters: Parameters) -> None:
        output = parameters["output"]
        if output.size and not (output.min() >= 0 and output.max() < self.outputs):
            raise FFGBError(f"its trees add to entries of f other than 0 … {self.outputs - 1}")
        if np.abs(parameters["value"]).max(initial=0.0) > LARGEST_VALUE:
            raise FFGBError(f"its leaves have values beyond {LARGEST_VALUE:g}")
        check_trees(parameters["node"], parameters["column"], self.features.dimension)

    def members(self, stack: Parameters, z: Array) -> Array:
        m = len(stack["node"])
        out = np.zeros((m, len(z), self.outputs))
        start = np.zeros(len(z), np.int32)
        for tree in range(m):
            splits = Splits(stack["node"][tree], stack["column"][tree], stack["left"][tree])
            out[tree, :, stack["output"][tree]] = stack["value"][tree][route(splits, z, start)]
        return out

    @property
    def points_in_a_block(self) -> int:
        return POINTS_IN_A_BLOCK

    def weighted_sum(self, weights: Array, stack: Parameters, z: Array) -> Array:
        out = np.zeros((len(z), self.outputs))
        if len(z) < FEW_ROWS:
            position = leaves_of(stack, z)
            values = weights[:, None] * np.take_along_axis(stack["value"], position, axis=1)
            np.add.at(out.T, stack["output"], values)
            return out
        trees = [Splits(*arrays) for arrays in zip(stack["node"], stack["column"], stack["left"], strict=True)]
        fast = compiled(len(z))
        if fast is not None:
            of_node = np.stack([splits.of_node for splits in trees])
            left = np.unpackbits(stack["left"].view(np.uint8), axis=2, bitorder="little")
            fast.add_leaves(by_column(z), of_node, stack["column"], left, stack["value"], stack["output"], weights, out)
            return out
        for first in range(0, len(z), POINTS_FOR_NUMPY):
            some = slice(first, first + POINTS_FOR_NUMPY)
            start = np.zeros(len(z[some]), np.int32)
            for splits, value, output, weight in zip(trees, stack["value"], stack["output"], weights, strict=True):
                out[some, output] += weight * value[route(splits, z[some], start)]
        return out

    def constant(self, values: Array) -> OpenSum:
        """A function that is the same everywhere: a tree without splits for each output."""
        none = Splits.of([], [], [], self.layout.width)
        trees = [Grown(none, np.array([value]), np.zeros((1, 3))) for value in values]
        return self.sum_of(trees, range(self.outputs), 1.0)

    def sum_of(self, trees: Any, outputs: Any, factor: float) -> OpenSum:
        """The sum of trees, each of which adds to one output, times a factor."""
        size, width = max(self.leaves - 1, 1), self.layout.width
        splits = [tree.splits.padded(size) for tree in trees]
        values = np.zeros((len(splits), 2 * size + 1))
        for row, tree in zip(values, trees, strict=True):
            row[tree.leaves] = rounded(factor * tree.values[tree.leaves])
        stack = {
            "node": np.stack([s.node for s in splits]),
            "column": np.stack([s.column for s in splits]),
            "left": np.stack([s.left for s in splits]).reshape(len(splits), size, width),
            "value": values,
            "output": np.array(list(outputs), np.int32),
        }
        return OpenSum(self, (Block(stack, np.ones(len(splits)), np.full(len(splits), np.inf)),))


def leaves_of(stack: Parameters, z: Array) -> Array:
    """The leaf of each tree that each of a few rows comes to, (trees, rows)."""
    tree, used = np.nonzero(stack["node"] >= 0)
    splits = Splits(*(stack[name][tree, used] for name in ("node", "column", "left")))
    position = np.zeros((len(stack["node"]), len(z)), np.int32)
    route_all(tree, splits, z, position)
    return position


def rounded(values: Array) -> Array:
    """As whole multiples of the step, not beyond the largest."""
    return np.clip(np.rint(values / STEP) * STEP, -LARGEST_VALUE, LARGEST_VALUE)


def least_rows(config: Values) -> int:
    """The rows that a bin and a leaf have at least, all clients together."""
    return max(int(config.leaf_rows or LEAF_ROWS), least_in_total(config))


def least_drawn(config: Values) -> int:
    """The rows that a leaf has at least of those that its tree is grown from."""
    return max(math.ceil(row_share(config) * int(config.leaf_rows or LEAF_ROWS)), least_in_total(config))


def row_share(config: Values) -> float:
    """The share of the rows that a tree is grown from."""
    return ROW_SHARE if config.row_share is None else float(config.row_share)


def least_in_total(config: Values) -> int:
    """The rows that anything that is summed has at least, all clients together."""
    return int(getattr(config, "least", None) or LEAST)


SETTINGS = (
    Setting(
        "bins", "whole", "Bins of a column, at most (trees, additive).", LEARNER, unset="by learner", least=2, most=255
    ),
    Setting("leaves", "whole", "Leaves of a tree, at most (trees).", LEARNER, unset="by learner", least=2, most=1024),
    Setting(
        "levels", "whole", "Levels of splits of a tree, at most (trees).", LEARNER, unset="by learner", least=1, most=32
    ),
    Setting(
        "leaf_rows",
        "whole",
        "Rows of a leaf, all clients together, at least; row_share times as many are in a tree (trees).",
        LEARNER,
        unset=f"{LEAF_ROWS}; blends of few rows, or of numbers, {LEAF_ROWS // 2}",
        least=1,
    ),
    Setting("leaf_hessian", "number", "Sum of Hessians of a leaf, at least (trees).", LEARNER, 1e-3, least=0.0),
    Setting("leaf_ridge", "number", "Added to a leaf's sum of Hessians (trees).", LEARNER, 1.0, least=0.0),
)
