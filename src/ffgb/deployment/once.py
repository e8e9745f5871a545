"""What a site says once and never in another way: kept on its disk, for all processes and trainings of this site.

A mask hides one part.  A server that brings a site elsewhere, restarts it or begins another training, and asks the same
question again under the same mask, would hear the difference of two parts.  So a site writes down what each mask has
hidden before it leaves.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ffgb.deployment.keys import private

MARK = 16
"""Bytes of a hash."""
LINE = 4 * MARK + 2
"""Bytes of a line: two hashes in hexadecimal digits, a space between them and the end of the line."""


@final
@dataclass(eq=False)
class Once:
    """A file with a line for each thing that was said: the hash of its name, and that of what was said."""

    file: Path
    _known: dict[bytes, bytes] = field(default_factory=dict)
    _read: int = 0

    def __call__(self, name: bytes, said: bytes) -> bool:
        """Is this what was said of `name` before, if anything was?  It is on the disk before this returns."""
        key, mark = (hashlib.sha256(each).digest()[:MARK].hex().encode() for each in (name, said))
        if not self.file.exists():
            private(self.file.parent)
        with os.fdopen(os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another process may be this site, too
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")  # a power cut may have shortened the last line
            for line in lines:
                self._read += len(line) + 1
                if len(line) == LINE - 1:
                    self._known.setdefault(line[: 2 * MARK], line[2 * MARK + 1 :])
            if key not in self._known:
                file.write((b"\n" if rest else b"") + key + b" " + mark + b"\n")
                file.flush()
                os.fsync(file.fileno())
                self._known[key] = mark
        return self._known[key] == mark
