"""A client has f^t as the server has it, whatever the precision, and random numbers of its own."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.algorithms.ffgb import FFGB
from ffgb.core.losses import CrossEntropy
from ffgb.core.schedules import Power
from ffgb.engines.local import InProcess
from ffgb.features.basic import Flatten
from ffgb.federation.client import Client
from ffgb.federation.server import Server
from ffgb.learners.mlp import MLP
from ffgb.protocol.job import Job
from ffgb.protocol.messages import Setup, Train
from tests.engines.test_faults import CLASSES, JOBS, N, holdings


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("job", JOBS)
def test_clients_have_the_servers_f(job: str, precision: str) -> None:
    """An increment that is rounded on its way is rounded before the server goes on with it."""
    algorithm, learner = JOBS[job]
    parts = holdings()
    engine = InProcess(parts)
    with engine:
        server = Server(engine, [len(h) for h in parts[:N]], 1, precision=precision)
        state = server.start(algorithm, learner, CrossEntropy(CLASSES))
        for after, _ in server.rounds(state, 2 * algorithm.phases):
            state = after
        clients = engine._host.clients
        for i in range(N):
            client = clients[i]
            assert isinstance(client, Client)
            assert client.version == state.t
            expected = state.f.evaluate(client.z)
            np.testing.assert_allclose(client.f, expected, atol=1e-6 * np.abs(expected).max(), err_msg=f"client {i}")


def test_every_client_and_round_has_random_numbers_of_its_own() -> None:
    """Two clients with the same rows: nets start at other numbers, and batches are other rows."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 4)).astype(np.float32), rng.integers(0, 3, 30)
    job = Job(FFGB(Power(8.0)), MLP(Flatten(4), 3, hidden=(5,), steps=3), CrossEntropy(3), None, 0)
    answers = []
    for i in (0, 1, 0):
        client = Client(i, x, y)
        client.answer(Setup(job))
        answers.append(client.answer(Train(0, {})).tensors)
    first = next(name for name in answers[0] if name.startswith("parameters/"))
    assert not np.array_equal(answers[0][first], answers[1][first])
    np.testing.assert_array_equal(answers[0][first], answers[2][first])
