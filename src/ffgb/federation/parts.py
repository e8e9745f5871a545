"""A client's part of a total: what it must obey, at the client and at the server."""

from __future__ import annotations

from collections.abc import Mapping

from ffgb.core.questions import Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.privacy.integers import check_integers, from_integers
from ffgb.protocol.codec import Message


def own_part(question: Question, answer: Message, rows: int, weighting: Weighting, size: float) -> dict[str, Array]:
    """A client's part as numbers, with means that are those of its own rows; an FFGBError if it cannot be one."""
    if (points := answer.values.get("points")) != rows:
        raise FFGBError(f"it is of {points} points, and the client has {rows}")
    return check_own(question, answer.tensors, rows, weighting.part(size))


def check_own(question: Question, whole: Tensors, rows: int, part: float) -> dict[str, Array]:
    """The same, of a client with so many rows that makes up this part of the whole."""
    check_integers(whole, question.sums)
    own = means_of(whole, question.sums, part)
    question.check(own, rows, part)
    return own


def means_of(whole: Tensors, sums: Mapping[str, Sum], part: float) -> dict[str, Array]:
    """Integers as numbers; of means, given the share of the whole that they are of."""
    found = from_integers(whole, sums)
    return {name: array / part if sums[name].kind == "mean" else array for name, array in found.items()}
