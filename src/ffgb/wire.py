"""What travels: a `Message` as safetensors bytes with a small header.  No pickle, no code.

Every engine moves these bytes and nothing else, so what is counted on one machine is what a network would carry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ffgb.errors import FFGBError
from ffgb.functions import Array

VERSION = 1


@final
@dataclass(frozen=True, eq=False)
class Message:
    """One message between server and client: what it is, which round and client it belongs to, values, arrays."""

    kind: str
    round: int = 0
    client: int = -1
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)
    size: int = 0
    """Bytes on the wire, once it has arrived."""

    @property
    def parameters(self) -> int:
        """Numbers it carries.  A learner's own weight in a sum is not counted as a parameter; in bytes it is."""
        return sum(a.size for name, a in self.tensors.items() if name not in ("weights", "radii"))


def encode(message: Message) -> bytes:
    """The bytes of a message: the same message gives the same bytes."""
    header = {
        "version": VERSION,
        "kind": message.kind,
        "round": message.round,
        "client": message.client,
        "values": dict(message.values),
    }
    tensors = {name: np.ascontiguousarray(a) for name, a in sorted(message.tensors.items())}
    return save(tensors, metadata={"ffgb": json.dumps(header, sort_keys=True)})


def decode(data: bytes) -> Message:
    """The message in these bytes; an FFGBError that says why if there is none."""
    header = _header(data)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FFGBError(f"a message's arrays cannot be read: {error}") from error
    return Message(header["kind"], header["round"], header["client"], header["values"], tensors, len(data))


def _header(data: bytes) -> dict[str, Any]:
    # safetensors: 8 bytes little-endian length, then a JSON table of contents that may hold "__metadata__"
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise FFGBError("a message is cut short: it is no ffgb message, or its connection broke")
    try:
        header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["ffgb"])
    except (ValueError, KeyError, TypeError) as error:
        raise FFGBError("a message has no ffgb header") from error
    expected = {"version": int, "kind": str, "round": int, "client": int, "values": dict}
    for name, kind in expected.items():
        if not isinstance(header, dict) or not isinstance(header.get(name), kind):
            raise FFGBError(f"a message's header lacks {name!r}")
    if header["version"] != VERSION:
        raise FFGBError(
            f"a message has format version {header['version']}, this ffgb reads {VERSION}; upgrade both sides"
        )
    return header
