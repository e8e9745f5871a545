"""An engine whose clients' answers go wrong on their way, as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves

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


def asked_about(client: int, question: str, change: Callable[[Message], Message]) -> Fault:
    """One client's answers to one question are changed."""

    def fault(asked: Message, i: int, answer: bytes) -> bytes:
        return encode(change(decode(answer))) if i == client and is_about(asked, question) else answer

    return fault


def is_about(message: Message, question: str) -> bool:
    """Does a message ask this question?"""
    return what_leaves(message) == f"question {question}"


def in_set_up(message: Message) -> bool:
    """Is it a question that is asked before training?"""
    return message.kind == "question" and message.round < 0


def begins(message: Message) -> bool:
    """Is it what a round begins with: an increment, or the gradient, is asked for?"""
    return message.kind == "train" or is_about(message, "GradientOf")


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
