"""What all messages to clients have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ffgb.protocol.codec import Expected, Message
from ffgb.protocol.job import Job

ALWAYS = ("resync", "error")
"""What may come in place of any answer."""
SETUP_ROUND = -1
"""The round of a question that is asked before training."""


class Sending(ABC):
    """A message to clients."""

    kind: ClassVar[str]
    before_training: ClassVar[bool] = False
    """It is sent once, before the first round."""
    after_training: ClassVar[bool] = False
    """It is sent once, when training has ended."""
    with_f: ClassVar[bool] = True
    """Only a client that has a job can answer it."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """The answer in a word or two: what leaves a client."""

    @abstractmethod
    def message(self) -> Message:
        """As it travels."""

    @staticmethod
    @abstractmethod
    def read(message: Message, job: Job | None) -> Sending:
        """From what has travelled; an FFGBError if it is none."""

    @abstractmethod
    def expected(self, job: Job | None) -> Expected:
        """What a client may answer."""
