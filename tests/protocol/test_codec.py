"""Messages: they come back as they were, and what is no message is refused with a reason."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save

from ffgb.errors import FFGBError
from ffgb.protocol.codec import Message, decode, encode


def test_a_message_comes_back_as_it_was() -> None:
    tensors = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array([1.5]),
        "i": np.arange(3, dtype=np.int32),
    }
    data = encode(Message("answer", 3, 7, {"gamma": [0.5, 0.25]}, tensors))
    again = decode(data)
    assert (again.kind, again.round, again.client, again.values) == ("answer", 3, 7, {"gamma": [0.5, 0.25]})
    assert again.size == len(data)
    for name, array in tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
        assert again.tensors[name].dtype == array.dtype
    assert encode(again) == data  # one message, one sequence of bytes


def test_weights_are_no_parameters() -> None:
    message = Message(
        "update", tensors={"parameters/w": np.zeros((4, 5)), "weights": np.zeros(4), "radii": np.zeros(4)}
    )
    assert message.parameters == 20


def test_views_are_sent_as_they_look() -> None:
    view = np.arange(12.0).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(decode(encode(Message("x", tensors={"v": view}))).tensors["v"], view)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"\xff" * 40, "cut short"),
        (encode(Message("x", tensors={"v": np.ones(9)}))[:-8], "cut short"),
        (save({"v": np.ones(2)}), "no ffgb header"),
        (save({}, metadata={"ffgb": "[]"}), "no ffgb header"),
        (save({}, metadata={"ffgb": json.dumps({"version": 1, "kind": "x"})}), "lacks 'round'"),
        (
            save({}, metadata={"ffgb": json.dumps({"version": 9, "kind": "x", "round": 0, "client": 0, "values": {}})}),
            "upgrade both sides",
        ),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        decode(data)
