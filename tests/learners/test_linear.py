"""The closed family: ridge against scikit-learn, primal and dual, and features that depend on nothing but sums."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from ffgb.aggregates import Moments
from ffgb.features import Flatten, Standardize
from ffgb.features.fourier import RandomFourier, bandwidth
from ffgb.learners.linear import Linear


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
    total = Moments.total(Moments.of(part) for part in np.array_split(x, [10, 11, 70]))
    np.testing.assert_allclose(total.mean, x.mean(axis=0))
    np.testing.assert_allclose(total.variance, x.var(axis=0), rtol=1e-6, atol=1e-20)


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
