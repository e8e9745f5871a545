"""Shamir's shares: any t of them give the secret, fewer say nothing, and a second implementation agrees."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.errors import FFGBError

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from ffgb.privacy.shares import PRIME, joined, mark, secret_of, split


def lagrange(points: dict[int, int], x: int) -> int:
    """A polynomial through these points at x, by Newton's divided differences: another way than the code's."""
    xs, table = list(points), [points[k] for k in points]
    for order in range(1, len(xs)):
        for k in range(len(xs) - 1, order - 1, -1):
            table[k] = (table[k] - table[k - 1]) * pow(xs[k] - xs[k - order], -1, PRIME) % PRIME
    value = 0
    for k in range(len(xs) - 1, -1, -1):
        value = (value * (x - xs[k]) + table[k]) % PRIME
    return value


@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 12), data=st.data(), seed=st.binary(min_size=32, max_size=32))
def test_any_t_of_n_give_the_secret(n: int, data: st.DataObject, seed: bytes) -> None:
    t = data.draw(st.integers(2, n))
    secret = secret_of(seed, b"secret")
    shares = split(secret, t, n, seed, b"use")
    holders = data.draw(st.permutations(range(1, n + 1)))[:t]
    some = {x: shares[x - 1] for x in holders}
    assert joined(some) == secret
    assert lagrange({x: int.from_bytes(share, "big") for x, share in some.items()}, 0) == int.from_bytes(secret, "big")
    few = dict(itertools.islice(some.items(), t - 1))
    assert joined(few) != secret


def test_fewer_shares_fit_every_secret() -> None:
    """With t − 1 shares, for any secret there is a polynomial through them: nothing is known of it."""
    seed = bytes(32)
    shares = split(secret_of(seed, b"a"), 3, 5, seed, b"use")
    for other in (0, 1, PRIME - 1, 12345):
        points = {0: other, 1: int.from_bytes(shares[0], "big"), 2: int.from_bytes(shares[1], "big")}
        third = lagrange(points, 3).to_bytes(32, "big")
        assert int.from_bytes(joined({1: shares[0], 2: shares[1], 3: third}), "big") == other


def test_shares_are_the_same_each_time_and_differ_by_use() -> None:
    seed = bytes(range(32))
    secret = secret_of(seed, b"one")
    assert split(secret, 3, 5, seed, b"x") == split(secret, 3, 5, seed, b"x")
    assert split(secret, 3, 5, seed, b"x") != split(secret, 3, 5, seed, b"y")
    assert secret_of(seed, b"one") != secret_of(seed, b"two")
    assert mark(secret) != mark(secret_of(seed, b"two"))


def test_shares_that_are_none() -> None:
    seed = bytes(32)
    shares = split(secret_of(seed, b"s"), 2, 3, seed, b"u")
    for wrong in (b"short", b"\xff" * 32):
        with pytest.raises(FFGBError, match="a share of a secret is none"):
            joined({1: shares[0], 2: wrong})
    for t in (0, 4):
        with pytest.raises(FFGBError, match="cannot be shared"):
            split(secret_of(seed, b"s"), t, 3, seed, b"u")


def test_a_secret_of_one_holder_is_its_share() -> None:
    secret = secret_of(bytes(32), b"s")
    assert split(secret, 1, 1, bytes(32), b"u") == [secret]
    assert split(secret, 1, 3, bytes(32), b"u") == [secret] * 3
    assert joined({2: secret}) == secret
