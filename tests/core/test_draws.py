"""Which rows a tree is grown from: a share, drawn anew for each tree, by a secret of the site."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.draws import Draws
from ffgb.core.histograms import HistogramsOf, Units
from ffgb.core.losses.logistic import Logistic
from ffgb.core.points import Points
from ffgb.core.questions import Here, ask_locally
from ffgb.core.splits import Splits
from ffgb.errors import FFGBError
from ffgb.features.bins import bins_of
from ffgb.learners.boosted_trees import BoostedTrees

Array = np.ndarray

DRAWS = Draws(3, 700)


def points(n: int = 4000, seed: int = 0, secret: bytes = b"") -> Points:
    rng = np.random.default_rng(seed)
    found = Points(0, rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 2, n))
    found.secret = secret
    return found


def left_out(draws: Draws, some: Points, t: int, trees: range) -> Array:
    found = draws.left_out(some, t, trees)
    assert found is not None
    return found


def test_each_tree_leaves_out_its_share_and_other_rows_than_others() -> None:
    found = left_out(DRAWS, points(), 2, range(6))
    n = found.shape[1]
    assert np.abs(found.mean(axis=1) - 0.3).max() < 4.0 * np.sqrt(0.3 * 0.7 / n)
    both = found.astype(float) @ found.T / n
    assert np.abs(both[np.triu_indices(6, 1)] - 0.09).max() < 5.0 * np.sqrt(0.09 * 0.91 / n)  # independent


@pytest.mark.parametrize(
    ("draws", "t", "tree", "secret"),
    [
        (Draws(4, 700), 2, 0, b""),
        (Draws(3, 700, first=True), 0, 0, b""),
        (DRAWS, 3, 0, b""),
        (DRAWS, 2, 1, b""),
        (DRAWS, 2, 0, b"secret"),
    ],
)
def test_a_draw_depends_on_all_of_these(draws: Draws, t: int, tree: int, secret: bytes) -> None:
    one = left_out(DRAWS, points(), 2 if t else 0, range(1))[0]
    other = left_out(draws, points(secret=secret), t, range(tree, tree + 1))[0]
    assert abs(float((one != other).mean()) - 0.42) < 0.04  # 2 · 0.3 · 0.7: nothing in common


def test_a_draw_does_not_depend_on_where_a_row_is() -> None:
    whole = points()
    found, order = left_out(DRAWS, whole, 1, range(2)), np.random.default_rng(5).permutation(len(whole))
    for some in np.array_split(order, 3):
        part = Points(1, whole.x[some], whole.y[some])
        assert np.array_equal(left_out(DRAWS, part, 1, range(2)), found[:, some])


def test_equal_rows_are_drawn_one_by_one() -> None:
    same = Points(0, np.ones((3000, 2), np.float32), np.zeros(3000, int))
    assert abs(float(left_out(DRAWS, same, 0, range(1)).mean()) - 0.3) < 0.04


def test_shares_of_all_and_of_none() -> None:
    assert Draws.of(1.0, 0) is None
    assert Draws.of(0.9999, 0) is None
    assert Draws.of(0.7, 5) == Draws(5, 700)
    assert Draws.of(1e-6, 0) == Draws(0, 1)
    assert Draws(0, 1000).left_out(points(10), 0, [0]) is None
    for thousandths in (0, 1001):
        with pytest.raises(FFGBError, match="share of the rows"):
            Draws(0, thousandths)


def test_additive_models_draw_in_the_first_round_alone() -> None:
    first = Draws(0, 700, first=True)
    assert first.left_out(points(10), 0, [0]) is not None
    assert first.left_out(points(10), 1, [0]) is None


@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.parametrize("secret", [b"", b"of this site"])
def test_sums_are_of_the_rows_that_were_drawn(n: int, secret: bytes) -> None:
    """Both for few rows, where all trees are looked at together, and for many."""
    some, loss, t = points(n, secret=secret), Logistic(), 4
    family = BoostedTrees(bins_of(ask_locally(some), (), 3, 4, 5), 1, 4)
    here = Here(some, 1.0, loss, some.y, np.zeros((n, 1)), family=family, round=t)
    units = Units.bounded(loss, n, 64, flat=False)
    assert units is not None
    split = Splits.of([0], [1], [np.array([True, False, True, False])], 1)
    columns = np.tile(np.arange(3, dtype=np.int32), (2, 1))
    asked = np.array([(0, 1), (1, 0)], np.int32)
    cells = family.layout.cells.astype(np.int16)
    question = HistogramsOf(
        units, cells, np.zeros(2, np.int32), columns, np.zeros(1, np.int16), split, asked, True, None, DRAWS
    )
    found = question.total(question.part(here))
    out, z = left_out(DRAWS, some, t, range(2)), family.features(some.x)
    g = loss.gradient(np.zeros((n, 1)), some.y)[:, 0]
    inside = [~out[0] & np.isin(z[:, 1], [0, 2]), ~out[1]]
    for sums, rows in zip(found.nodes, inside, strict=True):
        at = 0
        for column, size in enumerate(cells.tolist()):
            assert np.allclose(sums[0, at : at + size], np.bincount(z[rows, column], g[rows], size), atol=1e-6)
            assert np.array_equal(sums[2, at : at + size], np.bincount(z[rows, column], minlength=size))
            at += size
    assert found.square is not None
    assert np.allclose(found.square, [np.square(g[~row]).sum() for row in out], rtol=1e-6)
