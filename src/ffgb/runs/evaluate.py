"""Using a finished run: scores on its test rows or on new files, and predictions for a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ffgb.core.types import Array
from ffgb.data import load_sites
from ffgb.data.reading import PLAIN, Reading
from ffgb.errors import FFGBError, option
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.model import Model

_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d*\.?\d+([eE][+-]?\d+)?\Z)")
"""-1 is a number, -1+2 is none."""


def evaluate(run: Run, files: Sequence[str] = (), target: str | None = None) -> dict[str, dict[str, Any]]:
    """Loss and accuracy (or RMSE) of a run's model: on its own test rows, or on files, each part by its name."""
    model = Model.load(run.path)
    if files:
        paths = [Path(f) for f in files]
        task = "classification" if model.classes else "regression"
        new = load_sites(
            paths,
            target or run.config.get("target"),
            task=task,
            holdout=0.0,
            classes=model.classes or None,
            table=model.form,
            weights=run.config.get("weights"),
            exposure=run.config.get("exposure"),
            reading=Reading.of(run.config).of_values,
        )
        x, y, names, site, weights = new.x, new.y, new.sites, new.site, new.weights
    else:
        dataset = load_data(Config.from_json(run.config))
        x, y, names, site = dataset.x_test, dataset.y_test, dataset.sites, dataset.site_test
        weights = dataset.weights_test
    if len(y) == 0:
        raise FFGBError(f"the run in {run.path} held out no test rows; name files to evaluate on with {option('data')}")
    scores = {"all": {"rows": len(y), **model.score(x, y, weights)}}
    if site is None or len(names) == 1:
        return scores
    return scores | model.score_by_site(x, y, site, names, weights)


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with ' before every name and text that a spreadsheet would run as a formula."""

    def quoted(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell

    texts = {name: values.map(quoted) for name, values in frame.items() if values.dtype.kind == "O"}
    return frame.assign(**texts).rename(columns=quoted)  # type: ignore[arg-type]


def predict(model: Model, file: Path, reading: Reading = PLAIN) -> pd.DataFrame:
    """A row a row of the file: the class and its probabilities, or the predicted value."""
    x = model.read(file, reading)
    if not model.classes:
        values = model.predict(x)
        names = ["prediction"] if values.ndim == 1 else [f"prediction_{j}" for j in range(values.shape[1])]
        return pd.DataFrame(dict(zip(names, values.reshape(len(x), -1).T, strict=True)))
    p: Array = model.predict_proba(x)
    columns: dict[str, Any] = {"prediction": np.asarray(model.classes)[p.argmax(axis=1)]}
    return pd.DataFrame(columns | {f"probability_{name}": p[:, j] for j, name in enumerate(model.classes)})
