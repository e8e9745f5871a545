"""The theorems' right-hand sides, exact minimisers, and the claims that the exact oracle puts to the test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.errors import FFGBError
from ffgb.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.reproduce.theory import Semi, slope
from ffgb.schedules import Theorem
from ffgb.theory import (
    ExactGamma,
    Finite,
    Indicators,
    least_ball,
    minimiser,
    sampling,
    simulate,
    square_error,
    theorem1,
    theorem2,
    theorem3,
)
from ffgb.training import federate


@pytest.mark.parametrize(
    "loss", [CrossEntropy(3), Logistic(), Square(2), Huber(1, 0.5)], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_minimisers_are_those_of_another_solver(loss: Loss, mu: float) -> None:
    rng = np.random.default_rng(0)
    n, rows = 4, rng.integers(0, 4, 30)
    weights = rng.uniform(0.5, 2.0, 30)
    if loss.classification:
        y = rng.integers(0, max(loss.outputs, 2), 30)
    else:
        y = 2.0 * rng.standard_normal((30, loss.outputs))

    def objective(flat: Any) -> float:
        f = flat.reshape(n, -1)[rows]
        return float(weights @ (loss.value(f, y) + mu / 2 * np.square(f).sum(axis=1)))

    def gradient(flat: Any) -> Any:
        f = flat.reshape(n, -1)
        out = np.zeros_like(f)
        np.add.at(out, rows, weights[:, None] * (loss.gradient(f[rows], y) + mu * f[rows]))
        return out.ravel()

    other = minimize(objective, np.zeros(n * loss.outputs), jac=gradient, method="BFGS", options={"gtol": 1e-10})
    found = minimiser(loss, mu, n, rows, y, weights)
    np.testing.assert_allclose(found.ravel(), other.x, atol=1e-5)
    assert np.abs(gradient(found.ravel())).max() < 1e-12
    if isinstance(loss, Square):
        mean = np.array([np.average(y[rows == j], axis=0, weights=weights[rows == j]) for j in range(n)])
        np.testing.assert_allclose(found, mean / (1 + mu), atol=1e-13)


def test_a_minimum_at_infinity_is_refused() -> None:
    with pytest.raises(FFGBError, match="μ > 0"):
        minimiser(Logistic(), 0.0, 1, np.zeros(2, int), np.array([1, 1]), np.ones(2))


def test_bounds_by_hand() -> None:
    terms = theorem1(100, 10, gamma=0.5, mu=0.1, G=2.0, start=3.0, N=10, m=4)
    assert terms["start"] == pytest.approx(3 / 1000)
    assert terms["drift"] == pytest.approx(10 * 4 * math.log(1000) / (100 * 0.25 * 0.01))
    assert terms["oracle"] == pytest.approx(0.5 * 4 / (10 * 0.01 * 0.25))
    assert terms["oracle over time"] == pytest.approx(0.5 * 4 * math.log(1000) / (1000 * 0.1 * 0.25))
    assert terms["sampling"] == pytest.approx(6 / 9 / 4 * 4 * math.log(100) / (100 * 0.01 * 0.25))
    assert theorem1(100, 10, gamma=0.5, mu=0.1, G=2.0, start=3.0)["sampling"] == 0.0
    assert (sampling(10, 10), sampling(10, 1), sampling(2, 1)) == (0.0, 1.0, 1.0)
    c = theorem2(100, 10, gamma=0.5, mu=0.1, G=1.0, start=0.0, B=least_ball(0.1, 1.0, 0.5), omega=0.3)
    assert c["floor"] == pytest.approx(40 * 0.3 / 0.05)
    assert c["oracle"] == pytest.approx(0.25 / (10 * 0.01 * 0.25))
    lip = theorem3(100, 10, gamma=0.5, L=2.0, B=3.0, D=0.5, W2=0.1, omega=0.2, start=0.0)
    assert lip["floor"] == pytest.approx((0.5 * 4 + 3 * 2) * 0.2 / 0.25)
    assert lip["drift"] == pytest.approx(10 * (1.6 + (2 * 4 * 0.1 + 2 * 9) + 9) * math.log(1000) / (100 * 0.25))


def test_simulation_is_what_the_server_computes() -> None:
    rng = np.random.default_rng(0)
    y, loss, mu = rng.integers(0, 3, (4, 6)), CrossEntropy(3), 0.1
    x = np.arange(6, dtype=np.float32)[:, None]
    for algorithm in (FFGB(Theorem(mu), 3, mu), FFGBC(Theorem(mu, 4.0), 3, mu, 0.5)):
        state, _ = federate([(x, labels) for labels in y], Finite(6, 3, 0.5), loss, algorithm, 5)
        f = np.zeros((6, 3))
        for t in range(5):
            f = simulate(algorithm, ExactGamma(0.5), y, loss, t, f)
        np.testing.assert_allclose(state.f(x), f, atol=1e-12)


def test_without_the_residual_the_error_stalls_a_hundred_times_higher_and_with_it_falls_as_promised() -> None:
    problem = Semi(0)  # ten clients, the same points, random labels of three classes, μ = 0.1, γ = 0.3
    Ts = (10, 32, 100, 316, 1000)
    errors = [problem.errors(round(math.sqrt(T)), T)[-1] for T in Ts]
    assert slope(Ts, errors) <= -0.9  # the theorem promises −0.5
    assert errors[0] == pytest.approx(0.030, rel=0.1)
    assert errors[-1] == pytest.approx(0.00038, rel=0.2)
    without = problem.errors(32, 300, residual=False)
    assert without[-1] == pytest.approx(without[100], rel=1e-3)  # it has stalled
    assert without[-1] > 100 * errors[-1]
    assert all(error <= problem.promised(T, round(math.sqrt(T))) for T, error in zip(Ts, errors, strict=True))


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
def test_the_exact_oracle_contracts_by_one_minus_gamma_in_every_norm(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((7, 2))
    own = rng.permutation(10)[:7].astype(np.float32)[:, None]
    for places in (None, rng.standard_normal((10, 2))):
        family = Finite(10, 2, gamma, places)
        for fit in (family.least_squares(own), family.minimax(own)):
            h = family.member(fit(phi, rng))
            np.testing.assert_array_equal(h(own), gamma * phi)
    answer = ExactGamma(gamma)(phi, rng)
    np.testing.assert_array_equal(answer.seen, gamma * phi)


def test_functions_of_a_finite_set() -> None:
    with pytest.raises(FFGBError, match="γ"):
        Finite(3, 1, 0.0)
    with pytest.raises(FFGBError, match="each point of a finite set once"):
        Finite(3, 1, 0.5).least_squares(np.zeros((2, 1), np.float32))
    near = Finite(3, 1, 1.0, np.array([[0.0], [1.0], [5.0]])).least_squares(np.array([[0.0], [1.0]], np.float32))
    np.testing.assert_array_equal(
        near(np.array([[2.0], [3.0]]), np.random.default_rng(0))["value"], [[2.0], [3.0], [3.0]]
    )
    np.testing.assert_array_equal(Indicators(3)(np.array([[2.0], [0.0]])), [[0, 0, 1], [1, 0, 0]])
    assert square_error(np.ones((2, 2)), np.zeros((2, 2))) == 2.0
