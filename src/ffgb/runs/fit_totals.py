"""How well a model fits rows that stay at their sites: the scores and curves of fit.py, from totals.

Sums over all rows are exact: errors of numbers, Brier scores, the line of calibration, rows that are called right or
wrong.  What depends on the order of rows is computed from cells of the prediction.  Where rows lie within a cell is
known, and how many are of either class, but not which: the higher the prediction, the more likely class 1, by the line
of calibration.  So the AUC is off by a part of the pairs that share a cell (`auc_error_at_most`), and as a rule by a
small part: rows of a cell have nearly the same probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit, logit

from ffgb.core import estimates
from ffgb.core.disclosure import LEAST, ordered_cells
from ffgb.core.estimates import LEVEL, Estimate, Sampled
from ffgb.core.exact_sums import EXACT, Sizes, unit_for
from ffgb.core.held_out_sums import (
    CALIBRATION_STEPS,
    CHANCES,
    COLUMNS,
    LARGEST_LOSS,
    LARGEST_SQUARE,
    ByChance,
    ByNumber,
    CalibrationSums,
    ChanceRows,
    ChanceSums,
    ErrorRows,
    ErrorSums,
    NumberRows,
    OnLine,
)
from ffgb.core.judgement import STEEPEST, auc, average_precision
from ffgb.core.probability_cells import BINS, ProbabilityCells
from ffgb.core.questions import RoundQuestion
from ffgb.core.residuals import residual_quantiles
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.protocol.job import Job
from ffgb.runs.fit import CELLS, CLASSES, NUMBER, THRESHOLD, calls_of

AskHeldOut: TypeAlias = Callable[[RoundQuestion], Any]
MOST_ROWS = 2_000_000
"""Of held-out rows whose influences are computed one by one, from cells."""


def fit_by_totals(
    ask: AskHeldOut,
    job: Job,
    classes: tuple[str, ...],
    known: Mapping[str, float],
    *,
    least: int = LEAST,
    level: float = LEVEL,
) -> dict[str, Any]:
    """Scores, curves and calls, as `fit` returns them, from totals over the rows that are held out.

    Parameters
    ----------
    ask
        Puts a question to all rows that are held out.
    job
        What was trained.
    classes
        Their names; none if the model predicts numbers.
    known
        What reports of all clients have told: `test_loss`, `test_accuracy`.
    least
        Rows of a cell whose targets are asked for.
    level
        Of confidence intervals.
    """
    if not job.loss.alone or (not classes and job.loss.outputs != 1):
        raise FFGBError("times until an event, and several targets, have no scores by totals beside loss and score")
    # what is shown has at least as many rows of a class in a cell as anywhere else
    found: dict[str, Any] = {"classes": list(classes), "level": level, "least": max(least, LEAST), "by": "totals"}
    left = list[str]()
    if classes:
        part, more = _of_classes(ask, job, len(classes), known, max(least, 1), level, left)
    else:
        part, more = _of_numbers(ask, job, max(least, 1), level, left)
    whole = {"task": CLASSES if classes else NUMBER, **found, "parts": {"all": part}, "subgroups": []}
    return whole | more | {"left_out": left}


def _enough(rows: float, least: int) -> int:
    if rows < 2 * least:
        raise FFGBError(f"{rows:,.0f} rows are held out in all, and sums over so few say too much about each")
    return int(rows)


# Classes


def _of_classes(
    ask: AskHeldOut, job: Job, classes: int, known: Mapping[str, float], least: int, level: float, left: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scores of all rows, and what is drawn."""
    counts: Array = ask(ChanceRows())
    rows = _enough(counts.sum(), least)
    half = int(np.searchsorted(CHANCES, THRESHOLD)) + 1
    starts = np.array(ordered_cells(counts[:, None], least, half), np.int32)
    unit = unit_for(LARGEST_LOSS * rows, rows, EXACT)
    sums: ByChance = ask(ChanceSums(starts, unit))
    if not np.array_equal(np.add.reduceat(counts, starts), sums.rows.sum(axis=1)):
        raise FFGBError("rows by cells of the prediction differ between two totals: a site has sent wrong numbers")
    sampled = Sampled.of(rows, level=level)
    scores, more = dict[str, Estimate](), _drawn(sums, starts, level, left, two=classes == 2)
    if classes == 2:
        scores, more["auc_error_at_most"] = _of_two(ask, counts, starts, sums, sampled)
    right = known.get("test_accuracy")
    if classes == 2 and half in starts:
        right = float((sums.rows[starts < half, 0].sum() + sums.rows[starts >= half, 1].sum()) / rows)
    if right is not None:
        scores["accuracy"] = estimates.wilson(right, rows, sampled.z)
    if "test_loss" in known:
        half_width = _around(sums.losses, sampled)
        loss = known["test_loss"]
        scores["loss"] = Estimate(loss, max(loss - half_width, 0.0), loss + half_width)
    brier, half_width = float(sums.brier[0] / rows), _around(sums.brier, sampled)
    scores["brier"] = Estimate(brier, max(brier - half_width, 0.0), brier + half_width)
    part = {"rows": rows, "scores": {name: score.to_json() for name, score in scores.items()}}
    return part, more | {"cells": len(starts)}


def _around(sums: Array, sampled: Sampled) -> float:
    """Half the width of the interval of a mean, from Σ v and Σ v²."""
    n = len(sampled.mass)
    variance = max(sums[1] / n - (sums[0] / n) ** 2, 0.0) * n / max(n - 1, 1)
    return sampled.z * math.sqrt(variance / n)


def _of_two(
    ask: AskHeldOut, counts: Array, starts: Array, sums: ByChance, sampled: Sampled
) -> tuple[dict[str, Estimate], float]:
    """Scores of two classes; and by how much the AUC is off, at most."""
    scores = _ranked(sums, sampled)
    # asked in any case: what sites agree to answer must not depend on rows
    line = _calibrated(ask, scores, sampled)
    if "calibration_slope" in scores:
        scores |= line
    zeros, ones = sums.rows.sum(axis=0)
    if not (zeros > 0 and ones > 0):
        return scores, 0.0
    slope = scores["calibration_slope"].value if "calibration_slope" in scores else 1.0
    place, kind, mass = _likely(counts, starts, sums.rows, slope)
    even, likely = scores["auc"].value if "auc" in scores else 0.5, auc(place, kind, mass)
    if "auc" in scores:
        scores["auc"] = _moved(scores["auc"], likely)
        scores["average_precision"] = _moved(scores["average_precision"], average_precision(place, kind, mass))
    else:
        scores |= {"auc": Estimate(likely), "average_precision": Estimate(average_precision(place, kind, mass))}
    shared = float(sums.rows.prod(axis=1).sum() / (2.0 * zeros * ones))
    return scores, shared + abs(likely - even)


def _moved(around: Estimate, value: float) -> Estimate:
    """An interval of the same width on the scale of log odds, about another value."""
    if around.low is None or around.high is None or not 0.0 < value < 1.0:
        return Estimate(value)
    shift = logit(value) - logit(around.value)
    return Estimate(value, *(float(expit(logit(end) + shift)) for end in (around.low, around.high)))


def _likely(counts: Array, starts: Array, rows: Array, slope: float) -> tuple[Array, Array, Array]:
    """Rows in fine cells, as if each were a little of either class: places, kinds and masses.

    Within a merged cell the log odds of class 1 rise with the prediction, and masses add up to the rows that are known.
    """
    fine = np.flatnonzero(counts)
    cell = np.searchsorted(starts, fine, side="right") - 1
    z = slope * (fine - 0.5 - len(CHANCES) // 2) / 64.0
    low, high = np.full(len(starts), -200.0), np.full(len(starts), 200.0)
    for _ in range(60):
        middle = (low + high) / 2
        some = np.bincount(cell, counts[fine] * expit(z + middle[cell]), len(starts))
        low, high = np.where(some < rows[:, 1], middle, low), np.where(some < rows[:, 1], high, middle)
    one = expit(z + ((low + high) / 2)[cell])
    mass = counts[fine]
    return np.tile(fine, 2), np.repeat([0, 1], len(fine)), np.concatenate([mass * (1.0 - one), mass * one])


def _ranked(sums: ByChance, sampled: Sampled) -> dict[str, Estimate]:
    """What depends on the order of rows, and whether probabilities are right."""
    rows, ones = len(sampled.mass), float(sums.rows[:, 1].sum())
    found = {"base_rate": estimates.wilson(ones / rows, rows, sampled.z)}
    if not 0.0 < ones < rows:
        return found | {"auc": Estimate(0.5)}
    found["expected"] = Estimate(float(sums.chances.sum() / rows))
    if rows > MOST_ROWS:  # each influence counts for many rows then
        return found
    cell, place, y = _rows_of(sums.rows)
    found["auc"] = estimates.area(cell + place, y, sampled)
    found["average_precision"] = estimates.precision_area(cell + place, y, sampled)
    mean = (sums.log_odds / sums.rows.sum(axis=1))[cell.astype(np.int64)]
    line = estimates.calibration_line(expit(mean), y, sampled)
    if line is not None:
        found["calibration_intercept"], found["calibration_slope"] = line
    return found


def _calibrated(ask: AskHeldOut, start: Mapping[str, Estimate], sampled: Sampled) -> dict[str, Estimate]:
    """The line of calibration by sums over all rows: Newton steps, and robust errors."""
    rows, there = len(sampled.mass), "calibration_slope" in start
    line = np.array([start[f"calibration_{name}"].value for name in ("intercept", "slope")] if there else [0.0, 1.0])
    unit = unit_for(LARGEST_SQUARE * rows, rows, EXACT)
    for _ in range(CALIBRATION_STEPS):
        at: OnLine = ask(CalibrationSums(float(line[0]), float(line[1]), unit))
        if there:
            line = line + np.linalg.solve(at.information, at.score)
    if not (there and abs(line[1]) < STEEPEST):
        return {}
    inverse = np.linalg.inv(at.information)
    variance = np.diag(inverse @ at.squares @ inverse) * rows / max(rows - 1, 1)
    intercept, slope = (sampled.around(float(v), math.sqrt(e)) for v, e in zip(line, variance, strict=True))
    return {"calibration_intercept": intercept, "calibration_slope": slope}


def _rows_of(counts: Array) -> tuple[Array, Array, Array]:
    """Rows as cells count them: the cell of each, its place in the cell from 0 to 1, and its kind.

    Rows of either kind lie evenly in their cell.
    """
    cells, kinds = np.indices(counts.shape)
    many = counts.ravel().astype(np.int64)
    cell, kind = (np.repeat(each.ravel(), many) for each in (cells, kinds))
    first = np.repeat(np.cumsum(many) - many, many)
    place = (np.arange(len(cell)) - first + 0.5) / np.repeat(many, many)
    return cell.astype(np.float64), place, kind


def _drawn(sums: ByChance, starts: Array, level: float, left: list[str], *, two: bool) -> dict[str, Any]:
    """Curves and calls, whose cells have enough rows of each kind.

    Calls are told where cells of both kinds end, so that no difference of counts is of fewer rows.
    """
    grid = CHANCES[starts[1:] - 1]
    cells: ProbabilityCells | None = None
    for most in CELLS:
        cells = ProbabilityCells.of_counts(
            grid, sums.rows, sums.rows, sums.chances, least=LEAST, threshold=THRESHOLD, most=most
        )
        if cells.holds(LEAST):
            break
        cells = None
    if cells is None:
        left.append(f"curves: some of their cells would have fewer than {LEAST} rows of a kind")
        return {"curves": None, "confusion": None} if two else {"curves": None}
    if not two:
        return {"curves": {"calibration": cells.calibration(level)}}
    found: dict[str, Any] = {"curves": cells.to_json(level), "confusion": None}
    if THRESHOLD in cells.edges:
        found["confusion"] = _calls(sums.rows, grid, THRESHOLD, level)
    if found["confusion"] is None:
        left.append(f"calls at {THRESHOLD:g}: too few rows are right, or wrong")
    if len(cells.edges):
        above = np.stack([1.0 - np.cumsum(own)[:-1] / own.sum() for own in cells.rows.T])
        best = float(cells.edges[int((above[1] - above[0]).argmax())])
        found["confusion_at_best"] = _calls(sums.rows, grid, best, level)
    return found


def _calls(rows: Array, grid: Array, threshold: float, level: float) -> dict[str, Any] | None:
    """Right and wrong calls at a threshold between two cells; None if fewer rows than enough are right, or wrong."""
    if threshold not in grid:
        return None
    above = int(np.searchsorted(grid, threshold)) + 1
    counts = [int(part) for kind in (0, 1) for part in (rows[:above, kind].sum(), rows[above:, kind].sum())]
    if min(counts) < LEAST:
        return None
    return {"threshold": threshold, "parts": {"all": calls_of(counts, level)}}


# Numbers


def _of_numbers(
    ask: AskHeldOut, job: Job, least: int, level: float, left: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scores of all rows, groups of predictions, and quantiles of errors."""
    counts: NumberRows = ask(ErrorRows())
    rows = _enough(counts.predictions.sum(), least)
    enough = max(least, LEAST, math.ceil(rows / BINS))
    starts = np.array(ordered_cells(counts.predictions[:, None], enough), np.int32)
    units = np.array([unit_for(total, rows, EXACT) for total in Sizes.of(counts.orders).total])
    sums: ByNumber = ask(ErrorSums(starts, units))
    if not np.array_equal(np.add.reduceat(counts.predictions, starts), sums.rows):
        raise FFGBError("rows by cells of the prediction differ between two totals: a site has sent wrong numbers")
    mean, scale = (0.0, 1.0) if job.target is None else (float(job.target.mean[0]), float(job.target.scale[0]))
    sampled = Sampled.of(rows, level=level)
    scores = _errors(dict(zip(COLUMNS, (sums.sums / rows).tolist(), strict=True)), mean, scale, sampled)
    calibration = []
    for count, (predicted, target, square) in zip(sums.rows.tolist(), sums.by_cell.T.tolist(), strict=True):
        own, middle = Sampled.of(int(count), level=level), target / count
        half = _around(np.array([target, square]), own) * scale
        observed = Estimate(middle * scale + mean, middle * scale + mean - half, middle * scale + mean + half)
        calibration.append(
            {"rows": int(count), "predicted": predicted / count * scale + mean, "observed": observed.to_json()}
        )
    part = {"rows": rows, "scores": {name: score.to_json() for name, score in scores.items()}}
    residuals = residual_quantiles(counts.errors, scale, max(least, LEAST))
    return part, {"curves": {"calibration": calibration}, "residuals": residuals, "cells": len(starts)}


def _errors(mean: Mapping[str, float], shift: float, scale: float, sampled: Sampled) -> dict[str, Estimate]:
    """Scores in the target's own units, from means over all rows in training units."""
    n = len(sampled.mass)
    square, spread = mean["square"], mean["target²"] - mean["target"] ** 2
    ends = [math.sqrt(max(square + s * _around(n * np.array([square, mean["fourth"]]), sampled), 0.0)) for s in (-1, 1)]
    size, half = mean["size"], _around(n * np.array([mean["size"], square]), sampled)
    bias = mean["prediction"] - mean["target"]
    around = _around(n * np.array([bias, square]), sampled)
    found = {
        "rmse": Estimate(math.sqrt(square) * scale, ends[0] * scale, ends[1] * scale),
        "mean_absolute_error": Estimate(size * scale, max(size - half, 0.0) * scale, (size + half) * scale),
        "bias": Estimate(bias * scale, (bias - around) * scale, (bias + around) * scale),
    }
    if spread > 0:
        found["r2"] = Estimate(1.0 - square / spread)
    of_predictions = mean["prediction²"] - mean["prediction"] ** 2
    if of_predictions > 1e-14 * max(mean["prediction²"], 1e-300):
        slope = (mean["product"] - mean["prediction"] * mean["target"]) / of_predictions
        intercept = (mean["target"] - slope * mean["prediction"]) * scale + shift * (1.0 - slope)
        found["calibration_intercept"], found["calibration_slope"] = Estimate(intercept), Estimate(slope)
    return found


def summarised(found: Mapping[str, Any]) -> dict[str, float]:
    """What a summary says of such scores: the same names as where rows are here."""
    scores = {name: score["value"] for name, score in found["parts"]["all"]["scores"].items()}
    names = ("base_rate", "auc", "average_precision", "calibration_intercept", "calibration_slope", "brier")
    if found["task"] == CLASSES:
        return {f"test_{name}": scores[name] for name in names if name in scores and "base_rate" in scores}
    rmse = found["parts"]["all"]["scores"]["rmse"]
    told = {"test_rmse_low": rmse["low"], "test_rmse_high": rmse["high"], "test_mean_absolute_error": None}
    told["test_mean_absolute_error"] = scores["mean_absolute_error"]
    if "r2" in scores:
        told |= {"test_r2": scores["r2"]}
        if scores["r2"] < 1.0:
            told["test_rmse_of_mean"] = scores["rmse"] / math.sqrt(1.0 - scores["r2"])
    return told
