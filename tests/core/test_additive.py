"""The posterior of additive models: against dense formulas, and where the evidence is largest."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from ffgb.core import additive
from ffgb.core.additive import (
    FIRST_SCALE,
    FLAT,
    Column,
    Corrected,
    Prior,
    Sums,
    conjugate,
    independent,
    of_means,
    posterior,
)

Array = np.ndarray


def rows_of(seed: int, n: int) -> tuple[Array, Prior]:
    """One-hot cells of a column of numbers with missing values, one of categories, one of two bins; and the prior."""
    rng = np.random.default_rng(seed)
    cells = [rng.integers(0, 9, n), rng.integers(0, 12, n), rng.integers(0, 2, n)]
    hot = [np.eye(k)[z] for k, z in zip((9, 12, 2), cells, strict=True)]
    rows = [h.sum(axis=0) for h in hot]
    columns = [Column(rows[0], np.arange(8.0) ** 2), Column(rows[1], None), Column(rows[2], np.array([0.0, 1.0]))]
    return np.concatenate([np.ones((n, 1)), *hot], axis=1), Prior.of(columns)


def sums_of(x: Array, y: Array) -> Sums:
    """Of half the squared error, at f = 0."""
    gradient: Array = -(x.T @ y)
    return Sums(gradient[None], [x.T @ x], np.array([float(y @ y)]), float(len(y)))


def test_terms_are_the_mean_given_the_scales() -> None:
    x, prior = rows_of(0, 300)
    y = np.random.default_rng(1).standard_normal(300)
    found = posterior(prior, sums_of(x, y), np.zeros((1, x.shape[1])), dispersed=False, iterations=0)
    spread = np.where(prior.group < 0, FLAT, FIRST_SCALE)
    covariance = x @ (prior.basis * spread) @ prior.basis.T
    expected = (prior.basis * spread) @ prior.basis.T @ x.T @ np.linalg.solve(covariance @ x.T + np.eye(300), y)
    assert np.allclose(found.terms[0], expected, atol=1e-8)
    # from other terms the same is found: the loss is a parabola
    w = np.random.default_rng(2).standard_normal((1, x.shape[1]))
    moved = sums_of(x, y - x @ w[0])
    again = posterior(prior, moved, w, dispersed=False, iterations=0)
    assert np.allclose(again.terms, found.terms, atol=1e-8)


def test_each_part_is_centred_over_the_rows() -> None:
    x, prior = rows_of(3, 200)
    assert np.allclose((x @ prior.basis).mean(axis=0)[1:], 0.0, atol=1e-12)


def test_the_scale_is_where_the_evidence_is_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "PULL", 1e-6)
    monkeypatch.setattr(additive, "SETTLED", 1e-9)
    rng, n = np.random.default_rng(4), 2000
    cells = rng.integers(0, 40, n)
    effects = 0.5 * rng.standard_normal(40)
    y = effects[cells] + rng.standard_normal(n)
    hot = np.eye(40)[cells]
    x = np.concatenate([np.ones((n, 1)), hot], axis=1)
    prior = Prior.of([Column(hot.sum(axis=0), None)])
    fit = posterior(prior, sums_of(x, y), np.zeros((1, 41)), dispersed=False, iterations=500)
    means, rows = hot.T @ y / hot.sum(axis=0), hot.sum(axis=0)
    centre = prior.basis[1:, 1:]

    def minus_evidence(log_scale: float) -> float:
        covariance = np.exp(log_scale) * centre @ centre.T + FLAT * np.ones((40, 40)) + np.diag(1.0 / rows)
        return -float(multivariate_normal(np.zeros(40), covariance).logpdf(means))

    best = minimize_scalar(minus_evidence, bounds=(-6.0, 3.0), method="bounded").x
    assert fit.scale[-1] == pytest.approx(np.exp(best), rel=1e-3)


def test_the_noise_is_estimated() -> None:
    x, prior = rows_of(5, 4000)
    y = 3.0 * np.random.default_rng(6).standard_normal(4000) + x[:, 3]
    fit = posterior(prior, sums_of(x, y), np.zeros((1, x.shape[1])), dispersed=True)
    assert fit.dispersion[0] == pytest.approx(9.0, rel=0.1)
    assert 1.0 < fit.freedom < 22.0


def test_merged_cells_have_the_curvature_of_their_means() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    gram, rows = root @ root.T, np.array([3.0, 1.0, 0.0, 2.0, 4.0])
    heads = np.array([1, 1, 2, 4, 4])
    shares = rows / np.maximum(np.bincount(heads, rows, 5)[heads], 1.0)
    means = np.eye(6)  # of each cell, the mean of those that it is merged with, weighted by rows
    means[1, 1:3] = means[2, 1:3] = 0.75, 0.25
    means[3] = 0.0  # no row is there
    means[4, 4:] = means[5, 4:] = 1 / 3, 2 / 3
    np.testing.assert_allclose(of_means(gram, heads, shares), means.T @ gram @ means, atol=1e-12)
    np.testing.assert_allclose(of_means(gram, np.arange(5), np.ones(5)), gram)


def test_independent_columns_have_the_curvature_that_is_taken_for_granted() -> None:
    a, b = np.eye(3)[[0, 0, 0, 0, 1, 1, 2, 2]], np.eye(2)[[0, 0, 1, 1, 0, 1, 0, 1]]
    x = np.concatenate([np.ones((8, 1)), a, b], axis=1)
    np.testing.assert_allclose(independent(x.sum(axis=0), [3, 2]), x.T @ x)


def test_a_curvature_is_right_after_as_many_looks_as_it_has_directions() -> None:
    x, _ = rows_of(7, 300)
    truth = x.T @ x + np.eye(x.shape[1])
    found, known = Corrected.of(independent(np.diag(truth).copy(), [9, 12, 2])), list[tuple[Array, Array]]()
    rng, wrong = np.random.default_rng(8), [np.abs(found.whole() - truth).max()]
    for _ in range(x.shape[1]):
        v = conjugate(np.asarray(rng.standard_normal(x.shape[1])), known)
        known.append((v, truth @ v))
        found = found.along(*known[-1])
        for before, along in known:  # nothing that is known is forgotten
            np.testing.assert_allclose(found @ before, along, atol=1e-6 * np.abs(along).max())
        wrong.append(np.abs(found.whole() - truth).max())
    assert wrong[-1] < 1e-6 * wrong[0]


@pytest.mark.parametrize("dispersed", [False, True])
def test_terms_for_a_better_curvature_are_those_of_another_factor(dispersed: bool) -> None:
    x, prior = rows_of(11, 400)
    sums, terms = sums_of(x, np.random.default_rng(12).standard_normal(400)), np.full((1, x.shape[1]), 0.1)
    first = posterior(prior, sums, terms, dispersed=dispersed, steeper=1.5)
    rng, truth = np.random.default_rng(13), x.T @ (np.linspace(0.1, 1.0, 400)[:, None] * x)
    better = Corrected.of(sums.curvature[0])
    np.testing.assert_allclose(first.again(prior, terms, sums.gradient, [better], steeper=1.5), first.terms, atol=1e-12)
    for _ in range(3):
        v = np.asarray(rng.standard_normal(x.shape[1]))
        better = better.along(v, truth @ v)
    found = first.again(prior, terms, sums.gradient, [better], steeper=1.5)[0]
    # the posterior's normal equations, in the entries of the prior's basis
    variance = np.where(prior.group < 0, additive.FLAT, first.scale[prior.group])
    gram, phi = 1.5 * better.whole(), first.dispersion[0]
    precision = prior.basis.T @ gram @ prior.basis / phi + np.diag(1.0 / variance)
    u = np.linalg.solve(precision, prior.basis.T @ (gram @ terms[0] - sums.gradient[0]) / phi)
    np.testing.assert_allclose(found, prior.basis @ u, atol=1e-9)
    assert np.abs(found - first.terms[0]).max() > 1e-3


def test_the_curvature_of_coupled_outputs_is_multiplied() -> None:
    x, prior = rows_of(21, 300)
    rng = np.random.default_rng(22)
    own = [sums_of(x, rng.standard_normal(300)) for _ in range(2)]
    gradient, curvature = np.concatenate([s.gradient for s in own]), [s.curvature[0] * k for k, s in enumerate(own, 1)]
    both = Sums(gradient, curvature, np.concatenate([s.square for s in own]), 300.0)
    found = posterior(prior, both, np.zeros((2, x.shape[1])), dispersed=False, steeper=1.5, iterations=0)
    variance = np.where(prior.group < 0, additive.FLAT, found.scale[prior.group])
    for terms, g, gram in zip(found.terms, gradient, curvature, strict=True):
        precision = 1.5 * prior.basis.T @ gram @ prior.basis + np.diag(1.0 / variance)
        np.testing.assert_allclose(terms, -prior.basis @ np.linalg.solve(precision, prior.basis.T @ g), atol=1e-9)
