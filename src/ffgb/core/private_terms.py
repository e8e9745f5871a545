"""The posterior mean of an additive model's terms from sums with known noise: computed from totals alone.

In each round sums of residuals G and of curvature h by cells come with noise.  Rounds are averaged, each about the
terms at which it was asked: a quadratic at the mean terms w̄.  Of classes the weights forget old rounds; of numbers,
where all rounds tell of the same quadratic, they are precisions.  With the curvature matrix H, whose blocks between
columns come from two-way counts, and a smooth prior Λ a column, w = ΛH(HΛH + φH + N)⁻¹(Hw̄ − Ḡ), where N is the
noise and φ the variance of a row (1 for classes).  The scales of Λ are found by a few steps of EM, in units of φ: so
bounds of a target that are far too wide do little harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
from scipy.linalg import block_diag, solve

from ffgb.core.private_sums import CellBlocks
from ffgb.core.types import Array

FORGET = 0.7
"""A round counts so much less than the one after it."""
REACH, OWN = 0.5, 0.1
"""Of a smooth prior: the correlation's reach in parts of a column's range, and the share of a cell's own."""
FIRST, OF_PAIRS = 0.3, 0.05
"""Scales to begin with, in units of the dispersion."""
PULL, TOWARDS = 4.0, 0.1
"""A weak prior of the scales: so many numbers of this variance, in units of the dispersion."""
LEAST = 1e-5
"""The smallest scale, in units of the dispersion."""
TINY = 1e-9
FLOOR = 0.03
"""Of the curvature's eigenvalues beside the diagonal: two-way counts with noise may say less."""


class Released(NamedTuple):
    """What a round has told of one output: sums over cells, at the terms where it was asked."""

    constant: float
    terms: Array
    residual: Array
    curvature: Array
    noise: Array
    """Deviations of residuals: one a block."""
    of_curvature: Array
    """Deviations of curvature: one a block."""


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """The terms of one output, and what the next round starts from."""

    constant: float
    terms: Array
    scale: Array
    """Of each block."""
    curvature: Array
    """Of each cell, averaged, with the same sum in each block."""


def smooth(cells: int) -> Array:
    """The prior's covariance over ordered cells."""
    place = np.linspace(0.0, 1.0, cells)
    found: Array = (1.0 - OWN) * np.exp(-np.abs(place[:, None] - place) / REACH) + OWN * np.eye(cells)
    return found


def averaged(
    history: Sequence[Released], blocks: CellBlocks, *, flat: bool
) -> tuple[list[Array], list[Array], list[Array], list[float]]:
    """Of each block: mean terms, residuals, curvature, and the variance of the residuals' noise.

    A block that came later has fewer rounds.  `flat`: curvature is the same in all rounds (numbers).
    """
    starts = blocks.starts
    terms, residual, curvature, noise = list[Array](), list[Array](), list[Array](), list[float]()
    for k, (start, end) in enumerate(pairwise(starts)):
        mine = [r for r in history if len(r.noise) > k]
        over = slice(start, end)
        q = _weights(mine, k, flat=flat)
        p = np.array([1.0 / r.of_curvature[k] ** 2 for r in mine]) if flat else q
        p = p / p.sum()
        deviation = float(np.sqrt(p**2 @ np.array([r.of_curvature[k] ** 2 for r in mine])))
        terms.append(q @ np.stack([r.terms[over] for r in mine]))
        residual.append(q @ np.stack([r.residual[over] for r in mine]))
        curvature.append(np.maximum(p @ np.stack([r.curvature[over] for r in mine]), deviation + TINY))
        noise.append(float(q**2 @ np.array([r.noise[k] ** 2 for r in mine])))
    return terms, residual, curvature, noise


def _weights(history: Sequence[Released], block: int, *, flat: bool) -> Array:
    """How much each round counts: a first one, with wide clips, has hundreds of times the noise of the last."""
    precision = np.array([1.0 / r.noise[block] ** 2 for r in history])
    weights = precision if flat else FORGET ** np.arange(len(history))[::-1]
    found: Array = weights / weights.sum()
    return found


@final
@dataclass(frozen=True, eq=False)
class Priors:
    """What is known of columns and pairs before their effects: kernels, and how columns depend on each other."""

    blocks: CellBlocks
    kernels: tuple[Array, ...]
    """Of each block, over its cells."""
    mains: int
    """CellBlocks of one column, which come first."""
    cross: dict[tuple[int, int], Array]
    """Of two columns, how their groups of cells depend on each other, whitened."""
    groups: tuple[Array, ...]
    """The group of each cell in these, of each column."""
    updates: int
    """Steps of EM; none keeps the first scales."""
    most: float = 100.0
    """The largest scale, in units of the dispersion."""

    def first_scales(self) -> Array:
        """In units of the dispersion."""
        return np.where(np.arange(len(self.kernels)) < self.mains, FIRST, OF_PAIRS)

    def fit(
        self, history: Sequence[Released], scale: Array, dispersion: float, *, steeper: float = 1.0, flat: bool = False
    ) -> Fitted:
        """The terms after the last round.

        `dispersion` is the variance of a row's residual beside its curvature, `steeper` a factor of all curvature.
        """
        terms, residual, curvature, noise = averaged(history, self.blocks, flat=flat)
        whole = float(np.median([h.sum() for h in curvature]))
        share = [h / h.sum() for h in curvature]
        held = [p * whole for p in share]
        q = _weights(history, 0, flat=flat)
        constant, slope = self._constant(history, q)
        found, scales = self._mains(terms, residual, held, share, noise, scale, dispersion, steeper)
        for k in range(self.mains, len(self.kernels)):
            prior = purified(self.kernels[k], held[k], self.blocks.sizes[k])
            w, s = self._alone(terms[k], residual[k], held[k], noise[k], prior, float(scale[k]), dispersion, steeper)
            found.append(w)
            scales.append(s)
        return Fitted(
            constant - slope / (whole * steeper), np.concatenate(found), np.array(scales), np.concatenate(held)
        )

    def _constant(self, history: Sequence[Released], q: Array) -> tuple[float, float]:
        """The mean constant, and the mean sum of all residuals."""
        starts, slope = self.blocks.starts, 0.0
        for weight, released in zip(q, history, strict=True):
            ends = starts[1 : 1 + len(released.noise)]
            sums = [released.residual[a:b].sum() for a, b in zip(starts, ends, strict=False)]
            sure = [1.0 / (s * s * size) for s, size in zip(released.noise, self.blocks.of_each, strict=False)]
            slope += weight * float(np.average(sums, weights=sure))
        return float(sum(w * r.constant for w, r in zip(q, history, strict=True))), slope

    def _mains(
        self, terms: list[Array], residual: list[Array], held: list[Array], share: list[Array], noise: list[float],
        scale: Array, dispersion: float, steeper: float,
    ) -> tuple[list[Array], list[float]]:  # fmt: skip
        """The terms of all columns together."""
        m = self.mains
        H = self._matrix(held[:m], share[:m]) * steeper
        at = np.concatenate(terms[:m])
        g = np.concatenate([r - p * r.sum() for r, p in zip(residual[:m], share[:m], strict=True)])
        N = np.concatenate([np.full(len(h), v) for h, v in zip(held[:m], noise[:m], strict=True)])
        w, scales = posterior(
            H @ at - g, H, np.diag(N), dispersion, self.kernels[:m], scale[:m], self.updates, self.most
        )
        ends = np.cumsum([len(h) for h in held[:m]])[:-1]
        return [part - p @ part for part, p in zip(np.split(w, ends), share, strict=False)], list(scales)

    def _alone(
        self, at: Array, residual: Array, held: Array, noise: float, prior: Array, scale: float, dispersion: float,
        steeper: float,
    ) -> tuple[Array, float]:  # fmt: skip
        """The terms of one pair, beside those of its columns."""
        share = held / held.sum()
        H = (np.diag(held) - np.outer(held, share)) * steeper
        aim = H @ at - (residual - share * residual.sum())
        first, noisy = np.array([scale]), noise * np.eye(len(held))
        w, scales = posterior(aim, H, noisy, dispersion, [prior], first, self.updates, self.most)
        return w, float(scales[0])

    def _matrix(self, held: list[Array], share: list[Array]) -> Array:
        """The curvature of all columns together, without the constant."""
        H = block_diag(*[np.diag(h) - np.outer(h, p) for h, p in zip(held, share, strict=True)])
        first = np.concatenate([[0], np.cumsum([len(h) for h in held])])
        for (i, j), q in self.cross.items():
            a, b = self.groups[i], self.groups[j]
            of_a, of_b = np.bincount(a, held[i]), np.bincount(b, held[j])
            block = (held[i] / np.sqrt(of_a[a]))[:, None] * q[np.ix_(a, b)] * (held[j] / np.sqrt(of_b[b]))
            whole = np.outer(share[i], share[j]) * block.sum()
            block = block - np.outer(block.sum(axis=1), share[j]) - np.outer(share[i], block.sum(axis=0)) + whole
            H[first[i] : first[i + 1], first[j] : first[j + 1]] = block
            H[first[j] : first[j + 1], first[i] : first[i + 1]] = block.T
        return _positive(H, np.concatenate(held)) if self.cross else H


def _positive(H: Array, held: Array) -> Array:
    """The matrix with eigenvalues that its diagonal allows."""
    d = 1.0 / np.sqrt(held)
    values, vectors = np.linalg.eigh(d[:, None] * H * d)
    values = np.where(values > 1e-6, np.maximum(values, FLOOR), np.maximum(values, 0.0))
    found: Array = (vectors * values) @ vectors.T / (d[:, None] * d)
    return found


def posterior(
    aim: Array, H: Array, noise: Array, dispersion: float, kernels: Sequence[Array], scale: Array, updates: int,
    most: float,
) -> tuple[Array, Array]:  # fmt: skip
    """ΛH(HΛH + φH + N)⁻¹ aim, and the scales of the kernels in Λ after some steps of EM."""
    ends = np.concatenate([[0], np.cumsum([len(k) for k in kernels])])
    parts = [slice(a, b) for a, b in pairwise(ends)]
    inverses = [np.linalg.pinv(k, hermitian=True) for k in kernels]
    ranks = [np.linalg.matrix_rank(k, hermitian=True) for k in kernels]
    scale = scale.astype(np.float64).copy()
    whole = dispersion * H + noise + TINY * np.eye(len(H))
    w = np.zeros(len(H))
    for _ in range(max(updates, 1)):
        prior = block_diag(*[s * k for s, k in zip(scale, kernels, strict=True)])
        found = solve(H @ prior @ H + whole, np.column_stack([aim, H]), assume_a="pos")
        w = prior @ (H @ found[:, 0])
        if not updates:
            break
        A = H @ found[:, 1:]
        for j, (part, kernel) in enumerate(zip(parts, kernels, strict=True)):
            left = scale[j] * kernel - scale[j] ** 2 * kernel @ A[part, part] @ kernel
            size = w[part] @ inverses[j] @ w[part] + np.sum(inverses[j] * left)
            pulled = (size + PULL * TOWARDS * dispersion) / (ranks[j] + PULL)
            scale[j] = np.clip(pulled, LEAST * dispersion, most * dispersion)
    return w, scale


def purified(kernel: Array, held: Array, sizes: Array) -> Array:
    """A pair's prior without what its two columns say alone."""
    a, b = (int(s) for s in sizes)
    of_columns = np.column_stack([np.kron(np.eye(a), np.ones((b, 1))), np.kron(np.ones((a, 1)), np.eye(b))])
    weighed = of_columns * held[:, None]
    onto = np.eye(a * b) - of_columns @ np.linalg.pinv(of_columns.T @ weighed, hermitian=True) @ weighed.T
    found: Array = onto @ kernel @ onto.T
    return found


def dependence(counts: Array, of_a: Array, of_b: Array, rows: float, deviation: float) -> Array:
    """Of two columns' groups: counts beyond independence, whitened, with singular values shrunk by the known noise."""
    a, b = 1.0 / np.sqrt(of_a), 1.0 / np.sqrt(of_b)
    u, s, v = np.linalg.svd(a[:, None] * (counts - np.outer(of_a, of_b) / rows) * b, full_matrices=False)
    noise = deviation * np.sqrt(np.mean(a**2) * np.mean(b**2)) * (np.sqrt(len(a)) + np.sqrt(len(b)))
    s = np.minimum(np.where(s > noise, np.sqrt(np.maximum(s * s - noise * noise, 0.0)), 0.0), 0.98)
    found: Array = (u * s) @ v
    return found


def evidence(aim: Array, H: Array, noise: float, dispersion: float, kernel: Array) -> tuple[float, float]:
    """The largest log-likelihood ratio of a pair against none, over scales, and that scale."""
    L = np.linalg.cholesky(dispersion * H + (noise + TINY) * np.eye(len(H)))
    A = np.linalg.solve(L, np.linalg.solve(L, H @ kernel @ H).T)
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    values = np.maximum(values, 0.0)
    x = (vectors.T @ np.linalg.solve(L, aim)) ** 2
    best = 0.0, 0.0
    for scale in dispersion * 10.0 ** np.arange(-4.0, 1.01, 0.25):
        grown = scale * values
        ratio = 0.5 * float(np.sum(x * (1.0 - 1.0 / (1.0 + grown)) - np.log1p(grown)))
        best = max(best, (ratio, float(scale)))
    return best


def moved(first: Released, rate: float, base: float, constant: float) -> Released:
    """A first round, which was asked at the same probability for all, as if it had been asked at the mean rate.

    There residuals and curvature follow from counts of rows.
    """
    counted = 1.0 / (base * (1.0 - base))
    there = rate * (1.0 - rate) * counted
    return Released(
        constant,
        first.terms,
        first.residual + (rate - base) * counted * first.curvature,
        there * first.curvature,
        np.hypot(first.noise, (rate - base) * counted * first.of_curvature),
        there * first.of_curvature,
    )
