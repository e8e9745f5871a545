"""Totals with a proof that they are what all clients added up: the server can show them, and cannot make others.

Beside its part, each client adds up two sums of the part's whole numbers times secret ones, modulo a prime.  One client
adds two further secret numbers.  Clients know the secret numbers, and the server does not.  So the proof of another
total is a guess: it is right once in 2^62 tries.  A server that has the secret from one of the clients can prove
anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ffgb.core.exact_sums import EXACT
from ffgb.core.questions import Here, Question, Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

PRIME = 2**31 - 1
PROOFS = "#proofs"
"""The name of a proof among the arrays of a part."""
TAGS = 2
"""Sums in a proof."""


@final
@dataclass(frozen=True, eq=False)
class Keyed:
    """What a client answers a proven question from."""

    said: Any
    """What it answers the question itself from."""
    key: bytes
    """What the secret numbers follow from (`key_of`); empty without masks, where there is no proof."""
    leads: bool
    """It adds the further numbers."""


def key_of(secret: bytes, number: int, question: bytes) -> bytes:
    """The key of one question's proof, from the secret of all clients, the question's number and its hash."""
    if not secret:
        return b""
    words = number.to_bytes(8, "big") + question
    return hashlib.blake2b(words, key=secret, digest_size=32, person=b"ffgb totals").digest()


def proof_of(key: bytes, sums: Tensors, *, leads: bool) -> Array:
    """The proof of whole numbers: of a part or, with the further numbers, of a total."""
    if not key:
        return np.zeros(TAGS)
    values = [np.zeros(0, np.int64), *(np.asarray(sums[name]).astype(np.int64).ravel() for name in sorted(sums))]
    whole = np.mod(np.concatenate(values), PRIME).astype(np.uint64)
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * TAGS * (len(whole) + 1)), ">u8").reshape(TAGS, -1)
    secret = words.astype(np.uint64) % np.uint64(PRIME)
    found = ((secret[:, 1:] * whole) % np.uint64(PRIME)).sum(axis=1)
    if leads:
        found = found + secret[:, 0]
    proof: Array = (found % np.uint64(PRIME)).astype(np.float64)
    return proof


def proves(key: bytes, sums: Tensors, proofs: Array) -> bool:
    """Is this the proof of this total?  Without a key nothing can be proven, and nothing is asked for."""
    expected = proof_of(key, sums, leads=True)
    return proofs.shape == expected.shape and bool((np.mod(proofs, PRIME) == expected).all())


@final
@dataclass(frozen=True, eq=False)
class Proven(Question):
    """Another question, whose total comes with a proof; the `number` is that of questions before it."""

    question: Question
    number: int

    @property
    def what(self) -> str:  # type: ignore[override]
        return self.question.what

    @property
    def by_rows(self) -> bool:  # type: ignore[override]
        return self.question.by_rows

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {**self.question.sums, PROOFS: Sum((TAGS,), EXACT, 64, "count")}

    def part(self, here: Here) -> Tensors:
        said = here.said
        if not isinstance(said, Keyed):
            raise FFGBError("a question with a proof is asked of a client that has no secret with the others")
        if any(each.kind != "count" or name == PROOFS for name, each in self.question.sums.items()):
            raise FFGBError("only whole numbers can be proven")
        own = self.question.part(replace(here, said=said.said))
        return {**own, PROOFS: proof_of(said.key, own, leads=said.leads)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own[PROOFS] < 0).any():
            raise FFGBError("its proof is none")
        self.question.check({name: array for name, array in own.items() if name != PROOFS}, rows, part)

    def total(self, sums: Tensors) -> Tensors:
        """The sums themselves: what they say is for whoever has seen the proof."""
        return sums
