"""Clients in one place: what the server's exchange of statistics amounts to, with a record of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ffgb.aggregates import Ask, Moments, MomentsOf, Statistic
from ffgb.features import Flatten, Points

Array = np.ndarray
Log = list[tuple[Statistic, Any]]
"""Questions and their answers."""


def asked(parts: Sequence[Array], log: Log | None = None) -> Ask:
    """Ask clients with these points; the weights are odd, as no map may depend on them."""

    def ask(statistic: Statistic) -> Any:
        answers = []
        for i, x in enumerate(parts):
            part = statistic.of(Points(i, x, np.zeros((len(x), 1))))
            statistic.check(part)
            answers.append((0.1 + i, part))
        total = statistic.total(iter(answers))
        if log is not None:
            log.append((statistic, total))
        return total

    return ask


def split(x: Array, clients: int, seed: int = 0) -> list[Array]:
    """Any split of the rows at all, of unequal sizes."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.choice(np.arange(1, len(x)), clients - 1, replace=False))
    return np.split(x[rng.permutation(len(x))], at)


def moments(parts: Sequence[Array]) -> Moments:
    """Of the inputs, as the server gets them."""
    total: Moments = asked(parts)(MomentsOf.map(Flatten(int(np.prod(parts[0].shape[1:])))))
    return total
