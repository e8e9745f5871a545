"""A trained model: the function, and what is needed to say its values in the user's own terms.

`model.safetensors` holds it whole: arrays, and a recipe for its family and features.  It loads without any training
data, without pickle, and predicts in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core.functions import ClosedFamily, Family, Function, from_tensors
from ffgb.core.judgement import CLOSEST, scores_of
from ffgb.core.maps import WIDE
from ffgb.core.recalibration import Recalibration
from ffgb.core.types import Array
from ffgb.data.files import read_points
from ffgb.data.preprocess import Column, Table
from ffgb.data.reading import PLAIN, Reading, kind_of
from ffgb.errors import FFGBError
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.describe import build, describe
from ffgb.protocol.job import Job, light
from ffgb.runs.going_on import going_on

ROWS_AT_ONCE, NUMBERS_AT_ONCE = 8192, 2**23


@final
@dataclass(frozen=True, eq=False)
class Model:
    """f, and the names of its classes and columns."""

    job: Job
    f: Function
    shape: tuple[int, ...]
    """Of one point: what `predict` takes rows of."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Names of the numbers in a point; none for images."""
    table: Table | None = None
    """How points come from raw columns, if the model was trained on tables as they are."""
    recalibration: Recalibration | None = None
    """What probabilities are corrected by."""

    def __repr__(self) -> str:
        """What it is, on one line: a notebook shows it in place of its arrays."""
        predicts = f"classes={list(self.classes)[:5]}{'…' * (len(self.classes) > 5)}" if self.classes else "a number"
        inputs = f"columns={len(self.form.columns)}" if self.form is not None else f"shape={self.shape}"
        return f"Model({type(self.family).__name__}, {inputs}, {predicts})"

    @property
    def family(self) -> Family:
        return self.job.family

    @property
    def form(self) -> Table | None:
        """How a file's rows become points: raw columns by the table, numbers by their names; None for images."""
        if self.table is None and self.columns:
            return Table(tuple(Column(name) for name in self.columns))
        return self.table

    def read(self, file: Path, reading: Reading = PLAIN) -> Array:
        """A file's rows as points."""
        return read_points(file, self.form, reading)

    def decision(self, x: Array) -> Array:
        """f(x), (n, c): scores of the classes, or scaled targets."""
        if x.shape[1:] != self.shape:
            raise FFGBError(f"the points have shape {x.shape[1:]}, but the model was trained on points of {self.shape}")
        # A closed family is one product: in float64, for of scores of hundreds float32 keeps four digits.
        features = self.family.features.dimension
        size = ROWS_AT_ONCE if features <= WIDE else max(1, NUMBERS_AT_ONCE // features)
        some = (self.family.features(x[a : a + size]) for a in range(0, len(x), size))
        closed = isinstance(self.family, ClosedFamily)
        parts = [self.f.evaluate(z.astype(np.float64) if closed else z) for z in some]
        return np.concatenate(parts) if parts else np.empty((0, self.job.loss.outputs))

    def predict_proba(self, x: Array) -> Array:
        """Class probabilities (n, classes)."""
        return self.probability(self.decision(x))

    def probability(self, f: Array) -> Array:
        """Class probabilities (n, classes) from values of f."""
        p = self.job.loss.probability(f)
        return p if self.recalibration is None else self.recalibration(p)

    def predict(self, x: Array) -> Array:
        """Class names, or values in the target's own units."""
        if self.job.loss.classification:
            names: Array = np.asarray(self.classes)[self.predict_proba(x).argmax(axis=1)]
            return names
        values = self.job.predicted(self.decision(x))
        return values[:, 0] if values.shape[1] == 1 else values

    def score(self, x: Array, y: Array, weights: Array | None = None) -> dict[str, float]:
        """Loss, accuracy (y as class indices) and what core/judgement.py adds; or loss and RMSE in the target's unit.

        With weights, (n,), each is a weighted mean over the rows.
        """
        if weights is not None and not weights.sum() > 0:
            raise FFGBError("all rows to score have the weight 0; name others")
        f = self.decision(x)
        if self.job.loss.classification:
            p = self.probability(f)
            right = p.argmax(axis=1) == y
            score = {"loss": _mean(self.losses(f, y), weights), "accuracy": _mean(right, weights)}
            return score | scores_of(p, y, weights)
        if not self.job.loss.alone:
            measure = self.job.loss.measure
            own = self.job.loss.scores(f, y, weights=weights)[measure.summed]
            return {"loss": _mean(self.job.loss.value(f, y), None), measure.name: measure.of(own / len(y))}
        target = self.job.target
        scaled = y if target is None else target.encode(y)
        values = self.job.predicted(f)
        error = values - y.reshape(values.shape)
        return {
            "loss": _mean(self.job.loss.value(f, scaled), weights),
            "rmse": math.sqrt(_mean(np.square(error).sum(axis=1), weights)),
        }

    def losses(self, f: Array, y: Array) -> Array:
        """The loss of each row; the negative logarithm of the right class's corrected probability, if there is one."""
        if self.recalibration is None:
            return self.job.loss.value(f, y)
        return -np.log(np.maximum(self.probability(f)[np.arange(len(y)), y], CLOSEST))

    def score_by_site(
        self, x: Array, y: Array, site: Array, names: Sequence[str], weights: Array | None = None
    ) -> dict[str, dict[str, Any]]:
        """The number of rows and the scores of each site, by its name.

        `site` has the index into `names` of each row.  A site without rows, or whose rows all weigh 0, is left out.
        """
        found: dict[str, dict[str, Any]] = {}
        for i, name in enumerate(names):
            rows = np.flatnonzero(site == i)
            own = None if weights is None else weights[rows]
            if len(rows) and (own is None or own.sum() > 0):
                found[name] = {"rows": len(rows), **self.score(x[rows], y[rows], own)}
        return found

    def to_bytes(self) -> bytes:
        job = replace(self.job, geometry=None, begins=None, at=0)  # these were for training
        recipe, arrays = describe(job)
        values = {
            "recipe": recipe,
            "shape": list(self.shape),
            "classes": list(self.classes),
            "columns": list(self.columns),
            "table": None if self.table is None else self.table.to_json(),
            **({} if self.recalibration is None else {"recalibration": self.recalibration.to_json()}),
        }
        return encode(Message("model", values=values, tensors={**light(self.f), **arrays}))

    @staticmethod
    def from_bytes(data: bytes) -> Model:
        """The inverse of `to_bytes`."""
        message = decode(data)
        if message.kind != "model":
            raise FFGBError(f"it is a message of the kind {message.kind!r}")
        values = message.values
        job = build(values["recipe"], message.tensors)
        if not isinstance(job, Job):
            raise FFGBError("it does not describe a job")
        f = from_tensors(job.family, message.tensors)
        table, corrected = values.get("table"), values.get("recalibration")
        return Model(
            *(job, f, tuple(values["shape"]), tuple(values["classes"]), tuple(values["columns"])),
            table=None if table is None else Table.from_json(table),
            recalibration=None if corrected is None else Recalibration.from_json(corrected),
        )

    @staticmethod
    def load(path: str | Path) -> Model:
        """The model in a file, or in a run directory."""
        file = Path(path)
        if file.is_dir():
            if (file / "config.json").exists() and not (file / "model.safetensors").exists():
                raise FFGBError(f"the run in {file} did not end; {going_on(file)}")
            file = file / "model.safetensors"
        if not file.exists():
            raise FFGBError(f"there is no model at {file}; name a run directory or its model.safetensors")
        if kind_of(file) is not None:
            raise FFGBError(f"{file} is a table, not a model; the run directory comes first, then the file")
        try:
            return Model.from_bytes(file.read_bytes())
        except (FFGBError, KeyError, TypeError, ValueError) as error:
            raise FFGBError(f"{file} is not a model that ffgb wrote, or cannot be used here: {error}") from error


def _mean(values: Array, weights: Array | None) -> float:
    return float(values.mean() if weights is None else np.average(values, weights=weights))
