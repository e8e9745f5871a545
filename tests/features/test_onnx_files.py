"""ONNX files that name other files are refused, wherever in them they do it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.features.encoder import Encoder
from ffgb.features.onnx_files import _EXTERNAL, _HOLDS, _LOCATION, _NAME, refuse_external_data
from ffgb.protocol.describe import build, describe

onnx = pytest.importorskip("onnx")
make, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
SECRET = "secret.csv"
WORDS = r"the encoder .* keeps the numbers of 'stolen' in another file"


def stolen(length: int = 12) -> Any:
    """A tensor whose numbers are the bytes of another file."""
    tensor = onnx.TensorProto(name="stolen", data_type=onnx.TensorProto.UINT8, dims=[1, length])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", SECRET), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def model(*nodes: Any, **more: Any) -> Any:
    """x of two numbers to the bytes of the tensor "stolen", or to 2x."""
    graph = make.make_graph(
        [*nodes, make.make_node("Add", ["x", "x"], ["y"])] if "initializer" not in more else list(nodes),
        *("encoder", [make.make_tensor_value_info("x", FLOAT, ["n", 2])]),
        *([make.make_tensor_value_info("y", FLOAT, ["n", None])], more.get("initializer", [])),
    )
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def thief() -> bytes:
    """It gives the first bytes of the file to whoever asks for features."""
    nodes = [
        make.make_node("Cast", ["stolen"], ["f"], to=FLOAT),
        make.make_node("ReduceSum", ["x", "axis"], ["s"], keepdims=1),
        make.make_node("Mul", ["s", "zero"], ["z"]),
        make.make_node("Add", ["z", "f"], ["y"]),
    ]
    small = [make.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]), make.make_tensor("zero", FLOAT, [1], [0.0])]
    return bytes(model(*nodes, initializer=[stolen(), *small]).SerializeToString())


def as_file(data: bytes, folder: Path) -> Encoder:
    (folder / "some.onnx").write_bytes(data)
    return Encoder.load(str(folder / "some.onnx"), (2,))


def as_recipe(data: bytes, folder: Path) -> Encoder:
    recipe, arrays = describe(Encoder("some.onnx", (2,), 12, np.frombuffer(data, np.uint8)))
    return build(json.loads(json.dumps(recipe)), arrays)  # type: ignore[no-any-return]


@pytest.mark.parametrize("without", [False, True], ids=["", "where onnx is not installed"])
@pytest.mark.parametrize("come", [as_file, as_recipe])
def test_the_bytes_of_another_file_do_not_become_features(
    come: Callable[[bytes, Path], Encoder], without: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    (tmp_path / SECRET).write_bytes(b"name,illness")
    data = thief()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])  # so it would be without a check
    assert bytes(session.run(None, {"x": np.zeros((1, 2), np.float32)})[0].astype(np.uint8)) == b"name,illness"

    def seen(*_: object, **__: object) -> None:
        raise AssertionError("onnxruntime saw it")

    monkeypatch.setattr(runtime, "InferenceSession", seen)
    if without:
        monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FFGBError, match=WORDS):
        come(data, tmp_path)(np.zeros((1, 2)))


def test_an_export_does_not_read_it_either() -> None:
    from ffgb.runs.onnx_graph import Graph
    from ffgb.runs.onnx_maps import features

    with pytest.raises(FFGBError, match=WORDS):
        features(Encoder("some.onnx", (2,), 12, np.frombuffer(thief(), np.uint8)), Graph(), "x", (2,))


def constant(**value: Any) -> Any:
    node = make.make_node("Constant", [], ["c"])
    node.attribute.append(onnx.AttributeProto(name="value", **value))
    return node


def inside(**attribute: Any) -> Any:
    return model(constant(**attribute))


def sparse(where: str) -> Any:
    plain = make.make_tensor("plain", onnx.TensorProto.INT64, [1], [0])
    return onnx.SparseTensorProto(**{"values": plain, "indices": plain, where: stolen()}, dims=[4])


def with_graph(change: Callable[[Any], None]) -> Any:
    made = model()
    change(made)
    return made


PLACES: dict[str, Callable[[], Any]] = {
    "initializer": lambda: with_graph(lambda m: m.graph.initializer.append(stolen())),
    "values": lambda: with_graph(lambda m: m.graph.sparse_initializer.append(sparse("values"))),
    "indices": lambda: with_graph(lambda m: m.graph.sparse_initializer.append(sparse("indices"))),
    "attribute": lambda: inside(t=stolen()),
    "attributes": lambda: inside(tensors=[stolen()]),
    "sparse attribute": lambda: inside(sparse_tensor=sparse("values")),
    "sparse attributes": lambda: inside(sparse_tensors=[sparse("values")]),
    "subgraph": lambda: inside(g=inside(t=stolen()).graph),
    "subgraphs": lambda: inside(graphs=[inside(g=PLACES["initializer"]().graph).graph]),
    "function": lambda: with_graph(lambda m: m.functions.add(name="f").node.append(constant(t=stolen()))),
    "function's default": lambda: with_graph(
        lambda m: m.functions.add(name="f").attribute_proto.append(onnx.AttributeProto(name="a", t=stolen()))
    ),
    "training": lambda: with_graph(
        lambda m: m.training_info.add().initialization.CopyFrom(PLACES["initializer"]().graph)
    ),
    "training's algorithm": lambda: with_graph(
        lambda m: m.training_info.add().algorithm.CopyFrom(PLACES["initializer"]().graph)
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_looked_at(place: str) -> None:
    with pytest.raises(FFGBError, match=WORDS):
        refuse_external_data(PLACES[place]().SerializeToString(), "some.onnx")


def test_tensors_are_nowhere_else() -> None:
    """By what onnx itself says of its format."""
    kinds = {
        "ModelProto": "model", "TrainingInfoProto": "training", "GraphProto": "graph", "FunctionProto": "function",
        "NodeProto": "node", "AttributeProto": "attribute", "SparseTensorProto": "sparse", "TensorProto": "tensor",
    }  # fmt: skip
    todo, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while todo:
        message = todo.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        holds = {f.number: f.message_type for f in message.fields if f.message_type}
        todo += holds.values()
        told = {number: kinds[inner.name] for number, inner in holds.items() if inner.name in kinds}
        assert told == _HOLDS.get(kinds.get(message.name, ""), {}), message.full_name
    fields = onnx.TensorProto.DESCRIPTOR.fields_by_name
    assert [fields[n].number for n in ("name", "external_data", "data_location")] == [_NAME, _EXTERNAL, _LOCATION]


def test_a_location_that_is_said_twice_or_oddly_is_refused_too() -> None:
    """Protobuf merges what is given twice, and takes the low bits of large numbers."""
    tensor = stolen()
    del tensor.external_data[:]
    data = tensor.SerializeToString()
    assert data.endswith(bytes([_LOCATION << 3, 1]))
    tricks = [data[:-1] + bytes([0x81, 0x80, 0x80, 0x80, 0x10]), data + bytes([_LOCATION << 3, 0])]
    for trick in (data, *tricks):
        graph = bytes([5 << 3 | 2, len(trick)]) + trick
        with pytest.raises(FFGBError, match=WORDS):
            refuse_external_data(bytes([7 << 3 | 2, len(graph)]) + graph, "some.onnx")


def test_files_that_hold_their_own_numbers_are_read(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    made = model(
        make.make_node("MatMul", ["x", "w"], ["y"]), initializer=[make.make_tensor("w", FLOAT, [2, 3], [1.0] * 6)]
    )
    np.testing.assert_array_equal(as_file(made.SerializeToString(), tmp_path)(np.ones((2, 2))), np.full((2, 3), 2.0))


@pytest.mark.parametrize("data", [b"this is no model", b"\x0b\x0c", b"\x80" * 11, b"\x3a\xff\xff\xff\x0f", b"\x3a"])
def test_what_cannot_be_walked_is_not_run(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it is no (whole )?ONNX file"):
        refuse_external_data(data, "some.onnx")


def test_a_model_in_another_format_is_not_run(tmp_path: Path) -> None:
    """onnxruntime has a format of its own, which is not looked through here."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    runtime.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    data = (tmp_path / "m.ort").read_bytes()
    runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with pytest.raises(FFGBError, match=r"the encoder some\.onnx fails"):
        as_file(data, tmp_path)
