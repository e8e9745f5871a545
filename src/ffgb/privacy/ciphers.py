"""The primitives that secure totals are made of: X25519, HKDF, AES-256 and ECDSA, all from the library `cryptography`.

Private keys are 32 raw bytes here.  The library is imported when it is first needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import FFGBError, missing_extra

AT_ONCE = 1 << 19
"""Bytes of a mask that are made at a time: they stay in the cache."""
ZEROS = bytes(AT_ONCE)
KEY = 32
"""Bytes of a key, private or public, and of a secret."""
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
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise missing_extra("cryptography", "secure", "secure totals") from error
    return SimpleNamespace(
        AESGCM=AESGCM,
        Cipher=Cipher,
        HKDF=HKDF,
        InvalidSignature=InvalidSignature,
        InvalidTag=InvalidTag,
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
    """32 bytes for one use of a secret."""
    found: bytes = _library().HKDF(_library().SHA256(), KEY, None, label).derive(secret)
    return found


def add_stream(arrays: Sequence[Array], key: bytes, sign: int) -> None:
    """Add the mask of a key to flat unsigned arrays, or take it off: one stream of bytes, array after array."""
    crypto = _library()
    stream = crypto.Cipher(crypto.algorithms.AES256(key), crypto.modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(AT_ONCE + 15)
    change = np.add if sign > 0 else np.subtract
    for array in arrays:
        some = AT_ONCE // array.itemsize
        for first in range(0, len(array), some):
            piece = array[first : first + some]
            stream.update_into(memoryview(ZEROS)[: piece.nbytes], buffer)
            change(piece, np.frombuffer(buffer, piece.dtype.newbyteorder("<"), len(piece)), out=piece)


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
