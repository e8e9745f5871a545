"""Asking clients: how often, whom again, and what is remembered of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ffgb.core.losses import CrossEntropy, Square
from ffgb.errors import FFGBError
from ffgb.federation.conversation import AbsentError, Conversation, _check_report
from ffgb.federation.participants import Participants
from ffgb.protocol.codec import Message, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import Report


class Scripted(Engine):
    """Answers what it was told to, one exchange after another."""

    def __init__(self, *exchanges: dict[int, Message]) -> None:
        self.exchanges, self.asked, self.waited = list(exchanges), list[list[int]](), list[list[int]]()

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        self.asked.append(list(clients))
        came = self.exchanges.pop(0)
        return {i: encode(message) for i, message in came.items() if i in clients}

    def wait(self, clients: Sequence[int]) -> None:
        self.waited.append(list(clients))

    def close(self, *, at_once: bool = False) -> None:
        pass


def report(i: int, loss: float = 1.0, t: int = 3) -> Message:
    return Message("report", t, i, {"points": 4, "loss": loss, "score": 2.0, "weight": 4.0})


def talk(engine: Scripted, minimum: int | None = 1) -> Conversation:
    return Conversation(engine, Participants([4, 4, 4], 1, minimum=minimum))


def test_only_the_silent_are_asked_again_and_waited_for_in_between() -> None:
    engine = Scripted({0: report(0)}, {2: report(2)}, {1: report(1)})
    found = talk(engine).exchange(Report(3), [0, 1, 2], None, 3, wait=True)
    assert sorted(found) == [0, 1, 2]
    assert engine.asked == [[0, 1, 2], [1, 2], [1]]
    assert engine.waited == [[1, 2], [1]]  # never before they were asked


def test_who_answers_at_once_is_asked_once() -> None:
    engine = Scripted({i: report(i) for i in range(3)})
    assert len(talk(engine).exchange(Report(3), [0, 1, 2], None, 3, wait=True)) == 3
    assert engine.waited == []


def test_failures_are_told_to_who_asks_for_them() -> None:
    failed: dict[int, FFGBError] = {}
    sorry = Message("error", 3, 1, {"text": "no memory"})
    engine = Scripted({0: report(0), 1: sorry})
    found = talk(engine).exchange(Report(3), [0, 1, 2], None, failed=failed)
    assert list(found) == [0]
    assert {i: str(error) for i, error in failed.items()} == {1: "says: no memory", 2: "did not answer in time"}
    assert all(isinstance(error, AbsentError) for error in failed.values())


def test_where_everyone_must_answer_silence_ends_it() -> None:
    with pytest.raises(FFGBError, match="client 1 did not answer in time"):
        talk(Scripted({0: report(0)}), None).exchange(Report(3), [0, 1], None)


def test_the_largest_message_of_each_kind_is_remembered() -> None:
    long = Message("report", 3, 1, {"points": 4, "loss": 1.123456789012345, "score": 2.0, "weight": 4.0})
    short = report(0)
    assert len(encode(long)) > len(encode(short))
    for order in ((short, long), (long, short)):
        asking = talk(Scripted(*({m.client: m} for m in order)))
        for message in order:
            asking.exchange(Report(3), [message.client], None)
        (sent,) = asking.sent.values()
        assert sent.bytes == len(encode(long))
        assert sorted(asking.seen) == [0, 1]


def test_what_the_test_set_says_leaves_no_site() -> None:
    asking = talk(Scripted({3: report(3)}))
    assert list(asking.exchange(Report(3), [3], None)) == [3]
    assert asking.sent == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"points": 0}, "reports what cannot be"),
        ({"weight": 0.0}, "reports what cannot be"),
        ({"loss": -0.1}, "reports what cannot be"),
        ({"loss": 1e300}, "reports what cannot be"),
        ({"score": -1.0}, "reports what cannot be"),
        ({"score": 4.1}, "reports what cannot be"),
        ({"points": 5}, "reports of 5 points, and has 4"),
        ({"weight": 4.1}, "reports of points that weigh 4.1, and has 4"),
    ],
)
def test_reports_that_cannot_be_are_refused(change: dict[str, Any], words: str) -> None:
    values = {**report(0).values}
    _check_report(values, CrossEntropy(3), (4, 4.0))
    with pytest.raises(FFGBError, match=words):
        _check_report({**values, **change}, CrossEntropy(3), (4, 4.0))


def test_a_squared_error_may_be_larger_than_the_number_of_rows() -> None:
    _check_report({**report(0).values, "score": 1e6}, Square(), (4, 4.0))
