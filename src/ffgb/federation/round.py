"""What a round leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from ffgb.federation.state import State
from ffgb.privacy.reports import Scores
from ffgb.protocol.codec import Message


@final
@dataclass(frozen=True, eq=False)
class Delivered:
    """What came of an update: who has it, and how good f^{t+1} is.

    Clients report it one by one; under masks there are only scores of all together: at rows to train with, held out.
    """

    state: State
    came: list[int]
    reports: dict[int, Message] = field(default_factory=dict)
    scores: tuple[Scores | None, Scores | None] | None = None


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
    scores: tuple[Scores | None, Scores | None] | None = None
    """The same of all together, where single clients report nothing."""
