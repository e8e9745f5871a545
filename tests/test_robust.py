"""Means that no client can pull as far as it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.fedavg import FedAvg
from ffgb.config import Config
from ffgb.errors import FFGBError
from ffgb.features import Flatten
from ffgb.functions import ClosedSum, average
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.losses import CrossEntropy
from ffgb.robust import Aggregate, Mean, NormBound, TrimmedMean, make_aggregate
from ffgb.server import Server
from ffgb.training import train
from ffgb.wire import decode, encode
from tests.engines.faults import Faulty
from tests.engines.test_faults import holdings, run, same

FAMILY = Linear(Flatten(1), 1)


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
        if question.kind != "train" or i >= 2:
            return answer
        message = decode(answer)
        return encode(replace(message, tensors={n: np.float32(-50.0) * a for n, a in message.tensors.items()}))

    spoilt = run(Faulty(holdings(), fault), job, 8, minimum=1)[1][-1]  # what grows beyond all bounds is refused
    honest = run(Faulty(holdings(), lambda q, i, a: a), job, 8, aggregate=aggregate)[1][-1]
    kept = run(Faulty(holdings(), fault), job, 8, aggregate=aggregate, minimum=1)[1][-1]
    assert honest["test_accuracy"] > 0.7
    assert kept["test_accuracy"] >= honest["test_accuracy"] - 0.2
    assert kept["test_loss"] < 0.5 * spoilt["test_loss"]


def test_without_attackers_few_coordinates_change_much() -> None:
    plain, _ = run(Faulty(holdings(), lambda q, i, a: a), "closed", 4)
    same(plain, run(Faulty(holdings(), lambda q, i, a: a), "closed", 4, aggregate=Mean())[0])


def test_fedavg_is_bounded_by_how_far_it_moved() -> None:
    with Faulty(holdings(), lambda q, i, a: a) as engine:
        server = Server(engine, [len(h) for h in holdings()[:6]], 1, aggregate=NormBound())
        family = MLP(Flatten(4), 3, hidden=(8,))
        state = server.start(FedAvg(0.1, 5, 0.5), lambda ask: (family, None), CrossEntropy(3))
        lines = [line for _, line in server.rounds(state, 12)]
    assert lines[-1]["train_loss"] < 0.8 * lines[0]["train_loss"]


def test_mistakes_are_told() -> None:
    with pytest.raises(FFGBError, match="mean or norm or trimmed"):
        make_aggregate("median", 0.2)
    with pytest.raises(FFGBError, match=r"less than 0\.5"):
        make_aggregate("trimmed", 0.5)
    with pytest.raises(FFGBError, match="one array"):
        train(Config(data="wine", clients=3, learner="mlp", aggregate="norm"), workers=0)
    result = train(Config(data="wine", clients=6, rounds=3, aggregate="trimmed"), workers=0)
    assert result.summary["test_accuracy"] > 0.8
