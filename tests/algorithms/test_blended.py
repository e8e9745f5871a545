"""Blends of boosted trees: stopped, blended and calibrated by rows set aside, the same over any split of the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from ffgb import Config, FFGBClassifier, train
from ffgb.algorithms.blended import ALONE, SLOPES, Blended, folds_of
from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core.folds import Folds, Judged
from ffgb.core.judgement import calibration
from ffgb.core.losses import Logistic
from ffgb.core.points import Points
from ffgb.core.tree_growth import Growth
from ffgb.core.versions import Versions
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError
from ffgb.features.bins import bins_of
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.boosted_trees import BoostedTrees

SMALL = Growth(leaves=6, levels=3, least_rows=5, by_level=True)


def blend(rounds: int = 3, **more: Any) -> Blended:
    deep = TreesShared(0.5, 2, 0.5, 2, SMALL)
    return Blended(deep, replace(deep, growth=Growth(leaves=3, levels=2, least_rows=5), seed=1), **more)


def data(n: int = 240) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] + rng.normal(size=n) > 0).astype(int)


def trained(parts: Any, rounds: int, algorithm: Any, tests: Any = ()) -> tuple[Server, Any, list[dict[str, Any]]]:
    holdings = [Holding(x, y) for x, y in (*parts, *tests)]
    with local_engine(holdings, 0) as engine:
        server = Server(engine, [len(y) for _, y in parts], len(tests), by_size=True)

        def learner(ask: Any) -> Any:
            return BoostedTrees(bins_of(ask, ("a", "b", "c", "d"), 4, 20, 5), 1, 6), None

        state = server.start(algorithm, learner, Logistic())
        metrics = []
        for after, line in server.rounds(state, rounds):
            state = after
            metrics.append(line)
        settled = server.settle(state, metrics)
        assert settled is not None
        assert settled[0].t == state.t + 1  # what was chosen is the next f
        return server, (state, *settled), metrics


def test_a_version_is_what_training_without_its_fold_gives() -> None:
    x, y = data()
    algorithm = blend()
    _, (state, _, _), _ = trained([(x, y)], 3, algorithm)
    folds: Folds = state.job.algorithm.folds
    assert folds.without.tolist() == [-1, 0, 1, 2] * 3
    fold = folds.of(Points(0, x, y))
    every = state.f.evaluate(state.job.family.features(x)).reshape(len(x), 12)
    for version, left_out in ((0, None), (1, 0), (3, 2)):
        # the same trees, grown from the other rows alone
        rows = np.flatnonzero(fold != left_out) if left_out is not None else np.arange(len(x))
        with local_engine([Holding(x[rows], y[rows])], 0) as engine:
            server = Server(engine, [len(rows)], 0, by_size=True)
            strand = state.job.algorithm.deep
            family = replace(state.job.family, outputs=1)
            alone = server.start(strand, lambda ask: (family, None), Logistic())  # noqa: B023
            begun: Any = replace(alone.job.algorithm, start_values=strand.start_values)  # type: ignore[type-var]
            alone = replace(alone, job=replace(alone.job, algorithm=begun), f=begun.start(family, 0))
            server.go_on(alone, alone.job)
            for after, _ in server.rounds(alone, 3):
                alone = after
        np.testing.assert_allclose(alone.f(x)[:, 0], every[:, version], atol=1e-9)


def test_the_result_is_the_blend_that_was_chosen() -> None:
    x, y = data()
    _, (state, settled, line), metrics = trained([(x, y)], 4, blend())
    best = min(metrics, key=lambda each: each["held_out"])
    algorithm = state.job.algorithm
    weights = algorithm.candidates[int(best["blend"])]
    _, (early, _, _), _ = trained([(x, y)], metrics.index(best), blend())
    every = early.f(x).reshape(len(x), 3, 4)[:, :, 0]
    start = algorithm.deep.start_values[0]
    expected = start + (every - start) @ weights
    np.testing.assert_allclose(settled.f(x)[:, 0], expected, atol=1e-9)
    assert settled.job.loss == Logistic()
    assert not isinstance(settled.job.loss, Versions)
    p = Logistic().value(settled.f(x), y).mean()
    assert line["train_loss"] == pytest.approx(p)


def test_candidates_shrink_and_blend() -> None:
    found = blend().candidates
    assert found.shape == (5 * len(SLOPES), 2)  # before the table is known there is no additive model
    assert set(np.round(found.sum(axis=1), 9)) == set(SLOPES)


@pytest.mark.parametrize(
    ("rows", "number", "without"),
    [
        (499, 3, [-1, 0, 1, 2]),
        (500, 5, [-1, 0, 1, 2, 3, 4]),
        (4_999, 5, [-1, 0, 1, 2, 3, 4]),
        (5_000, 3, [-1, 0]),
        (20_000, 5, [-1, 0]),
    ],
)
def test_large_tables_set_one_part_aside_and_small_ones_each_row_once(
    rows: int, number: int, without: list[int]
) -> None:
    folds = folds_of(rows, 2, 7)
    assert (folds.number, folds.seed, folds.without.tolist()) == (number, 7, without * 2)


@pytest.mark.parametrize(("alone", "idle"), [(1.0, False), (1.04, False), (1.1, True)])
def test_shallow_trees_that_are_far_behind_do_not_grow(alone: float, idle: bool) -> None:
    """Of blends without an additive model; the loss of the best blend is 1."""
    algorithm = blend()
    losses = np.full(len(algorithm.candidates), 2.0)
    names = {tuple(np.round(weights, 6)): k for k, weights in enumerate(algorithm.candidates)}
    losses[names[1.0, 0.0]] = 1.0
    losses[names[0.0, 1.0]] = alone
    assert algorithm._done_without(Judged(losses, 1e9)) is idle
    losses[names[0.75, 0.25]] = 0.99  # the best blend has some
    assert not algorithm._done_without(Judged(losses, 1e9))


def test_trees_that_do_not_grow_cost_nothing_and_the_others_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    _, (all_grow, _, _), _ = trained([(x, y)], 9, blend())
    monkeypatch.setattr(Blended, "_done_without", lambda self, judged: True)
    _, (some, _, _), _ = trained([(x, y)], 9, blend())
    every, deep = (state.f(x).reshape(len(x), 3, -1) for state in (all_grow, some))
    np.testing.assert_array_equal(every[:, [0, 2]], deep[:, [0, 2]])
    np.testing.assert_array_equal(deep[:, 1], deep[:, 2])  # no tree came on top of the additive model
    assert (every[:, 1] != deep[:, 1]).any()
    assert some.costs.bytes_up < all_grow.costs.bytes_up


def test_trees_take_their_shares_of_the_columns_in_turn() -> None:
    x, y = data()
    in_turn = blend(column_shares=(0.25, 1.0))
    in_turn = replace(in_turn, deep=replace(in_turn.deep, least_columns=1))
    _, (state, _, _), _ = trained([(x, y)], 2, in_turn)
    found: list[set[int]] = [set(), set()]
    block = state.f.merged().blocks[0]
    outputs, columns, nodes = (block.stack[name] for name in ("output", "column", "node"))
    mine = np.flatnonzero(outputs == 0)[1:]  # the deep trees of all rows, after the constant
    for place, tree in enumerate(mine):
        some = set(columns[tree][nodes[tree] >= 0].tolist())
        found[place // 2] |= {len(some)}
    assert found[0] == {1}
    assert max(found[1]) > 1


def test_blends_are_judged_with_a_prior_that_is_worth_less_the_more_rows_were_seen() -> None:
    """Before any row: the logarithm of a slope has the deviation 0.3, and a share differs from 1/2 by 0.35."""
    algorithm = blend()
    at = {tuple(np.round(weights, 6)): k for k, weights in enumerate(algorithm.candidates)}
    nothing = np.zeros(len(at))
    for rows in (1.0, 50.0):
        found = algorithm._best(Judged(nothing, rows))
        assert found["blend"] == at[0.5, 0.5]
        assert found["held_out"] == 0.0
        expected = 2 * (0.5 / 0.35) ** 2 / (2 * rows)
        assert [found[name] for name in ALONE[:2]] == pytest.approx([expected, expected])
    for weights, doubt in (
        ((1.5, 0.0), 2 * (0.5 / 0.35) ** 2 + (math.log(1.5) / 0.3) ** 2),
        ((0.1, 0.3), 2 * (0.25 / 0.35) ** 2 + (math.log(0.4) / 0.3) ** 2),
    ):
        losses = nothing + 1e6
        losses[at[weights]] = 0.25
        found = algorithm._best(Judged(losses, 10.0))
        assert found["blend"] == at[weights]
        assert found["held_out"] == pytest.approx(0.25 + doubt / 20.0)


def test_a_score_must_become_better_by_a_thousandth() -> None:
    def lines(*values: float, **more: float) -> list[dict[str, float]]:
        return [dict.fromkeys(("held_out", *ALONE), v) | more for v in values]

    algorithm = blend(patience=2)
    assert not algorithm.over(lines(1.0, 1.0))
    assert algorithm.over(lines(1.0, 1.0, 1.0))
    assert algorithm.over(lines(1.0, 0.9991, 0.9991))
    assert not algorithm.over(lines(1.0, 1.0, 0.9989))
    assert not algorithm.over(lines(-1.0, -1.0, -1.0011))
    assert algorithm.over(lines(-1.0, -1.0, -1.0009))
    for name in ALONE[:2]:  # one kind of trees is still becoming better, and would soon be better than the blend
        assert not algorithm.over([*lines(1.0, 1.0), *lines(1.0, **{name: 0.9})])
        assert not algorithm.over([*lines(1.0, 1.0, **{name: 1.5}), *lines(1.0, **{name: 1.2})])
        assert algorithm.over([*lines(1.0, 1.0, **{name: 1.5}), *lines(1.0, **{name: 1.3})])
    few = replace(algorithm, deep=replace(algorithm.deep, rows=20))  # where 0.005 is noise
    assert few.over(lines(1.0, 1.0, 0.996))
    assert not few.over(lines(1.0, 1.0, 0.99))


def test_training_ends_when_the_score_is_no_longer_better() -> None:
    algorithm = blend(patience=3)
    falling = [dict.fromkeys(("held_out", *ALONE), v) for v in (1.0, 0.9, 0.8, 0.7)]
    assert not algorithm.over(falling[:3])
    assert not algorithm.over(falling)
    assert algorithm.over([*falling, *(dict.fromkeys(("held_out", *ALONE), 0.6999) for _ in range(3))])


def test_the_same_model_over_any_split_under_masks_and_after_an_interruption(tmp_path: Any) -> None:
    def go(out: Any = None, resume: bool = False, stop: int = 99, **more: Any) -> Any:
        lines: list[Any] = []
        config = Config(data=("wine",), learner="blend", rounds=2, trees_a_round=2, **{"clients": 3, **more})
        return train(
            config, out, workers=0, resume=resume, on_round=lines.append, should_stop=lambda: len(lines) >= stop
        )

    expected = go().model.to_bytes()
    assert go(clients=5, split="iid").model.to_bytes() == expected
    assert go(secure="on").model.to_bytes() == expected
    first = go(tmp_path / "run", stop=1)
    assert not first.finished
    second = go(tmp_path / "run", resume=True)
    assert second.finished
    assert second.model.to_bytes() == expected
    third = go(tmp_path / "run", resume=True)  # there is nothing left to do
    assert third.model.to_bytes() == expected
    assert third.metrics[-1]["settled"] == 1.0
    assert [line["round"] for line in third.metrics] == [1, 2, 3]


def test_probabilities_are_calibrated_where_few_rows_tempt_to_be_sure() -> None:
    set_ = load_breast_cancer()
    rng = np.random.default_rng(0)
    x = set_.data[:, :6].astype(np.float32)
    y = np.where(rng.uniform(size=len(x)) < 0.25, 1 - set_.target, set_.target)  # a quarter of the labels is wrong
    order = rng.permutation(len(x))
    model = FFGBClassifier(learner="blend").fit(x[order[:300]], y[order[:300]])
    p = model.predict_proba(x[order[300:]])[:, 1]
    line = calibration(p, y[order[300:]], np.ones(len(p)))
    assert line is not None
    assert 0.7 < line[1] < 1.5


def test_a_blend_begins_with_a_constant(tmp_path: Any) -> None:
    run = train(Config(data=("wine",), clients=2, learner="trees", rounds=1), tmp_path / "a", workers=0)
    assert run.finished
    with pytest.raises(FFGBError):
        train(Config(data=("wine",), clients=2, learner="blend", rounds=1, start=str(tmp_path / "a")), workers=0)


def test_additive_models_without_a_fold_come_to_rest_although_their_cells_are_merged() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    x[:, 1:] = x[:, :1] + 0.02 * x[:, 1:]
    y = (3.0 * np.sin(4.0 * x[:, 0]) + rng.logistic(size=len(x)) > 0).astype(int)
    algorithm = blend()
    algorithm = replace(algorithm, deep=replace(algorithm.deep, least=5))
    _, _, metrics = trained([(x, y)], 8, algorithm)
    losses = [line["held_out_additive"] for line in metrics]
    assert losses[2] < 0.8 * losses[0]
    assert max(losses[3:]) - min(losses[3:]) < 0.001
