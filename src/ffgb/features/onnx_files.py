"""What an ONNX file may not do: name other files.

A tensor in an ONNX file may say that its numbers are in another file ("external data"), and onnxruntime reads that one,
wherever it is.  An encoder that came in a message could so send out anything that its receiver can read.

The file is walked here without the package onnx, which is not needed to run it.  ONNX is in protobuf's format: a
message is a row of fields, each a tag (number and kind), and a number or a length with so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ffgb.errors import FFGBError

Fields: TypeAlias = Mapping[int, str]
"""Numbers of the fields that hold messages, and of which kind."""

_TENSOR = "tensor"
_HOLDS: Mapping[str, Fields] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
}
"""Where tensors are, as onnx.proto has it."""
_NAME, _EXTERNAL, _LOCATION = 8, 13, 14
"""Of a tensor: its name; where its numbers are, in words; whether they are elsewhere."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def refuse_external_data(data: bytes, name: str) -> None:
    """An FFGBError if a tensor's numbers are in another file; a ValueError if it is no ONNX file at all."""
    view, todo = memoryview(data), [("model", 0, len(data))]
    while todo:
        kind, start, end = todo.pop()
        if kind == _TENSOR:
            _check_tensor(view, start, end, name)
            continue
        for number, value in _fields(view, start, end):
            if number in _HOLDS[kind] and isinstance(value, tuple):
                todo.append((_HOLDS[kind][number], *value))


def _check_tensor(view: memoryview, start: int, end: int, name: str) -> None:
    called, external = "", False
    for number, value in _fields(view, start, end):
        if number == _NAME and isinstance(value, tuple):
            called = bytes(view[slice(*value)]).decode(errors="replace")
        external |= (number == _EXTERNAL and isinstance(value, tuple)) or (number == _LOCATION and value != 0)
    if external:
        raise FFGBError(
            f"the encoder {name} keeps the numbers of {called!r} in another file, which could be any file of its "
            "reader's; save it as one file that holds them itself"
        )


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Number and content of each field: a number, or where its bytes begin and end."""
    while at < end:
        tag, at = _varint(view, at, end)
        number, kind = (tag & 0xFFFFFFFF) >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(view, at, end)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(view, at, end)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:  # groups, which no one writes any more
            raise ValueError("it is no ONNX file")
        if length > end - at:
            raise ValueError("it is no whole ONNX file")
        if kind == _BYTES:
            yield number, (at, at + length)
        at += length


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = view[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise ValueError("it is no whole ONNX file")
