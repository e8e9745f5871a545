"""Clients in one place: what the server's exchange of parts amounts to, with a record of the questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ffgb.core.moments import moments_of
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, Question
from ffgb.core.statistics import Moments
from ffgb.core.types import Tensors
from ffgb.core.weighting import Weighting
from ffgb.features.basic import Flatten
from ffgb.federation.parts import own_part
from ffgb.federation.totals import total_of
from ffgb.privacy.integers import add, to_integers
from ffgb.protocol.codec import Message

Array = np.ndarray
Log = list[tuple[Question, Any]]
"""Questions and their answers."""

ABSENT = 3.7
"""What the rows of one more client weigh, that is asked with the others and never answers."""


def asked(parts: Sequence[Array], log: Log | None = None, *, by_size: bool = False, level: float = math.inf) -> Ask:
    """Ask clients with these points, as `among` does."""
    return among([Points(i, x, np.zeros((len(x), 1))) for i, x in enumerate(parts)], log, by_size=by_size, level=level)


def among(clients: Sequence[Points], log: Log | None = None, *, by_size: bool = False, level: float = math.inf) -> Ask:
    """Ask these clients: parts are rounded, checked, and added up as integers, the last client's first.

    Every client weighs the same, whatever its rows, where a question lets clients have weights: as no map may depend on
    them.  One client is silent, so that parts are no round shares of the whole.
    """

    def ask(question: Question) -> Any:
        weighting = weighting_of(clients, by_size=by_size or question.by_rows, level=level)
        answers = []
        for points in reversed(clients):
            part = part_of(question, Here(points, weighting.share(points.weight)))
            message = Message("part", client=points.i, values={"points": len(points)}, tensors=part)
            own = own_part(question, message, len(points), weighting, points.weight)
            question.certify(own, weighting.part(points.weight))
            question.spread(own)
            answers.append(part)
        share = math.fsum(weighting.part(points.weight) for points in clients)
        total = total_of(question, add(answers, question.sums), share)
        if log is not None:
            log.append((question, total))
        return total

    return ask


def weighting_of(clients: Sequence[Points], *, by_size: bool, level: float = math.inf) -> Weighting:
    """Of these clients and the one that is absent."""
    alone = Weighting(1.0, by_size, level)
    return Weighting(math.fsum(map(alone.weight, (*(p.weight for p in clients), ABSENT))), by_size, level)


def part_of(question: Question, here: Here) -> dict[str, Array]:
    """A client's part as it travels."""
    return to_integers(question.part(here), question.sums)


def own(question: Question, x: Array, y: Array | None = None) -> Tensors:
    """What a client says of its own rows alone, as the server checks it."""
    points = Points(0, x, np.zeros((len(x), 1)) if y is None else y)
    weighting = weighting_of([points], by_size=True)
    part = part_of(question, Here(points, weighting.share(points.weight)))
    message = Message("part", values={"points": len(x)}, tensors=part)
    return own_part(question, message, len(x), weighting, points.weight)


def split(x: Array, clients: int, seed: int = 0) -> list[Array]:
    """Any split of the rows at all, of unequal sizes."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.choice(np.arange(1, len(x)), clients - 1, replace=False))
    return np.split(x[rng.permutation(len(x))], at)


def moments(parts: Sequence[Array]) -> Moments:
    """Of the inputs, as the server gets them."""
    return moments_of(asked(parts), Flatten(int(np.prod(parts[0].shape[1:]))))
