"""Patch features against loops in float64, and their filters from sums over clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ffgb.core.points import Points
from ffgb.core.questions import Here, Question
from ffgb.core.seeds import stream
from ffgb.core.types import Tensors
from ffgb.errors import DivergedError, FFGBError
from ffgb.features.patches import (
    CONTRAST,
    FILTERS_AT_ONCE,
    ITERATIONS,
    WHITENING,
    Grid,
    NearestSums,
    Patches,
    PatchMoments,
    learn,
)
from ffgb.privacy.integers import to_integers
from ffgb.protocol.describe import build, describe
from tests.features.clients import Log, asked, moments, own, split

Array = np.ndarray


def normalised(image: Array, size: int, contrast: float) -> Array:
    """Every patch (rows, columns, pixels) by loops: brightness taken off, contrast divided out."""
    channels, height, width = image.shape
    rows, columns = height - size + 1, width - size + 1
    patches = np.empty((rows, columns, channels * size * size))
    for r in range(rows):
        for c in range(columns):
            patch = np.array(
                [float(image[k, r + a, c + b]) for k in range(channels) for a in range(size) for b in range(size)]
            )
            patch -= patch.mean()
            patches[r, c] = patch / np.sqrt((patch**2).mean() + contrast**2)
    return patches


def slow(features: Patches, x: Array) -> Array:
    """The map as its docstring says, in float64."""
    filters, offset, a = features.filters.astype(float), features.offset.astype(float), features.threshold
    cells, out = features.cells, []
    for image in x.reshape(len(x), *features.grid.shape):
        versions = [image, image[:, :, ::-1]] if features.mirrored else [image]
        pooled = []
        for version in versions:
            patches = normalised(version, features.grid.size, features.grid.contrast)
            rows, columns = patches.shape[:2]
            sums, counts = np.zeros((cells, cells, 2, filters.shape[1])), np.zeros((cells, cells))
            for r in range(rows):
                for c in range(columns):
                    cell = r * cells // rows, c * cells // columns
                    s = patches[r, c] @ filters - offset
                    sums[cell] += [np.maximum(s - a, 0.0), np.maximum(-s - a, 0.0)]
                    counts[cell] += 1
            pooled.append((sums / counts[:, :, None, None]).ravel())
        out.append(np.mean(pooled, axis=0))
    return np.array(out)


def some_map(shape: tuple[int, ...], size: int, count: int, **more: Any) -> Patches:
    rng = np.random.default_rng(count)
    pixels = shape[0] * size**2
    filters = (rng.standard_normal((pixels, count)) / np.sqrt(pixels) + 0.1).astype(np.float32)  # not centred
    return Patches(Grid(shape, size, 0.15), filters, rng.standard_normal(count).astype(np.float32) * 0.2, **more)


@pytest.mark.parametrize("mirrored", [False, True], ids=["as it is", "mirrored"])
@pytest.mark.parametrize(
    ("shape", "size", "count", "more"),
    [
        ((1, 8, 8), 3, 5, {}),
        ((3, 8, 8), 3, 5, {}),
        ((1, 9, 7), 4, 3, {}),  # odd sizes: cells of unequal sizes
        ((3, 7, 10), 6, 4, {}),
        ((2, 5, 4), 2, 1, {"cells": 1}),
        ((1, 9, 9), 3, 4, {"cells": 3, "threshold": 0.6}),
        ((1, 6, 6), 3, 4, {"threshold": 0.0}),
        ((1, 4, 4), 3, FILTERS_AT_ONCE + 3, {}),  # in more than one block
        ((1, 4, 4), 3, 2 * FILTERS_AT_ONCE, {}),
    ],
)
def test_the_map_is_what_loops_give(
    shape: tuple[int, ...], size: int, count: int, more: dict[str, Any], mirrored: bool
) -> None:
    features = some_map(shape, size, count, mirrored=mirrored, **more)
    x = np.random.default_rng(0).random((4, *shape)).astype(np.float32)
    z = features(x)
    assert z.shape == (4, features.dimension) == (4, 2 * features.cells**2 * count)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z, slow(features, x), atol=3e-6)
    assert features.blocks == (2 * count,) * features.cells**2
    assert (np.abs(z) > 0.01).any()


def test_bright_and_flat_images_lose_nothing_to_rounding() -> None:
    features = some_map((1, 8, 8), 3, 5)
    x = (1000.0 + np.random.default_rng(0).standard_normal((3, 1, 8, 8))).astype(np.float32)
    np.testing.assert_allclose(features(x), slow(features, x), atol=1e-4)
    flat = np.full((2, 1, 8, 8), [[[[0.0]]], [[[1e4]]]], np.float32)  # nothing to see in either
    np.testing.assert_allclose(features(flat), slow(features, flat), atol=1e-6)


def test_brightness_does_not_matter() -> None:
    features = some_map((3, 8, 8), 3, 5)
    x = np.random.default_rng(0).random((3, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(features(x + 3), features(x), atol=1e-5)


def test_a_mirror_changes_nothing_if_it_should_not() -> None:
    x = np.random.default_rng(0).random((3, 1, 9, 8)).astype(np.float32)
    symmetric, plain = some_map((1, 9, 8), 3, 4, mirrored=True), some_map((1, 9, 8), 3, 4)
    np.testing.assert_allclose(symmetric(x[..., ::-1]), symmetric(x), atol=1e-6)
    assert np.abs(plain(x[..., ::-1]) - plain(x)).max() > 0.01


def test_features_do_not_depend_on_batch_order_or_type() -> None:
    features = some_map((3, 8, 8), 3, 5, mirrored=True)
    x = np.random.default_rng(0).integers(0, 9, (6, 3, 8, 8)).astype(np.float32)
    z = features(x)
    np.testing.assert_array_equal(features(x[::-1]), z[::-1])
    for i in range(6):
        np.testing.assert_array_equal(features(x[i : i + 1]), z[i : i + 1])
    np.testing.assert_array_equal(features(x.astype(np.uint8)), z)
    np.testing.assert_array_equal(features(x.reshape(6, -1)), z)
    np.testing.assert_array_equal(features(np.asfortranarray(x)), z)
    assert features(x[:0]).shape == (0, features.dimension)


# What clients send.


def drawn(grid: Grid, parts: list[Array], each: int, seed: int) -> Array:
    """The patches that the clients draw."""
    return np.concatenate([p for i, x in enumerate(parts) for _, p in grid.some(x, each, stream(seed, "patches", i))])


def test_patches_are_drawn_from_every_image_and_from_everywhere() -> None:
    grid, x = Grid((2, 4, 5), 3, 0.1), np.random.default_rng(0).random((300, 2, 4, 5)).astype(np.float32)
    found = list(grid.some(x, 3, stream(0, "patches", 0)))
    assert [rows for rows, _ in found] == [slice(0, 256), slice(256, 512)]
    batches = [batch for _, batch in found]
    assert [len(batch) for batch in batches] == [3 * 256, 3 * 44]  # some images at a time
    taken = np.zeros(6, int)
    for k, patch in enumerate(np.concatenate(batches)[:: 3 * 4]):
        distance = np.abs(normalised(x[4 * k], 3, 0.1).reshape(6, -1) - patch).max(axis=1)
        assert distance.min() < 1e-5
        taken[distance.argmin()] += 1
    assert (taken > 0).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_patch_moments_are_numpys(channels: int) -> None:
    grid = Grid((channels, 6, 7), 3, 0.1)
    x = np.random.default_rng(0).random((90, channels, 6, 7)).astype(np.float32)
    log: Log = []
    parts = split(x, 4)
    mean, covariance = asked(parts, log)(PatchMoments(grid, 5, seed=3))
    patches = drawn(grid, parts, 5, 3).astype(np.float64)
    assert patches.shape == (450, grid.pixels) == (450, 9 * channels)
    np.testing.assert_allclose(mean, patches.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(covariance, np.cov(patches.T, bias=True), atol=1e-5)
    np.testing.assert_array_equal(covariance, covariance.T)


def test_a_step_of_k_means_is_what_loops_give() -> None:
    rng = np.random.default_rng(0)
    grid, x = Grid((1, 6, 6), 3, 0.1), rng.random((12, 1, 6, 6)).astype(np.float32)
    mean, whitening = rng.standard_normal(9) * 0.1, np.eye(9) + 0.1 * rng.standard_normal((9, 9))
    centres = rng.standard_normal((4, 9)).astype(np.float32)
    parts = split(x, 3)
    total = asked(parts)(NearestSums(grid, mean, whitening, centres, 4, seed=1))
    expected = np.zeros((4, 9))
    for patch in drawn(grid, parts, 4, 1):
        white = (patch.astype(float) - mean) @ whitening
        inner = [float(white @ centre) for centre in centres]
        nearest = max(range(4), key=lambda k: abs(inner[k]))
        expected[nearest] += white if inner[nearest] > 0 else -white  # a filter is as good as its negative
    np.testing.assert_allclose(total, expected / (4 * 12), atol=1e-6)  # the mean over all patches that were drawn


# Learning filters.


def colours(n: int) -> Array:
    """Images of one colour each: all patches of an image are the same, so it does not matter which are drawn."""
    return np.tile(np.random.default_rng(0).random((n, 5, 1, 1)), (1, 1, 4, 4)).astype(np.float32)


def learned(
    parts: list[Array], features: int = 64, seed: int = 0, log: Any = None, iterations: int = ITERATIONS
) -> Patches:
    points = sum(len(x) for x in parts)
    return learn(asked(parts, log), moments(parts), parts[0].shape[1:], points, features, seed, iterations)


def test_filters_are_the_same_for_any_split() -> None:
    x = colours(60)
    one = learned([x])
    assert one.filters.shape == (45, 8)
    assert one.filters.dtype == one.offset.dtype == np.float32
    for clients, seed in ((2, 0), (7, 1)):
        other = learned(split(x, clients, seed))
        np.testing.assert_allclose(other.filters, one.filters, atol=1e-4)
        np.testing.assert_allclose(other.offset, one.offset, atol=1e-4)
        assert other.grid.contrast == pytest.approx(one.grid.contrast)
        np.testing.assert_allclose(other(x[:5]), one(x[:5]), atol=1e-4)
    assert np.abs(learned([x], seed=1).filters - one.filters).max() > 0.01


@pytest.fixture(scope="module")
def images() -> Array:
    """Images with edges in them: sums of a few waves."""
    rng = np.random.default_rng(0)
    at = np.arange(18)
    waves = [np.cos(rng.normal(0, 0.7) * at[:, None] + rng.normal(0, 0.7) * at + rng.uniform(0, 6)) for _ in range(160)]
    sums: Array = np.array(waves).reshape(80, 2, 18, 18).sum(axis=1, keepdims=True).astype(np.float32)
    return sums


def test_what_is_learned_is_as_described(images: Array) -> None:
    log: Log = []
    parts = split(images, 3)
    features = learned(parts, 100, seed=5, log=log)
    assert [type(question) for question, _ in log] == [PatchMoments] + [NearestSums] * ITERATIONS
    assert not features.mirrored
    assert features.dimension == 96
    assert features.grid == Grid((1, 18, 18), 6, features.grid.contrast)  # 6 × 6 from 16 × 16 pixels on
    assert features.grid.contrast == pytest.approx(CONTRAST * float(images.std()), rel=1e-5)
    # whitening: the covariance's inverse root, the eigenvalues raised
    mean, covariance = log[0][1]
    step = log[1][0]
    assert isinstance(step, NearestSums)
    whitening = step.whitening
    np.testing.assert_allclose(whitening @ (covariance + WHITENING * np.eye(36)) @ whitening.T, np.eye(36), atol=1e-3)
    # filters: the centres after the last step, whitened
    sums = log[-1][1]
    centres = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(features.filters, whitening @ centres.T, atol=1e-4)
    np.testing.assert_allclose(features.offset, mean @ features.filters, atol=1e-5)
    np.testing.assert_allclose(features(images[:3]), slow(features, images[:3]), atol=1e-4)


def test_every_step_of_k_means_comes_nearer(images: Array) -> None:
    log: Log = []
    parts = split(images, 3)
    learned(parts, 64, seed=5, log=log, iterations=6)
    steps = [question for question, _ in log[1:] if isinstance(question, NearestSums)]
    assert len(steps) == 6
    white = (drawn(steps[0].grid, parts, steps[0].each, 5).astype(float) - steps[0].mean) @ steps[0].whitening
    distances = []
    for step in steps:
        np.testing.assert_allclose(np.linalg.norm(step.centres, axis=1), 1.0, rtol=1e-5)
        distances.append(np.square(white).sum() - 2 * np.abs(white @ step.centres.T.astype(float)).max(axis=1).sum())
    assert (np.diff(distances) <= 1e-6 * np.abs(distances[0])).all()
    assert distances[-1] < distances[0]


def test_a_centre_nearest_to_no_patch_stays() -> None:
    x = np.tile(colours(2)[:1], (3, 1, 1, 1))  # one colour only
    x[0] += np.float32(0.001)
    log: Log = []
    features = learned([x], 160, log=log)
    assert np.isfinite(features.filters).all()
    first, last = (step.centres for step, _ in (log[1], log[-1]) if isinstance(step, NearestSums))
    idle = ~np.any([total.any(axis=1) for _, total in log[1:]], axis=0)
    assert idle.sum() >= 10
    np.testing.assert_allclose(last[idle], first[idle], atol=1e-6)


def test_small_images_have_small_patches_and_few_points_are_drawn_from_often() -> None:
    log: Log = []
    x = np.random.default_rng(0).random((5, 3, 8, 9)).astype(np.float32)
    features = learned([x], 8, log=log)
    assert features.grid.size == 3
    assert features.filters.shape == (27, 1)
    question = log[0][0]
    assert isinstance(question, PatchMoments)
    assert question.each == 6 * 7  # at most as many as there are
    assert np.isfinite(features(x)).all()
    assert learned([x], 1).dimension == 8  # one filter at least


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_images_without_anything_in_them_do_no_harm(value: float) -> None:
    x = np.full((6, 1, 8, 8), value, np.float32)
    assert np.isfinite(learned([x[:3], x[3:]])(x)).all()


@pytest.mark.parametrize("shape", [(1, 2, 9), (3, 9, 2), (1, 1, 1)])
def test_images_smaller_than_a_patch_are_refused(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((4, *shape)).astype(np.float32)
    with pytest.raises(
        FFGBError, match=r"need images .* of 3 × 3 pixels or more, not points of shape .*; choose --map"
    ):
        learned([x])


@pytest.mark.parametrize("shape", [(9,), (8, 8), (1, 3, 8, 8)])
def test_points_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((4, *shape)).astype(np.float32)
    with pytest.raises(FFGBError, match=r"patches are for images, not for points of shape .*; choose another --map"):
        learned([x])
    with pytest.raises(FFGBError, match="patch features need images"):
        Grid(shape, 3, 0.1)


@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 4, 3), (1, 3, 9)])
def test_images_of_three_pixels_have_finite_features_or_are_refused(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((20, *shape)).astype(np.float32)
    try:
        z = learned([x])(x)
    except FFGBError:
        return
    assert np.isfinite(z).all()


def test_patch_moments_beyond_those_of_any_patch_do_not_leave_a_client() -> None:
    """A normalised patch is at most √pixels long, and what is added up is a mean: that is its bound."""
    question = PatchMoments(Grid((1, 8, 8), 3, 0.1), 1, 0)
    part = {name: np.zeros(each.shape) for name, each in question.sums.items()}
    to_integers(part, question.sums)
    for name, most in (("mean", 3.0), ("products", 9.0)):
        to_integers({**part, name: part[name] + most}, question.sums)
        with pytest.raises(DivergedError, match=f"{name} is beyond its bound"):
            to_integers({**part, name: part[name] + 1.01 * most}, question.sums)


DIAGONAL = np.equal(*np.tril_indices(9))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda part: {name: 1e6 * a for name, a in part.items()}, "larger variance than patches of any image"),
        (lambda part: {**part, "products": 1.5 * part["products"]}, "larger variance than patches of any image"),
        (lambda part: {**part, "products": np.where(DIAGONAL, part["products"], -0.9)}, "a variance is negative"),
        (lambda part: {**part, "mean": part["mean"] + 0.9}, "a variance is negative"),
    ],
    ids=["times a million", "too much contrast", "indefinite", "a mean without variance"],
)
def test_patch_moments_that_cannot_be_are_refused(change: Callable[[Tensors], Tensors], words: str) -> None:
    """Normalised patches are at most √pixels long, and nothing of them has a negative variance."""
    question = PatchMoments(Grid((1, 8, 8), 3, 1e-6), 3, 0)
    part = own(question, np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32))
    question.check(part, 12)
    with pytest.raises(FFGBError, match=words):
        question.check(change(part), 12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s * np.float32(30.0), "longer than those of 36 patches can be"),
        (lambda s: np.where(np.arange(len(s))[:, None] == 2, -s, s), "point away from their centres"),
        (lambda s: np.random.default_rng(1).standard_normal(s.shape) * 0.05, "point away"),
    ],
    ids=["too long", "one reversed", "noise"],
)
def test_sums_that_are_not_of_nearest_patches_are_refused(change: Callable[[Array], Array], words: str) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((5, 9)).astype(np.float32)
    question = NearestSums(Grid((1, 8, 8), 3, 1e-6), np.zeros(9), np.eye(9, dtype=np.float32), centres, 3, 0)
    part = own(question, rng.random((12, 1, 8, 8)).astype(np.float32))
    question.check(part, 12)
    with pytest.raises(FFGBError, match=words):
        question.check({"sums": change(part["sums"])}, 12)


def test_the_map_and_its_questions_come_back_from_their_recipes(images: Array) -> None:
    log: Log = []
    images = images[:8]
    features = learned([images], 16, log=log)
    points = Points(0, images, np.zeros(len(images)))
    things: list[Patches | Question] = [features, *(question for question, _ in log)]
    for thing in things:
        recipe, arrays = describe(thing)
        again: Any = build(json.loads(json.dumps(recipe)), arrays)
        if isinstance(thing, Patches):
            assert again.fingerprint == thing.fingerprint
            np.testing.assert_array_equal(again(images[:4]), thing(images[:4]))
            continue
        here = Here(points, 1.0 / len(images))
        ours, theirs = thing.part(here), again.part(here)
        thing.check(ours, len(images))
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array)
