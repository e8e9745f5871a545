"""Masks: what a site sends looks like noise, and the noise of all sites together is 0.

Every two sites that are neighbours have a secret, by a Diffie-Hellman exchange of keys that last one run.  From the
secret and the question both draw the same mask; one adds it to its part and the other takes it off, modulo 2⁶⁴ (2³² for
parts that are counted in 32 bits).  So the sum of all masked parts is the sum of the parts, to the bit, and any fewer
of them are uniform noise.

A `Roster` says who takes part in a run, with which keys; it never changes.  `Masks` are one site's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np

from ffgb.core.questions import Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import add_stream, agreed, derived, public_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FEWEST = 3
"""Sites: of two, each knows the other's part from the total."""
COMPLETE = 100
"""Sites up to which every two of them have a mask; beyond, each has one with so many others that it is never alone."""
KEY = 32
"""Bytes of a public key."""


@final
@dataclass(frozen=True)
class Roster:
    """Who takes part in the totals of a run: the names of sites and their keys, in order."""

    run: str
    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.names) < FEWEST:
            raise FFGBError(
                f"a total over {len(self.names)} sites hides no one's part: with two, each knows the other's; "
                f"secure totals need {FEWEST}"
            )
        if len(set(self.names)) < len(self.names) or len(self.keys) != len(self.names):
            raise FFGBError("in the list of sites a name is there twice, or a key is missing")
        if len(set(self.keys)) < len(self.keys):
            raise FFGBError("in the list of sites two have the same key")
        if any(len(key) != KEY for key in self.keys):
            raise FFGBError(f"in the list of sites a key has not {KEY} bytes")

    @cached_property
    def digest(self) -> bytes:
        """Which roster it is: every mask depends on it."""
        parts = [
            self.run.encode(),
            *(part for n, k in zip(self.names, self.keys, strict=True) for part in (n.encode(), k)),
        ]
        return hashlib.sha256(b"ffgb roster" + b"".join(len(p).to_bytes(4, "big") + p for p in parts)).digest()

    @cached_property
    def _circle(self) -> list[str]:
        """The names in an order that the keys of all decide."""
        return sorted(self.names, key=lambda name: hashlib.sha256(self.digest + name.encode()).digest())

    def neighbours(self, name: str) -> list[str]:
        """With whom a site has masks: all others, or in a large roster the nearest on a circle that no one chooses."""
        circle, N = self._circle, len(self.names)
        each_side = N // 2 if N <= COMPLETE else 2 * math.ceil(math.log2(N))
        at = circle.index(name)
        found = {circle[(at + sign * k) % N] for k in range(1, each_side + 1) for sign in (1, -1)} - {name}
        return [other for other in self.names if other in found]

    def key_of(self, name: str) -> bytes:
        return self.keys[self.names.index(name)]


@final
class Masks:
    """One site's masks in a run."""

    def __init__(self, name: str, key: X25519PrivateKey, roster: Roster) -> None:
        if name not in roster.names or roster.key_of(name) != public_of(key):
            raise FFGBError("the list of sites that the server sent does not have this site with its own key")
        self.name, self.roster = name, roster
        self._pairs = {
            other: derived(agreed(key, roster.key_of(other)), b"ffgb pair" + roster.digest)
            for other in roster.neighbours(name)
        }
        self._used: dict[bytes, bytes] = {}

    def masked(self, part: Tensors, sums: Mapping[str, Sum], question: bytes) -> dict[str, Array]:
        """A part as it leaves the site.

        A mask serves once: the same question with another part is refused, since the difference of two answers would
        be what the mask is to hide.
        """
        label = hashlib.sha256(self.roster.digest + question).digest()
        content = hashlib.sha256(b"".join(part[name].tobytes() for name in sorted(sums))).digest()
        if self._used.setdefault(label, content) != content:
            raise FFGBError(
                "a question came again after this site's answer to it had changed; its mask is not used twice"
            )
        found = {name: _wrapping(part[name], each) for name, each in sums.items()}
        for other, secret in self._pairs.items():
            key, sign = derived(secret, label), 1 if self.name < other else -1
            add_stream([found[name] for name in sorted(found)], key, sign)
        return {name: array.view(sums[name].dtype).reshape(sums[name].shape) for name, array in found.items()}


def _wrapping(array: Array, each: Sum) -> Array:
    """Integers that go round: a copy, flat, without sign."""
    if each.kind == "largest":
        raise FFGBError("the largest of all sites is no sum, and cannot be masked")
    return np.ascontiguousarray(array, each.dtype).ravel().view(f"uint{each.bits}").copy()


def add_masked(parts: Iterable[Tensors], sums: Mapping[str, Sum]) -> dict[str, Array]:
    """The total of the masked parts of all sites of a roster, as integers; parts are added as they come."""
    total = {name: np.zeros(math.prod(each.shape), f"uint{each.bits}") for name, each in sums.items()}
    for part in parts:
        for name, each in sums.items():
            total[name] += _wrapping(part[name], each)
    return {name: total[name].view(each.dtype).astype(np.int64).reshape(each.shape) for name, each in sums.items()}
