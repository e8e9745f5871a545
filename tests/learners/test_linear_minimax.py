"""WO^lip in the sup norm for linear maps: against a linear program and a general solver, with a proof of the gap."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from sklearn.datasets import load_diabetes

from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.core.functions import OnPoints
from ffgb.core.losses import Square
from ffgb.core.points import Points
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.learners import linear, linear_minimax
from ffgb.learners.linear import SOBOLEV, Linear
from ffgb.learners.linear_minimax import GAP, proximal_minimax
from ffgb.protocol.describe import build, describe

STEPS_OF = {30: 6, 40: 10, 12: 5}
NORMS: tuple[Literal["l2", "sup"], ...] = ("l2", "sup")


def value(a: Array, b: Array, y: Array) -> float:
    return float(np.square(a @ y - b).max() + np.square(y).sum())


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.floats(-3, 3))
@settings(max_examples=60, deadline=None)
def test_the_gap_is_proved_and_no_other_place_is_better(seed: int, n: int, r: int, c: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, r)) * np.geomspace(10.0, 0.1, r), 10.0**size * rng.standard_normal((n, c))
    found = proximal_minimax(a, b, 1e-8)
    assert found.upper == pytest.approx(value(a, b, found.y), rel=1e-9)
    assert -1e-12 * found.upper <= found.upper - found.lower <= 1e-8 * found.upper
    for length in (1e-3, 1e-2, 0.1, 1.0):  # no place beats the lower bound
        other = found.y + length * np.abs(found.y).max() * rng.standard_normal((r, c))
        assert value(a, b, other) >= found.lower * (1 - 1e-9)


@pytest.mark.parametrize(("n", "r"), [(30, 4), (60, 12), (12, 12)])
def test_it_is_the_linear_programs_optimum_where_the_second_term_counts_nothing(n: int, r: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, r)), rng.standard_normal((n, 1))
    ones = np.ones((n, 1))
    program = linprog(
        np.r_[np.zeros(r), 1.0],
        np.block([[a, -ones], [-a, -ones]]),
        np.r_[b[:, 0], -b[:, 0]],
        bounds=[(None, None)] * r + [(0, None)],
        method="highs",
    )
    found = proximal_minimax(1e6 * a, b, 1e-8)  # then y is small, and so is ‖y‖²
    largest = float(np.abs(1e6 * a @ found.y - b).max())
    assert largest == pytest.approx(program.fun, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("n", [6, 40], ids=["fewer points than features", "more"])
def test_the_printed_objective_is_that_of_a_general_solver(
    n: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n + outputs)
    features = Concatenate((Flatten(2), RandomFourier(Flatten(2), 9, 1.0, 0)), (1.0, 1.0))
    family = Linear(features, outputs, sobolev_norm="sup")
    points, samples = rng.standard_normal((n, 2)), rng.standard_normal((15, 2))
    design = family._design(points, samples).astype(np.float64)
    jet = rng.standard_normal((len(design), outputs))
    z, dz, weight, ridge = design[:n], design[n:], SOBOLEV / 15, 1e-2
    total = weight * np.square(dz).sum() + np.square(z).sum() / n

    def objective(w: Array) -> float:
        """As it is printed, with the mean over samples for the integral, and λ."""
        slopes = (dz @ w - jet[n:]).reshape(15, 2, outputs)
        mean = np.mean([np.square(slope).sum() for slope in slopes])
        largest = max(float(np.max((z[j] @ w - jet[j]) ** 2)) for j in range(n))
        return largest + SOBOLEV * float(mean) + ridge * float(total) * float(np.square(w).sum())

    monkeypatch.setattr(linear, "RIDGES", (ridge,))
    w = family.sobolev(points, samples).fit(jet, np.inf, rng)["weight"].astype(np.float64)
    shape = w.shape
    bound: Any = {
        "type": "ineq",
        "fun": lambda v: v[-1] - np.square(z @ v[:-1].reshape(shape) - jet[:n]).ravel(),
    }

    def smooth(v: Array) -> float:
        w = v[:-1].reshape(shape)
        return float(
            v[-1] + weight * np.square(dz @ w - jet[n:]).sum() + ridge * float(total) * np.square(v[:-1]).sum()
        )

    start = np.r_[np.zeros(w.size), np.square(jet[:n]).max()]
    other = minimize(smooth, start, constraints=bound, method="SLSQP", options={"maxiter": 2000, "ftol": 1e-13})
    assert other.success
    assert objective(w) == pytest.approx(other.fun, rel=2 * GAP)


def test_a_function_of_the_family_is_found_and_none_is_steeper_than_allowed() -> None:
    rng = np.random.default_rng(0)
    points, samples = rng.standard_normal((60, 3)), rng.standard_normal((40, 3))
    family = Linear(Flatten(3), 1, sobolev_norm="sup")
    fit, jet = family.sobolev(points, samples)
    slope = np.array([[0.5], [-1.0], [2.0]])
    wanted = np.concatenate([points @ slope + 3.0, np.tile(slope, (40, 1))])
    w = fit(wanted, 10.0, rng)
    np.testing.assert_allclose(w["weight"][:, 0], [0.5, -1.0, 2.0, 3.0], atol=1e-4)
    np.testing.assert_allclose(jet(w), wanted, atol=1e-4)
    short = fit(wanted, 1.0, rng)
    assert family.lipschitz(short) <= 1.0 + 1e-6
    # and the constant of a flattened h is the one with the least largest error
    left = jet(short)[:60] - wanted[:60]
    assert left.max() == pytest.approx(-left.min(), rel=1e-4)
    flat = fit(np.concatenate([np.full((60, 1), 5.0), np.zeros((120, 1))]), 0.0, rng)
    np.testing.assert_allclose(jet(flat)[:60], 5.0, rtol=1e-5)


def test_the_largest_error_is_less_than_that_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (50, 1))
    wanted = np.concatenate([np.where(points > 0.9, 1.0, 0.0), np.zeros((50, 1))])  # few points are off
    errors = {}
    for norm in NORMS:
        fit, jet = Linear(Flatten(1), 1, sobolev_norm=norm).sobolev(points, points)
        errors[norm] = float(np.abs(jet(fit(wanted, 100.0, rng))[:50] - wanted[:50]).max())
    assert errors["sup"] < 0.75 * errors["l2"]


def test_on_a_real_regression_the_oracle_contracts_more_in_the_sup_norm() -> None:
    x, y = load_diabetes(return_X_y=True)
    x, y = (x / x.std(axis=0))[:90].astype(np.float32), ((y - y.mean()) / y.std())[:90, None]
    features = Concatenate((Flatten(10), RandomFourier(Flatten(10), 100, 3.0, 0)), (1.0, 1.0))
    found = {}
    for norm in NORMS:
        rng, algorithm = np.random.default_rng(0), FFGBL(1.0, 6, 10, extension="middle")
        family = Linear(features, 1, sobolev_norm=norm)
        oracle = algorithm.oracle(family, Points(0, x, y), None, rng)
        at = OnPoints(1.0, family.zero(), np.zeros((90, 1)))
        _, found[norm] = algorithm.client(0, at, y, Square(), oracle, rng)
        gamma = min(found[norm]["gamma"])
        if gamma > 0:  # the induction that keeps iterates Lipschitz
            assert max(found[norm]["lipschitz"]) <= 1.0 / gamma * (1 + 1e-6)
    assert min(found["sup"]["gamma_sup"]) > 1.5 * min(found["l2"]["gamma_sup"])
    assert min(found["sup"]["gamma_lip"]) > 0.0


def test_the_norm_is_a_field_that_travels_and_another_is_refused() -> None:
    family = Linear(Flatten(3), 1, sobolev_norm="sup")
    assert build(*describe(family)) == family
    assert Linear(Flatten(3), 1).sobolev_norm == "l2"
    with pytest.raises(FFGBError, match="l2 or sup, not 'max'"):
        Linear(Flatten(3), 1, sobolev_norm="max")  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "r", "c", "scale"), [(30, 4, 1, 1.0), (40, 12, 3, 10.0), (12, 12, 2, 0.1)])
def test_few_steps_are_enough(monkeypatch: pytest.MonkeyPatch, n: int, r: int, c: int, scale: float) -> None:
    """Mehrotra's steps come to a gap of 1e-8 in five to ten; Newton's alone, or shorter ones, take more."""
    rng, lengths = np.random.default_rng(n), list[float]()
    step = linear_minimax._step

    def counted(*args: Any) -> Any:
        found = step(*args)
        lengths.append(found[0])
        return found

    monkeypatch.setattr(linear_minimax, "_step", counted)
    a, b = scale * rng.standard_normal((n, r)), rng.standard_normal((n, c))
    found = proximal_minimax(a, b, 1e-8)
    assert found.upper - found.lower <= 1e-8 * found.upper
    assert len(lengths) == STEPS_OF[n]
    assert max(lengths) <= 1.0
    again = proximal_minimax(a, 1e3 * b, 1e-8)
    assert again.upper == pytest.approx(1e6 * found.upper)
    np.testing.assert_allclose(again.y, 1e3 * found.y, rtol=1e-3, atol=1e-3 * np.abs(again.y).max())


def test_nothing_to_fit_is_fitted_by_nothing() -> None:
    for b in (np.zeros((3, 2)), np.zeros((0, 2))):
        found = proximal_minimax(np.ones((len(b), 1)), b)
        assert (found.y.tolist(), found.upper, found.lower) == ([[0.0, 0.0]], 0.0, 0.0)
