"""The host of several clients in one process: what it forgets when all of them together keep too much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, final

import pytest

from ffgb.federation import host as module
from ffgb.federation.host import Host
from ffgb.protocol.codec import Message, encode


@final
class Keeping:
    """A client whose features take so many bytes after each answer."""

    def __init__(self, size: int) -> None:
        self.points: Any = SimpleNamespace(cached=size)
        self.forgotten = 0

    def answer(self, sending: Any) -> Message:
        return Message("answer")

    def forget(self) -> None:
        self.forgotten += 1


def asked(host: Host, *clients: int) -> None:
    for i in clients:
        list(host.answers(encode(Message("a kind that is none")), [i]))


def test_the_client_that_was_not_asked_for_longest_forgets_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 100)
    host, clients = Host(), [Keeping(40) for _ in range(4)]
    host.clients.update(enumerate(clients))
    asked(host, 0, 1)
    assert [c.forgotten for c in clients] == [0, 0, 0, 0]
    asked(host, 2)  # 120 bytes: too many
    assert [c.forgotten for c in clients] == [1, 0, 0, 0]
    asked(host, 1, 3)
    assert [c.forgotten for c in clients] == [1, 0, 1, 0]
    clients[1].points.cached = 20
    asked(host, 1, 0)  # 20 + 40 + 40: as many as may be
    assert [c.forgotten for c in clients] == [1, 0, 1, 0]
    asked(host, 0)  # nothing is counted twice
    assert [c.forgotten for c in clients] == [1, 0, 1, 0]


def test_the_client_that_was_asked_keeps_its_features_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 100)
    host, clients = Host(), [Keeping(500), Keeping(500)]
    host.clients.update(enumerate(clients))
    asked(host, 0, 0, 1, 1)
    assert [c.forgotten for c in clients] == [1, 0]
