"""From names to feature maps: what `--map` offers, and which map suits which data.

A map is made by asking all clients for totals.  Names joined by + stand side by side: `inputs+steps+waves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

from ffgb.core.maps import FeatureMap
from ffgb.core.moments import moments_of
from ffgb.core.questions import Ask
from ffgb.core.statistics import Moments
from ffgb.errors import FFGBError
from ffgb.features import patches, tables
from ffgb.features.basic import Concatenate, Flatten, Standardize
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import KERNELS, RandomFourier, bandwidth
from ffgb.settings import LEARNER, Setting


@final
@dataclass(frozen=True)
class Space:
    """Where the points live, as everyone knows before training."""

    shape: tuple[int, ...]
    image: bool
    columns: tuple[str, ...]
    points: int
    """Of all clients together."""

    @property
    def inputs(self) -> int:
        return math.prod(self.shape)


FOURIER = ("fourier", *KERNELS)
PATCHES = ("patches", "mirrored-patches", "random-patches")
SIZES: Mapping[str, int] = {
    **dict.fromkeys((*PATCHES, "trees"), 2048),
    **dict.fromkeys(("steps", "waves", *FOURIER), 1024),
}
"""How many features a map has if no one says."""

TREE_DEPTH = 3


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
class Maps:
    """Makes maps for one space, and asks for nothing twice."""

    def __init__(self, ask: Ask, space: Space, seed: int) -> None:
        self.ask, self.space, self.seed = ask, space, seed
        self._learned: dict[tuple[int, int], patches.Patches] = {}

    @cached_property
    def moments(self) -> Moments:
        return moments_of(self.ask, Flatten(self.space.inputs))

    @cached_property
    def columns(self) -> tables.Columns:
        return tables.look(self.ask, self.moments, self.space.columns)

    @property
    def scaled(self) -> FeatureMap:
        """The inputs with unit variance each, by moments of all clients; images keep their common scale."""
        flat = Flatten(self.space.inputs)
        return flat if self.space.image else Standardize.by(self.moments, flat)

    def make(self, names: str, features: int | None) -> tuple[FeatureMap, bool]:
        """The map of these names, and whether its features should be standardised each by their own variance."""
        makers: dict[str, Callable[[int], FeatureMap]] = {
            "inputs": lambda d: self.scaled,
            "steps": lambda d: tables.Steps.about(self.columns, d),
            "waves": lambda d: tables.RankWaves(self.columns, d, self.seed),
            "trees": lambda d: tables.ObliviousTrees(self.columns, max(1, d >> TREE_DEPTH), TREE_DEPTH, self.seed),
            "patches": partial(self._patches, patches.ITERATIONS, False),
            "mirrored-patches": partial(self._patches, patches.ITERATIONS, True),
            "random-patches": partial(self._patches, 0, False),
            **{name: partial(self._fourier, name) for name in FOURIER},
        }
        parts, factors = [], []
        for name in names.split("+"):
            if name not in makers and not Encoder.names(name):
                raise FFGBError(
                    f"there is no map {name!r}; choose {', '.join(makers)}, FILE.onnx, or package.module:function, "
                    "or several of them joined by +"
                )
            size = features or SIZES.get(name, 0)
            parts.append(makers[name](size) if name in makers else Encoder.load(name, self.space.shape))
            # Beside other features the inputs are few and large: a tenth of the others' variance in all.
            factors.append(math.sqrt(0.1 / self.space.inputs) if name == "inputs" else 1.0)
        if len(parts) == 1:
            return parts[0], names in PATCHES or Encoder.names(names)
        return Concatenate(tuple(parts), tuple(factors)), False

    def _patches(self, iterations: int, mirrored: bool, features: int) -> FeatureMap:
        space, key = self.space, (iterations, features)
        if key not in self._learned:
            self._learned[key] = patches.learn(
                self.ask, self.moments, space.shape, space.points, features, self.seed, iterations
            )
        return replace(self._learned[key], mirrored=mirrored)

    def _fourier(self, name: str, features: int) -> FeatureMap:
        # standardised inputs have unit variance each; images keep their common scale
        variance = self.moments.variance if self.space.image else (~self.moments.constant).astype(float)
        kernel = "gaussian" if name == "fourier" else name
        return RandomFourier(self.scaled, features, bandwidth(variance, kernel), self.seed, kernel)


SETTINGS = (
    Setting(
        "map",
        "text",
        "Feature map (features): patches, mirrored-patches, random-patches, inputs, steps, waves, trees, fourier, "
        "laplace, arc-cosine, FILE.onnx or package.module:function; join several by +.",
        LEARNER,
        unset="by the data",
    ),
    Setting("features", "whole", "Features D of a map (features).", LEARNER, unset="by the map", least=1),
)
