"""Totals that the server shows to the sites: what a site needs to see that a question is the next one.

In an analysis (`ffgb server glm`) the questions follow from the totals of those before.  The server shows each total to
all sites, under masks with a proof (core/proofs.py).  So a site can follow the server's own program, with its own copy
of it, and refuse a question that this program would not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np

from ffgb.core.proofs import PROOFS, Proven, key_of, proves
from ffgb.core.questions import Question
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.federation.totals import SetUp
from ffgb.privacy.integers import check_integers, from_integers
from ffgb.protocol.codec import Expected, Message, decode, encode
from ffgb.protocol.describe import describe, hash_of, is_array

NEAR = 1e-6
"""By how much numbers of a question may differ from what a site computes: machines may round in other ways."""
COEFFICIENTS = ".beta"
"""How the names of arrays of coefficients end."""
LENGTH = 8
"""Bytes of the length before each part of what is shown."""


def framed(part: bytes) -> bytes:
    return len(part).to_bytes(LENGTH, "big") + part


def parts_of(data: bytes) -> Iterator[bytes]:
    """The parts that were framed; an FFGBError if these are none."""
    at = 0
    while at < len(data):
        end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
        if end > len(data):
            raise FFGBError("what the server shows of totals is cut short")
        yield data[at + LENGTH : end]
        at = end


@final
class ShownAsk:
    """`ask` of a server that shows each total to all sites."""

    def __init__(self, ask: SetUp, show: Callable[[bytes], None]) -> None:
        self.ask, self.show = ask, show
        self.known: dict[bytes, Any] = {}
        self.unanswered = False
        """A question had no answer: it is not the analysis that came to an end."""

    def __call__(self, question: Question) -> Any:
        name = hash_of(question)
        if name not in self.known:
            self.unanswered = True
            sums: Tensors = self.ask(Proven(question, len(self.known)))
            self.unanswered = False
            whole = {each: np.rint(array).astype(np.int64) for each, array in sums.items()}
            self.show(framed(encode(Message("total", values={"question": name.hex()}, tensors=whole))))
            self.known[name] = question.total({each: sums[each] for each in question.sums})
        return self.known[name]


class NextQuestion(Exception):  # noqa: N818  (no error: it is where a program has come to)
    """The program asks what no total has been shown of."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.what)
        self.question = question


@final
@dataclass(eq=False)
class Followed:
    """`ask` of a site that follows the server's program by the totals that the server has shown."""

    shown: list[bytes]
    secret: bytes
    """What proofs are made with; empty without masks, where there are none."""
    proven: int = 0
    """Totals whose proof was seen before."""

    def __post_init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[tuple[Question, Any]]] = {}
        self._number = 0

    def __call__(self, question: Question) -> Any:
        alike = self._known.setdefault(_at_a_glance(question), [])
        for known, total in alike:
            if hash_of(known) == hash_of(question):
                return total
        if self._number == len(self.shown):
            raise NextQuestion(question)
        alike.append((question, question.total(self._sums(question, self._number))))
        self._number += 1
        return alike[-1][1]

    def _sums(self, question: Question, number: int) -> dict[str, Array]:
        """A total as it was shown, if it is one and is proven."""
        message = decode(self.shown[number], Expected(("total",), forms=None))
        tensors = dict(message.tensors)
        proofs, asked = tensors.pop(PROOFS, np.zeros(0)), message.values.get("question")
        whole = {name: array.astype(question.sums[name].dtype) if name in question.sums else array
                 for name, array in tensors.items()}  # fmt: skip
        try:
            if not isinstance(asked, str) or any(array.dtype != np.int64 for array in tensors.values()):
                raise FFGBError("it is not understood")
            check_integers(whole, question.sums)
            if number >= self.proven and self.secret:
                if not proves(key_of(self.secret, number, bytes.fromhex(asked)), tensors, proofs):
                    raise FFGBError("its proof is wrong")
                self.proven = number + 1
        except (FFGBError, ValueError) as error:
            raise FFGBError(
                f"the total of {question.what} that the server shows is not what all sites added up ({error})"
            ) from error
        return from_integers(whole, question.sums)


def _at_a_glance(question: Question) -> tuple[Any, ...]:
    """Something that is the same for the same questions, and quicker than a hash of all that they are."""
    values = (getattr(question, field.name) for field in fields(question))  # type: ignore[arg-type]
    return type(question), *(value.tobytes() for value in values if isinstance(value, np.ndarray))


def differs(asked: Question, expected: Question) -> bool:
    """Is a question another one than that which the program asks, up to rounding?"""
    (one, its), (other, others) = describe(asked), describe(expected)
    if not _alike(one, other) or its.keys() != others.keys():
        return True
    return not all(_near(array, others[name], whole=name.endswith(COEFFICIENTS)) for name, array in its.items())


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and (is_array(one) or all(_alike(one[name], other[name]) for name in one))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= NEAR * abs(other)
    return type(one) is type(other) and bool(one == other)


def _near(array: Array, other: Array, *, whole: bool) -> bool:
    """Are numbers the same up to rounding, one by one or, of coefficients, as a `whole`: some may be almost 0."""
    if array.dtype != other.dtype or array.shape != other.shape:
        return False
    if array.dtype.kind != "f":
        return bool(np.array_equal(array, other))
    if not (np.isfinite(array).all() and np.isfinite(other).all()):
        return False
    size = np.abs(other).max(initial=0.0) if whole else np.abs(other)
    return bool((np.abs(array - other) <= NEAR * size).all())
