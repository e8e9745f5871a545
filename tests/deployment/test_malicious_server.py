"""A server that asks real sites, with all their rules, for more than totals: each way that was found, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.core.gradients import GradientOf
from ffgb.core.moments import MomentsOf
from ffgb.core.weighting import Weighting
from ffgb.deployment.agreement import REPEATS
from ffgb.deployment.attendant import FAILURES
from ffgb.deployment.once import Once
from ffgb.deployment.policy import Policy
from ffgb.federation.client import Client
from ffgb.privacy.hidden import Hidden
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.masking import Masking, Reopen
from ffgb.protocol.messages import Asked, what_leaves
from tests.deployment.test_secure import JOB, Federation, tables

EAST = 100
"""The node of the site that is attacked."""


@final
class Attacked:
    """A site after an honest training, whose server goes on with messages of its own."""

    def __init__(self, folder: Path, policy: Policy | None = None, rounds: int = 1) -> None:
        self.federation = Federation(folder, tables(folder), {**JOB, "rounds": 2}, policy)
        self.federation.farewell = False  # a server need not say that a training is over
        self.out = folder / "run"
        self.federation.train(self.out, rounds=rounds)
        self.log = [(data, said) for site, data, said in self.federation.asked if site == "east" and "message" in data]
        self.schema = next(d["schema"] for site, d, _ in self.federation.asked if site == "east" and "schema" in d)
        self.number = 1000

    def find(self, kind: type) -> tuple[Message, Mapping[str, Any]]:
        """The message that asked a question of this kind."""
        return next(
            (decode(data["message"]), said)
            for data, said in self.log
            if what_leaves(decode(data["message"])) == f"question {kind.__name__}"
        )

    def say(self, data: bytes, said: Mapping[str, Any]) -> Message:
        """The site's answer to a message."""
        attendant = self.federation.attendants[EAST]
        answers, words = attendant.answer({"message": data, "schema": self.schema}, said)
        return decode(next(iter(answers.values()))) if answers else Message("refused", values={"text": words["failed"]})

    def ask(self, kind: type, change: Callable[[Asked], Asked]) -> Message:
        """Another question in place of one that was asked, with masks of its own."""
        message, said = self.find(kind)
        run = message.values["masks"][0]
        self.number += 1
        asked = Hidden(change(Asked.read(message, self.client.job)), Masking(run, self.number, ()))
        return self.say(encode(asked.message()), said)

    @property
    def client(self) -> Client:
        resident = self.federation.attendants[EAST].resident
        assert resident is not None
        found = resident.host.clients[0]
        assert isinstance(found, Client)
        return found

    def anew(self, training: str | None = None) -> None:
        """The site starts again, or another training begins; up to the first question of a round all is as it was."""
        self.federation.start(EAST, self.federation.attendants[EAST].site)
        for data, said in self.log:
            if decode(data["message"]).kind in ("introduction", "roster", "setup") and not said.get("survey"):
                assert self.say(data["message"], {**said, "training": training or said["training"]}).kind in (
                    *("key", "ready"),
                )


@pytest.mark.parametrize("training", [None, "another"])
def test_a_site_that_starts_anew_uses_no_mask_twice(training: str | None, tmp_path: Path) -> None:
    """Run, participants, number and question as before, and f another: the difference would be bare of masks."""
    attacked = Attacked(tmp_path)
    message, said = attacked.find(GradientOf)
    said = {**said, "training": training or said["training"]}
    attacked.anew(training)
    attacked.client.f[:, 0] += 1.0
    assert "its masks are not used twice" in attacked.say(encode(message), said).values["text"]
    attacked.anew(training)
    assert attacked.say(encode(message), said).kind == "masked"


def test_a_gradient_is_asked_about_few_functions(tmp_path: Path) -> None:
    """The same question about one function after another: each is another answer."""
    attacked, came = Attacked(tmp_path), 0
    attacked.anew()
    for k in range(REPEATS + 2):
        attacked.client.f[:, 0] += 0.1 * k
        answer = attacked.ask(GradientOf, lambda asked: asked)
        came += answer.kind == "masked"
        assert answer.kind == "masked" or "has not agreed to another question GradientOf" in answer.values["text"]
    assert came == REPEATS


def test_failures_tell_little_about_a_single_site(tmp_path: Path) -> None:
    """Bounds that a server chooses: whether a number of this site is beyond it is no total."""
    attacked, said = Attacked(tmp_path), list[str]()
    for k in range(FAILURES + 3):
        size = 1e-9 * (k + 1)

        def small(asked: Asked, size: float = size) -> Asked:
            question = asked.question
            assert isinstance(question, MomentsOf)
            return replace(asked, question=replace(question, bound=size * np.ones_like(question.bound)))

        said.append(str(attacked.ask(MomentsOf, small).values["text"]))
    assert ["beyond its bound" in text for text in said] == [True] * (FAILURES + 1) + [False] * 2
    assert "each failure says something about its rows" in said[-1]
    assert "each failure says" in attacked.ask(GradientOf, lambda asked: asked).values["text"]


def test_large_sites_are_not_weighed_apart(tmp_path: Path) -> None:
    """The difference of two totals, in one of which no site weighs more than some rows, is the largest site's part."""
    attacked = Attacked(tmp_path)
    answer = attacked.ask(MomentsOf, lambda asked: replace(asked, weighting=Weighting(200.0, level=70.0)))
    assert "limits the weight of large clients" in answer.values["text"]
    assert attacked.ask(MomentsOf, lambda asked: asked).kind == "masked"


def test_masks_of_one_question_are_given_away_in_a_training(tmp_path: Path) -> None:
    """A server that says that a total is impossible, in one run after another."""
    attacked = Attacked(tmp_path, Policy(reopen=True))
    message, said = attacked.find(MomentsOf)
    attacked.federation.train(attacked.out, rounds=2)
    again, later = next(
        (decode(data["message"]), said)
        for site, data, said in reversed(attacked.federation.asked)
        if site == "east" and what_leaves(decode(data["message"])) == "question GradientOf"
    )
    kinds = []
    for one, words in ((message, said), (again, later), (message, said)):
        run, number, *_ = one.values["masks"]
        reopen = Reopen(run, number, hashlib.sha256(encode(one)).hexdigest())
        kinds.append(attacked.say(encode(reopen.message()), words))
    assert [answer.kind for answer in kinds] == ["seeds", "error", "seeds"]
    assert "gives away no others" in kinds[1].values["text"]


def test_a_survey_has_one_list_of_those_who_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server starts anew, and asks the same about the files, as if a site were missing this time."""
    monkeypatch.setattr("ffgb.deployment.server._training_of", lambda out: "one training")
    federation = Federation(tmp_path, tables(tmp_path), {**JOB, "rounds": 1}, Policy(missing_sites=True))

    def meddle(site: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        message = decode(data["message"]) if "message" in data else None
        if site != "east" or message is None or message.kind != "unmask":
            return data
        few = [i for i in message.values["arrived"] if i != 3]
        return {**data, "message": encode(replace(message, values={**message.values, "arrived": few}))}

    federation.train(tmp_path / "run", minimum=3)
    federation.meddle = meddle
    first = len(federation.sent)
    federation.train(tmp_path / "again", minimum=3)
    told = [m for site, m in federation.sent[first:] if site == "east" and m.kind in ("shares", "error")]
    assert [m.kind for m in told[:3]] == ["error"] * 3
    assert "in two ways whose parts" in told[0].values["text"]


def test_what_was_said_is_known_to_all_processes_and_after_a_power_cut(tmp_path: Path) -> None:
    first, second = Once(tmp_path / "home" / "masks"), Once(tmp_path / "home" / "masks")
    assert first(b"a", b"1")
    assert not second(b"a", b"2")
    assert second(b"b", b"2")
    assert first(b"b", b"2")
    assert not first(b"b", b"1")
    with first.file.open("ab") as file:
        file.write(b"12ab")  # a line that was cut short
    assert second(b"c", b"3")
    assert first(b"d", b"4")
    third = Once(first.file)
    for name, said in ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")):
        assert third(name, said)
        assert not third(name, b"other")
    assert first.file.stat().st_mode & 0o777 == 0o600
