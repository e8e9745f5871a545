"""What the server knows of an engine: it moves messages, and nothing of what they mean is known to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Engine(ABC):
    """Sends one message to several clients and returns their answers.

    The result of a run must not depend on the engine, on how many processes it uses, or on the order of answers.
    """

    @abstractmethod
    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        """The answer of each of these clients to a message."""

    def wait(self, clients: Sequence[int]) -> None:  # noqa: B027  (most have nothing to wait for)
        """Give those a chance who did not answer, before they are asked again."""

    def expect(self, size: float) -> None:  # noqa: B027  (in one process there is nothing to bound)
        """Each client's answer has at most so many bytes from now on: a network refuses more before it reads it."""

    def wire(self) -> dict[str, int]:
        """What a network has carried so far for all clients together, by the name it has in the metrics: all of it."""
        return {}

    @abstractmethod
    def close(self, *, at_once: bool = False) -> None:
        """Release what the engine holds; `at_once` without waiting for work in progress."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(at_once=kind is not None)
