"""Families of weak learners."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ffgb.errors import FFGBError
from ffgb.learners import nets


def allow(name: str) -> None:
    """Make the torch module factory `package.module:callable` known here, by importing it.

    This runs the named package's code, so it is called for names that the local user gave, on the command line or in
    a script; never for a name that arrived in a message.
    """
    package, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(package), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FFGBError(
            f"the learner {name} cannot be imported ({error}); name it as package.module:factory"
        ) from error
    nets.register(name, factory)
