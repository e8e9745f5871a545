"""What a model makes of its columns: importance, shapes, and what each column adds at single rows.

All are sums over rows, by site: losses with a column shuffled within each site (importance), mean predictions with a
column set to a value (shapes), and counts of cells (contributions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.special import logit

from ffgb.core.contributions import contributions, leaves
from ffgb.core.disclosure import LEAST, joined
from ffgb.core.estimates import Sampled, mean
from ffgb.core.functions import ClosedSum, OpenSum
from ffgb.core.judgement import CLOSEST
from ffgb.core.losses.links import Identity
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.reading import Reading
from ffgb.errors import FFGBError, option
from ffgb.features.tables import MISSING
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.linear import Linear
from ffgb.runs.coefficients import coefficients
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import own_rows
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
PAIRED, PAIRED_VALUES, PAIRED_ROWS = 6, 6, 200
"""Columns that are looked at in pairs, values of each, and rows, at most."""


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
    """Importance and shapes of the columns of a run's model, and coefficients of a line, for `effects.json`."""
    model = Model.load(run.path)
    if len(model.shape) != 1:
        raise FFGBError("only columns of tables are explained, and the model was trained on images")
    line = coefficients(model, run.config)
    if line is not None and run.config.get("data") == ["sites"] and not run.config.get("sha256"):
        # rows are at their sites, and coefficients need none
        return {"held_out": False, "importance": [], "unit": _unit(model), "shapes": [], "line": line}
    dataset = _data(run)
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
    if line is not None:
        found["line"] = line
    if len(model.classes) == 2 or (not model.classes and model.job.loss.outputs == 1):
        by_name = {column.name: column for column in columns}
        most = [by_name[row["column"]] for row in ranked[:SHAPES]]
        found["shapes"] = [shape for c in most if (shape := shape_of(model, dataset.x, c)) is not None]
        found["interactions"] = interactions(model, dataset.x, most[:PAIRED])
    return found


def _data(run: Run) -> Dataset:
    if run.config.get("data") == ["sites"]:
        if files := run.config.get("sha256"):
            return own_rows(run, Model.load(run.path), Path(next(iter(files))))
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
    """Means of f, as log odds or in the target's units (behind a link: in its own), and of predictions."""
    if model.classes:
        p = model.predict_proba(x)[:, 1]
        return float(logit(np.clip(p, CLOSEST, 1 - CLOSEST)).mean()), float(p.mean())
    f, (scale, mean) = model.decision(x), _units(model)
    return float(f[:, 0].mean() * scale[0] + mean[0]), float(model.job.predicted(f)[:, 0].mean())


def _units(model: Model) -> tuple[Array, Array]:
    """By what f is multiplied, and what is added, to have the target's own units: 1 and 0 where a link is between."""
    target, outputs = model.job.target, model.job.loss.outputs
    if target is None or not isinstance(model.job.loss.link, Identity):
        return np.ones(outputs), np.zeros(outputs)
    return np.broadcast_to(target.scale, outputs), np.broadcast_to(target.mean, outputs)


def interactions(model: Model, x: Array, columns: Sequence[Raw]) -> list[dict[str, Any]]:
    """For each pair of columns, how far f is from a sum of what each of them does, the strongest pair first.

    The mean of f is taken with both columns set to values.  What is left of it after the means over either column is
    the interaction; its `strength` is the standard deviation, by the rows that have about each value, as if columns
    were independent.  For an additive model all are 0.
    """
    sample = x[np.sort(stream(0, "shapes").permutation(len(x))[:PAIRED_ROWS])]
    known = [(column.name, *_coarse(*_settings(x, column))) for column in columns]
    found = []
    for (first, a, rows_a), (second, b, rows_b) in combinations([each for each in known if len(each[1]) > 1], 2):
        f = np.array([[_mean_with(model, sample, one, other) for other in b] for one in a])
        p, q = (np.array(rows) / sum(rows) for rows in (rows_a, rows_b))
        left = f - (f @ q)[:, None] - p @ f + p @ f @ q
        found.append(
            {
                "columns": [first, second],
                "strength": float(np.sqrt(p @ np.square(left) @ q)),
                "values": [[setting[0] for setting in some] for some in (a, b)],
                "f": f.tolist(),
                "interaction": left.tolist(),
            }
        )
    return sorted(found, key=lambda pair: -pair["strength"])


def _coarse(settings: list[Setting], rows: list[int]) -> tuple[list[Setting], list[int]]:
    """Some of the values of a column, each for the rows that are nearest to it."""
    if len(settings) <= PAIRED_VALUES:
        return settings, rows
    kept = np.unique(np.linspace(0, len(settings) - 1, PAIRED_VALUES).round().astype(int))
    counts = np.bincount(_nearest(kept, np.arange(len(settings))), rows, len(kept))
    return [settings[k] for k in kept], [int(n) for n in counts]


def _mean_with(model: Model, x: Array, one: Setting, other: Setting) -> float:
    """The mean of f with two columns set to values: log odds, log hazard ratios, or the target's units."""
    found = 0.0
    for places, share in one[2]:
        for more, part in other[2]:
            there = x.copy()
            for j, value in {**places, **more}.items():
                there[:, j] = value
            found += share * part * _means(model, there)[0]
    return found


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
    """A row a row of the file: what each column adds to f, beginning with the mean.

    Exact Shapley values, for sums of trees and for lines; columns that are not known are drawn independently.
    f is the log odds of the second class, or of several the score of the predicted one, or the target in its own units
    if the loss has the identity link.
    """
    model = Model.load(run.path)
    x = model.read(file, reading or Reading.of(run.config).of_values)
    names, found, base = _adding_up(model, x, _data(run).x)
    f = model.decision(x)
    output = f.argmax(axis=1) if f.shape[1] > 1 else np.zeros(len(f), np.int64)
    scale, mean = (part[output] for part in _units(model))
    whole, start = f[np.arange(len(f)), output] * scale + mean, base[output] * scale + mean
    own = found[np.arange(len(f)), :, output] * scale[:, None]
    columns: Mapping[str, Any] = {"prediction": model.predict(x), "f": whole, "mean": start}
    return pd.DataFrame({**columns, **{name: own[:, c] for c, name in enumerate(names)}})


def _adding_up(model: Model, x: Array, known: Array) -> tuple[list[str], Array, Array]:
    """Names of columns, what each adds to f at rows x, (n, columns, outputs), and f where none is known, (outputs,).

    `known` are rows by which a column that is not known is drawn.
    """
    family = model.family
    if isinstance(family, BoostedTrees) and isinstance(model.f, OpenSum):
        cells, of_known = family.layout.cells, family.features(known)
        shares = [np.bincount(of_known[:, c], minlength=int(n))[: int(n)] / len(known) for c, n in enumerate(cells)]
        some = (leaf for block in model.f.blocks for leaf in leaves(block.stack, block.weights, cells))
        return list(family.features.names), *contributions(some, family.features(x), shares, family.outputs)
    if isinstance(family, Linear) and isinstance(model.f, ClosedSum) and family.features.dimension == x.shape[1]:
        columns = raw_columns(model.columns, x.shape[1])
        z, mean = family.features(x).astype(np.float64), family.features(known).mean(axis=0, dtype=np.float64)
        own = (z - mean)[:, :, None] * model.f.parameters["weight"][:-1]
        joined = [own[:, [*c.places, *([] if c.flag is None else [c.flag])]].sum(axis=1) for c in columns]
        base = model.f.evaluate(mean[None])[0]
        return [c.name for c in columns], np.stack(joined, axis=1), base
    raise FFGBError(
        "contributions of single rows are exact for sums of trees and for lines only; train with "
        f"{option('learner', 'trees')}, additive, blend or linear"
    )
