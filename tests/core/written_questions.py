"""Answers to questions, and the limits of what is refused, written down by `python -m tests.core.written_questions`.

Units and limits are numbers that two programs must agree about, and that few properties of an answer could show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.core.exact_sums import TargetOrders, TargetSums
from ffgb.core.gradients import GradientOf, SlopesOf
from ffgb.core.grams import GramOf, SketchOf
from ffgb.core.losses import Huber, Logistic, Loss, Square
from ffgb.core.moments import MagnitudeOf, MomentsOf
from ffgb.core.points import Points
from ffgb.core.quantiles import BelowEdges
from ffgb.core.questions import Here, Question, RoundQuestion
from ffgb.core.steepness import SteepnessOf
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.learners.linear import Linear
from ffgb.protocol.describe import describe
from tests.core.test_questions import EXAMPLES, N, Rows

FILE = Path(__file__).with_name("written_questions.json")
WAVES = Concatenate((RandomFourier(Flatten(9), 4, 1.0, 0), RandomFourier(Flatten(9), 4, 1.0, 1)), (1.0, 1.0))
FAR = np.linspace(-300.0, 300.0, 9)

MORE: dict[str, tuple[Loss | None, Callable[[], Question]]] = {
    "moments of targets": (Square(2), lambda: MomentsOf(None, np.array([0.5, 0.0]), np.array([8.0, 16.0]))),
    "moments of features of one scale": (None, lambda: MomentsOf(WAVES, np.zeros(8), WAVES.bounds, False, True)),
    "magnitudes of targets": (Square(2), lambda: MagnitudeOf(None, np.array([0.0, 1e6]))),
    "Gram in one piece": (None, lambda: GramOf(Flatten(9), (9,), 1, FAR, np.full(9, 500.0))),
    "Gram of waves": (None, lambda: GramOf(WAVES, (4,), 2, np.full(8, 0.25), np.ones(4))),
    "sketch of waves": (None, lambda: SketchOf(WAVES, 3, 5, np.full(8, 0.25), np.linspace(0.5, 1.0, 8))),
    "distances": (Square(2), lambda: BelowEdges(np.array([[0.0, 0.5, 2.0], [0.1, 1.0, 3.0]]), np.array([0.3, -0.3]))),
    "slopes of numbers": (
        Square(2),
        lambda: SteepnessOf(Flatten(9), np.array([0.5, -1.0]), np.array([2.0, 0.25]), 4.0, (0.1, 0.5, 2.0)),
    ),
    "gradient of numbers": (
        Square(2),
        lambda: GradientOf(Linear(Flatten(9), 2), Square(2), np.linspace(0.01, 1.0, 10)),
    ),
    "gradient of waves": (
        Logistic(),
        lambda: GradientOf(Linear(WAVES, 1), Logistic(), np.linspace(0.1, 1.0, 9), 3.0),
    ),
    "slopes along a step": (Square(2), lambda: SlopesOf(Square(2), 1.0, 0.0, 0.5)),
    "slopes along a line": (Huber(2, 0.7), lambda: SlopesOf(Huber(2, 0.7), 0.9, 0.0, lengths=(0.0, 0.5, 4.0))),
    "slopes of two classes": (Logistic(), lambda: SlopesOf(Logistic(), 1.0, 0.0)),
    "orders of two targets": (Square(2), lambda: TargetOrders(np.array([0.25, 1e3]))),
    "sums of two targets": (Square(2), lambda: TargetSums(np.array([0.25, -2.0]), np.full((3, 2), 2.0**-30))),
}


def here(loss: Loss | None, *, weighted: bool) -> Here:
    """Rows, whose targets suit the loss."""
    rows, rng = Rows.drawn(0), np.random.default_rng(5)
    weights = rng.uniform(0.5, 2.0, N) if weighted else None
    found = rows.here(np.arange(N), 0.7 / N, weights)
    if loss is None:
        return found
    y = rng.integers(0, 2, N) if loss.classification else rng.standard_normal((N, loss.outputs))
    f, h = (values[:, : loss.outputs] for values in (rows.f, rows.h))
    return replace(found, points=Points(0, rows.x, y, weights), y=y, loss=loss, f=f, h=h)


def _case(make: Callable[[], Question], loss: Loss | None, *, weighted: bool = False) -> tuple[Question, Here]:
    return make(), here(loss, weighted=weighted)


CASES: dict[str, Callable[[], tuple[Question, Here]]] = {
    **{name: partial(_case, make, None) for name, make in EXAMPLES.items()},
    **{name: partial(_case, make, loss, weighted=True) for name, (loss, make) in MORE.items()},
}
SMALLEST, LARGEST, STEPS = -15.0, 6.0, 12
"""How far an answer is changed, in powers of ten of its largest number, and how closely a limit is found."""


def changes(array: Array) -> dict[str, Callable[[float], Array]]:
    """Ways to change an array by so much."""
    size, flat = float(np.abs(array).max(initial=0.0)) or 1.0, np.zeros(array.size)
    first, last = flat.copy(), flat.copy()
    first[:1], last[-1:] = size, size
    one, other = first.reshape(array.shape), last.reshape(array.shape)
    return {
        "first, more": lambda much: array + much * one,
        "first, less": lambda much: array - much * one,
        "last, more": lambda much: array + much * other,
        "all, more": lambda much: array + much * size,
        "all, less": lambda much: array - much * size,
        "times": lambda much: array * (1.0 + much),
    }


def limit(refused: Callable[[float], bool]) -> float | None:
    """The power of ten from which on changes are refused; None if none is, and −inf is written as the smallest."""
    if not refused(10.0**LARGEST):
        return None
    low, high = SMALLEST, LARGEST
    if refused(10.0**low):
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if refused(10.0**middle) else (middle, high)
    return round(high, 3)


def _refused(refused: Callable[[str, Array], bool], name: str, change: Callable[[float], Array], much: float) -> bool:
    return refused(name, change(much))


def limits(question: Question, own: Tensors, part: float) -> dict[str, Any]:
    """By array and by way of change."""

    def refused(name: str, array: Array) -> bool:
        try:
            with np.errstate(all="ignore"):
                question.check({**own, name: array}, N, part)
                question.certify({**own, name: array}, part)
        except FFGBError:
            return True
        return False

    return {
        f"{name}: {way}": limit(partial(_refused, refused, name, change))
        for name, array in own.items()
        for way, change in changes(np.asarray(array, np.float64)).items()
    }


def written(name: str) -> dict[str, Any]:
    """How an answer is counted, what it is, and what is refused in its place."""
    question, rows = CASES[name]()
    parts = question.part(rows)
    sums = {
        key: [list(each.shape), each.bits, each.kind, float(np.log2(each.unit).sum()), float(np.sum(each.bound))]
        for key, each in question.sums.items()
    }
    # as a server knows it: the means over the client's own rows
    whole = 0.7 if rows.points.weights is None else 0.7 * rows.points.weight / N
    own = {key: np.asarray(a) / (whole if question.sums[key].kind == "mean" else 1.0) for key, a in parts.items()}
    told: dict[str, Any] = {"total": describe(question.total(own))[1]}
    told["part"] = {key: np.asarray(a, np.float64).ravel() for key, a in parts.items()}
    if (spread := question.spread(own)) is not None:
        told["spread"] = {"mean": spread[0], "variance": spread[1]}
    if isinstance(question, RoundQuestion):
        told["influence"] = {key: np.array(value) for key, value in question.influence(own).items()}
    return {
        "sums": sums,
        "told": {kind: {key: np.asarray(a).tolist() for key, a in some.items()} for kind, some in told.items()},
        "limits": [limits(question, own, part) for part in (1.0, 0.01)],
    }


def _short(value: Any) -> Any:
    """Numbers with seven digits."""
    match value:
        case dict():
            return {name: _short(each) for name, each in value.items()}
        case list():
            return [_short(each) for each in value]
        case float():
            return float(f"{value:.7g}")
    return value


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: _short(written(name)) for name in CASES}, separators=(",", ":")) + "\n")
