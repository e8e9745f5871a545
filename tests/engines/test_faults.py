"""Rounds go on without clients that fail, and end as a run in which only the others took part."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms import Algorithm, Searched
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.scaffold import Scaffold
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.schedules import Constant, Power
from ffgb.core.types import Array
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.conversation import Conversation
from ffgb.federation.host import Holding
from ffgb.federation.server import Learner, Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves
from tests.engines.faults import Fault, Faulty, asked_about, begins, changed, in_set_up, with_tensors, with_values

N, CLASSES = 6, 3


def holdings(points: int = 24) -> list[Holding]:
    centres = np.random.default_rng(9).standard_normal((CLASSES, 4)) * 2
    parts = []
    for i in range(N + 1):  # the last is for tests
        rng = np.random.default_rng(i)
        y = rng.integers(0, CLASSES, points + i)
        parts.append(Holding((centres[y] + rng.standard_normal((len(y), 4))).astype(np.float32), y))
    return parts


def closed(ask: Any) -> tuple[Linear, None]:
    return Linear(Flatten(4), CLASSES), None


def shared(ask: Any) -> Any:
    family = Linear(Flatten(4), CLASSES)
    return family, share_geometry(ask, family.features, "exact", 1e-3)


def mlp(ask: Any) -> tuple[MLP, None]:
    return MLP(Flatten(4), CLASSES, hidden=(8,), steps=20, learning_rate=0.02), None


JOBS: dict[str, tuple[Algorithm, Learner]] = {
    "closed": (FFGB(Constant(1.0), K=2), closed),
    "shared": (FFGBShared(Constant(1.0)), shared),
    "search": (FFGBShared(Constant(1.0), search=True), shared),
    "searched": (FFGB(Power(8.0), K=2, length=Searched()), mlp),
    "open": (FFGB(Power(8.0), K=2), mlp),
    "ffgb-c": (FFGBC(Constant(1.0), K=2, mu=0.01), mlp),
    "fedavg": (FedAvg(0.1, 5, 0.5), mlp),
    "scaffold": (Scaffold(0.1, 5, 0.5), mlp),
    "mime": (Mime(0.1, 5, 0.5), mlp),
}


def run(engine: Engine, job: str, T: int, **options: Any) -> tuple[State, list[dict[str, Any]]]:
    algorithm, learner = JOBS[job]
    with engine:
        server = Server(engine, [len(h) for h in holdings()[:N]], 1, **options)
        state, lines = server.start(algorithm, learner, CrossEntropy(CLASSES)), []
        for after, line in server.rounds(state, T):
            state = after
            lines.append(line)
    return state, lines


def same(a: State, b: State) -> None:
    for name, array in a.f.tensors().items():
        np.testing.assert_array_equal(array, b.f.tensors()[name], err_msg=name)


def fails(rounds: dict[int, set[int]], how: Fault) -> Fault:
    """In these rounds the answers of these clients to what the round begins with fail in this way."""

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        if begins(question) and i in rounds.get(question.round, ()):
            return how(question, i, answer)
        return answer

    return fault


def nothing(question: Message, i: int, answer: bytes) -> None:
    return None


def tampered(change: Callable[[Message], Message]) -> Fault:
    return lambda question, i, answer: encode(change(decode(answer)))


def everywhere(value: float) -> Callable[[Message], Message]:
    """All parameters are this number."""

    def change(message: Message) -> Message:
        tensors = {n: np.full_like(a, value) if a.dtype.kind == "f" else a for n, a in message.tensors.items()}
        return replace(message, tensors=tensors)

    return change


def another_class(message: Message) -> Message:
    def wider(a: Array) -> Array:
        return np.concatenate([a, a[..., :1]], axis=-1)

    return replace(
        message, tensors={n: wider(a) if n.startswith("parameters") else a for n, a in message.tensors.items()}
    )


ATTACKS: dict[str, tuple[Fault, str]] = {
    "no answer": (nothing, "did not answer in time"),
    "garbage": (lambda q, i, a: b"\x00garbage" * 9, "refused: a message is cut short"),
    "half of it": (lambda q, i, a: a[: len(a) // 2], "refused: a message"),
    "a bit flipped": (lambda q, i, a: a[:-3] + bytes([a[-3] ^ 1]) + a[-2:], "checksum is wrong"),
    "much more": (lambda q, i, a: a + bytes(2**21), "bytes, and at most"),
    "NaN": (tampered(everywhere(float("nan"))), "not finite"),
    "infinite": (tampered(everywhere(float("inf"))), "not finite"),
    "1e30": (tampered(everywhere(1e30)), "beyond 1e+15"),
    "another round's": (tampered(lambda m: replace(m, round=m.round + 1)), "is of round"),
    "another client's": (tampered(lambda m: replace(m, client=5 - m.client)), "is of client"),
    "another kind": (tampered(lambda m: replace(m, kind="report", tensors={})), "is of the kind 'report'"),
    "another class": (tampered(another_class), "expected float32 of shape"),
    "no notes": (tampered(lambda m: with_values(m, notes="none")), "notes in a way"),
    "too many notes": (tampered(lambda m: with_values(m, notes={"gamma": [0.5] * 99})), "refused: its gamma is not"),
    "an error": (
        tampered(lambda m: Message("error", m.round, m.client, {"text": "no \x1b[31mdisk"})),
        "says: no ?[31mdisk",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_round_goes_on_without_a_bad_answer(attack: str, caplog: pytest.LogCaptureFixture) -> None:
    how, words = ATTACKS[attack]
    missed = {1: {2}, 2: {2, 5}}
    expected, plain = run(Faulty(holdings(), fails(missed, nothing)), "closed", 4, minimum=2)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ffgb"):
        state, lines = run(Faulty(holdings(), fails(missed, how)), "closed", 4, minimum=2)
    same(expected, state)
    assert [line["participants"] for line in lines] == [6, 5, 4, 6] == [line["participants"] for line in plain]
    said = [record.getMessage() for record in caplog.records if "client 2 is left out" in record.getMessage()]
    assert len(said) == 2
    assert words in said[0]
    # where everyone must answer, the run ends, and says who and why
    with pytest.raises(FFGBError, match="client 2 "):
        run(Faulty(holdings(), fails(missed, how)), "closed", 4)


def reported(**values: object) -> Fault:
    """Client 2 says something else in its reports."""
    return changed(2, "report", lambda m: with_values(m, **values))


def of_the_gradient(**arrays: object) -> Fault:
    """Client 2 sends something else as its part of the gradient."""
    return asked_about(2, "GradientOf", lambda m: with_tensors(m, **arrays))


LIES: dict[str, tuple[str, Fault, str]] = {
    "a loss of 1e999": ("search", reported(loss=float("inf")), "has a value that is"),
    "a loss of 1e308": ("search", reported(loss=1.7e308), "reports what cannot be"),
    "a negative score": ("closed", reported(score=-1.0), "reports what cannot be"),
    "other points": ("closed", reported(points=10**9), "reports of 1000000000 points, and has 26"),
    "no points": ("closed", reported(points=0), "reports what cannot be"),
    "no weight": ("closed", reported(weight=0.0), "reports what cannot be"),
    "a number of 400 digits": ("closed", reported(points=10**400), "whole number that is too large"),
    "yes for a number": ("closed", reported(loss=True), "says loss in a way"),
    "no square": ("search", of_the_gradient(square=None), "has the arrays ['covector'], expected"),
    "the largest square": ("search", of_the_gradient(square=np.array([2**63 - 1])), "beyond its bound"),
    "the least square": ("search", of_the_gradient(square=np.array([-(2**63)])), "beyond its bound"),
    "a square in another type": ("shared", of_the_gradient(square=np.array([np.inf])), "expected int64 of shape (1)"),
    "a square in fewer bits": ("shared", of_the_gradient(square=np.array([1], np.int32)), "expected int64 of shape"),
    "other points of the gradient": (
        "shared",
        asked_about(2, "GradientOf", lambda m: with_values(m, points=27)),
        "it is of 27 points, and the client has 26",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_report_ends_a_run(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    """What one client says of itself, in every message of a kind, is refused or believed; the others go on."""
    job, fault, words = LIES[lie]
    with caplog.at_level(logging.WARNING, "ffgb"):
        _, lines = run(Faulty(holdings(), fault), job, 3, minimum=2)
    assert len(lines) == 3
    assert all(np.isfinite(line["train_loss"]) and np.isfinite(line["train_accuracy"]) for line in lines)
    said = [record.getMessage() for record in caplog.records if "client 2 is left out" in record.getMessage()]
    assert words in said[0]


@pytest.mark.parametrize("job", JOBS)
def test_30_percent_of_the_answers_dropped_at_random(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost on the way up was not counted; what is lost on the way down is caught up with."""
    told, catch_up = dict[int, list[int]](), Conversation.catch_up

    def noted(self: Conversation, state: State, clients: Any) -> tuple[State, list[int]]:
        """Both times the same clients are asked: a part is rounded as a share of what all of those weigh."""
        state, present = catch_up(self, state, clients)
        return state, told.setdefault(state.t, present)

    monkeypatch.setattr(Conversation, "catch_up", noted)
    rng, arrived = np.random.default_rng(0), set[tuple[int, str, int]]()

    def lossy(question: Message, i: int, answer: bytes) -> bytes | None:
        in_round = question.kind in ("train", "update", "step", "question") and question.round >= 0
        if i < N and in_round and rng.random() < 0.3:
            return None
        if decode(answer).kind in ("answer", "part"):
            arrived.add((question.round, what_leaves(question), i))
        return answer

    def only_those(question: Message, i: int, answer: bytes) -> bytes | None:
        counts = decode(answer).kind in ("answer", "part")
        return None if counts and (question.round, what_leaves(question), i) not in arrived else answer

    state, lines = run(Faulty(holdings(), lossy), job, 20, minimum=1)
    assert [line["round"] for line in lines] == list(range(1, 21))
    assert min(line["participants"] for line in lines) < N
    expected, same_lines = run(Faulty(holdings(), only_those), job, 20, minimum=1)
    same(expected, state)
    assert [line["participants"] for line in lines] == [line["participants"] for line in same_lines]
    assert lines[-1]["test_loss"] == same_lines[-1]["test_loss"]


def test_too_few_answers_end_the_run_with_a_way_to_go_on() -> None:
    missed = fails({1: {0, 1, 2, 3, 4}}, nothing)
    with pytest.raises(FFGBError, match=r"only 1 of 6 clients answered, and a round needs 2; .* --resume"):
        run(Faulty(holdings(), missed), "closed", 3, minimum=2)


@pytest.mark.parametrize("job", JOBS)
def test_who_missed_rounds_goes_on_as_if_it_had_not_been_asked(job: str) -> None:
    """A client whose answers and deliveries are lost for some rounds equals one that was not reached at all."""
    away = {1: {1, 4}, 2: {1}}

    class Unreached(Faulty):
        """The question does not even come."""

        def exchange(self, data: bytes, clients: Any) -> dict[int, bytes]:
            question = decode(data)
            t = question.round - (question.kind not in ("train", "setup", "question"))
            return super().exchange(data, [i for i in clients if i not in away.get(t, ())])

    def lost(question: Message, i: int, answer: bytes) -> bytes | None:
        t = question.round - (question.kind not in ("train", "setup", "question"))
        return None if i in away.get(t, ()) and question.kind != "setup" else answer

    unreached, before = run(Unreached(holdings(), lambda q, i, a: a), job, 5, minimum=2)
    state, lines = run(Faulty(holdings(), lost), job, 5, minimum=2)
    same(unreached, state)
    assert [line["participants"] for line in lines] == [line["participants"] for line in before]
    assert [line["participants"] for line in lines[:2]] == [6, 4]


def test_with_everyone_there_a_minimum_changes_nothing() -> None:
    for job in JOBS:
        same(run(InProcess(holdings()), job, 3)[0], run(InProcess(holdings()), job, 3, minimum=2)[0])


def test_statistics_are_asked_for_again_and_then_missed(caplog: pytest.LogCaptureFixture) -> None:
    times: dict[int, int] = {}

    def late(question: Message, i: int, answer: bytes) -> bytes | None:
        if not in_set_up(question) or i != 3:
            return answer
        times[i] = times.get(i, 0) + 1
        return answer if times[i] > 1 else None

    same(run(InProcess(holdings()), "shared", 2)[0], run(Faulty(holdings(), late), "shared", 2, minimum=2)[0])
    never = asked_about(3, "GramOf", lambda m: with_tensors(m, mean=None))
    with caplog.at_level("WARNING", "ffgb"):
        run(Faulty(holdings(), never), "shared", 2, minimum=2)
    assert "client 3 is left out" in caplog.text
    with pytest.raises(FFGBError, match="client 3 sent"):
        run(Faulty(holdings(), never), "shared", 2)
    silent: Fault = lambda question, i, answer: None if in_set_up(question) else answer  # noqa: E731
    with pytest.raises(FFGBError, match="only 0 of 6 clients answered a question about"):
        run(Faulty(holdings(), silent), "shared", 2, minimum=2)


@pytest.mark.parametrize("minimum", [0, 7])
def test_an_impossible_minimum_is_refused(minimum: int) -> None:
    with pytest.raises(FFGBError, match=rf"--minimum is {minimum}, but only 6 clients take part"):
        Server(InProcess(holdings()), [9] * 6, minimum=minimum)


# Precisions


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("job", JOBS)
def test_rounded_increments_are_the_same_for_everyone(job: str, precision: str) -> None:
    """Who missed rounds, and is told of them later, has what the others have; and the model is about as good."""
    lost, unheard = fails({1: {2}, 3: {0, 2}}, nothing), set[int]()

    def late(question: Message, i: int, answer: bytes) -> bytes | None:
        """Client 1's reports do not come: it is told again, and has heard it before."""
        if question.kind == "update" and i == 1 and question.round not in unheard:
            unheard.add(question.round)
            return None
        return lost(question, i, answer)

    _, plain = run(InProcess(holdings()), job, 6)
    _, lines = run(InProcess(holdings()), job, 6, precision=precision)
    assert lines[-1]["test_loss"] == pytest.approx(plain[-1]["test_loss"], abs=0.1)
    assert lines[-1]["models_up"] == plain[-1]["models_up"]
    options = {"precision": precision, "minimum": 2}
    same(run(Faulty(holdings(), lost), job, 6, **options)[0], run(Faulty(holdings(), late), job, 6, **options)[0])


@pytest.mark.parametrize(("precision", "share"), [("float16", 0.5), ("int8", 0.25)])
def test_rounded_increments_take_fewer_bytes(precision: str, share: float) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((20, 50)).astype(np.float32), rng.integers(0, 3, 20)) for _ in range(3)]
    family = MLP(Flatten(50), 3, hidden=(64, 64), steps=5)
    used = []
    for p in ("float32", precision):
        with InProcess([Holding(x, y) for x, y in clients]) as engine:
            server = Server(engine, [20] * 3, precision=p)
            state = server.start(FFGB(Power(8.0), K=2), lambda ask: (family, None), CrossEntropy(3))
            used.append(next(server.rounds(state, 1))[1])
    for way in ("bytes_up", "bytes_down"):
        assert used[1][way] / used[0][way] == pytest.approx(share, abs=0.05)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(FFGBError, match="float32 or float16 or int8"):
        Server(InProcess(holdings()), [9] * 6, precision="int4")
