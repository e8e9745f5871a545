"""Encoders of the user's own: callables by name, ONNX files, and what goes wrong with either."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb import user_code as trust
from ffgb.core.points import Points
from ffgb.errors import FFGBError
from ffgb.features.encoder import POINTS_AT_ONCE, Encoder
from ffgb.protocol.describe import build, describe

Array = np.ndarray
sizes: list[int] = []


def doubled(x: Array) -> Array:
    """Points (n, 2, 3) to features (n, 3, 2): flattened by the map, and in float64."""
    assert x.dtype == np.float32
    assert x.shape[1:] == (2, 3)
    sizes.append(len(x))
    return 2.0 * x.astype(np.float64).transpose(0, 2, 1)


def failing(x: Array) -> Array:
    raise KeyError("weights")


def refusing(x: Array) -> Array:
    raise FFGBError("the encoder's own sentence")


for name, function in {
    "doubled": doubled,
    "failing": failing,
    "refusing": refusing,
    "scalar": lambda x: x.reshape(len(x), -1).sum(axis=1),
    "list": lambda x: [[1, 2]] * len(x),
    "text": lambda x: ["a"] * len(x),
    "none": lambda x: None,
    "nan": lambda x: np.where(x.reshape(len(x), -1) > 5, np.nan, 1.0),
    "infinite": lambda x: np.where(x.reshape(len(x), -1) > 5, np.inf, 1.0),
    "growing": lambda x: np.ones((len(x), 1 + len(x))),
    "short": lambda x: np.ones((max(1, len(x) - 1), 3)),
    "late": lambda x: failing(x) if len(x) > 1 else np.ones((1, 3)),
    "transposed": lambda x: x.reshape(len(x), -1).T.copy(),
    "twice": lambda x: np.ones((2 * len(x), 3)),
}.items():
    trust.register(f"tests.encoders:{name}", function)


def encoder(name: str, shape: tuple[int, ...] = (2, 3)) -> Encoder:
    return Encoder.load(f"tests.encoders:{name}", shape)


def points(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 2, 3)).astype(np.float32)


def test_names_of_encoders() -> None:
    assert Encoder.names("model.onnx")
    assert Encoder.names("package.module:function")
    assert not any(Encoder.names(name) for name in ("inputs", "patches", "arc-cosine", "onnx"))


def test_a_callable_by_name_is_a_map() -> None:
    features = encoder("doubled")
    assert features.dimension == 6
    assert features.blocks == (6,)
    x = points(5)
    z = features(x)
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, 2 * x.transpose(0, 2, 1).reshape(5, 6))
    np.testing.assert_array_equal(features(x.reshape(5, 6).astype(np.float64)), z)  # whatever form the points have
    np.testing.assert_array_equal(Points(0, x, np.zeros(5)).features(features), z)
    assert features(x[:0]).shape == (0, 6)
    assert encoder("scalar").dimension == 1
    assert encoder("list").dimension == 2


def test_points_are_encoded_some_at_a_time() -> None:
    features, x = encoder("doubled"), points(2 * POINTS_AT_ONCE + 7)
    sizes.clear()
    z = features(x)
    assert sizes == [POINTS_AT_ONCE, POINTS_AT_ONCE, 7]
    np.testing.assert_array_equal(z, 2 * x.transpose(0, 2, 1).reshape(len(x), 6))


def test_an_unknown_name_is_refused_with_what_to_do() -> None:
    words = (
        r"no code named 'tests.encoders:unknown' is known here; .* --map tests.encoders:unknown, "
        r"or in Python call ffgb.user_code.allow\('tests.encoders:unknown'\)"
    )
    with pytest.raises(FFGBError, match=words):
        encoder("unknown")
    recipe, arrays = describe(encoder("doubled"))
    sent = build({**recipe, "name": "tests.encoders:unknown"}, arrays)  # as a message may have it
    with pytest.raises(FFGBError, match=words):
        sent(points(2))


def test_a_recipe_never_imports_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "stranger_of_tests.py").write_text("def encode(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = "stranger_of_tests:encode"
    with pytest.raises(FFGBError, match="if you trust it"):
        Encoder(name, (3,), 3, np.empty(0, np.uint8))(np.ones((2, 3)))
    assert "stranger_of_tests" not in sys.modules
    monkeypatch.setattr(trust, "_known", dict(trust._known))
    monkeypatch.setattr(sys, "path", list(sys.path))
    trust.allow(name)
    np.testing.assert_array_equal(Encoder.load(name, (3,))(np.ones((2, 3))), np.ones((2, 3)))
    monkeypatch.delitem(sys.modules, "stranger_of_tests")


@pytest.mark.parametrize("name", ["tests.no_such_module:f", "json:no_such_function", "json"])
def test_what_cannot_be_imported_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(FFGBError, match=r"cannot be imported .*; name it as package.module:callable"):
        trust.allow(name)


def test_a_name_means_one_thing() -> None:
    trust.register("tests.encoders:doubled", doubled)
    with pytest.raises(FFGBError, match="doubled' exists already"):
        trust.register("tests.encoders:doubled", failing)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("failing", r"the encoder tests.encoders:failing fails on points of shape \(2, 3\): 'weights'"),
        ("refusing", "^the encoder's own sentence$"),
        ("text", r"the encoder tests.encoders:text fails on points of shape \(2, 3\): could not convert"),
        ("none", "the encoder tests.encoders:none (fails|gave)"),
    ],
)
def test_encoders_that_fail_do_so_with_a_sentence(name: str, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        encoder(name)(points(3))


def test_the_cause_of_a_failure_is_kept() -> None:
    with pytest.raises(FFGBError) as caught:
        encoder("failing")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("growing", "the encoder tests.encoders:growing gave 4 features, and before 2"),
        ("short", r"the encoder tests.encoders:short (fails on points of shape \(2, 3\)|gave)"),
        ("late", "the encoder tests.encoders:late fails"),
    ],
)
def test_encoders_that_change_their_mind_are_refused(name: str, words: str) -> None:
    features = encoder(name)
    with pytest.raises(FFGBError, match=words):
        features(points(3))


@pytest.mark.parametrize("name", ["nan", "infinite"])
def test_features_that_are_not_finite_are_refused(name: str) -> None:
    features = encoder(name)
    np.testing.assert_array_equal(features(np.zeros((2, 2, 3))), 1.0)
    with pytest.raises(FFGBError, match=f"the encoder tests.encoders:{name} gave features that are not finite"):
        features(np.full((300, 2, 3), np.eye(300)[299][:, None, None] * 9))


def test_points_of_another_shape_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="reshape"):
        encoder("doubled")(np.ones((3, 5)))


@pytest.mark.parametrize("name", ["transposed", "twice"])
def test_an_output_that_is_not_a_row_a_point_is_refused(name: str) -> None:
    with pytest.raises(FFGBError):
        encoder(name)(points(6))


@pytest.mark.parametrize("name", ["doubled", "scalar"])
def test_a_callables_recipe_carries_its_name_only(name: str) -> None:
    features = encoder(name)
    recipe, arrays = describe(features)
    assert sum(array.nbytes for array in arrays.values()) == 0
    again = build(json.loads(json.dumps(recipe)), arrays)
    assert again.fingerprint == features.fingerprint
    np.testing.assert_array_equal(again(points(4)), features(points(4)))


# ONNX files.


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match=r"the encoder .*none.onnx cannot be read \(No such file or directory\)"):
        Encoder.load(str(tmp_path / "none.onnx"), (3,))
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(FFGBError, match=r"cannot be read \(Is a directory\)"):
        Encoder.load(str(tmp_path / "folder.onnx"), (3,))


def test_onnxruntime_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.onnx"
    file.write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    words = r"the encoder some.onnx needs onnxruntime, which is not installed; run: pip install 'ffgb\[onnx\]'"
    with pytest.raises(FFGBError, match=words):
        Encoder.load(str(file), (3,))


def test_an_empty_file_is_refused_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(FFGBError) as caught:
        Encoder.load(str(tmp_path / "empty.onnx"), (3,))
    assert "no code named" not in str(caught.value)


W = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
B = np.random.default_rng(1).standard_normal(4).astype(np.float32)


def written(file: Path, batch: int | str, **more: Any) -> Encoder:
    """max(Wᵀx + b, 0) of points (2, 3) as an ONNX file, loaded."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        make.make_node("Flatten", ["x"], ["flat"]),
        make.make_node("Gemm", ["flat", "W", "b"], ["s"]),
        make.make_node("Relu", ["s"], ["z"]),
    ]
    inputs = [make.make_tensor_value_info("x", kind, [batch, 2, 3])]
    if more.get("second"):
        inputs.append(make.make_tensor_value_info("y", kind, [batch, 2]))
    graph = make.make_graph(
        *(nodes, "tiny", inputs, [make.make_tensor_value_info("z", kind, [batch, 4])]),
        initializer=[onnx.numpy_helper.from_array(W, "W"), onnx.numpy_helper.from_array(B, "b")],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(file))
    return Encoder.load(str(file), more.get("shape", (2, 3)))


def tiny(x: Array) -> Array:
    values: Array = np.maximum(x.reshape(len(x), 6).astype(float) @ W + B, 0.0)
    return values


@pytest.mark.parametrize("batch", ["n", 4, 1])
@pytest.mark.parametrize("n", [1, 3, 4, 11, POINTS_AT_ONCE + 2])
def test_an_onnx_file_is_a_map(batch: int | str, n: int, tmp_path: Path) -> None:
    features = written(tmp_path / "tiny.onnx", batch)
    assert features.name == "tiny.onnx"
    assert features.dimension == 4
    z = features(points(n))
    assert z.shape == (n, 4)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z, tiny(points(n)), atol=1e-5)


@pytest.mark.parametrize("batch", ["n", 4])
def test_a_recipe_carries_the_file(batch: int | str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.onnx"
    features, x = written(file, batch), points(7)
    recipe, arrays = describe(features)
    assert sum(array.nbytes for array in arrays.values()) == file.stat().st_size
    file.unlink()
    again = build(json.loads(json.dumps(recipe)), {name: array.copy() for name, array in arrays.items()})
    assert again.fingerprint == features.fingerprint
    np.testing.assert_array_equal(again(x), features(x))
    np.testing.assert_allclose(again(x), tiny(x), atol=1e-5)


def test_files_of_other_content_have_other_fingerprints(tmp_path: Path) -> None:
    batches: list[int | str] = ["n", "n", 4]
    one, again, other = (written(tmp_path / f"{k}.onnx", b) for k, b in enumerate(batches))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint != again.fingerprint  # they have names of their own
    np.testing.assert_array_equal(one.onnx, again.onnx)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "bad.onnx").write_bytes(b"this is no model")
    with pytest.raises(FFGBError, match=r"the encoder bad.onnx fails on points of shape \(2, 3\): .+"):
        Encoder.load(str(tmp_path / "bad.onnx"), (2, 3))


@pytest.mark.parametrize("more", [{"shape": (5,)}, {"shape": (2, 4)}, {"second": True}], ids=["flat", "wide", "two"])
def test_a_model_of_other_points_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match=r"the encoder tiny.onnx fails on points of shape .*: .+"):
        written(tmp_path / "tiny.onnx", "n", **more)
