"""Absurd values in a few cells are clipped; large numbers that many rows have are not."""

from __future__ import annotations

import numpy as np

from ffgb.core.points import Points
from ffgb.core.questions import Question
from ffgb.features.basic import Clip, Flatten
from ffgb.features.far import ROOM, without_far_values
from tests.features.clients import Log, among

Array = np.ndarray


def table(rows: int = 1000) -> Array:
    return np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)


def clients(x: Array) -> list[Points]:
    return [Points(i, x[i::3], np.zeros(len(x[i::3]))) for i in range(3)]


def asked(log: Log) -> list[type[Question]]:
    return [type(question) for question, _ in log]


def test_columns_with_absurd_values_are_clipped_near_the_others() -> None:
    x = table()
    x[:5, 1], x[5:8, 1], x[::4, 2] = 1e12, -1e12, 1e12
    log: Log = []
    found, largest = without_far_values(among(clients(x), log), 4)
    assert (largest >= np.abs(x).max(axis=0)).all()
    z = found(x)
    assert np.array_equal(z[:, [0, 2, 3]], x[:, [0, 2, 3]])  # a quarter of the rows are no slips
    assert np.array_equal(z[8:, 1], x[8:, 1])
    assert 4.0 <= z[0, 1] == -z[5, 1] <= 4.0 * ROOM
    assert isinstance(found, Clip)
    assert len(asked(log)) == 2


def test_nothing_more_is_asked_of_other_tables() -> None:
    log: Log = []
    assert isinstance(without_far_values(among(clients(1e6 * table()), log), 4)[0], Flatten)
    assert len(asked(log)) == 1


def test_large_numbers_of_one_scale_stay_as_they_are() -> None:
    x = 1e15 * table()
    assert np.array_equal(without_far_values(among(clients(x)), 4)[0](x), x)
    mostly_zero = np.where(np.arange(4000).reshape(1000, 4) % 500 < 4, np.float32(1e12), np.float32(0))
    assert np.isfinite(without_far_values(among(clients(mostly_zero)), 4)[0](mostly_zero)).all()
