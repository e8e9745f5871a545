"""Boosted trees from totals: against scikit-learn's histogram boosting, and over any split of the rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Poisson, Quantile, Square
from ffgb.core.questions import Ask
from ffgb.core.splits import Splits, route
from ffgb.core.tree_growth import Growth
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError
from ffgb.features.bins import bins_of
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.training import federate

Array = np.ndarray

NAMES = ("a", "b", "c", "job=x", "job=y", "job=z", "c missing")


def table(seed: int, n: int) -> Array:
    """Three columns of numbers, one of categories, and one that says where the third is missing."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 7), np.float32)
    x[:, :3] = rng.standard_normal((n, 3)) * (1.0, 1e4, 1e-3)
    job = rng.integers(0, 4, n)  # the last has no column
    x[np.arange(n)[job < 3], 3 + job[job < 3]] = 1.0
    gone = rng.random(n) < 0.2
    x[gone, 2], x[gone, 6] = 0.0, 1.0
    return x


def signal(x: Array) -> Array:
    s: Array = np.sin(2.0 * x[:, 0]) + (x[:, 1] > 0) * x[:, 0] + x[:, 3] - 2.0 * x[:, 6]
    return s.astype(np.float64)


def targets(loss: Loss, x: Array, seed: int) -> Array:
    rng, s = np.random.default_rng(seed + 1), signal(x)
    if isinstance(loss, Logistic):
        return (s + rng.logistic(size=len(x)) > 0).astype(np.int64)
    if isinstance(loss, CrossEntropy):
        return np.digitize(s + rng.standard_normal(len(x)), [-0.5, 1.0]).astype(np.int64)
    if isinstance(loss, Poisson):
        return rng.poisson(np.exp(0.5 * s)).astype(np.float64)
    y: Array = 3.0 + 100.0 * (s + 0.5 * rng.standard_normal(len(x)))
    return np.stack([y, -y], axis=1) if loss.outputs == 2 else y


def learner(loss: Loss, names: tuple[str, ...], inputs: int, bins: int = 32, leaves: int = 8, least: int = 20) -> Any:
    def make(ask: Ask) -> tuple[Family, Geometry | None]:
        return BoostedTrees(bins_of(ask, names, inputs, bins, least), loss.outputs, leaves), None

    return make


def trained(loss: Loss, parts: list[tuple[Array, Array]], workers: int = 0, **settings: Any) -> State:
    algorithm = TreesShared(**{"rate": 0.4, "side_by_side": 2, "share": 0.6, "growth": Growth(8, 4, 20), **settings})
    make = learner(loss, NAMES, 7)
    state, metrics = federate(parts, make, loss, algorithm, 3, workers=workers, by_size=True)
    assert all(line["gamma_min"] is not None and line["gamma_min"] > 0 for line in metrics)
    return state


def parts_of(x: Array, y: Array, seed: int, clients: int) -> list[tuple[Array, Array]]:
    """Rows dealt out at random, in a random order, to clients of very different sizes."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    cuts = np.sort(rng.choice(np.arange(1, len(x)), clients - 1, replace=False))
    return [(x[rows], y[rows]) for rows in np.split(order, cuts)]


def same(f: Function, g: Function) -> bool:
    a, b = f.tensors(), g.tensors()
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


LOSSES = [Logistic(), CrossEntropy(3), Square(1), Square(2), Poisson(1), Huber(1), Quantile(1)]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{loss.outputs}")
@given(seed=st.integers(0, 10**6), clients=st.sampled_from([3, 20]))
@settings(max_examples=4, deadline=None)
def test_over_any_split_the_model_has_the_same_bits(loss: Loss, seed: int, clients: int) -> None:
    x = table(seed, 400)
    y = targets(loss, x, seed)
    y = y - y.mean(axis=0) if y.dtype.kind == "f" and not isinstance(loss, Poisson) else y
    y = y / y.std(axis=0) if y.dtype.kind == "f" else y
    whole = trained(loss, [(x, y)])
    split = trained(loss, parts_of(x, y, seed, clients))
    assert same(whole.f, split.f)
    assert whole.f.terms == 3 * 2 * loss.outputs + loss.outputs * loss.classification
    assert np.array_equal(whole.f(x), split.f(x))


@pytest.mark.parametrize("workers", [0, 2])
def test_worker_processes_change_nothing(workers: int) -> None:
    x = table(5, 300)
    y = targets(Logistic(), x, 5)
    assert same(trained(Logistic(), [(x, y)]).f, trained(Logistic(), parts_of(x, y, 1, 20), workers).f)


def like_sklearn(loss: Loss, x: Array, y: Array, rounds: int, rate: float, leaves: int) -> Array:
    """Predictions of trees grown from totals of three clients, by scikit-learn's settings."""
    growth = Growth(leaves, 32, 20, 1e-3, 0.0)
    parts = parts_of(x, y, 0, 3)
    with local_engine([Holding(*part) for part in parts], 0) as engine:
        server = Server(engine, [len(rows) for _, rows in parts], by_size=True)
        make, algorithm = learner(loss, (), x.shape[1], 255, leaves, 1), TreesShared(rate, growth=growth, bits=64)
        state = server.start(algorithm, make, loss, scale_target=not loss.classification)
        for after, _ in server.rounds(state, rounds):
            state = after
    return state.job.predicted(state.f(x))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("loss", [Square(1), Logistic(), Poisson(1)], ids=lambda loss: type(loss).__name__)
def test_splits_and_predictions_are_those_of_scikit_learn(loss: Loss, missing: bool) -> None:
    """On the same bins: 40 whole numbers a column.  scikit-learn rounds gradients to float32, and that is all."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 40, (1500, 5)).astype(np.float32)
    s = np.sin(x[:, 0] / 6) + (x[:, 1] > 20) * x[:, 2] / 20 + 0.3 * rng.standard_normal(len(x))
    y: Array = s.astype(np.float64)
    if isinstance(loss, Logistic):
        y = (s + 0.5 * rng.logistic(size=len(x)) > 0.5).astype(np.int64)
    elif isinstance(loss, Poisson):
        y = rng.poisson(np.exp(s)).astype(np.float64)
    if missing:
        x[rng.random(x.shape) < 0.1] = np.nan
    options = {
        "learning_rate": 0.2, "max_iter": 12, "max_leaf_nodes": 15, "min_samples_leaf": 20, "early_stopping": False
    }  # fmt: skip
    ours = like_sklearn(loss, x, y, 12, 0.2, 15)
    if loss.classification:
        theirs = HistGradientBoostingClassifier(**options).fit(x, y).predict_proba(x)
    else:
        kind = "poisson" if isinstance(loss, Poisson) else "squared_error"
        theirs = HistGradientBoostingRegressor(loss=kind, **options).fit(x, y).predict(x)[:, None]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_sums_of_32_bits_are_fine_enough() -> None:
    x = table(1, 1000)
    y = targets(Logistic(), x, 1)
    short, long = (trained(Logistic(), [(x, y)], bits=bits).f(x) for bits in (32, 64))
    assert not np.array_equal(short, long)
    np.testing.assert_allclose(short, long, atol=1e-3)


def test_every_bin_and_every_leaf_has_the_least_rows() -> None:
    x = table(2, 800)
    y = targets(Square(1), x, 2)
    state = trained(Square(1), parts_of(x, y / y.std(), 2, 20))
    family = state.job.family
    assert isinstance(family, BoostedTrees)
    z = family.features(x)
    for c, cells in enumerate(family.layout.cells):
        assert np.bincount(z[:, c], minlength=cells).min() >= 20
    assert family.features.names == ("a", "b", "c", "job")
    assert family.features.missing.tolist() == [False, False, True, True]
    arrays = state.f.tensors()
    for tree in range(len(arrays["weights"])):
        splits = Splits(*(arrays[f"parameters/{name}"][tree] for name in ("node", "column", "left")))
        assert np.unique(route(splits, z, np.zeros(len(z), np.int32)), return_counts=True)[1].min() >= 20


def test_rows_may_have_weights() -> None:
    """A row of weight 2 is the row twice, but for the rows that leaves must have; and any split gives the same."""
    x, rng = table(3, 300), np.random.default_rng(3)
    y, times = targets(Poisson(1), x, 3), rng.integers(1, 3, 300)
    y = y / y.mean()
    loss, algorithm = Poisson(1), TreesShared(0.3, growth=Growth(8, 4, 1))

    def fitted(holdings: list[Holding]) -> State:
        with local_engine(holdings, 0) as engine:
            sizes = [holding.size for holding in holdings]
            server = Server(engine, [len(holding) for holding in holdings], by_size=True, sizes=sizes)
            state = server.start(algorithm, learner(loss, NAMES, 7, least=1), loss, scale_target=True)
            for after, line in server.rounds(state, 3):
                state = after
                assert line["gamma_min"] is None
        return state

    weights = times.astype(np.float64)
    one = fitted([Holding(x, y, weights=weights)])
    order = rng.permutation(300)
    three = fitted([Holding(x[r], y[r], weights=weights[r]) for r in np.array_split(order, 3)])
    assert same(one.f, three.f)
    assert one.job.target is not None
    assert three.job.target is not None
    assert one.job.target.scale[0] == three.job.target.scale[0] == pytest.approx(np.average(y, weights=times))


@pytest.mark.parametrize("name", ["job+", "d+", "a"])
def test_monotone_columns_are_columns_of_numbers(name: str) -> None:
    x = table(0, 200)
    with pytest.raises(FFGBError, match="monotone"):
        trained(Square(1), [(x, signal(x))], monotone=(name,))
    early: Any = TreesShared(0.4, monotone=(name,))  # before the first round, too
    with pytest.raises(FFGBError, match="monotone"):
        federate([(x, signal(x))], learner(Square(1), NAMES, 7), Square(1), early, 0)


def test_a_monotone_column_of_a_sum_of_trees() -> None:
    x = table(4, 600)
    f = trained(Square(1), [(x, signal(x))], monotone=("a-",), share=1.0).f
    grid = np.repeat(x[:5], 50, axis=0)
    grid[:, 0] = np.tile(np.linspace(-3, 3, 50), 5)
    assert (np.diff(f(grid).reshape(5, 50), axis=1) <= 0).all()


def test_columns_are_dealt_like_cards() -> None:
    dealt = TreesShared(side_by_side=5, share=0.3).columns_of(3, 5, np.arange(14))
    assert dealt.shape == (5, 4)
    assert all(len(set(hand)) == 4 for hand in dealt.tolist())
    assert np.bincount(dealt.ravel(), minlength=14).min() == 1
    assert np.bincount(dealt.ravel()).max() == 2


def test_estimators_train_trees() -> None:
    x = table(6, 400)
    y, site = targets(Logistic(), x, 6), np.arange(400) % 3
    options = {"leaves": 8, "bins": 32}
    model = FFGBClassifier(learner="trees", rounds=3, random_state=0, options=options).fit(x, y, clients=site)
    again = FFGBClassifier(learner="trees", rounds=3, random_state=0, options=options, n_jobs=2)
    assert np.array_equal(model.predict_proba(x), again.fit(x, y, clients=site[::-1]).predict_proba(x))
    assert model.score(x, y) > 0.7
    stages = list(model.staged_predict_proba(x))
    assert np.array_equal(stages[-1], model.predict_proba(x))
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict_proba(x), model.predict_proba(x))
    heavy = FFGBClassifier(learner="trees", rounds=3, random_state=0, options=options)
    heavy.fit(x, y, clients=site, sample_weight=np.where(y, 3.0, 1.0))
    assert heavy.predict_proba(x)[:, 1].mean() > model.predict_proba(x)[:, 1].mean() + 0.1
    numbers = FFGBRegressor(learner="trees", rounds=3, random_state=0, options=options).fit(x, signal(x), clients=site)
    assert numbers.score(x, signal(x)) > 0.5


def test_how_many_columns_a_tree_may_split() -> None:
    """A share of the columns, but no fewer than the least and, for trees side by side, at least one less than all."""
    usable = np.array([0, 2, 3, 5, 7, 8, 9, 11, 12, 14])

    def dealt(trees: int, columns: int = 10, **settings: Any) -> Array:
        return TreesShared(**settings).columns_of(1, trees, usable[:columns])

    assert dealt(3, share=1.0).tolist() == [usable.tolist()] * 3
    found = dealt(5, share=0.4, side_by_side=5)
    assert found.shape == (5, 4)
    assert all(len(set(row)) == 4 and sorted(row) == row and set(row) <= set(usable.tolist()) for row in found.tolist())
    assert dealt(1, share=0.3, least_columns=4).shape == (1, 4)
    assert dealt(1, share=0.04).shape == (1, 1)
    assert dealt(2, columns=4, share=0.5, least_columns=4, side_by_side=2).shape == (2, 3)
    assert dealt(1, columns=4, share=0.5, least_columns=4).shape == (1, 4)
    assert dealt(2, columns=2, share=0.5, least_columns=4, side_by_side=2).shape == (2, 2)
    again, other = (TreesShared(share=0.4, seed=s).columns_of(1, 5, usable) for s in (0, 1))
    assert np.array_equal(again, TreesShared(share=0.4).columns_of(1, 5, usable))
    assert not np.array_equal(again, other)
    assert not np.array_equal(again, TreesShared(share=0.4).columns_of(2, 5, usable))
