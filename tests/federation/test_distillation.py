"""Distillation: one learner in place of many, in the paper's three ways, and what it costs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.core.functions import OpenSum
from ffgb.core.losses import CrossEntropy, Logistic, Soft, Square
from ffgb.core.schedules import Power
from ffgb.core.types import Array
from ffgb.engines.local import InProcess, LocalEngine
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.distillation import by_clients, by_server, distilled_rounds, lessons
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.finite import Finite
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.protocol.codec import decode
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.model import Model
from ffgb.runs.postprocess import distill_run, reweight_run
from ffgb.runs.training import federate, train


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
    """The clients are new: they are led through the job whose f they are to learn."""
    server = Server(InProcess([Holding(*blobs(i)) for i in range(4)]), [120] * 4)
    after, lines = by_clients(server, ensemble, FedAvg(0.3, 20, 0.2), 40)
    assert after.f.terms == 1
    assert after.t == ensemble.t
    spent = after.costs.since(ensemble.costs).mean(4, ensemble.f.family.size)
    assert (spent["models_up"], spent["models_down"]) == (40.0, 41.0)  # and the one learner, to go on from
    assert len(lines) == 40
    fresh, y = blobs(51, n=1000)
    assert accuracy(after.f, fresh, y) >= accuracy(ensemble.f, fresh, y) - 0.03


def certainty(one: object, f: object, x: Array) -> float:
    """How many times as certain one learner is as f: the slope of its scores by those of f."""
    a, b = (g(x) - g(x).mean(axis=1, keepdims=True) for g in (one, f))  # type: ignore[operator]
    return float(np.vdot(a, b) / np.vdot(b, b))


@pytest.mark.parametrize("by", ["server", "clients"])
def test_one_learner_is_as_certain_as_the_many(by: str, ensemble: State) -> None:
    """The learner is taught f divided by a temperature, and is multiplied by that temperature afterwards."""
    x, _ = blobs(50, n=400)
    if by == "server":
        one = by_server(ensemble.f, CrossEntropy(3), x, 1500, np.random.default_rng(0))
    else:
        server = Server(InProcess([Holding(*blobs(i)) for i in range(4)]), [120] * 4)
        one = by_clients(server, ensemble, FedAvg(0.3, 20, 0.2), 40)[0].f
    assert 2 / 3 < certainty(one, ensemble.f, x) < 3 / 2  # half or twice as certain without


FAMILY = MLP(Flatten(4), 3, hidden=(16,), steps=60, learning_rate=0.02)


def boosted(server: Server, T: int) -> tuple[State, list[dict[str, Any]]]:
    """Three boosting rounds, ten of distillation after each."""
    state, lines = server.start(FFGB(Power(8.0), K=2), lambda ask: (FAMILY, None), CrossEntropy(3)), []
    for after, line in distilled_rounds(server, state, T, FedAvg(0.3, 20, 0.2), 10):
        state = after
        lines.append(line)
    return state, lines


def test_distillation_between_boosting_rounds_keeps_f_at_one_learner() -> None:
    holdings = [Holding(*blobs(i)) for i in range(5)]  # the last is for tests
    server = Server(InProcess(holdings), [120] * 4, 1)
    state, lines = boosted(server, 3)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert state.f.terms == 1
    assert [line["ensemble_learners"] for line in lines] == [8, 9, 9]  # one, and the round's eight
    assert lines[-1]["test_accuracy"] >= lines[-1]["ensemble_test_accuracy"] - 0.05
    assert lines[-1]["test_accuracy"] > 0.8
    # up: 2 learners a boosting round, 1 a distillation round
    assert lines[-1]["models_up"] == 3 * (2 + 10)
    # down: the others' 6 learners, 10 means; and the one learner twice, to learn more and to go on from
    assert lines[-1]["models_down"] == 3 * (6 + 10) + 2 + 3
    assert lines[-1]["ensemble_models_up"] == lines[1]["models_up"] + 2
    fresh, y = blobs(51, n=1000)
    assert accuracy(state.f, fresh, y) > 0.8


def test_a_worker_that_dies_while_it_is_taught_changes_no_bit() -> None:
    holdings = [Holding(*blobs(i)) for i in range(4)]
    expected, _ = boosted(Server(InProcess(holdings), [120] * 4), 2)
    engine = LocalEngine(holdings, 2)
    exchange, calls = engine.exchange, []

    def dying(data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        calls.append(decode(data).kind)
        if len(calls) in (4, 6, 12, 20):  # as lessons begin, in their first rounds, and later
            os.kill(engine.pids[0], signal.SIGKILL)
        return exchange(data, clients)

    engine.exchange = dying  # type: ignore[method-assign]
    with engine:
        state, _ = boosted(Server(engine, [120] * 4), 2)
    for name, array in expected.f.tensors().items():
        np.testing.assert_array_equal(array, state.f.tensors()[name])


def test_a_distilled_run_goes_on_after_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": "wine", "clients": 4, "learner": "mlp", "oracle_steps": 40, "distill": "rounds"}
    config = Config(**settings, rounds=4, distill_rounds=5)
    whole = train(config, tmp_path / "whole", workers=0)
    lines: list[dict[str, Any]] = []
    train(config, tmp_path / "cut", workers=0, on_round=lines.append, should_stop=lambda: len(lines) == 2)
    rest = train(config, tmp_path / "cut", resume=True, workers=0)
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert [line["models_up"] for line in rest.metrics] == [line["models_up"] for line in whole.metrics]
    assert whole.model.f.terms == 1
    assert not list((tmp_path / "whole" / "checkpoint").glob("round-*"))  # nothing of rounds that are over is kept


def test_a_run_is_reweighted(tmp_path: Path) -> None:
    train(Config(data="wine", clients=4, learner="mlp", rounds=3, oracle_steps=40), tmp_path / "run", workers=0)
    out = tmp_path / "other.safetensors"
    found = reweight_run(Run.open(tmp_path / "run"), out, rounds=20, step_size=0.5)
    assert found["before"]["learners"] == found["after"]["learners"] == 24
    assert found["after"]["loss"] < found["before"]["loss"]
    size = Model.load(out).family.size
    # the learners with their weights and radii, once, down; then in every round a number for each of them, both ways
    beside = (found["models"] - 24) * size
    assert beside == pytest.approx(24 * (2 + 20 * 2) + 2 * 13)  # and the means and scales of 13 inputs
    train(Config(data="wine", clients=4, rounds=3, learner="features"), tmp_path / "closed", workers=0)
    with pytest.raises(FFGBError, match="one array"):
        reweight_run(Run.open(tmp_path / "closed"), out)


def test_clients_send_one_learner_in_place_of_k() -> None:
    parts, family = [blobs(i) for i in range(4)], MLP(Flatten(4), 3, hidden=(16,), steps=100, learning_rate=0.02)
    plain, before = federate(parts, family, CrossEntropy(3), FFGB(Power(8.0), K=3), 4)
    state, after = federate(parts, family, CrossEntropy(3), FFGB(Power(8.0), K=3, distill=True), 4)
    assert (plain.f.terms, state.f.terms) == (4 * 3 * 4, 4 * 4)
    assert before[-1]["models_up"] == 3 * after[-1]["models_up"] == 12.0
    assert 0 < after[-1]["gamma_distilled"] <= 1
    assert after[-1]["train_accuracy"] > before[-1]["train_accuracy"] - 0.05


@pytest.mark.parametrize("mu", [0.0, 0.2])
def test_what_an_exact_oracle_distils_is_the_same_function(mu: float) -> None:
    """If the oracle is exact, one distilled learner changes f as much as the K learners do."""
    x = np.arange(6, dtype=np.float32)[:, None]
    clients = [(x, labels) for labels in np.random.default_rng(0).integers(0, 3, (4, 6))]
    plain, one = (
        federate(clients, Finite(6, 3, 1.0), CrossEntropy(3), FFGB(Power(0.7), K=3, mu=mu, distill=distill), 4)[0]
        for distill in (False, True)
    )
    np.testing.assert_allclose(one.f(x), plain.f(x), atol=1e-12)
    assert np.abs(plain.f(x)).max() > 0.1


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
    assert found["models"] == pytest.approx(0.0 if by == "server" else 121.0, rel=1e-3)  # and the job, once
    assert found["bytes"] == pytest.approx(4 * found["models"] * Model.load(out).family.size, rel=0.2)
    assert found["speedup"] > 1
    assert out.stat().st_size < (tmp_path / "run" / "model.safetensors").stat().st_size / 4
    assert Model.load(out).f.terms == 1
    json.dumps(found, allow_nan=False)
    with pytest.raises(FFGBError, match="server or clients"):
        distill_run(Run.open(tmp_path / "run"), out, "friends")


def test_what_is_projected_onto_a_ball_is_projected_onto_it_again(tmp_path: Path) -> None:
    """The projection that followed the ensemble also follows the model made of it."""
    settings: dict[str, Any] = {"algorithm": "ffgb-c", "bound": 0.05, "learner": "mlp", "oracle_steps": 20}
    train(Config(data="wine", clients=3, rounds=2, **settings), tmp_path / "run", workers=0)
    run, x = Run.open(tmp_path / "run"), load_data(Config(data="wine")).x_test
    ways: dict[str, Callable[[Path], object]] = {
        "distilled": lambda out: distill_run(run, out, steps=300),
        "reweighted": lambda out: reweight_run(run, out, rounds=2),
    }
    for name, made in ways.items():
        out = tmp_path / f"{name}.safetensors"
        made(out)
        assert np.abs(Model.load(out).decision(x)).max() == pytest.approx(0.05)


def test_a_run_between_sites_is_distilled_at_points_of_the_server(tmp_path: Path) -> None:
    config = Config(data="wine", clients=3, learner="mlp", rounds=2, oracle_steps=20)
    train(config, tmp_path / "run", workers=0)
    run, dataset = Run.open(tmp_path / "run"), load_data(config)
    run.write_json("config.json", run.config | {"data": ["sites"]})
    pd.DataFrame(dataset.x_test, columns=dataset.columns).to_csv(tmp_path / "points.csv", index=False)
    found = distill_run(run, tmp_path / "one.safetensors", files=[str(tmp_path / "points.csv")], steps=20)
    assert (found["before"], found["after"]) == ({"learners": 12}, {"learners": 1})  # there is nothing to score it on
    assert (found["points"], found["clients_own"], found["models"]) == (len(dataset.x_test), False, 0.0)
    assert Model.load(tmp_path / "one.safetensors").f.terms == 1
    with pytest.raises(FFGBError, match="at its sites"):
        distill_run(run, tmp_path / "two.safetensors")
