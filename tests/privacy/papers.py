"""Double masking and secret sharing a second time, from the papers: to hold the code to, byte for byte.

Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning, figure 4: a part leaves as
x + PRG(b) + Σ ± PRG(s), and t of N sites share b, and the key to s.  Bell et al. 2020 (SecAgg+) have the same with a
sparse graph.  HKDF is RFC 5869's, from HMAC alone; AES-CTR is made of single blocks; polynomials are evaluated power
by power.  The only thing that is shared with the code is the library's primitives: X25519, an AES block, AES-GCM.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

P = (1 << 255) - 19


def hkdf(secret: bytes, info: bytes) -> bytes:
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def prg(key: bytes, size: int) -> bytes:
    """AES-256 of the numbers 0, 1, 2 …"""
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    count = -(-size // 16)
    return block.update(b"".join(n.to_bytes(16, "big") for n in range(count)))[:size]


def field_element(seed: bytes, label: bytes) -> int:
    return int.from_bytes(hkdf(seed, label + b"/high") + hkdf(seed, label + b"/low"), "big") % P


def digest(run: str, names: Sequence[str], keys: Sequence[bytes], t: int) -> bytes:
    words = [run.encode(), t.to_bytes(4, "big")]
    for name, key in zip(names, keys, strict=True):
        words += [name.encode(), key]
    return hashlib.sha256(b"ffgb roster" + b"".join(len(w).to_bytes(4, "big") + w for w in words)).digest()


class Site:
    """One user of the protocol."""

    def __init__(
        self, me: int, private: bytes, run: str, names: Sequence[str], publics: Sequence[bytes], t: int
    ) -> None:
        self.me, self.names, self.t = me, names, t
        self.roster = digest(run, names, publics, t)
        mine = X25519PrivateKey.from_private_bytes(private)
        self.pairs = {
            j: hkdf(mine.exchange(X25519PublicKey.from_public_bytes(publics[j])), b"ffgb pair" + self.roster)
            for j in range(len(names))
            if j != me
        }
        self.own = hkdf(private, b"ffgb tolerance" + self.roster)

    def seed(self, j: int, number: int) -> bytes:
        return hkdf(self.pairs[j], b"ffgb seed" + number.to_bytes(8, "big"))

    def secret(self, kind: bytes, number: int) -> int:
        return field_element(self.own, kind + number.to_bytes(8, "big"))

    def share(self, kind: bytes, number: int, holder: int) -> int:
        """The polynomial of a secret at holder + 1."""
        label, value = kind + number.to_bytes(8, "big"), self.secret(kind, number)
        for power in range(1, self.t):
            value += field_element(self.own, label + b"/coefficient" + power.to_bytes(2, "big")) * (holder + 1) ** power
        return value % P

    def box(self, number: int, holder: int) -> bytes:
        key = hkdf(self.pairs[holder], b"ffgb box" + number.to_bytes(8, "big") + self.names[self.me].encode())
        content = b"".join(self.share(kind, number, holder).to_bytes(32, "big") for kind in (b"own", b"seeds"))
        return AESGCM(key).encrypt(bytes(12), content, None)

    def label(self, question: bytes) -> bytes:
        return hashlib.sha256(self.roster + question).digest()

    def mask(
        self, question: bytes, number: int, widths: Sequence[tuple[int, int]], without: Sequence[int] = ()
    ) -> list[list[int]]:
        """What is added to a part, for arrays of so many numbers of so many bytes each, in their order."""
        label = self.label(question)
        keys = [
            (hkdf(self.seed(j, number), label), 1 if self.names[self.me] < self.names[j] else -1)
            for j in self.pairs
            if j not in without
        ]
        if self.t:
            keys.append((hkdf(self.secret(b"own", number).to_bytes(32, "big"), label), 1))
        total = [[0] * count for count, _ in widths]
        for key, sign in keys:
            add(total, key, sign, widths)
        return total


def add(total: list[list[int]], key: bytes, sign: int, widths: Sequence[tuple[int, int]]) -> None:
    stream, at = prg(key, sum(count * width for count, width in widths)), 0
    for array, (count, width) in zip(total, widths, strict=True):
        for k in range(count):
            array[k] += sign * int.from_bytes(stream[at : at + width], "little")
            at += width


def interpolated(points: Mapping[int, int]) -> int:
    """The value at 0 of the polynomial through these points, by solving Vandermonde's equations."""
    xs = list(points)
    rows = [[pow(x, k, P) for k in range(len(xs))] + [points[x]] for x in xs]
    for k in range(len(rows)):
        pivot = next(r for r in range(k, len(rows)) if rows[r][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        inverse = pow(rows[k][k], P - 2, P)
        rows[k] = [v * inverse % P for v in rows[k]]
        for r in range(len(rows)):
            if r != k and rows[r][k]:
                factor = rows[r][k]
                rows[r] = [(a - factor * b) % P for a, b in zip(rows[r], rows[k], strict=True)]
    return rows[0][-1]
