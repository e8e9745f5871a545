"""Shamir's secret sharing: any t of N shares give the secret, and fewer give nothing.

Numbers are modulo the prime 2^255 − 19; a secret and a share are 32 bytes each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import KEY, derived

PRIME = 2**255 - 19


def secret_of(seed: bytes, label: bytes) -> bytes:
    """A secret below the prime, from a seed and its use: the same each time."""
    wide = derived(seed, label + b"/high") + derived(seed, label + b"/low")
    return (int.from_bytes(wide, "big") % PRIME).to_bytes(KEY, "big")


def split(secret: bytes, t: int, n: int, seed: bytes, label: bytes) -> list[bytes]:
    """The shares of holders 1 … n, of which t give the secret; by the seed and label, so the same each time."""
    if not 1 <= t <= n:
        raise FFGBError(f"a secret cannot be shared so that {t} of {n} shares give it")
    coefficients = [_number(secret)]
    for power in range(1, t):
        coefficients.append(_number(secret_of(seed, label + b"/coefficient" + power.to_bytes(2, "big"))))
    return [_value(coefficients, x).to_bytes(KEY, "big") for x in range(1, n + 1)]


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as it takes, by the numbers of their holders."""
    weights = _weights(tuple(shares))
    total = sum(_number(share) * weight for share, weight in zip(shares.values(), weights, strict=True))
    return (total % PRIME).to_bytes(KEY, "big")


@lru_cache(maxsize=64)
def _weights(holders: tuple[int, ...]) -> list[int]:
    """Lagrange's weights at 0: many secrets are put together from shares of the same holders."""
    found = []
    for x in holders:
        above = below = 1
        for other in holders:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def mark(secret: bytes) -> bytes:
    """A hash by which a secret that was put together is known to be the right one."""
    return hashlib.sha256(b"ffgb share" + secret).digest()


def _number(data: bytes) -> int:
    if len(data) != KEY or (number := int.from_bytes(data, "big")) >= PRIME:
        raise FFGBError("a share of a secret is none")
    return number


def _value(coefficients: list[int], x: int) -> int:
    found = 0
    for coefficient in reversed(coefficients):
        found = (found * x + coefficient) % PRIME
    return found
