"""The blend that `ffgb.train` makes of a table, computed by one client with all rows and without messages.

Its sums are whole numbers, so the model has the bits of the one that sites train, unless equal rows are at different
sites (docs/blend.md).  It takes a third of the time of 20 sites in one process, and says nothing of bytes.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffgb import Config
from ffgb.algorithms import AskInRound
from ffgb.core.functions import Function
from ffgb.core.losses import Loss
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion, ask_locally
from ffgb.data import Dataset
from ffgb.federation.server import scaled_target
from ffgb.learners.blend import Blend
from ffgb.protocol.job import Target
from ffgb.runs.config import load_data
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from table_list import UnavailableError
from table_rows import Array, Rows


class AskHere(AskInRound):
    """A question in a round is answered by the only client there is."""

    present = (0,)

    def __init__(self, here: Here) -> None:
        self.here, self.questions = here, 0

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any:
        self.questions += 1
        here = self.here if shown is None else replace(self.here, h=self.here.points.values(shown))
        return question.total({name: np.asarray(part, np.float64) for name, part in question.part(here).items()})

    def gradient_bound(self, of_loss: float) -> float:
        return of_loss

    def noise(self, freedom: float | None) -> float | None:
        return None


def settings_of(rows: Rows, files: tuple[str, ...], **settings: Any) -> Config:
    """What is text is a category, as for the libraries: a site may have codes alone that look like numbers."""
    task = "classification" if rows.classes else "regression"
    text = tuple(name for name in rows.x if not pd.api.types.is_numeric_dtype(rows.x[name]))
    known = {"target": "target", "task": task, "categories": text, "seed": rows.seed}
    return Config(data=files, **{**known, **settings})


class Trained(NamedTuple):
    """A blend of one client with all rows."""

    dataset: Dataset
    loss: Loss
    target: Target
    algorithm: Any
    f: Function
    lines: list[dict[str, Any]]
    """What each round measured."""
    best: Array
    """All versions at the training rows, when the rows set aside were predicted best."""
    questions: int


def pooled(rows: Rows, **settings: Any) -> tuple[Array, dict[str, Any]]:
    """Predictions for the test rows, and how long the training was."""
    dataset, loss, target, algorithm, f, lines, _, questions = trained_here(rows, **settings)
    chosen = algorithm.chosen(f, lines)
    assert chosen is not None
    values = chosen.f(dataset.x_test)
    predicted = loss.probability(values) if rows.classes else loss.unscaled(values, target.mean, target.scale)[:, 0]
    names = ("share_deep", "share_shallow", "share_additive", "held_out")
    return predicted, {
        "rounds": len(lines),
        "learner": Blend.name,
        "best_round": chosen.measured["best_round"],
        "factor": chosen.measured["slope"],
        **{name: chosen.measured[name] for name in names if name in chosen.measured},
        "questions": questions,
    }


def trained_here(rows: Rows, **settings: Any) -> Trained:
    """All rounds."""
    with tempfile.TemporaryDirectory() as name:
        files, _ = rows.write(Path(name))
        config = settings_of(rows, tuple(map(str, files)), **settings)
        dataset = load_data(config)
        config = config.resolved(dataset)
    assert np.array_equal(dataset.y_test, rows.truth()), "the library held out other rows"
    if config.learner != Blend.name:
        raise UnavailableError(f"ffgb.train takes {config.learner} for it, and not a blend")
    loss, points = make_loss(config, dataset), Points(0, dataset.x, dataset.y)
    ask, algorithm = ask_locally(points), make_algorithm(config)
    target = (None if loss.classification else scaled_target(ask, algorithm, loss)) or Target.unchanged(loss.outputs)
    family, _ = make_learner(config, dataset)(ask)
    algorithm = algorithm.prepared(ask, family, loss, target.mean, target.scale)
    f, trained = algorithm.start(algorithm.space(family), config.seed), algorithm.trains(loss)
    y = points.y if loss.classification else target.encode(points.y)
    best = points.values(f)
    asking = AskHere(Here(points, 1.0 / len(points), trained, y, best, family=f.family, round=0))
    lines: list[dict[str, Any]] = []
    while len(lines) < config.rounds and not algorithm.over(lines):
        assert asking.here.f is not None
        step = algorithm.round(len(lines), f, None, trained, asking)  # type: ignore[attr-defined]
        lines.append({"round": len(lines) + 1, **step.measured})
        if all(lines[-1]["held_out"] < line["held_out"] for line in lines[:-1]):
            best = asking.here.f
        f = f + step.h
        asking.here = replace(asking.here, f=asking.here.f + points.values(step.h), round=len(lines))
    return Trained(dataset, loss, target, algorithm, f, lines, best, asking.questions)
