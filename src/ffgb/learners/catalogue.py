"""The learners that the command line offers, by name.

A learner is a family of weak learners, made from settings: a class of this package with a `name` and a class method
`configured`, or a class or a factory of torch modules of the user's own.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import ffgb.learners
from ffgb.core.functions import Family
from ffgb.core.maps import FeatureMap
from ffgb.features.bins import Bins
from ffgb.settings import Values


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """What a learner may know of the points when it is made."""

    shape: tuple[int, ...]
    image: bool
    outputs: int
    scaled: Callable[[], FeatureMap]
    """The inputs with unit variance each, by moments of all clients; images keep their common scale."""
    bins: Callable[[int, int, float], Bins]
    """The columns in so many bins at most, each with so many rows at least, by counts of all clients; and all of them
    with so many cells a row at most."""


class Configured(Protocol):
    """A family that can be made from settings."""

    name: str
    defaults: Mapping[str, Any]
    """Settings that suit it, if no one gives them."""

    @classmethod
    def configured(cls, config: Values, inputs: Inputs) -> Family: ...


CLOSED = ("features", "linear")
"""Learners that are linear over a feature map: their map is made first (runs/learners.py)."""


def _found() -> dict[str, list[Any]]:
    names = [info.name for info in pkgutil.iter_modules(ffgb.learners.__path__) if info.name != "catalogue"]
    found: dict[str, list[Any]] = {}
    for module in (importlib.import_module(f"ffgb.learners.{name}") for name in names):
        for kind in vars(module).values():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__ and issubclass(kind, Family)
            if own and hasattr(kind, "configured"):
                found.setdefault(kind.name, []).append(kind)
    # the one that says what suits it comes first
    return {name: sorted(kinds, key=lambda kind: not kind.defaults) for name, kinds in found.items()}


FAMILIES: Mapping[str, list[Any]] = _found()
"""Classes by name; of several the one is taken that can do what the algorithm needs."""
GROWN = tuple(name for name, kinds in FAMILIES.items() if any(hasattr(kind, "layout") for kind in kinds))
"""Learners that are grown from totals (core/tree_growth.py)."""
LEARNERS = (*CLOSED, *FAMILIES)


def family_for(name: str, needs: str) -> Any:
    """The class of a learner that has a capability (core/capabilities.py); None if no class of this name has it."""
    return next((kind for kind in FAMILIES[name] if hasattr(kind, needs)), None)


def trains(name: str, family: str) -> bool:
    """Are models of a learner in the family of another one?"""
    return any(getattr(kind, "trains", None) == family for kind in FAMILIES.get(name, []))
