"""Private trainings: what they need to be told, what they refuse, and what they promise.

With a privacy budget (`epsilon`) a training asks questions with noise alone (algorithms/additive_private.py).  What the
noise does not cover must be public: bounds and categories, from a schema, and how many rows there are.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.algorithms.additive_private import MOST_PAIRS, AdditivePrivate, Kind, Plan, Public, private_family
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.questions import Ask
from ffgb.data import Dataset
from ffgb.data.dataset import REGRESSION
from ffgb.data.files import Bounded
from ffgb.data.preprocess import Column, Table
from ffgb.data.schema_file import CATEGORY, DATE, SchemaFile
from ffgb.errors import FFGBError, command, option
from ffgb.features.tables import MISSING
from ffgb.learners.additive import Additive
from ffgb.privacy.accountant import mu_of
from ffgb.privacy.masks import FEWEST
from ffgb.protocol.job import Target

LOSSES = {"logistic": "binary", "cross-entropy": "classes", "square": "numbers"}
IDLE = (
    "validation",
    "distill",
    "start",
    "weights",
    "exposure",
    "class_weight",
    "largest_weight",
    "group",
    "monotone",
    "augment",
)
"""Settings that a private training has no use for, or cannot keep private."""
WHY: Mapping[str, str] = {
    "validation": "scores of held-out rows would be one more answer without noise",
    "start": "the model to start from may know the rows already",
    "weights": "a row counts at most once, whatever it weighs",
    "exposure": "a row counts at most once, whatever it weighs",
    "class_weight": "a row counts at most once, whatever it weighs",
    "group": "whether a row is held out must not depend on others",
}
DELTA = 1e-5
REFUSED = "the additive learner is the private one"


def is_private(config: Any) -> bool:
    return config.epsilon is not None


def with_privacy(config: Any) -> Any:
    """The settings of a private training: those that follow from the budget, if they are not given."""
    if not is_private(config):
        _refuse_idle(config)
        return config
    delta = DELTA if config.delta == type(config)().delta else config.delta
    mu_of(config.epsilon, delta)
    learner = Additive.name if config.learner == type(config)().learner else config.learner
    if learner != Additive.name or config.algorithm != "ffgb":
        what = option("learner", learner) if learner != Additive.name else option("algorithm", config.algorithm)
        raise FFGBError(
            f"{what} has no private form: {REFUSED}; use {option('learner', Additive.name)}, or leave "
            f"{option('epsilon')} out"
        )
    for name in IDLE:
        if getattr(config, name, None) not in (None, 0.0, (), "", False):
            why = WHY.get(name, REFUSED)
            raise FFGBError(f"{option(name)} cannot be combined with {option('epsilon')} ({why}); leave it out")
    if config.stop:
        raise FFGBError(
            f"{option('stop')} ends a training by scores, which have no noise: {REFUSED}, and its rounds are fixed; "
            "leave it out"
        )
    if config.rounds not in (None, 1):
        raise FFGBError(f"a private training divides its budget itself; leave {option('rounds')} out")
    if config.schema is None:
        raise FFGBError(
            f"a private training needs public bounds and categories: give {option('schema', 'FILE')}, which "
            f"{command('data', 'describe')} drafts"
        )
    if config.unit is not None and config.unit_rows is None:
        raise FFGBError(
            f"with {option('unit')} say how many rows one unit has at most, at all sites together: "
            f"{option('unit_rows', 'M')}"
        )
    if config.unit is not None and not config.files and tuple(config.data) != ("sites",):
        raise FFGBError(
            f"{option('unit')} names a column of files, by which each site leaves out rows beyond "
            f"{option('unit_rows')}; it is not for named sets"
        )
    return dataclasses.replace(config, learner=learner, delta=delta, rounds=1, stop=False)


def _refuse_idle(config: Any) -> None:
    for name in ("unit", "unit_rows", "colluders", "pairs", "noise_seed"):
        if getattr(config, name) is not None:
            raise FFGBError(f"{option(name)} is for private trainings; add {option('epsilon')}, or leave it out")


def masked_by_default(config: Any, clients: int) -> str | None:
    """Private trainings mask their totals where there are enough clients: then the noise is that of one curator."""
    if is_private(config) and config.secure is None and clients >= FEWEST:
        return "on"
    return config.secure  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class Agreed:
    """What is known of the columns and the target before any row is read."""

    table: Table | None = None
    classes: tuple[str, ...] | None = None
    task: str | None = None


def private_schema(config: Any) -> Agreed | None:
    """What a private training knows of files from its schema; None if there is no budget."""
    if not is_private(config) or config.schema is None:
        return None
    schema = schema_of(config)
    classes = private_classes(schema, config.target, config.task)
    return Agreed(private_table(schema, config.target, config.unit), classes, None if classes else REGRESSION)


def private_rows(config: Mapping[str, Any]) -> Bounded | None:
    """How a private training takes rows, by its settings; None if it is none."""
    if config.get("epsilon") is None:
        return None
    return Bounded(config.get("unit"), int(config.get("unit_rows") or 1))


def schema_of(config: Any) -> SchemaFile:
    return SchemaFile.read(Path(config.schema))


def private_table(schema: SchemaFile, target: str | None, unit: str | None = None) -> Table:
    """How rows become points, from a schema alone: missing numbers have the middle of the bounds, and a flag."""
    columns = []
    for name, rule in schema.columns.items():
        if name in (target or schema.target, unit) or rule.type == "drop":
            continue
        if rule.type == DATE:
            raise FFGBError(
                f"the column {name!r} is a date, and a private training needs numbers with bounds: write it as one, or "
                'type = "drop"'
            )
        if rule.type == CATEGORY:
            if not rule.categories:
                raise _not_public(name, "categories")
            columns.append(Column(name, tuple(sorted(rule.categories))))
        else:
            low, high = _bounds(schema, name)
            columns.append(Column(name, None, 0.5 * (low + high), True))
    if not columns:
        raise FFGBError("the schema has no column to learn from")
    return Table(tuple(columns))


def private_classes(schema: SchemaFile, target: str | None, task: str | None) -> tuple[str, ...] | None:
    """The classes of the target; None if it is a number."""
    name = target or schema.target
    rule = schema.columns.get(name or "")
    if rule is None or (rule.type != CATEGORY and task != "classification"):
        return None
    if not rule.categories:
        raise _not_public(str(name), "categories")
    return tuple(sorted(rule.categories))


def _not_public(name: str, what: str) -> FFGBError:
    return FFGBError(
        f"a private training needs public {what} of the column {name!r}; write {what} = […] in the schema "
        "(what is computed from rows is not public)"
    )


def _bounds(schema: SchemaFile, name: str) -> tuple[float, float]:
    rule = schema.columns.get(name)
    if rule is None or rule.bounds is None:
        raise _not_public(name, "bounds")
    return rule.bounds


def public_of(dataset: Dataset, schema: SchemaFile) -> Public:
    """What is public of a data set's columns: categories are columns "job=nurse", flags are columns "age missing"."""
    if dataset.image or not dataset.columns:
        raise FFGBError(f"private trainings are for tables so far: {REFUSED}, and images have no columns")
    place = {name: j for j, name in enumerate(dataset.columns)}
    groups: dict[str, list[int]] = {}
    for name, j in place.items():
        if name.removesuffix(f" {MISSING}") in place and name.endswith(f" {MISSING}"):
            continue
        groups.setdefault(name.partition("=")[0] if "=" in name else name, []).append(j)
    names, inputs, flags, low, high = [], [], [], [], []
    for name, columns in groups.items():
        bounds = (math.nan, math.nan) if "=" in dataset.columns[columns[0]] else _bounds(schema, name)
        names.append(name)
        inputs.append(tuple(columns))
        flags.append(place.get(f"{name} {MISSING}", -1))
        low.append(float(bounds[0]))
        high.append(float(bounds[1]))
    return Public(tuple(names), tuple(inputs), tuple(flags), tuple(low), tuple(high))


def make_plan(config: Any, dataset: Dataset) -> Plan:
    """What a private training is made of."""
    kind: Kind | None = LOSSES.get(config.loss)  # type: ignore[assignment]
    if kind is None or (kind == "numbers" and dataset.outputs > 1):
        what = option("loss", config.loss) if kind is None else "a table of targets"
        raise FFGBError(f"{what} has no private form; choose {option('loss')} {', '.join(LOSSES)}")
    schema = schema_of(config)
    centre, scale = 0.0, 1.0
    if kind == "numbers":
        name = config.target or schema.target
        if name is None:
            raise FFGBError('the schema does not say what is predicted: write target = "column", with its bounds')
        low, high = _bounds(schema, name)
        centre, scale = 0.5 * (low + high), 0.5 * (high - low)
    clients = int(config.clients)
    surely = clients if config.secure == "on" else 1
    colluders = 1 if config.colluders is None else config.colluders
    return Plan(
        public_of(dataset, schema),
        kind,
        max(len(dataset.classes), 1) if kind == "classes" else 1,
        centre,
        scale,
        len(dataset.x),
        clients,
        max(surely - colluders, 1) if surely > 1 else 1,
        mu_of(config.epsilon, config.delta),
        _noise_seed(config),
        int(config.unit_rows or 1),
        (MOST_PAIRS if kind == "numbers" else 0) if config.pairs is None else int(config.pairs),
    )


def _noise_seed(config: Any) -> int:
    """What tells the noise of this run from that of others.

    Sites have secrets of their own, and a server that goes on must ask the same questions again.  On one machine the
    noise follows from this number, which no one else may know.
    """
    if config.noise_seed is not None:
        return int(config.noise_seed)
    return int(config.seed) if tuple(config.data) == ("sites",) else secrets.randbits(120)


def private_parts(config: Any, dataset: Dataset) -> tuple[AdditivePrivate, Any, Target | None]:
    """The algorithm, how its family comes about, and how targets are scaled."""
    plan = make_plan(config, dataset)

    def learner(ask: Ask) -> tuple[Family, Geometry | None]:
        return private_family(plan, ask), None

    target = Target(np.array([plan.centre]), np.array([plan.scale])) if plan.kind == "numbers" else None
    return AdditivePrivate(plan, json.dumps(promise(config, dataset))), learner, target


def promise(config: Any, dataset: Dataset) -> dict[str, Any]:
    """What a private training promises: for the summary, the report, the card and exported models."""
    masked = config.secure == "on"
    plan = make_plan(config, dataset)
    return {
        "epsilon": config.epsilon,
        "delta": config.delta,
        "mu": plan.mu,
        "rows": plan.rows_in_all,
        "adjacency": (
            "one row is replaced by an empty one"
            if config.unit is None
            else f"all rows of one {config.unit} (up to {plan.rows}) are replaced by empty ones"
        ),
        "noise": (
            f"discrete Gaussian in shares under masks, complete without {plan.clients - plan.shares} of "
            f"{plan.clients} clients"
            if masked
            else "discrete Gaussian at each client: there are no masks"
        ),
        **(
            {} if config.noise_seed is None else {"warning": "the noise follows from noise_seed: for experiments alone"}
        ),
        "public": [
            "bounds and categories of the schema",
            *(["which classes there are"] if dataset.classes else []),
            "the number of rows",
        ],
        "not_covered": "scores of held-out rows, which are no part of the training",
    }


def public_part(known: Mapping[str, Any]) -> dict[str, Any]:
    """What `clients.json` may say of a private training: nothing that is computed from rows to train with."""
    clients = [
        {**client, "points": None, "train": None, "test": None, "labels": None, "target": None}
        for client in known["clients"]
    ]
    return {**known, "clients": clients, "columns": []}
