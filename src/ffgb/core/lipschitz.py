"""Lipschitz extensions: from labels at a client's points to a function on the whole space, for FFGB.L.

McShane's extension of labels y_j at points s_j is the paper's u(s) = min_j (y_j + L‖s − s_j‖): the largest
L-Lipschitz function through them.  Whitney's, max_j (y_j − L‖s − s_j‖), is the smallest.  Half their sum is one too;
it interpolates if anything L-Lipschitz does, and otherwise is an L-Lipschitz function that misses the labels by as
little as one can.

Vector labels are extended coordinate by coordinate, which costs a factor: each coordinate is L-Lipschitz, the vector
√c·L.  Kirszbraun's theorem says that L is possible; `kirszbraun` finds such values, slowly, as a reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError

ROWS = 256
"""Queries at a time: a block of distances to 10,000 points takes 20 MB."""

SUBSET = 1500
"""Of more points than this, pairs are looked at among a random subset."""

TOLERANCE = 1e-9
"""What a slope may exceed L by, relatively, before labels count as steeper than L: inputs are float32 as a rule."""


@final
class Pairs:
    """All pairs of distinct points (of a random subset, if there are many): where Lipschitz constants are measured."""

    def __init__(self, points: Array, rng: np.random.Generator, at_most: int = SUBSET) -> None:
        n = len(points)
        self.rows = np.arange(n) if n <= at_most else np.sort(rng.choice(n, at_most, replace=False))
        some = np.asarray(points, np.float64)[self.rows]
        a, b = np.triu_indices(len(some), 1)
        distance = np.concatenate([np.linalg.norm(some[i + 1 :] - some[i], axis=1) for i in range(len(some))] or [[]])
        apart = distance > 0
        self.a, self.b, self.distance = a[apart], b[apart], distance[apart]

    def slope(self, values: Array) -> float:
        """The Lipschitz constant of a function at these pairs, from its values (n, c) at all points; 0 without
        pairs."""
        if not len(self.a):
            return 0.0
        some = values[self.rows]
        if some.shape[1] == 1:
            change = np.abs(some[self.a, 0] - some[self.b, 0])
        else:
            change = np.linalg.norm(some[self.a] - some[self.b], axis=1)
        return float((change / self.distance).max())


@final
class Extension:
    """u: an L-Lipschitz function (in each coordinate) from labels (n, c) at points (n, d).

    kind "mcshane" goes through the labels, which must be L-Lipschitz themselves; "middle" goes through or between them.
    """

    def __init__(self, points: Array, labels: Array, L: float, kind: str = "mcshane") -> None:
        if kind not in ("mcshane", "middle"):
            raise FFGBError(f"the extension is mcshane or middle, not {kind!r}")
        self.points = np.asarray(points, np.float64)
        self.labels = np.asarray(labels, np.float64).reshape(len(points), -1)
        self.L, self.kind = float(L), kind
        if kind == "mcshane" and (steeper := int(steepness(self.points, self.labels, (L,))[0][0])):
            raise FFGBError(
                f"L = {L:g} is too small: {steeper:,} pairs of points have labels that are steeper; raise L, or use "
                "the extension middle, which goes between them"
            )

    def __call__(self, s: Array) -> Array:
        """u at the rows of s, (m, c)."""
        out = np.empty((len(s), self.labels.shape[1]))
        for rows, distance in _distances(s, self.points):
            cone = self.L * distance
            for j, y in enumerate(self.labels.T):
                upper = np.min(y + cone, axis=1)
                out[rows, j] = upper if self.kind == "mcshane" else 0.5 * (upper + np.max(y - cone, axis=1))
            if self.kind == "mcshane":
                # At a data point the label itself, to the bit, whatever rounding does to the other cones.
                query, point = np.nonzero(distance == 0.0)
                out[rows.start + query] = self.labels[point]
        return out

    def gradient(self, s: Array) -> Array:
        """∇u at the rows of s, (m, d, c): of length L along the line from the point whose cone it is; 0 at its tip."""
        s = np.asarray(s, np.float64)
        out = np.empty((*s.shape, self.labels.shape[1]))
        for rows, distance in _distances(s, self.points):
            cone = self.L * distance
            for j, y in enumerate(self.labels.T):
                slope = self._away(s[rows], distance, np.argmin(y + cone, axis=1))
                if self.kind == "middle":
                    slope = 0.5 * (slope - self._away(s[rows], distance, np.argmax(y - cone, axis=1)))
                out[rows, :, j] = slope
        return out

    def _away(self, s: Array, distance: Array, point: Array) -> Array:
        """L times the unit vectors from the chosen points to s."""
        length = distance[np.arange(len(s)), point]
        away: Array = self.L * (s - self.points[point]) / np.where(length > 0, length, 1.0)[:, None]
        return away


def steepness(points: Array, labels: Array, constants: Iterable[float]) -> tuple[Array, float, int]:
    """How many pairs are steeper than each constant (in some coordinate), the largest slope, and the conflicts.

    Conflicts are pairs of equal points with different labels: they are in no slope, and steeper than any constant.
    """
    points, L = np.asarray(points, np.float64), np.asarray(tuple(constants)) * (1.0 + TOLERANCE)
    counts, largest, conflicts = np.zeros(len(L), np.int64), 0.0, 0
    for rows, distance in _distances(points, points):
        change = np.abs(labels[rows, None, :] - labels[None, :, :]).max(axis=2)
        same = distance == 0.0
        conflicts += int(np.count_nonzero(change[same]))
        slope = np.divide(change, distance, out=np.zeros_like(change), where=~same)
        largest = max(largest, float(slope.max(initial=0.0)))
        counts += np.array([np.count_nonzero(slope > c) for c in L], np.int64)
    return (counts + conflicts) // 2, largest, conflicts // 2


def left_out_errors(points: Array, labels: Array, constants: Iterable[float]) -> Array:
    """For each L, the sum of squared errors of predicting every label by the middle extension of all others."""
    distance = np.concatenate([distance for _, distance in _distances(points, points)])
    np.fill_diagonal(distance, np.inf)
    errors = []
    for L in constants:
        cone, error = L * distance, 0.0
        for y in labels.T:
            between = 0.5 * (np.min(y + cone, axis=1) + np.max(y - cone, axis=1))
            error += float(np.square(between - y).sum())
        errors.append(error)
    return np.array(errors)


def kirszbraun(points: Array, labels: Array, L: float, queries: Array) -> Array:
    """Values (m, c) at the queries so that labels and values together are L-Lipschitz in R^c: a reference, for few
    points.

    One query at a time: v minimises max_j (‖v − y_j‖² − L²‖s − s_j‖²), a convex problem whose value is at most 0 by
    Kirszbraun's theorem if the labels are L-Lipschitz; (s, v) then joins the points.
    """
    from scipy.optimize import NonlinearConstraint, minimize  # here, because it takes time to import

    points, labels = np.asarray(points, np.float64), np.asarray(labels, np.float64)
    for s in np.asarray(queries, np.float64):
        reach = L**2 * np.square(points - s).sum(axis=1)
        nearest = int(np.argmin(reach))
        if reach[nearest] == 0.0:
            v = labels[nearest]
        else:
            unit = max(float(np.sqrt(reach.max())), 1e-300)  # in units of the largest radius
            y, r = (labels - labels[nearest]) / unit, reach / unit**2

            room = NonlinearConstraint(partial(_room, y, r), 0.0, np.inf, jac=partial(_room_slopes, y))
            start = np.r_[np.zeros(y.shape[1]), float((np.square(y).sum(axis=1) - r).max())]
            found = minimize(  # type: ignore[call-overload]
                lambda z: float(z[-1]),
                start,
                jac=lambda z: np.r_[np.zeros(len(z) - 1), 1.0],
                constraints=room,
                method="SLSQP",
                options={"maxiter": 500, "ftol": 1e-14},
            )
            if found.x[-1] > 1e-5:  # of the largest squared radius: what the solver leaves, and what queries add up to
                raise FFGBError(f"the labels are not {L:g}-Lipschitz, so that they have no such extension; raise L")
            v = found.x[:-1] * unit + labels[nearest]
        points, labels = np.vstack([points, s]), np.vstack([labels, v])
    values: Array = labels[len(labels) - len(queries) :]
    return values


def _room(y: Array, r: Array, z: Array) -> Array:
    """What is left between z = (v, t) and t ≥ ‖v − y_j‖² − r_j, for each j."""
    room: Array = z[-1] - (np.square(z[:-1] - y).sum(axis=1) - r)
    return room


def _room_slopes(y: Array, z: Array) -> Array:
    return np.concatenate([-2.0 * (z[:-1] - y), np.ones((len(y), 1))], axis=1)


def _distances(s: Array, points: Array) -> Iterator[tuple[slice, Array]]:
    """Distances from some rows of s at a time to all points; exactly 0 for equal points, unlike by inner products."""
    from scipy.spatial.distance import cdist  # here, because few processes need it

    s = np.asarray(s, np.float64)
    for start in range(0, len(s), ROWS):
        rows = slice(start, min(start + ROWS, len(s)))
        yield rows, cdist(s[rows], points)
