"""Histograms of gradients: what clients compute, what is refused, and who leaves in the middle of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core import histograms
from ffgb.core.exact_sums import EXACT, SHORT, Sizes, orders, unit_for
from ffgb.core.functions import Function
from ffgb.core.histograms import HistogramsOf, Units, weights_of_classes
from ffgb.core.losses import Logistic, Poisson
from ffgb.core.merged_cells import MergedHistograms, NodeRows
from ffgb.core.points import Points
from ffgb.core.questions import Here, Question, RoundQuestion, ask_locally
from ffgb.core.splits import Splits
from ffgb.core.together import FEW_ROWS, Together
from ffgb.core.tree_growth import Growth
from ffgb.errors import FFGBError
from ffgb.features.bins import bins_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.privacy.integers import add, from_integers, to_integers

Array = np.ndarray


class Clients:
    """Totals of clients' parts; the last client leaves after so many answers."""

    def __init__(self, family: BoostedTrees, parts: list[tuple[Array, Array]], stays: int) -> None:
        self.heres = [
            Here(Points(i, x, y), 1.0, Logistic(), y, np.zeros((len(y), 1)), family=family)
            for i, (x, y) in enumerate(parts)
        ]
        self.present, self.asked, self.stays = list(range(len(parts))), 0, stays

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any:
        self.asked += 1
        if self.asked == self.stays + 1:
            self.present = self.present[:-1]
        parts = [to_integers(question.part(self.heres[i]), question.sums) for i in self.present]
        return question.total(from_integers(add(parts, question.sums), question.sums))

    def gradient_bound(self, of_loss: float) -> float:
        return of_loss

    def noise(self, freedom: float | None) -> float | None:
        return None


def rows(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + rng.standard_normal(n) > 0).astype(np.int64)


@pytest.mark.parametrize("stays", [1, 2])
def test_who_leaves_in_the_middle_of_a_round_is_in_none_of_its_sums(stays: int) -> None:
    parts = [rows(300, 0), rows(200, 1), rows(250, 2)]
    x = np.concatenate([x for x, _ in parts])
    family = BoostedTrees(bins_of(ask_locally(Points(0, x, np.zeros(len(x)))), (), 3, 16, 5), 1, 8)
    algorithm = TreesShared(growth=Growth(8, 4, 5), rows=750)
    leaving, without = Clients(family, parts, stays), Clients(family, parts[:2], 100)
    steps = [algorithm.round(0, family.zero(), None, Logistic(), ask) for ask in (leaving, without)]
    ours, theirs = (step.h.tensors() for step in steps)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert leaving.asked == without.asked + stays + 1  # what had been asked was asked again


def question(n: int = 50, bits: Literal[32, 64] = 32) -> tuple[HistogramsOf, Here]:
    x, y = rows(n, 3)
    family = BoostedTrees(bins_of(ask_locally(Points(0, x, y)), (), 3, 8, 5), 1, 8)
    units = Units.bounded(Logistic(), n, bits, flat=False)
    assert units is not None
    none, cells = Splits.of([], [], [], 1), family.layout.cells.astype(np.int16)
    columns, asked = np.arange(3, dtype=np.int32)[None], np.zeros((1, 2), np.int32)
    made = HistogramsOf(units, cells, np.zeros(1, np.int32), columns, np.zeros(0, np.int16), none, asked)
    return made, Here(Points(0, x, y), 1.0, Logistic(), y, np.zeros((n, 1)), family=family)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("n", [50, FEW_ROWS + 100])
def test_sums_are_those_of_the_rows_in_each_cell(n: int, bits: Literal[32, 64]) -> None:
    """Of few rows and of many, which are added up in different ways; in 64 bits as finely as float64 can tell."""
    asked, here = question(n, bits)
    assert here.family is not None
    z, cells = here.points.features(here.family.features), here.family.features.layout.cells  # type: ignore[attr-defined]
    gradient, hessian = 0.5 - here.points.y, np.full(n, 0.25)
    expected = [
        np.concatenate([np.bincount(z[:, c], w, int(cells[c])) for c in range(3)])
        for w in (gradient, hessian, np.ones(n))
    ]
    (found,) = asked.total(from_integers(to_integers(asked.part(here), asked.sums), asked.sums)).nodes
    np.testing.assert_allclose(found, expected, rtol=1e-5 if bits == 32 else 1e-12, atol=1e-6 if bits == 32 else 1e-10)


LIES: dict[str, tuple[Callable[[dict[str, Array]], object], str]] = {
    "negative rows": (lambda own: own["rows"].__setitem__(0, -1.0), "negative"),
    "negative Hessians": (lambda own: own["hessians"].__setitem__(0, -1.0), "negative"),
    "a row more in one column": (lambda own: own["rows"].__setitem__(0, own["rows"][0] + 1), "from column to column"),
    "twice as many": (lambda own: own["rows"].__imul__(2.0), "100 rows in the nodes of a tree, and has 50"),
}


@pytest.mark.parametrize("lie", LIES)
def test_sums_that_no_rows_have_are_refused(lie: str) -> None:
    asked, here = question()
    own = {name: array.copy() for name, array in asked.part(here).items()}
    asked.check(own, 50)
    change, words = LIES[lie]
    change(own)
    with pytest.raises(FFGBError, match=words):
        asked.check(own, 50)


def test_what_was_kept_is_used_and_what_was_lost_is_computed_again() -> None:
    asked, here = question()
    first = asked.part(here)
    kept = here.points.aside
    assert kept is not None
    assert here.points.cached > 0
    asked.part(here)
    assert here.points.aside is kept
    here.points.forget()
    again = asked.part(here)
    assert here.points.aside is not kept
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_orders_bound_sums_and_units_hold_them() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-12, 1.0, 1e12):
        x = scale * rng.standard_cauchy((1000, 2))
        x[:10] = 0.0
        sizes, total = Sizes.of(orders(x)), np.abs(x).sum(axis=0)
        assert (sizes.total >= total).all()
        assert (sizes.total <= 2.0 * total).all()
        assert (sizes.median <= np.median(np.abs(x[10:]), axis=0)).all()
        for most in (SHORT, EXACT):
            unit = unit_for(float(sizes.total[0]), 1000, most)
            assert np.abs(np.rint(x[:, 0] / unit)).sum() <= most
            assert np.log2(unit).is_integer()
    with pytest.raises(FFGBError, match="beyond"):
        orders(np.array([[1e40]]))
    with pytest.raises(FFGBError, match="too many"):
        unit_for(1.0, 1e12, SHORT)


def test_bits_follow_from_the_rows() -> None:
    few, many = (Units.bounded(Logistic(), n, None, flat=False) for n in (10_000, 100_000_000))
    assert few is not None
    assert many is not None
    assert (few.bits, many.bits) == (32, 64)
    assert Units.bounded(Poisson(1), 10_000, None, flat=False) is None


def test_a_question_in_set_up_needs_no_f() -> None:
    asked, here = question()
    assert isinstance(asked, Question)
    with pytest.raises(FFGBError, match="before training"):
        asked.part(Here(here.points, 1.0, Logistic(), family=here.family))


def test_weights_of_classes_are_those_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    y, weights = rng.integers(0, 3, 50), rng.uniform(0.1, 9.0, 50)
    points = Points(0, rng.standard_normal((50, 1)).astype(np.float32), y, weights)
    found = weights_of_classes(ask_locally(points), 3)
    np.testing.assert_allclose(found, np.bincount(y, weights), rtol=1e-9)


@pytest.mark.parametrize("n", [50, FEW_ROWS + 100])
def test_rows_by_cell_and_sums_of_merged_cells_are_of_one_pass_over_the_rows(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, here = question(n)
    merged = MergedHistograms(asked, np.zeros(asked.cells_of_nodes, np.int16))
    alone = merged.part(question(n)[1])
    where: Any = histograms if n >= FEW_ROWS else Together
    name = "sums_of_rows" if n >= FEW_ROWS else "sums"
    passes, work = list[int](), getattr(where, name)

    def counting(*given: Any, **how: Any) -> Any:
        passes.append(1)
        return work(*given, **how)

    monkeypatch.setattr(where, name, counting)
    counts = NodeRows(asked).part(here)["rows"]
    found = merged.part(here)
    assert len(passes) == 1
    assert counts.sum() == found["rows"].sum() == 3 * n
    for name, own in alone.items():
        assert np.array_equal(found[name], own)
    # another question, with the same node but another tree, is computed anew
    half = Splits.of([0], [0], [np.arange(int(asked.cells[0])) < 3], 1)
    deeper = replace(asked, splits=half, tree=np.zeros(1, np.int16), asked=np.array([[0, 1]], np.int32))
    below = NodeRows(deeper).part(here)["rows"]
    assert len(passes) == 2
    assert below.sum() == 3 * counts[:3].sum()
