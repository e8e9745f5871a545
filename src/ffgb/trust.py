"""Code of the user's own, by name: torch module factories and encoders.

Families and feature maps arrive in recipes, from files and from the network.  A recipe that could name any callable of
any package would let its sender run code here, so a name means nothing until the local user has said what it means.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffgb.errors import FFGBError

_known: dict[str, Callable[..., Any]] = {}


def register(name: str, thing: Callable[..., Any]) -> None:
    """Let recipes name this callable, in this process."""
    if name == "cnn" or _known.setdefault(name, thing) is not thing:
        raise FFGBError(f"a module named {name!r} exists already; choose another name")


def allow(name: str) -> None:
    """Make `package.module:callable` known here, by importing it.

    This runs the named package's code, so it is called for names that the local user gave, on the command line or in
    a script; never for a name that arrived in a message.
    """
    package, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        thing = getattr(importlib.import_module(package), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FFGBError(f"{name} cannot be imported ({error}); name it as package.module:callable") from error
    register(name, thing)


def named(name: str, option: str) -> Callable[..., Any]:
    """What the local user said that this name means."""
    if name not in _known:
        raise FFGBError(
            f"no code named {name!r} is known here; if you trust it, name it with {option} {name}, "
            f"or in Python call ffgb.trust.allow({name!r}) first"
        )
    return _known[name]
