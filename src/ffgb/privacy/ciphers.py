"""What masks are made with: X25519, HKDF and AES-256 in counter mode, all from the library `cryptography`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ffgb.core.types import Array
from ffgb.errors import FFGBError

AT_ONCE = 1 << 19
"""Bytes of a mask that are made at a time: they stay in the cache."""
ZEROS = bytes(AT_ONCE)


def new_key() -> X25519PrivateKey:
    """A private key from the system's random numbers."""
    return X25519PrivateKey.generate()


def public_of(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def agreed(key: X25519PrivateKey, other: bytes) -> bytes:
    """The secret of two sites, from one's private and the other's public key."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point of small order: anyone would know the secret
        raise FFGBError("a site's key in the list is no key") from error


def derived(secret: bytes, label: bytes) -> bytes:
    """32 bytes for one use of a secret."""
    return HKDF(SHA256(), 32, None, label).derive(secret)


def add_stream(arrays: Sequence[Array], key: bytes, sign: int) -> None:
    """Add the mask of a key to flat unsigned arrays, or take it off: one stream of bytes, array after array."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(AT_ONCE + 15)
    change = np.add if sign > 0 else np.subtract
    for array in arrays:
        some = AT_ONCE // array.itemsize
        for first in range(0, len(array), some):
            piece = array[first : first + some]
            stream.update_into(memoryview(ZEROS)[: piece.nbytes], buffer)
            change(piece, np.frombuffer(buffer, piece.dtype.newbyteorder("<"), len(piece)), out=piece)
