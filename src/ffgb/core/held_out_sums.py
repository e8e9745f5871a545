"""Questions about rows that are held out, when training has ended: sums that scores and curves are computed from.

First the server asks how many rows lie in each fine cell of the prediction, without their targets.  It merges cells
until each has enough rows of all clients together, and asks for targets by merged cells alone.  Each row is rounded to
a whole multiple of a public unit before it is added (exact_sums.py), so a total has the same bits over any split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
from scipy.special import expit, logit

from ffgb.core.exact_sums import ORDERS, check_counts, counted, orders, whole
from ffgb.core.judgement import CLOSEST
from ffgb.core.questions import Here, RoundQuestion, Sum, known
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError

CHANCES = expit(np.arange(-1024, 1025) / 64)
"""Where fine cells of probabilities may end: log odds from −16 to 16.  0.5 is one of them."""
VALUES = np.sinh(np.arange(-720, 721) / 64)
"""Where fine cells of predicted numbers may end, in training units: 1/64 apart near 0, and 1.6 % far from it."""
SIZES = np.geomspace(1e-5, 1e4, 1045)
ERRORS = np.concatenate([-SIZES[::-1], [0.0], SIZES])
"""Where fine cells of errors may end, in training units: 2 % apart."""
LARGEST_SQUARE = 1024.0
"""Of the log odds of a row."""
LARGEST_LOSS = 32.0
"""Losses of single rows are cut off here, for their interval alone."""
CALIBRATION_STEPS = 3
"""Newton steps for the line of calibration, which begin at the line of cells."""
COLUMNS = ("target", "prediction", "size", "square", "fourth", "target²", "prediction²", "product")
"""What is added up over rows, of targets that are numbers: size, square and fourth power are those of the error."""


class _OfTheResult(RoundQuestion):
    """A question that only rows that are held out answer."""

    of_result: ClassVar[bool] = True

    def _rows_of(self, here: Here) -> tuple[Array, Array]:
        """f at the rows, and their targets; rows must weigh the same."""
        if here.points.weights is not None:
            raise FFGBError("scores by totals count rows, and these have weights")
        return known(here.f), known(here.y)


@final
@dataclass(frozen=True, eq=False)
class ChanceRows(_OfTheResult):
    """Rows in each fine cell of the probability: of class 1 of two, and of several of the most probable one."""

    what: ClassVar[str] = "rows by predicted probability"

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"rows": counted((1, len(CHANCES) + 1))}

    def part(self, here: Here) -> Tensors:
        f, _ = self._rows_of(here)
        assert here.loss is not None
        cell = np.searchsorted(CHANCES, chance_of(here.loss.probability(f)), side="right")
        return {"rows": np.bincount(cell, minlength=len(CHANCES) + 1)[None].astype(np.float64)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        check_counts(own["rows"], rows)

    def total(self, sums: Tensors) -> Array:
        """(fine cells,)."""
        found: Array = sums["rows"][0]
        return found


class ByChance(NamedTuple):
    """Totals by merged cells of the probability, and over all rows."""

    rows: Array
    """Of each kind, (cells, 2): class 0 and 1 of two; of several, where the most probable class is wrong and right."""
    chances: Array
    """Σ p, (cells,)."""
    log_odds: Array
    """(cells,)."""
    brier: Array
    """Σ of Brier scores, and of their squares."""
    losses: Array
    """Σ of losses, each cut off at a size, and of their squares."""


@final
@dataclass(frozen=True, eq=False)
class ChanceSums(_OfTheResult):
    """Rows of each kind and sums of probabilities in merged cells; sums of Brier scores and losses over all rows."""

    what: ClassVar[str] = "rows of each class by predicted probability"
    starts: Array
    """The fine cells at which merged ones begin, ascending from 0, int32."""
    unit: float
    """What sums of numbers up to LARGEST_LOSS are counted in; their squares in LARGEST_LOSS times as much."""

    def __post_init__(self) -> None:
        starts = self.starts
        if len(starts) == 0 or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] > len(CHANCES):
            raise FFGBError("a question merges cells that are not there")

    @property
    def sums(self) -> Mapping[str, Sum]:
        cells = len(self.starts)
        return {"rows": counted((cells, 2)), "numbers": counted((2, cells)), "scores": counted((2, 2))}

    def part(self, here: Here) -> Tensors:
        f, y = self._rows_of(here)
        assert here.loss is not None
        p = here.loss.probability(f)
        chance, kind = chance_of(p), kind_of(p, y)
        fine = np.searchsorted(CHANCES, chance, side="right")
        cell, cells = np.searchsorted(self.starts, fine, side="right") - 1, len(self.starts)
        rows = np.zeros((cells, 2))
        np.add.at(rows, (cell, kind), 1.0)
        z = logit(np.clip(chance, CLOSEST, 1.0 - CLOSEST))
        numbers = [np.bincount(cell, whole(values, self.unit), cells) for values in (chance, z)]
        brier = np.square(p - np.eye(p.shape[1])[y]).sum(axis=1) / (2.0 if p.shape[1] == 2 else 1.0)
        loss = np.clip(np.nan_to_num(here.loss.value(f, y), nan=LARGEST_LOSS), 0.0, LARGEST_LOSS)
        scores = [
            [whole(v, self.unit).sum(), whole(np.square(v), LARGEST_LOSS * self.unit).sum()] for v in (brier, loss)
        ]
        return {"rows": rows, "numbers": np.stack(numbers), "scores": np.array(scores)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        if (own["rows"] < 0).any() or own["rows"].sum() != rows:
            raise FFGBError(f"its counts do not add up to its {rows} rows")
        if (own["scores"] < 0).any() or (own["numbers"][0] < 0).any():
            raise FFGBError("its sums of probabilities, or of scores, are negative")
        if (own["numbers"][0] * self.unit > own["rows"].sum(axis=1) * (1.0 + self.unit)).any():
            raise FFGBError("its probabilities are above 1")

    def total(self, sums: Tensors) -> ByChance:
        chances, log_odds = sums["numbers"] * self.unit
        brier, losses = sums["scores"] * self.unit * np.array([1.0, LARGEST_LOSS])
        return ByChance(sums["rows"], chances, log_odds, brier, losses)


class OnLine(NamedTuple):
    """The logistic regression of the class on log odds, at a line: what a Newton step needs, and robust errors."""

    score: Array
    """(2,)."""
    information: Array
    """(2, 2)."""
    squares: Array
    """Σ of products of rows' scores, (2, 2)."""


@final
@dataclass(frozen=True, eq=False)
class CalibrationSums(_OfTheResult):
    """Sums over all rows of two classes for the line of calibration: intercept and slope on the predicted log odds."""

    what: ClassVar[str] = "sums for the line of calibration"
    intercept: float
    slope: float
    unit: float

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"sums": counted((8,))}

    def part(self, here: Here) -> Tensors:
        f, y = self._rows_of(here)
        assert here.loss is not None
        z = logit(np.clip(here.loss.probability(f)[:, 1], CLOSEST, 1.0 - CLOSEST))
        q = expit(self.intercept + self.slope * z)
        residual, weight = y - q, q * (1.0 - q)
        moments = [np.ones_like(z), z, np.square(z)]
        products = [*(residual * m for m in moments[:2]), *(weight * m for m in moments)]
        products += [np.square(residual) * m for m in moments]
        return {"sums": np.array([whole(each, self.unit).sum() for each in products])}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        sums = own["sums"] * self.unit
        if (own["sums"][[2, 4, 5, 7]] < 0).any() or sums[2] > rows or sums[5] > rows or abs(sums[0]) > rows:
            raise FFGBError("its sums for the line of calibration are not those of probabilities")

    def total(self, sums: Tensors) -> OnLine:
        s = sums["sums"] * self.unit
        return OnLine(s[:2], np.array([[s[2], s[3]], [s[3], s[4]]]), np.array([[s[5], s[6]], [s[6], s[7]]]))


class NumberRows(NamedTuple):
    """Rows in fine cells, and what is known of sizes."""

    predictions: Array
    errors: Array
    orders: Array
    """Of each of COLUMNS, rows by order of magnitude."""


@final
@dataclass(frozen=True, eq=False)
class ErrorRows(_OfTheResult):
    """Rows in each fine cell of the prediction and of the error, and by order of magnitude of what is added up next."""

    what: ClassVar[str] = "rows by prediction and by error"

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {
            "predictions": counted((1, len(VALUES) + 1)),
            "errors": counted((1, len(ERRORS) + 1)),
            "orders": counted((len(COLUMNS), ORDERS + 1)),
        }

    def part(self, here: Here) -> Tensors:
        columns = _columns(here, *self._rows_of(here))
        target, prediction = columns[:, 0], columns[:, 1]
        cells = (np.searchsorted(VALUES, prediction, "right"), np.searchsorted(ERRORS, prediction - target, "right"))
        predictions, errors = (
            np.bincount(cell, minlength=len(edges) + 1)[None].astype(np.float64)
            for cell, edges in zip(cells, (VALUES, ERRORS), strict=True)
        )
        return {"predictions": predictions, "errors": errors, "orders": orders(columns)}

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        for counts in own.values():
            check_counts(counts, rows)

    def total(self, sums: Tensors) -> NumberRows:
        return NumberRows(sums["predictions"][0], sums["errors"][0], sums["orders"])


class ByNumber(NamedTuple):
    """Totals over all rows, and by merged cells of the prediction."""

    sums: Array
    """Of each of COLUMNS, (8,)."""
    rows: Array
    """(cells,)."""
    by_cell: Array
    """Σ of the prediction, the target and its square, (3, cells)."""


@final
@dataclass(frozen=True, eq=False)
class ErrorSums(_OfTheResult):
    """Sums of targets, predictions, errors and their products, over all rows and by merged cells of the prediction."""

    what: ClassVar[str] = "sums of targets and errors by prediction"
    starts: Array
    """The fine cells at which merged ones begin, ascending from 0, int32."""
    units: Array
    """Of each of COLUMNS, (8,)."""

    def __post_init__(self) -> None:
        starts = self.starts
        if len(starts) == 0 or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] > len(VALUES):
            raise FFGBError("a question merges cells that are not there")
        if self.units.shape != (len(COLUMNS),):
            raise FFGBError("a question has no unit for each sum")

    @property
    def sums(self) -> Mapping[str, Sum]:
        cells = len(self.starts)
        return {"sums": counted((len(COLUMNS),)), "rows": counted((1, cells)), "by_cell": counted((3, cells))}

    def part(self, here: Here) -> Tensors:
        columns = _columns(here, *self._rows_of(here))
        values, cells = whole(columns, self.units), len(self.starts)
        fine = np.searchsorted(VALUES, columns[:, 1], "right")
        cell = np.searchsorted(self.starts, fine, side="right") - 1
        return {
            "sums": values.sum(axis=0),
            "rows": np.bincount(cell, minlength=cells)[None].astype(np.float64),
            "by_cell": np.stack([np.bincount(cell, values[:, k], cells) for k in (1, 0, 5)]),
        }

    def check(self, own: Tensors, rows: int, part: float = 1.0) -> None:
        check_counts(own["rows"], rows)
        if (own["sums"][2:7] < 0).any() or (own["by_cell"][2] < 0).any():
            raise FFGBError("its sums of squares, or of sizes, are negative")
        if (own["by_cell"].sum(axis=1) != own["sums"][[1, 0, 5]]).any():
            raise FFGBError("its sums by prediction do not add up to those of all its rows")

    def total(self, sums: Tensors) -> ByNumber:
        return ByNumber(sums["sums"] * self.units, sums["rows"][0], sums["by_cell"] * self.units[[1, 0, 5], None])


def chance_of(p: Array) -> Array:
    """The probability that rows are put in cells by: of class 1 of two, and of several of the most probable one."""
    found: Array = p[:, 1] if p.shape[1] == 2 else p.max(axis=1)
    return found


def kind_of(p: Array, y: Array) -> Array:
    """The class, 0 or 1, of two; of several, whether the most probable one is right."""
    kind: Array = y if p.shape[1] == 2 else (p.argmax(axis=1) == y).astype(np.int64)
    return kind


def _columns(here: Here, f: Array, y: Array) -> Array:
    """What is added up of targets that are one number a row: (n, COLUMNS), in training units."""
    assert here.loss is not None
    prediction, target = here.loss.mean(f)[:, 0], y.reshape(-1).astype(np.float64)
    error = prediction - target
    if not np.isfinite(error).all() or np.abs(error).max(initial=0.0) > math.ldexp(1.0, 23):
        raise FFGBError("there are predictions that are absurdly far off; choose a smaller step size")
    square = np.square(error)
    products = (np.square(target), np.square(prediction), target * prediction)
    return np.stack([target, prediction, np.abs(error), square, np.square(square), *products], axis=1)
