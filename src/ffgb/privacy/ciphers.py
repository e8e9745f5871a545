"""The primitives of secure totals, all from the library `cryptography`: X25519, AES-256, Poly1305 and ECDSA;
and HKDF.

Private keys are 32 raw bytes here.  The library is imported when it is first needed.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError, missing_extra

AT_ONCE = 1 << 17
"""Bytes of a mask that are made at a time: they stay in the cache."""
ZEROS = bytes(AT_ONCE)
KEY = 32
"""Bytes of a key, private or public, and of a secret."""
NO_SALT = bytes(KEY)
TAG = 16
"""Bytes by which a sealed box is longer than its content."""


@cache
def _library() -> Any:
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.poly1305 import Poly1305
    except ImportError as error:
        raise missing_extra("cryptography", "secure", "secure totals") from error
    return SimpleNamespace(
        AESGCM=AESGCM,
        Cipher=Cipher,
        InvalidSignature=InvalidSignature,
        InvalidTag=InvalidTag,
        Poly1305=Poly1305,
        SHA256=SHA256,
        algorithms=algorithms,
        ec=ec,
        modes=modes,
        serialization=serialization,
        x25519=x25519,
    )


def new_key() -> bytes:
    """A private key from the system's random numbers."""
    return secrets.token_bytes(KEY)


def public_of(key: bytes) -> bytes:
    """The public half of a private key."""
    public: bytes = _library().x25519.X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
    return public


def agreed(key: bytes, other: bytes) -> bytes:
    """The secret of two sites, from one's private and the other's public key."""
    x25519 = _library().x25519
    try:
        secret: bytes = x25519.X25519PrivateKey.from_private_bytes(key).exchange(
            x25519.X25519PublicKey.from_public_bytes(other)
        )
        return secret
    except ValueError as error:  # a point of small order: anyone would know the secret
        raise FFGBError("a site's key in the list is no key") from error


def derived(secret: bytes, label: bytes) -> bytes:
    """32 bytes for one use of a secret: HKDF (RFC 5869) with SHA-256 and without a salt, of one block.

    HMAC is the standard library's, which needs a third of the time of an HKDF object: a question has two for each site.
    """
    return expanded(extracted(secret), label)


def extracted(secret: bytes) -> bytes:
    """The first half of `derived`, which has nothing of the use in it."""
    return hmac.digest(NO_SALT, secret, "sha256")


def expanded(key: bytes, label: bytes) -> bytes:
    """The second half."""
    return hmac.digest(key, label + b"\x01", "sha256")


def add_streams(arrays: Sequence[Array], keys: Iterable[tuple[bytes, int]]) -> None:
    """Add the masks of keys to flat unsigned arrays, or take them off, by the sign that comes with each key.

    The mask of a key is one stream of bytes, array after array.
    """
    crypto = _library()
    start = crypto.modes.CTR(bytes(16))
    streams = [
        (crypto.Cipher(crypto.algorithms.AES256(key), start).encryptor().update_into, np.add if s > 0 else np.subtract)
        for key, s in keys
    ]
    for pieces in _cut(arrays):
        size, masks = sum(piece.nbytes for piece in pieces), list[tuple[Array, Array]]()
        zeros, buffer, at = memoryview(ZEROS)[:size], bytearray(size + 15), 0
        for piece in pieces:
            masks.append((piece, np.frombuffer(buffer, piece.dtype.newbyteorder("<"), len(piece), at)))
            at += piece.nbytes
        for update_into, change in streams:  # pieces stay in the cache until all masks are on them
            update_into(zeros, buffer)
            for piece, mask in masks:
                change(piece, mask, out=piece)


def _cut(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Arrays in pieces, so many of these together as have AT_ONCE bytes."""
    together, size = list[Array](), 0
    for array in arrays:
        first = 0
        while first < len(array):
            piece = array[first : first + (AT_ONCE - size) // array.itemsize]
            first, size = first + len(piece), size + piece.nbytes
            together.append(piece)
            if AT_ONCE - size < 8:
                yield together
                together, size = [], 0
    yield together


def tag(key: bytes, arrays: Iterable[Array]) -> bytes:
    """A short mark of arrays, by which the same ones are known again: Poly1305, much faster than a hash.

    No one who knows neither the key nor any tag can find other arrays with the same one.
    """
    found = _library().Poly1305(key)
    for array in arrays:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    mark: bytes = found.finalize()
    return mark


def sealed(key: bytes, content: bytes) -> bytes:
    """A box that only a holder of the key can open; the key must serve for this content alone."""
    box: bytes = _library().AESGCM(key).encrypt(bytes(12), content, None)
    return box


def opened(key: bytes, box: bytes) -> bytes:
    """The content of a sealed box; an FFGBError if the key is another, or the box was changed."""
    try:
        content: bytes = _library().AESGCM(key).decrypt(bytes(12), box, None)
        return content
    except (_library().InvalidTag, ValueError) as error:
        raise FFGBError("a sealed box cannot be opened: it was changed on its way, or is for someone else") from error


def signed(key: Any, words: bytes) -> bytes:
    """A signature by a site's registered key, an elliptic-curve key of the library."""
    signature: bytes = key.sign(words, _library().ec.ECDSA(_library().SHA256()))
    return signature


def check_signature(registered: bytes, signature: bytes, words: bytes, who: str) -> None:
    """Raise an FFGBError unless the holder of a registered key (public, DER) has signed these words."""
    crypto = _library()
    try:
        key = crypto.serialization.load_der_public_key(registered)
        if not isinstance(key, crypto.ec.EllipticCurvePublicKey):
            raise FFGBError(f"the registered key of {who} is no elliptic-curve key")
        key.verify(signature, words, crypto.ec.ECDSA(crypto.SHA256()))
    except (crypto.InvalidSignature, ValueError) as error:
        raise FFGBError(f"the signature of {who} is wrong: the server, or someone else, has changed its key") from error
