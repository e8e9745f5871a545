"""What sites gain by training together: each site alone, without each site, and all together.

All models are trained with the settings that were asked for, on the rows that the run was trained on, and are scored on
held-out rows.  Differences are of the losses of the same rows, so they are known better than the losses themselves.
Columns are prepared as all sites agreed on them, for a site alone, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ffgb.core.disclosure import LEAST
from ffgb.core.estimates import Sampled, mean
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.errors import FFGBError
from ffgb.runs.config import SETTINGS, Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.explain import losses
from ffgb.runs.model import Model
from ffgb.runs.training import model_in_memory

FILE = "worth.json"
MOST_SITES = 20
"""Sites, at most: there are two trainings for each."""


def worth(run: Run, on_training: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """For each site: the loss there together, alone, and without its rows; and what its rows do for the others.

    Returns
    -------
    dict
        `sites`, each with `rows`, `together` (mean loss), `alone` and `without` (rises of the loss at the site, with
        intervals), and `others` (the rise at all other sites if this one is left out).  None where there is no answer.
    """
    config = Config.from_json(run.config)
    if config.data == ("sites",):
        raise FFGBError("the rows of this run are at its sites, and training again takes all of them; there is no copy")
    dataset = load_data(config)
    if config.split != "natural" or dataset.site is None or len(dataset.sites) < 2:
        raise FFGBError("this run has no sites of its own to compare; train on one file for each site")
    if len(dataset.sites) > MOST_SITES:
        raise FFGBError(f"{len(dataset.sites)} sites take two trainings each; this is for up to {MOST_SITES}")
    if not len(dataset.y_test):
        raise FFGBError("no rows were held out, and the sites cannot be compared without")
    asked = Config(**{name: getattr(config, name) for name in SETTINGS if name in {*config.asked, *DATA}})
    return _compared(Model.load(run.path), dataset, asked, on_training)


DATA = ("data", "target", "task", "split", "seed")


def _compared(model: Model, dataset: Dataset, asked: Config, on_training: Callable[[str], None]) -> dict[str, Any]:
    together, rows = _losses(model, dataset), []
    assert dataset.site_test is not None
    for k, name in enumerate(dataset.sites):
        here = dataset.site_test == k
        found = []
        for what, sites in (("alone", [k]), ("without", [j for j in range(len(dataset.sites)) if j != k])):
            on_training(f"{name} {what}" if what == "alone" else f"without {name}")
            found.append(_trained(dataset, asked, sites))
        alone, without = (None if m is None else _losses(m, dataset) - together for m in found)
        enough = int(here.sum()) >= LEAST
        rows.append(
            {
                "site": name,
                "rows": int(here.sum()),
                "together": float(together[here].mean()) if enough else None,
                "alone": _rise(alone, here, dataset) if enough else None,
                "without": _rise(without, here, dataset) if enough else None,
                "others": _rise(without, ~here, dataset),
            }
        )
    return {"loss": "loss" if model.classes or not model.job.loss.alone else "squared error", "sites": rows}


def _rise(difference: Array | None, some: Array, dataset: Dataset) -> dict[str, Any] | None:
    """The mean rise of the loss at some rows."""
    if difference is None or some.sum() < LEAST:
        return None
    weights, site = dataset.weights_test, dataset.site_test
    assert site is not None
    sampled = Sampled.of(int(some.sum()), None if weights is None else weights[some], site[some])
    return mean(difference[some], sampled).to_json()


def _losses(model: Model, dataset: Dataset) -> Array:
    """Of the held-out rows; squared errors are in the target's own units."""
    assert dataset.site_test is not None
    return losses(model, dataset.x_test, dataset.y_test, dataset.site_test)


def _trained(dataset: Dataset, asked: Config, sites: list[int]) -> Model | None:
    """A model of some sites' rows; None if these do not suffice for one."""
    assert dataset.site is not None
    some = np.flatnonzero(np.isin(dataset.site, sites))
    if dataset.classes and len(np.unique(dataset.y[some])) < 2:
        return None
    part = replace(
        dataset,
        x=dataset.x[some],
        y=dataset.y[some],
        sites=tuple(dataset.sites[j] for j in sites),
        site=np.searchsorted(sites, dataset.site[some]),
        x_test=dataset.x_test[:0],
        y_test=dataset.y_test[:0],
        site_test=np.empty(0, np.int64),
        weights=None if dataset.weights is None else dataset.weights[some],
        weights_test=None,
        group=None if dataset.group is None else dataset.group[some],
    )
    try:
        return model_in_memory(dataclasses.replace(asked, clients=None, participation=None), part)
    except FFGBError:
        return None
