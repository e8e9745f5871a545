"""Totals are added up as integers: a training has the same bits in whatever order, on any engine, after accidents."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb import Config, train
from ffgb.algorithms import Algorithm, Searched
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.moments import MomentsOf
from ffgb.core.points import Points
from ffgb.core.questions import Here
from ffgb.core.schedules import Constant
from ffgb.core.weighting import Weighting
from ffgb.engines.local import InProcess, LocalEngine
from ffgb.features.basic import Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.federation.host import Holding
from ffgb.federation.server import Learner, Server
from ffgb.federation.state import State
from ffgb.federation.totals import total_of
from ffgb.learners.linear import Linear
from ffgb.privacy.integers import add, to_integers
from ffgb.protocol.codec import decode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves
from ffgb.runs.config import load_data

CLASSES, T = 3, 4


def holdings(weighted: bool = False) -> list[Holding]:
    """Seven clients of very unequal sizes, one of a single row, and a test set."""
    centres, found = np.random.default_rng(9).standard_normal((CLASSES, 4)) * 2, []
    for i, n in enumerate((40, 1, 7, 90, 23, 3, 55, 60)):
        rng = np.random.default_rng(i)
        y = rng.integers(0, CLASSES, n)
        x = (centres[y] + rng.standard_normal((n, 4))).astype(np.float32)
        found.append(Holding(x, y, weights=rng.uniform(0.1, 3.0, n) if weighted and i % 2 else None))
    return found


def shared(kind: str) -> Learner:
    def learner(ask: Any) -> Any:
        features = RandomFourier(Flatten(4), 24, 0.3, 1)
        return Linear(features, CLASSES), share_geometry(ask, features, kind, 1e-3, rank=9)

    return learner


JOBS: dict[str, tuple[Algorithm, Learner]] = {
    "exact": (FFGBShared(Constant(1.0), search=True), shared("exact")),
    "shrinking": (FFGBShared(Constant(0.5), mu=0.1), shared("exact")),
    "nystrom": (FFGBShared(Constant(1.0), search=True), shared("nystrom")),
}


def trained(engine: Engine, parts: Sequence[Holding], job: str = "exact", **options: Any) -> tuple[State, Any]:
    """The state at the end, and all totals of the set-up."""
    known: dict[str, Any] = {}
    with engine:
        sizes = [h.size for h in parts[:-1]]
        server = Server(engine, [len(h) for h in parts[:-1]], 1, sizes=sizes, **{"by_size": True, **options})
        state = server.start(*JOBS[job], CrossEntropy(CLASSES), known=known)
        for after, _ in server.rounds(state, T):
            state = after
    return state, known


def same(a: tuple[State, Any], b: tuple[State, Any]) -> None:
    assert list(a[1]) == list(b[1])  # the questions, by their bytes: each has the totals before in it
    assert a[0].t == b[0].t == T
    for name, array in a[0].f.tensors().items():
        np.testing.assert_array_equal(array, b[0].f.tensors()[name], err_msg=name)


@pytest.mark.parametrize(
    ("job", "weighted", "workers"),
    [
        *(("exact", False, workers) for workers in (1, 2, 3)),
        *(("shrinking", False, 2), ("nystrom", False, 3)),
        *((job, True, 2) for job in JOBS),
    ],
)
def test_any_number_of_workers_gives_the_same_totals(job: str, weighted: bool, workers: int) -> None:
    parts = holdings(weighted)
    same(trained(InProcess(parts), parts, job), trained(LocalEngine(parts, workers), parts, job))


@pytest.mark.parametrize("by_size", [True, False], ids=["by size", "uniform"])
@pytest.mark.parametrize("job", JOBS)
def test_clients_may_come_in_any_order(job: str, by_size: bool) -> None:
    """No total depends on which number a client has, nor on who answers first."""
    parts = holdings()
    expected = trained(InProcess(parts), parts, job, by_size=by_size)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(parts) - 1)
        others = [*(parts[i] for i in order), parts[-1]]
        same(expected, trained(InProcess(others), others, job, by_size=by_size))


class Shuffled(Engine):
    """Answers come in any order."""

    def __init__(self, parts: Sequence[Holding]) -> None:
        self.inner, self.rng = InProcess(parts), np.random.default_rng(0)

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        answers = self.inner.exchange(data, [clients[k] for k in self.rng.permutation(len(clients))])
        return {i: answers[i] for i in self.rng.permutation(list(answers)).tolist()}

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close()


def test_answers_may_come_in_any_order() -> None:
    parts = holdings()
    same(trained(InProcess(parts), parts), trained(Shuffled(parts), parts))


CONFIG: dict[str, Any] = {"data": ("wine",), "clients": 4, "split": "dirichlet", "alpha": 0.5, "rounds": 4}


@pytest.mark.parametrize("more", [{}, {"gram": "nystrom", "rank": 9}, {"schedule": "constant"}], ids=str)
def test_a_flower_grid_adds_up_the_same(more: dict[str, Any]) -> None:
    pytest.importorskip("flwr")
    from ffgb.engines.flower import Counted, FlowerEngine
    from ffgb.runs import simulation
    from tests.engines.grid import InProcessGrid

    config = Config(**CONFIG, **more)
    here = train(config, workers=0)
    resolved, places = json.dumps(config.resolved(load_data(config)).to_json()), range(5)  # and the test rows
    for forgetful in (False, True):  # every message may find a process that knows nothing but what was kept
        grid = InProcessGrid(simulation.client_app(resolved), {7 + i: {"partition-id": i} for i in places})
        grid.before = simulation._residents.clear if forgetful else grid.before
        nodes, names = {str(i): 7 + i for i in places}, {i: str(i) for i in places}
        engine = FlowerEngine(Counted(grid), nodes, names, 60.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ffgb.runs.training.simulation", lambda *_, engine=engine: nullcontext(engine))
            there = train(config, engine="flower")
        assert there.model.to_bytes() == here.model.to_bytes()
        assert [line["train_loss"] for line in there.metrics] == [line["train_loss"] for line in here.metrics]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_adds_up_the_same(stop: int, tmp_path: Path) -> None:
    config, seen = Config(**CONFIG), list[Any]()
    whole = train(config, workers=0)
    train(config, tmp_path / "run", workers=0, on_round=seen.append, should_stop=lambda: len(seen) == stop)
    rest = train(config, tmp_path / "run", resume=True, workers=2)
    assert rest.model.to_bytes() == whole.model.to_bytes()
    assert [line["train_loss"] for line in rest.metrics] == [line["train_loss"] for line in whole.metrics]


class Dying(Engine):
    """Before each message of a kind all workers die, or those of one client: what was shown to them is gone."""

    def __init__(self, parts: Sequence[Holding], kind: str) -> None:
        self.inner, self.kind, self.deaths = LocalEngine(parts, 2), kind, 0

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        message = decode(data)
        # once a round: who is restored is asked the same again
        if self.kind in (message.kind, what_leaves(message)) and self.deaths < message.round + (message.kind != "step"):
            self.deaths += 1
            os.kill(self.inner.pids[self.deaths % 2], signal.SIGKILL)
        return self.inner.exchange(data, clients)

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)


@pytest.mark.parametrize("job", ["exact", "nystrom"])
@pytest.mark.parametrize("kind", ["question GradientOf", "question SlopesOf", "step"])
def test_who_dies_between_slopes_and_the_step_is_restored(kind: str, job: str) -> None:
    """The function that came with the slopes is not sent again with the step: who lost it is led through the round."""
    parts = holdings()
    engine = Dying(parts, kind)
    same(trained(InProcess(parts), parts, job), trained(engine, parts, job))
    assert engine.deaths == T


@pytest.mark.parametrize("kind", ["question SlopesOf", "step"])
def test_so_it_is_for_increments_of_which_the_best_length_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(ask: Any) -> tuple[Linear, None]:
        return Linear(Flatten(4), CLASSES), None

    monkeypatch.setitem(JOBS, "searched", (FFGB(Constant(1.0), K=2, length=Searched()), closed))
    parts = holdings()
    engine = Dying(parts, kind)
    same(trained(InProcess(parts), parts, "searched"), trained(engine, parts, "searched"))
    assert engine.deaths == T


def test_a_total_without_a_client_is_that_of_the_others() -> None:
    """Shares are those of all who were asked; the mean is over those who answered."""
    x = [np.random.default_rng(i).standard_normal((n, 2)).astype(np.float32) for i, n in enumerate((5, 9, 30))]
    question = MomentsOf(Flatten(2), np.zeros(2), np.full(2, 8.0))
    weighting = Weighting.of([5.0, 9.0, 30.0])
    clients = [Here(Points(i, part, np.zeros(len(part))), weighting.share(len(part))) for i, part in enumerate(x)]
    whole = add((to_integers(question.part(here), question.sums) for here in clients[:2]), question.sums)
    total = total_of(question, whole, weighting.part(5.0) + weighting.part(9.0))
    np.testing.assert_allclose(total.mean, np.concatenate(x[:2]).mean(axis=0, dtype=np.float64), atol=1e-9)
