"""Random features of kernels: inner products are the kernel's values, and nothing but the seed is random."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten, Standardize
from ffgb.features.fourier import KERNELS, RandomFourier, bandwidth
from ffgb.protocol.describe import build, describe

Array = np.ndarray


def gaussian(x: Array, sigma: float) -> Array:
    values: Array = np.exp(-np.square(x[:, None] - x[None]).sum(axis=2) / (2 * sigma**2))
    return values


def laplace(x: Array, sigma: float) -> Array:
    values: Array = np.exp(-np.abs(x[:, None] - x[None]).sum(axis=2) / sigma)
    return values


def arc_cosine(x: Array, sigma: float) -> Array:
    u = np.hstack([x / sigma, np.ones((len(x), 1))])
    norm = np.linalg.norm(u, axis=1)
    both = np.outer(norm, norm)
    angle = np.arccos(np.clip(u @ u.T / both, -1.0, 1.0))
    return both * (np.sin(angle) + (math.pi - angle) * np.cos(angle)) / math.pi


REFERENCES = {"gaussian": gaussian, "laplace": laplace, "arc-cosine": arc_cosine}


def test_there_is_a_reference_for_every_kernel() -> None:
    assert tuple(REFERENCES) == KERNELS


@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("kernel", KERNELS)
def test_inner_products_of_features_are_the_kernel(kernel: str, sigma: float) -> None:
    x = np.random.default_rng(0).standard_normal((25, 4)).astype(np.float32)
    features = RandomFourier(Flatten(4), 40_000, sigma, seed=7, kernel=kernel)
    z = features(x)
    assert z.shape == (25, 40_000)
    assert z.dtype == np.float32
    # arc-cosine's values grow with the points, and so do their errors
    exact = REFERENCES[kernel](x.astype(np.float64), sigma)
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert np.abs((z @ z.T - exact) / scale).max() < 0.035


def test_the_arc_cosine_kernel_of_a_point_with_itself_is_its_length() -> None:
    x = np.array([[3.0, 4.0]])
    assert arc_cosine(x, 1.0)[0, 0] == pytest.approx(26.0)  # (x, 1)
    z = RandomFourier(Flatten(2), 40_000, 1.0, 0, "arc-cosine")(x)
    assert (z >= 0).all()
    assert float(np.square(z).sum()) == pytest.approx(26.0, rel=0.05)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bandwidth_is_a_unit_of_length(kernel: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    one, four = (RandomFourier(Flatten(3), 16, sigma, 3, kernel) for sigma in (1.0, 4.0))
    np.testing.assert_array_equal(one(x), four(4 * x))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_draw_follows_from_the_seed_alone(kernel: str) -> None:
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    one = RandomFourier(Flatten(3), 32, 1.0, 1, kernel)
    z, kept = one(x), x.copy()
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(one(x), z)
    np.testing.assert_array_equal(RandomFourier(Flatten(3), 32, 1.0, 1, kernel)(x), z)
    np.testing.assert_allclose(RandomFourier(Flatten(3), 32, 1.0, 1, kernel)(x[4:6]), z[4:6], atol=1e-6)
    assert np.abs(RandomFourier(Flatten(3), 32, 1.0, 2, kernel)(x) - z).max() > 0.1


def test_kernels_differ() -> None:
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    z = [RandomFourier(Flatten(3), 32, 1.0, 1, kernel)(x) for kernel in KERNELS]
    assert min(np.abs(z[i] - z[j]).max() for i in range(3) for j in range(i)) > 0.1


def test_features_are_of_the_inner_map() -> None:
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    scaled = Standardize(Flatten(3), np.ones(3), np.full(3, 2.0))
    np.testing.assert_allclose(
        RandomFourier(scaled, 8, 1.0, 1)(x), RandomFourier(Flatten(3), 8, 1.0, 1)((x - 1) / 2), atol=1e-6
    )


def test_an_unknown_kernel_is_refused_with_the_list() -> None:
    words = "there is no kernel 'rbf'; choose gaussian, laplace, arc-cosine"
    with pytest.raises(FFGBError, match=words):
        RandomFourier(Flatten(3), 8, 1.0, 0, "rbf")
    recipe, arrays = describe(RandomFourier(Flatten(3), 8, 1.0, 0))
    with pytest.raises(FFGBError, match=words):
        build({**recipe, "kernel": "rbf"}, arrays)


def test_bandwidths_are_half_the_typical_distance_in_the_kernels_norm() -> None:
    rng = np.random.default_rng(0)
    spread = np.array([0.1, 1.0, 5.0, 2.0])
    one, two = rng.standard_normal((2, 40_000, 4)) * spread
    square, absolute = np.square(one - two).sum(axis=1).mean(), np.abs(one - two).sum(axis=1).mean()
    assert bandwidth(spread**2) == pytest.approx(0.5 * math.sqrt(square), rel=0.02)
    assert bandwidth(spread**2, "arc-cosine") == bandwidth(spread**2)
    assert bandwidth(spread**2, "laplace") == pytest.approx(0.5 * absolute, rel=0.02)
    assert bandwidth(spread**2, "laplace") == pytest.approx(8.1 / math.sqrt(math.pi))


@pytest.mark.parametrize("kernel", KERNELS)
def test_points_without_any_spread_have_a_bandwidth_too(kernel: str) -> None:
    sigma = bandwidth(np.zeros(3), kernel)
    assert sigma > 0
    assert np.isfinite(RandomFourier(Flatten(3), 8, sigma, 0, kernel)(np.zeros((2, 3)))).all()
