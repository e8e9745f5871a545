"""A client's side of secure totals: whom it trusts, and what it refuses whatever a server says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import pytest
from scipy.stats import chi2

from ffgb.core.questions import Sum
from ffgb.errors import FFGBError

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ffgb.privacy.ciphers import check_signature, derived, new_key, public_of, signed
from ffgb.privacy.identity import Identity, Participant, Simulated
from ffgb.privacy.masks import MaskedSum, add_masked, sign_of
from ffgb.privacy.secured import Secured, words_to_sign
from ffgb.privacy.tolerance import BOX
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.masking import Group, Introduce, Masking, Prepare, Reopen, Roll, Tie, Ties, Unmask

Array = np.ndarray
SUMS = {"x": Sum((4,), 100.0, kind="count")}
RUN = "run 1"


@final
@dataclass(frozen=True)
class Registered(Identity):
    """A site with a registered key on the curve P-256, and a list of the keys of those it knows."""

    name: str
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    seed: bytes = field(default_factory=new_key)
    known: dict[str, bytes] = field(default_factory=dict)
    written: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        der: bytes = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return der

    def secret(self, use: bytes) -> bytes:
        return derived(self.seed, use)

    def sign(self, words: bytes) -> bytes:
        return signed(self.key, words)

    def check(self, participants: Mapping[str, bytes], threshold: int) -> None:
        for name, key in participants.items():
            if self.known.get(name) != key:
                raise FFGBError(f"{name} is not among the participants that {self.name} knows")

    def reopens(self) -> bool:
        return False

    def once(self, name: bytes, said: bytes) -> bool:
        return self.written.setdefault(name, said) == said

    rows_of_a_unit: int = 1

    @property
    def private(self) -> bool:
        return False

    @property
    def colluders(self) -> int:
        return 1

    def spend(self, what: str, question: bytes, mu: float, rows: int) -> None:
        raise AssertionError("nothing here has a price")

    def verify(self, participant: Participant, signature: bytes, words: bytes) -> None:
        check_signature(participant.registered, signature, words, participant.name)


class Federation:
    """Sites that know one another, and an honest server between them."""

    def __init__(self, names: Sequence[str] = ("north", "east", "west"), threshold: int = 0, run: str = RUN) -> None:
        self.sites = {name: Registered(name) for name in names}
        self.known = {name: site.public for name, site in self.sites.items()}
        for site in self.sites.values():
            site.known.update(self.known)
        registered = tuple(key.hex() for key in self.known.values())
        self.group = Group(tuple(range(len(names))), tuple(names), registered, threshold)
        self.introduction = Introduce(run, (self.group,))
        self.clients = [Secured(i, self.sites[name]) for i, name in enumerate(names)]

    def introduced(self) -> Roll:
        return rolled([client.answer(travelled(self.introduction)) for client in self.clients])

    def ready(self) -> Federation:
        roll = self.introduced()
        for client in self.clients:
            assert client.answer(travelled(roll)).kind == "ready"
        return self

    def masked(self, i: int, value: int = 1, question: bytes = b"q", number: int = 0, **more: Any) -> Array:
        masking = Masking(more.pop("run", RUN), number, (), more.pop("without", ()))
        part = {"x": np.full(4, value)}
        return self.clients[i].hidden(part, SUMS, question, masking, 0).tensors["x"]


def rolled(keys: Sequence[Message], run: str = RUN) -> Roll:
    return Roll(
        run, (np.stack([key.tensors["key"] for key in keys]),), (tuple(key.values["signature"] for key in keys),)
    )


def travelled(sending: Any) -> Any:
    return type(sending).read(decode(encode(sending.message())), None)


def test_sites_that_know_one_another_agree_on_masks() -> None:
    federation = Federation().ready()
    sent = [federation.masked(i, 10**i) for i in range(3)]
    assert add_masked([{"x": x} for x in sent], SUMS)["x"].tolist() == [111] * 4
    assert not any(np.array_equal(x, np.full(4, 10**i)) for i, x in enumerate(sent))
    assert all(client.knows(RUN) and client.hides for client in federation.clients)
    assert not Secured(0, Simulated("0")).hides


# A secret of all sites


def tied(federation: Federation) -> Ties:
    return Ties(RUN, np.stack([c.answer(travelled(Tie(RUN))).tensors["tie"] for c in federation.clients]))


@pytest.mark.parametrize("sites", [3, 4, 7, 110])
def test_all_sites_have_a_secret_in_common(sites: int) -> None:
    federation = Federation([f"site {k}" for k in range(sites)]).ready()
    ties = tied(federation)
    assert all(client.common is None for client in federation.clients)
    assert {client.answer(travelled(ties)).kind for client in federation.clients} == {"ready"}
    known = [client.common or (b"", False) for client in federation.clients]
    assert sum(leads for _, leads in known) == 1
    (secret,) = {secret for secret, _ in known}
    assert len(secret) == 32
    # what travels tells only differences: all secrets of neighbours, changed alike, would have the same ties
    assert np.bitwise_xor.reduce(ties.ties).tolist() == [0] * 32
    assert secret not in {row.tobytes() for row in ties.ties}
    other = Federation([f"site {k}" for k in range(sites)]).ready() if sites < 5 else None
    if other is not None:
        other.clients[0].answer(tied(other))
        assert other.clients[0].common not in {(secret, False), (secret, True)}


def test_ties_that_were_changed_are_refused() -> None:
    federation = Federation(("a", "b", "c", "d")).ready()
    ties = tied(federation)
    for place in range(4):
        wrong = ties.ties.copy()
        wrong[place, 3] ^= 1
        with pytest.raises(FFGBError, match="does not fit together"):
            federation.clients[0].answer(Ties(RUN, wrong))
    assert federation.clients[0].answer(ties).kind == "ready"
    with pytest.raises(FFGBError, match="not as many ties"):
        federation.clients[0].answer(Ties(RUN, ties.ties[:3]))
    assert Secured(0, federation.sites["a"]).answer(Tie(RUN)).kind == "stranger"


# Keys


def test_a_forged_signature_is_refused() -> None:
    federation = Federation()
    roll = federation.introduced()
    stranger = Registered("stranger")
    words = words_to_sign(f"{RUN}/0", federation.group, roll.keys[0][1].tobytes())
    for signature in (stranger.sign(words), federation.sites["west"].sign(words), b"", b"nothing", bytes(72)):
        signatures = (roll.signatures[0][0], signature.hex(), roll.signatures[0][2])
        with pytest.raises(FFGBError, match="the signature of east is wrong"):
            federation.clients[0].answer(replace(roll, signatures=(signatures,)))
    assert not federation.clients[0].knows(RUN)
    assert federation.clients[0].answer(roll).kind == "ready"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_key_is_refused(place: int) -> None:
    """The server puts a key of its own in the place of a site's, with the site's signature, or another's."""
    federation = Federation()
    roll = federation.introduced()
    keys = roll.keys[0].copy()
    keys[place] = np.frombuffer(public_of(new_key()), np.uint8)
    for client in federation.clients:
        with pytest.raises(FFGBError, match=f"the signature of {federation.group.names[place]} is wrong"):
            client.answer(replace(roll, keys=(keys,)))


def test_keys_that_change_places_are_refused() -> None:
    federation = Federation()
    roll = federation.introduced()
    swapped = replace(roll, keys=(roll.keys[0][[1, 0, 2]],), signatures=((*roll.signatures[0][1::-1], "00"),))
    with pytest.raises(FFGBError, match="the signature of north is wrong"):
        federation.clients[2].answer(swapped)
    for keys in (roll.keys[0][:2], np.concatenate([roll.keys[0], roll.keys[0][:1]])):
        with pytest.raises(FFGBError, match="not as many keys as participants"):
            federation.clients[2].answer(replace(roll, keys=(keys,)))


def test_signatures_are_for_one_run_one_list_one_group() -> None:
    """A key that was signed for another run, threshold, list or group is no key for this one."""
    federation = Federation(("a", "b", "c", "d"))
    roll, group = federation.introduced(), federation.group
    key = roll.keys[0][1].tobytes()
    others = [
        words_to_sign("run 2/0", group, key),
        words_to_sign(f"{RUN}/1", group, key),
        words_to_sign(f"{RUN}/0", replace(group, threshold=3), key),
        words_to_sign(f"{RUN}/0", Group(group.numbers[:3], group.names[:3], group.registered[:3]), key),
        words_to_sign(f"{RUN}/0", replace(group, names=("a", "b", "d", "c")), key),
    ]
    for words in others:
        signatures = (roll.signatures[0][0], federation.sites["b"].sign(words).hex(), *roll.signatures[0][2:])
        with pytest.raises(FFGBError, match="the signature of b is wrong"):
            federation.clients[0].answer(replace(roll, signatures=(signatures,)))


def test_a_registered_key_of_another_kind_is_refused() -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    der = other.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(FFGBError, match="is no elliptic-curve key"):
        check_signature(der, b"", b"words", "north")
    with pytest.raises(FFGBError, match="the signature of north is wrong"):
        check_signature(b"no key", b"", b"words", "north")


# Lists


def test_a_stranger_in_the_list_is_refused() -> None:
    federation = Federation()
    group = replace(federation.group, registered=(*federation.group.registered[:2], Registered("west").public.hex()))
    with pytest.raises(FFGBError, match="west is not among the participants that north knows"):
        federation.clients[0].answer(Introduce(RUN, (group,)))
    assert not federation.clients[0].hides
    with pytest.raises(FFGBError, match="come before the list"):
        federation.clients[0].answer(federation_of_three().introduced())


def federation_of_three() -> Federation:
    return Federation()


def test_the_list_of_a_run_never_changes() -> None:
    names = ("a", "b", "c", "d")
    federation = Federation(names).ready()
    whole = federation.group
    fewer = Group(whole.numbers[:3], whole.names[:3], whole.registered[:3])
    for group in (fewer, replace(whole, threshold=3), replace(whole, numbers=(0, 2, 1, 3))):
        with pytest.raises(FFGBError, match="names other participants than before in the same run"):
            federation.clients[0].answer(Introduce(RUN, (group,)))
    assert federation.clients[0].answer(travelled(federation.introduction)).kind == "key"  # the same again
    assert federation.clients[0].knows(RUN)


def test_the_keys_of_a_run_never_change() -> None:
    """Not even to another that its holder has signed: the total over other masks would tell the difference."""
    federation = Federation().ready()
    again = Federation()
    again.sites["east"] = replace(federation.sites["east"], seed=new_key())
    again.clients = [federation.clients[0], Secured(1, again.sites["east"]), federation.clients[2]]
    again.introduction = federation.introduction
    with pytest.raises(FFGBError, match="other keys of the participants than before in the same run"):
        federation.clients[0].answer(again.introduced())


@pytest.mark.parametrize("N", [1, 2])
def test_two_sites_hide_nothing(N: int) -> None:
    federation = Federation(("a", "b")[:N])
    with pytest.raises(FFGBError, match="secure totals need 3"):
        federation.clients[0].answer(federation.introduction)


def test_who_is_not_in_the_list_has_no_part() -> None:
    with pytest.raises(FFGBError, match="this client is not among the participants"):
        Secured(9, Simulated("9")).answer(Federation().introduction)


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_a_threshold_that_protects_no_one_is_refused(threshold: int) -> None:
    with pytest.raises(FFGBError, match="protects no one"):
        Federation(("a", "b", "c", "d"), threshold).introduced()


# Questions


def test_a_question_comes_again_with_other_content() -> None:
    """The answer is the same bytes; another answer under the same mask is refused, also after an introduction again."""
    federation = Federation().ready()
    first = federation.masked(0, 5)
    np.testing.assert_array_equal(first, federation.masked(0, 5))
    roll = federation.introduced()
    federation.clients[0].answer(roll)
    with pytest.raises(FFGBError, match="its mask is not used twice"):
        federation.masked(0, 6)
    np.testing.assert_array_equal(first, federation.masked(0, 5))
    assert not np.array_equal(first, federation.masked(0, 5, b"another"))
    assert not np.array_equal(first, federation.masked(0, 5, b"q", 1))


def test_in_a_strict_run_everyone_answers() -> None:
    federation = Federation(("a", "b", "c", "d")).ready()
    with pytest.raises(FFGBError, match="a total over 3 of 4 participants"):
        federation.masked(0, without=(3,))
    for sending in (Prepare(RUN, 0), Unmask(RUN, 0, "00", (0, 1, 2), np.zeros((4, 4, BOX), np.uint8))):
        with pytest.raises(FFGBError, match="all participants must answer"):
            federation.clients[0].answer(sending)


def test_a_run_that_a_client_does_not_know() -> None:
    federation = Federation(("a", "b", "c", "d"), 3).ready()
    for sending in (Prepare("run 2", 0), Unmask("run 2", 0, "00", (0, 1, 2), np.zeros((4, 4, BOX), np.uint8))):
        assert federation.clients[0].answer(sending).kind == "stranger"
    assert not federation.clients[0].knows("run 2")


def tolerant() -> tuple[Federation, Array]:
    federation = Federation(("a", "b", "c", "d"), 3).ready()
    boxes = np.zeros((4, 4, BOX), np.uint8)
    for i, client in enumerate(federation.clients):
        boxes[:, i] = client.answer(travelled(Prepare(RUN, 0))).tensors["boxes"][0]
    for i in range(4):
        federation.masked(i)
    return federation, boxes


def unmask(arrived: Sequence[int], boxes: Array, number: int = 0) -> Unmask:
    sending: Unmask = travelled(Unmask(RUN, number, b"q".hex(), tuple(arrived), boxes))
    return sending


def test_a_tolerant_run_does_without_some() -> None:
    federation, boxes = tolerant()
    federation.masked(0, number=1, without=(3,))
    for without in ((2, 3), (0,)):
        with pytest.raises(FFGBError, match="has agreed to no fewer than 3, and only to those that it is in"):
            federation.masked(0, number=2, without=without)
    assert federation.clients[0].answer(unmask((0, 1, 2), boxes)).tensors["shares"].shape == (4, 32)
    for shape in ((3, 4, BOX), (4, 3, BOX)):
        with pytest.raises(FFGBError, match="hands back other boxes"):
            federation.clients[1].answer(unmask((0, 1, 2), np.zeros(shape, np.uint8)))


def test_an_introduction_again_forgets_no_list() -> None:
    """A server that introduces a site again, to the same run, hears no second share of its secrets."""
    federation, boxes = tolerant()
    federation.clients[0].answer(unmask((0, 1, 2), boxes))
    federation.clients[0].answer(federation.introduced())
    with pytest.raises(FFGBError, match="says in two ways whose parts have arrived"):
        federation.clients[0].answer(unmask((0, 1, 2, 3), boxes))
    with pytest.raises(FFGBError, match="the same number"):
        federation.masked(0, question=b"another")


def test_a_site_that_begins_anew_uses_no_mask_twice() -> None:
    """A server restarts a site, or begins another training, and repeats run, list, number and question to the byte.

    The keys of the run are the same, and the difference of two answers would be that of two parts, without masks.
    """
    federation, boxes = tolerant()
    client, roll = Secured(0, federation.sites["a"]), federation.introduced()
    federation.clients[0].answer(unmask((0, 1, 2), boxes))
    client.answer(federation.introduction)
    client.answer(roll)
    federation.clients[0] = client
    again = "its masks are not used twice"
    federation.masked(0, 1)
    with pytest.raises(FFGBError, match=again):
        client.answer(unmask((0, 1, 2, 3), boxes))
    for value, question in ((2, b"q"), (1, b"another")):
        client = federation.clients[0] = Secured(0, federation.sites["a"])
        client.answer(federation.introduction)
        client.answer(roll)
        with pytest.raises(FFGBError, match=again):
            federation.masked(0, value, question)


def test_a_process_that_goes_on_remembers() -> None:
    """Snapshots have what has left, and which lists were told: another process refuses what the first would."""
    federation, boxes = tolerant()
    federation.clients[0].answer(unmask((0, 1, 2), boxes))
    roll, memory = federation.introduced(), decode(encode(federation.clients[0].memory()))
    for early in (True, False):
        client = Secured(0, federation.sites["a"])
        if early:
            client.recall(memory)
        client.answer(federation.introduction)
        client.answer(roll)
        if not early:
            client.recall(memory)
        federation.clients[0] = client
        with pytest.raises(FFGBError, match="its mask is not used twice"):
            federation.masked(0, 2)
        with pytest.raises(FFGBError, match="says in two ways whose parts have arrived"):
            client.answer(unmask((0, 1, 2, 3), boxes))
        assert encode(client.memory()) == encode(memory)
        client.answer(unmask((0, 1, 2), boxes))


def test_reopening_opens_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives two questions the same number sees one of them when masks are reopened, and no second."""
    monkeypatch.setattr(Registered, "reopens", lambda self: True)
    federation = Federation().ready()
    sent = {question: federation.masked(0, 7, question) for question in (b"q", b"another")}
    seeds = federation.clients[0].answer(travelled(Reopen(RUN, 0, b"q".hex()))).tensors["seeds"]
    opened = {}
    for question, x in sent.items():
        whole = MaskedSum(SUMS)
        whole.add({"x": x})
        whole.unmask([(seeds[k].tobytes(), sign_of("north", other)) for k, other in ((1, "east"), (2, "west"))])
        opened[question] = whole.total["x"].tolist()
    assert opened[b"q"] == [7] * 4
    assert opened[b"another"] != [7] * 4
    memory, roll = decode(encode(federation.clients[0].memory())), federation.introduced()
    again = Secured(0, federation.sites["north"])
    again.recall(memory)
    again.answer(federation.introduction)
    again.answer(roll)
    for client in (federation.clients[0], again):  # also after a restart
        with pytest.raises(FFGBError, match="or a second one"):
            client.answer(travelled(Reopen(RUN, 0, b"another".hex())))
        with pytest.raises(FFGBError, match="nothing more is answered"):
            client.hidden({"x": np.zeros(4)}, SUMS, b"a third", Masking(RUN, 1, ()), 0)


def test_what_leaves_is_uniform() -> None:
    """Zeros under masks, strict and with dropouts: bytes are as random ones."""
    for threshold in (0, 3):
        federation = Federation(("a", "b", "c", "d"), threshold).ready()
        sums, part = {"x": Sum((50_000,), 1.0)}, {"x": np.zeros(50_000, np.int64)}
        sent = federation.clients[0].hidden(part, sums, b"q", Masking(RUN, 0, ()), 0).tensors["x"]
        counts = np.bincount(np.frombuffer(sent.tobytes(), np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-9, 255)


def test_words_to_sign_have_one_reading() -> None:
    """No two lists have the same words: parts are told apart by their lengths."""
    key = bytes(32)
    some = [
        Group((0, 1), ("a", "bc"), ("00", "11")),
        Group((0, 1), ("ab", "c"), ("00", "11")),
        Group((0, 1), ("a", "bc"), ("0011", "")),
        Group((0,), ("a",), ("00",)),
    ]
    words = {words_to_sign(run, group, key) for group in some for run in ("r", "r/0")}
    assert len(words) == 8
    assert all(len(w) == len(b"ffgb key for secure totals") + hashlib.sha256().digest_size for w in words)
