"""What each column adds to f at one row: exact Shapley values of a sum of trees.

v(S) is the mean of f if the columns in S are as in the row, and all others are drawn independently, each from its own
distribution over cells.  A leaf is reached if each column c on its path lies in a set of cells; the row does (a_c = 1)
or does not (0), and a drawn value does with the chance q_c.  So a leaf adds value · Π_{c∈S} a_c Π_{c∉S} q_c to v(S).
The Shapley value of column c in this game is the integral of a polynomial (Owen 1972), and Gauss's rule is exact:

    value · (a_c − q_c) ∫₀¹ Π_{e≠c} (q_e + t (a_e − q_e)) dt

The values of all columns and v(∅) add up to f.  Only the distributions of single columns are needed: counts by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.splits import Splits
from ffgb.core.types import Array, Parameters


@final
@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf of a tree: its value, the output that it adds to, and the cells that each column on its path may have."""

    value: float
    output: int
    columns: tuple[int, ...]
    allowed: tuple[Array, ...]
    """For each column, a truth value a cell."""


def leaves(stack: Parameters, weights: Array, cells: Array) -> Iterator[Leaf]:
    """The leaves of stacked trees (learners/boosted_trees.py); `cells` has the number of cells of each column."""
    for tree, weight in enumerate(weights):
        splits = Splits(stack["node"][tree], stack["column"][tree], stack["left"][tree])
        of_node, goes_left = splits.of_node, splits.goes_left
        open_nodes: list[tuple[int, dict[int, Array]]] = [(0, {})]
        for node, allowed in open_nodes:
            split = int(of_node[node]) if node < len(of_node) else -1
            if split < 0:
                value = float(weight * stack["value"][tree][node])
                if value != 0.0:
                    yield Leaf(value, int(stack["output"][tree]), tuple(allowed), tuple(allowed.values()))
                continue
            column = int(splits.column[split])
            left = goes_left[split][: int(cells[column])]
            before = allowed.get(column, np.ones(len(left), bool))
            open_nodes.append((2 * split + 1, {**allowed, column: before & left}))
            open_nodes.append((2 * split + 2, {**allowed, column: before & ~left}))


def contributions(some: Iterator[Leaf], z: Array, shares: Sequence[Array], outputs: int) -> tuple[Array, Array]:
    """Contributions (n, columns, outputs) at rows of cells z (n, columns), and v(∅), (outputs,).

    Parameters
    ----------
    some
        The leaves of all trees.
    z
        Cells of rows.
    shares
        For each column, the share of rows in each of its cells.
    outputs
        Entries of f.
    """
    found, base = np.zeros((len(z), z.shape[1], outputs)), np.zeros(outputs)
    for leaf in some:
        q = np.array([shares[c][mask].sum() for c, mask in zip(leaf.columns, leaf.allowed, strict=True)])
        base[leaf.output] += leaf.value * q.prod()
        if not leaf.columns:
            continue
        a = np.stack([mask[z[:, c]] for c, mask in zip(leaf.columns, leaf.allowed, strict=True)], axis=1)
        found[:, leaf.columns, leaf.output] += leaf.value * _shapley(a.astype(np.float64), q)
    return found, base


def _shapley(a: Array, q: Array) -> Array:
    """The Shapley values of the product game of each row, (n, m)."""
    nodes, weights = np.polynomial.legendre.leggauss(len(q) // 2 + 1)  # exact up to a degree of m + 1
    t = ((nodes + 1) / 2)[:, None, None]
    factors = q + t * (a - q)  # (nodes, n, m)
    before, after = np.ones_like(factors), np.ones_like(factors)
    before[..., 1:] = np.cumprod(factors[..., :-1], axis=-1)
    after[..., :-1] = np.cumprod(factors[..., :0:-1], axis=-1)[..., ::-1]
    return (a - q) * np.tensordot(weights / 2, before * after, axes=1)
