"""Runs as parts of experiments: curves of runs that go on where they were stopped, and tuned step sizes."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ffgb.errors import DivergedError, option
from ffgb.runs.config import Config
from ffgb.runs.training import Result, train
from ffgb.studies.compare import costs, metrics_of
from ffgb.studies.tuning import tune
from ffgb.user_code import must_be_named

Curve: TypeAlias = Mapping[str, list[float]]
"""Columns of numbers, a row for each round that was kept."""

SCORES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "gamma_median", "gamma_min")
DENSE = 20
"""Rounds that are all kept; of the later ones twenty-four a decade are, and those that tables are about."""
MARKS = {"models": (6, 20, 60, 112, 448, 896, 1904), "rounds": (1, 2, 3, 5, 6, 10, 17, 20, 30, 40, 50, 100, 300)}
"""What tables have a column for."""


def config_of(settings: Mapping[str, Any]) -> Config:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    return Config(**values)


def go_on(folder: Path, config: Mapping[str, Any], say: Callable[[str], None]) -> Result:
    """Train, or go on with what was begun."""
    began, chosen = (folder / "config.json").exists(), config_of(config)
    if began:
        asked, chosen = chosen, Config.from_json(json.loads((folder / "config.json").read_text()))
        must_be_named(
            chosen.code, asked.code, folder, f"it is no part of this experiment: choose another {option('out')}"
        )
    return train(
        *(chosen, folder), resume=began, on_round=lambda line: say(f"round {line['round']} of {chosen.rounds}")
    )


def run(scratch: Path, say: Callable[[str], None], *, config: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """A run's curve, as far as it went if it diverged.  A *model* has `unit` parameters, whatever the learner is."""
    try:
        return {"curve": curve(go_on(scratch, config, say).metrics, unit)}
    except DivergedError:
        return {"curve": curve(metrics_of(scratch), unit), "diverged": True}


def tuned(scratch: Path, say: Callable[[str], None], *, config: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """The step size by the rule of tuning.py."""

    def tell(score: Mapping[str, Any]) -> None:
        say(f"step size {score['step_size']:g}, {score['rounds']} rounds")

    return dataclasses.asdict(tune(config_of(config), rounds, out=scratch, on_score=tell))


def curve(metrics: Sequence[Mapping[str, Any]], unit: int) -> dict[str, list[float]]:
    """Costs and scores of the rounds that are worth keeping, to six digits."""
    kept, rows, seconds = {round(10 ** (j / 24)) for j in range(240)}, [], 0.0
    for number, line in enumerate(metrics, 1):
        seconds += line["seconds"] + (line["setup_seconds"] if number == 1 else 0.0)
        spent = costs(line, seconds, unit)
        after = costs(metrics[number], 0.0, unit) if number < len(metrics) else None
        if number <= DENSE or number in kept or after is None or _passes_a_mark(spent, after):
            rows.append(spent | {k: line[k] for k in SCORES if line.get(k) is not None})
    return {name: [float(f"{row[name]:.6g}") for row in rows] for name in (rows[0] if rows else ())}


def _passes_a_mark(spent: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Is this the last round within a budget that tables have a column for?"""
    return any(spent[kind] <= m < after[kind] for kind, marks in MARKS.items() for m in marks)


def within(curve: Curve, kind: str, budget: float) -> int | None:
    """The last row whose cost is within the budget.

    >>> within({"models": [2.0, 4.0, 6.0]}, "models", 5.0)
    1
    """
    rows = [j for j, cost in enumerate(curve[kind]) if cost <= budget]
    return rows[-1] if rows else None


def mean_spread(values: Sequence[float]) -> tuple[float, float]:
    """
    >>> mean_spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
