"""A model as one ONNX file, preprocessing included, that runs without ffgb.

Every feature map (onnx_maps.py), every family and every kind of sum (onnx_sums.py, onnx_trees.py) becomes a few nodes
of ONNX's standard operators.  Arithmetic is float32 where ours is, and float64 where ours is, so that results agree.
A file is tried in onnxruntime against our own predictions (onnx_trials.py) before it is said to be there.

A model of tables has an input for each raw column, (n, 1): float numbers, NaN where one is missing, or strings, empty
where one is missing.  Other models have one input x, (n, columns) or (n, channels, height, width).  The outputs are
label, (n,) strings, and probabilities, (n, classes), or prediction; with a coverage also set, (n, classes) bool, or
interval, (n, 2), as `ffgb predict --coverage` has them (conformal.py).  If a column has the name of an output, the
output is called that with an underscore after it: label_.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb._version import __version__
from ffgb.core.judgement import CLOSEST
from ffgb.core.recalibration import Recalibration
from ffgb.core.types import Array
from ffgb.data.preprocess import Table
from ffgb.errors import FFGBError, missing_extra
from ffgb.files import atomic_write, put, staged
from ffgb.runs.conformal import intervals, sets
from ffgb.runs.model import Model
from ffgb.runs.onnx_graph import OPSET, Graph, f32, onnx_library
from ffgb.runs.onnx_maps import features
from ffgb.runs.onnx_sums import function
from ffgb.runs.onnx_trials import trials

ML_OPSET, IR_VERSION = 3, 9
TOLERANCE = 1e-5
"""How far an exported model may be from ours: in probabilities, or relative to the size of predictions."""
MISSING = ""
"""A category that is missing, as a string."""
DIGITS = 0.01
"""Of a prediction float32 keeps seven digits: at this share of its size the tolerance is as coarse as that."""


@final
@dataclass(frozen=True)
class Covered:
    """Sets of classes, or intervals, that the file has: the threshold of scores, and what it promises."""

    threshold: float
    words: str


def output_names(model: Model, covered: Covered | None = None) -> dict[str, str]:
    """What the outputs are called in the file: as ever, with an underscore more where a column has that name."""
    taken = {c.name for c in model.table.columns} if model.table is not None else {"x"}
    found = {}
    more = [] if covered is None else ["set" if model.job.loss.classification else "interval"]
    for name in (*(("label", "probabilities") if model.job.loss.classification else ("prediction",)), *more):
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


def to_onnx(model: Model, covered: Covered | None = None) -> bytes:
    """The file's bytes."""
    onnx, g = onnx_library(), Graph(_prefix(model))
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
    outputs = _outputs(model, g, f, covered)
    graph = helper.make_graph(g.nodes, "ffgb", inputs, outputs, g.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ffgb", producer_version=__version__
    )
    said = {"privacy": getattr(model.job.algorithm, "promise", ""), "coverage": covered.words if covered else ""}
    for key, words in said.items():
        if words:
            entry = made.metadata_props.add()
            entry.key, entry.value = key, words
    data: bytes = made.SerializeToString()
    return data


def _linked(model: Model, g: Graph, f: str) -> str:
    """The mean of the target in training units, by the link of the loss."""
    operation, attributes = model.job.loss.link.onnx
    more: dict[str, Any] = dict(attributes)
    return f if operation == "Identity" else g(operation, f, **more)


def _outputs(model: Model, g: Graph, f: str, covered: Covered | None) -> list[Any]:
    """Class names and probabilities; or values in the target's own units; and sets or intervals."""
    onnx = onnx_library()
    helper, kinds, names = onnx.helper, onnx.TensorProto, output_names(model, covered)
    if not model.job.loss.classification:
        f = _linked(model, g, f)
        target = model.job.target
        if target is not None:
            f = g("Add", g("Mul", f, target.scale.astype(np.float64)), target.mean.astype(np.float64))
        several = model.job.loss.outputs > 1
        g.cast(f if several else g.reshape(f, -1), "float32", names["prediction"])
        shape = ["n", model.job.loss.outputs] if several else ["n"]
        outputs = [helper.make_tensor_value_info(names["prediction"], kinds.FLOAT, shape)]
        if covered is not None:
            ends = np.array([-covered.threshold, covered.threshold])
            g.cast(g("Add", g.cast(g.reshape(f, -1, 1), "float64"), ends), "float32", names["interval"])
            outputs.append(helper.make_tensor_value_info(names["interval"], kinds.FLOAT, ["n", 2]))
        return outputs
    p = _linked(model, g, f)
    if model.job.loss.outputs == 1:
        p = g("Concat", g("Sub", np.ones(1), p), p, axis=1)
    if model.recalibration is not None:
        p = _recalibrated(model.recalibration, len(model.classes), g, p)
    g("Gather", np.array(model.classes, object), g("ArgMax", p, axis=1, keepdims=0), name=names["label"])
    g.cast(p, "float32", names["probabilities"])
    shape, more = ["n", len(model.classes)], []
    if covered is not None:
        off = g("Sub", np.ones(1), g.cast(p, "float64"))
        g("LessOrEqual", off, np.array([covered.threshold]), name=names["set"])
        more = [helper.make_tensor_value_info(names["set"], kinds.BOOL, shape)]
    return [
        helper.make_tensor_value_info(names["label"], kinds.STRING, ["n"]),
        helper.make_tensor_value_info(names["probabilities"], kinds.FLOAT, shape),
        *more,
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
        blocks.append(g("Where", gone, f32(c.fill), c.name))
        if c.flagged:
            flags.append(g.cast(gone, "float32"))
    return g("Concat", *blocks, *flags, axis=1)


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


def checked(model: Model, points: Array | None = None, covered: Covered | None = None) -> Exported:
    """The file, if it agrees with the model."""
    data = to_onnx(model, covered)
    rows, tried = trials(model, points)
    worst = difference(model, data, rows, covered)
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


def difference(model: Model, data: bytes, rows: Sequence[Mapping[str, Array]], covered: Covered | None = None) -> float:
    """The largest difference between the file's values and the model's; infinite if it names another class, or set."""
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "onnx", "the check of an export") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for raw in rows:
        x = raw["x"] if model.table is None else model.table(raw)
        found = session.run(None, _given(model, raw))
        if model.job.loss.classification:
            ours: Array = model.predict_proba(x)
            off = np.abs(ours - found[1])
            best = np.sort(ours, axis=1)
            sure = best[:, -1] - best[:, -2] > 2.0 * TOLERANCE  # else both may be right
            other = found[0] != np.array(model.classes, object)[ours.argmax(axis=1)]
            off = np.where((sure & other)[:, None], np.inf, off)
            if covered is not None:
                near = np.abs(1.0 - ours - covered.threshold) <= TOLERANCE  # there both may be right
                off = np.where(~near & (found[2] != sets(model, x, covered.threshold)), np.inf, off)
        else:
            ours, target = np.asarray(model.predict(x)), model.job.target
            scale = 1.0 if target is None else target.scale if ours.ndim == 2 else float(target.scale.max())
            size = np.maximum(scale, DIGITS * np.abs(ours))
            off = np.abs(ours - found[0]) / size
            if covered is not None:
                size = np.maximum(size, DIGITS * covered.threshold)[:, None]
                ends = np.stack(intervals(model, x, covered.threshold), axis=1)
                off = np.concatenate([off[:, None], np.abs(ends - found[1]) / size], axis=1)
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
