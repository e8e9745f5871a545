"""The local engine: the same bits for any number of workers, and workers that may die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ffgb.algorithms import Algorithm
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.core.functions import Family
from ffgb.core.losses import CrossEntropy, Loss, Square
from ffgb.core.schedules import Power
from ffgb.core.statistics import Moments
from ffgb.engines.local import LocalEngine, _balanced, in_parts
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten, Standardize
from ffgb.features.fourier import RandomFourier
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.protocol.codec import Message, decode, encode
from ffgb.runs.training import federate as run

SHAPE = (1, 16, 16)


Part = tuple[np.ndarray, np.ndarray]


def parts() -> list[Part]:
    """Clients of very unequal size, one of a single point."""
    rng = np.random.default_rng(5)
    return [
        (rng.standard_normal((n, *SHAPE)).astype(np.float32), rng.integers(0, 3, n)) for n in (70, 1, 33, 150, 12, 7)
    ]


def family(name: str) -> Family:
    match name:
        case "features":
            return Linear(RandomFourier(Flatten(256), 100, 8.0, 1), 3)
        case "linear":
            return Linear(Standardize.by(Moments.of(np.concatenate([x for x, _ in parts()])), Flatten(256)), 3)
        case "mlp":
            return MLP(Flatten(256), 3, steps=30)
        case "tree":
            return Tree(Flatten(256), 3, depth=3)
    pytest.importorskip("torch")
    return Net(SHAPE, 3, steps=5)


def tensors(state: State) -> dict[str, np.ndarray]:
    return state.f.tensors()


@pytest.mark.parametrize("name", ["features", "linear", "mlp", "cnn", "tree"])
@pytest.mark.parametrize("algorithm", [FFGB(Power(2.0), K=2, mu=0.01), FFGBC(Power(2.0), K=2, mu=0.01)], ids=["", "c"])
def test_one_worker_two_workers_and_none_give_the_same_bits(name: str, algorithm: Algorithm) -> None:
    same_for_any_number_of_workers(parts(), family(name), CrossEntropy(3), algorithm)


@pytest.mark.parametrize("net", [True, False], ids=["net", "linear"])
def test_lipschitz_functions_have_the_same_bits_too(net: bool) -> None:
    rng = np.random.default_rng(5)
    clients = [(rng.standard_normal((n, 3)).astype(np.float32), rng.standard_normal(n)) for n in (40, 1, 33, 50, 12, 7)]
    learner = LipschitzMLP(Flatten(3), 1, (8, 8), steps=20) if net else Linear(RandomFourier(Flatten(3), 30, 1.0, 1), 1)
    same_for_any_number_of_workers(clients, learner, Square(), FFGBL("auto", K=3, rounds=2))


def same_for_any_number_of_workers(clients: list[Part], learner: Family, loss: Loss, algorithm: Algorithm) -> None:
    results = []
    for workers in (0, 1, 2):
        state, lines = run(clients, learner, loss, algorithm, 3, tests=clients[:2], workers=workers, participation=4)
        results.append((tensors(state), [{k: v for k, v in line.items() if k != "seconds"} for line in lines]))
    for arrays, lines in results[1:]:
        assert lines == results[0][1]
        assert arrays.keys() == results[0][0].keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, results[0][0][key])


@pytest.mark.usefixtures("real_workers")
def test_a_worker_that_is_killed_is_named_and_the_result_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def train(kill: bool) -> State:
        some = parts()
        with LocalEngine([Holding(x, y) for x, y in some], workers=2) as engine:
            server = Server(engine, [len(y) for _, y in some])
            state = server.start(FFGB(Power(2.0), K=2), lambda ask: (family("mlp"), None), CrossEntropy(3))
            for t, (after, _) in enumerate(server.rounds(state, 4)):
                state = after
                if kill and t == 1:
                    os.kill(engine.pids[1], signal.SIGKILL)
                if kill and t == 2:  # and once while it works, for it has stopped the moment it gets the question
                    pid = engine.pids[0]
                    os.kill(pid, signal.SIGSTOP)
                    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        return state

    undisturbed = train(kill=False)
    with caplog.at_level(logging.WARNING, "ffgb"):
        disturbed = train(kill=True)
    assert "worker 1" in caplog.text
    assert "worker 0" in caplog.text
    assert "killed by signal 9" in caplog.text
    for key, array in tensors(undisturbed).items():
        np.testing.assert_array_equal(array, tensors(disturbed)[key])


@pytest.mark.usefixtures("real_workers")
def test_a_worker_that_keeps_dying_ends_the_run_with_its_clients_name() -> None:
    engine = LocalEngine([Holding(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))], workers=1)
    stop = threading.Event()

    def assassin() -> None:
        while not stop.is_set():
            for pid in engine.pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)

    thread = threading.Thread(target=assassin)
    thread.start()
    try:
        with pytest.raises(FFGBError, match=r"worker of client 0 died 3 times.*'moments'"):
            engine.exchange(encode(Message("moments")), [0])
    finally:
        stop.set()
        thread.join()
        engine.close()


def test_what_a_worker_cannot_build_is_said_and_not_taken_for_a_death(caplog: pytest.LogCaptureFixture) -> None:
    some = parts()
    with LocalEngine([Holding(x, y) for x, y in some], workers=2) as engine:
        strange = Message("setup", values={"recipe": {"kind": "NoSuchClass"}})
        answers = {i: decode(a) for i, a in engine.exchange(encode(strange), [0, 1]).items()}
    assert {a.kind for a in answers.values()} == {"error"}
    assert "'NoSuchClass'" in answers[0].values["text"]
    assert caplog.text == ""


@pytest.mark.usefixtures("real_workers")
def test_a_file_of_the_users_folder_is_not_imported_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user ran')")
    monkeypatch.chdir(tmp_path)
    state, _ = run(parts(), family("features"), CrossEntropy(3), FFGB(Power(2.0)), 1, workers=1)
    assert state.t == 1


@pytest.mark.usefixtures("real_workers")
def test_closing_ends_the_worker_processes() -> None:
    engine = LocalEngine([Holding(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))] * 3, workers=2)
    pids = engine.pids
    assert len(pids) == 2
    engine.close()
    for pid in pids:
        assert subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode != 0


def test_no_more_workers_than_clients_and_loads_are_even() -> None:
    assert _balanced([5], 8) == [[0]]
    halves = _balanced([100, 1, 1, 1, 50, 49], 2)
    loads = [sum([100, 1, 1, 1, 50, 49][i] for i in half) for half in halves]
    assert sorted(i for half in halves for i in half) == list(range(6))
    assert max(loads) - min(loads) <= 2


def test_a_test_set_is_cut_into_parts_of_fixed_size() -> None:
    x, y = np.arange(10)[:, None], np.arange(10)
    cut = in_parts(x, y, size=4)
    assert [len(part) for part in cut] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([part.x[part.rows] for part in cut]), x)


def test_a_worker_begins_without_packages_that_take_long_to_import() -> None:
    """scikit-learn, pandas and parts of SciPy took three quarters of the time in which a worker was there."""
    slow = ("sklearn", "pandas", "scipy.stats", "scipy.optimize", "matplotlib", "torch", "numba", "onnx")
    code = f"import sys, ffgb.engines.worker; print([name for name in {slow} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
