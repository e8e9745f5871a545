"""Distillation: one learner in place of many, in the paper's three ways, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.config import Config
from ffgb.distill import by_clients, by_server, distill_run, lessons
from ffgb.errors import FFGBError
from ffgb.features import Flatten
from ffgb.functions import Array, OpenSum
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.losses import CrossEntropy, Logistic, Soft, Square
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.schedules import Power
from ffgb.server import State
from ffgb.training import federate, train


def blobs(seed: int, n: int = 120, classes: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    centres = np.random.default_rng(99).standard_normal((classes, 4)) * 2
    return (centres[y] + rng.standard_normal((n, 4))).astype(np.float32), y


@pytest.fixture(scope="module")
def ensemble() -> State:
    family = MLP(Flatten(4), 3, hidden=(16,), steps=100, learning_rate=0.02)
    state, _ = federate([blobs(i) for i in range(4)], family, CrossEntropy(3), FFGB(Power(8.0), K=2), 6)
    assert state.f.terms == 4 * 2 * 6
    return state


def accuracy(f: object, x: Array, y: Array) -> float:
    return float((f(x).argmax(axis=1) == y).mean())  # type: ignore[operator]


def test_the_server_makes_one_of_many(ensemble: State) -> None:
    x, _ = blobs(50, n=400)  # points without labels
    one = by_server(ensemble.f, CrossEntropy(3), x, 1500, np.random.default_rng(0))
    assert isinstance(one, OpenSum)
    assert one.terms == 1
    fresh, y = blobs(51, n=1000)
    assert accuracy(one, fresh, y) >= accuracy(ensemble.f, fresh, y) - 0.02
    same = by_server(ensemble.f, CrossEntropy(3), x, 1500, np.random.default_rng(0))
    np.testing.assert_array_equal(one(fresh), same(fresh))


def test_clients_make_one_of_many_by_averaging(ensemble: State) -> None:
    points = [blobs(i)[0] for i in range(4)]
    one, lines = by_clients(ensemble.f, CrossEntropy(3), points, FedAvg(0.3, 20, 0.2), 40)
    assert one.terms == 1
    assert (lines[-1]["models_up"], lines[-1]["models_down"]) == (40.0, 40.0)
    fresh, y = blobs(51, n=1000)
    assert accuracy(one, fresh, y) >= accuracy(ensemble.f, fresh, y) - 0.03


def test_clients_send_one_learner_in_place_of_k() -> None:
    parts, family = [blobs(i) for i in range(4)], MLP(Flatten(4), 3, hidden=(16,), steps=100, learning_rate=0.02)
    plain, before = federate(parts, family, CrossEntropy(3), FFGB(Power(8.0), K=3), 4)
    state, after = federate(parts, family, CrossEntropy(3), FFGB(Power(8.0), K=3, distill=True), 4)
    assert (plain.f.terms, state.f.terms) == (4 * 3 * 4, 4 * 4)
    assert before[-1]["models_up"] == 3 * after[-1]["models_up"] == 12.0
    assert 0 < after[-1]["gamma_distilled"] <= 1
    assert after[-1]["train_accuracy"] > before[-1]["train_accuracy"] - 0.05


def test_lessons() -> None:
    family = Linear(Flatten(1), 2)
    f = family.member({"weight": np.array([[1.0, -1.0], [0.0, 0.0]])})
    x = np.array([[0.0], [0.5]])
    loss, y = lessons(f, x, CrossEntropy(2))
    assert isinstance(loss, Soft)
    np.testing.assert_allclose(y, [[0.5, 0.5], [1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(2.0))]])  # twice as certain
    one = Linear(Flatten(1), 1).member({"weight": np.array([[1.0], [0.0]])})
    loss, y = lessons(one, x, Logistic())
    np.testing.assert_allclose(y[:, 0], [0.5, 1 / (1 + np.exp(-1.0))])
    loss, y = lessons(one, x, Square())
    np.testing.assert_allclose(y[:, 0], [0.0, 0.5])


def test_what_is_one_already_is_refused() -> None:
    f = Linear(Flatten(1), 2).zero()
    with pytest.raises(FFGBError, match="one array already"):
        by_server(f, CrossEntropy(2), np.zeros((3, 1)), 10, np.random.default_rng(0))


@pytest.mark.parametrize("by", ["server", "clients"])
def test_a_run_is_distilled_to_a_model_that_loads(by: str, tmp_path: Path) -> None:
    config = Config(data=("wine",), clients=4, learner="mlp", rounds=4, oracle_steps=60)
    train(config, tmp_path / "run", workers=0)
    out = tmp_path / "one.safetensors"
    found = distill_run(Run.open(tmp_path / "run"), out, by, steps=600, rounds=60, step_size=0.2)
    assert (found["before"]["learners"], found["after"]["learners"]) == (32, 1)
    assert found["after"]["accuracy"] >= found["before"]["accuracy"] - 0.1
    assert found["models"] == pytest.approx(0.0 if by == "server" else 120.0, rel=1e-3)  # and the job, once
    assert out.stat().st_size < (tmp_path / "run" / "model.safetensors").stat().st_size / 4
    assert Model.load(out).f.terms == 1
    json.dumps(found, allow_nan=False)
    with pytest.raises(FFGBError, match="server or clients"):
        distill_run(Run.open(tmp_path / "run"), out, "friends")
