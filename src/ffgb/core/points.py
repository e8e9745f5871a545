"""A client's points, and their features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import numpy as np

from ffgb.core.functions import Function
from ffgb.core.maps import POINTS_AT_A_TIME, After, FeatureMap, in_blocks
from ffgb.core.sparse_rows import sparse
from ffgb.core.types import Array
from ffgb.hardware import cores, physical

EVERY = slice(None)
KEPT = max(physical() // (16 * cores()), 2**28)
"""Bytes of features that one process keeps between messages; beyond, they are computed again when they are needed."""
SPARSE_KEPT = 2**26
"""The same where rows are sparse, for each client: they are sparse because they would be too large in full."""


@final
class Points:
    """A client's points (x, y), what each weighs, and the features of x under the map that was asked for last.

    Maps are pure functions, so what is forgotten here costs time and changes nothing.
    """

    def __init__(self, i: int, x: Array, y: Array, weights: Array | None = None) -> None:
        """Without weights every row weighs 1."""
        self.i, self.x, self.y, self.weights = i, x, y, weights
        self.secret = b""
        """What draws of these rows depend on besides the seed (draws.py): only a real site has one."""
        self._key, self._z = "", np.empty(0)
        self._once: dict[str, Array] = {}
        self.aside: object = None
        """What a question has computed here, and the next one may use again: without it the same is computed anew."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def weight(self) -> float:
        """Of all rows together."""
        return float(len(self.y)) if self.weights is None else float(self.weights.sum())

    def sum(self, values: Array, rows: slice = EVERY) -> Array:
        """Σ_j v_j values_j over some rows, in float64."""
        if self.weights is None:
            total: Array = values.sum(axis=0, dtype=np.float64)
            return total
        return np.tensordot(self.weights[rows], values.astype(np.float64, copy=False), axes=1)

    def weighted(self, values: Array, rows: slice = EVERY) -> Array:
        """Some rows times their weights: the same array if every row weighs 1."""
        if self.weights is None:
            return values
        heavy: Array = values * self.weights[rows].astype(values.dtype).reshape(-1, *(1,) * (values.ndim - 1))
        return heavy

    def features(self, features: FeatureMap) -> Array:
        """Φ(x), computed once: set-up and training ask for the same features again and again."""
        key = features.fingerprint
        if key != self._key:
            # a map of another map's features starts from those, which may be at hand
            z = self._after(features) if isinstance(features, After) else features.of_many(self.x)
            self._key, self._z = key, z
        return self._z

    def _after(self, features: After) -> Array:
        inner = self.features(features.inner)
        return np.concatenate([features.after(inner[rows]) for rows in in_blocks(len(inner))])

    def blocks(self, features: FeatureMap) -> Iterator[tuple[slice, Array]]:
        """Φ(x) of some points at a time: computed anew each time where all of it would take too much memory."""
        most = KEPT if sparse(self.x) is None else SPARSE_KEPT
        blocks = in_blocks(len(self), features.dimension)
        if features.fingerprint == self._key or 4 * len(self) * features.dimension <= most:
            z = self.features(features)
            yield from ((rows, z[rows]) for rows in blocks)
        else:
            yield from ((rows, features(self.x[rows])) for rows in blocks)

    def values(self, f: Function) -> Array:
        """f at the points."""
        if f.family.features.fingerprint == self._key and f.family.points_in_a_block > POINTS_AT_A_TIME:
            return f.evaluate(self._z)  # it takes blocks of its own
        found = np.zeros((len(self), f.family.outputs))
        for rows, z in self.blocks(f.family.features):
            found[rows] = f.evaluate(z)
        return found

    def once(self, name: str, make: Callable[[], Array]) -> Array:
        """What follows from the points alone, computed once."""
        if name not in self._once:
            self._once[name] = make()
        return self._once[name]

    @property
    def cached(self) -> int:
        """Bytes of the features that are kept, and of what was computed from them."""
        kept = sum(array.nbytes for array in self._once.values())
        return self._z.nbytes + kept + int(getattr(self.aside, "nbytes", 0))

    def forget(self) -> None:
        """Give back the memory of the features, and of what was computed from them."""
        self._key, self._z, self.aside = "", np.empty(0), None
        self._once.clear()
