"""The prior that fits itself: against the marginal likelihood of the rows, and against regressions with that ridge."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from ffgb.core.geometry import Spectrum
from ffgb.core.losses import CrossEntropy, Logistic, Loss, Square
from ffgb.core.prior import Posterior, level_of, posterior

Array = np.ndarray
N, D = 60, 8


def points(signal: float = 1.0, seed: int = 0, *, rows: int = N, columns: int = D) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((rows, columns)) * np.linspace(0.3, 2.0, columns)
    z -= z.mean(axis=0)
    y = signal * z @ rng.standard_normal(columns) + rng.standard_normal(rows)
    return z, (y - y.mean()) / y.std()


def answered(z: Array, f: Array, y: Array, weight: Array, loss: Loss) -> Posterior:
    phi = loss.gradient(f, y)
    spectrum = Spectrum.of(np.zeros(z.shape[1]), z.T @ z / len(z))
    b, mean = z.T @ phi / len(z), phi.mean(axis=0)
    return posterior(spectrum, weight, b, mean, float(np.square(phi).sum(axis=1).mean()), len(z), loss)


@pytest.mark.parametrize(("signal", "columns"), [(0.15, D), (1.0, D), (0.3, 2 * N)])
def test_the_level_maximises_the_likelihood_of_the_targets(signal: float, columns: int) -> None:
    """Of y ~ N(β, σ²(I + ZZ'/nλ)), with β and σ² at their best, by a matrix of the rows' size."""
    z, y = points(signal, columns=columns)
    away = np.linalg.qr(np.column_stack([np.ones(N), np.eye(N)[:, 1:]]))[0][:, 1:]  # contrasts: without the mean

    def surprise(x: float) -> float:
        covariance = away.T @ (np.eye(N) + z @ z.T / (N * np.exp(x))) @ away
        target = away.T @ y
        quadratic = target @ np.linalg.solve(covariance, target)
        return float(np.linalg.slogdet(covariance)[1] + (N - 1) * np.log(quadratic))

    found = answered(z, np.zeros((N, 1)), y[:, None], np.zeros((columns, 1)), Square())
    trace = float(np.square(z).sum()) / N
    grid = np.log(np.geomspace(0.01 * trace / N, 100.0 * trace, 1000))
    best = grid[int(np.argmin([surprise(x) for x in grid]))]
    assert np.log(found.level) == pytest.approx(best, abs=0.02)


def test_one_step_of_the_square_loss_is_ridge_regression_and_the_second_is_none() -> None:
    z, y = points()
    loss = Square()
    first = answered(z, np.zeros((N, 1)), y[:, None], np.zeros((D, 1)), loss)
    ridge = Ridge(alpha=N * first.level).fit(z, y)
    np.testing.assert_allclose(first.change[:, 0], ridge.coef_, rtol=1e-8)
    h = z @ np.linalg.solve(z.T @ z + N * first.level * np.eye(D), z.T)
    assert first.freedom == pytest.approx(np.trace(h))
    second = answered(z, z @ first.change, y[:, None], first.change, loss)
    assert second.level == pytest.approx(first.level, rel=1e-3)
    assert first.remaining > 1.0
    assert second.remaining < 1e-4


@pytest.mark.parametrize("classes", [2, 3])
def test_steps_come_to_the_regression_with_the_ridge_of_the_fixed_point(classes: int) -> None:
    z, value = points(0.5, rows=150)
    y = np.searchsorted(np.quantile(value, np.arange(1, classes) / classes), value)
    loss: Loss = Logistic() if classes == 2 else CrossEntropy(classes)
    weight, constant = np.zeros((D, loss.outputs)), np.zeros(loss.outputs)
    for _ in range(300):
        found = answered(z, z @ weight + constant, y, weight, loss)
        weight, constant = weight + 0.5 * found.change, constant + 0.5 * found.intercept
    assert found.remaining < 1e-6
    free = max(1, loss.outputs - 1)  # weights of several classes add up to 0
    assert len(z) * found.level * np.square(weight).sum() == pytest.approx(free * found.freedom, rel=1e-2)
    by_rows = LogisticRegression(C=1.0 / (len(z) * found.level), tol=1e-8, max_iter=2000).fit(z, y)
    np.testing.assert_allclose(weight.T, by_rows.coef_, atol=2e-3)


def test_of_noise_next_to_nothing_is_learnt() -> None:
    learnt = []
    for seed in range(20):
        z, _ = points(seed=seed)
        y = np.random.default_rng(seed + 100).integers(0, 2, N)
        learnt.append(answered(z, np.zeros((N, 1)), y, np.zeros((D, 1)), Logistic()).freedom)
    assert np.median(learnt) < 1.0


def test_levels_keep_within_their_range() -> None:
    values = np.array([1.0, 0.5])
    assert level_of(values, 100.0, 1, 1e9) == pytest.approx(0.01 * 1.5 / 100)
    assert level_of(values, 100.0, 1, 1e-9) == pytest.approx(150.0)
    inside = level_of(values, 100.0, 1, 0.1)
    assert 100.0 * inside * 0.1 == pytest.approx((values / (values + inside)).sum(), rel=1e-2)


def test_labels_that_are_all_the_same_leave_finite_numbers() -> None:
    z, _ = points()
    found = answered(z, np.zeros((N, 1)), np.zeros(N, np.int64), np.zeros((D, 1)), Logistic())
    assert np.isfinite(found.change).all()
    assert np.isfinite(found.intercept).all()
    assert found.intercept[0] < 0.0


def test_the_level_of_weights_that_are_0_is_that_of_the_evidence() -> None:
    """At first no weight says how far weights reach."""
    z, value = points(1.0, rows=200)
    y = (value > 0).astype(np.int64)
    first = answered(z, np.zeros((200, 1)), y, np.zeros((D, 1)), Logistic())
    trace = first.curvature * float(np.square(z).sum()) / 200
    assert first.level < 1.0 * trace
    assert first.freedom > 4.0
    # features that are the same at all rows have nothing to fit
    flat = answered(0.0 * z, np.zeros((200, 1)), y, np.zeros((D, 1)), Logistic())
    assert np.abs(flat.change).max() == 0.0
