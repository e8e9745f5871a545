"""Functions in an ONNX file: from features (n, D) to values (n, c), float64, as sums of stacked members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch

import numpy as np

from ffgb.core.functions import Block, Clipped, ClosedSum, Family, Function, OpenSum
from ffgb.core.types import Array
from ffgb.errors import FFGBError, command
from ffgb.learners.adapter import Resident
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.runs.onnx_graph import Graph, onnx_library
from ffgb.runs.onnx_trees import sum_of_trees

MEMBERS_AT_ONCE = 64
"""Members of a sum that are evaluated side by side: more would need more memory for the rows of one call."""


# Functions: from (n, D) to (n, c), float64


@singledispatch
def function(f: Function, g: Graph, z: str) -> str:
    raise FFGBError(f"a function of the kind {type(f).__name__} has no ONNX form")


@function.register
def _(f: Clipped, g: Graph, z: str) -> str:
    return g("Clip", function(f.inner, g, z), np.array(-f.radius), np.array(f.radius))


@function.register
def _(f: Resident, g: Graph, z: str) -> str:
    f.tensors()  # says why there are none
    raise AssertionError


@function.register
def _(f: ClosedSum, g: Graph, z: str) -> str:
    return _sum(f.family, Block.of(f.parameters), g, z)


@function.register
def _(f: OpenSum, g: Graph, z: str) -> str:
    (block,) = f.merged().blocks
    return _sum(f.family, block, g, z)


def _sum(family: Family, block: Block, g: Graph, z: str) -> str:
    """Σ w_m Π_{R_m}(h_m), some members at a time."""
    stack = {name: p.astype(family.spec[name][1]) for name, p in block.stack.items()}
    if isinstance(family, Tree):
        return _trees(family, stack, block, g, z)
    if isinstance(family, BoostedTrees) and len(block.weights):
        return sum_of_trees(family, stack, block, g, z)
    total: str | None = None
    for start in range(0, len(block.weights), MEMBERS_AT_ONCE):
        some = slice(start, start + MEMBERS_AT_ONCE)
        h = g.cast(members(family, {name: p[some] for name, p in stack.items()}, g, z), "float64")  # (m, n, c)
        radii = block.radii[some, None, None]
        if np.isfinite(radii).any():
            h = g("Max", g("Min", h, radii), -radii)
        part = g("ReduceSum", g("Mul", h, block.weights[some, None, None]), np.array([0], np.int64), keepdims=0)
        total = part if total is None else g("Add", total, part)
    if total is None:  # no member at all: 0
        return g.cast(g("MatMul", z, np.zeros((family.features.dimension, family.outputs), np.float32)), "float64")
    return total


# Families: the values (m, n, c), float32, of a stack of m members


@singledispatch
def members(family: Family, stack: Mapping[str, Array], g: Graph, z: str) -> str:
    raise FFGBError(f"members of {type(family).__name__} have no ONNX form; distil the model first: ffgb distill RUN")


@members.register
def _(family: Linear, stack: Mapping[str, Array], g: Graph, z: str) -> str:
    weight = stack["weight"]  # (m, D + 1, c)
    m, d, c = weight.shape
    # in float64: scores of hundreds, which confident models have, would lose the fifth digit of a probability
    wide = weight[:, :-1].transpose(1, 0, 2).reshape(d - 1, m * c).astype(np.float64)
    h = g("Add", g("MatMul", g.cast(z, "float64"), wide), weight[:, -1].reshape(m * c).astype(np.float64))
    return _first(g, h, m, c)


@members.register
def _(family: MLP, stack: Mapping[str, Array], g: Graph, z: str) -> str:
    return _dense(stack, g, z, lambda h: g("LeakyRelu", h, alpha=family.slope))


@members.register
def _(family: LipschitzMLP, stack: Mapping[str, Array], g: Graph, z: str) -> str:
    def pairs(h: str) -> str:
        n = len(g.nodes)
        upper, lower = g.several("Split", [f"{g.prefix}v{n}", f"{g.prefix}w{n}"], h, axis=2, num_outputs=2)
        return g("Concat", g("Max", upper, lower), g("Min", upper, lower), axis=2)

    return _dense(stack, g, z, pairs)


@members.register
def _(family: Net, stack: Mapping[str, Array], g: Graph, z: str) -> str:
    if family.module != "cnn":
        raise FFGBError(
            f"the module {family.module!r} is code of your own, which has no ONNX form here; distil the model first: "
            + command("distill", "RUN", by="server")
        )
    m = len(stack["conv1.weight"])
    x = g.reshape(z, -1, *family.shape)
    for layer, groups in (("conv1", 1), ("conv2", m)):  # the members share the image, and then go on side by side
        weight, bias = stack[f"{layer}.weight"], stack[f"{layer}.bias"]
        x = g("Conv", x, weight.reshape(-1, *weight.shape[2:]), bias.reshape(-1), group=groups)
        x = g("Relu", g("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    h = g("Transpose", g.reshape(x, 0, m, -1), perm=[1, 0, 2])
    for number in range(1, len(family.hidden) + 2):
        weight, bias = stack[f"fc{number}.weight"], stack[f"fc{number}.bias"]
        h = g("Add", g("MatMul", h, np.ascontiguousarray(weight.transpose(0, 2, 1))), bias[:, None, :])
        h = g("Relu", h) if number <= len(family.hidden) else h
    return h


def _dense(stack: Mapping[str, Array], g: Graph, z: str, activation: Callable[[str], str]) -> str:
    """Fully connected layers of m members: the first ones are one wide matrix, for they share their input."""
    m, units, inputs = stack["0.weight"].shape
    wide = g("MatMul", z, stack["0.weight"].reshape(m * units, inputs).T)
    h = _first(g, g("Add", wide, stack["0.bias"].reshape(m * units)), m, units)
    for layer in range(1, len(stack) // 2):
        weight, bias = stack[f"{layer}.weight"], stack[f"{layer}.bias"]
        h = g("Add", g("MatMul", activation(h), weight.transpose(0, 2, 1)), bias[:, None, :])
    return h


def _first(g: Graph, wide: str, m: int, units: int) -> str:
    """(n, m · units) as (m, n, units)."""
    return g("Transpose", g.reshape(wide, -1, m, units), perm=[1, 0, 2])


def _trees(family: Tree, stack: Mapping[str, Array], block: Block, g: Graph, z: str) -> str:
    """All trees of a sum as one ensemble, their weights and radii in its leaves."""
    m, inner = stack["feature"].shape
    leaves, c = stack["value"].shape[1:]
    if m == 0:
        return g.cast(g("MatMul", z, np.zeros((family.features.dimension, c), np.float32)), "float64")
    radii = block.radii[:, None, None]
    values = block.weights[:, None, None] * np.clip(stack["value"], -radii, radii)
    nodes = np.tile(np.arange(inner + leaves), m)
    tree = np.repeat(np.arange(m), inner + leaves)
    is_leaf = nodes >= inner
    feature = np.concatenate([stack["feature"], np.zeros((m, leaves), np.int32)], axis=1).ravel()
    threshold = np.concatenate([stack["threshold"], np.zeros((m, leaves))], axis=1).ravel()
    onnx = onnx_library()
    settings = {
        "n_targets": c,
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": nodes.tolist(),
        "nodes_featureids": feature.tolist(),
        "nodes_modes": np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_truenodeids": np.where(is_leaf, 0, 2 * nodes + 1).tolist(),
        "nodes_falsenodeids": np.where(is_leaf, 0, 2 * nodes + 2).tolist(),
        "nodes_values_as_tensor": onnx.numpy_helper.from_array(threshold.astype(np.float64), "thresholds"),
        "target_treeids": np.repeat(np.arange(m), leaves * c).tolist(),
        "target_nodeids": np.tile(np.repeat(np.arange(inner, inner + leaves), c), m).tolist(),
        "target_ids": np.tile(np.arange(c), m * leaves).tolist(),
        "target_weights_as_tensor": onnx.numpy_helper.from_array(values.ravel().astype(np.float64), "values"),
    }
    made = g("TreeEnsembleRegressor", g.cast(z, "float64"), domain="ai.onnx.ml", **settings)
    return g.cast(made, "float64")
