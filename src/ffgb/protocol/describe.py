"""Objects as data: a frozen dataclass to JSON and named arrays, and back.

A run's configuration, a model file and a set-up message all have to say *which* loss, family, feature map, schedule
and algorithm they mean.  A recipe names the class and its fields; only the classes listed here can be built from one,
so reading a recipe never runs code that came with it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import math
import pkgutil
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

import ffgb.algorithms
import ffgb.core
import ffgb.features
import ffgb.learners
from ffgb.algorithms import Algorithm, Length
from ffgb.algorithms.fedboost import Predictions
from ffgb.core.draws import Draws
from ffgb.core.folds import Folds
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.histograms import Units
from ffgb.core.losses import Loss
from ffgb.core.maps import FeatureMap
from ffgb.core.private_sums import CellBlocks
from ffgb.core.questions import Question
from ffgb.core.regression.design import Design, DesignColumn, Variable
from ffgb.core.regression.families import GLMFamily
from ffgb.core.regression.sums import RowModel
from ffgb.core.regression.survival import Survival
from ffgb.core.schedules import Schedule
from ffgb.core.splits import Splits
from ffgb.core.statistics import Moments
from ffgb.core.steepness import Steepness
from ffgb.core.tree_growth import Growth
from ffgb.core.types import Array
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.features.patches import Grid
from ffgb.features.tables import Columns
from ffgb.protocol.codec import Message, encode
from ffgb.protocol.job import Beginning, Job, Target
from ffgb.protocol.migrate import migrated
from ffgb.user_code import label_of, named_class

BASES = (Loss, Family, FeatureMap, Algorithm, Length, Schedule, Geometry, Question, GLMFamily)
"""A class of one of these kinds may be named in a description, in whichever file of the layers below it is."""
PARTS = (
    *(Grid, Columns, Predictions, Moments, Steepness, Weighting, Units, Splits, Growth, Folds, Draws, CellBlocks),
    *(Job, Beginning, Target, Design, DesignColumn, Variable, RowModel, Survival),
)
"""And these, which they are made of."""


def _found() -> dict[str, type]:
    """The classes that descriptions may name, by name: all that the packages below define."""
    kinds: dict[str, type] = {kind.__name__: kind for kind in PARTS}
    bases = frozenset(BASES)
    for package in (ffgb.core, ffgb.features, ffgb.learners, ffgb.algorithms):
        inside = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for module in map(importlib.import_module, (package.__name__, *inside)):
            for kind in vars(module).values():
                own = isinstance(kind, type) and kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind)
                if own and not bases.isdisjoint(kind.__mro__) and not inspect.isabstract(kind):
                    assert kinds.setdefault(kind.__name__, kind) is kind, f"two classes are named {kind.__name__}"
    return kinds


KINDS = _found()

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
            return {"kind": _label(type(value)), **fields}
        if isinstance(value, tuple | list):
            return [walk(v, f"{path}.{i}") for i, v in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        return value

    return walk(thing, "recipe"), arrays


def hash_of(thing: Any) -> bytes:
    """A hash of all that describes a thing."""
    recipe, arrays = describe(thing)
    return hashlib.sha256(encode(Message("total", values={"recipe": recipe}, tensors=arrays))).digest()


def _label(kind: type) -> str:
    """What a class is called in a description: its name, or package.module:Name if it is the user's own."""
    return kind.__name__ if KINDS.get(kind.__name__) is kind else label_of(kind)


def is_array(recipe: Mapping[str, Any]) -> bool:
    """Does this part of a recipe stand for an array, and for nothing else?"""
    return recipe.keys() == {"array"}


def is_number(recipe: Mapping[str, Any]) -> bool:
    """Does this part of a recipe stand for a number that JSON has not, and for nothing else?"""
    return recipe.keys() == {"number"} and isinstance(recipe["number"], str)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; a class of the user's own may have names in them that are not known here."""
    try:
        return typing.get_type_hints(kind, localns={"FeatureMap": FeatureMap})
    except NameError:
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Is a value of the type that a field declares?  An array where a number belongs would weigh single rows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and _fit_each(value, parts)
    if origin is typing.Literal:
        return value in parts
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, str, bool, type(None)):
        return type(value) is (type(None) if hint is None else hint)
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) and not typing.is_typeddict(kind) else True


def _fit_each(values: tuple[Any, ...], parts: tuple[Any, ...]) -> bool:
    """Are a tuple's values of the types in its declaration?"""
    if len(parts) == 2 and parts[1] is Ellipsis:
        return all(_fits(value, parts[0]) for value in values)
    return len(values) == len(parts) and all(map(_fits, values, parts))


def build(recipe: JSON, arrays: Mapping[str, Array]) -> Any:
    """The object that `describe` described.  Anything that is not such a recipe is refused."""
    if isinstance(recipe, list):
        return tuple(build(v, arrays) for v in recipe)
    if not isinstance(recipe, dict):
        return recipe
    if is_array(recipe):
        name = str(recipe["array"])
        if name not in arrays:
            raise FFGBError(f"a recipe refers to the array {name!r}, which is not there")
        return arrays[name]
    if is_number(recipe):
        return float(recipe["number"])
    recipe = migrated(recipe)
    kind = _kind(recipe)
    given = {name: build(v, arrays) for name, v in recipe.items() if name != "kind"}
    _check_fields(kind, given)
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise FFGBError(f"a recipe of {kind.__name__} has fields of the wrong type ({error})") from error


def _kind(recipe: Mapping[str, Any]) -> type:
    """The class that a recipe names."""
    label = str(recipe.get("kind"))
    kind = named_class(label) if ":" in label else KINDS.get(label)
    if kind is None:
        raise FFGBError(f"a recipe names {recipe.get('kind')!r}, which this version of ffgb does not know")
    return kind


def _check_fields(kind: type, given: Mapping[str, Any]) -> None:
    """Refuse fields that a class does not have, that are missing, or that are of another type than it declares."""
    fields = dataclasses.fields(kind)
    known = {f.name for f in fields}
    needed = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
    if not needed <= given.keys() <= known:
        raise FFGBError(f"a recipe of {kind.__name__} has the fields {sorted(given)}, expected {sorted(known)}")
    for name, value in given.items():
        if not _fits(value, _hints(kind).get(name, Any)):
            raise FFGBError(f"a recipe of {kind.__name__} has a {name} of the wrong type ({type(value).__name__})")
