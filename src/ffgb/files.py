"""Writing files: a file is there whole or not at all, after a kill and after a power cut."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TEMPORARY = re.compile(r".+\.(json|jsonl|safetensors|copy|html|onnx|md)(\.[0-9a-f]{8})?\.tmp")


def atomic_write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write the file, or leave the one that is there as it was; `mode` is limited by the user's umask."""
    temporary = staged(path, data, mode)
    try:
        put(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def staged(path: Path, data: bytes, mode: int = 0o666) -> Path:
    """The data in a temporary file beside the path, on the disk: `put` gives it its name."""
    # a name that no one else has: two processes may write the same file, and the last one wins
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)  # a disk that is full does not say where
        temporary.unlink(missing_ok=True)
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def put(temporary: Path, path: Path) -> None:
    """Rename a staged file, and write the new name to the disk."""
    temporary.replace(path)
    sync_folder(path.parent)


def content_hash(path: Path) -> str:
    """The hash of a file's bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Names in a folder are on the disk after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def is_leftover(path: Path) -> bool:
    """Is this a temporary file of ours, left by a process that was killed?"""
    return _TEMPORARY.fullmatch(path.name) is not None and path.is_file()


def others(folder: Path) -> Iterator[Path]:
    """What is in a folder, but for leftovers."""
    return (path for path in folder.iterdir() if not is_leftover(path))


def remove_leftovers(folder: Path) -> None:
    """No one else may be writing in the folder."""
    for path in folder.iterdir():
        if is_leftover(path):
            with suppress(OSError):  # they do no harm
                path.unlink()
