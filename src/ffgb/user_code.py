"""Code of the user's own, by name: torch module factories and encoders.

Families and feature maps arrive in recipes, from files and from the network.  A recipe that could name any callable of
any package would let its sender run code here, so a name means nothing until the local user has said what it means.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ffgb.errors import FFGBError, option

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
    if name in _known:
        return
    package, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        thing = getattr(importlib.import_module(package), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FFGBError(f"{name} cannot be imported ({error}); name it as package.module:callable") from error
    register(name, thing)


def define(thing: type) -> str:
    """Make a class known by its own name, in place of an earlier one of this name, as notebooks have them; the name."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    _known[name] = thing
    return name


def must_be_named(code: Sequence[str], named: Collection[str], folder: Path, advice: str) -> None:
    """An FFGBError if a folder asks for code that the user did not name: whoever wrote the folder chose it."""
    if strange := [name for name in code if name not in named]:
        raise FFGBError(f"the run in {folder} imports and runs the code {', '.join(strange)}; {advice}")


def named(name: str, setting: str) -> Callable[..., Any]:
    """What the local user said that this name means; `setting` is where such code is named."""
    if name not in _known:
        raise FFGBError(
            f"no code named {name!r} is known here; if you trust it, name it with {option(setting, name)}, "
            f"or in Python call ffgb.user_code.allow({name!r}) first"
        )
    return _known[name]


def class_named(name: str, base: type[Any], what: str, otherwise: Any = None) -> Any:
    """A class of the user's own, of a kind; if it is none and there is something else that can use it, that."""
    if ":" not in name:
        raise FFGBError(f"there is no {what} {name!r}; name one of ours, or your own package.module:Name")
    if name not in _known:
        allow(name)
    thing = _known[name]
    if isinstance(thing, type) and hasattr(thing, "configured" if base is object else "__init__"):
        if issubclass(thing, base):
            return thing
        raise FFGBError(f"{name} is no {what}: it should be a subclass of {base.__module__}.{base.__name__}")
    if otherwise is None:
        raise FFGBError(f"{name} is no {what}: it should be a subclass of {base.__module__}.{base.__name__}")
    return otherwise


def label_of(kind: type) -> str:
    """The name by which the local user made a class known; its own name if no one did."""
    return next((name for name, thing in _known.items() if thing is kind), kind.__name__)


def named_class(name: str) -> type:
    """The class of this name, if the local user made it known: a description never imports anything."""
    thing = named(name, "learner")
    if not isinstance(thing, type) or not dataclasses.is_dataclass(thing):
        raise FFGBError(f"{name} is no dataclass, and cannot be described")
    return thing
