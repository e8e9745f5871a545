"""Means that no client can pull as far as it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms import Algorithm
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.parametric import Copies
from ffgb.core.functions import ClosedSum, average
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.means import Aggregate, Mean, NormBound, TrimmedMean, make_aggregate
from ffgb.core.questions import Ask
from ffgb.core.schedules import Constant
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Learner, Server
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.protocol.codec import decode, encode
from ffgb.protocol.engine import Engine
from ffgb.runs.config import Config
from ffgb.runs.training import train
from tests.engines.faults import Faulty

FAMILY = Linear(Flatten(1), 1)
N, CLASSES = 6, 3


def holdings() -> list[Holding]:
    """Of six clients, and a test set."""
    centres, parts = np.random.default_rng(9).standard_normal((CLASSES, 4)) * 2, []
    for i in range(N + 1):
        rng = np.random.default_rng(i)
        y = rng.integers(0, CLASSES, 24 + i)
        parts.append(Holding((centres[y] + rng.standard_normal((len(y), 4))).astype(np.float32), y))
    return parts


def closed(ask: Ask) -> Any:
    return Linear(Flatten(4), CLASSES), None


def shared(ask: Ask) -> Any:
    return Linear(Flatten(4), CLASSES), share_geometry(ask, Flatten(4), "exact", 1e-3)


def net(ask: Ask) -> Any:
    return MLP(Flatten(4), CLASSES, hidden=(8,), steps=20, learning_rate=0.02), None


JOBS: dict[str, tuple[Algorithm, Learner]] = {
    "closed": (FFGB(Constant(1.0), K=2), closed),
    "shared": (FFGBShared(Constant(1.0)), shared),
    "fedavg": (FedAvg(0.1, 5, 0.5), net),
}


def run(engine: Engine, job: str, T: int, **options: Any) -> list[dict[str, Any]]:
    """The metrics of T rounds."""
    algorithm, learner = JOBS[job]
    with engine:
        server = Server(engine, [len(h) for h in holdings()[:N]], 1, **options)
        state = server.start(algorithm, learner, CrossEntropy(CLASSES))
        return [line for _, line in server.rounds(state, T)]


def member(a: float, b: float) -> ClosedSum:
    return ClosedSum(FAMILY, {"weight": np.array([[a], [b]])})


def test_by_hand() -> None:
    answers = [member(1.0, 0.0), member(0.0, 2.0), member(-1.0, 0.0), member(30.0, 40.0), member(2.0, 0.0)]
    zero = FAMILY.zero()
    plain = Mean()(answers, [1.0] * 5, zero)
    np.testing.assert_allclose(plain.tensors()["parameters/weight"][:, 0], [32 / 5, 42 / 5])
    # lengths 1, 2, 1, 50, 2: the median is 2, and (30, 40) becomes (1.2, 1.6)
    bounded = NormBound()(answers, [1.0] * 5, zero)
    np.testing.assert_allclose(bounded.tensors()["parameters/weight"][:, 0], [3.2 / 5, 3.6 / 5])
    # of −1, 0, 1, 2, 30 one is put aside at either end; of 0, 0, 0, 2, 40 as well
    trimmed = TrimmedMean(0.2)(answers, [1.0] * 5, zero)
    np.testing.assert_allclose(trimmed.tensors()["parameters/weight"][:, 0], [1.0, 2 / 3])
    weighted = NormBound()(answers[:2], [3.0, 1.0], zero)
    np.testing.assert_allclose(weighted.tensors()["parameters/weight"][:, 0], [0.75, 1.5 / 4])


def test_nothing_put_aside_is_the_mean() -> None:
    answers = [member(*np.random.default_rng(i).standard_normal(2)) for i in range(4)]
    same_as = average(answers, [1.0] * 4).tensors()["parameters/weight"]
    np.testing.assert_allclose(
        TrimmedMean(0.0)(answers, [1.0] * 4, FAMILY.zero()).tensors()["parameters/weight"], same_as
    )


@pytest.mark.parametrize("aggregate", [NormBound(), TrimmedMean(0.34)])
@pytest.mark.parametrize("job", ["closed", "shared", "fedavg"])
def test_two_of_six_cannot_spoil_the_model(job: str, aggregate: Aggregate) -> None:
    """They answer with the opposite of what they found, fifty times."""

    def fault(question: Any, i: int, answer: bytes) -> bytes:
        message = decode(answer)
        trained = question.kind == "train" or (question.kind == "question" and question.round >= 0)
        if not trained or i >= 2 or message.kind not in ("answer", "part"):
            return answer
        factors = {"square": 1}  # its size alone would give the lie away
        tensors = {n: (a * factors.get(n, -50)).astype(a.dtype) for n, a in message.tensors.items()}
        return encode(replace(message, tensors=tensors))

    spoilt = run(Faulty(holdings(), fault), job, 8, minimum=1)[-1]  # what grows beyond all bounds is refused
    honest = run(Faulty(holdings(), lambda q, i, a: a), job, 8, aggregate=aggregate)[-1]
    kept = run(Faulty(holdings(), fault), job, 8, aggregate=aggregate, minimum=1)[-1]
    assert honest["test_accuracy"] > 0.7
    assert kept["test_accuracy"] >= honest["test_accuracy"] - 0.2
    if job == "shared":  # inner products beyond what the gradient's size allows are refused under every mean
        assert spoilt["participants"] == N - 2
    else:
        assert kept["test_loss"] < 0.5 * spoilt["test_loss"]


@pytest.mark.parametrize("aggregate", [Mean(), NormBound(), TrimmedMean(0.34)])
@pytest.mark.parametrize("job", ["closed", "shared", "fedavg"])
def test_clients_that_agree_are_averaged_to_what_they_say(job: str, aggregate: Aggregate) -> None:
    """Six clients with the same rows give the model that one of them gives alone."""
    alike = [holdings()[0]] * 6
    algorithm, learner = JOBS[job]
    algorithm = FedAvg(0.1, 5, 128) if job == "fedavg" else algorithm  # whole batches: nothing is left to chance
    found = []
    for parts, how in ((alike, aggregate), (alike[:1], Mean())):
        with InProcess(parts) as engine:
            server = Server(engine, [len(h) for h in parts], aggregate=how)
            state = server.start(algorithm, learner, CrossEntropy(3))
            for after, _ in server.rounds(state, 4):
                state = after
        found.append(state.f.tensors())
    for name, array in found[1].items():
        assert np.abs(array).max() > 0.01
        np.testing.assert_allclose(found[0][name], array, rtol=1e-4, atol=1e-6)


def test_what_a_parametric_method_sends_is_bounded_by_how_far_it_moved() -> None:
    """FedAvg's clients send their position, and the aggregate bounds or trims the move from the last model."""
    space = Copies(FAMILY, ("x",))

    def at(a: float, b: float) -> ClosedSum:
        return space.point({"x": {"weight": np.array([[a], [b]])}})

    moves = [(1.0, 0.0), (0.0, 2.0), (-1.0, 0.0), (30.0, 40.0), (2.0, 0.0)]
    answers = [at(1000.0 + a, -500.0 + b) for a, b in moves]
    # lengths 1, 2, 1, 50, 2, as by hand above: (30, 40) becomes (1.2, 1.6)
    for aggregate, moved in ((NormBound(), [3.2 / 5, 3.6 / 5]), (TrimmedMean(0.2), [1.0, 2 / 3])):
        found = aggregate(answers, [1.0] * 5, at(1000.0, -500.0)).tensors()["parameters/x/weight"][:, 0]
        np.testing.assert_allclose(found - [1000.0, -500.0], moved, rtol=1e-9)


def test_of_several_arrays_each_is_compared_with_its_own_start() -> None:
    """SCAFFOLD sends x and c, and the move of both together is one vector with one length."""
    space = Copies(FAMILY, ("x", "c"))

    def at(x: float, c: float) -> ClosedSum:
        return space.point({"x": {"weight": np.full((2, 1), x)}, "c": {"weight": np.full((2, 1), c)}})

    moves = [(3.0, 4.0), (4.0, -3.0), (60.0, -80.0)]  # lengths 5√2, 5√2, 100√2
    answers = [at(10.0 + a, -7.0 + b) for a, b in moves]
    found = NormBound()(answers, [1.0] * 3, at(10.0, -7.0)).tensors()
    np.testing.assert_allclose(found["parameters/x/weight"], 10.0 + (3.0 + 4.0 + 3.0) / 3)
    np.testing.assert_allclose(found["parameters/c/weight"], -7.0 + (4.0 - 3.0 - 4.0) / 3)


def test_a_share_that_is_no_whole_number_of_clients_is_rounded_up() -> None:
    """A quarter of five clients is two, so that never fewer are put aside than may be malicious."""
    rows = np.array([[-9.0], [-8.0], [1.0], [30.0], [90.0]])
    np.testing.assert_array_equal(TrimmedMean(0.25).rows(rows, [1.0] * 5), [1.0])
    np.testing.assert_array_equal(TrimmedMean(0.01).rows(rows, [1.0] * 5), [23.0 / 3])
    np.testing.assert_array_equal(TrimmedMean(0.49).rows(rows[:4], [1.0] * 4), [-3.5])  # someone is left


def test_mistakes_are_told() -> None:
    with pytest.raises(FFGBError, match="mean or norm or trimmed"):
        make_aggregate("median", 0.2)
    with pytest.raises(FFGBError, match=r"less than 0\.5"):
        make_aggregate("trimmed", 0.5)
    with pytest.raises(FFGBError, match="one array"):
        train(Config(data="wine", clients=3, learner="mlp", aggregate="norm"), workers=0)
    result = train(Config(data="wine", clients=6, rounds=3, aggregate="trimmed"), workers=0)
    assert result.summary["test_accuracy"] > 0.8


@pytest.mark.parametrize("aggregate", [Mean(), NormBound(), TrimmedMean(0.2)])
def test_the_mean_of_one_answer_is_that_answer(aggregate: Aggregate) -> None:
    family = Linear(Flatten(2), 1)
    one = family.member({"weight": np.array([[1.0], [-2.0], [0.5]])})
    found = aggregate([one], [3.0], family.zero())
    np.testing.assert_allclose(found.tensors()["parameters/weight"], [[1.0], [-2.0], [0.5]])
