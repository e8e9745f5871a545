"""Masks: they cancel to the bit, hide what is under them, and serve once."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from ffgb.core.questions import Sum
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.privacy.integers import add, to_integers

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ffgb.privacy.ciphers import new_key, public_of
from ffgb.privacy.masks import COMPLETE, Masks, Roster, add_masked, check_threshold

SUMS: Mapping[str, Sum] = {
    "gram": Sum((3, 5), 2.0),
    "counts": Sum((4,), 1e6, kind="count"),
    "short": Sum((7,), 1.0, 32),
}


def sites(names: list[str], run: str = "run") -> tuple[list[bytes], list[Masks]]:
    keys = [new_key() for _ in names]
    roster = Roster(run, tuple(names), tuple(map(public_of, keys)))
    return keys, [Masks(name, key, roster) for name, key in zip(names, keys, strict=True)]


def a_part(rng: np.random.Generator, N: int) -> dict[str, Array]:
    numbers = {
        "gram": rng.uniform(-2, 2, (3, 5)) / N,
        "counts": rng.integers(0, 1000, 4),
        "short": rng.uniform(-1, 1, 7) / N,
    }
    return to_integers(numbers, SUMS)


@settings(max_examples=25, deadline=None)
@given(N=st.integers(3, 12), seed=st.integers(0, 10**6))
def test_the_total_is_the_same_to_the_bit_in_any_order(N: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, masks = sites([f"site {i}" for i in range(N)])
    parts = [a_part(rng, N) for _ in range(N)]
    sent = [m.masked(p, SUMS, b"question") for m, p in zip(masks, parts, strict=True)]
    total = add_masked((sent[i] for i in rng.permutation(N)), SUMS)
    plain = add(parts, SUMS)
    assert all(np.array_equal(total[name], plain[name]) for name in SUMS)
    assert all(not np.array_equal(s["gram"], p["gram"]) for s, p in zip(sent, parts, strict=True))


def test_totals_below_zero_and_at_their_bounds() -> None:
    _, masks = sites(["a", "b", "c"])
    sums = {"x": Sum((2,), 1.0), "y": Sum((2,), 1.0, 32)}
    part = to_integers({"x": np.array([-1.0, 1.0]) / 3, "y": np.array([-1.0, 1.0]) / 3}, sums)
    total = add_masked([m.masked(part, sums, b"") for m in masks], sums)
    assert all(np.array_equal(total[name], 3 * part[name].astype(np.int64)) for name in sums)


def test_large_parts_are_masked_in_pieces() -> None:
    rng = np.random.default_rng(0)
    sums = {"x": Sum((70_001,), 1.0), "y": Sum((140_003,), 1.0, 32)}
    _, masks = sites(["a", "b", "c"])
    parts = [to_integers({n: rng.uniform(-1, 1, s.shape) / 3 for n, s in sums.items()}, sums) for _ in masks]
    sent = [m.masked(p, sums, b"") for m, p in zip(masks, parts, strict=True)]
    assert all(np.array_equal(add_masked(sent, sums)[n], add(parts, sums)[n]) for n in sums)


# Written anew from RFC 5869 and NIST SP 800-38A


def hkdf(secret: bytes, info: bytes) -> bytes:
    pseudorandom = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(pseudorandom, info + b"\x01", hashlib.sha256).digest()


def keystream(key: bytes, size: int) -> bytes:
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return b"".join(block.update(k.to_bytes(16, "big")) for k in range(-(-size // 16)))[:size]


def test_byte_for_byte_as_a_second_implementation() -> None:
    names, rng = ["b", "a", "c"], np.random.default_rng(1)
    keys, masks = sites(names, "run 7")
    publics = [public_of(k) for k in keys]
    text = b"ffgb roster"
    for piece in [b"run 7", bytes(4), *(p for n, k in zip(names, publics, strict=True) for p in (n.encode(), k))]:
        text += len(piece).to_bytes(4, "big") + piece
    digest = hashlib.sha256(text).digest()
    label = hashlib.sha256(digest + b"question 3").digest()
    for i, name in enumerate(names):
        part = a_part(rng, 3)
        order = ["counts", "gram", "short"]
        expected = {n: [int(v) for v in part[n].ravel()] for n in order}
        for j, other in enumerate(names):
            if i == j:
                continue
            mine = X25519PrivateKey.from_private_bytes(keys[i])
            pair = hkdf(mine.exchange(X25519PublicKey.from_public_bytes(publics[j])), b"ffgb pair" + digest)
            seed = hkdf(pair, b"ffgb seed" + bytes(8))
            stream, at = keystream(hkdf(seed, label), 4 * 8 + 15 * 8 + 7 * 4), 0
            for n in order:
                width = SUMS[n].bits // 8
                for k in range(len(expected[n])):
                    mask = int.from_bytes(stream[at : at + width], "little")
                    expected[n][k] += mask if name < other else -mask
                    at += width
        sent = masks[i].masked(part, SUMS, b"question 3")
        for n in order:
            wrapped = [v % 2 ** SUMS[n].bits for v in expected[n]]
            assert [int(v) % 2 ** SUMS[n].bits for v in sent[n].ravel()] == wrapped


def test_a_masked_part_looks_uniform() -> None:
    sums = {"x": Sum((100_000,), 1.0), "y": Sum((100_000,), 1.0, 32)}
    _, masks = sites(["a", "b", "c"])
    sent = masks[0].masked({"x": np.zeros(100_000, np.int64), "y": np.zeros(100_000, np.int32)}, sums, b"")
    for name in sums:
        counts = np.bincount(np.frombuffer(sent[name].tobytes(), np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-9, 255)


def test_fewer_than_all_parts_say_nothing() -> None:
    """With one part missing the sum is noise too, as it is with another question, list, run or key at one site."""
    part = {"x": np.zeros(1000, np.int64)}
    sums = {"x": Sum((1000,), 1.0)}
    _, masks = sites(["a", "b", "c"])
    sent = [m.masked(part, sums, b"q") for m in masks]
    assert not add_masked(sent, sums)["x"].any()
    assert np.abs(add_masked(sent[:2], sums)["x"].astype(float)).mean() > 2.0**61
    other = masks[2].masked(part, sums, b"another question")
    assert np.abs(add_masked([*sent[:2], other], sums)["x"].astype(float)).mean() > 2.0**61
    keys, ours = sites(["a", "b", "c"])
    elsewhere = Masks("c", keys[2], Roster("another run", ours[0].roster.names, ours[0].roster.keys))
    mixed = [ours[0].masked(part, sums, b"q"), ours[1].masked(part, sums, b"q"), elsewhere.masked(part, sums, b"q")]
    assert np.abs(add_masked(mixed, sums)["x"].astype(float)).mean() > 2.0**61


def test_a_mask_serves_once() -> None:
    rng = np.random.default_rng(2)
    _, masks = sites(["a", "b", "c"])
    part = a_part(rng, 3)
    first = masks[0].masked(part, SUMS, b"q")
    again = masks[0].masked(part, SUMS, b"q")
    assert all(np.array_equal(first[n], again[n]) for n in SUMS)
    with pytest.raises(FFGBError, match="its mask is not used twice"):
        masks[0].masked(a_part(rng, 3), SUMS, b"q")
    masks[0].masked(a_part(rng, 3), SUMS, b"another")


def test_a_list_that_is_not_one() -> None:
    keys = [new_key() for _ in range(3)]
    publics = tuple(map(public_of, keys))
    with pytest.raises(FFGBError, match="with two, each knows the other's"):
        Roster("r", ("a", "b"), publics[:2])
    with pytest.raises(FFGBError, match="a name is there twice"):
        Roster("r", ("a", "b", "a"), publics)
    with pytest.raises(FFGBError, match="a key is missing"):
        Roster("r", ("a", "b", "c"), publics[:2])
    with pytest.raises(FFGBError, match="two have the same key"):
        Roster("r", ("a", "b", "c"), (publics[0], publics[1], publics[0]))
    with pytest.raises(FFGBError, match="32 bytes"):
        Roster("r", ("a", "b", "c"), (publics[0], publics[1], b"short"))
    with pytest.raises(FFGBError, match="this site with its own key"):
        Masks("a", keys[1], Roster("r", ("a", "b", "c"), publics))
    with pytest.raises(FFGBError, match="this site with its own key"):
        Masks("d", keys[0], Roster("r", ("a", "b", "c"), publics))
    with pytest.raises(FFGBError, match="is no key"):
        Masks("a", keys[0], Roster("r", ("a", "b", "c"), (publics[0], publics[1], bytes(32))))


@pytest.mark.parametrize("N", [3, 4, 99, COMPLETE, COMPLETE + 1, 300])
def test_neighbours_are_so_both_ways_and_enough(N: int) -> None:
    names = tuple(f"site {i}" for i in range(N))
    roster = Roster("r", names, tuple(hashlib.sha256(n.encode()).digest() for n in names))
    found = {name: roster.neighbours(name) for name in names}
    assert all(name in found[other] for name in names for other in found[name])
    assert all(name not in found[name] for name in names)
    degrees = {len(f) for f in found.values()}
    assert degrees == ({N - 1} if N <= COMPLETE else {2 * (20 + int(np.ceil(np.log2(N))))})


@pytest.mark.parametrize("N", [COMPLETE + 1, 150, 300, 1000])
def test_sites_that_help_the_server_do_not_cut_the_others_off(N: int) -> None:
    """Only if they are all neighbours on two sides of some others: then the sum over these is bare of masks."""
    names = tuple(f"site {i}" for i in range(N))
    roster = Roster("r", names, tuple(hashlib.sha256(n.encode()).digest() for n in names))
    place = {name: i for i, name in enumerate(roster._circle)}
    edges = np.zeros((N, N), bool)
    for name in names:
        edges[place[name], [place[other] for other in roster.neighbours(name)]] = True
    rng, side = np.random.default_rng(N), int(edges[0].sum()) // 2
    for share in (1 / 3, 1 / 2, 1 / 2, 2 / 3):
        honest = rng.permutation(N) >= share * N
        assert connected_components(edges[np.ix_(honest, honest)])[0] == 1
    for gap, parts in ((side, 2), (side - 1, 1)):  # in the order of the circle, which no one chooses
        honest = np.ones(N, bool)
        honest[1 : 1 + gap] = honest[-gap:] = False
        assert connected_components(edges[np.ix_(honest, honest)])[0] == parts


def test_a_sparse_list_adds_up_too() -> None:
    names = [f"site {i}" for i in range(COMPLETE + 5)]
    _, masks = sites(names)
    sums = {"x": Sum((3,), 1e6, kind="count")}
    sent = (m.masked({"x": np.full(3, i)}, sums, b"") for i, m in enumerate(masks))
    assert add_masked(sent, sums)["x"].tolist() == [sum(range(len(names)))] * 3


def test_the_largest_is_no_sum() -> None:
    _, masks = sites(["a", "b", "c"])
    with pytest.raises(FFGBError, match="is no sum"):
        masks[0].masked({"x": np.zeros(1)}, {"x": Sum((1,), 1.0, kind="largest")}, b"")


def roster_of(N: int) -> Roster:
    """Names and keys without secrets behind them: who has a mask with whom does not depend on these."""
    return Roster("run", tuple(f"site {i}" for i in range(N)), tuple(i.to_bytes(32, "big") for i in range(N)))


@pytest.mark.parametrize(("N", "others"), [(3, 2), (4, 3), (99, 98), (100, 99), (101, 54), (128, 54), (129, 56)])
def test_each_site_has_masks_with_so_many_others(N: int, others: int) -> None:
    """With all of up to 100 sites, and beyond with 20 + log₂ N on each side of a circle, rounded up."""
    roster = roster_of(N)
    neighbours = {name: roster.neighbours(name) for name in roster.names}
    for name, found in neighbours.items():
        assert len(found) == others
        assert name not in found
        assert found == sorted(found, key=roster.names.index)
        assert all(name in neighbours[other] for other in found)  # who has a mask with me, I have one with


def test_the_circle_is_another_in_another_run() -> None:
    roster = roster_of(150)
    other = Roster("another", roster.names, roster.keys)
    assert roster.neighbours("site 0") != other.neighbours("site 0")
    assert roster.neighbours("site 0") == roster_of(150).neighbours("site 0")
    assert roster.key_of("site 7") == (7).to_bytes(32, "big")


@pytest.mark.parametrize(("t", "N"), [(3, 3), (3, 5), (4, 6), (4, 7), (51, 100), (100, 100)])
def test_more_than_half_and_at_least_three_can_stand_for_all(t: int, N: int) -> None:
    check_threshold(t, N)
