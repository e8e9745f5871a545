"""Totals come out although sites die: with any dropouts, against a second implementation, and against lies."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.questions import Sum
from ffgb.errors import FFGBError

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from ffgb.privacy.ciphers import KEY, derived, public_of
from ffgb.privacy.masks import MaskedSum, Masks, Roster, check_threshold
from ffgb.privacy.shares import joined, mark
from ffgb.privacy.tolerance import BATCH, NONE, Tolerance, Unmasking, shapes
from tests.privacy import papers

Array = np.ndarray
SUMS = {
    "a": Sum((3,), 100.0, kind="count"),
    "b": Sum((2, 2), 1.0, 32),
    "c": Sum((5,), 1.0),
}
QUESTION = b"the question"


class Sites:
    """Some sites and their server."""

    def __init__(self, N: int, t: int, seed: int = 0) -> None:
        self.names = [f"site {chr(97 + (7 * i) % 26)}{i}" for i in range(N)]
        self.keys = [hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(N)]
        self.publics = tuple(map(public_of, self.keys))
        self.roster = Roster("a run", tuple(self.names), self.publics, t)
        self.masks = [Masks(name, key, self.roster) for name, key in zip(self.names, self.keys, strict=True)]
        self.sites = [Tolerance(key, m) for key, m in zip(self.keys, self.masks, strict=True)]
        self.unmasking = Unmasking(self.roster, {})

    def prepare(self, sites: Collection[int], batch: int = 0) -> None:
        self.unmasking.prepared.clear()
        self.unmasking.prepared.update({i: self.sites[i].prepared(batch) for i in sites})

    def part(self, i: int, part: Mapping[str, Array], number: int = 0, without: Collection[int] = ()) -> Any:
        own = self.sites[i].own_mask(number, self.masks[i].label(QUESTION), without)
        return self.masks[i].masked(part, SUMS, QUESTION, number, own, [self.names[j] for j in without])

    def shares(self, i: int, arrived: Sequence[int], number: int = 0, boxes: Array | None = None) -> Array:
        boxes = self.unmasking.boxes(number) if boxes is None else boxes
        return self.sites[i].shares(number, self.masks[i].label(QUESTION), arrived, boxes[i])

    def unmasked(self, sent: Mapping[int, Any], shares: Mapping[int, Array], number: int = 0) -> dict[str, Array]:
        whole = MaskedSum(SUMS)
        for part in sent.values():
            whole.add(part)
        label = self.masks[0].label(QUESTION)
        whole.unmask(self.unmasking.streams(number, label, sorted(sent), shares))
        return whole.total


def a_part(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "a": rng.integers(-9, 9, 3),
        "b": rng.integers(-(2**20), 2**20, (2, 2)).astype(np.int32),
        "c": rng.integers(-(2**50), 2**50, 5),
    }


def added(parts: Mapping[int, Mapping[str, Array]], sites: Collection[int]) -> dict[str, Array]:
    return {name: np.sum([parts[i][name].astype(np.int64) for i in sites], axis=0) for name in SUMS}


def equal(a: Mapping[str, Array], b: Mapping[str, Array]) -> None:
    for name in SUMS:
        np.testing.assert_array_equal(a[name], b[name])


@settings(max_examples=60)
@given(N=st.integers(3, 9), data=st.data())
def test_the_total_of_those_who_answer_comes_out(N: int, data: st.DataObject) -> None:
    """Whoever shares no secrets, sends no part, or dies before it gives its shares: as long as t are left."""
    t = data.draw(st.integers(max(3, N // 2 + 1), N), "t")
    order = data.draw(st.permutations(range(N)), "order")
    prepared, came, gave = sorted(data.draw(st.lists(st.integers(t, N), min_size=3, max_size=3), "left"), reverse=True)
    number = data.draw(st.integers(0, 3 * BATCH), "number")
    sites, rng = Sites(N, t), np.random.default_rng(N)
    sites.prepare(order[:prepared], number // BATCH)
    parts = {i: a_part(rng) for i in range(N)}
    sent = {i: sites.part(i, parts[i], number, order[prepared:]) for i in order[:came]}
    shares = {i: sites.shares(i, sorted(order[:came]), number) for i in order[:gave]}
    equal(sites.unmasked(sent, shares, number), added(parts, order[:came]))


@pytest.mark.parametrize(("N", "t"), [(3, 3), (5, 3), (7, 5)])
@pytest.mark.parametrize("number", [0, BATCH + 5])
def test_a_second_implementation_agrees_byte_for_byte(N: int, t: int, number: int) -> None:
    ours, rng = Sites(N, t), np.random.default_rng(1)
    theirs = [papers.Site(i, ours.keys[i], "a run", ours.names, ours.publics, t) for i in range(N)]
    ours.prepare(range(N), number // BATCH)
    parts = {i: a_part(rng) for i in range(N)}
    order, widths = sorted(SUMS), [(SUMS[n].shape, SUMS[n].bits) for n in sorted(SUMS)]
    flat = [(int(np.prod(shape)), bits // 8) for shape, bits in widths]
    k, sent = number % BATCH, {}
    for i, site in enumerate(theirs):
        said = ours.unmasking.prepared[i]
        for j in range(N):
            if j != i:
                assert said["boxes"][k, j].tobytes() == site.box(number, j)
        keys = [site.secret(kind, number).to_bytes(32, "big") for kind in (b"own", b"seeds")]
        for which, key in enumerate(keys):
            assert said["marks"][k, which].tobytes() == hashlib.sha256(b"ffgb share" + key).digest()
        stream = papers.prg(papers.hkdf(keys[1], b"ffgb seeds"), N * 32)
        for j in range(N):
            plain = bytes(32) if j == i else site.seed(j, number)
            hidden = said["seeds"][k, j].tobytes()
            pad = stream[32 * j : 32 * j + 32]
            assert hidden == bytes((a + b) % 256 for a, b in zip(plain, pad, strict=True))
        sent[i] = ours.part(i, parts[i], number)
        mask = site.mask(QUESTION, number, flat)
        for name, added_to in zip(order, mask, strict=True):
            bits = SUMS[name].bits
            wrapped = [(int(v) + m) % 2**bits for v, m in zip(parts[i][name].ravel(), added_to, strict=True)]
            assert [int(v) % 2**bits for v in sent[i][name].ravel()] == wrapped
    # the last site is lost: the server's side, from the paper
    came = list(range(max(t, N - 1)))
    shares = {i: ours.shares(i, came, number) for i in came[:t]}
    total = [[0] * count for count, _ in flat]
    for i in came:
        for array, name in zip(total, order, strict=True):
            for n, v in enumerate(sent[i][name].ravel()):
                array[n] += int(v)
    for i in range(N):
        secret = papers.interpolated({h + 1: int.from_bytes(shares[h][i].tobytes(), "big") for h in shares})
        assert secret == theirs[i].secret(b"own" if i in came else b"seeds", number)
        if i in came:
            papers.add(total, papers.hkdf(secret.to_bytes(32, "big"), theirs[i].label(QUESTION)), -1, flat)
            continue
        for j in came:
            sign = 1 if ours.names[j] < ours.names[i] else -1
            papers.add(total, papers.hkdf(theirs[i].seed(j, number), theirs[i].label(QUESTION)), -sign, flat)
    expected, found = added(parts, came), ours.unmasked({i: sent[i] for i in came}, shares, number)
    for array, name in zip(total, order, strict=True):
        bits = SUMS[name].bits
        assert [v % 2**bits for v in array] == [int(v) % 2**bits for v in expected[name].ravel()]
    equal(found, expected)


def test_before_it_is_unmasked_a_total_is_noise_and_so_is_one_of_too_few_shares() -> None:
    sites = Sites(5, 4)
    sites.prepare(range(5))
    parts = {i: {n: np.zeros(each.shape, each.dtype) for n, each in SUMS.items()} for i in range(5)}
    sent = {i: sites.part(i, parts[i]) for i in range(5)}
    whole = MaskedSum(SUMS)
    for part in sent.values():
        whole.add(part)
    assert all(array.any() for array in whole.total.values())
    shares = {i: sites.shares(i, range(5)) for i in range(5)}
    few = {i: shares[i] for i in range(3)}
    with pytest.raises(FFGBError, match="the shares of 3 sites do not give the mask of"):
        sites.unmasked(sent, few)
    own = joined({h + 1: few[h][0].tobytes() for h in few})
    assert mark(own) != sites.unmasking.prepared[0]["marks"][0, 0].tobytes()
    equal(sites.unmasked(sent, shares), parts[0])


# What a site refuses


def ready(N: int = 5, t: int = 4) -> Sites:
    sites, rng = Sites(N, t), np.random.default_rng(0)
    sites.prepare(range(N))
    for i in range(N):
        sites.part(i, a_part(rng))
    return sites


@pytest.mark.parametrize(
    ("arrived", "words"),
    [
        ((0, 1, 2), "a total over 3 sites, and this site has agreed to no fewer than 4"),
        ((1, 2, 3, 4), "has not answered"),
        ((0, 1, 2, 2), "a total over 4 sites"),
        ((0, 1, 2, 5), "a total over 4 sites"),
        ((0, 1, 2, -1), "a total over 4 sites"),
        ((), "has not answered"),
    ],
)
def test_a_list_that_is_refused(arrived: tuple[int, ...], words: str) -> None:
    sites = ready()
    with pytest.raises(FFGBError, match=words):
        sites.shares(0, arrived)
    sites.shares(0, (0, 1, 2, 4))  # a list that was refused does not count


def test_a_site_says_its_shares_once() -> None:
    sites = ready()
    first = sites.shares(0, (0, 1, 2, 4))
    np.testing.assert_array_equal(first, sites.shares(0, (4, 2, 1, 0)))  # a message that is repeated
    with pytest.raises(FFGBError, match="says in two ways whose parts have arrived"):
        sites.shares(0, (0, 1, 2, 3))
    with pytest.raises(FFGBError, match="says in two ways whose parts have arrived"):
        sites.shares(0, (0, 1, 2, 3, 4))


def test_a_question_that_was_not_answered_is_not_unmasked() -> None:
    sites = ready()
    boxes = sites.unmasking.boxes(0)[0]
    for number, question in ((1, QUESTION), (0, b"another")):
        with pytest.raises(FFGBError, match="has not answered"):
            sites.sites[0].shares(number, sites.masks[0].label(question), (0, 1, 2, 3), boxes)


def test_a_number_serves_for_one_question() -> None:
    sites = ready()
    sites.sites[0].own_mask(0, sites.masks[0].label(QUESTION))
    with pytest.raises(FFGBError, match="gives two questions the same number"):
        sites.sites[0].own_mask(0, sites.masks[0].label(b"another"))


@pytest.mark.parametrize(("t", "N"), [(2, 3), (3, 6), (5, 10), (6, 5), (51, 101)])
def test_so_few_cannot_stand_for_all(t: int, N: int) -> None:
    with pytest.raises(FFGBError, match=r"protects no one|are for up to 100 sites"):
        check_threshold(t, N)


@pytest.mark.parametrize(("N", "t"), [(5, 3), (5, 4), (8, 5), (9, 7)])
def test_two_lists_tell_nothing_unless_sites_help(N: int, t: int) -> None:
    """A server that tells some sites that the part of one has arrived, and others that it is missing, needs 2t shares:
    all N, and one more from each of 2t − N sites that help it."""
    for helpers in (2 * t - N - 1, 2 * t - N):
        sites = ready(N, t)
        everyone, without = tuple(range(N)), tuple(range(1, N))
        own = {i: sites.shares(i, everyone) for i in range(t)}
        seeds = {i: sites.shares(i, without) for i in range(t, N)} if N - t and len(without) >= t else {}
        for i in range(1, helpers + 1):  # it has told its first list, and tells what it knows besides
            sites.sites[i].said.clear()
            seeds[i] = sites.shares(i, without)
        bare = len(seeds) >= t
        assert bare == (helpers == 2 * t - N)
        marks = sites.unmasking.prepared[0]["marks"][0]
        assert mark(joined({h + 1: own[h][0].tobytes() for h in own})) == marks[0].tobytes()
        key = joined({h + 1: seeds[h][0].tobytes() for h in list(seeds)[:t]})
        assert (mark(key) == marks[1].tobytes()) == bare


def test_a_total_over_fewer_than_t_does_not_come_out() -> None:
    """A server asks seven sites without three others, and says that those three have arrived and three of the seven
    are missing.  The other three hear the question with another list.  Seven lists agree, and four sites would be bare.
    """
    N, t, few = 10, 7, (0, 1, 2, 3)
    sites, rng = Sites(N, t), np.random.default_rng(0)
    sites.prepare(range(N))
    parts = {i: a_part(rng) for i in range(N)}
    sent = {i: sites.part(i, parts[i], without=(7, 8, 9)) for i in range(7)}
    other, said, shares = b"another question", (0, 1, 2, 3, 7, 8, 9), dict[int, Array]()
    for i in (7, 8, 9):
        sites.sites[i].own_mask(0, sites.masks[i].label(other), (4, 5, 6))
    boxes = sites.unmasking.boxes(0)
    for i in said:
        label = sites.masks[i].label(QUESTION if i < 7 else other)
        with suppress(FFGBError):
            shares[i] = sites.sites[i].shares(0, label, said, boxes[i])
    assert sorted(shares) == [7, 8, 9]
    with pytest.raises(FFGBError, match="do not give the mask"):
        sites.unmasked({i: sent[i] for i in few}, shares)
    honest = {i: sites.shares(i, range(7)) for i in range(7)}
    assert all((given[7:] == NONE).all() for given in honest.values())
    for i in (7, 8, 9):
        del sites.unmasking.prepared[i]
    equal(sites.unmasked(sent, honest), added(parts, range(7)))


# Lies


def shared(N: int = 7, t: int = 4) -> tuple[Sites, dict[int, Any], dict[int, Any], dict[int, Array]]:
    sites, rng = Sites(N, t), np.random.default_rng(3)
    sites.prepare(range(N))
    parts = {i: a_part(rng) for i in range(N)}
    sent = {i: sites.part(i, parts[i]) for i in range(N - 1)}
    return sites, parts, sent, {i: sites.shares(i, range(N - 1)) for i in range(N - 1)}


@pytest.mark.parametrize("liars", [(0,), (3,), (5,), (0, 5), (1, 2)])
@pytest.mark.parametrize("lie", ["noise", "none", "too large"])
def test_wrong_shares_are_repaired_and_named(
    liars: tuple[int, ...], lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    sites, parts, sent, shares = shared()
    for liar in liars:
        wrong = np.random.default_rng(liar).integers(0, 127, shares[liar].shape, np.uint8)
        shares[liar] = {"noise": wrong, "none": np.full_like(wrong, NONE), "too large": wrong | 0x80}[lie]
    with caplog.at_level(logging.WARNING, "ffgb"):
        equal(sites.unmasked(sent, shares), added(parts, range(6)))
    if lie != "none":
        named = {record.getMessage().split(" sent a wrong share")[0] for record in caplog.records}
        assert named <= {sites.names[liar] for liar in liars}
        assert named or min(liars) > 3  # the first four are right: no one has looked at the others


def test_more_liars_than_can_be_told_apart_give_no_total() -> None:
    sites, _, sent, shares = shared()
    for liar in (0, 1, 2):
        shares[liar] = np.zeros_like(shares[liar])
    with pytest.raises(FFGBError, match=r"do not give the mask of .* away: it has shared it wrongly, or several"):
        sites.unmasked(sent, shares)


def test_a_site_that_shares_wrongly_is_named() -> None:
    sites, _, sent, shares = shared()
    for arrays in shares.values():
        arrays[2] = np.random.default_rng(int(arrays[0, 0])).integers(0, 127, KEY, np.uint8)
    with pytest.raises(FFGBError, match=f"do not give the mask of {sites.names[2]} away"):
        sites.unmasked(sent, shares)


def test_boxes_that_cannot_be_opened_silence_no_one() -> None:
    """One site's boxes are damaged: the others say the rest, and if too few of them could open it, it is named."""
    sites, rng = Sites(5, 3), np.random.default_rng(5)
    sites.prepare(range(5))
    parts = {i: a_part(rng) for i in range(5)}
    sent = {i: sites.part(i, parts[i]) for i in range(4)}
    boxes = sites.unmasking.boxes(0)
    boxes[:2, 3] ^= 1  # those of site 3 to sites 0 and 1
    shares = {i: sites.shares(i, range(4), boxes=boxes) for i in range(4)}
    assert (shares[0][3] == NONE).all()
    with pytest.raises(FFGBError, match=f"the shares of 2 sites do not give the mask of {sites.names[3]} away"):
        sites.unmasked(sent, shares)
    sites.sites[1].said.clear()
    shares[1] = sites.shares(1, range(4))
    equal(sites.unmasked(sent, shares), added(parts, range(4)))


def test_boxes_that_are_not_those_of_sites_are_refused() -> None:
    sites = ready()
    changes: list[Callable[[Array], Array]] = [
        *(lambda b: b ^ 1, lambda b: 0 * b, lambda b: b[:, ::-1], lambda b: b[..., :10]),
    ]
    for change in changes:
        with pytest.raises(FFGBError, match="cannot be opened: they are not those of sites"):
            sites.shares(0, range(5), boxes=change(sites.unmasking.boxes(0)))
    with pytest.raises(FFGBError, match="cannot be opened"):  # of another question
        sites.shares(0, range(5), boxes=sites.unmasking.boxes(1))


def test_everything_follows_from_the_key() -> None:
    """A site that restarts prepares the same, and no two questions, sites or rosters have a secret in common."""
    first, again, other = Sites(4, 3), Sites(4, 3), Sites(4, 4)
    a, b, c = (s.sites[0].prepared(1) for s in (first, again, other))
    assert set(a) == set(shapes(4))
    for name, shape in shapes(4).items():
        assert a[name].shape == shape
        np.testing.assert_array_equal(a[name], b[name])
        assert (a[name] != c[name]).any()
    marks = {arrays.tobytes() for s in first.sites for arrays in s.prepared(0)["marks"].reshape(-1, KEY)}
    assert len(marks) == 4 * 2 * BATCH
    assert derived(bytes(32), b"a") != derived(bytes(32), b"b")
