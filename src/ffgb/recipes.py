"""Objects as data: a frozen dataclass to JSON and named arrays, and back.

A run's configuration, a model file and a set-up message all have to say *which* loss, family, feature map, schedule
and algorithm they mean.  A recipe names the class and its fields; only the classes listed here can be built from one,
so reading a recipe never runs code that came with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ffgb.aggregates import MomentsOf
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.fedboost import FedBoost, Predictions, Weighted
from ffgb.algorithms.fedprox import FedProx
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.parametric import Copies
from ffgb.algorithms.scaffold import Scaffold
from ffgb.errors import FFGBError
from ffgb.extensions import SteepnessOf
from ffgb.features import Concatenate, Flatten, Standardize
from ffgb.features.encoder import Encoder
from ffgb.features.fourier import RandomFourier
from ffgb.features.patches import Grid, NearestSums, Patches, PatchMoments
from ffgb.features.tables import Columns, Histogram, ObliviousTrees, RankWaves, Steps
from ffgb.federation import Job, Target
from ffgb.functions import Array
from ffgb.geometry import AtServer, Blocks, GramOf, Nystrom, SketchOf
from ffgb.learners.adapter import Adapter
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.losses import CrossEntropy, Huber, Logistic, Soft, Square
from ffgb.schedules import Constant, Power, Theorem
from ffgb.theory import Finite, Indicators

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(FFGB, FFGBC, FFGBL, FedAvg, FedProx, Scaffold, Mime, FedBoost, Copies, Weighted, Predictions, Job, Target),
        *(CrossEntropy, Logistic, Soft, Square, Huber),
        *(Theorem, Power, Constant),
        *(Flatten, Standardize, Concatenate, RandomFourier, Grid, Patches, Encoder),
        *(Columns, Steps, ObliviousTrees, RankWaves),
        *(AtServer, Blocks, Nystrom),
        *(MomentsOf, GramOf, SketchOf, PatchMoments, NearestSums, Histogram, SteepnessOf),
        *(Linear, LipschitzMLP, MLP, Net, Tree, Adapter, Finite, Indicators),
    )
}  # fmt: skip

JSON: TypeAlias = Any

Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Let recipes name a class of your own, in this process: a decorator, for trying out a loss or a family."""
    if KINDS.setdefault(kind.__name__, kind) is not kind:
        raise FFGBError(f"a class named {kind.__name__} is known to recipes already; choose another name")
    return kind


def describe(thing: Any) -> tuple[JSON, dict[str, Array]]:
    """A recipe: JSON that names classes and fields, and the arrays it refers to."""
    arrays: dict[str, Array] = {}

    def walk(value: Any, path: str) -> JSON:
        if isinstance(value, np.ndarray):
            arrays[path] = value
            return {"array": path}
        if dataclasses.is_dataclass(value):
            fields = {f.name: walk(getattr(value, f.name), f"{path}.{f.name}") for f in dataclasses.fields(value)}
            return {"kind": type(value).__name__, **fields}
        if isinstance(value, tuple):
            return [walk(v, f"{path}.{i}") for i, v in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        return value

    return walk(thing, "recipe"), arrays


def build(recipe: JSON, arrays: Mapping[str, Array]) -> Any:
    """The object that `describe` described.  Anything that is not such a recipe is refused."""
    if isinstance(recipe, list):
        return tuple(build(v, arrays) for v in recipe)
    if not isinstance(recipe, dict):
        return recipe
    if "array" in recipe:
        name = str(recipe["array"])
        if name not in arrays:
            raise FFGBError(f"a recipe refers to the array {name!r}, which is not there")
        return arrays[name]
    if "number" in recipe:
        return float(recipe["number"])
    kind = KINDS.get(str(recipe.get("kind")))
    if kind is None:
        raise FFGBError(f"a recipe names {recipe.get('kind')!r}, which this version of ffgb does not know")
    fields = dataclasses.fields(kind)
    known = {f.name for f in fields}
    needed = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
    given = {name: build(v, arrays) for name, v in recipe.items() if name != "kind"}
    if not needed <= given.keys() <= known:
        raise FFGBError(f"a recipe of {kind.__name__} has the fields {sorted(given)}, expected {sorted(known)}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise FFGBError(f"a recipe of {kind.__name__} has fields of the wrong type ({error})") from error
