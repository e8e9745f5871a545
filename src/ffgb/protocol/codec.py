"""What travels: a `Message` as safetensors bytes with a small typed header and a checksum.  No pickle, no code.

Every engine moves these bytes and nothing else, so what is counted on one machine is what a network would carry.  What
arrives is not trusted: its size, table of contents, kind, round, client and the shape and type of every array are
checked against what the receiver expects (`Expected`) before any array is made, and then that they are finite.

Increments may travel in half precision or as bytes with a scale: `precision` of a message.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ffgb.core.types import Array
from ffgb.errors import FFGBError, printable
from ffgb.settings import METHOD, Setting

VERSION = 2
HEADER_LIMIT = 16 * 2**20
"""Bytes of a header; recipes with long lists of categories are in it."""
PRECISIONS = ("float32", "float16", "int8")
SCALE = "#scale"
"""What the name of an array of bytes has more than its own, for the array of its scales."""
ANSWER_HEADER, PER_ARRAY = 64 * 2**10, 512
"""Bytes of the header of an answer: what it says, and for each array a line in the table of contents.  JSON takes some
twenty times its size in memory."""
LETTERS = 500
"""Of a text that a message brings, what is shown."""

Number = (int, float)
VALUES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "ready": {},
    "resync": {"version": int},
    "error": {"text": str},
    "part": {"points": int},
    "answer": {"notes": dict},
    "report": {"points": int, "loss": Number, "score": Number, "weight": Number},
    "masked": {},
    "stranger": {},
    "key": {"signature": str},
    "tied": {},
    "prepared": {},
    "shares": {},
    "seeds": {},
}
"""What clients' messages say besides arrays."""

KEYS = (
    "introduction",
    "key",
    "roster",
    "tie",
    "tied",
    "ties",
    "prepare",
    "prepared",
    "unmask",
    "shares",
    "reopen",
    "seeds",
)
"""Kinds of messages that carry keys and shares of secrets (masking.py), and nothing of a model."""

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_AXES, _LENGTH = 8, 2**40
_Contents: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type of each array, by name."""


@final
@dataclass(frozen=True, eq=False)
class Message:
    """One message between server and client: what it is, which round and client it belongs to, values, arrays."""

    kind: str
    round: int = 0
    client: int = -1
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)
    precision: str = "float32"
    """In which the parameters of learners travel; what has arrived is as it travelled."""
    size: int = 0
    """Bytes on the wire, once it has arrived."""

    @property
    def parameters(self) -> int:
        """Numbers it carries.  A learner's own weight in a sum is not counted as a parameter; in bytes it is."""
        if self.kind in KEYS:
            return 0
        return sum(a.size for name, a in self.tensors.items() if name not in ("weights", "radii"))


@final
@dataclass(frozen=True)
class Form:
    """Shape and type that an array must have; `terms` before the shape if it is a stack of up to so many."""

    shape: tuple[int, ...]
    dtype: str
    terms: int = 0
    largest: float = math.inf
    """No entry is farther from 0: one of 1e30 is finite, and would drown everyone else's."""

    @property
    def size(self) -> int:
        return max(self.terms, 1) * math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        shape = (f"up to {self.terms}", *self.shape) if self.terms else self.shape
        return f"{self.dtype} of shape ({', '.join(map(str, shape))})"


@final
@dataclass(frozen=True)
class Expected:
    """What a receiver is ready to take."""

    kinds: tuple[str, ...]
    """The first is what was asked for; of that kind are the round and the arrays."""
    round: int | None = None
    client: int | None = None
    forms: Mapping[str, Form] | None = field(default_factory=dict)
    """The arrays that a message of the first kind has, and no others; messages of the other kinds have none.  None:
    whatever the message is about will say which, when it is built."""
    optional: frozenset[str] = frozenset()
    """Arrays that may be missing."""
    values: tuple[str, ...] = ()
    """Numbers that a message of the first kind says, besides what its kind always does (`VALUES`)."""

    @property
    def header(self) -> int:
        """Bytes."""
        return HEADER_LIMIT if self.forms is None else ANSWER_HEADER + 2 * PER_ARRAY * len(self.forms)

    @property
    def limit(self) -> float:
        """Bytes in all."""
        return math.inf if self.forms is None else self.header + sum(2 * form.size for form in self.forms.values())

    @property
    def memory(self) -> float:
        """Bytes that reading a message may take at most, whatever is in it: JSON is parsed once inside the other."""
        return 48 * self.header + 3 * self.limit


@final
@dataclass(frozen=True)
class Sent:
    """A kind of message that leaves a client: what it answers, the arrays in it, and its size.  Never their values."""

    what: str
    once: bool
    """Before the first round, or after the last one, rather than in each."""
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, type and shape of each."""
    bytes: int

    @staticmethod
    def of(said: str, answer: Message, *, once: bool, held_out: bool = False) -> Sent:
        arrays = tuple((name, str(a.dtype), a.shape) for name, a in sorted(answer.tensors.items()))
        return Sent(said + (", rows held out" if held_out else ""), once, arrays, answer.size)


def encode(message: Message) -> bytes:
    """The bytes of a message: the same message gives the same bytes."""
    header = {
        "version": VERSION,
        "kind": message.kind,
        "round": message.round,
        "client": message.client,
        "values": dict(message.values),
    }
    tensors: dict[str, Array] = {}
    for name, array in sorted(message.tensors.items()):
        tensors |= _packed(name, array, message.precision, stacked="weights" in message.tensors)
    text = json.dumps(header, sort_keys=True)
    return save(tensors, metadata={"ffgb": _checksum(text, tensors) + text})  # one entry: of two the order would vary


def decode(data: bytes, expected: Expected | None = None) -> Message:
    """The message in these bytes; an FFGBError that says why if there is none, or if it is not what was expected."""
    if expected is not None and len(data) > expected.limit:
        _refuse(f"has {len(data):,} bytes, and at most {expected.limit:,} were expected")
    text, check, contents = _table(data, HEADER_LIMIT if expected is None else expected.header)
    header = _header(text)
    if expected is not None:
        _compare(header, contents, expected)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FFGBError(f"a message's arrays cannot be read: {error}") from error
    if _checksum(text, tensors) != check:
        _refuse("was changed on its way: its checksum is wrong")
    tensors, precision = _unpacked(tensors)
    if expected is not None and expected.forms is not None:
        _look(tensors, expected.forms)
    kind, t, client, values = (header[name] for name in ("kind", "round", "client", "values"))
    return Message(kind, t, client, values, tensors, precision, len(data))


def as_travelled(message: Message) -> Message:
    """The message as its receiver has it."""
    return message if message.precision == "float32" else decode(encode(message))


def _refuse(why: str) -> NoReturn:
    raise FFGBError(f"a message {why}")


def shown(text: object) -> str:
    """A text that came from elsewhere, as it may be shown: short, and without anything that a terminal would obey."""
    return printable(str(text)[:LETTERS])


def _table(data: bytes, most: int) -> tuple[str, str, _Contents]:
    """Our header, the checksum, and shape and type of each array, from safetensors' table of contents, checked."""
    # 8 bytes little-endian length, then JSON: an entry an array, and "__metadata__"
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        _refuse("is cut short: it is no ffgb message, or its connection broke")
    if length > most:
        _refuse(f"has a header of {length:,} bytes, and at most {most:,} were expected")
    try:
        table = json.loads(data[8 : 8 + length])
        found = table.pop("__metadata__")["ffgb"]
        check, text = found[: found.index("{")], found[found.index("{") :]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FFGBError("a message has no ffgb header") from error
    entries = {name: _entry(name, entry) for name, entry in table.items()}
    _refuse_gaps([span for _, _, span in entries.values()], len(data) - 8 - length)
    return text, check, {name: (shape, dtype) for name, (shape, dtype, _) in entries.items()}


def _entry(name: str, entry: Any) -> tuple[tuple[int, ...], str, tuple[int, int]]:
    """Shape, type, and first and last byte of an array, from its entry in the table of contents."""
    if isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}:
        dtype, shape, offsets = _DTYPES.get(str(entry["dtype"])), entry["shape"], entry["data_offsets"]
        lists = isinstance(shape, list) and isinstance(offsets, list)
        if dtype is not None and lists and len(shape) <= _AXES and len(offsets) == 2:
            counts = all(type(n) is int and 0 <= n < _LENGTH for n in (*shape, *offsets))
            if counts and offsets[1] - offsets[0] == math.prod(shape) * np.dtype(dtype).itemsize:
                return tuple(shape), dtype, (offsets[0], offsets[1])
    _refuse(f"has a damaged table of contents, at {shown(name)}")


def _refuse_gaps(spans: Sequence[tuple[int, int]], size: int) -> None:
    """Arrays lie one after the other, from the first byte to the last."""
    at = 0
    for start, end in sorted(spans):
        if start != at:
            _refuse("has arrays that overlap or leave gaps")
        at = end
    if at != size:
        _refuse("is cut short: it is no ffgb message, or its connection broke")


def _header(text: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise FFGBError("a message has no ffgb header") from error
    expected = {"version": int, "kind": str, "round": int, "client": int, "values": dict}
    for name, kind in expected.items():
        if not isinstance(header, dict) or type(header.get(name)) is not kind:
            _refuse(f"has a header that lacks {name!r}")
    if header["version"] != VERSION:
        _refuse(f"has format version {header['version']}, this ffgb reads {VERSION}; upgrade both sides")
    return header


def _finite(text: str) -> float:
    """A number in a header.  JSON has no infinity, but 1e999, and NaN in Python's dialect."""
    if not math.isfinite(value := float(text)):
        _refuse(f"has a value that is {shown(text)[:20]}")
    return value


def _whole(text: str) -> int:
    if len(text) > 100:  # more than any seed, and still a finite float
        _refuse("has a whole number that is too large")
    return int(text)


def _compare(header: Mapping[str, Any], contents: _Contents, expected: Expected) -> None:
    """Refuse what is not what was expected, by its header and its table of contents alone."""
    if header["kind"] not in expected.kinds:
        _refuse(f"is of the kind {shown(header['kind'])!r}, expected {' or '.join(expected.kinds)}")
    main = header["kind"] == expected.kinds[0]
    for name, want in (("client", expected.client), ("round", expected.round if main else None)):
        if want is not None and header[name] != want:
            _refuse(f"is of {name} {header[name]}, expected {want}")
    if expected.forms is None:
        return
    said = {**VALUES.get(header["kind"], {}), **dict.fromkeys(expected.values if main else (), Number)}
    for name, types in said.items():
        value = header["values"].get(name)
        if not isinstance(value, types) or isinstance(value, bool):
            _refuse(f"says {name} in a way that is not understood")
    _compare_arrays(contents, expected.forms if main else {}, expected.optional)


def _compare_arrays(contents: _Contents, forms: Mapping[str, Form], optional: frozenset[str]) -> None:
    """Refuse arrays of other names, shapes or types than were expected."""
    names = {name for name in contents if not _is_scale(name, contents)}
    if not forms.keys() - optional <= names <= forms.keys():
        _refuse(f"has the arrays {shown(sorted(names))}, expected {sorted(forms)}")
    terms = contents["weights"][0][0] if "weights" in contents and contents["weights"][0] else None
    for name, form in forms.items():
        if name in contents:
            _compare_array(name, contents, form, terms)


def _is_scale(name: str, contents: _Contents) -> bool:
    """A scale belongs to an array of bytes that is there as well."""
    whole = contents.get(name.removesuffix(SCALE))
    return name.endswith(SCALE) and whole is not None and whole[1] == "int8"


def _compare_array(name: str, contents: _Contents, form: Form, terms: int | None) -> None:
    """Refuse an array that has not this form; a stack has the form for each of so many terms."""
    shape, dtype = contents[name]
    wanted = form.shape
    if form.terms and terms is not None:
        if not 0 <= terms <= form.terms:
            _refuse(f"has {terms} terms, expected up to {form.terms}")
        wanted = (terms, *form.shape)
    scale = contents.get(name + SCALE)
    packed = form.dtype == "float32" and (
        (dtype == "float16" and scale is None)
        or (dtype == "int8" and scale == (_scale_shape(shape, stacked=terms is not None), "float32"))
    )
    if shape != wanted or not (packed or (dtype == form.dtype and scale is None)):
        _refuse(f"has {name} as {dtype} of shape {shape}, expected {form}")


def _look(tensors: Mapping[str, Array], forms: Mapping[str, Form]) -> None:
    """Refuse arrays whose values cannot be meant."""
    for name, array in tensors.items():
        if array.dtype.kind != "f":
            continue
        if not np.isfinite(array).all():
            _refuse(f"has values in {name} that are not finite")
        largest = forms[name].largest if name in forms else math.inf
        if max(array.max(initial=0.0), -array.min(initial=0.0)) > largest:
            _refuse(f"has values in {name} beyond {largest:g}, which no learner needs")


def _checksum(text: str, tensors: Mapping[str, Array]) -> str:
    """Of the header and all arrays, wherever they lie in the bytes."""
    check = zlib.crc32(text.encode())
    for name, array in sorted(tensors.items()):
        check = zlib.crc32(f"{name} {_name_of(array.dtype)} {array.shape}".encode(), check)
        check = zlib.crc32(np.ascontiguousarray(array).data, check)
    return f"{check:08x}"


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """As NumPy has it, which takes long to say it."""
    return str(dtype)


def _scale_shape(shape: tuple[int, ...], *, stacked: bool) -> tuple[int, ...]:
    """A scale an array; of a stack, one for each of its terms."""
    return (shape[0], *(1,) * (len(shape) - 1)) if stacked else (1,) * len(shape)


def _packed(name: str, array: Array, precision: str, *, stacked: bool) -> dict[str, Array]:
    """An array as it is sent; only parameters of learners, which are float32, are ever rounded."""
    array = np.ascontiguousarray(array)
    if precision == "float32" or array.dtype != np.float32 or not name.startswith("parameters/"):
        return {name: array}
    if precision == "float16":
        return {name: np.clip(array, -65504.0, 65504.0).astype(np.float16)}
    axes = tuple(range(1 if stacked else 0, array.ndim))
    scale = np.abs(array).max(axis=axes, keepdims=True, initial=0.0) / np.float32(127.0)
    with np.errstate(all="ignore"):
        units = np.where(scale > 0, array / scale, 0.0)
    return {name: np.clip(np.rint(units), -127, 127).astype(np.int8), name + SCALE: scale.astype(np.float32)}


def _unpacked(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], str]:
    found, precision = dict[str, Array](), "float32"
    for name, array in tensors.items():
        if name.endswith(SCALE):
            continue
        if name.startswith("parameters/") and array.dtype == np.float16:
            array, precision = array.astype(np.float32), "float16"
        elif name.startswith("parameters/") and array.dtype == np.int8 and name + SCALE in tensors:
            scale = tensors[name + SCALE]
            stacked = "weights" in tensors and array.ndim > 0
            if scale.dtype != np.float32 or scale.shape != _scale_shape(array.shape, stacked=stacked):
                _refuse(f"has a scale of {shown(name)} in another shape")
            with np.errstate(all="ignore"):  # what is not finite is refused afterwards
                array, precision = array.astype(np.float32) * scale, "int8"
        found[name] = array
    return found, precision


SETTINGS = (
    Setting("precision", "text", "Number format in which increments travel.", METHOD, "float32", choices=PRECISIONS),
)
