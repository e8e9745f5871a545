"""A hundred thousand damaged messages: each is refused with a reason, or is a sound message; none costs much."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.wire import Expected, Form, Message, decode, encode

Mutation: TypeAlias = Callable[[np.random.Generator, bytes], bytes]

FORMS = {
    "parameters/0.weight": Form((5, 4), "float32", 3),
    "parameters/0.bias": Form((5,), "float32", 3),
    "parameters/feature": Form((2,), "int32", 3),
    "weights": Form((), "float64", 3),
    "radii": Form((), "float64", 3),
}
EXPECTED = Expected(("answer", "resync", "error"), 4, 2, FORMS, frozenset({"radii"}))


def answer(precision: str) -> bytes:
    rng = np.random.default_rng(0)
    tensors = {
        "parameters/0.weight": rng.standard_normal((2, 5, 4)).astype(np.float32),
        "parameters/0.bias": rng.standard_normal((2, 5)).astype(np.float32),
        "parameters/feature": np.array([[1, 2], [3, 4]], np.int32),
        "weights": np.array([0.5, -0.25]),
    }
    return encode(Message("answer", 4, 2, {"notes": {"gamma": [0.5]}}, tensors, precision))


def others() -> list[bytes]:
    return [
        encode(Message("resync", client=2, values={"version": 3})),
        encode(Message("error", 4, 2, {"text": "no", "defect": False})),
    ]


def flip(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(0, len(data), rng.integers(1, 5)):
        changed[at] ^= 1 << rng.integers(8)
    return bytes(changed)


def overwrite(rng: np.random.Generator, data: bytes) -> bytes:
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 20))
    return data[:at] + rng.bytes(n) + data[at + n :]


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: rng.integers(len(data))]


def insert(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + rng.bytes(int(rng.integers(1, 40))) + data[at:]


def splice(rng: np.random.Generator, data: bytes) -> bytes:
    a, b = sorted(int(n) for n in rng.integers(0, len(data), 2))
    return data[:b] + data[a:]


def length(rng: np.random.Generator, data: bytes) -> bytes:
    size = int(rng.choice([0, 1, 2**16, 2**31, 2**62, len(data), len(data) - 8, int(rng.integers(2**32))]))
    return size.to_bytes(8, "little") + data[8:]


STRANGE = (
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    "x",
    "",
    None,
    True,
    [],
    {},
    [1] * 40,
    "F64",
    "I8",
    "NaN",
    [[]],
    "\ud800",
)


def header(rng: np.random.Generator, data: bytes) -> bytes:
    """Something in the JSON becomes something else, and the lengths are put right again."""
    size = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + size])
    inside = rng.random() < 0.5
    text = table["__metadata__"]["ffgb"]
    tree = json.loads(text[8:]) if inside else table
    node = tree
    for _ in range(int(rng.integers(1, 4))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(node[key], dict | list) and rng.random() < 0.7:
            node = node[key]
            continue
        strange = STRANGE[int(rng.integers(len(STRANGE)))]
        if isinstance(node, dict) and rng.random() < 0.2:
            node[str(strange)] = node.pop(key)
        else:
            node[key] = strange
        break
    if inside:
        table["__metadata__"]["ffgb"] = text[:8] + json.dumps(tree)
    new = json.dumps(table).encode()
    return len(new).to_bytes(8, "little") + new + data[8 + size :]


def deep(rng: np.random.Generator, data: bytes) -> bytes:
    """Brackets without end."""
    text = b"[" * int(rng.integers(10, 20000))
    return len(text).to_bytes(8, "little") + text


MUTATIONS: tuple[Mutation, ...] = (flip, overwrite, cut, insert, splice, length, header, header, header, deep)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_are_refused_with_a_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    originals = [answer(p) for p in ("float32", "float16", "int8")] + others()
    for data in originals:
        assert decode(data, EXPECTED).client == 2
    reasons: dict[str, int] = {}
    slowest = 0.0
    tracemalloc.start()
    try:
        for _ in range(25_000):
            data = originals[int(rng.integers(len(originals)))]
            for _ in range(int(rng.integers(1, 3))):
                if len(data) > 16:
                    try:
                        data = MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, data)
                    except (ValueError, KeyError, TypeError, RecursionError):
                        continue  # too broken already for this mutation
            began = time.perf_counter()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                message = decode(data, EXPECTED)
            except FFGBError as error:
                reason = str(error)
                assert reason.startswith("a message")
                assert len(reason) < 1500
                reasons[reason[:24]] = reasons.get(reason[:24], 0) + 1
            else:  # it may have come through unharmed, or changed in a way that is no harm
                assert message.kind in EXPECTED.kinds
                assert message.kind != "answer" or message.round == 4
                for name, array in message.tensors.items():
                    assert array.dtype == FORMS[name].dtype
                    assert array.shape[1:] == FORMS[name].shape
                    assert np.isfinite(array).all()
            assert tracemalloc.get_traced_memory()[1] - before < 2 * EXPECTED.limit
            slowest = max(slowest, time.perf_counter() - began)
    finally:
        tracemalloc.stop()
    assert slowest < 5.0
    assert len(reasons) > 8  # many ways to be wrong were tried
    assert sum(reasons.values()) > 20_000


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_precisions_round_as_they_say(precision: str) -> None:
    rng = np.random.default_rng(1)
    array = (rng.standard_normal((3, 7, 4)) * [[[1.0]], [[100.0]], [[1e-6]]]).astype(np.float32)
    array[0, 0] = 0.0
    tensors = {
        "parameters/w": array,
        "weights": np.array([1.0, 2.0, 3.0]),
        "parameters/i": np.arange(3, dtype=np.int32),
    }
    data = encode(Message("answer", tensors=tensors, precision=precision))
    again = decode(data)
    assert again.precision == precision
    assert encode(again) == data  # rounding twice is rounding once
    np.testing.assert_array_equal(again.tensors["weights"], tensors["weights"])
    np.testing.assert_array_equal(again.tensors["parameters/i"], tensors["parameters/i"])
    error = np.abs(again.tensors["parameters/w"] - array).max(axis=(1, 2)) / np.abs(array).max(axis=(1, 2))
    bound = {"float32": 0.0, "float16": 2**-10, "int8": 0.5 / 127 * 1.001}[precision]
    assert (error[:2] <= bound).all()
    assert error[2] <= (0.05 if precision == "float16" else bound)  # 1e-6 is at float16's lower end
    whole = decode(encode(Message("answer", tensors={"parameters/w": array[0]}, precision=precision))).tensors[
        "parameters/w"
    ]
    assert np.abs(whole - array[0]).max() <= bound * np.abs(array[0]).max()
    sizes = {"float32": 4, "float16": 2, "int8": 1}
    assert len(data) - len(encode(Message("answer", tensors=tensors, precision="int8"))) == pytest.approx(
        (sizes[precision] - 1) * array.size, abs=120
    )


def test_numbers_beyond_half_precision_are_the_largest_it_has() -> None:
    data = encode(Message("answer", tensors={"parameters/w": np.array([1e9, -1e9], np.float32)}, precision="float16"))
    np.testing.assert_array_equal(decode(data).tensors["parameters/w"], [65504.0, -65504.0])
