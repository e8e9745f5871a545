"""Damaged messages about masks, both ways: refused in a sentence, and no total that is not that of honest parts.

    FFGB_FUZZ=100000 pytest tests/federation/test_masked_fuzz.py

changes so many messages in place of a few thousand; FFGB_FUZZ_SEED=1 takes others.

One thing cannot be told from the truth: a masked part that a site has changed by itself is its part.  The total is then
off by what it has added, and by nothing else.  The same holds for the seeds of a site that lies about them and then is
missing: a mask is left in the total, which is random numbers; bounds on totals notice that.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ffgb.core.moments import MomentsOf
from ffgb.core.weighting import Weighting
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from ffgb.federation.conversation import Conversation
from ffgb.federation.host import Holding
from ffgb.federation.masked import ImpossibleError, Masked, Whole, _check_bounds, checked
from ffgb.federation.participants import Participants
from ffgb.privacy.secured import Secured
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.masking import Reopen
from ffgb.protocol.messages import Asked, read
from tests.federation.masking import IN_TOTALS
from tests.federation.test_masked import SILENT, introduced, small
from tests.privacy.test_secured import RUN, Federation, travelled
from tests.protocol.test_codec_fuzz import STRANGE, damaged

COUNT, SEED = int(os.environ.get("FFGB_FUZZ", "3000")), int(os.environ.get("FFGB_FUZZ_SEED", "0"))
CLIENTS, LIAR = 4, 1
QUESTION = MomentsOf(Flatten(3), np.zeros(3), np.full(3, 16.0))
MAIN = {"introduction": "key", "roster": "ready", "prepare": "prepared", "question": "masked", "unmask": "shares"}
"""Kinds of messages, and of their answers."""
MODULES = ("masks.py", "secured.py", "tolerance.py", "shares.py", "masking.py", "ciphers.py", "hidden.py")


def changed(rng: np.random.Generator, data: bytes) -> bytes:
    """A sound message, with other values or other bytes in an array: what someone could send that means harm."""
    message = decode(data)
    tensors, values = {name: a.copy() for name, a in message.tensors.items()}, dict(message.values)
    if tensors and (rng.random() < 0.7 or not values):
        name = list(tensors)[int(rng.integers(len(tensors)))]
        flat = tensors[name].reshape(-1).view(np.uint8)
        match int(rng.integers(4)):
            case 0:
                flat[int(rng.integers(len(flat)))] ^= 1 << int(rng.integers(8))
            case 1:
                flat[:] = np.frombuffer(rng.bytes(len(flat)), np.uint8)
            case 2:
                flat[:] = int(rng.integers(256))
            case _:
                tensors[name] = np.roll(tensors[name], 1, axis=0)
    elif values:
        key = list(values)[int(rng.integers(len(values)))]
        values[key] = other(rng, values[key])
    return encode(replace(message, tensors=tensors, values=values))


def other(rng: np.random.Generator, value: Any) -> Any:
    """Another value: somewhere in it something strange, or something of the same kind."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        k = int(rng.integers(len(value)))
        choices = [[*value[:k], other(rng, value[k]), *value[k + 1 :]], value[:k], [*value, value[k]], value[::-1]]
        return choices[int(rng.integers(4))]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[int(rng.integers(len(value)))]
        return {**value, key: other(rng, value[key])}
    if type(value) is int and rng.random() < 0.6:
        return value + int(rng.integers(-3, 4))
    if isinstance(value, str) and value and rng.random() < 0.6:
        k = int(rng.integers(len(value)))
        return value[:k] + "0123456789abcdef"[int(rng.integers(16))] + value[k + 1 :]
    return STRANGE[int(rng.integers(len(STRANGE)))]


def composed(rng: np.random.Generator, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A message made of sound ones by someone who knows the protocol: other people's arrays and values, in their place.

    `pool` has messages of other senders, questions, kinds and runs.
    """
    message, other = decode(data), decode(pool[int(rng.integers(len(pool)))])
    tensors, values = {name: a.copy() for name, a in message.tensors.items()}, dict(message.values)
    name = list(tensors)[int(rng.integers(len(tensors)))] if tensors else ""
    match int(rng.integers(8)):
        case 0:  # all of another message, as if it were this one
            return encode(replace(other, client=message.client, round=message.round))
        case 1:
            tensors = {**tensors, **{n: a for n, a in other.tensors.items() if n in tensors or rng.random() < 0.2}}
        case 2:
            values = {**values, **{n: v for n, v in other.values.items() if n in values}}
        case 3:
            return encode(replace(message, kind=other.kind))
        case 4:
            return encode(replace(message, client=other.client, round=int(rng.integers(-1, 3))))
        case 5 if name:  # rows of keys, shares or boxes, each at another's place; or a sum that is off by a little
            tensors[name] = tensors[name][rng.permutation(len(tensors[name]))] + (rng.random() < 0.5)
        case 6 if name:
            shape = [(-1,), (1, *tensors[name].shape), (*tensors[name].shape, 1)][int(rng.integers(3))]
            array = tensors[name].reshape(shape)
            tensors[name] = array if rng.random() < 0.5 else array.astype(rng.choice(["int8", "int64", "float64"]))
        case _ if name:
            if rng.random() < 0.5:
                del tensors[name]
            else:
                tensors[name] = np.repeat(tensors[name], 2, axis=0)
    return encode(replace(message, tensors=tensors, values=values))


def bad(rng: np.random.Generator, originals: Sequence[bytes], count: int, pool: Sequence[bytes]) -> Iterator[bytes]:
    """Messages: half are damaged on the way, a quarter changed by whoever sent them, a quarter put together."""
    for k, data in enumerate(damaged(rng, list(originals), count // 2)):
        yield data
        original = originals[int(rng.integers(len(originals)))]
        try:
            data = changed(rng, original) if k % 2 else composed(rng, original, pool)
        except (TypeError, ValueError):  # some numbers have no place in JSON, and some arrays do not fit
            continue
        if data != original:
            yield data


# Answers to the server


class Written(Engine):
    """Honest clients, whose answers are written down; some answers are lost, and one may be another."""

    book: dict[bytes, dict[int, bytes]] = {}

    def __init__(self, lost: tuple[str, int] | None = None, lie: tuple[str, bytes] | None = None) -> None:
        self.lost, self.lie, self.sent = lost, lie, list[bytes]()

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        self.sent.append(data)
        written = Written.book.setdefault(data, {})
        if any(i not in written for i in clients):
            host = InProcess(small(CLIENTS, 5, 0))
            for before in self.sent:
                written.update(Written.book.setdefault(before, {}) | host.exchange(before, range(CLIENTS)))
                Written.book[before] = dict(written)
                written = Written.book[data]
            written.update(host.exchange(data, range(CLIENTS)))
        kind = decode(data).kind
        answers = {i: written[i] for i in clients if (kind, i) != self.lost}
        if self.lie is not None and self.lie[0] == kind and LIAR in answers:
            answers[LIAR] = self.lie[1]
        return answers

    def close(self, *, at_once: bool = False) -> None:
        pass


def total(engine: Engine) -> Whole:
    """The total of one question, from keys to unmasking."""
    conversation = Conversation(engine, Participants([5] * CLIENTS, minimum=CLIENTS - 1))
    masked = Masked(conversation)
    masked.run = "a run"
    asked = Asked(QUESTION, Weighting(5.0 * CLIENTS))

    def ask(sending: Any, clients: Sequence[int]) -> dict[int, Message]:
        return conversation.exchange(sending, clients, None, 1, failed={})

    found, others, _ = masked.total(asked, ask, range(CLIENTS), 2)
    if 0 not in found:
        raise FFGBError(f"{masked.silent(others)} did not answer")
    checked(QUESTION, found[0], strict=False)
    return found[0]


@cache
def honest(*came: int) -> dict[str, np.ndarray]:
    """The sum of what these clients would send in the open."""
    clients, parts = InProcess(small(CLIENTS, 5, 0)), []
    for i, data in clients.exchange(encode(Asked(QUESTION, Weighting(5.0 * CLIENTS)).message()), list(came)).items():
        assert i in came
        parts.append(decode(data).tensors)
    return {name: np.sum([part[name] for part in parts], axis=0) for name in QUESTION.sums}


def off_by(whole: Whole, original: bytes, lie: bytes) -> bool:
    """A total is that of the honest parts, and what the liar has added to its own."""
    said, lied = decode(original).tensors, decode(lie).tensors
    exact = honest(*whole.came)
    return all(
        np.array_equal(
            whole.sums[name].astype(np.uint64) - exact[name].astype(np.uint64),
            lied[name].astype(np.uint64) - said[name].astype(np.uint64),
        )
        for name in exact
    )


@pytest.mark.parametrize("kind", MAIN)
def test_damaged_answers_give_no_other_total(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ffgb")
    losses = [None, *((k, i) for k in ("prepare", "question", "unmask") for i in (LIAR, 3))]
    for lost in losses:  # whatever goes on without someone
        assert_exact(total(Written(lost)))
    engine = Written()
    total(engine)
    original = next(Written.book[data][LIAR] for data in engine.sent if decode(data).kind == kind)
    pool = [answer for written in Written.book.values() for answer in written.values()]
    rng, tried, outcomes, words = np.random.default_rng(SEED), 0, Counter[str](), list[str]()
    for lie in bad(rng, [original], COUNT // 10, pool):
        tried += 1
        lost = None if rng.random() < 0.5 else ("question", LIAR if kind == "prepare" and rng.random() < 0.5 else 3)
        try:
            whole = total(Written(lost, (kind, lie)))
        except ImpossibleError as error:
            outcomes["impossible"] += 1
            words.append(str(error))
            continue
        except FFGBError as error:
            outcomes["refused"] += 1
            words.append(str(error))
            continue
        if kind == "question" and LIAR in whole.came and decode(lie).tensors:
            outcomes["the liar's own part"] += 1
            assert off_by(whole, original, lie)
            continue
        outcomes["exact"] += 1
        if kind != "prepare" or lost != ("question", LIAR):
            assert_exact(whole)
        else:  # it has said wrong seeds, and is missing: bounds have not noticed
            outcomes["wrong seeds"] += not is_exact(whole)
    assert tried >= COUNT // 20
    assert all(
        any(named in why for named in ("client ", "the mask of ", "clients gave", "clients is")) for why in words
    )
    # everyone must be there when keys are exchanged; afterwards it goes on without the liar, or in spite of it
    early = kind in ("introduction", "roster")
    assert outcomes["refused" if early else "exact"] > COUNT // 100
    assert outcomes["wrong seeds"] <= tried // 50
    print(kind, tried, dict(outcomes))


def is_exact(whole: Whole) -> bool:
    exact = honest(*whole.came)
    return whole.rows == 5 * len(whole.came) and all(np.array_equal(whole.sums[n], exact[n]) for n in exact)


def assert_exact(whole: Whole) -> None:
    assert len(whole.came) >= CLIENTS - 1
    assert is_exact(whole)


# Messages to a client


@pytest.mark.parametrize("way", ["strict", "tolerant"])
def test_damaged_messages_to_clients_are_refused_in_a_sentence(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No crash, and nothing that is not masked, a key or a share, whatever a server sends."""
    caplog.set_level(logging.CRITICAL, "ffgb")
    minimum = None if way == "strict" else 3
    host, sent = introduced(minimum)
    originals = [data for data in sent if decode(data).kind in (*MAIN, *IN_TOTALS)]
    assert {decode(data).kind for data in originals} >= {"introduction", "roster", "question", "step"}
    run, number, *_ = decode(asked := next(d for d in sent if decode(d).kind == "question")).values["masks"]
    originals.append(encode(Reopen(run, number, hashlib.sha256(asked).hexdigest()).message()))
    pool = [*originals, *introduced(minimum)[1]]  # of another run, too
    rng, outcomes = np.random.default_rng([1, SEED]), Counter[str]()
    for tried, data in enumerate(bad(rng, originals, COUNT // 4, pool)):
        if tried % 200 == 199:
            host, _ = introduced(minimum)  # with what it had remembered
        try:
            answers = [decode(answer) for _, answer in host.answers(data, [0, 2])]
        except FFGBError:  # no message at all
            outcomes["no message"] += 1
            continue
        for answer in answers:
            outcomes[answer.kind] += 1
            assert answer.kind in SILENT | {"error", "seeds"}
            if answer.kind == "error":
                text = answer.values["text"]
                # arrays in a question that do not fit one another are found where they are used, not by masks
                assert not answer.values.get("defect") or not any(name in text for name in MODULES), text
                assert len(text) > 10
    print(way, dict(outcomes))
    assert outcomes["no message"] > COUNT // 20
    assert outcomes["error"] > COUNT // 40


@pytest.mark.parametrize("kind", ["introduction", "roster"])
def test_no_damaged_list_is_taken_by_sites_that_know_one_another(kind: str) -> None:
    """With registered keys and signatures: a client has masks with the very list and keys that all have signed."""
    federation = Federation(("north", "east", "south", "west"), 3)
    roll, sending = federation.introduced(), federation.introduction
    for client in federation.clients:
        client.answer(travelled(roll))
    digest = federation.clients[0]._runs[RUN].masks.roster.digest
    original = encode((sending if kind == "introduction" else roll).message())
    others = (Federation(("north", "east", "south", "west"), 3), Federation(("north", "east", "mars", "west"), 3))
    pool = [original, *(encode(each.message()) for o in others for each in (o.introduction, o.introduced()))]
    rng, outcomes = np.random.default_rng([2, SEED]), Counter[str]()
    for data in bad(rng, [original], COUNT // 10, pool):
        client = Secured(0, federation.sites["north"])
        try:
            message = decode(data)
            if kind == "roster":
                client.answer(travelled(sending))
            client.answer(read(message, None))  # type: ignore[arg-type]
            if kind == "introduction":
                client.answer(travelled(roll))
            outcomes["taken"] += 1
        except FFGBError:
            outcomes["refused"] += 1
        assert all(run.masks.roster.digest == digest for run in client._runs.values())
    print(kind, dict(outcomes))
    assert outcomes["refused"] > COUNT // 25


def test_what_is_changed_is_changed() -> None:
    rng = np.random.default_rng(0)
    engine = Written()
    total(engine)
    for data in engine.sent:
        assert sum(changed(rng, data) != data for _ in range(20)) > 10
    assert isinstance(small(1, 1, 0)[0], Holding)


@pytest.mark.parametrize(
    ("share", "rows", "value", "fine"),
    [
        (1.0, 30, 0.0, True),
        (1.0 + 1e-7, 30, 0.0, True),
        (1.0 + 1e-5, 30, 0.0, False),
        (0.0, 30, 0.0, False),
        (1.0, 3, 0.0, True),
        (1.0, 2, 0.0, False),
        (1.0, 30, 16.0, True),
        (1.0, 30, 16.001, False),
    ],
)
def test_totals_are_within_the_bounds_of_their_question(share: float, rows: int, value: float, fine: bool) -> None:
    question = MomentsOf(Flatten(1), np.zeros(1), np.full(1, 16.0))
    whole = {"mean": np.array([round(value / float(question.sums["mean"].unit[0]))]), "square": np.zeros(1, np.int64)}
    total: Any = SimpleNamespace(came=(0, 1, 2), rows=rows, share=share, sums=whole)
    if fine:
        _check_bounds(question, total, 1.0)
    else:
        with pytest.raises(FFGBError):
            _check_bounds(question, total, 1.0)
    if value > 16.0:
        _check_bounds(question, total, 2.0)
