"""Cholesky factors in tiles: those of LAPACK, and the same bits on any number of cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from ffgb import hardware
from ffgb.core import cholesky
from ffgb.core.geometry import Blocks, Nystrom
from ffgb.core.grams import random_basis
from ffgb.core.types import Array
from ffgb.hardware import one_blas_thread


def gram(seed: int, size: int) -> Array:
    z = np.random.default_rng(seed).standard_normal((2 * size, size))
    return z.T @ z / size


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 17), st.sampled_from(["float64", "float32"]))
@settings(max_examples=40, deadline=None)
def test_tiles_of_any_size_give_lapacks_factor_and_inverse(seed: int, size: int, tile: int, dtype: str) -> None:
    a = gram(seed, size).astype(dtype)
    exact = np.linalg.inv(a.astype(np.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cholesky, "LARGE", 0)
        patch.setattr(cholesky, "TILE", tile)
        lower = np.tril(cholesky.factor(a + np.triu(np.full_like(a, np.nan), 1)))  # only the lower half is read
        assert lower.dtype == dtype
        np.testing.assert_allclose(lower @ lower.T, a, atol=1e-12 if dtype == "float64" else 1e-5)
        if dtype == "float64":
            sums = cholesky.inverse_sums(lower)
            np.testing.assert_allclose(sums, (np.trace(exact), np.square(exact).sum()), rtol=1e-8)
            np.testing.assert_allclose(sums, cholesky.inverse_sums(np.asfortranarray(lower)), rtol=1e-12)
    np.testing.assert_allclose(
        cholesky.inverse_sums(np.linalg.cholesky(a.astype(np.float64))),
        (np.trace(exact), np.square(exact).sum()),
        rtol=1e-8,
    )
    np.testing.assert_allclose(cholesky.solve(np.linalg.cholesky(exact), np.eye(size)), a, atol=1e-4)


@pytest.mark.parametrize("large", [0, 1000], ids=["tiles", "lapack"])
def test_a_matrix_that_is_not_positive_definite_is_found_out(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky, "LARGE", large)
    monkeypatch.setattr(cholesky, "TILE", 8)
    for at in (0, 12, 39):  # in the first tile, in the middle and in the last
        a = gram(0, 40)
        assert cholesky.positive_definite(a.astype(np.float32))
        a[at, at] = -1.0
        assert not cholesky.positive_definite(a.astype(np.float32))
        with pytest.raises(np.linalg.LinAlgError):
            cholesky.factor(a)


def test_the_bits_of_a_large_factor_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky, "LARGE", 100)
    monkeypatch.setattr(cholesky, "TILE", 64)
    a = gram(1, 700)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(hardware, "cores", lambda count=count: count)
        lower = cholesky.factor(a.copy())
        found.append((np.tril(lower), cholesky.inverse_sums(lower)))
    for lower, sums in found[1:]:
        np.testing.assert_array_equal(lower, found[0][0])
        assert sums == found[0][1]


def exact() -> list[Array]:
    geometry = Blocks.of(np.linspace(-1.0, 1.0, 400), [gram(2, 400)], 1e-3)
    w = geometry.solve(np.random.default_rng(0).standard_normal((401, 10)))
    assert geometry.freedom is not None
    return [geometry.factors, w, geometry.apply(w), np.array(geometry.freedom)]


def sketched() -> list[Array]:
    omega = random_basis(400, 100, 0)
    with one_blas_thread():  # what clients send is the same
        g = gram(2, 400)
        sketch = g @ omega
    geometry = Nystrom.of(np.linspace(-1.0, 1.0, 400), sketch, omega, np.diag(g), 1e-3)
    w = geometry.solve(np.random.default_rng(0).standard_normal((401, 10)))
    return [omega, w, geometry.apply(w)]


@pytest.mark.parametrize("results", [exact, sketched])
def test_the_bits_of_a_geometry_do_not_depend_on_the_threads_of_blas(results: Callable[[], list[Array]]) -> None:
    # OpenBLAS on two threads gives other last bits for nearly all of these, if it is let
    with threadpool_limits(limits=1):
        alone = results()
    with threadpool_limits(limits=2):
        together = results()
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
