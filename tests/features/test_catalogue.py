"""From names to maps: each name works where it should, alone and joined, and no question is asked twice."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from ffgb.core.maps import FeatureMap
from ffgb.core.moments import MagnitudeOf, MomentsOf
from ffgb.core.statistics import Moments
from ffgb.errors import FFGBError
from ffgb.features import patches
from ffgb.features.basic import Concatenate, Flatten, Standardize
from ffgb.features.catalogue import MAPS, Maps, Space, default_map
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import KERNELS, RandomFourier, bandwidth
from ffgb.features.patches import ITERATIONS, NearestSums, Patches, PatchMoments
from ffgb.features.tables import LEAST, REFINEMENTS, Histogram, LeavesOf, ObliviousTrees, RankWaves, Steps
from ffgb.protocol.describe import describe
from ffgb.user_code import register
from tests.features.clients import Log, asked, split

Array = np.ndarray

register("tests.maps:halves", lambda x: 0.5 * x.reshape(len(x), -1)[:, :3])

TABLE = ("inputs", "steps", "waves", "trees", "fourier", *KERNELS, "tests.maps:halves")
IMAGE = ("inputs", "patches", "mirrored-patches", "random-patches", "fourier", *KERNELS, "tests.maps:halves")
N = 600


@pytest.fixture(autouse=True)
def few_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-means need not be good here."""
    monkeypatch.setattr(patches, "PATCHES", 2000)


def table() -> Array:
    rng = np.random.default_rng(0)
    category = np.eye(3)[rng.integers(0, 3, N)]
    numbers = [rng.standard_normal((N, 4)) * [1, 100, 0.1, 5] + 3, rng.lognormal(0, 2, (N, 2)), np.full((N, 1), 7.0)]
    return np.hstack([*numbers, category]).astype(np.float32)


NAMES = (*(f"number {k}" for k in range(7)), "job=nurse", "job=clerk", "job=cook")


def images(shape: tuple[int, ...] = (3, 9, 8), n: int = 60) -> Array:
    return np.random.default_rng(0).random((n, *shape)).astype(np.float32)


def maps(x: Array, log: Log | None = None, names: Sequence[str] = (), seed: int = 0, least: int = LEAST) -> Maps:
    return Maps(asked(split(x, 4), log), Space(x.shape[1:], x.ndim > 2, tuple(names), len(x)), seed, least)


def sound(features: FeatureMap, x: Array) -> Array:
    z = features(x)
    assert z.shape == (len(x), features.dimension)
    assert z.dtype == np.float32
    assert np.isfinite(z).all()
    assert z.var(axis=0).sum() > 0.01
    assert sum(features.blocks) == features.dimension
    assert features.bounds.shape == (features.dimension,)
    for far in (0.0, 1.0, -1e4):  # whatever the points are
        assert (np.abs(features(x + np.float32(far) * x[::-1])) <= (1 + 1e-4) * features.bounds).all()
    return z


def questions(log: Log) -> list[str]:
    """Each question by its content."""
    digests = []
    for question, _ in log:
        recipe, arrays = describe(question)
        content = json.dumps(recipe).encode() + b"".join(arrays[name].tobytes() for name in sorted(arrays))
        digests.append(hashlib.sha256(content).hexdigest())
    return digests


KIND: dict[str, type[FeatureMap]] = {
    "inputs": Standardize,
    "steps": Steps,
    "waves": RankWaves,
    "trees": ObliviousTrees,
    **dict.fromkeys(("fourier", *KERNELS), RandomFourier),
    **dict.fromkeys(("patches", "mirrored-patches", "random-patches"), Patches),
    "tests.maps:halves": Encoder,
}


@pytest.mark.parametrize("name", TABLE)
def test_every_map_works_on_a_table(name: str) -> None:
    features, standardise = maps(table(), names=NAMES).make(name, 128)
    assert type(features) is KIND[name]
    sound(features, table())
    assert standardise == (":" in name)  # an encoder's features may have any scale; ours are made alike


@pytest.mark.parametrize("name", ["steps", "waves", "trees", "gaussian", "laplace", "steps+waves"])
def test_bounds_are_known_and_not_much_too_wide(name: str) -> None:
    features, _ = maps(table(), names=NAMES).make(name, 128)
    largest = np.abs(features(table())).max(axis=0)
    assert np.isfinite(features.bounds).all()
    assert np.median(largest / features.bounds) > 0.5
    scaled = Standardize.by(Moments.of(features(table())), features)
    assert np.isfinite(scaled.bounds).all()
    assert (np.abs(scaled(table())) <= (1 + 1e-4) * scaled.bounds).all()


def test_patches_and_inputs_of_tables_are_bounded() -> None:
    assert np.isfinite(maps(images()).make("patches", 64)[0].bounds).all()
    assert np.isinf(maps(images()).make("inputs", 64)[0].bounds).all()
    features = maps(table()).make("inputs", 64)[0]
    assert np.isfinite(features.bounds).all()
    assert features.bounds[6] == 0.0  # a constant column is 0 everywhere
    assert np.isinf(maps(table()).make("arc-cosine", 64)[0].bounds).all()


@pytest.mark.parametrize("name", IMAGE)
def test_every_map_works_on_images(name: str) -> None:
    x = images()
    features, standardise = maps(x).make(name, 64)
    assert type(features) is (Flatten if name == "inputs" else KIND[name])  # images keep their common scale
    sound(features, x)
    assert standardise == (":" in name or "patches" in name)
    if isinstance(features, Patches):
        assert features.mirrored == (name == "mirrored-patches")


@pytest.mark.parametrize("name", ["steps", "waves", "trees"])
def test_maps_of_tables_take_pixels_for_columns(name: str) -> None:
    features, standardise = maps(images()).make(name, 64)
    assert type(features) is KIND[name]
    sound(features, images())
    assert not standardise


@pytest.mark.parametrize("pair", list(itertools.combinations(TABLE, 2)), ids="+".join)
def test_maps_join_on_a_table(pair: tuple[str, str]) -> None:
    made = maps(table(), names=NAMES)
    features, standardise = made.make("+".join(pair), 64)
    assert not standardise
    assert isinstance(features, Concatenate)
    z, start = sound(features, table()), 0
    for name in pair:
        alone, _ = made.make(name, 64)
        # beside others the inputs have a tenth of the variance that the others have in all
        factor = np.float32(math.sqrt(0.1 / 10) if name == "inputs" else 1.0)
        np.testing.assert_allclose(z[:, start : start + alone.dimension], factor * alone(table()), rtol=1e-6)
        start += alone.dimension
    assert start == features.dimension


@pytest.mark.parametrize("names", ["inputs+patches", "patches+fourier", "mirrored-patches+laplace+inputs"])
def test_maps_join_on_images(names: str) -> None:
    features, standardise = maps(images()).make(names, 64)
    assert not standardise
    assert len(features.blocks) >= 2
    sound(features, images())


def test_all_maps_of_tables_at_once() -> None:
    features, _ = maps(table(), names=NAMES).make("+".join(TABLE), 64)
    assert isinstance(features, Concatenate)
    assert [type(part) for part in features.parts] == [KIND[name] for name in TABLE]
    sound(features, table())


@pytest.mark.parametrize("asked_for", [64, 100, 512])
@pytest.mark.parametrize("name", [name for name in TABLE if name in MAPS and MAPS[name].size])
def test_the_number_of_features_is_about_what_was_asked_for(name: str, asked_for: int) -> None:
    features, _ = maps(table(), names=NAMES, least=1).make(name, asked_for)
    if name == "steps":  # at least 8 of each column, and one for two values
        assert max(0.9 * asked_for, 6 * 8) - 8 <= features.dimension <= asked_for + 4
    elif name == "trees":
        assert asked_for - 8 < features.dimension <= asked_for
    else:
        assert features.dimension == asked_for


@pytest.mark.parametrize("asked_for", [8, 64, 100])
@pytest.mark.parametrize("name", [name for name in IMAGE if name in MAPS and MAPS[name].size])
def test_so_it_is_for_images(name: str, asked_for: int) -> None:
    features, _ = maps(images()).make(name, asked_for)
    assert asked_for - 8 < features.dimension <= asked_for


def test_without_a_number_there_is_a_usual_one() -> None:
    made = maps(table(), names=NAMES, least=1)
    for name in ("waves", "trees", "fourier", "laplace"):
        assert made.make(name, None)[0].dimension == MAPS[name].size
    assert made.make("inputs", None)[0].dimension == 10
    assert made.make("tests.maps:halves", None)[0].dimension == 3
    assert 600 < made.make("steps", None)[0].dimension <= MAPS["steps"].size
    assert maps(images((1, 8, 8), 20)).make("patches", None)[0].dimension == MAPS["patches"].size


@pytest.mark.parametrize("names", ["cnn", "Patches", "", "inputs+", "inputs+rbf", "inputs steps", "wave", "model.pt"])
def test_unknown_names_are_refused_with_the_list(names: str) -> None:
    words = (
        "there is no map '.*'; choose inputs, steps, waves, trees, fourier, gaussian, laplace, arc-cosine, patches, "
        r"mirrored-patches, random-patches, FILE\.onnx, or package\.module:function, or several of them joined by \+"
    )
    with pytest.raises(FFGBError, match=words):
        maps(table()).make(names, 16)


@pytest.mark.parametrize("name", ["patches", "mirrored-patches", "inputs+patches"])
def test_patches_of_a_table_are_refused(name: str) -> None:
    with pytest.raises(FFGBError, match=r"patches are for images, not for points of shape \(10,\); choose another"):
        maps(table()).make(name, 16)


@pytest.mark.parametrize(
    ("shape", "image", "name"),
    [
        ((1, 28, 28), True, "patches"),
        ((1, 8, 8), True, "patches"),
        ((3, 32, 32), True, "mirrored-patches"),
        ((4, 32, 32), True, "patches"),
        ((1, 7, 28), True, "fourier"),
        ((3, 28, 4), True, "fourier"),
        ((28, 28), True, "fourier"),
        ((10,), False, "inputs+steps+waves"),
        ((1,), False, "inputs+steps+waves"),
    ],
)
def test_the_default_suits_the_data_and_works(shape: tuple[int, ...], image: bool, name: str) -> None:
    space = Space(shape, image, (), 24)
    assert space.inputs == math.prod(shape)
    assert default_map(space) == name
    x = images(shape, 24)
    features, _ = Maps(asked(split(x, 3)), space, 0).make(name, 32)
    sound(features, x)


MOMENTS, LOOK, LEARN = (
    [MagnitudeOf, MomentsOf],
    [Histogram] * (REFINEMENTS + 1),
    [PatchMoments] + [NearestSums] * ITERATIONS,
)
CLIPPED, LEAVES = [MomentsOf], [LeavesOf]
FAR = MOMENTS + MOMENTS
"""One column is constant, and so far from 0, in spreads: all are asked about again from there."""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("inputs", FAR + LOOK + CLIPPED),
        ("steps", FAR + LOOK),
        ("waves", FAR + LOOK),
        ("trees", FAR + LOOK + 2 * LEAVES),
        ("fourier", FAR + LOOK + CLIPPED),
        ("tests.maps:halves", []),
        ("inputs+steps+waves", FAR + LOOK + CLIPPED),
        ("+".join(TABLE), FAR + LOOK + CLIPPED + 2 * LEAVES),
        ("trees+trees+waves+gaussian+laplace", FAR + LOOK + LEAVES + CLIPPED + LEAVES),
    ],
)
def test_of_a_table_nothing_is_asked_twice(names: str, expected: list[type]) -> None:
    log: Log = []
    made = maps(table(), log, NAMES)
    made.make(names, 64)
    made.make(names, 32)
    assert [type(question) for question, _ in log] == expected
    assert len(set(questions(log))) == len(log)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("inputs", []),
        ("fourier", MOMENTS),
        ("patches", MOMENTS + LEARN),
        ("laplace+mirrored-patches+inputs+arc-cosine", MOMENTS + LEARN),
    ],
)
def test_of_images_nothing_is_asked_twice(names: str, expected: list[type]) -> None:
    log: Log = []
    maps(images(), log).make(names, 64)
    assert [type(question) for question, _ in log] == expected
    assert len(set(questions(log))) == len(log)


@pytest.mark.parametrize("names", ["patches+mirrored-patches", "patches+patches"])
def test_of_two_kinds_of_patches_nothing_is_asked_twice(names: str) -> None:
    log: Log = []
    maps(images(), log).make(names, 64)
    assert len(set(questions(log))) == len(log)


def test_maps_follow_from_the_seed_and_the_union_of_the_rows() -> None:
    names = "inputs+steps+waves+trees+laplace"
    x = table()
    space = Space(x.shape[1:], False, NAMES, N)
    made = [
        Maps(asked(split(x, c, s)), space, seed).make(names, 32)[0] for c, s, seed in ((3, 0, 0), (7, 1, 0), (3, 0, 1))
    ]
    z = [features(x) for features in made]
    np.testing.assert_allclose(z[1], z[0], atol=1e-5)
    for name, k in (("waves", 2), ("trees", 3), ("laplace", 4)):
        start = sum(part.dimension for part in made[0].parts[:k])  # type: ignore[attr-defined]
        some = slice(start, start + 32)
        assert np.abs(z[2][:, some] - z[0][:, some]).max() > 0.1, name


def test_inputs_beside_others_have_a_tenth_of_the_variance() -> None:
    x = table()[:, :6]
    features, _ = maps(x).make("inputs+fourier", 256)
    z = features(x)
    assert z[:, :6].var(axis=0).sum() == pytest.approx(0.1, rel=1e-3)
    assert 0.4 < z[:, 6:].var(axis=0).sum() < 1.1


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bandwidth_of_a_table_is_that_of_standardised_inputs(kernel: str) -> None:
    features, _ = maps(table()).make(kernel, 16)
    assert isinstance(features, RandomFourier)
    assert features.kernel == kernel
    assert features.bandwidth == pytest.approx(bandwidth(np.array([1.0] * 9 + [0.0]), kernel))  # one is constant
    pictures, _ = maps(images()).make(kernel, 16)
    assert isinstance(pictures, RandomFourier)
    variance = images().astype(float).var(axis=0).ravel()
    assert pictures.bandwidth == pytest.approx(bandwidth(variance, kernel), rel=1e-5)


def test_fourier_is_the_gaussian_kernel() -> None:
    made = maps(table())
    assert made.make("fourier", 16)[0].fingerprint == made.make("gaussian", 16)[0].fingerprint


@pytest.mark.parametrize("name", ["inputs", "waves", "fourier", "laplace", "inputs+steps+waves"])
def test_a_table_of_constants_has_finite_features(name: str) -> None:
    x = np.full((20, 3), [0.0, 0.3, 1e6], np.float32)
    features, _ = maps(x).make(name, 16)
    z = features(x)
    assert z.shape == (20, features.dimension)
    np.testing.assert_array_equal(z, np.tile(z[:1], (20, 1)))
