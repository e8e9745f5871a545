"""Additive models: a constant plus a term a column, which has a value for each bin.

They are sums of trees of the family `BoostedTrees`, each of which splits one column only.  So whatever can be done
with a sum of trees can be done with an additive model: predict, export, distill, or boost further trees on top of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ffgb.core.functions import Family, Function, OpenFamily, OpenSum
from ffgb.core.splits import Splits
from ffgb.core.tree_growth import Grown
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.learners.boosted_trees import BoostedTrees, least_in_total, least_rows, leaves_of
from ffgb.settings import Values

CELLS_A_ROW = 2 / 3
"""Of all columns together, at most: rows in pairs of more cells would tell most rows whole (docs/additive.md)."""


class Additive(OpenFamily):
    """The name and the defaults of additive models; their family is that of boosted trees."""

    name: ClassVar[str] = "additive"
    trains: ClassVar[str] = BoostedTrees.name
    """The learner whose family its models are in."""
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 8, "regression_rounds": 6, "local_steps": 1, "schedule": "constant", "bins": 64, "leaves": 31,
    }  # fmt: skip
    layout = BoostedTrees.layout

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run: trees with a leaf a bin."""
        a_row = CELLS_A_ROW if least_in_total(config) > 1 else math.inf
        bins = inputs.bins(config.bins, least_rows(config), a_row)
        return BoostedTrees(bins, inputs.outputs, config.leaves)


def sum_of_terms(family: BoostedTrees, columns: Array, terms: Array) -> OpenSum:
    """An additive model as a sum of trees.

    `terms` has, for each output, the constant and then the values of the cells of the given columns, one column after
    another.  A column with more cells than a tree has leaves takes several trees.
    """
    ends = 1 + np.cumsum(family.layout.cells[columns])
    trees, outputs = list[Grown](), list[int]()
    for output, values in enumerate(terms):
        none = Splits.of([], [], [], family.layout.width)
        trees.append(Grown(none, values[:1], np.zeros((1, 3))))
        for column, end in zip(columns, ends, strict=True):
            cells = int(family.layout.cells[column])
            trees.extend(_trees(family, int(column), values[end - cells : end]))
        outputs.extend([output] * (len(trees) - len(outputs)))
    return family.sum_of(trees, outputs, 1.0)


def _trees(family: BoostedTrees, column: int, values: Array) -> list[Grown]:
    """Trees that add up to these values of a column's cells."""
    cells, at, found = len(values), 0, list[Grown]()
    while at < cells:
        # some cells have leaves of their own; those before them share a leaf, and those after
        own = min(cells - at, family.leaves - (at > 0))
        own = own if at + own == cells else own - 1
        if own < 1:
            raise FFGBError("a tree with two leaves cannot hold a bin between others; allow three leaves")
        starts = sorted({0, *range(at, at + own), *([at + own] if at + own < cells else [])})
        mine = np.zeros(cells)
        mine[at : at + own] = values[at : at + own]
        found.append(_tree(column, starts, mine, family.layout.width))
        at += own
    return found


def _tree(column: int, starts: Sequence[int], values: Array, width: int) -> Grown:
    """A balanced tree whose leaves are the ranges of cells that begin at these."""
    nodes, left, leaf_values = list[int](), list[Array](), dict[int, float]()
    ranges = [(0, 0, len(starts))]
    for node, first, last in ranges:
        if last - first == 1:
            leaf_values[node] = float(values[starts[first]])
            continue
        middle, split = (first + last) // 2, len(nodes)
        nodes.append(node)
        left.append(np.arange(len(values)) < starts[middle])
        ranges.extend([(2 * split + 1, first, middle), (2 * split + 2, middle, last)])
    splits = Splits.of(nodes, [column] * len(nodes), left, width)
    of_nodes = np.zeros(2 * len(nodes) + 1)
    of_nodes[list(leaf_values)] = list(leaf_values.values())
    return Grown(splits, of_nodes, np.zeros((len(of_nodes), 3)))


def is_additive(f: Function) -> bool:
    """Is this a sum of trees, none of which splits more than one column?"""
    if not isinstance(f, OpenSum):
        return False
    for block in f.blocks:
        node, column = block.stack["node"], block.stack["column"]
        lowest = np.where(node >= 0, column, 2**31 - 1).min(axis=1)
        if (np.where(node >= 0, column, -1).max(axis=1) > lowest).any():
            return False
    return True


def terms_of(f: Function, columns: Array) -> Array:
    """The constants and the terms of a sum of trees, as `sum_of_terms` takes them: of its trees that split none of
    the columns, or one of these alone."""
    family = f.family
    if not isinstance(family, BoostedTrees) or not isinstance(f, OpenSum):
        raise FFGBError("only a sum of trees has terms")
    cells = family.layout.cells
    first = dict(zip(columns.tolist(), 1 + np.concatenate([[0], np.cumsum(cells[columns])]), strict=False))
    found = np.zeros((family.outputs, 1 + int(cells[columns].sum())))
    # a row for each cell: all its columns have that cell
    every = np.repeat(np.arange(int(cells.max(initial=1)), dtype=np.uint8)[:, None], len(cells), axis=1)
    for block in f.blocks:
        stack = block.stack
        used = stack["node"] >= 0
        lowest = np.where(used, stack["column"], len(cells)).min(axis=1)
        split = np.where(used, stack["column"], -1).max(axis=1)  # the only column, or −1, of those that are taken
        taken = np.flatnonzero((split < 0) | ((split == lowest) & np.isin(split, columns)))
        some = {name: array[taken] for name, array in stack.items()}
        values = np.take_along_axis(some["value"], leaves_of(some, every), axis=1) * block.weights[taken, None]
        for output, column, row in zip(some["output"].tolist(), split[taken].tolist(), values, strict=True):
            at, size = (first[column], int(cells[column])) if column >= 0 else (0, 1)
            found[output, at : at + size] += row[:size]
    return found
