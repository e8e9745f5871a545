"""Losses, one file each: value, gradient, curvature, bounds, link, target scaling and scores.

A file in this folder is all that a new loss takes.  The package imports every file in it and exports every concrete
`Loss` class that it finds there.  A class with a `name` is in `LOSSES`, by the word that the command line uses.

>>> LOSSES["quantile"].of(classes=0, outputs=1, level=0.9)
Quantile(outputs=1, level=0.9)
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ffgb.core.losses.base import ClassificationLoss as ClassificationLoss
from ffgb.core.losses.base import Loss as Loss
from ffgb.settings import METHOD, Setting

if TYPE_CHECKING:  # a type checker cannot see names that are discovered; at run time these lines do nothing
    from ffgb.core.losses.cox import Cox as Cox
    from ffgb.core.losses.cross_entropy import CrossEntropy as CrossEntropy
    from ffgb.core.losses.gamma import Gamma as Gamma
    from ffgb.core.losses.huber import Huber as Huber
    from ffgb.core.losses.logistic import Logistic as Logistic
    from ffgb.core.losses.poisson import Poisson as Poisson
    from ffgb.core.losses.quantile import Quantile as Quantile
    from ffgb.core.losses.soft import Soft as Soft
    from ffgb.core.losses.square import Square as Square


def _discover() -> tuple[type[Loss], ...]:
    """All concrete losses that the files of this package define, in the order of the files' names."""
    modules = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return tuple(
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, Loss)
        and kind.__module__ == module.__name__
        and not inspect.isabstract(kind)
    )


def _by_name(classes: tuple[type[Loss], ...]) -> Mapping[str, type[Loss]]:
    """The losses that have a name, by that name."""
    named: dict[str, type[Loss]] = {}
    for kind in classes:
        if kind.name and named.setdefault(kind.name, kind) is not kind:
            raise TypeError(f"{kind.__name__} and {named[kind.name].__name__} have the same name {kind.name!r}")
    return MappingProxyType(named)


ALL_LOSSES: tuple[type[Loss], ...] = _discover()
"""Every concrete loss of this package, `Soft` included."""

LOSSES: Mapping[str, type[Loss]] = _by_name(ALL_LOSSES)
"""The losses that a user can choose, by name."""

globals().update({kind.__name__: kind for kind in ALL_LOSSES})


SETTINGS = (
    Setting(
        "loss",
        "text",
        f"auto, {', '.join(LOSSES)}, or package.module:Name of your own.",
        METHOD,
        "auto",
        common=True,
        choices=("auto", *LOSSES),
        accepts=lambda name: ":" in name,
    ),
)
