"""A hundred thousand damaged messages: each is refused with a reason, or is a sound message; none costs much."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.errors import FFGBError
from ffgb.protocol import messages
from ffgb.protocol.codec import Expected, Form, Message, decode, encode
from ffgb.protocol.messages import KINDS, QUESTIONS
from ffgb.protocol.sending import Sending
from tests.protocol.test_messages import MESSAGES, answers

Mutation: TypeAlias = Callable[[np.random.Generator, bytes], bytes]

FORMS = {
    "parameters/0.weight": Form((5, 4), "float32", 3, 1e5),
    "parameters/0.bias": Form((5,), "float32", 3, 1e5),
    "parameters/feature": Form((2,), "int32", 3),
    "weights": Form((), "float64", 3, 1e15),
    "radii": Form((), "float64", 3, 1e15),
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


STRANGE: tuple[object, ...] = (
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


def wide(rng: np.random.Generator, data: bytes) -> bytes:
    """Many small things, which take much more room than they look; now and then, for they take long."""
    if rng.random() < 0.95:
        return flip(rng, data)
    sealed = encode(Message("resync", client=2, values={"version": 3, "more": [[]] * int(rng.integers(30_000))}))
    return sealed if rng.random() < 0.5 else sealed.replace(b"[]", b"{}")


def sealed(rng: np.random.Generator, data: bytes) -> bytes:
    """Something else is said, and the checksum is right: what a client could send that means harm."""
    message = decode(data)
    tensors, values = dict(message.tensors), dict(message.values)
    some = list(tensors) or ["weights"]
    name = some[int(rng.integers(len(some)))]
    array = tensors.get(name, np.zeros(2))
    change = int(rng.integers(9))
    if change == 0:
        tensors[name + "#scale"] = np.full((2, 1), np.nan, np.float32)
    elif change == 1:
        tensors[name + "#scale"] = tensors.pop(name, array)
    elif change == 2:
        tensors[name] = np.nan_to_num(array).astype(
            ("int8", "float16", "float64", "int64", "bool")[int(rng.integers(5))]
        )
    elif change == 3:
        tensors[name] = array.reshape(-1) if rng.random() < 0.5 else array[..., None]
    elif change == 4 and array.dtype.kind == "f":
        tensors[name] = np.full_like(array, (np.nan, np.inf, 1e30, -1e30)[int(rng.integers(4))])
    elif change == 5:
        tensors.pop(name, None)
    elif change == 6:
        tensors["more"] = array
    elif values:
        key = list(values)[int(rng.integers(len(values)))]
        values[key] = STRANGE[int(rng.integers(len(STRANGE)))]
    else:
        return encode(replace(message, round=int(rng.integers(-9, 9)), client=int(rng.integers(-9, 9))))
    return encode(replace(message, tensors=tensors, values=values))


MUTATIONS: tuple[Mutation, ...] = (
    *(flip, overwrite, cut, insert, splice, length, header, header, header, deep, wide),
    *(sealed, sealed, sealed, sealed),
)


def read(data: bytes) -> str:
    """Why it is refused; nothing if it came through unharmed, or changed in a way that is no harm."""
    try:
        message = decode(data, EXPECTED)
    except FFGBError as error:
        return str(error)
    assert message.kind in EXPECTED.kinds
    assert message.kind != "answer" or message.round == 4
    for name, array in message.tensors.items():
        assert array.dtype == FORMS[name].dtype
        assert array.shape[1:] == FORMS[name].shape
        assert array.dtype.kind == "i" or np.abs(array).max(initial=0.0) <= FORMS[name].largest
    return ""


def memory(data: bytes) -> int:
    """Bytes that reading it takes, at most at a time."""
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_are_refused_with_a_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    originals = [answer(p) for p in ("float32", "float16", "int8")] + others()
    for data in originals:
        assert read(data) == ""
    reasons: dict[str, int] = {}
    slowest, tried = 0.0, 0
    while tried < 25_000:
        original = data = originals[int(rng.integers(len(originals)))]
        for _ in range(int(rng.integers(1, 3))):
            mutate = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
            # some are too broken already for another mutation
            broken = contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, FFGBError)
            with broken, np.errstate(all="ignore"):
                data = mutate(rng, data) if len(data) > 16 else data
        if data == original:
            continue
        tried += 1
        began = time.perf_counter()
        why = read(data)
        slowest = max(slowest, time.perf_counter() - began)
        assert not why or (why.startswith("a message") and len(why) < 1500)
        reason = why[:24]
        reasons[reason] = reasons.get(reason, 0) + 1
        if tried % 20 == 0 or len(data) > 10_000:  # it is slow to look
            assert memory(data) < EXPECTED.memory
    assert slowest < 5.0
    assert len(reasons) > 8  # many ways to be wrong were tried
    assert tried - reasons[""] > 20_000


PART = replace(MESSAGES["before training"][0].expected(None), client=1)
"""What is expected of a client that was asked for moments: integers."""


def damaged(rng: np.random.Generator, originals: list[bytes], count: int) -> Iterator[bytes]:
    """Messages that were changed in one way or two."""
    while count:
        original = data = originals[int(rng.integers(len(originals)))]
        for _ in range(int(rng.integers(1, 3))):
            mutate = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
            broken = contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, FFGBError, OverflowError)
            with broken, np.errstate(all="ignore"):
                data = mutate(rng, data) if len(data) > 16 else data
        if data != original:
            count -= 1
            yield data


@pytest.mark.parametrize("seed", range(2))
def test_damaged_parts_are_refused_with_a_reason(seed: int) -> None:
    """Whatever comes in place of a part has its arrays in their form, or is refused."""
    originals, refused = [encode(message) for message in answers().values()], list[str]()
    for data in damaged(np.random.default_rng(seed), originals, 5000):
        try:
            message = decode(data, PART)
        except FFGBError as error:
            refused.append(str(error))
            continue
        assert message.kind in PART.kinds
        assert PART.forms is not None
        if message.kind == "part":
            assert (message.round, message.client) == (-1, 1)
            assert type(message.values["points"]) is int
            assert {n: (a.shape, str(a.dtype)) for n, a in message.tensors.items()} == {
                name: (form.shape, form.dtype) for name, form in PART.forms.items()
            }
        else:
            assert not message.tensors
    assert len(refused) > 3500
    assert all(why.startswith("a message") and len(why) < 1500 for why in refused)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_messages_of_every_kind_are_read_or_refused(kind: str) -> None:
    """What a client is sent: it is read as one of the kinds there are, or refused in a sentence."""
    some = [(sending, job) for sending, job in MESSAGES.values() if sending.kind == kind]
    assert some
    for sending, job in some:
        refused = list[str]()
        for data in damaged(np.random.default_rng(0), [encode(sending.message())], 1500):
            try:
                assert isinstance(messages.read(decode(data, QUESTIONS), job), Sending)
            except FFGBError as error:
                refused.append(str(error))
        assert len(refused) > 500
        assert all(0 < len(why) < 3000 for why in refused)


@given(st.binary(max_size=400), st.sampled_from([b"", b"{", b'{"__metadata__":{"ffgb":"', b'{"a":{"dtype":"F32"']))
@settings(max_examples=2000)
def test_anything_at_all_is_refused_with_a_reason(tail: bytes, start: bytes) -> None:
    for data in (start + tail, (len(start) + len(tail)).to_bytes(8, "little") + start + tail):
        with pytest.raises(FFGBError, match="a message"):
            decode(data, EXPECTED)


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
