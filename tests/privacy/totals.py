"""What anyone who sees totals, and nothing else, can compute about single rows.

One client holds all rows: its answers are the totals of any split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ffgb.core.geometry import unpack
from ffgb.core.gradients import GradientOf
from ffgb.core.grams import GramOf, SketchOf, random_basis
from ffgb.core.maps import FeatureMap
from ffgb.features.basic import Clip, Concatenate, Standardize
from ffgb.features.tables import Histogram, Steps
from tests.privacy.attacks import Row, Seen, trained

Array = np.ndarray


def in_total(**settings: Any) -> Seen:
    """A training of which the server sees totals alone; without waves, which have no part in the attacks."""
    return trained(**{"map": "inputs+steps", **settings}, clients=1, split="iid")


def features_of(seen: Seen) -> Concatenate:
    features: FeatureMap = seen.state.job.family.features
    assert isinstance(features, Concatenate)
    return features


def steps_of(features: Concatenate) -> Steps:
    (steps,) = (part for part in features.parts if isinstance(part, Steps))
    return steps


@dataclass
class Totals:
    """The features of all rows, as totals tell of them: one more feature is 1."""

    n: int
    moments: Array
    """(D+1, D+1): the mean of products of any two."""
    gradient: Array
    """(D+1, c): the mean of products with the gradient at f⁰."""
    features: Concatenate

    @staticmethod
    def of(seen: Seen) -> Totals:
        """From the Gram, or a sketch of it, and the first covector."""
        (asked, answers), *_ = [*seen.answers(GramOf), *seen.answers(SketchOf)]
        own, question = seen.own(asked, answers[0], 0), asked.question
        assert own is not None
        assert isinstance(question, GramOf | SketchOf)
        D, centre = question.features.dimension, question.centre.astype(np.float32).astype(np.float64)
        if isinstance(question, GramOf):
            half = unpack(own["gram"], D)
            about = half + np.tril(half, -1).T
        else:  # of as many rows, or fewer, than its rank a sketch is the whole Gram
            omega = random_basis(D, question.rank, question.seed)
            middle = omega.T @ own["sketch"]
            values, vectors = np.linalg.eigh(0.5 * (middle + middle.T))
            large = values > 1e-7 * values.max()
            root = own["sketch"] @ (vectors[:, large] / np.sqrt(values[large]))
            about = root @ root.T
        mean = np.append(own["mean"] + centre, 1.0)
        moments = np.zeros((D + 1, D + 1))
        away = own["mean"]
        moments[:-1, :-1] = about - np.outer(away, away)  # the covariance
        moments += np.outer(mean, mean)
        (asked, answers), *_ = seen.answers(GradientOf)
        first = seen.own(asked, answers[0], 0)
        assert first is not None
        return Totals(len(seen.parts[0]), moments, first["covector"], features_of(seen))

    def sums(self, w: Array) -> Array:
        """Of products of Φw with every feature, over all rows."""
        found: Array = self.n * (self.moments @ w)
        return found

    def row(self, w: Array) -> Row:
        """The one row where Φw is 1, if it is 0 at all others."""
        scaled, factor = self.features.parts[0], self.features.factors[0]
        assert isinstance(scaled, Standardize)
        varies = np.isfinite(scaled.scale)
        z = self.sums(w)[: scaled.dimension] / factor
        values = np.where(varies, z * np.where(varies, scaled.scale, 0.0) + scaled.mean, np.nan)
        return Row(values, self.n * (self.gradient.T @ w))

    # Combinations of features that are 1 at some rows, and 0 at all others: a column of weights each

    def above(self) -> tuple[Array, Array]:
        """Of each step, the rows above its threshold; and the step's column."""
        steps = steps_of(self.features)
        k = self.features.parts.index(steps)
        start, factor = sum(part.dimension for part in self.features.parts[:k]), self.features.factors[k]
        column, threshold = steps._tests
        order = np.lexsort((threshold, column))
        w = np.zeros((len(self.moments), len(column)))
        w[start + order, np.arange(len(column))] = 1.0 / (steps._height * factor)
        return w, column[order]

    def everyone(self) -> Array:
        one = np.zeros(len(self.moments))
        one[-1] = 1.0
        return one

    def intervals(self) -> Array:
        """Rows below a column's first threshold, between two neighbours, and above the last."""
        above, column = self.above()
        found = []
        for j in np.unique(column):
            ends = [self.everyone(), *above[:, column == j].T, 0.0 * self.everyone()]
            found += [ends[k] - ends[k + 1] for k in range(len(ends) - 1)]
        return np.array(found).T

    def complements(self) -> Array:
        """Rows that are in none of a column's categories."""
        above, column = self.above()
        groups = np.asarray(steps_of(self.features).columns.groups)
        found = [self.everyone()]
        for g in np.unique(groups):
            of = np.flatnonzero(groups[column] == g)
            if len(np.unique(column[of])) > 1:
                found.append(self.everyone() - above[:, of].sum(axis=1))
        return np.array(found).T

    def nested(self, sets: Array) -> Array:
        """Differences of two sets of rows of which one is within the other, and has one row less."""
        both = self.n * (sets.T @ self.moments @ sets)
        rows = np.diagonal(both)
        inside = (np.abs(both - rows) < 0.3) & (np.abs(rows[:, None] - rows - 1.0) < 0.3)
        large, small = np.nonzero(inside)
        found: Array = sets[:, large] - sets[:, small]
        return found

    def alone(self, sets: Array) -> list[Row]:
        """The rows of sets that have one."""
        return [self.row(w) for w in sets.T if abs(self.sums(w)[-1] - 1.0) < 0.3]

    def extremes(self) -> list[Row]:
        """Means of rows, weighed by how far an input is from its smallest, largest and usual value."""
        scaled = self.features.parts[0]
        found = []
        for j in np.flatnonzero(np.isfinite(scaled.scale)):  # type: ignore[attr-defined]
            w = np.zeros(len(self.moments))
            w[j] = 1.0
            mean, spread = self.sums(w)[-1] / self.n, self.moments[j, j]
            for usual in (mean, *self._ends(int(j)), *(mean + t * np.sqrt(spread) for t in (-0.1, -0.05, 0.05, 0.1))):
                about = w - usual * self.everyone()
                total = self.sums(about)[-1]
                if abs(total) > 1e-9 * self.n:
                    found.append(self.row(about / total))
        return found

    def _ends(self, j: int) -> list[float]:
        """Standardised, and as the feature has it: where an input is clipped."""
        scaled, factor = self.features.parts[0], self.features.factors[0]
        assert isinstance(scaled, Standardize)
        ends = [scaled.inner.low[j], scaled.inner.high[j]] if isinstance(scaled.inner, Clip) else [0.0]
        return [factor * (float(end) - scaled.mean[j]) / scaled.scale[j] for end in ends]


def single_values(seen: Seen) -> int:
    """Values of one column each, of which histograms of all rounds together tell between which two edges one lies."""
    asked = [(a.question, seen.own(a, answers[0], 0)) for a, answers in seen.answers(Histogram)]
    edges = np.concatenate([q.edges for q, _ in asked if isinstance(q, Histogram)], axis=1)
    below = np.concatenate([np.cumsum(own["counts"], axis=1)[:, :-1] for _, own in asked if own], axis=1)
    order = np.argsort(edges, axis=1, kind="stable")
    levels = np.take_along_axis(below, order, axis=1)
    rows = np.diff(levels, prepend=0.0, append=len(seen.parts[0]))
    return int((rows == 1).sum())
