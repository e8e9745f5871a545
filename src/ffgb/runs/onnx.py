"""A model as one ONNX file, preprocessing included, that runs without ffgb.  Only this file and onnx_trees.py use onnx.

Every feature map, every family and every kind of sum becomes a few nodes of ONNX's standard operators.  Arithmetic is
float32 where ours is, and float64 where ours is, so that the results agree; a file is tried in onnxruntime against our
own predictions before it is said to be there.

A model of tables has an input for each raw column, (n, 1): float numbers, NaN where one is missing, or strings, empty
where one is missing.  Other models have one input x, (n, columns) or (n, channels, height, width).  The outputs are
label, (n,) strings, and probabilities, (n, classes), or prediction.  If a column has the name of an output, the output
is called that with an underscore after it: label_.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb._version import __version__
from ffgb.core.functions import Block, Clipped, ClosedSum, Family, Function, OpenSum
from ffgb.core.judgement import CLOSEST
from ffgb.core.maps import FeatureMap
from ffgb.core.recalibration import Recalibration
from ffgb.core.types import Array
from ffgb.data.preprocess import Table
from ffgb.errors import FFGBError, command, missing_extra, option
from ffgb.features.basic import TURN, Clip, Concatenate, Flatten, Standardize
from ffgb.features.bins import Bins
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import RandomFourier
from ffgb.features.patches import Patches
from ffgb.features.tables import Columns, ObliviousTrees, RankWaves, Steps
from ffgb.files import atomic_write, put, staged
from ffgb.learners.adapter import Resident
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.runs.model import Model
from ffgb.runs.onnx_trees import sum_of_trees, values_of

OPSET, ML_OPSET, IR_VERSION = 18, 3, 9
MEMBERS_AT_ONCE = 64
"""Members of a sum that are evaluated side by side: more would need more memory for the rows of one call."""
TOLERANCE = 1e-5
"""How far an exported model may be from ours: in probabilities, or relative to the size of predictions."""
MISSING = ""
"""A category that is missing, as a string."""
ROWS, IMAGES = 1000, 500
"""That a file is tried on before it is written."""
DIGITS = 0.01
"""Of a prediction float32 keeps seven digits: at this share of its size the tolerance is as coarse as that."""


@final
@dataclass
class Graph:
    """Nodes and constants on their way to a file; values are known by their names."""

    prefix: str = "ffgb_"
    """Of all names that are made here: no column's name begins with it."""
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def __call__(self, operator: str, *inputs: str | Array, name: str = "", domain: str = "", **settings: Any) -> str:
        """The name of what an operator makes of values and constants."""
        name = name or f"{self.prefix}v{len(self.nodes)}"
        return self.several(operator, [name], *inputs, domain=domain, **settings)[0]

    def several(
        self, operator: str, names: list[str], *inputs: str | Array, domain: str = "", **settings: Any
    ) -> list[str]:
        given = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(_onnx().helper.make_node(operator, given, names, domain=domain, **settings))
        return names

    def constant(self, value: Array) -> str:
        name = f"{self.prefix}c{len(self.constants)}"
        tensor = _onnx().numpy_helper.from_array(np.ascontiguousarray(value), name)
        self.constants.append(tensor)
        return name

    def cast(self, value: str, dtype: str, name: str = "") -> str:
        kind = getattr(_onnx().TensorProto, {"float32": "FLOAT", "float64": "DOUBLE", "int64": "INT64"}[dtype])
        return self("Cast", value, name=name, to=kind)

    def reshape(self, value: str, *shape: int) -> str:
        """To this shape; 0 keeps a length, −1 is what remains."""
        return self("Reshape", value, np.array(shape, np.int64))


def _f32(*values: float) -> Array:
    return np.array(values, np.float32)


def _onnx() -> Any:
    try:
        import onnx
        import onnx.compose
        import onnx.helper
        import onnx.numpy_helper
        import onnx.version_converter
    except ImportError as error:
        raise missing_extra("onnx", "onnx", "the export") from error
    return onnx


def output_names(model: Model) -> dict[str, str]:
    """What the outputs are called in the file: as ever, with an underscore more where a column has that name."""
    taken = {c.name for c in model.table.columns} if model.table is not None else {"x"}
    found = {}
    for name in ("label", "probabilities") if model.job.loss.classification else ("prediction",):
        free = name
        while free in taken:
            free += "_"
        found[name] = free
    return found


def _prefix(model: Model) -> str:
    """What no column's name begins with."""
    names = [] if model.table is None else [c.name for c in model.table.columns]
    if "" in names:
        raise FFGBError("a column has no name, and an ONNX file's inputs have one each; give it one and train again")
    prefix = "ffgb_"
    while any(name.startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


def to_onnx(model: Model) -> bytes:
    """The file's bytes."""
    onnx, g = _onnx(), Graph(_prefix(model))
    helper, kinds = onnx.helper, onnx.TensorProto
    if model.table is not None:
        inputs = [
            helper.make_tensor_value_info(c.name, kinds.FLOAT if c.categories is None else kinds.STRING, ["n", 1])
            for c in model.table.columns
        ]
        x = _table(model.table, g)
    else:
        inputs = [helper.make_tensor_value_info("x", kinds.FLOAT, ["n", *model.shape])]
        x = "x"
    f = function(model.f, g, features(model.family.features, g, x, model.shape))
    outputs = _outputs(model, g, f)
    graph = helper.make_graph(g.nodes, "ffgb", inputs, outputs, g.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ffgb", producer_version=__version__
    )
    if promise := getattr(model.job.algorithm, "promise", ""):
        entry = made.metadata_props.add()
        entry.key, entry.value = "privacy", promise
    data: bytes = made.SerializeToString()
    return data


def _linked(model: Model, g: Graph, f: str) -> str:
    """The mean of the target in training units, by the link of the loss."""
    operation, attributes = model.job.loss.link.onnx
    more: dict[str, Any] = dict(attributes)
    return f if operation == "Identity" else g(operation, f, **more)


def _outputs(model: Model, g: Graph, f: str) -> list[Any]:
    """Class names and probabilities; or values in the target's own units."""
    onnx = _onnx()
    helper, kinds, names = onnx.helper, onnx.TensorProto, output_names(model)
    if not model.job.loss.classification:
        f = _linked(model, g, f)
        target = model.job.target
        if target is not None:
            f = g("Add", g("Mul", f, target.scale.astype(np.float64)), target.mean.astype(np.float64))
        several = model.job.loss.outputs > 1
        g.cast(f if several else g.reshape(f, -1), "float32", names["prediction"])
        shape = ["n", model.job.loss.outputs] if several else ["n"]
        return [helper.make_tensor_value_info(names["prediction"], kinds.FLOAT, shape)]
    p = _linked(model, g, f)
    if model.job.loss.outputs == 1:
        p = g("Concat", g("Sub", np.ones(1), p), p, axis=1)
    if model.recalibration is not None:
        p = _recalibrated(model.recalibration, len(model.classes), g, p)
    g("Gather", np.array(model.classes, object), g("ArgMax", p, axis=1, keepdims=0), name=names["label"])
    g.cast(p, "float32", names["probabilities"])
    return [
        helper.make_tensor_value_info(names["label"], kinds.STRING, ["n"]),
        helper.make_tensor_value_info(names["probabilities"], kinds.FLOAT, ["n", len(model.classes)]),
    ]


def _recalibrated(corrected: Recalibration, classes: int, g: Graph, p: str) -> str:
    """Corrected probabilities, as `Recalibration` has them: a sum of one clipped ramp for each piece of the map."""
    p = g.cast(p, "float64")
    if classes != 2:
        return g("Softmax", g("Mul", g("Log", g("Max", p, np.array([CLOSEST]))), np.array([corrected.low])), axis=1)
    one = g("Slice", p, np.array([1]), np.array([2]), np.array([1]))
    one = g("Min", g("Max", one, np.array([CLOSEST])), np.array([1.0 - CLOSEST]))
    z = g("Sub", g("Log", one), g("Log", g("Sub", np.ones(1), one)))
    knots, values = corrected.knots, corrected.values
    below = g("Mul", g("Min", g("Sub", z, knots[:1]), np.zeros(1)), np.array([corrected.low]))
    above = g("Mul", g("Max", g("Sub", z, knots[-1:]), np.zeros(1)), np.array([corrected.high]))
    odds = g("Add", g("Add", below, above), values[:1])
    for k in range(len(knots) - 1):
        wide = knots[k + 1] - knots[k]
        ramp = g("Min", g("Max", g("Sub", z, knots[k : k + 1]), np.zeros(1)), np.array([wide]))
        odds = g("Add", odds, g("Mul", ramp, (values[k + 1 : k + 2] - values[k]) / wide))
    # as an exponential: the sigmoid of float64 is not in every runtime
    one = g("Div", np.ones(1), g("Add", np.ones(1), g("Exp", g("Neg", odds))))
    return g("Concat", g("Sub", np.ones(1), one), one, axis=1)


def _table(table: Table, g: Graph) -> str:
    """Raw columns to numbers, as `Table` does it."""
    blocks, flags = [], []
    for c in table.columns:
        if c.categories is not None:
            if MISSING in c.categories:
                raise FFGBError(
                    f"column {c.name!r} has blanks as a category, and to an ONNX file an empty string is a value that "
                    "is missing; leave those cells empty and train again"
                )
            hot = g("OneHotEncoder", c.name, domain="ai.onnx.ml", cats_strings=list(c.categories), zeros=1)
            blocks.append(g.reshape(hot, -1, len(c.categories)))
            continue
        gone = g("IsNaN", c.name)
        blocks.append(g("Where", gone, _f32(c.fill), c.name))
        if c.flagged:
            flags.append(g.cast(gone, "float32"))
    return g("Concat", *blocks, *flags, axis=1)


# Feature maps: from points of some shape to (n, D)


@singledispatch
def features(phi: FeatureMap, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    raise FFGBError(f"the feature map {type(phi).__name__} has no ONNX form; choose another {option('map')}")


@features.register
def _(phi: Flatten, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    return g.reshape(x, -1, phi.inputs)


@features.register
def _(phi: Clip, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    z = features(phi.inner, g, x, shape)
    return g("Min", g("Max", z, phi.low.astype(np.float32)), phi.high.astype(np.float32))


@features.register
def _(phi: Standardize, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    z = g.cast(features(phi.inner, g, x, shape), "float64")
    return g.cast(g("Div", g("Sub", z, phi.mean.astype(np.float64)), phi.scale.astype(np.float64)), "float32")


@features.register
def _(phi: Concatenate, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    parts = [
        g("Mul", features(part, g, x, shape), _f32(factor)) for part, factor in zip(phi.parts, phi.factors, strict=True)
    ]
    return g("Concat", *parts, axis=1)


@features.register
def _(phi: RandomFourier, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    frequencies, phases = phi._draw
    z = features(phi.inner, g, x, shape)
    if phi.kernel == "laplace":
        wave = _cosines(g, z, frequencies, phases)
    else:
        angle = g("Add", g("MatMul", z, frequencies), phases)
        wave = g("Relu", angle) if phi.kernel == "arc-cosine" else g("Cos", angle)
    return g("Mul", wave, _f32(np.sqrt(2.0 / phi.count)))


def _cosines(g: Graph, z: str, frequencies: Array, phases: Array) -> str:
    """As `ffgb.features.cosines` does it."""
    angle = g("Add", g("MatMul", g.cast(z, "float64"), frequencies.astype(np.float64)), phases.astype(np.float64))
    turns = g("Round", g("Div", angle, np.array([TURN])))
    return g("Cos", g.cast(g("Sub", angle, g("Mul", turns, np.array([TURN]))), "float32"))


@features.register
def _(phi: Steps, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    column, threshold = phi._tests
    flat = g.reshape(x, -1, int(np.prod(shape)))
    above = g.cast(g("Greater", g("Gather", flat, column.astype(np.int64), axis=1), threshold), "float32")
    return g("Mul", above, _f32(2.0 / np.sqrt(max(len(column), 1))))


@features.register
def _(phi: ObliviousTrees, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    inputs = int(np.prod(shape))
    sums = np.zeros((inputs, len(phi._tests)), np.float32)
    for j, (unit, _) in enumerate(phi._tests):
        sums[unit, j] = 1.0
    thresholds = _f32(*(threshold for _, threshold in phi._tests))
    bits = g.cast(g("Greater", g("MatMul", g.reshape(x, -1, inputs), sums), thresholds), "float32")
    powers = _f32(*(2.0 ** (phi.depth - 1 - level) for level in range(phi.depth)))[:, None]
    leaf = g.reshape(g.cast(g("MatMul", g.reshape(bits, -1, phi.trees, phi.depth), powers), "int64"), -1, phi.trees)
    if phi.joined is not None:
        first = np.arange(phi.trees, dtype=np.int64) << phi.depth
        leaf = g("Gather", phi.joined.astype(np.int64).ravel(), g("Add", leaf, first))
    hot = g("OneHot", leaf, np.array([2**phi.depth], np.int64),
            _f32(0.0, 1.0 / np.sqrt(phi.trees)))  # fmt: skip
    return g.reshape(hot, -1, phi.dimension)


@features.register
def _(phi: RankWaves, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    columns, inputs = phi.columns, int(np.prod(shape))
    flat = g.reshape(x, -1, inputs)
    # Between two thresholds a rank grows by one step: a sum of ramps, each from 0 to 1 between its own two.
    ramp_of, left, width, place = [], [], [], []
    for j in np.flatnonzero(columns.count > 1):
        cuts = columns.cuts[j, : columns.count[j]].astype(np.float64)
        ramp_of += [j] * (len(cuts) - 1)
        left += list(cuts[:-1])
        width += list(np.diff(cuts))
        place += [1.0 / (len(cuts) - 1)] * (len(cuts) - 1)
    parts = []
    if ramp_of:
        to = np.zeros((len(ramp_of), inputs))
        to[np.arange(len(ramp_of)), ramp_of] = place
        z = g.cast(g("Gather", flat, np.array(ramp_of, np.int64), axis=1), "float64")
        ramps = g("Clip", g("Div", g("Sub", z, np.array(left)), np.array(width)), np.array(0.0), np.array(1.0))
        parts.append(g.cast(g("MatMul", ramps, to), "float32"))
    single = np.flatnonzero(columns.count == 1)
    if len(single):
        to = np.zeros((len(single), inputs), np.float32)
        to[np.arange(len(single)), single] = 1.0
        above = g("Greater", g("Gather", flat, single.astype(np.int64), axis=1), columns.cuts[single, 0])
        parts.append(g("MatMul", g.cast(above, "float32"), to))
    ranks = parts[0] if len(parts) == 1 else g("Add", *parts) if parts else g("Mul", flat, _f32(0.0))
    frequencies, phases = phi._draw
    wave = _cosines(g, ranks, frequencies, phases)
    return g("Mul", wave, _f32(np.sqrt(2.0 / phi.count)))


@features.register
def _(phi: Bins, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    return values_of(phi, g, x, int(np.prod(shape)))


@features.register
def _(phi: Patches, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    images = g.reshape(x, -1, *phi.grid.shape)
    z = _pooled(phi, g, images)
    if phi.mirrored:
        last = np.arange(phi.grid.shape[2])[::-1].astype(np.int64)
        z = g("Mul", g("Add", z, _pooled(phi, g, g("Gather", images, last, axis=3))), _f32(0.5))
    return z


def _pooled(phi: Patches, g: Graph, images: str) -> str:
    grid, count = phi.grid, phi.filters.shape[1]
    window = (grid.shape[0], grid.size, grid.size)
    centred = g("Sub", images, g("ReduceMean", images, np.array([1, 2, 3], np.int64), keepdims=1))
    ones = np.full((1, *window), 1.0 / grid.pixels, np.float32)
    mean = g("Conv", centred, ones)
    square = g("Conv", g("Mul", centred, centred), ones)
    spread = g("Add", g("Max", g("Sub", square, g("Mul", mean, mean)), _f32(0.0)), _f32(grid.contrast**2))
    filters = (phi.filters - phi.filters.mean(axis=0)).T.reshape(count, *window).astype(np.float32)
    s = g("Sub", g("Div", g("Conv", centred, filters), g("Sqrt", spread)), phi.offset.reshape(1, count, 1, 1))
    a = _f32(phi.threshold)
    sides = []
    for signed in (s, g("Neg", s)):
        above = g("Relu", g("Sub", signed, a))
        cells = g("MatMul", g.reshape(above, -1, count, grid.rows * grid.columns), phi._pooling)  # (n, F, cells²)
        sides.append(g("Unsqueeze", g("Transpose", cells, perm=[0, 2, 1]), np.array([2], np.int64)))
    return g.reshape(g("Concat", *sides, axis=2), -1, phi.dimension)


@features.register
def _(phi: Encoder, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    if not len(phi.onnx):
        raise FFGBError(
            f"the encoder {phi.name} is Python code; export it to ONNX, and train with {option('map', 'FILE.onnx')}"
        )
    onnx = _onnx()
    inner = onnx.load_model_from_string(phi.file)
    if any(o.domain in ("", "ai.onnx") and o.version != OPSET for o in inner.opset_import):
        inner = onnx.version_converter.convert_version(inner, OPSET)
    inner = onnx.compose.add_prefix(inner, f"{g.prefix}encoder_")
    if len(inner.graph.input) != 1 or inner.functions:
        raise FFGBError(
            f"the encoder {phi.name} has functions, or not one input; it cannot be made part of another file"
        )
    g("Reshape", x, np.array([-1, *phi.shape], np.int64))
    g.nodes[-1].output[0] = inner.graph.input[0].name
    g.nodes.extend(inner.graph.node)
    g.constants.extend(inner.graph.initializer)
    return g.reshape(inner.graph.output[0].name, -1, phi.outputs)


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
        return sum_of_trees(family, stack, block, g, z, _onnx())
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
    onnx = _onnx()
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


# Files


@final
@dataclass(frozen=True, eq=False)
class Exported:
    """A file that says what the model says, not written yet."""

    data: bytes
    difference: float
    """The largest, from our own predictions."""
    tried: str
    """What it was tried on, in words."""


def export(model: Model, path: Path, points: Array | None = None) -> float:
    """Write the file once it agrees with the model, at points and at others that no one has seen; how well it does."""
    must_be_writable(path)
    made = checked(model, points)
    write({path: made.data})
    return made.difference


def checked(model: Model, points: Array | None = None) -> Exported:
    """The file, if it agrees with the model."""
    data = to_onnx(model)
    trials, tried = _trials(model, points)
    worst = difference(model, data, trials)
    if not worst <= TOLERANCE:
        how = f"by {worst:.1e}, more than {TOLERANCE:.0e}" if np.isfinite(worst) else "in the class that it names"
        raise FFGBError(f"the ONNX file differs from the model {how}, and was not written; please report it")
    return Exported(data, worst, tried)


def must_be_writable(path: Path, example: str = "model.onnx") -> None:
    """An FFGBError if no file can be written here."""
    folder = path.parent
    if path.is_dir():
        raise FFGBError(f"{path} is a folder; name a file in it, such as {path / example}")
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise FFGBError(f"the folder {folder} {what}, so {path.name} cannot be written there; choose another place")
    if not os.access(folder, os.W_OK):
        raise FFGBError(f"the folder {folder} cannot be written to; choose another place for {path.name}")


def write(files: Mapping[Path, bytes]) -> None:
    """All of these files, or none: what was there before is there again if one cannot be written."""
    temporary: dict[Path, Path] = {}
    before: dict[Path, bytes | None] = {}
    path = next(iter(files))
    try:
        for path, data in files.items():
            temporary[path] = staged(path, data)
        for path in files:
            was = path.read_bytes() if path.exists() else None
            put(temporary[path], path)
            before[path] = was
    except OSError as error:
        for done, was in before.items():
            done.unlink() if was is None else atomic_write(done, was)
        raise FFGBError(f"{path} cannot be written ({error.strerror}); choose another place") from error
    finally:
        for left in temporary.values():
            left.unlink(missing_ok=True)


def difference(model: Model, data: bytes, trials: Sequence[Mapping[str, Array]]) -> float:
    """The largest difference between the file's values and the model's; infinite if it names another class."""
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "onnx", "the check of an export") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for raw in trials:
        x = raw["x"] if model.table is None else model.table(raw)
        found = session.run(None, _given(model, raw))
        if model.job.loss.classification:
            ours: Array = model.predict_proba(x)
            off = np.abs(ours - found[1])
            best = np.sort(ours, axis=1)
            sure = best[:, -1] - best[:, -2] > 2.0 * TOLERANCE  # else both may be right
            other = found[0] != np.array(model.classes, object)[ours.argmax(axis=1)]
            off = np.where((sure & other)[:, None], np.inf, off)
        else:
            ours, target = np.asarray(model.predict(x)), model.job.target
            scale = 1.0 if target is None else target.scale if ours.ndim == 2 else float(target.scale.max())
            off = np.abs(ours - found[0]) / np.maximum(scale, DIGITS * np.abs(ours))
        worst = max(worst, float(np.nan_to_num(off, nan=np.inf, posinf=np.inf).max(initial=0.0)))
    return worst


def _given(model: Model, raw: Mapping[str, Array]) -> dict[str, Array]:
    """Raw columns as the file takes them."""
    if model.table is None:
        return {"x": np.asarray(raw["x"], np.float32)}
    given = {}
    for c in model.table.columns:
        column = raw[c.name]
        if c.categories is None:
            given[c.name] = column.astype(np.float32)[:, None]
        else:
            given[c.name] = np.array([MISSING if v is None else v for v in column], object)[:, None]
    return given


# Rows to try a file on


def _cuts(columns: Iterable[Columns], clips: Iterable[Clip], f: Function) -> dict[int, Array]:
    """Where maps and trees cut or clip an input, by input; nothing for those that they do not cut."""
    cuts = defaultdict[int, list[Array]](list)
    for table in columns:
        for j, count in enumerate(table.count):
            cuts[j].append(table.cuts[j, :count])
    for clip in clips:
        for j, (low, high) in enumerate(zip(clip.low, clip.high, strict=True)):
            cuts[j].append(np.array([low, high] if low < high else [], np.float64))
    for j, threshold in _thresholds(f):
        cuts[j].append(threshold)
    merged = {j: np.unique(np.concatenate(found).astype(np.float64)) for j, found in cuts.items()}
    return {j: found for j, found in merged.items() if len(found)}


@final
@dataclass(frozen=True, eq=False)
class _Places:
    """Where a model's inputs lie, as far as it knows itself."""

    mean: Array
    spread: Array
    cuts: Mapping[int, Array]
    """Where it jumps or bends, by input."""
    binary: frozenset[int]
    """Inputs that are 0 or 1: sums of them are compared, and of other numbers a sum depends on its order."""
    known: bool
    """Whether it knows anything."""

    @staticmethod
    def of(model: Model) -> _Places:
        inputs, maps = int(np.prod(model.shape)), list(_maps(model.family.features))
        mean, spread, scaled = np.zeros(inputs), np.ones(inputs), False
        for phi in maps:
            match phi:
                case Standardize(inner=Flatten() | Clip(inner=Flatten())):
                    scaled, mean, spread = True, phi.mean, np.where(np.isfinite(phi.scale), phi.scale, 1.0)
        columns = [phi.columns for phi in maps if isinstance(phi, Steps | ObliviousTrees | RankWaves)]
        binary = frozenset(int(j) for table in columns for unit in table.units if len(unit) > 1 for j in unit)
        cuts = _cuts(columns, [phi for phi in maps if isinstance(phi, Clip)], model.f)
        if not scaled:
            for j, found in cuts.items():
                mean[j], spread[j] = np.median(found), float(np.std(found)) or max(1.0, abs(float(found[0])))
        return _Places(mean, spread, cuts, binary, scaled or bool(cuts))

    def draw(self, j: int, rows: int, rng: np.random.Generator) -> Array:
        """Numbers of one input, float32: in its range, at the places where the model jumps, and right beside them."""
        if j in self.binary:
            return rng.integers(0, 2, rows).astype(np.float32)
        wide: Array = (self.mean[j] + self.spread[j] * rng.standard_normal(rows)).astype(np.float32)
        if j not in self.cuts:
            return wide
        at = rng.choice(self.cuts[j], rows).astype(np.float32)
        beside = [np.nextafter(at, np.float32(side * np.inf)) for side in (-1, 1)]
        drawn: Array = np.choose(rng.integers(0, 5, rows), [wide, wide, at, *beside])
        return drawn


def _maps(phi: FeatureMap) -> Iterator[FeatureMap]:
    """A map and all that it is made of."""
    yield phi
    for part in getattr(phi, "parts", ()) or ([phi.inner] if hasattr(phi, "inner") else []):
        yield from _maps(part)


def _thresholds(f: Function) -> Iterator[tuple[int, Array]]:
    """Of the trees in a function, by the input that they look at."""
    f = f.inner if isinstance(f, Clipped) else f
    if not (isinstance(f, OpenSum) and isinstance(f.family, Tree) and isinstance(f.family.features, Flatten)):
        return
    (block,) = f.merged().blocks
    feature, threshold = (np.ravel(block.stack[name]) for name in ("feature", "threshold"))
    real = np.abs(threshold) < np.finfo(np.float32).max  # a branch that ends early has none
    for j in np.unique(feature[real]):
        yield int(j), np.unique(threshold[real & (feature == j)])


def _trials(model: Model, points: Array | None) -> tuple[list[Mapping[str, Array]], str]:
    """Rows to try a file on, and what they are: given ones, and random ones around what the model knows.

    Numbers are float32 here, as the file takes them: in float64 they may lie on the other side of a threshold.
    """
    rng, places = np.random.default_rng(0), _Places.of(model)
    around = " around the model's own thresholds and ranges" if places.known else ""
    if model.table is None:
        image = len(model.shape) > 1
        rows = IMAGES if image else ROWS
        x = np.stack([places.draw(j, rows, rng) for j in range(int(np.prod(model.shape)))], axis=1)
        if image and not places.known:
            x[::2] = rng.random(x[::2].shape, np.float32)  # as pixels mostly are
        given: list[Mapping[str, Array]] = [] if points is None else [{"x": points}]
        tried = f"{rows:,} random {'images' if image else 'rows'}{around}"
        more = "" if points is None else f" and {len(points):,} given ones"
        return [{"x": x.reshape(-1, *model.shape)}, *given], tried + more
    raw: dict[str, Array] = {}
    place, odd = 0, dict[str, None]()
    for c in model.table.columns:
        if c.categories is not None:
            raw[c.name] = rng.choice(np.array([*c.categories, "what no one has seen", None], object), ROWS)
            place += len(c.categories)
            odd["unknown categories"] = None
            continue
        numbers = places.draw(place, ROWS, rng).astype(np.float64)
        numbers = np.where(rng.random(ROWS) < 0.1, np.float64(np.float32(c.fill)), numbers)
        raw[c.name] = np.where(rng.random(ROWS) < 0.2, np.nan, numbers)
        place += 1
        odd["missing values"] = None
    return [raw], f"{ROWS:,} random rows{around}, with {' and '.join(odd)}"
