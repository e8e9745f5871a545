"""Using a finished run: scores on its test rows or on new files, and predictions for a file."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ffgb.core.baseline import Hazards
from ffgb.core.types import Array
from ffgb.data import load_sites
from ffgb.data.dataset import HOLDOUT, Dataset
from ffgb.data.files import site_names
from ffgb.data.reading import PLAIN, Reading
from ffgb.errors import FFGBError, option
from ffgb.runs.config import Config, load_data
from ffgb.runs.conformal import columns as columns_of
from ffgb.runs.directory import Run
from ffgb.runs.fit import fit
from ffgb.runs.fit_times import load as load_baseline
from ffgb.runs.held_out import HeldOut
from ffgb.runs.model import Model
from ffgb.runs.private import private_rows

log = logging.getLogger("ffgb")

_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d*\.?\d+([eE][+-]?\d+)?\Z)")
"""-1 is a number, -1+2 is none."""


def evaluate(run: Run, files: Sequence[str] = (), target: str | None = None) -> dict[str, dict[str, Any]]:
    """Loss and accuracy (or RMSE) of a run's model: on its own test rows, or on files, each part by its name.

    Of a file that it was trained on, only the rows that were held out are scored; that is logged.
    """
    model = Model.load(run.path)
    return scores_of_parts(model, held_out(run, model, files, target))


def scores_of_parts(model: Model, rows: HeldOut) -> dict[str, dict[str, Any]]:
    """The number of rows and the scores, of all rows and by site."""
    scores = {"all": {"rows": len(rows.y), **model.score(rows.x, rows.y, rows.weights)}}
    if rows.site is None or len(rows.names) == 1:
        return scores
    by_site = model.score_by_site(rows.x, rows.y, rows.site, rows.names, rows.weights)
    if not model.job.loss.alone:  # rows of a site are at risk beside each other, and not those of several
        names = [name for name in scores["all"] if name != "rows"]
        sums = {name: sum(part["rows"] * part[name] for part in by_site.values()) for name in names}
        scores["all"] |= {name: found / len(rows.y) for name, found in sums.items()}
    return scores | by_site


def held_out(run: Run, model: Model, files: Sequence[str] = (), target: str | None = None) -> HeldOut:
    """The rows that a run's model is judged by: its own test rows, or those of files that it was not trained on."""
    if files:
        x, y, names, site, weights = _rows_of(run, model, [Path(f) for f in files], target)
    else:
        dataset = load_data(Config.from_json(run.config))
        x, y, names, site = dataset.x_test, dataset.y_test, dataset.sites, dataset.site_test
        weights = dataset.weights_test
    if len(y) == 0:
        raise FFGBError(f"the run in {run.path} held out no test rows; name files to evaluate on with {option('data')}")
    baseline = None if model.job.loss.alone else load_baseline(run.path, missing=True)
    return HeldOut(x, y, names, site, weights, baseline)


def judge_again(path: Path, by: Sequence[str]) -> None:
    """Write `fit.json` of a run anew, with the subgroups of these columns."""
    run, model = Run.open(path), Model.load(path)
    run.write_json("fit.json", fit(model, held_out(run, model), by=by))


def _rows_of(run: Run, model: Model, paths: Sequence[Path], target: str | None) -> tuple[Any, ...]:
    """Points, targets, names of files, the number of each row's file, and weights: of rows that were not trained on."""
    known, config = trained_on(run, paths), run.config
    if config.get("data") == ["sites"] and not config.get("sha256"):
        log.warning(
            "the rows of this run are at its sites, so it is not known whether it was trained on these files; rows "
            "that it was trained on score too well (the model that a site keeps knows its own file)"
        )
    parts = []
    for path, name in zip(paths, site_names(paths), strict=True):
        data = load_sites(
            [path],
            target or config.get("target"),
            seed=int(config.get("seed") or 0),
            task="classification" if model.classes else "regression",
            holdout=HOLDOUT if path in known else 0.0,
            classes=model.classes or None,
            table=model.form,
            weights=config.get("weights"),
            exposure=config.get("exposure"),
            group=config.get("group") if path in known else None,
            reading=Reading.of(config).of_values,
            bounded=private_rows(config) if path in known else None,
        )
        if path not in known:
            parts.append((data.x, data.y, data.weights))
            continue
        if len(data.y_test) == 0:
            raise FFGBError(f"the model was trained on all {len(data.y):,} rows of {path}; name files with other rows")
        log.warning(
            "the model was trained on %s: only its %s rows that were held out are scored", name, f"{len(data.y_test):,}"
        )
        parts.append((data.x_test, data.y_test, data.weights_test))
    site = np.repeat(np.arange(len(parts)), [len(y) for _, y, _ in parts])
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    weights = None if parts[0][2] is None else np.concatenate([part[2] for part in parts])
    return x, y, site_names(paths), site, weights


def own_rows(run: Run, model: Model, path: Path) -> Dataset:
    """A site's own rows, as it trained with them, in the folder of the model that it keeps."""
    if path not in trained_on(run, [path]):
        raise FFGBError(f"{path} is not there, or has changed since this site trained with it")
    config = run.config
    return load_sites(
        [path],
        config.get("target"),
        seed=int(config.get("seed") or 0),
        task="classification" if model.classes else "regression",
        holdout=HOLDOUT,
        classes=model.classes or None,
        table=model.form,
        reading=Reading.of(config).of_values,
        bounded=private_rows(config),
    )


def trained_on(run: Run, paths: Sequence[Path]) -> set[Path]:
    """Those of these files that a run was trained on, known by their content; of a private training by their names."""
    if run.config.get("epsilon") is not None:
        named = {Path(name).resolve() for name in run.config.get("data") or ()}
        if named & {path.resolve() for path in paths}:
            return {path for path in paths if path.resolve() in named}
    known = set((run.config.get("sha256") or {}).values())
    return {path for path in paths if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() in known}


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with ' before every name and text that a spreadsheet would run as a formula."""

    def quoted(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell

    texts = {name: values.map(quoted) for name, values in frame.items() if values.dtype.kind == "O"}
    return frame.assign(**texts).rename(columns=quoted)  # type: ignore[arg-type]


def predict(
    model: Model,
    file: Path,
    reading: Reading = PLAIN,
    threshold: float | None = None,
    hazards: Hazards | None = None,
    times: Sequence[float] = (),
) -> pd.DataFrame:
    """A row a row of the file: the class and its probabilities, or the predicted value.

    With the threshold of a coverage (conformal.py), there are the set of classes, or the ends of the interval, too;
    with hazards (fit_times.py), the chance to survive until some times.
    """
    x = model.read(file, reading)
    if hazards is not None:
        f = model.decision(x)[:, 0]
        chances = hazards.survival(f, np.asarray(times, np.float64)).T
        named = {f"survival_{t:g}": chance for t, chance in zip(times, chances, strict=True)}
        return pd.DataFrame({"prediction": f, **named})
    more = pd.DataFrame(index=range(len(x))) if threshold is None else columns_of(model, x, threshold)
    if not model.classes:
        values = model.predict(x)
        names = ["prediction"] if values.ndim == 1 else [f"prediction_{j}" for j in range(values.shape[1])]
        found = pd.DataFrame(dict(zip(names, values.reshape(len(x), -1).T, strict=True)))
        return pd.concat([found, more], axis=1)
    p: Array = model.predict_proba(x)
    columns: dict[str, Any] = {"prediction": np.asarray(model.classes)[p.argmax(axis=1)]}
    found = pd.DataFrame(columns | {f"probability_{name}": p[:, j] for j, name in enumerate(model.classes)})
    return pd.concat([found, more], axis=1)
