"""Feature maps in general: fingerprints, scaling, maps side by side, and features that are computed once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pytest

from ffgb.core.maps import After, FeatureMap
from ffgb.core.points import Points
from ffgb.core.statistics import Moments
from ffgb.features.basic import Clip, Concatenate, Flatten, Standardize, cosines
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import RandomFourier
from ffgb.features.patches import Grid, Patches
from ffgb.features.tables import Columns, ObliviousTrees, RankWaves, Steps
from ffgb.protocol.describe import build, describe
from ffgb.user_code import register

Array = np.ndarray

register("tests:half", lambda x: 0.5 * x.reshape(len(x), -1))


def columns() -> Columns:
    cuts = np.array([[0.0, 1.0, 2.0], [0.5, np.inf, np.inf], [0.5, np.inf, np.inf], [-1.0, 0.0, np.inf]], np.float32)
    return Columns(cuts, (0, 1, 1, 2))


def maps() -> dict[str, FeatureMap]:
    """One of each kind, all of points with 4 inputs, made anew."""
    rng = np.random.default_rng(0)
    scaled = Standardize(Flatten(4), rng.standard_normal(4), np.array([1.0, np.inf, 2.0, 0.5]))
    filters, offset = rng.standard_normal((1, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    return {
        "Flatten": Flatten(4),
        "Clip": Clip(Flatten(4), np.array([-1, 0, 0, 0.5], np.float32), np.array([1, 0.5, 0, 0.75], np.float32)),
        "Standardize": scaled,
        "Concatenate": Concatenate((Flatten(4), scaled), (1.0, 0.25)),
        "RandomFourier": RandomFourier(scaled, 8, 1.5, 3, "laplace"),
        "Steps": Steps(columns(), 2),
        "ObliviousTrees": ObliviousTrees(columns(), 3, 2, 5, np.array([[0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 0, 0]])),
        "RankWaves": RankWaves(columns(), 6, 5),
        "Patches": Patches(Grid((1, 2, 2), 1, 0.1), filters, offset, mirrored=True),
        "Encoder": Encoder("tests:half", (2, 2), 4, np.empty(0, np.uint8)),
    }


KINDS = list(maps())
X = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_maps_have_equal_fingerprints(kind: str) -> None:
    one, two = maps()[kind], maps()[kind]
    assert one is not two
    assert one.fingerprint == two.fingerprint
    one(X)  # what a map works out for itself is not part of it
    assert dataclasses.replace(one).fingerprint == two.fingerprint  # type: ignore[type-var]


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_from_its_recipe_is_the_same_map(kind: str) -> None:
    one = maps()[kind]
    recipe, arrays = describe(one)
    two = build(json.loads(json.dumps(recipe)), {name: np.asfortranarray(array) for name, array in arrays.items()})
    assert two.fingerprint == one.fingerprint
    assert (two.dimension, two.blocks) == (one.dimension, one.blocks)
    np.testing.assert_array_equal(two(X), one(X))


def changed(value: Any) -> Iterator[Any]:
    """Values of the same type that differ in one place."""
    if isinstance(value, np.ndarray):
        for i in range(value.size):
            other = value.copy()
            other.flat[i] = 7 if other.flat[i] != 7 else 8
            yield other
        yield value.reshape(1, *value.shape)
        yield value.astype(np.float16)
        yield np.concatenate([value, np.ones((1, *value.shape[1:]), value.dtype)])
    elif isinstance(value, tuple):
        for i, v in enumerate(value):
            for other in changed(v):
                yield (*value[:i], other, *value[i + 1 :])
        yield value[:-1]
        yield value[::-1] if value != value[::-1] else (*value, value[0])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for other in changed(getattr(value, field.name)):
                if not isinstance(value, Grid) or len(other if field.name == "shape" else value.shape) == 3:
                    yield dataclasses.replace(value, **{field.name: other})
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield "gaussian" if value == "laplace" else value + "x"
    elif isinstance(value, int):
        yield value + 1 if value != 1 else 2
    else:
        yield float(np.nextafter(value, np.inf))


def changes(kind: str) -> list[Any]:
    return [other for other in changed(maps()[kind]) if not isinstance(other, Patches) or other.grid.size == 1]


@pytest.mark.parametrize("kind", KINDS)
def test_maps_that_differ_anywhere_have_different_fingerprints(kind: str) -> None:
    others = changes(kind)
    assert len(others) >= len(dataclasses.fields(maps()[kind]))  # type: ignore[arg-type]
    assert maps()[kind].fingerprint not in {other.fingerprint for other in others}


def test_different_kinds_of_maps_have_different_fingerprints() -> None:
    assert len({features.fingerprint for features in maps().values()}) == len(KINDS)


def test_arrays_of_the_same_bytes_but_other_shapes_or_types_are_different() -> None:
    ones = np.ones(4, np.float32)
    variants: list[Array] = [ones, ones.reshape(2, 2), ones.view(np.int32), ones.view(np.float64), -ones, np.ones(4)]
    assert len({Standardize(Flatten(4), array, np.ones(4)).fingerprint for array in variants}) == len(variants)
    swapped = Standardize(Flatten(4), np.zeros(4), np.ones(4)), Standardize(Flatten(4), np.ones(4), np.zeros(4))
    assert swapped[0].fingerprint != swapped[1].fingerprint


def test_flatten_makes_one_float32_row_a_point() -> None:
    x = np.arange(24, dtype=np.int64).reshape(2, 3, 2, 2)
    z = Flatten(12)(x)
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, np.arange(24).reshape(2, 12))
    assert Flatten(12).blocks == (12,)


def test_standardize_in_blocks_of_rows_is_the_formula_in_float64() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1300, 3)) * [1, 1e-3, 300] + [1e4, 5, -2]).astype(np.float32)
    z = Standardize.by(Moments.of(x), Flatten(3))(x)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(z, ((wide - wide.mean(axis=0)) / wide.std(axis=0)).astype(np.float32))
    np.testing.assert_allclose(z.var(axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("total", [1.0, 0.1, 7.0])
def test_with_a_total_equal_variances_add_up_to_it(total: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 4)) * [1, 50, 0, 0.01] + [0, 1, 4.5, 2]
    z = Standardize.by(Moments.of(x), Flatten(4), total=total)(x)
    np.testing.assert_allclose(z.var(axis=0), np.array([1, 1, 0, 1]) * total / 3, rtol=1e-4)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-5)


@pytest.mark.parametrize("total", [None, 1.0])
def test_a_table_of_constants_becomes_zeros(total: float | None) -> None:
    x = np.full((9, 2), [0.0, 0.3], np.float32)
    np.testing.assert_array_equal(Standardize.by(Moments.of(x), Flatten(2), total=total)(x), np.zeros((9, 2)))


def test_standardize_keeps_the_blocks_of_what_it_scales() -> None:
    inner = Concatenate((Flatten(2), Flatten(2)), (1.0, 1.0))
    assert Standardize.by(Moments.of(np.eye(4)), inner).blocks == (2, 2)


def test_maps_side_by_side_have_their_factors_and_blocks() -> None:
    inside = Concatenate((Flatten(4), RandomFourier(Flatten(4), 5, 1.0, 0)), (3.0, 0.5))
    both = Concatenate((inside, Flatten(4)), (2.0, -1.0))
    assert both.dimension == 13
    assert both.blocks == (4, 5, 4)
    z = both(X)
    np.testing.assert_array_equal(z, np.hstack([6 * X, RandomFourier(Flatten(4), 5, 1.0, 0)(X), -X]))
    assert z.dtype == np.float32
    assert both(X[:0]).shape == (0, 13)


def test_bounds_side_by_side_have_the_factors_and_scaled_ones_the_scale() -> None:
    """The bounds follow the factor of each part, and the mean and scale of a standardised map."""
    waves = RandomFourier(Flatten(4), 8, 1.0, 0)  # never beyond √(2/8)
    both = Concatenate((waves, Flatten(4), waves), (3.0, 2.0, 0.5))
    np.testing.assert_allclose(both.bounds, [1.5] * 8 + [np.inf] * 4 + [0.25] * 8)
    scaled = Standardize(waves, np.full(8, -0.1), np.array([0.2] * 7 + [np.inf]))
    np.testing.assert_allclose(scaled.bounds, [(0.5 + 0.1) / 0.2] * 7 + [0.0])
    assert (np.abs(scaled(100 * X)) <= scaled.bounds + 1e-6).all()


def test_the_steepness_of_maps_side_by_side_is_that_of_the_parts_times_their_factors() -> None:
    """The bound is exact where all parts rise in the same direction."""
    both = Concatenate((Flatten(4), Flatten(4)), (3.0, 0.5))
    assert both.metric.fingerprint == Flatten(4).fingerprint
    one, two = np.diag([2.0, 1.0, 0.0, 0.0]), np.diag([4.0, 0.0, 0.0, 1.0])
    assert both.lipschitz(np.vstack([one, two])) == pytest.approx(3.0 * 2.0 + 0.5 * 4.0)
    e = np.eye(4)[:1]
    steepest = np.linalg.norm((both(e) - both(0 * e)) @ np.vstack([one, two]))
    assert steepest == pytest.approx(8.0)


def test_cosines_of_large_angles_keep_their_digits() -> None:
    """Angles of thousands of turns are reduced in float64 before the cosine is taken in float32."""
    rng = np.random.default_rng(0)
    z, frequencies = rng.standard_normal((1500, 3)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    frequencies *= np.float32(1e5)
    phases = rng.uniform(0.0, 6.0, 5).astype(np.float32)
    expected = np.cos(z.astype(np.float64) @ frequencies.astype(np.float64) + phases)
    np.testing.assert_allclose(cosines(z, frequencies, phases), expected, atol=1e-6)


def test_every_map_side_by_side_needs_a_factor() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Concatenate((Flatten(4), Flatten(4)), (1.0,))(X)


@final
@dataclass(frozen=True)
class Counted(FeatureMap):
    """A map that counts how often it is called."""

    calls: ClassVar[list[int]] = []
    factor: float

    @property
    def dimension(self) -> int:
        return 4

    def __call__(self, x: Array) -> Array:
        self.calls.append(len(x))
        return np.float32(self.factor) * np.asarray(x, np.float32)


@final
@dataclass(frozen=True)
class CountedAfter(After):
    """A map of another one's features that counts."""

    calls: ClassVar[list[int]] = []
    inner: FeatureMap

    @property
    def dimension(self) -> int:
        return self.inner.dimension

    def after(self, z: Array) -> Array:
        self.calls.append(len(z))
        squared: Array = np.square(z)
        return squared


@pytest.fixture
def calls() -> tuple[list[int], list[int]]:
    Counted.calls.clear()
    CountedAfter.calls.clear()
    return Counted.calls, CountedAfter.calls


def test_features_that_are_asked_for_again_are_computed_once(calls: tuple[list[int], list[int]]) -> None:
    points = Points(3, X, np.zeros(6))
    assert len(points) == 6
    assert points.i == 3
    for _ in range(3):
        np.testing.assert_array_equal(points.features(Counted(2.0)), 2 * X)  # an equal map, made anew
    assert calls[0] == [6]
    np.testing.assert_array_equal(points.features(Counted(3.0)), 3 * X)
    np.testing.assert_array_equal(points.features(Counted(2.0)), 2 * X)  # the last one only is kept
    assert calls[0] == [6, 6, 6]


def test_a_map_of_features_starts_from_those_at_hand(calls: tuple[list[int], list[int]]) -> None:
    points, features = Points(0, X, np.zeros(6)), CountedAfter(CountedAfter(Counted(2.0)))
    points.features(Counted(2.0))
    np.testing.assert_array_equal(points.features(features), np.square(np.square(2 * X)))
    assert calls == ([6], [6, 6])
    points.features(features)
    assert calls == ([6], [6, 6])
    np.testing.assert_array_equal(points.features(features), features(X))


def test_features_are_forgotten_when_told(calls: tuple[list[int], list[int]]) -> None:
    points = Points(0, X, np.zeros(6))
    assert points.cached == 0
    z = points.features(Counted(2.0)).copy()
    assert points.cached == 6 * 4 * 4
    points.features(RandomFourier(Counted(2.0), 10, 1.0, 0))
    assert points.cached == 6 * 10 * 4
    points.forget()
    assert points.cached == 0
    np.testing.assert_array_equal(points.features(Counted(2.0)), z)
    assert calls[0] == [6, 6]
