"""TOML files that people write: their values, and the lines on which they stand, so that an error can name them."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ffgb.errors import FFGBError

LARGEST = 2**20
"""Bytes of a file that a person writes."""
_KEY = re.compile(r"""\s*("[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_.-]+)\s*=""")
_TABLE = re.compile(
    r"""\s*\[?\[\s*("[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)(?:\s*\.\s*("[^"\n]*"|'[^'\n]*'|[^\]]+?))?\s*\]\]?\s*(#.*)?"""
)
_BARE = re.compile(r"\s*[A-Za-z0-9_.-]+\s*=\s*(?!true\b|false\b|inf\b|nan\b)[A-Za-z/]")


@final
@dataclass(frozen=True)
class Toml:
    """A file's values, and the line of each: of a key, or of a key in a table."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]

    def at(self, *keys: str) -> str:
        """The file, and the line where this stands.

        >>> Toml(Path("run.toml"), {"rounds": "x"}, {("rounds",): 3}).at("rounds")
        'run.toml, line 3'
        """
        found = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), None)
        return str(self.path) if found is None else f"{self.path}, line {found}"


def read_toml(path: Path) -> Toml:
    """The file's values with their lines; an FFGBError names the line that is no TOML, and what is wrong there."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise FFGBError(f"{path} cannot be read as TOML ({error.strerror}); check the path") from error
    if len(content) > LARGEST:
        raise FFGBError(f"{path} cannot be read as TOML: it has more than {LARGEST:,} bytes; is it another file?")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FFGBError(f"{path}, line {line}, cannot be read as TOML: it is not UTF-8; save it as UTF-8") from error
    try:
        return Toml(path, tomllib.loads(text), _lines(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FFGBError(f"{path} cannot be read as TOML: {_reason(text, error)}") from error


def did_you_mean(name: str, names: Collection[str]) -> str:
    """A hint at the name that is meant, perhaps."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _reason(text: str, error: Exception) -> str:
    """The parser's words, and what to do where that is plain: text without quotes is the mistake that people make."""
    said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    found = re.search(r"at line (\d+)", said)
    if found is None:
        return said
    line = text.split("\n")[int(found[1]) - 1]
    return f'{said}; put quotes around text: {line.split("=")[0].strip()} = "…"' if _BARE.match(line) else said


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Where keys stand: the first line that has each."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for i, line in enumerate(text.split("\n")):
        if (head := _TABLE.fullmatch(line)) is not None:
            table = tuple(_plain(part) for part in head.groups()[:2] if part is not None)
            for n in range(1, len(table) + 1):
                found.setdefault(table[:n], i + 1)
        elif (key := _KEY.match(line)) is not None:
            own = (_plain(key[1]),) if key[1][0] in "\"'" else tuple(map(_plain, key[1].split(".")))
            for n in range(1, len(own) + 1):
                found.setdefault((*table, *own[:n]), i + 1)
    return found


def _plain(key: str) -> str:
    return key.strip().strip("\"'")
