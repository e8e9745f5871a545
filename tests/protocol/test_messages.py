"""Messages: each kind comes back as it was, and what answers it, or is none, is told apart in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms import Searched
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.gradients import GradientOf, SlopesOf
from ffgb.core.losses import CrossEntropy
from ffgb.core.moments import MomentsOf
from ffgb.core.schedules import Constant, Power
from ffgb.core.weighting import Weighting
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation import host
from ffgb.federation.host import Holding
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.describe import describe
from ffgb.protocol.job import Job, Update
from ffgb.protocol.masking import Group, Introduce, Masking, Prepare, Reopen, Roll, Tie, Ties, Unmask
from ffgb.protocol.messages import (
    KINDS,
    Along,
    Asked,
    Remember,
    Report,
    Setup,
    Take,
    Train,
    Turn,
    read,
    what_leaves,
)
from ffgb.protocol.sending import ALWAYS, Sending

CLOSED = Linear(Flatten(4), 3)
OPEN = MLP(Flatten(4), 3, hidden=(5,), steps=3)
LOSS = CrossEntropy(3)
SHARED = Job(FFGBShared(Constant(1.0), search=True), CLOSED, LOSS, None, 7)
INCREMENTS = Job(FFGB(Power(8.0), K=2, length=Searched()), OPEN, LOSS, None, 7, precision="int8")
AVERAGED = Job(FedAvg(0.1, 5, 0.5), FedAvg(0.1, 5, 0.5).space(OPEN), LOSS, None, 7)

rng = np.random.default_rng(0)
STEP = CLOSED.member({"weight": rng.standard_normal((5, 3)).astype(np.float32)})
MEMBERS = OPEN.member(OPEN.initial(rng)) * 0.5 + OPEN.member(OPEN.initial(rng)) * -2.0
MOMENTS = MomentsOf(Flatten(4), np.arange(4.0), np.full(4, 9.0), by_rows=False, alike=True)
WEIGHTING = Weighting(60.0, by_size=False, level=0.25)

GROUPS = (
    Group((0, 1, 2, 3), ("north", "east", "süd", "west"), ("00ff", "", "12", "ab"), 3),
    Group((5, 6, 7), ("north", "east", "süd"), ("00ff", "", "12")),
)
SIGNATURES = (("00", "", "ff01", "a0"), ("", "77", "00"))


def some_bytes(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, np.uint8)


MESSAGES: dict[str, tuple[Sending, Job | None]] = {
    "before training": (Asked(MOMENTS, Weighting(60.0)), None),
    "the gradient": (Asked(GradientOf(CLOSED, LOSS, np.ones(5)), WEIGHTING, 3), SHARED),
    "slopes": (Asked(SlopesOf(LOSS, 0.9, 0.1, 0.25), WEIGHTING, 3, STEP, (6, 7)), SHARED),
    "slopes of many": (Asked(SlopesOf(LOSS, 1.0, 0.0), WEIGHTING, 0, MEMBERS), INCREMENTS),
    "a job": (Setup(SHARED, 2), None),
    "another job": (Setup(INCREMENTS), SHARED),
    "a turn": (Turn(AVERAGED, "name"), SHARED),
    "train": (Train(4, {"1": 3, "5": 2}), INCREMENTS),
    "train, and nothing is kept": (Train(0, {}), INCREMENTS),
    "an update": (Take(Update(5, 0.9, STEP, 0.5)), SHARED),
    "an update of many": (Take(Update(5, 1.0, MEMBERS)), INCREMENTS),
    "an update to the bit": (Take(Update(5, 0.0, STEP * (1.0 / 3.0)), exact=True), SHARED),
    "a step": (Along(5, 0.9, 0.125), SHARED),
    "a report": (Report(5), SHARED),
    "memory": (Remember(4, {"c": np.arange(3.0), "d": np.arange(4, dtype=np.int32)}), AVERAGED),
    "who takes part": (Introduce("a run", GROUPS), None),
    "everyone's keys": (Roll("a run", tuple(some_bytes(len(g.names), 32) for g in GROUPS), SIGNATURES), None),
    "a secret is needed": (Tie("a run"), None),
    "everyone's ties": (Ties("a run", some_bytes(4, 32)), None),
    "some questions are coming": (Prepare("a run", 3), None),
    "whose parts have arrived": (Unmask("a run", 100, "0a" * 32, (0, 2, 3), some_bytes(4, 4, 80)), SHARED),
    "a question whose total is impossible": (Reopen("a run", 100, "0a" * 32, 4), SHARED),
}


def travelled(sending: Sending) -> Message:
    return decode(encode(sending.message()))


def equal(a: Sending, b: Sending) -> None:
    """The same class, and the same bytes as it travels: every field, and every bit of every array."""
    assert type(a) is type(b)
    if isinstance(a, Take) and isinstance(b, Take):  # whether all bits are sent is no part of what is said
        b = replace(b, exact=a.exact)
    assert encode(a.message()) == encode(b.message())
    assert a.answer == b.answer
    assert a.before_training == b.before_training


def test_every_kind_is_tried() -> None:
    assert {sending.kind for sending, _ in MESSAGES.values()} == set(KINDS)


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_sent_is_what_is_read(name: str) -> None:
    sending, job = MESSAGES[name]
    message = travelled(sending)
    assert what_leaves(message) == sending.answer
    again = read(message, job)
    equal(sending, again)
    if isinstance(sending, Asked) and isinstance(again, Asked):
        assert again.weighting == sending.weighting
        assert (again.round, again.looking) == (sending.round, sending.looking)
        assert describe(again.question)[0] == describe(sending.question)[0]
        assert (again.shown is None) == (sending.shown is None)
    if isinstance(sending, Train) and isinstance(again, Train):
        assert dict(again.memory) == dict(sending.memory)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_a_function_that_was_rounded_is_read_as_it_travelled(precision: str) -> None:
    rounded = Update(3, 1.0, MEMBERS).as_travelled(precision)
    for sending in (
        Take(rounded, precision),
        Asked(SlopesOf(LOSS, 1.0, 0.0), WEIGHTING, 2, rounded.increment, precision=precision),
    ):
        again = read(travelled(sending), INCREMENTS)
        function = again.update.increment if isinstance(again, Take) else again.shown  # type: ignore[attr-defined]
        for key, array in rounded.increment.tensors().items():
            np.testing.assert_array_equal(function.tensors()[key].astype(array.dtype), array)


# What answers them


def answers() -> dict[str, Message]:
    """One of each kind that clients send."""
    part = {"mean": np.zeros(4, np.int64), "square": np.zeros(4, np.int64)}
    return {
        "ready": Message("ready", client=1),
        "resync": Message("resync", client=1, values={"version": 3}),
        "error": Message("error", client=1, values={"text": "no"}),
        "part": Message("part", -1, 1, {"points": 9}, part),
        "answer": Message("answer", 4, 1, {"notes": {}}, MEMBERS.tensors()),
        "report": Message("report", 5, 1, {"points": 9, "loss": 1.0, "score": 2.0, "weight": 9.0}),
        "key": Message("key", client=1, values={"signature": "00"}, tensors={"key": some_bytes(32)}),
        "shares": Message("shares", client=1, tensors={"shares": some_bytes(4, 32)}),
        "stranger": Message("stranger", client=1),
    }


EXPECTED = {
    "before training": {"part", "ready"}, "a job": {"ready"}, "a turn": {"ready"}, "train": {"answer"},
    "an update": {"report"}, "a step": {"report"}, "a report": {"report"}, "memory": {"ready"},
    "who takes part": {"key"}, "everyone's keys": {"ready"}, "whose parts have arrived": {"shares", "stranger"},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_another_answer_is_refused(name: str) -> None:
    sending, job = MESSAGES[name]
    expected = replace(sending.expected(job), client=1)
    for kind, answer in answers().items():
        data = encode(answer)
        if kind in EXPECTED[name] or kind in ALWAYS:
            assert decode(data, expected).kind == kind
        else:
            with pytest.raises(FFGBError, match=f"is of the kind '{kind}', expected {expected.kinds[0]} or"):
                decode(data, expected)
    for kind in EXPECTED[name] & {"part", "answer", "report"}:  # of another round, of another client
        changes: list[dict[str, Any]] = [{"round": 8}, {"client": 2}]
        for change in changes:
            with pytest.raises(FFGBError, match=f"is of {next(iter(change))} {next(iter(change.values()))}, expected"):
                decode(encode(replace(answers()[kind], **change)), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {"mean": t["mean"]}, r"has the arrays \['mean'\], expected"),
        (lambda t: {**t, "more": t["mean"]}, "has the arrays"),
        (lambda t: {**t, "mean": t["mean"].astype(np.float64)}, "expected int64 of shape"),
        (lambda t: {**t, "mean": t["mean"].astype(np.int32)}, "expected int64 of shape"),
        (lambda t: {**t, "mean": t["mean"][:3]}, "expected int64 of shape"),
        (lambda t: {**t, "mean": t["mean"][None]}, "expected int64 of shape"),
    ],
)
def test_parts_have_the_form_of_their_question(change: Callable[[Any], Any], words: str) -> None:
    asked, part = MESSAGES["before training"][0], answers()["part"]
    with pytest.raises(FFGBError, match=words):
        decode(encode(replace(part, tensors=change(part.tensors))), asked.expected(None))


# What is none


def recipe(**changes: Any) -> list[Any]:
    message = Asked(MOMENTS, WEIGHTING).message()
    question, weighting = message.values["recipe"]
    return [{**question, **changes}, weighting]


def changed_values(sending: Sending, **values: Any) -> Message:
    message = sending.message()
    return replace(message, values={**message.values, **values})


def in_group(**changes: Any) -> Message:
    message = Introduce("a run", GROUPS).message()
    first, *rest = message.values["groups"]
    return replace(message, values={**message.values, "groups": [{**first, **changes}, *rest]})


MALFORMED: dict[str, tuple[Message, str]] = {
    "an unknown kind": (Message("dance"), "there is no message 'dance'"),
    "what a client says": (Message("part", -1), "there is no message 'part'"),
    "no recipe": (Message("question", -1), "asks no question"),
    "a number": (Message("question", -1, values={"recipe": 3}), "asks no question"),
    "one thing": (Message("question", -1, values={"recipe": recipe()[1:]}), "asks no question"),
    "no weighting": (Message("question", -1, values={"recipe": [{"kind": "Flatten", "inputs": 3}, 4]}), "no question"),
    "code": (
        Message("question", -1, values={"recipe": [{"kind": "Popen", "args": ["ls"]}, recipe()[1]]}),
        "'Popen', which this version of ffgb does not know",
    ),
    "an array that is not there": (Message("question", -1, values={"recipe": recipe()}), "which is not there"),
    "another field": (Message("question", -1, values={"recipe": recipe(more=1)}), "which is not there|has the fields"),
    "no job": (Message("setup", values={"recipe": {"kind": "Flatten", "inputs": 3}}), "does not describe a job"),
    "no job in a turn": (Message("turn", values={"recipe": 1, "name": "x"}), "does not describe a job"),
    "no recipe of a job": (Message("setup"), "a message 'setup' cannot be understood"),
    "a turn without a name": (replace(Turn(SHARED, "x").message(), values={"recipe": 1}), "does not describe a job"),
    "clients that weigh nothing": (
        replace(Asked(MOMENTS, WEIGHTING).message(), values={"recipe": [recipe()[0], {**recipe()[1], "total": 0.0}]}),
        "clients cannot weigh 0 together",
    ),
    "memory in words": (Message("train", 1, values={"memory": "all"}), "what clients keep"),
    "memory since when": (Message("train", 1, values={"memory": {"1": "ever"}}), "what clients keep"),
    "no step": (Message("step", 1, values={"decay": 1.0}), "has no length"),
    "a step in words": (Message("step", 1, values={"decay": 1.0, "step": "far"}), "has no length"),
    "an update by no number": (
        replace(Take(Update(1, 1.0, STEP)).message(), values={}),
        "'update' cannot be understood",
    ),
    "no threshold": (in_group(threshold=-1), "how many of them must answer"),
    "a threshold in words": (in_group(threshold="all"), "how many of them must answer"),
    "a participant twice": (in_group(numbers=[0, 1, 1, 2]), "names one twice, or is incomplete"),
    "a participant without a key": (in_group(registered=["00"]), "names one twice, or is incomplete"),
    "a key in words": (in_group(registered=["00", "", "12", "north"]), "a key, signature or hash that is none"),
    "a name that is none": (in_group(names=["a", "b", "c", 4]), "a list of participants is none"),
    "no run": (replace(Prepare("x", 3).message(), values={"batch": 3}), "'prepare' cannot be understood"),
    "a run without a name": (replace(Prepare("x", 3).message(), values={"batch": 3, "run": ""}), "which run it is"),
    "a run in half characters": (Message("prepare", values={"batch": 3, "run": "a\ud800"}), "which run it is"),
    "a name in half characters": (in_group(names=["a", "b", "c", "\udfff"]), "a list of participants is none"),
    "a batch in words": (Message("prepare", values={"run": "x", "batch": "all"}), "has no batch"),
    "a signature in words": (Message("roster", values={"run": "x", "signatures": [["yes"]]}), "signature or hash that"),
    "signatures without keys": (Message("roster", values={"run": "x", "signatures": [["00"]]}), "cannot be understood"),
    "keys that are too short": (
        Message("roster", values={"run": "x", "signatures": [["00"]]}, tensors={"keys 0": some_bytes(1, 31)}),
        "keys or boxes of another form",
    ),
    "boxes that are none": (
        replace(Unmask("x", 0, "00", (0,), some_bytes(2, 2, 80)).message(), tensors={"boxes": some_bytes(3)}),
        "what is to be unmasked",
    ),
    "those who have arrived, in words": (
        changed_values(Unmask("x", 0, "00", (0,), some_bytes(2, 2, 80)), arrived="all"),
        "whose parts have arrived",
    ),
    "an update of nothing": (Message("update", 1, values={"decay": 1.0, "step": 1.0}), "lacks arrays"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_message_is_refused_in_a_sentence(name: str) -> None:
    message, words = MALFORMED[name]
    with pytest.raises(FFGBError, match=words):
        read(decode(encode(message)), SHARED)


def changed(sending: Sending, **changes: Any) -> Message:
    message = sending.message()
    return replace(message, **{k: v for k, v in changes.items() if k == "round"}, values={
        **message.values, **{k: v for k, v in changes.items() if k != "round"}
    })  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        *(None, 3, [], ["run"], ["run", 0, []], ["run", "0", [], []], [3, 0, [], []], ["run", True, [], []]),
        *(["run", -1, [], []], ["run", 2**40, [], []], ["run", 0, ["x"], []], ["run", 0, [], [True]]),
        *(["run", 0, [], [2, 2]], ["run", 0, [], [], []]),
    ],
    ids=str,
)
def test_how_answers_are_masked_is_said_or_refused(value: Any) -> None:
    message = MESSAGES["the gradient"][0].message()
    assert Masking.of(message) is None
    masking = Masking("run", 7, (4,), (1, 2))
    assert Masking.of(replace(message, values={**message.values, "masks": masking.value})) == masking
    with pytest.raises(FFGBError, match="how its answers are masked"):
        Masking.of(replace(message, values={**message.values, "masks": value}))


def test_questions_are_asked_when_they_can_be_answered() -> None:
    gradient, slopes = MESSAGES["the gradient"][0], MESSAGES["slopes"][0]
    for message, words in (
        (changed(MESSAGES["before training"][0], round=2), "asked before training, or another in a round"),
        (changed(gradient, round=-1), "asked before training, or another in a round"),
        (changed(gradient, looking=[3]), "nothing to look at"),
        (changed(slopes, looking="all"), "who only looks"),
        (changed(slopes, looking=[True]), "who only looks"),
        (changed(slopes, looking={"3": 1}), "who only looks"),
    ):
        with pytest.raises(FFGBError, match=words):
            read(message, SHARED)
    with pytest.raises(FFGBError, match="shown before training"):
        read(slopes.message(), None)
    with pytest.raises(FFGBError, match="before a job"):
        read(MESSAGES["an update"][0].message(), None)


@pytest.mark.parametrize("seed", range(3))
def test_anything_in_a_message_is_read_or_refused(seed: int) -> None:
    """Something in the values of each kind becomes something else: a message, or a sentence, and no other error."""
    dicts: list[object] = [{}, {"kind": "Job"}, {"array": "x"}, {"number": "nan"}]
    strange: list[object] = [0, -1, 10**30, 1.5, "x", None, True, [], [[]], *dicts]
    draw, refused = np.random.default_rng(seed), 0
    for sending, job in MESSAGES.values():
        for _ in range(60):
            message = sending.message()
            tree = json.loads(json.dumps(dict(message.values)))
            node: Any = tree
            while node:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                key = keys[int(draw.integers(len(keys)))]
                if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.8:
                    node = node[key]
                    continue
                node[key] = strange[int(draw.integers(len(strange)))]
                break
            try:
                assert isinstance(read(decode(encode(replace(message, values=tree))), job), Sending)
            except FFGBError:
                refused += 1
    assert refused > 100


# One process, many clients


@pytest.mark.parametrize("name", ["before training", "a job", "the gradient"])
def test_a_message_is_read_once_for_all_clients_of_a_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holdings = [Holding(rng.standard_normal((9, 4)).astype(np.float32), rng.integers(0, 3, 9)) for _ in range(20)]
    times: list[str] = []

    def counted(message: Message, job: Job | None) -> Sending:
        times.append(message.kind)
        return read(message, job)

    sending, job = MESSAGES[name]
    with InProcess(holdings) as engine:
        if job is not None:
            engine.exchange(encode(Setup(replace(job, at=3)).message()), range(20))
        monkeypatch.setattr(host, "read", counted)
        found = {decode(a).kind for a in engine.exchange(encode(sending.message()), range(20)).values()}
    assert times == [sending.kind]
    assert found == {"ready" if name == "a job" else "part"}
