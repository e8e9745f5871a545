"""Trees whose cells have enough rows in each node: what the server sees, and what it grows from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.trees_shared import Sampling, TreesShared, grow_trees
from ffgb.core.histograms import HistogramsOf, Units
from ffgb.core.losses import Logistic
from ffgb.core.merged_cells import MergedHistograms, NodeRows
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion, ask_locally
from ffgb.core.splits import route
from ffgb.core.tree_growth import Finder, Growth
from ffgb.errors import FFGBError
from ffgb.features.bins import bins_of
from ffgb.learners.boosted_trees import BoostedTrees
from tests.algorithms.test_trees_shared import NAMES, parts_of, same, table, targets, trained

Array = np.ndarray
LEAST = 9


class Central:
    """All rows in one place; what the server sees is written down."""

    def __init__(self, n: int) -> None:
        x, loss = table(4, n), Logistic()
        y = targets(loss, x, 4)
        points = Points(0, x, y)
        self.family = BoostedTrees(bins_of(ask_locally(points), NAMES, x.shape[1], 32, 20), 1, 16)
        self.here = Here(points, 1.0, loss, y, np.zeros((n, 1)), family=self.family)
        self.z = self.family.features(x)
        self.gradient = loss.gradient(np.zeros((n, 1)), y)[:, 0]
        self.present, self.seen = [0], list[tuple[RoundQuestion, Any]]()

    def __call__(self, question: RoundQuestion, shown: Any = None) -> Any:
        part = question.part(self.here)
        question.check(part, len(self.z))
        assert all(part[name].shape == each.shape for name, each in question.sums.items())
        self.seen.append((question, part))
        return question.total(part)

    def gradient_bound(self, of_loss: float) -> float:
        return of_loss

    def noise(self, freedom: float | None) -> float | None:
        return None

    def grown(self, least: int, monotone: Array | None = None, **growth: Any) -> Any:
        layout = self.family.layout
        units = Units.bounded(Logistic(), len(self.z), 64, flat=False)
        assert units is not None
        chosen = Growth(16, 6, 20, **growth)
        finders = [Finder(np.array(some), layout, chosen, monotone) for some in ([0, 1, 3], [1, 2, 3])]
        found = grow_trees(self, self.family, finders, units, np.zeros(2, np.int32), Sampling(least))
        assert found is not None
        return found[0]


@pytest.mark.parametrize("by_level", [True, False])
@pytest.mark.parametrize("monotone", [None, np.array([1, 0, -1, 0])])
def test_no_cell_has_few_rows_and_every_node_has_its_own_sums(monotone: Array | None, by_level: bool) -> None:
    central = Central(900)
    trees = central.grown(LEAST, monotone, by_level=by_level)
    kinds = [type(question) for question, _ in central.seen]
    assert kinds[::2] == [NodeRows] * (len(kinds) // 2)
    assert kinds[1::2] == [MergedHistograms] * (len(kinds) // 2)
    assert len(kinds) > 6
    few = 0
    for question, part in central.seen:
        small = ((part["rows"] > 0) & (part["rows"] < LEAST)).sum()
        few += small
        assert isinstance(question, NodeRows) or not small
    assert few > 50  # without merging there would be many
    for tree in trees:
        assert len(tree.splits) > 5
        node = route(tree.splits, central.z, np.zeros(len(central.z), np.int32))
        for leaf in tree.leaves:
            inside = node == leaf
            assert tree.sums[leaf, 2] == inside.sum() >= 20
            assert tree.sums[leaf, 0] == pytest.approx(central.gradient[inside].sum(), abs=1e-6)


def test_with_one_row_it_is_the_tree_of_single_cells() -> None:
    apart, alike = Central(600).grown(1), Central(600)
    for ours, theirs in zip(apart, alike.grown(1), strict=True):
        assert np.array_equal(ours.values, theirs.values)
    assert {type(question) for question, _ in alike.seen} == {HistogramsOf}


@pytest.mark.parametrize("clients", [3, 20])
def test_over_any_split_the_model_has_the_same_bits(clients: int) -> None:
    x = table(6, 500)
    y = targets(Logistic(), x, 6)
    whole = trained(Logistic(), [(x, y)], least=LEAST)
    assert same(whole.f, trained(Logistic(), parts_of(x, y, 6, clients), least=LEAST).f)
    assert not same(whole.f, trained(Logistic(), [(x, y)]).f)


@pytest.mark.parametrize("wrong", [-1, 300])
def test_cells_that_are_not_there_are_refused(wrong: int) -> None:
    central = Central(300)
    central.grown(LEAST)
    question = next(q for q, _ in central.seen if isinstance(q, MergedHistograms))
    heads = question.heads.copy()
    heads[3] = wrong
    for some in (heads, question.heads[:-1]):
        with pytest.raises(FFGBError, match="merges cells that are not there"):
            MergedHistograms(question.of, some)


def test_the_default_merges_cells() -> None:
    from ffgb import Config

    assert TreesShared.configured(Config()).least == 10  # type: ignore[attr-defined]
    assert TreesShared.configured(Config(least=1)).least == 1  # type: ignore[attr-defined]
