"""Quantiles of the targets, by counts below edges: those of all clients' rows together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.points import Points
from ffgb.core.quantiles import (
    EDGES,
    MOST_REFINEMENTS,
    REFINEMENTS,
    BelowEdges,
    _narrowed,
    quantile_of_targets,
    robust_scaling,
)
from ffgb.core.questions import Here, Question
from ffgb.errors import FFGBError
from tests.features.clients import Log, among

Array = np.ndarray


def clients(parts: list[Array]) -> list[Points]:
    return [Points(i, np.zeros((len(y), 1), np.float32), y) for i, y in enumerate(parts)]


def quantile(parts: list[Array], level: float, log: Log | None = None) -> Array:
    y = np.concatenate(parts).reshape(sum(map(len, parts)), -1)
    return quantile_of_targets(among(clients(parts), log), level, y.mean(axis=0), y.std(axis=0))


@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.98), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_it_is_numpys_quantile_of_all_rows(seed: int, level: float, count: int) -> None:
    """Between the two rows at the level, by numpy's two one-sided rules, up to the width of the last edges."""
    rng = np.random.default_rng(seed)
    y = np.exp(rng.standard_normal((60, 2))) * [1.0, 1e4] + [0.0, 3e5]
    found = quantile(np.array_split(y, count), level)
    width = 200.0 * y.std(axis=0) / (EDGES - 1) ** REFINEMENTS
    below, above = (np.quantile(y, level, axis=0, method=rule) for rule in ("inverted_cdf", "higher"))
    assert (found >= below - width).all()
    assert (found <= np.maximum(above, below) + width).all()


@pytest.mark.parametrize(("level", "expected"), [(0.01, 1.0), (0.25, 1.0), (0.5, 2.0), (0.75, 3.0), (0.99, 10.0)])
def test_by_hand(level: float, expected: float) -> None:
    """The least value with at least this share of the rows at or below it."""
    log: Log = []
    found = quantile([np.array([1.0, 10.0]), np.array([3.0, 2.0])], level, log)
    assert found == pytest.approx([expected], abs=1e-3)
    assert [type(question) for question, _ in log] == [BelowEdges] * REFINEMENTS


def test_a_value_far_beyond_the_deviations_is_at_an_end() -> None:
    y = np.concatenate([np.zeros(10**5), [1e9]])
    for level in (1e-4, 0.5):
        assert quantile([y], level) == pytest.approx([0.0], abs=1e3)
    assert np.isfinite(quantile([y], 1.0 - 1e-7)).all()
    # and where every edge is below the level, or none is
    for share, sign in ((0.0, 1.0), (1.0, -1.0)):
        asked: list[Array] = []

        def ask(question: Question, share: float = share, asked: list[Array] = asked) -> Array:
            assert isinstance(question, BelowEdges)
            asked.append(question.edges)
            return np.full(question.edges.shape, share)

        end = quantile_of_targets(ask, 0.5, np.zeros(1), np.ones(1))
        assert end == pytest.approx(sign * np.abs(asked[0]).max(), rel=1e-3)


def test_rows_count_as_much_as_they_weigh() -> None:
    y, question = np.array([1.0, 2.0, 3.0]), BelowEdges(np.array([[0.0, 1.0, 2.5, 3.0]]))
    points = Points(0, np.zeros((3, 1), np.float32), y, np.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(question.part(Here(points, 1.0 / points.weight))["below"], [[0.0, 0.25, 0.5, 1.0]])


@pytest.mark.parametrize("below", [[-0.1, 0.5, 1.0], [0.5, 0.4, 1.0], [0.1, 0.5, 1.1]])
def test_shares_that_cannot_be_are_refused(below: list[float]) -> None:
    question = BelowEdges(np.array([[0.0, 1.0, 2.0]]))
    question.check({"below": np.array([[0.0, 0.5, 1.0]])}, 10)
    with pytest.raises(FFGBError, match="shares of rows below some edges are none"):
        question.check({"below": np.array([below])}, 10)


@pytest.mark.parametrize(("size", "count"), [(1e-3, 1), (1.0, 3), (1e6, 2)])
def test_outliers_move_neither_the_median_nor_the_deviation(size: float, count: int) -> None:
    rng = np.random.default_rng(0)
    y = size * (3.0 + rng.standard_normal((2000, 2)))
    wanted = np.median(y, axis=0), 1.4826 * np.median(np.abs(y - np.median(y, axis=0)), axis=0)
    y[:4] = 1e12
    log: Log = []
    ask = among(clients(np.array_split(y, count)), log)
    centre, scale = robust_scaling(ask, y.mean(axis=0), y.std(axis=0))
    assert np.abs(centre - wanted[0]).max() < 0.02 * size
    assert np.abs(scale / wanted[1] - 1.0).max() < 0.02
    assert len(log) <= 2 * MOST_REFINEMENTS


def test_a_target_that_is_mostly_one_number_keeps_its_scale() -> None:
    y = np.zeros(100)
    y[:30] = 1.0
    _, scale = robust_scaling(among(clients([y])), np.array([0.3]), np.array([0.46]))
    assert scale == pytest.approx([0.46])


def test_rows_below_edges_are_counted_by_weight_and_by_distance() -> None:
    y, weights = np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    here = Here(Points(0, np.zeros((4, 1), np.float32), y, weights), 0.1)
    edges = np.array([[0.0, 1.0, 2.5, 3.0]])
    assert BelowEdges(edges).part(here)["below"] == pytest.approx(np.array([[0.0, 0.1, 0.3, 1.0]]))
    assert BelowEdges(edges, np.array([3.0])).part(here)["below"] == pytest.approx(np.array([[0.7, 0.9, 1.0, 1.0]]))


@pytest.mark.parametrize(("share", "end"), [(0.0, (2.0, 3.0)), (1.0, (0.0, 0.0))])
def test_medians_beyond_all_edges_are_at_an_end(share: float, end: tuple[float, float]) -> None:
    edges = np.linspace(0.0, 3.0, EDGES)[None]
    low, high = _narrowed(lambda question: np.full((1, EDGES), share), edges, None)
    assert low[0] == pytest.approx(end[0], abs=1.0)
    assert high[0] == pytest.approx(end[1])
    assert low[0] <= high[0]
