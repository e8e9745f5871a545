"""The one error that users meet: what went wrong and what to do, in a sentence.

A sentence that names a setting carries the setting (`option`), and the front end words it: `--rounds` on the command
line, `rounds` in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_OPTION = re.compile("⟦([a-z_]+)(?:=([^⟧]*))?⟧")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def option(name: str, value: object = "") -> str:
    """A setting in a sentence, perhaps with a value: each front end has its own word for it."""
    return f"⟦{name}={value}⟧" if value != "" else f"⟦{name}⟧"


def as_flag(name: str, value: str | None) -> str:
    """A setting as the command line has it.

    >>> as_flag("step_size", None), as_flag("geometry", "local")
    ('--step-size', '--geometry local')
    """
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


def as_parameter(name: str, value: str | None) -> str:
    """A setting as Python has it.

    >>> as_parameter("step_size", None), as_parameter("geometry", "local"), as_parameter("ridge", "0.1")
    ('step_size', "geometry='local'", 'ridge=0.1')
    """
    if value is None:
        return name
    return f"{name}={value if _NUMBER.fullmatch(value) else repr(value)}"


def command(name: str, *arguments: object, **options: object) -> str:
    """A command to type in a shell, whatever the front end is; an option that is True stands alone.

    >>> command("train", resume=True, out="run"), command("distill", "RUN", by="server")
    ('ffgb train --resume --out run', 'ffgb distill RUN --by server')
    """
    flags = (as_flag(option, None if value is True else str(value)) for option, value in options.items())
    return " ".join(["ffgb", name, *map(str, arguments), *flags])


class FFGBError(Exception):
    """Something the user can put right.  The command line prints its message and exits with code 2."""

    def worded(self, how: Callable[[str, str | None], str] = as_flag) -> str:
        """The sentence, with settings as a front end has them."""
        return _OPTION.sub(lambda found: how(found[1], found[2]), self.raw)

    @property
    def raw(self) -> str:
        """The sentence as it is handed on, before a front end words it."""
        return super().__str__()

    def __str__(self) -> str:
        return self.worded()


class SettingError(FFGBError):
    """A setting has a value that it cannot have."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{option(setting)} {problem}")
        self.setting = setting


class DivergedError(FFGBError):
    """Steps were too large: values became infinite."""


def printable(text: object) -> str:
    """A text on one line, without anything that a terminal would obey: names in it may come from anyone's file."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in str(text))


def missing_extra(package: str, extra: str, what: str) -> FFGBError:
    """The error for an optional dependency that is not installed."""
    return FFGBError(f"{what} needs {package}, which is not installed; run: pip install 'ffgb[{extra}]'")
