"""The closed family: ridge against scikit-learn, primal and dual, and features that depend on nothing but sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from ffgb.core.lipschitz import Pairs
from ffgb.core.statistics import Moments
from ffgb.features.basic import Concatenate, Flatten, Standardize
from ffgb.features.fourier import RandomFourier, bandwidth
from ffgb.learners import linear
from ffgb.learners.linear import RIDGES, SOBOLEV, Linear
from tests.features.clients import moments


@pytest.mark.parametrize(("n", "d"), [(50, 8), (8, 50), (20, 20)], ids=["primal", "dual", "square"])
def test_the_oracle_is_ridge_regression(n: int, d: int) -> None:
    rng = np.random.default_rng(n)
    z, phi = rng.standard_normal((n, d)).astype(np.float32), rng.standard_normal((n, 3))
    family = Linear(Flatten(d), 3, ridge=0.01, intercept=0.0)
    weight = family.least_squares(z)(phi, rng)["weight"][:-1]
    alpha = 0.01 * float(np.square(z).sum())  # scikit-learn's α is nλ
    reference = Ridge(alpha=alpha, fit_intercept=False).fit(z.astype(np.float64), phi).coef_.T
    np.testing.assert_allclose(weight, reference, atol=2e-6)
    assert weight.dtype == np.float32


def test_a_client_without_any_feature_size_gets_the_zero_function() -> None:
    family = Linear(Flatten(3), 2, ridge=0.0, intercept=0.0)
    weight = family.least_squares(np.zeros((4, 3), np.float32))(np.ones((4, 2)), np.random.default_rng(0))["weight"]
    np.testing.assert_array_equal(weight, np.zeros((4, 2)))


def test_moments_add_up_to_those_of_the_union() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 5)) * [1, 10, 100, 0.1, 0] + [0, 5, -7, 1e9, 3]  # plain squares would cancel
    total = moments(np.array_split(x, [10, 11, 70]))
    seen = x.astype(np.float32).astype(np.float64)  # as features are
    np.testing.assert_allclose(total.mean, seen.mean(axis=0))
    np.testing.assert_allclose(total.variance, seen.var(axis=0), rtol=1e-6, atol=1e-20)


def test_standardize_equals_scikit_learns_and_silences_constant_columns() -> None:
    rng = np.random.default_rng(0)
    x = np.hstack([rng.standard_normal((100, 3)) * [1, 10, 1e3] + [0, 5, 1e4], np.full((100, 2), [0.1, 3e5])])
    z = Standardize.by(Moments.of(x), Flatten(5))(x)
    np.testing.assert_allclose(z[:, :3], StandardScaler().fit_transform(x[:, :3]), atol=1e-4)
    np.testing.assert_array_equal(z[:, 3:], 0.0)


def test_a_linear_learner_has_an_intercept() -> None:
    x = np.random.default_rng(0).standard_normal((50, 2))
    family = Linear(Standardize.by(Moments.of(x), Flatten(2)), 1, ridge=1e-8)
    z = family.features(x)
    f = family.member(family.least_squares(z)(np.full((50, 1), 7.0), np.random.default_rng(0)))
    np.testing.assert_allclose(f(x), 7.0, atol=1e-3)


def test_random_fourier_features_approximate_the_gaussian_kernel() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 6)).astype(np.float32)
    features = RandomFourier(Flatten(6), 50_000, bandwidth=2.0, seed=7)
    z = features(x)
    distance = np.square(x[:, None] - x[None]).sum(axis=2)
    np.testing.assert_allclose(z @ z.T, np.exp(-distance / 8.0), atol=0.03)
    assert features.dimension == 50_000


def test_random_fourier_features_follow_from_the_seed_alone() -> None:
    x = np.ones((2, 3), np.float32)
    one = RandomFourier(Flatten(3), 64, 1.0, seed=1)(x)
    np.testing.assert_array_equal(one, RandomFourier(Flatten(3), 64, 1.0, seed=1)(x))
    assert not np.array_equal(one, RandomFourier(Flatten(3), 64, 1.0, seed=2)(x))


def test_the_bandwidth_is_half_the_typical_distance() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 10)) * 3
    distance = np.linalg.norm(x[:2000] - x[2000:], axis=1)
    sigma = bandwidth(Moments.of(x).variance)
    assert sigma == pytest.approx(0.5 * np.sqrt(np.mean(distance**2)), rel=0.05)


def digits(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of some digits, and the gradient of cross entropy at 0 there, which is what an oracle is asked first."""
    x, y = load_digits(return_X_y=True)
    some = np.random.default_rng(seed).permutation(len(x))[:rows]
    return (x[some] / 16.0).astype(np.float32), 0.1 - np.eye(10)[y[some]]


def least_sup_error(z: np.ndarray, phi: np.ndarray) -> float:
    """min over w of max |z w − φ|, by a linear program."""
    n, d = z.shape
    ones = np.ones((n, 1))
    bounds = [(None, None)] * d + [(0, None)]
    program = linprog(
        np.r_[np.zeros(d), 1.0], np.block([[z, -ones], [-z, -ones]]), np.r_[phi, -phi], bounds=bounds, method="highs"
    )
    assert program.fun is not None
    return float(program.fun)


@pytest.mark.parametrize("rows", [150, 400, 1437])
def test_the_minimax_fit_comes_near_the_linear_programs_optimum(rows: int) -> None:
    z, phi = digits(rows, rows)
    family = Linear(Flatten(64), 10, ridge=1e-9)
    error = np.abs(family.member(family.minimax(z)(phi, np.random.default_rng(0)))(z) - phi)
    with_constant = np.c_[z, np.ones(rows)].astype(np.float64)
    optimum = max(least_sup_error(with_constant, phi[:, j]) for j in range(10))
    assert optimum * (1 - 1e-6) <= error.max() <= 1.1 * optimum
    least_squares = family.member(family.least_squares(z)(phi, np.random.default_rng(0)))(z)
    assert error.max() < 0.8 * np.abs(least_squares - phi).max()


@pytest.mark.parametrize(("n", "d"), [(6, 10), (14, 5)], ids=["dual", "primal"])
def test_the_minimax_fit_weighs_the_ridge_as_it_says(n: int, d: int) -> None:
    rng = np.random.default_rng(n)
    z, phi = rng.standard_normal((n, d)).astype(np.float32), rng.standard_normal((n, 1))
    family = Linear(Flatten(d), 1, ridge=0.05, intercept=0.0)
    ridge = 0.05 * float(np.square(z).sum()) / n
    w = family.minimax(z)(phi, rng)["weight"][:-1, 0]
    # the same by a general solver: min t + λ‖w‖² with t ≥ (z_j w − φ_j)² for all j
    start = np.r_[np.zeros(d), float(np.square(phi).max())]

    def objective(v: np.ndarray) -> float:
        return float(v[-1] + ridge * v[:-1] @ v[:-1])

    def room(v: np.ndarray) -> Any:  # one number a point, which the types of scipy do not foresee
        return v[-1] - np.square(z @ v[:-1] - phi[:, 0])

    best = minimize(objective, start, constraints={"type": "ineq", "fun": room}, method="SLSQP")
    found = np.square(z @ w - phi[:, 0]).max() + ridge * w @ w
    assert best.fun * (1 - 1e-3) <= found <= best.fun * 1.05


def test_features_and_their_derivatives_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    inner = Flatten(4)
    maps = [RandomFourier(inner, 32, 1.5, 0, kernel) for kernel in ("gaussian", "arc-cosine")]
    for features in (inner, *maps, Concatenate((inner, *maps), (0.5, 2.0, 1.0))):
        assert features.metric is inner or features is inner
        s = rng.standard_normal((20, 4))
        z, dz = features.jacobian(s)
        np.testing.assert_allclose(z, features(s), atol=1e-5)
        numeric = np.stack([(features(s + 1e-3 * e) - features(s - 1e-3 * e)) / 2e-3 for e in np.eye(4)], axis=1)
        assert (np.abs(dz - numeric) < 5e-3).mean() > 0.99  # but at the kinks of rectified units
        weight = rng.standard_normal((features.dimension, 2))
        steepest = max(np.linalg.norm(dz[j] @ weight, 2) for j in range(20))
        assert steepest <= features.lipschitz(weight) * (1 + 1e-5)
    # parts that measure distances differently have only themselves to measure by
    apart = Concatenate((inner, RandomFourier(Standardize(inner, np.zeros(4), np.ones(4)), 8, 1.0, 0)), (1.0, 1.0))
    assert apart.metric is apart
    assert apart.jacobian(np.zeros((1, 12)))[1].shape == (1, 12, 12)


def test_the_lipschitz_fit_minimises_values_and_derivatives() -> None:
    rng = np.random.default_rng(0)
    points, samples = rng.standard_normal((60, 3)), rng.standard_normal((40, 3))
    family = Linear(Flatten(3), 1)
    fit, jet = family.sobolev(points, samples)
    slope = np.array([[0.5], [-1.0], [2.0]])
    wanted = np.concatenate([points @ slope + 3.0, np.tile(slope, (40, 1))])
    w = fit(wanted, 10.0, rng)
    np.testing.assert_allclose(w["weight"][:, 0], [0.5, -1.0, 2.0, 3.0], atol=1e-3)
    np.testing.assert_allclose(jet(w), wanted, atol=1e-2)
    short = fit(wanted, 1.0, rng)  # not steeper than allowed
    assert family.lipschitz(short) <= 1.0 + 1e-6


def slow_lipschitz_fit(points: np.ndarray, samples: np.ndarray, jet: np.ndarray, bound: float) -> np.ndarray:
    """The fit as its docstring says, for functions x ↦ xW + β."""
    n, d = points.shape
    values = np.c_[points, np.ones(n)]
    slopes = np.tile(np.c_[np.eye(d), np.zeros(d)], (len(samples), 1))
    phi, wanted = jet[:n], jet[n:]
    gram = values.T @ values / n + SOBOLEV * slopes.T @ slopes / len(samples)
    moment = values.T @ phi / n + SOBOLEV * slopes.T @ wanted / len(samples)
    pairs, found = Pairs(points, np.random.default_rng(0)), []
    for ridge in RIDGES:
        w = np.linalg.solve(gram + ridge * np.trace(gram) * np.eye(d + 1), moment)
        if (steepness := np.linalg.norm(w[:-1], 2)) > bound:
            w[:-1] *= bound / steepness
            w[-1] += (phi - values @ w).mean(axis=0)
        error = values @ w - phi
        found.append((pairs.slope(error) >= pairs.slope(phi), np.abs(error).max(), w))
    return min(found, key=lambda f: f[:2])[2]


@pytest.mark.parametrize("bound", [0.5, 1.5, 100.0])
def test_the_lipschitz_fit_is_the_best_of_some_ridges(bound: float) -> None:
    """The fit equals a slow copy of its docstring on values and derivatives that contradict each other."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        points, samples = rng.standard_normal((30, 3)), rng.standard_normal((8, 3))
        jet = np.concatenate([4.0 + rng.standard_normal((30, 2)), 3.0 * rng.standard_normal((24, 2))])
        weight = Linear(Flatten(3), 2).sobolev(points, samples).fit(jet, bound, rng)["weight"]
        np.testing.assert_allclose(weight, slow_lipschitz_fit(points, samples, jet, bound), rtol=1e-4, atol=1e-5)


def test_the_minimax_fit_of_many_points_weighs_them_for_all_outputs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Common weights come closer to the optimum than least squares does."""
    monkeypatch.setattr(linear, "AFFORDABLE", 0.0)
    for rows in (150, 400):
        z, phi = digits(rows, rows)
        family = Linear(Flatten(64), 10, ridge=1e-9)
        error = np.abs(family.member(family.minimax(z)(phi, np.random.default_rng(0)))(z) - phi).max()
        plain = np.abs(family.member(family.least_squares(z)(phi, np.random.default_rng(0)))(z) - phi).max()
        with_constant = np.c_[z, np.ones(rows)].astype(np.float64)
        optimum = max(least_sup_error(with_constant, phi[:, j]) for j in range(10))
        assert optimum * (1 - 1e-6) <= error <= 1.5 * optimum
        assert error < 0.85 * plain


def test_an_output_that_is_fitted_exactly_does_not_end_the_fit_of_the_others() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20, 3)).astype(np.float32)
    phi = np.stack([np.zeros(20), z[:, 0].astype(np.float64)], axis=1)
    family = Linear(Flatten(3), 2, ridge=1e-6)
    for columns in ([0, 1], [1, 0]):
        f = family.member(family.minimax(z)(phi[:, columns], rng))
        np.testing.assert_allclose(f(z), phi[:, columns], atol=0.02)


def test_one_point_or_labels_all_the_same_give_their_constant() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 12):
        points = rng.standard_normal((n, 2))
        family = Linear(Flatten(2), 1)
        fit, jet = family.sobolev(points, points)
        wanted = np.concatenate([np.full((n, 1), 5.0), np.zeros((2 * n, 1))])
        w = fit(wanted, 0.0, rng)
        assert family.lipschitz(w) == 0.0
        np.testing.assert_allclose(jet(w)[:n], 5.0, rtol=1e-5)


def test_a_walk_differentiates_the_mean_over_a_batch() -> None:
    rng = np.random.default_rng(0)
    z, rows = rng.standard_normal((20, 3)).astype(np.float32), np.array([1, 4, 7, 11, 12])
    target = rng.standard_normal((20, 2))
    walk = Linear(Flatten(3), 2).walk(z, 5)
    start = rng.standard_normal((4, 2)).astype(np.float32)
    walk.vector[:] = walk.pack({"weight": start})
    walk.differentiate(rows, lambda values, some: values - target[some])

    def mean(weight: np.ndarray) -> float:
        return 0.5 * float(np.square(z[rows] @ weight[:-1] + weight[-1] - target[rows]).sum()) / len(rows)

    nudge, expected = 1e-5, np.zeros((4, 2))
    for place in np.ndindex(4, 2):
        up, down = start.astype(float), start.astype(float)
        up[place], down[place] = up[place] + nudge, down[place] - nudge
        expected[place] = (mean(up) - mean(down)) / (2.0 * nudge)
    np.testing.assert_allclose(walk.gradient.reshape(4, 2), expected, atol=1e-4)
    np.testing.assert_array_equal(walk.unpack(walk.vector)["weight"], start)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_fits_have_no_scale_of_their_own(size: float) -> None:
    """Features that are so much larger have weights that are so much smaller: a ridge is relative to them."""
    rng = np.random.default_rng(0)
    z, phi = rng.standard_normal((30, 4)).astype(np.float32), rng.standard_normal((30, 2))
    family = Linear(Flatten(4), 2, ridge=0.1, intercept=0.0)
    for way in ("least_squares", "minimax"):
        one, other = (
            getattr(family, way)(np.float32(s) * z)(phi, rng)["weight"][:-1].astype(float) for s in (1.0, size)
        )
        np.testing.assert_allclose(size * other, one, rtol=2e-3, atol=2e-4)
    design, jet = rng.standard_normal((12, 4)), rng.standard_normal((12, 2))
    small, large = (list(linear._least_squares_solutions(s * design, 8, 0.1)(jet)) for s in (1.0, size))
    np.testing.assert_allclose(size * np.stack(large), np.stack(small), rtol=1e-6)
