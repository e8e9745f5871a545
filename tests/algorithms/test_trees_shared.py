"""Boosted trees from totals: against scikit-learn's histogram boosting, and over any split of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Poisson, Quantile, Square
from ffgb.core.questions import Ask
from ffgb.core.tree_growth import Growth
from ffgb.features.bins import bins_of
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
