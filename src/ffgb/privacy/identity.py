"""Who a client is to the others: the secret that its keys come from, its signature, and whom it trusts."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Participant:
    """A site in the list of a run: its name, and its registered public key (DER; empty in a simulation)."""

    name: str
    registered: bytes = b""


class Identity(ABC):
    """What a client needs to take part in secure totals, besides its rows."""

    @abstractmethod
    def secret(self, use: bytes) -> bytes:
        """32 bytes for one use, the same each time, which no one else can know."""

    @abstractmethod
    def sign(self, words: bytes) -> bytes:
        """A signature by the registered key."""

    @abstractmethod
    def check(self, participants: Mapping[str, bytes], threshold: int) -> None:
        """Raise an FFGBError if this client does not want to add its numbers to those of these: names and registered
        keys."""

    @abstractmethod
    def reopens(self) -> bool:
        """Has its owner agreed to give away the masks of one question, if its total is impossible?"""

    @abstractmethod
    def once(self, name: bytes, said: bytes) -> bool:
        """Has nothing else been said of `name` before, by any process that is this client?  From now on this has."""

    @property
    @abstractmethod
    def private(self) -> bool:
        """Nothing leaves this client without noise."""

    @property
    @abstractmethod
    def colluders(self) -> int:
        """Participants that may tell the server their shares of the noise."""

    rows_of_a_unit: int
    """Rows that one unit of privacy (a patient) has at most, at all sites together."""

    @abstractmethod
    def spend(self, what: str, question: bytes, mu: float, rows: int) -> None:
        """Take the price of an answer from this client's budget, once; an FFGBError if not enough is left.

        `mu` is the price for so many rows together.
        """

    @abstractmethod
    def verify(self, participant: Participant, signature: bytes, words: bytes) -> None:
        """Raise an FFGBError unless a participant has signed these words."""


@final
@dataclass(frozen=True)
class Simulated(Identity):
    """A client of a simulation: its secret is no secret.  Masks can be tried and measured so; they protect no one."""

    name: str
    rows_of_a_unit: int = 1

    def secret(self, use: bytes) -> bytes:
        return hashlib.sha256(b"ffgb simulation" + self.name.encode() + b"/" + use).digest()

    def sign(self, words: bytes) -> bytes:
        return b""

    def check(self, participants: Mapping[str, bytes], threshold: int) -> None:
        pass

    def reopens(self) -> bool:
        return True

    def once(self, name: bytes, said: bytes) -> bool:
        return True  # within a process `Secured` remembers it itself

    @property
    def private(self) -> bool:
        return False

    @property
    def colluders(self) -> int:
        return 0

    def spend(self, what: str, question: bytes, mu: float, rows: int) -> None:
        pass  # the server of a simulation keeps the accounts of all

    def verify(self, participant: Participant, signature: bytes, words: bytes) -> None:
        pass
