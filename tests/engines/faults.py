"""An engine whose clients' answers go wrong on their way, as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ffgb.engines import Engine
from ffgb.engines.local import Holding, InProcess
from ffgb.wire import Message, decode, encode

Fault: TypeAlias = Callable[[Message, int, bytes], bytes | None]
"""From the question, the client and its answer to what arrives, or None if nothing does."""


class Faulty(Engine):
    """All clients in this process, and faults between them and the server."""

    def __init__(self, holdings: Sequence[Holding], fault: Fault) -> None:
        self.inner, self.fault = InProcess(holdings), fault

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        question = decode(data)
        answers = {i: self.fault(question, i, a) for i, a in self.inner.exchange(data, clients).items()}
        return {i: answer for i, answer in answers.items() if answer is not None}

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close()


def changed(client: int, kind: str, change: Callable[[Message], Message]) -> Fault:
    """One client's answers of one kind are changed."""

    def fault(question: Message, i: int, answer: bytes) -> bytes:
        message = decode(answer)
        return encode(change(message)) if i == client and message.kind == kind else answer

    return fault


def with_tensors(message: Message, **tensors: object) -> Message:
    """The message with these arrays changed, by a function of them or to what is given; None takes one away."""
    changed = dict(message.tensors)
    for name, value in tensors.items():
        key = name.replace("__", "/")
        if value is None:
            changed.pop(key)
        else:
            changed[key] = value(changed[key]) if callable(value) else value  # type: ignore[assignment]
    return replace(message, tensors=changed)


def with_values(message: Message, **values: object) -> Message:
    return replace(message, values={**message.values, **values})
