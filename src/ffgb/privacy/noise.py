"""Noise that is added to sums before they leave a site: discrete Gaussians on the whole numbers, exactly.

The sampler is that of Canonne, Kamath and Steinke (2020, algorithms 1 to 3), with whole numbers alone: no
floating-point number is ever compared with a random one, so nothing can be read off rounding.
It works on many numbers at once.

Every site adds its share.  A share has the variance σ²/(N − c): the noise of all sites but c has at least the variance
σ², whatever those c know.  Shares are large in units of the grid (at least 2^8), so that their sum is
a discrete Gaussian, and a rounded Gaussian, up to far less than the margin that is kept (core/private_question.py).
"""

from __future__ import annotations

import hashlib
from typing import final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import add_streams, derived

BLOCK = 1 << 14
"""Random words that are made at a time."""
LARGEST_DEVIATION = 2**22
"""Of a share, in units: all products stay below 2^63 up to 256 deviations, and nothing is ever drawn beyond."""


@final
class Words:
    """Random bits from a key: those of AES in counter mode, block after block."""

    def __init__(self, key: bytes) -> None:
        self._key, self._block = key, 0
        self._left = np.empty(0, np.uint64)

    def take(self, n: int) -> Array:
        """The next n words of 64 bits."""
        pieces = [self._left]
        there = len(self._left)
        while there < n:
            block = np.zeros(max(BLOCK, n - there), np.uint64)
            add_streams([block], [(derived(self._key, b"ffgb noise block" + self._block.to_bytes(8, "big")), 1)])
            self._block += 1
            pieces.append(block)
            there += len(block)
        whole = np.concatenate(pieces)
        found, self._left = whole[:n], whole[n:]
        return found

    def below(self, most: int, n: int) -> Array:
        """n uniform numbers from 0 to most − 1."""
        bits = np.uint64((most - 1).bit_length())
        found, open_places = np.zeros(n, np.int64), np.arange(n)
        while len(open_places):
            drawn = (self.take(len(open_places)) & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
            fits = drawn < most
            found[open_places[fits]] = drawn[fits]
            open_places = open_places[~fits]
        return found


def happens(a: Array, b: int, words: Words) -> Array:
    """For each a, an event of the probability exp(−a/b), with whole numbers 0 ≤ a ≤ b."""
    found, going, k = np.zeros(len(a), bool), np.arange(len(a)), 1
    while len(going):
        on = words.below(b * k, len(going)) < a[going]
        found[going[~on]] = k % 2 == 1
        going, k = going[on], k + 1
    return found


def laplace(scale: int, n: int, words: Words) -> Array:
    """n numbers y, each with a probability in proportion to exp(−|y|/scale)."""
    found, there = np.zeros(n, np.int64), 0
    while there < n:
        wanted = 2 * (n - there) + 8
        low = words.below(scale, wanted)
        low = low[happens(low, scale, words)]
        high, going = np.zeros(len(low), np.int64), np.arange(len(low))
        while len(going):
            going = going[happens(np.ones(len(going), np.int64), 1, words)]
            high[going] += 1
        size = low + scale * high
        negative = words.below(2, len(size)) == 1
        kept = np.where(negative, -size, size)[~(negative & (size == 0))][: n - there]
        found[there : there + len(kept)] = kept
        there += len(kept)
    return found


def discrete_gaussian(deviation: int, n: int, words: Words) -> Array:
    """n whole numbers y, each with a probability in proportion to exp(−y²/(2 deviation²))."""
    if not 1 <= deviation <= LARGEST_DEVIATION:
        raise FFGBError(f"noise has a deviation from 1 to {LARGEST_DEVIATION} units, not {deviation}")
    b = 2 * deviation * deviation
    found, there = np.zeros(n, np.int64), 0
    while there < n:
        y = laplace(deviation, 2 * (n - there) + 8, words)
        away = np.abs(y) - deviation
        # exp(−away²/b): as many events of probability 1/e as there are whole parts, and one for the rest
        far = np.abs(away) >= 2**30
        away[far] = 0
        whole, rest = np.divmod(away * away, b)
        kept = happens(rest, b, words) & ~far
        for _ in range(int(whole.max(initial=0))):
            going = np.flatnonzero(kept & (whole > 0))
            if not len(going):
                break
            kept[going] = happens(np.ones(len(going), np.int64), 1, words)
            whole[going] -= 1
        y = y[kept][: n - there]
        found[there : there + len(y)] = y
        there += len(y)
    return found


def noise_of(secret: bytes, identity: bytes, deviation: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """A client's noise for one question: the same each time, and known to no one else."""
    words = Words(derived(secret, b"ffgb noise" + hashlib.sha256(identity).digest()))
    found = {}
    for name in sorted(shapes):
        size = int(np.prod(shapes[name]))
        found[name] = discrete_gaussian(deviation, size, words).reshape(shapes[name])
    return found
