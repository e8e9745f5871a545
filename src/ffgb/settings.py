"""Settings, declared once each by the part that uses them.

A module has a tuple `SETTINGS` of those that it uses.  The command line, TOML files, the estimators, the checks, the
defaults and the settings page of the documentation come from these declarations (runs/config.py collects them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, final

from ffgb.errors import SettingError

Kind: TypeAlias = Literal["text", "whole", "number", "switch", "share", "number or word", "sizes", "names"]
"""What a value is: "share" is a whole number of things, or a share of them as a float."""

WORDS: dict[str, str] = {
    "text": "a name",
    "whole": "a whole number",
    "number": "a number",
    "switch": "True or False",
    "share": "a number such as 5, or a share such as 0.5",
    "number or word": "a number or a name",
    "sizes": "whole numbers such as (32, 32)",
    "names": "names such as ['age']",
}

DATA, METHOD, LEARNER, RUN = "Data and clients", "Algorithm and steps", "Weak learners", "Run"
GROUPS = (DATA, METHOD, LEARNER, RUN)


class Values(Protocol):
    """Settings with their values, by name: a configuration."""

    def __getattr__(self, name: str) -> Any: ...


@final
@dataclass(frozen=True)
class Setting:
    """One setting: its name, what it may be, what it is if no one says, and what it is for."""

    name: str
    kind: Kind
    help: str
    """One line."""
    group: str
    default: Any = None
    """None: what suits the data and the learner."""
    unset: str = ""
    """What that is, in a few words."""
    common: bool = False
    """People use it: `ffgb train --help` shows it."""
    choices: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    """It must be more than this."""
    below: float | None = None
    """It must be less than this."""
    users: Sequence[str] = ()
    """The algorithms that have a use for it, if others have none."""
    off: str = ""
    """The flag that switches it off."""
    when: str = ""
    """When to change it: a sentence for the settings page."""
    accepts: Callable[[Any], bool] | None = None
    """Values that are not among the choices, and are right all the same."""

    def check(self, value: Any) -> Any:
        """The value as a configuration has it; a SettingError if it is none."""
        value = plain(value)
        if value is None and (self.default is None or self.unset):
            return value
        if isinstance(value, str) and self.kind == "names":
            value = (value,)  # one name, given as such
        if not fits(value, self.kind):
            where = f" {self.range}" if self.range else ""
            none = ", or None" if self.default is None else ""
            raise SettingError(self.name, f"is {WORDS[self.kind]}{where}{none}, not {value!r}")
        if self.choices and value not in self.choices and not (self.accepts is not None and self.accepts(value)):
            raise SettingError(self.name, f"is {' or '.join(self.choices)}, not {value!r}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value)
        return value

    def _check_range(self, value: float) -> None:
        if not math.isfinite(value):
            raise SettingError(self.name, f"must be a finite number, not {value}")
        low = self.least is not None and value < self.least
        low = low or (self.above is not None and value <= self.above)
        high = self.most is not None and value > self.most
        if low or high or (self.below is not None and value >= self.below):
            raise SettingError(self.name, f"is {WORDS[self.kind]} {self.range}, not {value:g}")

    @property
    def range(self) -> str:
        """From where to where, in words."""
        ends = (("from", self.least), ("above", self.above), ("to", self.most), ("below", self.below))
        found = " ".join(f"{word} {end:g}" for word, end in ends if end is not None)
        return f"{found} on" if self.least is not None and self.most is None and self.below is None else found

    def read(self, text: str) -> Any:
        """A value from a word of the command line."""
        try:
            match self.kind:
                case "whole":
                    return int(text)
                case "number":
                    return float(text)
                case "share":
                    return float(text) if any(c in text for c in ".eE") else int(text)
                case "sizes":
                    return tuple(int(part) for part in text.split(","))
                case "names":
                    return tuple(part.strip() for part in text.split(","))
                case "number or word":
                    return _number_or_word(text)
        except ValueError as error:
            raise SettingError(self.name, f"is {WORDS[self.kind]}, not {text!r}") from error
        return text

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def plain(value: Any) -> Any:
    """A value as it can be written down: numbers of Python's own, and tuples for lists."""
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        return value.item()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(plain(v) for v in value)
    return value


def fits(value: Any, kind: Kind) -> bool:
    """Is a value of this kind?"""
    if isinstance(value, bool):  # else it would pass for a number
        return kind == "switch"
    match kind:
        case "text":
            return isinstance(value, str)
        case "whole":
            return isinstance(value, int)
        case "number" | "share":
            return isinstance(value, int | float)
        case "number or word":
            return isinstance(value, int | float | str)
        case "sizes":
            return isinstance(value, tuple) and all(isinstance(v, int) and v >= 1 for v in value) and len(value) > 0
        case "names":
            return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return False
