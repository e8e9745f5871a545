"""An impossible total: the run stops, and if all clients reopen that one question's masks, the culprit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.federation.host import Host
from ffgb.privacy.ciphers import new_key
from ffgb.privacy.identity import Simulated
from ffgb.privacy.masks import Masks
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.messages import Asked, what_leaves
from ffgb.runs import training
from ffgb.runs.config import Config
from ffgb.runs.holdings import make_holdings
from ffgb.runs.training import train
from tests.engines.faults import Faulty, with_tensors
from tests.federation.test_masked import run as small_run
from tests.federation.test_masked import small

LIAR = 2
HONEST = Host._part


def lying(question: str, change: Any) -> Any:
    """A client that sends what it likes: its own software does not check it."""

    def part(self: Host, i: int, sending: Any, answer: Any) -> dict[str, Array]:
        found = HONEST(self, i, sending, answer)
        if i == LIAR and isinstance(sending, Asked) and type(sending.question).__name__ == question:
            change(found)
        return found

    return part


def counts(part: dict[str, Array]) -> None:
    part["counts"] = part["counts"] + 40


def gram(part: dict[str, Array]) -> None:
    part["gram"] = -200 * part["gram"]


def square(part: dict[str, Array]) -> None:
    part["square"] = -50 * part["square"] - 2**55


LIES = {"Histogram": counts, "GramOf": gram, "GradientOf": square}


def run(monkeypatch: pytest.MonkeyPatch, minimum: int | None = None) -> None:
    made = make_holdings

    def with_minimum(*given: Any) -> Any:
        holdings, options = made(*given)
        return holdings, {**options, "minimum": minimum}

    with monkeypatch.context() as patch:
        patch.setattr(training, "make_holdings", with_minimum)
        train(Config(data="wine", clients=5, rounds=2, secure="on", map="steps", features=32), workers=0)


@pytest.mark.parametrize("minimum", [None, 4])
@pytest.mark.parametrize("question", LIES)
def test_the_culprit_is_named(question: str, minimum: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_part", lying(question, LIES[question]))
    with pytest.raises(FFGBError, match=r"is impossible .* client 2 has sent a part that is impossible") as caught:
        run(monkeypatch, minimum)
    assert all(f"client {i} has sent" not in str(caught.value) for i in (0, 1, 3, 4))


def test_who_has_not_agreed_to_it_does_not_reopen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_part", lying("Histogram", counts))
    monkeypatch.setattr(Simulated, "reopens", lambda self: self.name != "3")
    with pytest.raises(FFGBError, match="no one is named, since 3 does not reopen its masks"):
        run(monkeypatch, 5)


def test_masks_that_two_say_differently_name_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_part", lying("Histogram", counts))
    honest = Masks.seed
    asked: list[str] = []

    def seed(self: Masks, other: str, number: int) -> bytes:
        asked.append(self.name)
        return new_key() if self.name == "2" and other == "4" and len(asked) > before else honest(self, other, number)

    before = 10**9
    monkeypatch.setattr(Masks, "seed", seed)
    with pytest.raises(FFGBError, match="client 2 has sent"):
        run(monkeypatch)
    # once more, and the liar lies about its masks as well, when it is asked for them
    before, total = 0, len(asked)
    asked.clear()
    before = total - 5 * 4 - 5 * 4  # the last are those of the reopening, and of the parts that are sent again
    with pytest.raises(FFGBError, match="2 and 4 say different masks: one of them lies"):
        run(monkeypatch)


@pytest.mark.parametrize("minimum", [None, 4])
def test_a_liar_that_mends_its_part_when_it_is_to_be_seen_is_named(
    minimum: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps a hash of each part: who sends another one when masks are reopened is the liar."""
    lied: list[int] = []

    def fault(question: Message, i: int, answer: bytes) -> bytes:
        message = decode(answer)
        if i != LIAR or message.kind != "masked" or what_leaves(question) != "question GramOf" or lied:
            return answer
        lied.append(1)
        return encode(with_tensors(message, gram=message.tensors["gram"] + np.int32(2**30)))

    parts = small(5, 8, 0)
    with pytest.raises(FFGBError, match="2 sends another part than before"):
        small_run(Faulty(parts, fault), parts, secure=True, minimum=minimum)
