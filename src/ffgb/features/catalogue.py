"""From names to feature maps: the maps that `--map` offers, and which map suits which data.

A map is made by asking all clients for totals.  Names joined by + stand side by side: `inputs+steps+waves`.  A file of
this package offers maps by a tuple `MAPS` (features/named.py).
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Mapping
from typing import final

import ffgb.features
from ffgb.core.maps import FeatureMap
from ffgb.errors import FFGBError
from ffgb.features import tables
from ffgb.features.basic import Concatenate
from ffgb.features.encoder import Encoder
from ffgb.features.named import Making, NamedMap
from ffgb.features.named import Space as Space
from ffgb.settings import DATA, LEARNER, Setting

TREE_DEPTH = 3


def _trees(making: Making, features: int) -> FeatureMap:
    trees = tables.ObliviousTrees(making.seen.columns, max(1, features >> TREE_DEPTH), TREE_DEPTH, making.seed)
    return making.once(("trees", trees.trees), lambda: tables.with_full_leaves(making.ask, trees, making.least))


OF_TABLES = (
    # Beside other features the inputs are few and large: a tenth of the others' variance in all.
    NamedMap("inputs", lambda m, d: m.clipped, smooth=True, weight=lambda space: math.sqrt(0.1 / space.inputs)),
    NamedMap("steps", lambda m, d: tables.Steps.about(m.seen.columns, d), 1024),
    NamedMap("waves", lambda m, d: tables.RankWaves(m.seen.columns, d, m.seed), 1024),
    NamedMap("trees", _trees, 2048),
)


def _found() -> dict[str, NamedMap]:
    names = [info.name for info in pkgutil.iter_modules(ffgb.features.__path__) if info.name != "catalogue"]
    modules = [importlib.import_module(f"ffgb.features.{name}") for name in sorted(names)]
    offered = [*OF_TABLES, *(each for module in modules for each in vars(module).get("MAPS", ()))]
    found = {each.name: each for each in offered}
    if len(found) < len(offered):
        raise TypeError(f"two maps have the same name: {[each.name for each in offered]}")
    return found


MAPS: Mapping[str, NamedMap] = _found()
"""Maps by the name that the command line uses."""
TIED = tuple(name for name, each in MAPS.items() if each.tied)
SMOOTH = tuple(name for name, each in MAPS.items() if each.smooth)
"""Maps without jumps, which FFGB.L can have."""


def default_map(space: Space) -> str:
    """Patches for images; for tables the inputs, steps at their quantiles, and waves for their interactions.

    Colour pictures are taken for photographs, which mean the same in a mirror; grey ones may be letters.
    """
    if not space.image:
        return "inputs+steps+waves"
    if len(space.shape) != 3 or min(space.shape[1:]) < 8:
        return "fourier"
    return "mirrored-patches" if space.shape[0] == 3 else "patches"


@final
class Maps(Making):
    """Makes maps for one space, by their names."""

    def make(self, names: str, features: int | None) -> tuple[FeatureMap, bool]:
        """The map of these names, and whether its features should be standardised each by their own variance."""
        parts, factors = [], []
        for name in names.split("+"):
            if name not in MAPS and not Encoder.names(name):
                raise FFGBError(
                    f"there is no map {name!r}; choose {', '.join(MAPS)}, FILE.onnx, or package.module:function, "
                    "or several of them joined by +"
                )
            named = MAPS.get(name)
            parts.append(named.make(self, features or named.size) if named else Encoder.load(name, self.space.shape))
            factors.append(named.weight(self.space) if named else 1.0)
        if len(parts) == 1:
            return parts[0], names in TIED or Encoder.names(names)
        return Concatenate(tuple(parts), tuple(factors)), False


SETTINGS = (
    Setting(
        "map",
        "text",
        f"Feature map (features): {', '.join(MAPS)}, FILE.onnx or package.module:function; join several by +.",
        LEARNER,
        unset="by the data",
    ),
    Setting("features", "whole", "Features D of a map (features).", LEARNER, unset="by the map", least=1),
    Setting(
        "least",
        "whole",
        "Rows of all clients together that every bin, category, missing flag and leaf of a table must have, so that "
        "differences of totals tell nothing of single rows; smaller ones are merged.",
        DATA,
        tables.LEAST,
        least=1,
        when="A larger number protects rows better. 1 keeps every value apart: only for data that is public.",
    ),
)
