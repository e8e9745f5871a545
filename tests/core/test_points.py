"""A client's points: features of many rows in blocks, kept or computed again, with the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import pytest

from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core import points as module
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.grams import share_geometry
from ffgb.core.losses import Logistic
from ffgb.core.maps import POINTS_AT_A_TIME, FeatureMap
from ffgb.core.points import Points
from ffgb.core.questions import Ask
from ffgb.core.schedules import Constant
from ffgb.features.basic import Flatten, Standardize
from ffgb.features.fourier import RandomFourier
from ffgb.learners.linear import Linear
from ffgb.protocol import describe
from ffgb.runs.training import federate

Array = np.ndarray
ROWS = 2 * POINTS_AT_A_TIME + 500
LARGEST = list[int]()


@describe.register
@final
@dataclass(frozen=True)
class Watched(FeatureMap):
    """Cosines, and how many rows they were asked of at a time."""

    inner: RandomFourier

    @property
    def dimension(self) -> int:
        return self.inner.dimension

    def __call__(self, x: Array) -> Array:
        LARGEST.append(len(x))
        return self.inner(x)


@pytest.mark.parametrize("gram", ["exact", "nystrom"])
def test_models_have_the_same_bits_however_many_features_are_kept(gram: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3)).astype(np.float32)
    clients = [(x[:-400], (x[:-400, 0] > 0).astype(int)), (x[-400:], (x[-400:, 0] > 0).astype(int))]

    def learner(ask: Ask) -> tuple[Family, Geometry]:
        features = Watched(RandomFourier(Flatten(3), 24, 1.0, 0))
        return Linear(features, 1), share_geometry(ask, features, gram, 1e-3, rank=8)

    found, calls = [], []
    for kept in (0, 2**30):
        monkeypatch.setattr(module, "KEPT", kept)
        LARGEST.clear()
        state, _ = federate(clients, learner, Logistic(), FFGBShared(Constant(4.0)), rounds=2)
        found.append(state.f.tensors())
        assert max(LARGEST) <= POINTS_AT_A_TIME
        calls.append(len(LARGEST))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert calls[0] > calls[1]


def test_features_of_a_map_of_a_map_come_in_blocks_too() -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, 2)).astype(np.float32)
    inner = RandomFourier(Flatten(2), 5, 1.0, 0)
    outer = Standardize(inner, np.full(5, 0.25), np.full(5, 2.0))
    points = Points(0, x, np.zeros(ROWS))
    points.features(inner)
    found, alone = points.features(outer), Points(0, x, np.zeros(ROWS)).features(outer)
    assert found.shape == (ROWS, 5)
    assert np.array_equal(found, alone)
    assert np.array_equal(np.concatenate([z for _, z in points.blocks(outer)]), found)
    assert np.array_equal(points.sum(found[10:20], slice(10, 20)), found[10:20].sum(axis=0, dtype=np.float64))


def test_what_is_forgotten_takes_no_memory() -> None:
    points = Points(0, np.ones((5, 3), np.float32), np.zeros(5))
    assert points.cached == 0
    points.features(Flatten(3))
    points.once("twos", lambda: np.full(4, 2.0))
    points.aside = np.zeros(2)
    assert points.cached == 4 * 15 + 8 * 4 + 16
    points.forget()
    assert points.cached == 0
    assert points.once("twos", lambda: np.full(4, 3.0)).tolist() == [3.0] * 4
