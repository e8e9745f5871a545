"""Folds of rows, and versions of f that are trained without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.folds import Folds, HeldOut
from ffgb.core.losses import CrossEntropy, Logistic, Square
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.versions import Versions
from ffgb.errors import FFGBError

ALL = np.array([-1], np.int16)


def points(x: Any) -> Points:
    return Points(0, x, np.zeros(len(x), int))


@given(seed=st.integers(0, 2**20), cut=st.integers(1, 199), number=st.integers(2, 10))
def test_a_row_has_the_same_fold_whoever_holds_it(seed: int, cut: int, number: int) -> None:
    x = np.random.default_rng(seed).normal(size=(200, 3)).astype(np.float32)
    folds = Folds(number, seed, ALL)
    order = np.random.default_rng(seed + 1).permutation(200)
    here, there = order[:cut], order[cut:]
    together = folds.of(points(x))
    np.testing.assert_array_equal(folds.of(points(x[here])), together[here])
    np.testing.assert_array_equal(folds.of(points(x[there])), together[there])


def test_folds_are_about_equal_and_follow_from_the_seed() -> None:
    x = np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32)
    one, other = (Folds(5, seed, ALL).of(points(x)) for seed in (0, 1))
    assert np.bincount(one, minlength=5).min() > 1850
    assert 0.15 < (one == other).mean() < 0.25


def test_equal_rows_are_dealt_out() -> None:
    x = np.tile(np.array([[1.0, np.nan, -0.0]], np.float32), (50, 1))
    x[::2, 2] = 0.0  # the same number
    assert np.bincount(Folds(5, 0, ALL).of(points(x))).tolist() == [10] * 5


@pytest.mark.parametrize("loss", [Logistic(), CrossEntropy(3), Square(2)])
def test_each_version_has_the_gradient_that_it_has_alone(loss: Any) -> None:
    rng = np.random.default_rng(0)
    versions, f = Versions(loss, 3), rng.normal(size=(20, 3 * loss.outputs))
    y = rng.integers(0, 2, 20) if loss.classification else rng.normal(size=(20, 2))
    for k, alone in enumerate(np.split(f, 3, axis=1)):
        some = slice(k * loss.outputs, (k + 1) * loss.outputs)
        np.testing.assert_array_equal(versions.gradient(f, y)[:, some], loss.gradient(alone, y))
        np.testing.assert_array_equal(versions.curvature(f, y)[:, some], loss.curvature(alone, y))
    first = f[:, : loss.outputs]
    np.testing.assert_array_equal(versions.value(f, y), loss.value(first, y))
    assert versions.scores(f, y) == loss.scores(first, y)


def test_candidates_are_judged_by_rows_that_they_have_not_seen() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 2)).astype(np.float32), rng.integers(0, 2, 60)
    folds = Folds(3, 0, np.array([-1, 0, 1, 2] * 2, np.int16))  # two strands
    loss, start = Versions(Logistic(), 8), np.array([0.3])
    f = rng.normal(size=(60, 8))
    weights = np.array([[1.0, 0.0], [0.5, 0.25]])
    question = HeldOut(folds, 2, start, weights)
    mine = Points(0, x, y, rng.uniform(0.5, 2.0, 60))
    judged = question.total(question.part(Here(mine, 1.0, loss, y, f)))
    fold, assigned = folds.of(mine), np.arange(60)
    expected = []
    for some in weights:
        each = [f[assigned, 1 + fold], f[assigned, 5 + fold]]  # of each row the version without its fold
        blend = 0.3 + sum(w * (g - 0.3) for w, g in zip(some, each, strict=True))
        expected.append(np.average(Logistic().value(blend[:, None], y), weights=mine.weights))
    np.testing.assert_allclose(judged.losses, expected, rtol=1e-4)
    assert judged.rows == pytest.approx(mine.weight, rel=1e-3)


def test_no_rows_set_aside_is_an_error() -> None:
    question = HeldOut(Folds(2, 0, np.array([-1, 0], np.int16)), 1, np.zeros(1), np.ones((1, 1)))
    with pytest.raises(FFGBError, match="no rows are set aside"):
        question.total({"losses": np.zeros(1), "weight": np.zeros(1)})


@pytest.mark.parametrize("loss", [Logistic(), CrossEntropy(3), Square(2)])
def test_versions_have_the_bounds_and_the_words_of_their_loss(loss: Any) -> None:
    versions = Versions(loss, 4)
    assert versions.outputs == 4 * loss.outputs
    # the gradient of all versions is that of one, four times side by side
    assert versions.bound == pytest.approx(2.0 * loss.bound)
    same = ("classification", "measure", "alone", "dispersed", "least", "smooth", "entry_bound", "smoothness", "link")
    for name in same:
        assert getattr(versions, name) == getattr(loss, name)
    f, rng = np.random.default_rng(0).normal(size=(5, 4 * loss.outputs)), np.random.default_rng(1)
    mean, scale = rng.normal(size=loss.outputs), rng.uniform(1.0, 2.0, loss.outputs)
    first = f[:, : loss.outputs]
    np.testing.assert_array_equal(versions.unscaled(f, mean, scale), loss.unscaled(first, mean, scale))
    if loss.classification:
        np.testing.assert_array_equal(versions.probability(f), loss.probability(first))
    with pytest.raises(FFGBError, match="versions are of another loss"):
        Versions.of(2, 1)


def test_losses_of_rows_set_aside_are_cut_off() -> None:
    """A row counts 1,024 at most, and in whole multiples of 2^-16."""
    folds = Folds(2, 0, np.array([-1, 0, 1], np.int16))
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.zeros((20, 1))
    f = np.full((20, 3), 1e5)
    question = HeldOut(folds, 1, np.zeros(1), np.array([[1.0], [0.0]]))
    parts = question.part(Here(Points(0, x, y), 1.0, Versions(Square(), 3), y, f))
    assert parts["weight"].tolist() == [20 * 2**16]
    assert parts["losses"].tolist() == [20 * 2**26, 0.0]
    f[:] = np.nan
    parts = question.part(Here(Points(0, x, y), 1.0, Versions(Square(), 3), y, f))
    assert parts["losses"].tolist() == [20 * 2**26, 20 * 2**26]
    question.check({"losses": np.zeros(2), "weight": np.zeros(1)}, 0)
    with pytest.raises(FFGBError, match="negative weight"):
        question.check({"losses": np.zeros(2), "weight": np.array([-1.0])}, 0)
    assert Folds(2, 0, np.array([-1, 0], np.int16)).outside(Points(0, x, y), 0) is None


def test_folds_are_those_of_earlier_trainings() -> None:
    """Where a run goes on, and at sites of another version, rows stay in their folds."""
    x = np.array([[0.5, -1.0], [3.0, 2.0], [np.nan, 7.0], [0.5, -1.0], [1e-30, -0.0], [4.0, 4.0]], np.float32)
    assert Folds(5, 3, ALL).of(points(x)).tolist() == [3, 3, 1, 4, 0, 3]
    assert Folds(7, 4, ALL).of(points(x)).tolist() == [6, 2, 6, 0, 4, 6]
