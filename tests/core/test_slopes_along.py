"""Slopes of the loss along a step: the sums of all rows, over any split, and the length that follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.losses import CrossEntropy, Poisson
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.slopes_along import SlopesAlong, safe_length
from ffgb.privacy.integers import add, from_integers, to_integers

LENGTHS = (0.0, 1.0, 0.5, 0.25)


@pytest.mark.parametrize("weighted", [False, True])
def test_they_are_sums_over_all_rows(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    loss, f, h, y = CrossEntropy(3), rng.normal(size=(60, 3)), rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    weights = rng.uniform(0.5, 2.0, 60) if weighted else None
    question = SlopesAlong(LENGTHS, 40.0, 60)

    def here(rows: slice) -> Here:
        points = Points(0, np.zeros((len(y[rows]), 1), np.float32), y[rows], None if weights is None else weights[rows])
        return Here(points, 1.0, loss, y[rows], f[rows], h[rows])

    def asked(*parts: slice) -> np.ndarray:
        whole = add((to_integers(question.part(here(rows)), question.sums) for rows in parts), question.sums)
        return np.asarray(question.total(from_integers(whole, question.sums)))

    w = np.ones(60) if weights is None else weights
    expected = [(w[:, None] * loss.gradient(f + a * h, y) * h).sum() for a in LENGTHS]
    np.testing.assert_allclose(asked(slice(0, 60)), expected, rtol=1e-9)
    np.testing.assert_array_equal(asked(slice(0, 13), slice(13, 60)), asked(slice(0, 60)))


def test_an_overflow_is_as_steep_as_can_be() -> None:
    points = Points(0, np.zeros((2, 1), np.float32), np.array([1.0, 2.0]))
    f, h = np.zeros((2, 1)), np.array([[1e4], [0.5]])
    question = SlopesAlong((0.0, 1.0), 7.0, 2)
    part = question.part(Here(points, 1.0, Poisson(), points.y[:, None], f, h))
    slopes = question.total(part)
    assert slopes[1] == pytest.approx(7.0 + 0.5 * (np.exp(0.5) - 2.0))
    assert slopes[0] == pytest.approx(0.0 + 0.5 * (1.0 - 2.0))


def test_the_length_is_the_longest_that_is_safe() -> None:
    assert safe_length(LENGTHS, np.array([-1.0, 0.5, 0.1, -0.5])) == 1.0  # half as steep as it began, upwards
    assert safe_length(LENGTHS, np.array([-1.0, 0.51, 0.5, -0.5])) == 0.5
    assert safe_length(LENGTHS, np.array([-1.0, 9.0, 9.0, 9.0])) == 0.25  # none is: the shortest
    assert safe_length(LENGTHS, np.array([0.1, 0.3, 0.2, 0.1])) == 1.0  # it began upwards
    assert safe_length(LENGTHS, np.array([0.1, 0.31, 0.2, 0.1])) == 0.5
