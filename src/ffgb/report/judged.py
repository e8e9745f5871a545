"""What `fit.json` says about rows that were held out, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from ffgb.errors import FFGBError

Series: TypeAlias = tuple[float | None, ...]


@final
@dataclass(frozen=True)
class Score:
    """A value and its interval, whose ends are None if there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(content: Mapping[str, Any]) -> Score:
        return Score(_number(content["value"]), _known(content["low"]), _known(content["high"]))


@final
@dataclass(frozen=True)
class Part:
    """Rows of a site, of a subgroup, or all."""

    name: str
    rows: int
    scores: Mapping[str, Score]

    @staticmethod
    def of(name: object, content: Mapping[str, Any]) -> Part:
        scores = {str(k): Score.of(v) for k, v in content["scores"].items()}
        return Part(str(name), int(content["rows"]), scores)


@final
@dataclass(frozen=True)
class Calls:
    """Right and wrong calls of a part at a threshold, and the shares that they give."""

    name: str
    counts: Mapping[str, int]
    shares: Mapping[str, Score]

    @staticmethod
    def of(name: object, content: Mapping[str, Any]) -> Calls:
        counts = {str(k): v for k, v in content.items() if isinstance(v, int)}
        return Calls(str(name), counts, {str(k): Score.of(v) for k, v in content.items() if isinstance(v, Mapping)})


@final
@dataclass(frozen=True)
class Totals:
    """Scores that are computed from sums over rows that stayed at their sites."""

    cells: int
    """Intervals of the prediction by which rows were counted."""
    auc_error: float | None
    """By how much the AUC is off, at most."""


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """How well the model fits rows that it was not trained on."""

    classes: tuple[str, ...]
    level: float
    least: int
    whole: Part
    sites: tuple[Part, ...]
    """Single ones, and small ones together."""
    subgroups: tuple[tuple[str, tuple[Part, ...]], ...]
    """Columns, and the groups of each."""
    threshold: float | None
    calls: tuple[Calls, ...]
    curves: Mapping[str, Mapping[str, Series]]
    """ROC, precision and recall, net benefit: the columns of each."""
    calibration: tuple[tuple[int, float, Score], ...]
    """Rows, what was predicted, what came."""
    left_out: tuple[str, ...]
    times: bool = False
    """The model is one of times until an event."""
    horizons: tuple[tuple[str, int, float, float, Score], ...] = ()
    """Part, events, time, and the share of events by that time: expected, and come."""
    totals: Totals | None = None
    """How scores came about, if rows stayed at their sites."""
    best: tuple[float, Calls] | None = None
    """Calls of all rows at the threshold where both rates are largest together, and that threshold."""
    residuals: tuple[tuple[float, float], ...] = ()
    """Shares of rows, and the error that so many stay below."""

    @property
    def two(self) -> bool:
        return len(self.classes) == 2

    @staticmethod
    def read(path: Path) -> Judged | None:
        """What a run's `fit.json` says; None if it has none."""
        file = path / "fit.json"
        if not file.exists():
            return None
        try:
            return Judged.of(json.loads(file.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error

    @staticmethod
    def of(content: Mapping[str, Any]) -> Judged:
        parts = [Part.of(name, part) for name, part in content["parts"].items()]
        calls, curves = content.get("confusion") or {}, content.get("curves") or {}
        return Judged(
            tuple(str(c) for c in content["classes"]),
            _number(content["level"]),
            int(content["least"]),
            next(part for part in parts if part.name == "all"),
            tuple(part for part in parts if part.name != "all"),
            tuple(
                (str(table["column"]), tuple(Part.of(group["group"], group) for group in table["groups"]))
                for table in content.get("subgroups") or ()
            ),
            _known(calls.get("threshold")),
            tuple(Calls.of(name, part) for name, part in calls.get("parts", {}).items()),
            {str(name): _columns(curve) for name, curve in curves.items() if isinstance(curve, Mapping)},
            tuple(
                (int(group["rows"]), _number(group["predicted"]), Score.of(group["observed"]))
                for group in curves.get("calibration") or ()
            )
            + tuple(
                (int(group["rows"]), _number(group["expected"]), Score.of(group["observed"]))
                for group in content.get("groups") or ()
            ),
            tuple(str(sentence) for sentence in content.get("left_out") or ()),
            content.get("task") == "times",
            tuple(
                (
                    str(name),
                    int(part["events"]),
                    _number(at["time"]),
                    _number(at["expected"]),
                    Score.of(at["observed"]),
                )
                for name, part in content["parts"].items()
                for at in part.get("horizons") or ()
            ),
            Totals(int(content["cells"]), _known(content.get("auc_error_at_most")))
            if content.get("by") == "totals"
            else None,
            _best(content.get("confusion_at_best")),
            tuple((_number(q["level"]), _number(q["value"])) for q in content.get("residuals") or ()),
        )


def _best(content: Mapping[str, Any] | None) -> tuple[float, Calls] | None:
    return None if not content else (_number(content["threshold"]), Calls.of("all", content["parts"]["all"]))


def _columns(curve: Mapping[str, Sequence[Any]]) -> dict[str, Series]:
    return {str(name): tuple(_known(value) for value in column) for name, column in curve.items()}


def _known(value: object) -> float | None:
    return None if value is None else _number(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)
