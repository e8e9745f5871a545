"""Random numbers: every generator of a run comes from its seed, a purpose and a key, and from nothing else."""

from __future__ import annotations

import numpy as np

from ffgb.errors import FFGBError

_PURPOSES = (
    "holdout",
    "partition",
    "sampling",
    "client",
    "features",
    "sketch",
    "patches",
    "oracle",
    "heterogeneity",
    "start",
    "distill",
    "attack",
    "columns",
    "folds",
    "importance",
    "shapes",
    "recalibrate",
)


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """The generator for one purpose, such as ("client", t, i).

    A spawn key keeps streams apart where a list of seeds would not: default_rng([2]) and default_rng([2, 0]) are equal.

    >>> stream(0, "client", 1).integers(100) == stream(0, "client", 1, 0).integers(100)
    np.False_
    """
    if seed < 0:
        raise FFGBError(f"the seed is {seed}; give a whole number from 0 on")
    sequence = np.random.SeedSequence(seed, spawn_key=(_PURPOSES.index(purpose), *key))
    return np.random.default_rng(sequence)
