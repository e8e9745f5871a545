"""An additive model's terms from sums over rows: the posterior mean under smooth priors, with scales by evidence.

f is a constant plus a term a column, which has a value for each cell.  A column of numbers has three parts: a line in
the column's values, a line in the order of its bins, and a smooth curve over its bins.  Categories, and the cell of
missing values, have effects that are exchangeable.  Each part is C u with standard normal u, times a scale.  Lines
share their scales over all columns, so a table of linear trends gets ridge regression with the ridge that the evidence
prefers.  Curves and categories have a scale a column, drawn towards a common one.

Given gradient g and curvature H of the sum of losses at the terms w₀ (core/cell_sums.py), terms are the posterior mean
of w ~ N(0, C T² C') given the quadratic of that gradient and curvature.  Scales are where the evidence is largest
(MacKay's fixed point).

H is a matrix over pairs of cells that nobody tells.  It begins as if columns were independent (`independent`), and is
put right along one direction after another, when it is known what H does to it (`Corrected`): Broyden, Fletcher,
Goldfarb and Shanno's formula.  NumPy alone; nothing here knows of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri

from ffgb.core.types import Array

REACH = 0.5
"""Of the correlation of a curve, in parts of the column's range of bins."""
ROUGH = 0.1
"""The share of a curve's variance that is each bin's own."""
FLAT = 1e4
"""The prior variance of the constant."""
FIRST_SCALE = 0.1
"""Scales (variances) to begin with."""
LEAST_SCALE, LARGEST_SCALE = 1e-6, 1e3
"""Scales stay between."""
PULL = 2.0
"""How many numbers the common scale counts for beside a column's own."""
SETTLED = 0.05
"""Scales that change by less than this share are final."""
WIDEST = 3.0
"""Values farther from the mean count as so many standard deviations: a line is not for outliers to tilt."""


@final
@dataclass(frozen=True, eq=False)
class Column:
    """What a column's prior follows from."""

    rows: Array
    """Of each cell: bins, then the cell of missing values if there is one."""
    values: Array | None
    """Of each bin, ascending; None for categories."""

    @property
    def bins(self) -> int:
        return len(self.rows) if self.values is None else len(self.values)


@final
@dataclass(frozen=True, eq=False)
class Prior:
    """w = basis · u: the constant first, then the cells of one column after another's."""

    basis: Array
    """(1 + cells, U)."""
    group: Array
    """Of each entry of u, which scale it has; −1 for the constant: (U,)."""
    shared: Array
    """Of each scale, whether a common one draws it, (groups,), bool."""
    blocks: tuple[tuple[slice, slice], ...]
    """Where the basis is not 0: rows, and entries of u, of the constant and of one column after another."""

    def inner(self, gram: Array) -> Array:
        """basis' gram basis, block by block."""
        left = np.concatenate([self.basis[w, u].T @ gram[w] for w, u in self.blocks])
        return np.concatenate([left[:, w] @ self.basis[w, u] for w, u in self.blocks], axis=1)

    @staticmethod
    def of(columns: Sequence[Column]) -> Prior:
        """Parts of all columns; each is centred, so that the constant is the mean of f."""
        size = 1 + sum(len(column.rows) for column in columns)
        parts, group, shared, at = [np.eye(size, 1)], [-1], [False, False, False], 1
        blocks = [(slice(0, 1), slice(0, 1))]
        for column in columns:
            pi = column.rows / max(float(column.rows.sum()), 1.0)
            mine = _lines(column, pi)
            curve = _curve(column)
            mine.extend((len(shared), block) for block in [curve] if block.shape[1])
            shared.extend([True] * bool(curve.shape[1]))
            if column.values is not None and len(column.rows) > column.bins:
                mine.append((2, np.eye(len(column.rows))[:, -1:]))
            for number, block in mine:
                whole = np.zeros((size, block.shape[1]))
                whole[at : at + len(block)] = block - pi @ block
                parts.append(whole)
                group.extend([number] * block.shape[1])
            blocks.append((slice(at, at + len(column.rows)), slice(blocks[-1][1].stop, len(group))))
            at += len(column.rows)
        return Prior(np.concatenate(parts, axis=1), np.array(group), np.array(shared), tuple(blocks))


def _lines(column: Column, pi: Array) -> list[tuple[int, Array]]:
    """Lines in the values and in the order of the bins, with a variance of 1 over rows; scales 0 and 1."""
    if column.values is None:
        return []
    found, weights = list[tuple[int, Array]](), pi[: column.bins]
    for number, place in enumerate((column.values, np.arange(column.bins, dtype=np.float64))):
        share = weights / max(float(weights.sum()), 1e-12)
        d = place - share @ place
        deviation = float(np.sqrt(share @ np.square(d)))
        if deviation > 0.0:
            line = np.zeros((len(column.rows), 1))
            line[: column.bins, 0] = np.clip(d / deviation, -WIDEST, WIDEST)
            found.append((number, line))
    return found


def _curve(column: Column) -> Array:
    """A root of the covariance of a curve, or of exchangeable effects."""
    bins = column.bins
    if column.values is None:
        return np.eye(bins)
    if bins < 3:
        return np.zeros((len(column.rows), 0))
    place = np.linspace(0.0, 1.0, bins)
    kernel = (1.0 - ROUGH) * np.exp(-np.abs(place[:, None] - place) / REACH) + ROUGH * np.eye(bins)
    root = np.zeros((len(column.rows), bins))
    root[:bins] = np.linalg.cholesky(kernel)
    return root


@final
@dataclass(frozen=True, eq=False)
class Sums:
    """What is known of the sum of losses at the terms: for each of c outputs."""

    gradient: Array
    """(c, 1 + cells)."""
    curvature: Sequence[Array]
    """What is known of it, (1 + cells, 1 + cells) each."""
    square: Array
    """Σ g² over rows, (c,)."""
    rows: float


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """The terms, and what they were estimated with."""

    terms: Array
    """(c, 1 + cells)."""
    scale: Array
    """Prior variances, (groups,)."""
    dispersion: Array
    """(c,)."""
    freedom: float
    """Effective parameters, the mean over outputs."""
    factors: Sequence[Array] = field(repr=False)
    """Of each output, the Cholesky factor of the posterior's precision (`_factor`)."""

    def again(
        self, prior: Prior, terms: Array, gradient: Array, curvature: Sequence[Corrected], *, steeper: float = 1.0
    ) -> Array:
        """The terms for a better curvature, with the same scales: by Woodbury's formula, without another factor."""
        spread, found = _deviations(prior, self.scale), list[Array]()
        for factor, own, phi, w, g in zip(self.factors, curvature, self.dispersion, terms, gradient, strict=True):
            aim = spread * ((steeper * (own @ w) - g) @ prior.basis) / phi
            moved = spread[:, None] * (prior.basis.T @ own.vectors.T) * np.sqrt(steeper / phi)
            both = cho_solve((factor, True), np.column_stack([aim, moved]))
            u, back = both[:, 0], both[:, 1:]
            if len(own.weights):
                u = u - back @ np.linalg.solve(np.diag(1.0 / own.weights) + moved.T @ back, moved.T @ u)
            found.append(prior.basis @ (spread * u))
        return np.stack(found)


@final
@dataclass(frozen=True, eq=False)
class Corrected:
    """A curvature, and what was put right since: base + Σ weight · vector vector'."""

    base: Array
    vectors: Array
    weights: Array

    @staticmethod
    def of(base: Array) -> Corrected:
        """A curvature of which nothing was put right yet."""
        return Corrected(base, np.zeros((0, len(base))), np.zeros(0))

    def __matmul__(self, v: Array) -> Array:
        found: Array = self.base @ v + (self.weights * (self.vectors @ v)) @ self.vectors
        return found

    def along(self, v: Array, known: Array) -> Corrected:
        """A curvature that does to v what is known of it, and is otherwise as before."""
        now = self @ v
        vectors = np.concatenate([self.vectors, [now, known]])
        return replace(self, vectors=vectors, weights=np.append(self.weights, [-1.0 / (v @ now), 1.0 / (v @ known)]))

    def whole(self) -> Array:
        """The matrix."""
        found: Array = self.base + (self.vectors.T * self.weights) @ self.vectors
        return found


def posterior(
    prior: Prior,
    sums: Sums,
    terms: Array,
    *,
    dispersed: bool,
    steeper: float = 1.0,
    iterations: int = 12,
) -> Fit:
    """The terms of all columns, from those at which the sums were taken, (c, 1 + cells).

    `dispersed`: the loss is not a log likelihood, and its scale is estimated, too.  `steeper` multiplies the curvature:
    of several outputs that are coupled only the diagonal is known.
    """
    c, scale = len(terms), np.full(len(prior.shared), FIRST_SCALE)
    heights = np.array([max(float(gram[0, 0]), 1e-12) for gram in sums.curvature])
    dispersion = np.maximum(sums.square / heights, 1e-9) if dispersed else np.ones(c)
    # scales are found by the mean curvature of all outputs, so that an iteration factors one matrix
    mean = sum(sums.curvature[1:], sums.curvature[0]) * (steeper / c)
    inner = prior.inner(mean)
    aims = (terms @ mean - sums.gradient) @ prior.basis
    freedom = 0.0
    for _ in range(iterations):
        spread, phi = _deviations(prior, scale), float(dispersion.mean())
        factor = _factor(inner, spread, phi)
        left = np.diag(_inverse(factor))
        u = cho_solve((factor, True), (spread * aims / phi).T).T
        freedom = float(len(left) - left.sum())
        if dispersed:
            step = (u * spread) @ prior.basis.T - terms
            dispersion = _dispersion(sums, steeper, step, freedom, heights)
        before, scale = scale, _scales(prior, u, left, scale)
        if np.abs(np.log(scale / before)).max(initial=0.0) < SETTLED:
            break
    spread, found, factors = _deviations(prior, scale), list[Array](), list[Array]()
    for gram, phi, w, g in zip(sums.curvature, dispersion, terms, sums.gradient, strict=True):
        factors.append(_factor(inner if c == 1 else prior.inner(gram), spread, phi if c == 1 else phi / steeper))
        u = spread * cho_solve((factors[-1], True), spread * ((steeper * (gram @ w) - g) @ prior.basis) / phi)
        found.append(prior.basis @ u)
    return Fit(np.stack(found), scale, dispersion, freedom, factors)


def independent(curvature: Array, sizes: Sequence[int]) -> Array:
    """The curvature over pairs of cells, from that of single cells, the constant first: columns of so many cells are
    taken to be independent, as seen by rows that weigh as much as they are curved."""
    found: Array = curvature[:, None] * curvature / max(float(curvature[0]), 1e-12)
    at = 1
    for size in sizes:
        found[at : at + size, at : at + size] = np.diag(curvature[at : at + size])
        at += size
    found[0] = found[:, 0] = curvature
    return found


def of_means(gram: Array, heads: Array, shares: Array) -> Array:
    """The curvature in the mean terms of merged cells, as a matrix of all cells, the constant first.

    What nothing is known of has no curvature: else a step would go on along it, and no gradient would ever stop it.
    """
    at, share, size = np.append(0, 1 + heads), np.append(1.0, shares), len(gram)
    pairs = (at[:, None] * size + at).ravel()
    together = np.bincount(pairs, gram.ravel(), size * size)[pairs].reshape(size, size)
    found: Array = share[:, None] * together * share
    return found


def conjugate(direction: Array, before: Sequence[tuple[Array, Array]]) -> Array:
    """A direction without what it has of those before, each of which comes with what the curvature does to it."""
    for v, along in before:
        direction = direction - v * (along @ direction / (along @ v))
    return direction


def _deviations(prior: Prior, scale: Array) -> Array:
    found: Array = np.sqrt(np.where(prior.group < 0, FLAT, scale[prior.group]))
    return found


def _factor(inner: Array, spread: Array, dispersion: float) -> Array:
    """The Cholesky factor of the posterior's precision in u/spread."""
    a = inner * (spread[:, None] * spread / dispersion)
    a[np.diag_indices_from(a)] += 1.0
    found: Array = cho_factor(a, lower=True, overwrite_a=True)[0]
    return found


def _inverse(factor: Array) -> Array:
    found, fault = dpotri(factor, lower=1)
    if fault:
        raise np.linalg.LinAlgError("the curvature of an additive model is not positive")
    whole: Array = found
    return whole


def _scales(prior: Prior, whitened: Array, left: Array, scale: Array) -> Array:
    """MacKay's fixed point: τ = Σu²/(numbers that the data determine), drawn towards the common one."""
    some = prior.group >= 0
    sizes = np.bincount(prior.group[some], np.square(whitened).mean(axis=0)[some], len(scale)) * scale
    known = np.bincount(prior.group[some], (1.0 - left)[some], len(scale))
    shared = prior.shared
    common = float(sizes[shared].sum() / max(known[shared].sum(), 1e-9)) if shared.any() else FIRST_SCALE
    aim = np.where(shared, common, FIRST_SCALE)
    pull = np.where(shared, PULL, 0.1)
    found: Array = np.clip((sizes + pull * aim) / (known + pull), LEAST_SCALE, LARGEST_SCALE)
    return found


def _dispersion(sums: Sums, steeper: float, step: Array, freedom: float, heights: Array) -> Array:
    """Σ g² after the step, by the quadratic, for each row beyond the effective parameters."""
    known = zip(sums.gradient, step, sums.curvature, strict=True)
    gain = np.array([2.0 * g @ d + steeper * (d @ gram @ d) for g, d, gram in known]) * (heights / sums.rows)
    after = np.maximum(sums.square + np.minimum(gain, 0.0), 1e-6 * sums.square)
    share = max(1.0 - freedom / sums.rows, 0.1)
    found: Array = np.maximum(after / heights / share, 1e-9)
    return found
