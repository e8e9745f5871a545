"""What a model makes of its columns: importance, shapes, and what each column adds at single rows.

All are sums over rows, by site: losses with a column shuffled within each site (importance), mean predictions with a
column set to a value (shapes), and counts of cells (contributions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.special import logit

from ffgb.core.contributions import contributions, leaves
from ffgb.core.disclosure import LEAST, joined
from ffgb.core.estimates import Sampled, mean
from ffgb.core.functions import OpenSum
from ffgb.core.judgement import CLOSEST
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.reading import Reading
from ffgb.errors import FFGBError, option
from ffgb.features.tables import MISSING
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.held_out import FEW_VALUES, HeldOut
from ffgb.runs.model import Model

FILE = "effects.json"
REPEATS = 5
"""How often a column is shuffled."""
ROWS, COLUMNS, SHAPES = 4000, 300, 8
"""Rows and columns that are looked at, and shapes that are drawn, at most."""
POINTS = 15
"""Values of a column of numbers, at most."""
GROUPS = 12
"""Categories of a column, at most: the rarest are joined."""


@final
@dataclass(frozen=True)
class Raw:
    """A column of the user's table, and where its numbers are in a point."""

    name: str
    places: tuple[int, ...]
    """The number itself, or one for each category."""
    categories: tuple[str, ...] = ()
    flag: int | None = None
    """What says that the number is missing."""


def raw_columns(names: Sequence[str], dimension: int) -> list[Raw]:
    """The columns behind the numbers of a point."""
    names = list(names) or [f"x{j}" for j in range(dimension)]
    flags = {name.removesuffix(f" {MISSING}"): j for j, name in enumerate(names) if name.endswith(f" {MISSING}")}
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        if j not in flags.values() or name.removesuffix(f" {MISSING}") not in names:
            groups.setdefault(name.partition("=")[0], []).append(j)
    found = []
    for name, places in groups.items():
        categories = tuple(names[j].partition("=")[2] for j in places) if "=" in names[places[0]] else ()
        found.append(Raw(name, tuple(places), categories, flags.get(name)))
    return found


def explain(run: Run) -> dict[str, Any]:
    """Importance and shapes of the columns of a run's model, for `effects.json`."""
    model, dataset = Model.load(run.path), _data(run)
    if len(model.shape) != 1:
        raise FFGBError("only columns of tables are explained, and the model was trained on images")
    held = len(dataset.y_test) > 0
    rows = HeldOut(
        *((dataset.x_test, dataset.y_test) if held else (dataset.x, dataset.y)),
        dataset.sites,
        dataset.site_test if held else dataset.site,
        dataset.weights_test if held else dataset.weights,
    )
    columns = raw_columns(model.columns, model.shape[0])[:COLUMNS]
    ranked = importance(model, rows, columns, int(run.config.get("seed") or 0))
    found: dict[str, Any] = {"held_out": held, "importance": ranked, "unit": _unit(model), "shapes": []}
    if len(model.classes) == 2 or (not model.classes and model.job.loss.outputs == 1):
        by_name = {column.name: column for column in columns}
        most = [by_name[row["column"]] for row in ranked[:SHAPES]]
        found["shapes"] = [shape for c in most if (shape := shape_of(model, dataset.x, c)) is not None]
    return found


def _data(run: Run) -> Dataset:
    if run.config.get("data") == ["sites"]:
        raise FFGBError(
            "the rows of this run are at its sites; each of them can explain the model in its own folder: "
            "ffgb explain MODEL-FOLDER"
        )
    return load_data(Config.from_json(run.config))


def _unit(model: Model) -> str:
    """What predictions of shapes are."""
    if not model.job.loss.alone:
        return "log hazard ratio"
    return f"probability of {model.classes[1]}" if len(model.classes) == 2 else "prediction"


def importance(model: Model, rows: HeldOut, columns: Sequence[Raw], seed: int = 0) -> list[dict[str, Any]]:
    """How much the loss rises if a column is shuffled within each site, the most important first.

    The loss is that of classes, or the squared error in the target's own units.
    """
    rng = stream(seed, "importance")
    some = np.sort(rng.permutation(len(rows.y))[:ROWS])
    x, y = rows.x[some], rows.y[some]
    site = np.zeros(len(y), np.int64) if rows.site is None else rows.site[some]
    sampled = Sampled.of(len(y), None if rows.weights is None else rows.weights[some], site)
    before, orders = losses(model, x, y, site), [_within(site, rng) for _ in range(REPEATS)]
    found = []
    for column in columns:
        at = [*column.places, *([column.flag] if column.flag is not None else [])]
        rise = np.zeros(len(y))
        for order in orders:
            shuffled = x.copy()
            shuffled[:, at] = x[order][:, at]
            rise += (losses(model, shuffled, y, site) - before) / REPEATS
        found.append({"column": column.name, **mean(rise, sampled).to_json()})
    return sorted(found, key=lambda row: -row["value"])


def _within(site: Array, rng: np.random.Generator) -> Array:
    """An order of rows in which each stays at its site."""
    order = np.arange(len(site))
    for k in np.unique(site):
        own = np.flatnonzero(site == k)
        order[own] = rng.permutation(own)
    return order


def losses(model: Model, x: Array, y: Array, site: Array) -> Array:
    """The loss of each row: of classes, of times, or the squared error in the target's own units."""
    f = model.decision(x)
    if model.classes:
        return model.losses(f, y)
    if not model.job.loss.alone:  # rows of a site are at risk beside each other
        found = np.zeros(len(y))
        for k in np.unique(site):
            found[site == k] = model.job.loss.value(f[site == k], y[site == k])
        return found
    values = model.job.predicted(f)
    error: Array = np.square(values - y.reshape(values.shape)).sum(axis=1)
    return error


def shape_of(model: Model, x: Array, column: Raw) -> dict[str, Any] | None:
    """The mean prediction if a column has each of some values, and how many rows have about that value.

    For an additive model this is the column's term, up to a constant, on the scale of `f`.
    """
    sample = x[np.sort(stream(0, "shapes").permutation(len(x))[: ROWS // 4])]
    settings, rows = _settings(x, column)
    if len(settings) < 2:
        return None
    values = []
    for words, number, weights in settings:
        parts = []
        for places, share in weights:
            there = sample.copy()
            for j, value in places.items():
                there[:, j] = value
            parts.append((share, _means(model, there)))
        f, prediction = (sum(share * part[k] for share, part in parts) for k in (0, 1))
        values.append({"value": words, "number": number, "f": f, "prediction": prediction})
    kind = "categories" if column.categories else "numbers"
    return {"column": column.name, "kind": kind, "values": values, "rows": rows}


def _means(model: Model, x: Array) -> tuple[float, float]:
    """Means of f, as log odds or in the target's units, and of predictions."""
    if model.classes:
        p = model.predict_proba(x)[:, 1]
        return float(logit(np.clip(p, CLOSEST, 1 - CLOSEST)).mean()), float(p.mean())
    f = model.decision(x)
    return float(f[:, 0].mean()), float(model.job.predicted(f)[:, 0].mean())


Setting = tuple[str, float | None, list[tuple[dict[int, float], float]]]
"""A value in words, as a number, and what a point has for it: several, with their shares, where values are joined."""


def _settings(x: Array, column: Raw) -> tuple[list[Setting], list[int]]:
    """Values to set a column to, with the rows that have about that value: enough of them."""
    if column.categories:
        return _of_categories(x, column)
    gone = x[:, column.flag] == 1 if column.flag is not None else np.zeros(len(x), bool)
    values = x[~gone, column.places[0]].astype(np.float64)
    different = np.unique(values)
    if len(different) > FEW_VALUES:
        different = np.unique([float(f"{v:.2e}") for v in np.quantile(values, np.linspace(0.02, 0.98, POINTS))])
    while True:
        counts = np.bincount(_nearest(different, values), minlength=len(different))
        if len(different) < 2 or counts.min() >= LEAST:
            break
        different = np.delete(different, int(counts.argmin()))
    flag = {} if column.flag is None else {column.flag: 0.0}
    found: list[Setting] = [(f"{v:g}", float(v), [({column.places[0]: float(v), **flag}, 1.0)]) for v in different]
    rows = counts.tolist()
    if gone.sum() >= LEAST and column.flag is not None:
        fill = float(x[gone, column.places[0]][0])
        found.append(("missing", None, [({column.places[0]: fill, column.flag: 1.0}, 1.0)]))
        rows.append(int(gone.sum()))
    return found, rows


def _nearest(grid: Array, values: Array) -> Array:
    return np.searchsorted((grid[:-1] + grid[1:]) / 2, values)


def _of_categories(x: Array, column: Raw) -> tuple[list[Setting], list[int]]:
    hot = x[:, list(column.places)]
    group = np.where(hot.any(axis=1), hot.argmax(axis=1), len(column.places))
    words = [*column.categories, "any other"]
    counts = np.bincount(group, minlength=len(words))
    groups = joined(counts[:, None], LEAST, GROUPS) or []
    found: list[Setting] = []
    for members in groups:
        weights = []
        for k in members:
            places = {j: float(i == k) for i, j in enumerate(column.places)}
            weights.append((places, float(counts[k] / counts[members].sum())))
        found.append((" or ".join(words[k] for k in members), None, [pair for pair in weights if pair[1] > 0]))
    return found, [int(counts[members].sum()) for members in groups]


def contributions_of(run: Run, file: Path, reading: Reading | None = None) -> pd.DataFrame:
    """A row a row of the file: what each column adds to f, beginning with the mean.  Exact, for sums of trees.

    f is the log odds of the second class, or of several the score of the predicted one, or the target in its own units
    if the loss has the identity link.
    """
    model = Model.load(run.path)
    family = model.family
    if not isinstance(family, BoostedTrees) or not isinstance(model.f, OpenSum):
        raise FFGBError(
            "contributions of single rows are exact for sums of trees only; train with "
            f"{option('learner', 'trees')}, additive or blend"
        )
    x = model.read(file, reading or Reading.of(run.config).of_values)
    cells, dataset = family.layout.cells, _data(run)
    known = family.features(dataset.x)
    shares = [np.bincount(known[:, c], minlength=int(n))[: int(n)] / len(known) for c, n in enumerate(cells)]
    some = (leaf for block in model.f.blocks for leaf in leaves(block.stack, block.weights, cells))
    found, base = contributions(some, family.features(x), shares, family.outputs)
    f = model.f.evaluate(family.features(x))
    output = f.argmax(axis=1) if family.outputs > 1 else np.zeros(len(f), np.int64)
    own, start, whole = found[np.arange(len(f)), :, output], base[output], f[np.arange(len(f)), output]
    names = list(family.features.names)
    columns: Mapping[str, Any] = {"prediction": model.predict(x), "f": whole, "mean": start}
    return pd.DataFrame({**columns, **{name: own[:, c] for c, name in enumerate(names)}})
