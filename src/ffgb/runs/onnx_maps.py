"""Feature maps in an ONNX file: from points of some shape to features (n, D)."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array
from ffgb.errors import FFGBError, option
from ffgb.features.basic import TURN, Clip, Concatenate, Flatten, Standardize
from ffgb.features.bins import Bins
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import RandomFourier
from ffgb.features.patches import Patches
from ffgb.features.tables import ObliviousTrees, RankWaves, Steps
from ffgb.runs.onnx_graph import OPSET, Graph, f32, onnx_library
from ffgb.runs.onnx_trees import values_of


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
        g("Mul", features(part, g, x, shape), f32(factor)) for part, factor in zip(phi.parts, phi.factors, strict=True)
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
    return g("Mul", wave, f32(np.sqrt(2.0 / phi.count)))


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
    return g("Mul", above, f32(2.0 / np.sqrt(max(len(column), 1))))


@features.register
def _(phi: ObliviousTrees, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    inputs = int(np.prod(shape))
    sums = np.zeros((inputs, len(phi._tests)), np.float32)
    for j, (unit, _) in enumerate(phi._tests):
        sums[unit, j] = 1.0
    thresholds = f32(*(threshold for _, threshold in phi._tests))
    bits = g.cast(g("Greater", g("MatMul", g.reshape(x, -1, inputs), sums), thresholds), "float32")
    powers = f32(*(2.0 ** (phi.depth - 1 - level) for level in range(phi.depth)))[:, None]
    leaf = g.reshape(g.cast(g("MatMul", g.reshape(bits, -1, phi.trees, phi.depth), powers), "int64"), -1, phi.trees)
    if phi.joined is not None:
        first = np.arange(phi.trees, dtype=np.int64) << phi.depth
        leaf = g("Gather", phi.joined.astype(np.int64).ravel(), g("Add", leaf, first))
    hot = g("OneHot", leaf, np.array([2**phi.depth], np.int64),
            f32(0.0, 1.0 / np.sqrt(phi.trees)))  # fmt: skip
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
    ranks = parts[0] if len(parts) == 1 else g("Add", *parts) if parts else g("Mul", flat, f32(0.0))
    frequencies, phases = phi._draw
    wave = _cosines(g, ranks, frequencies, phases)
    return g("Mul", wave, f32(np.sqrt(2.0 / phi.count)))


@features.register
def _(phi: Bins, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    return values_of(phi, g, x, int(np.prod(shape)))


@features.register
def _(phi: Patches, g: Graph, x: str, shape: tuple[int, ...]) -> str:
    images = g.reshape(x, -1, *phi.grid.shape)
    z = _pooled(phi, g, images)
    if phi.mirrored:
        last = np.arange(phi.grid.shape[2])[::-1].astype(np.int64)
        z = g("Mul", g("Add", z, _pooled(phi, g, g("Gather", images, last, axis=3))), f32(0.5))
    return z


def _pooled(phi: Patches, g: Graph, images: str) -> str:
    grid, count = phi.grid, phi.filters.shape[1]
    window = (grid.shape[0], grid.size, grid.size)
    centred = g("Sub", images, g("ReduceMean", images, np.array([1, 2, 3], np.int64), keepdims=1))
    ones = np.full((1, *window), 1.0 / grid.pixels, np.float32)
    mean = g("Conv", centred, ones)
    square = g("Conv", g("Mul", centred, centred), ones)
    spread = g("Add", g("Max", g("Sub", square, g("Mul", mean, mean)), f32(0.0)), f32(grid.contrast**2))
    filters = (phi.filters - phi.filters.mean(axis=0)).T.reshape(count, *window).astype(np.float32)
    s = g("Sub", g("Div", g("Conv", centred, filters), g("Sqrt", spread)), phi.offset.reshape(1, count, 1, 1))
    a = f32(phi.threshold)
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
    onnx = onnx_library()
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
