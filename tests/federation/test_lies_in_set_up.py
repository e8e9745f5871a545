"""A lie in an answer to a question of set-up is named, and its client left out of the run."""

from __future__ import annotations

import re

import pytest

from ffgb.errors import FFGBError
from ffgb.protocol.codec import Message
from tests.federation.lies import (
    LIAR,
    SETUP_LIES,
    asked_about,
    nothing_is_left,
    trained,
    warnings,
)


@pytest.mark.parametrize("lie", SETUP_LIES)
def test_a_lie_in_set_up_is_named_once_and_its_client_left_out(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, words = SETUP_LIES[lie]
    asked = []

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        if i == LIAR:
            asked.append((question.kind, question.round))
        return asked_about(kind, change)(question, i, answer)

    state, lines = trained(fault, "breast_cancer", 10)
    assert {*asked} == {("question", -1)}  # and nothing since
    (said,) = warnings(caplog)
    assert re.match("client 0 is left out of the run: it sent (a part that|what) is refused: ", said)
    assert re.search(words, said)
    nothing_is_left(state, lines, "breast_cancer", 10, kind)
    assert all(line["absent"] == ["0"] and line["participants"] == 9 for line in lines)
    assert all(names == ["0"] for names in lines[0]["setup_absent"].values())
    assert any(question.endswith(kind) for question in lines[0]["setup_absent"])
    assert "setup_absent" not in lines[1]


@pytest.mark.parametrize("lie", ["count", "mean", "magnitude", "a million rows", "Gram × 1000"])
def test_where_everyone_must_answer_the_run_ends_with_the_clients_name(lie: str) -> None:
    kind, change, words = SETUP_LIES[lie]
    with pytest.raises(FFGBError, match=f"client 0 sent (a part that|what) is refused: .*{words}"):
        trained(asked_about(kind, change), "breast_cancer", 10, None)
