"""Boosted trees in an ONNX file: one TreeEnsembleRegressor over the columns' values.

Numbers are compared with the cuts between bins, NaN where they are missing.  A set of categories becomes a column of
its own, 0 where the category is in the set and 1 elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ffgb.core.functions import Block
from ffgb.core.splits import Splits
from ffgb.core.types import Array, Parameters
from ffgb.features.bins import Bins
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.onnx_graph import Graph, onnx_library

LARGEST = float(np.finfo(np.float64).max)


def values_of(phi: Bins, g: Graph, x: str, inputs: int) -> str:
    """The columns (n, C), float64: numbers, NaN where they are missing, and cells of categories."""
    flat = g.reshape(x, -1, inputs)
    numeric, categorical = np.flatnonzero(~phi.categorical), np.flatnonzero(phi.categorical)
    parts = []
    if len(numeric):
        value = g("Gather", flat, phi.inputs[phi.first_input[numeric]].astype(np.int64), axis=1)
        if (flagged := phi.flag[numeric] >= 0).any():
            flags = g("Gather", flat, np.maximum(phi.flag[numeric], 0).astype(np.int64), axis=1)
            gone = g("And", g("Equal", flags, np.ones(1, np.float32)), flagged)
            value = g("Where", gone, np.full(1, np.nan, np.float32), value)
        parts.append(g.cast(value, "float64"))
    if len(categorical):
        weight = np.zeros((inputs, len(categorical)))
        for k, c in enumerate(categorical.tolist()):
            weight[phi.inputs_of(c), k] = phi.cuts_of(c) - phi.otherwise[c]
        ones = g.cast(g("Equal", flat, np.ones(1, np.float32)), "float64")
        parts.append(g("Add", g("MatMul", ones, weight), phi.otherwise[categorical].astype(np.float64)))
    together = parts[0] if len(parts) == 1 else g("Concat", *parts, axis=1)
    place = np.argsort(np.concatenate([numeric, categorical]), kind="stable").astype(np.int64)
    return g("Gather", together, place, axis=1)


def sum_of_trees(family: BoostedTrees, stack: Parameters, block: Block, g: Graph, z: str) -> str:
    """All trees as one ensemble, their weights and radii in the leaves."""
    bins = family.features
    sets: dict[tuple[int, bytes], int] = {}
    """Sets of categories, by column; each is a column after those of z."""
    nodes: dict[str, list[Any]] = {name: [] for name in ("tree", "node", "feature", "mode", "true", "false", "value")}
    tracks, leaves = list[int](), list[tuple[int, int, int, float]]()
    for tree in range(len(block.weights)):
        splits = Splits(stack["node"][tree], stack["column"][tree], stack["left"][tree])
        values = block.weights[tree] * np.clip(stack["value"][tree], -block.radii[tree], block.radii[tree])
        for node in range(2 * int((splits.node >= 0).sum()) + 1):
            s = int(splits.of_node[node])
            if s < 0:
                leaves.append((tree, node, int(stack["output"][tree]), float(values[node])))
                _append(nodes, tree, node, 0, "LEAF", 0, 0, 0.0)
                tracks.append(0)
                continue
            column = int(splits.column[s])
            left = splits.goes_left[s, : bins.layout.cells[column]]
            feature, threshold, missing = column, 0.5, False
            if bins.categorical[column]:
                feature = bins.dimension + sets.setdefault((column, left.tobytes()), len(sets))
            else:
                threshold, missing = _threshold(bins, column, left)
            _append(nodes, tree, node, feature, "BRANCH_LEQ", 2 * s + 1, 2 * s + 2, threshold)
            tracks.append(int(missing))
    where, at, output, value = zip(*leaves, strict=True)
    from_array = onnx_library().numpy_helper.from_array
    settings = {
        "n_targets": family.outputs,
        "nodes_treeids": nodes["tree"],
        "nodes_nodeids": nodes["node"],
        "nodes_featureids": nodes["feature"],
        "nodes_modes": nodes["mode"],
        "nodes_truenodeids": nodes["true"],
        "nodes_falsenodeids": nodes["false"],
        "nodes_missing_value_tracks_true": tracks,
        "nodes_values_as_tensor": from_array(np.array(nodes["value"]), "thresholds"),
        "target_treeids": list(where),
        "target_nodeids": list(at),
        "target_ids": list(output),
        "target_weights_as_tensor": from_array(np.array(value), "values"),
    }
    made = g("TreeEnsembleRegressor", _with_sets(bins, sets, g, z), domain="ai.onnx.ml", **settings)
    return g.cast(made, "float64")


def _append(nodes: dict[str, list[Any]], *entries: Any) -> None:
    for column, entry in zip(nodes.values(), entries, strict=True):
        column.append(entry)


def _threshold(bins: Bins, column: int, left: Array) -> tuple[float, bool]:
    """What goes left in a column of numbers: up to where, and whether missing ones do."""
    count, cuts = int(left[: bins.bins[column]].sum()), bins.cuts_of(column)
    threshold = -LARGEST if count == 0 else LARGEST if count > len(cuts) else float(cuts[count - 1])
    return threshold, bool(bins.missing[column] and left[-1])


def _with_sets(bins: Bins, sets: dict[tuple[int, bytes], int], g: Graph, z: str) -> str:
    """The columns, and one for each set of categories."""
    parts, order = [z], list[int]()
    for column in sorted({column for column, _ in sets}):
        mine = [(number, np.frombuffer(left, bool)) for (c, left), number in sets.items() if c == column]
        outside = np.stack([~left for _, left in mine], axis=1).astype(np.float64)  # (cells, sets)
        cell = g.reshape(g.cast(g("Gather", z, np.array([column], np.int64), axis=1), "int64"), -1)
        parts.append(g("Gather", outside, cell, axis=0))
        order += [number for number, _ in mine]
    if not sets:
        return z
    place = np.concatenate([np.arange(bins.dimension), bins.dimension + np.argsort(order)]).astype(np.int64)
    return g("Gather", g("Concat", *parts, axis=1), place, axis=1)
