"""What a round leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from ffgb.federation.state import State
from ffgb.protocol.codec import Message


@final
@dataclass(frozen=True, eq=False)
class Round:
    """The state after it, who took part, and what was measured."""

    state: State
    S: list[int]
    """Clients that took part to its end."""
    answered: list[int]
    """Clients whose answers made it."""
    reports: dict[int, Message]
    """Loss and score of f^{t+1}, of clients and parts of the test set."""
    gammas: list[float]
    measured: Mapping[str, float | None]
    over: bool = False
    """There was nothing left to learn but noise."""
