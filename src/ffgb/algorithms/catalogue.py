"""The algorithms that the command line offers, by name: every class of this package that has one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping

import ffgb.algorithms
from ffgb.algorithms import Algorithm


def _found() -> dict[str, type[Algorithm]]:
    names = [info.name for info in pkgutil.iter_modules(ffgb.algorithms.__path__) if info.name != "catalogue"]
    found = {}
    for module in (importlib.import_module(f"ffgb.algorithms.{name}") for name in names):
        for kind in vars(module).values():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__ and issubclass(kind, Algorithm)
            if own and kind.name and not inspect.isabstract(kind):
                found[kind.name] = kind
    return found


ALGORITHMS: Mapping[str, type[Algorithm]] = _found()
