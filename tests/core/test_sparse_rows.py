"""Sparse rows: bits of full rows, and never a full table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ffgb import FFGBError, federate
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core import maps, points, sparse_rows
from ffgb.core.grams import share_geometry
from ffgb.core.losses import Logistic
from ffgb.core.moments import moments_of
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, ask_locally
from ffgb.core.schedules import Constant
from ffgb.core.sparse_rows import SparseRows, as_rows, rows_in, tensors_of
from ffgb.features.basic import Flatten, Standardize
from ffgb.features.bins import CategoryCounts, KeyCounts, bins_of
from ffgb.features.tables import Histogram
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear


def table(rows: int = 200, columns: int = 12, seed: int = 0) -> np.ndarray[Any, Any]:
    """Mostly 0, with numbers of both signs, a column of zeros alone and one without any."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.3)
    x[:, 0], x[:, 1] = 0.0, 1.0 + rng.random(rows)
    x[:, 2] = rng.random(rows) < 0.2
    return x.astype(np.float32) + np.float32(0.0)  # no -0.0, which is no entry


def test_rows_are_those_of_the_full_table() -> None:
    x = table()
    rows = SparseRows(csr_matrix(x))
    np.testing.assert_array_equal(np.asarray(rows), x)
    np.testing.assert_array_equal(np.asarray(rows[np.array([3, 1])]), x[[3, 1]])
    np.testing.assert_array_equal(np.stack([rows.column(j) for j in range(12)], axis=1), x)
    assert (len(rows), rows.shape, rows.ndim, rows[:0].shape) == (200, (200, 12), 2, (0, 12))
    assert np.asarray(rows_in(tensors_of(as_rows(rows)))).tobytes() == x.tobytes()
    assert rows.nbytes < x.nbytes


def test_a_cell_that_is_there_twice_is_a_sum_and_the_matrix_is_left_as_it_is() -> None:
    twice = csr_matrix((np.ones(3, np.float32), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    np.testing.assert_array_equal(np.asarray(SparseRows(twice)), [[0.0, 2.0], [1.0, 0.0]])
    assert twice.nnz == 3


def test_a_full_table_is_refused_with_a_remedy() -> None:
    nothing = np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(20_001, np.int32)
    wide = SparseRows(csr_matrix(nothing, shape=(20_000, 20_000)))
    with pytest.raises(FFGBError, match=r"20,000 sparse rows of 20,000 columns in full need 1\.6 GB; choose .*linear"):
        np.asarray(wide)
    assert np.asarray(wide[:100]).shape == (100, 20_000)
    with pytest.raises(FFGBError, match="cannot have another shape"):
        wide.reshape(400, -1)


@pytest.mark.parametrize(
    "question",
    [
        KeyCounts(
            np.arange(12, dtype=np.int32),
            np.array([-1] * 11 + [2], np.int32),
            np.tile(np.array([-5, -1, 0, 7, 1 << 30], np.int32), (12, 1)),
        ),
        CategoryCounts(np.array([2, 0, 1], np.int32), np.array([0, 0, 1], np.int32)),
        Histogram(np.tile(np.array([-1.0, -0.0, 0.5, np.inf], np.float32), (12, 1))),
        Histogram(np.tile(np.array([-1.0, -0.5, 0.25], np.float32), (12, 1))),
    ],
)
def test_counts_are_those_of_the_full_table(question: Any) -> None:
    x = table()
    x[5, 3] = np.nan
    y = np.zeros(len(x))
    full = question.part(Here(Points(0, x, y), 1.0))
    found = question.part(Here(Points(0, as_rows(SparseRows(csr_matrix(x))), y), 1.0))
    for name, own in full.items():
        np.testing.assert_array_equal(found[name], own)


def test_bins_are_those_of_the_full_table() -> None:
    x = table(400)
    y, names = np.zeros(len(x)), tuple(f"x{j}" for j in range(12))
    made = [bins_of(ask_locally(Points(0, own, y)), names, 12, 9, 10) for own in (x, as_rows(SparseRows(x)))]
    assert made[0].fingerprint == made[1].fingerprint
    np.testing.assert_array_equal(made[0](as_rows(SparseRows(x))), made[0](x))
    assert made[0].layout.usable.tolist() == list(range(1, 12))


def trees(ask: Ask) -> tuple[Any, None]:
    return BoostedTrees(bins_of(ask, (), 12, 16, 10), 1, 8), None


def linear(ask: Ask) -> tuple[Any, Any]:
    flat = Flatten(12)
    features = Standardize.by(moments_of(ask, flat), flat, total=1.0)
    return Linear(features, 1), share_geometry(ask, features, "nystrom", 0.01, rank=4)


@pytest.mark.parametrize("learner", [trees, linear])
def test_training_never_has_the_full_table_and_ends_with_the_same_bits(
    learner: Callable[[Ask], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # blocks of 20 rows, and an error for anything that makes more than 32 rows an array
    monkeypatch.setattr(maps, "WIDE", 4)
    monkeypatch.setattr(maps, "BYTES_AT_A_TIME", 20 * 12 * 4)
    monkeypatch.setattr(points, "SPARSE_KEPT", 0)
    monkeypatch.setattr(sparse_rows, "LARGEST", 32 * 12 * 4)
    x = table(300)
    y = (x[:, 3] - x[:, 4] + x[:, 5] > 0).astype(np.int64)
    algorithm: Any = TreesShared() if learner is trees else FFGBShared(Constant(2.0))
    results = [
        federate([(own[a::3], y[a::3]) for a in range(3)], learner, Logistic(), algorithm, 3, workers=0)[0].result
        for own in (x, csr_matrix(x))
    ]
    at = table(50, seed=1)
    np.testing.assert_array_equal(results[0](at), results[1](at))
    assert np.ptp(results[0](at)) > 0.1
