"""Masks: what a site sends looks like noise, and the noise of all sites together is 0.

Every two sites that are neighbours have a secret, by a Diffie-Hellman exchange of keys that last one run.  From the
secret and the question both draw the same mask; one adds it to its part and the other takes it off, modulo 2⁶⁴ (2³² for
parts that are counted in 32 bits).  So the sum of all masked parts is the sum of the parts, to the bit, and any fewer
of them are uniform noise.

A `Roster` says who takes part in a run, with which keys; it never changes.  `Masks` are one site's.  Where a run must
go on without a site that dies, each part has one mask more, of the site's own (tolerance.py).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ffgb.core.questions import Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option
from ffgb.privacy.ciphers import KEY, add_streams, agreed, derived, expanded, extracted, public_of, tag

FEWEST = 3
"""Sites: of two, each knows the other's part from the total."""
COMPLETE = 100
"""Sites up to which every two of them have a mask; beyond, each has one with so many others that it is never alone."""


EACH_SIDE = 20
"""Neighbours on each side of a site, besides log₂ N, in a large roster: were half of all sites, by chance, to help the
server, the others would still be connected but for a chance of 2⁻⁴¹ (docs/method.md)."""


@final
@dataclass(frozen=True)
class Roster:
    """Who takes part in the totals of a run: the names of sites and their keys, in order."""

    run: str
    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    threshold: int = 0
    """Sites that must answer for a total to come out; 0: all, and no share of a secret is kept by anyone."""

    def __post_init__(self) -> None:
        N = len(self.names)
        if N < FEWEST:
            raise FFGBError(too_few(N))
        if len(set(self.names)) < N or len(self.keys) != N:
            raise FFGBError("in the list of sites a name is there twice, or a key is missing")
        if len(set(self.keys)) < N:
            raise FFGBError("in the list of sites two have the same key")
        if any(len(key) != KEY for key in self.keys):
            raise FFGBError(f"in the list of sites a key has not {KEY} bytes")
        if self.threshold:
            check_threshold(self.threshold, N)

    @cached_property
    def digest(self) -> bytes:
        """Which roster it is: every mask depends on it."""
        parts = [
            self.run.encode(),
            self.threshold.to_bytes(4, "big"),
            *(part for n, k in zip(self.names, self.keys, strict=True) for part in (n.encode(), k)),
        ]
        return hashlib.sha256(b"ffgb roster" + b"".join(len(p).to_bytes(4, "big") + p for p in parts)).digest()

    @cached_property
    def _circle(self) -> list[str]:
        """The names in an order that the keys of all decide."""
        return sorted(self.names, key=lambda name: hashlib.sha256(self.digest + name.encode()).digest())

    def beside(self, name: str) -> tuple[str, str]:
        """The sites before and after this one on the circle."""
        at = self._circle.index(name)
        return self._circle[at - 1], self._circle[(at + 1) % len(self.names)]

    def around(self, name: str) -> list[str]:
        """All others, from the next one on the circle on."""
        at = self._circle.index(name)
        return [*self._circle[at + 1 :], *self._circle[:at]]

    def neighbours(self, name: str) -> list[str]:
        """With whom a site has masks: all others, or in a large roster the nearest on a circle that no one chooses."""
        circle, N = self._circle, len(self.names)
        each_side = N // 2 if N <= COMPLETE else EACH_SIDE + math.ceil(math.log2(N))
        at = circle.index(name)
        found = {circle[(at + sign * k) % N] for k in range(1, each_side + 1) for sign in (1, -1)} - {name}
        return [other for other in self.names if other in found]

    def key_of(self, name: str) -> bytes:
        return self.keys[self.names.index(name)]


def too_few(N: int) -> str:
    """Why so many sites have no secure totals."""
    return f"a total over {N} sites hides no one's part: with two, each knows the other's; secure totals need {FEWEST}"


def check_threshold(t: int, N: int) -> None:
    """Raise an FFGBError if t of N sites cannot stand for all."""
    if not max(FEWEST, N // 2 + 1) <= t <= N:
        raise FFGBError(
            f"a secure total over {t} of {N} sites protects no one: it needs more than half of them, and at least "
            f"{FEWEST}"
        )
    if N > COMPLETE:
        raise FFGBError(
            f"secure totals that go on without a site are for up to {COMPLETE} sites, and here are {N}: each site "
            f"would keep shares of the masks of all others; leave {option('minimum')} out, so that all must answer"
        )


@final
class Masks:
    """One site's masks in a run."""

    def __init__(self, name: str, key: bytes, roster: Roster, marker: bytes = b"") -> None:
        """With `marker`, 32 secret bytes of the site, a part is known again by its tag in all runs."""
        if name not in roster.names or roster.key_of(name) != public_of(key):
            raise FFGBError("the list of sites that the server sent does not have this site with its own key")
        self.name, self.roster = name, roster
        self._pairs = {
            other: extracted(derived(agreed(key, roster.key_of(other)), b"ffgb pair" + roster.digest))
            for other in roster.neighbours(name)
        }
        """Of each neighbour the secret in common, ready to be expanded."""
        self.used: dict[bytes, bytes] = {}
        """The content that has left under the mask of each question: a hash of the question, and a tag of the part."""
        self._marker = marker or derived(key, b"ffgb content" + roster.digest)

    def box_key(self, other: str, sender: str, number: int) -> bytes:
        """The key of a box that one of two sites sends the other."""
        return expanded(self._pairs[other], b"ffgb box" + number.to_bytes(8, "big") + sender.encode())

    def _ring(self, other: str) -> int:
        return int.from_bytes(expanded(self._pairs[other], b"ffgb ring"), "big")

    @property
    def leads(self) -> bool:
        """Is this the first of all sites by name?"""
        return self.name == min(self.roster.names)

    def tie(self) -> bytes:
        """The difference of two secrets: of this site and the one before it on the circle, and the one after it.

        With all differences whoever knows one of the secrets knows all; to anyone else each of them is still noise.
        """
        before, after = self.roster.beside(self.name)
        return (self._ring(before) ^ self._ring(after)).to_bytes(KEY, "big")

    def common(self, ties: Mapping[str, bytes]) -> bytes:
        """A secret of all sites, which the server does not know, from the ties of all."""
        numbers = {name: int.from_bytes(tie, "big") for name, tie in ties.items()}
        secret = self._ring(self.roster.beside(self.name)[1])
        secrets = {self.name: secret}  # of each site and the one after it
        for name in self.roster.around(self.name):
            secret ^= numbers[name]
            secrets[name] = secret
        if ties[self.name] != self.tie() or secret != self._ring(self.roster.beside(self.name)[0]):
            raise FFGBError("what sites say of their common secret does not fit together: it was changed on its way")
        first = min(self.roster.names)
        return derived(secrets[first].to_bytes(KEY, "big"), b"ffgb names" + self.roster.digest)

    def seed(self, other: str, number: int) -> bytes:
        """What two sites draw their mask for question `number` from."""
        return expanded(self._pairs[other], b"ffgb seed" + number.to_bytes(8, "big"))

    def label(self, question: bytes) -> bytes:
        """A question's name, which every mask depends on."""
        return hashlib.sha256(self.roster.digest + question).digest()

    def masked(
        self,
        part: Tensors,
        sums: Mapping[str, Sum],
        question: bytes,
        number: int = 0,
        own: bytes | None = None,
        without: Collection[str] = (),
    ) -> dict[str, Array]:
        """A part as it leaves the site; with the key of a mask of its `own`, that too.

        There are no masks with the sites that the question does `without`: it says whom, so all sites know the same.
        A mask serves once: the same question with another part is refused, since the difference of two answers would
        be what the mask is to hide.
        """
        label = self.label(question)
        content = tag(self._marker, (part[name] for name in sorted(sums)))
        if self.used.setdefault(label, content) != content:
            raise FFGBError(
                "a question came again after this site's answer to it had changed; its mask is not used twice"
            )
        found = {name: wrapping(part[name], each) for name, each in sums.items()}
        flat = [found[name] for name in sorted(found)]
        keys = [
            (derived(self.seed(other, number), label), sign_of(self.name, other))
            for other in self._pairs
            if other not in without
        ]
        if own is not None:
            keys.append((derived(own, label), 1))
        add_streams(flat, keys)
        return unwrapped(found, sums)


def sign_of(name: str, other: str) -> int:
    """Of two sites one adds their mask, and the other takes it off."""
    return 1 if name < other else -1


def wrapping(array: Array, each: Sum) -> Array:
    """Integers that go round: a copy, flat, without sign."""
    if each.kind == "largest":
        raise FFGBError("the largest of all sites is no sum, and cannot be masked")
    return _flat(array, each).copy()


def _flat(array: Array, each: Sum) -> Array:
    return np.ascontiguousarray(array, each.dtype).ravel().view(f"uint{each.bits}")


def unwrapped(flat: Mapping[str, Array], sums: Mapping[str, Sum]) -> dict[str, Array]:
    """Such integers in the shape in which they travel."""
    return {name: array.view(sums[name].dtype).reshape(sums[name].shape) for name, array in flat.items()}


@final
class MaskedSum:
    """The total of masked parts: parts are added as they come, and none of them is kept."""

    def __init__(self, sums: Mapping[str, Sum]) -> None:
        self.sums = sums
        self._total = {name: np.zeros(math.prod(each.shape), f"uint{each.bits}") for name, each in sums.items()}

    def add(self, part: Tensors) -> None:
        for name, each in self.sums.items():
            self._total[name] += _flat(part[name], each)

    def unmask(self, streams: Sequence[tuple[bytes, int]]) -> None:
        """Take off masks that did not cancel: keys, and the signs with which they were added."""
        flat = [self._total[name] for name in sorted(self._total)]
        add_streams(flat, [(key, -sign) for key, sign in streams])

    @property
    def total(self) -> dict[str, Array]:
        """As integers: only right if no mask is left."""
        return {name: array.astype(np.int64) for name, array in unwrapped(self._total, self.sums).items()}


def add_masked(parts: Iterable[Tensors], sums: Mapping[str, Sum]) -> dict[str, Array]:
    """The total of the masked parts of all sites of a roster, as integers; parts are added as they come."""
    whole = MaskedSum(sums)
    for part in parts:
        whole.add(part)
    return whole.total
