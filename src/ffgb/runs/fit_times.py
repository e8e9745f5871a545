"""How well a model of times until an event fits rows that it was not trained on.

`fit_times` returns data for `fit.json`, as `fit` (fit.py) does for classes and numbers: the c-index, Brier scores over
time, and at three times how many events were expected and how many came, of all rows, by site and by subgroup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core import survival_scores
from ffgb.core.baseline import ALL, Baseline
from ffgb.core.disclosure import LEAST, differences_tell, joined
from ffgb.core.estimates import LEVEL, Estimate, Sampled, mean
from ffgb.core.losses.cox import times_of
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.errors import FFGBError
from ffgb.runs.held_out import HeldOut, subgroups
from ffgb.runs.model import Model

TIMES = "times"
FILE = "baseline.json"
HORIZONS = 3
GROUPS = 5
"""Of rows by their predictions, at most, for calibration."""


def baseline_of(model: Model, dataset: Dataset, least: int = LEAST) -> Baseline | None:
    """Hazards in intervals of time, of each site and of all, from the training rows."""
    site = np.zeros(len(dataset.y), np.int64) if dataset.site is None else dataset.site
    time, event = times_of(dataset.y)
    return Baseline.of_rows(time, event, model.decision(dataset.x)[:, 0], site, dataset.sites, least)


def load(path: Path, *, missing: bool = False) -> Baseline | None:
    """The hazards of a run, or of a folder of a site; None if it has none and may have none."""
    file = path / FILE
    if not file.is_file():
        if missing:
            return None
        raise FFGBError(
            f"{path} has no {FILE}: its model is not one of times until an event, or the training rows are elsewhere, "
            "or have too few events"
        )
    try:
        return Baseline.from_json(json.loads(file.read_text()))
    except (OSError, ValueError, FFGBError) as error:
        raise FFGBError(f"{file} cannot be read: {error}") from error


def fit_times(
    model: Model, rows: HeldOut, *, by: Sequence[str] = (), least: int = LEAST, level: float = LEVEL
) -> dict[str, Any]:
    """Scores and tables, as `fit` returns them."""
    return _Times(model, rows, least, level).judged(by)


@final
@dataclass(eq=False)
class _Times:
    """Puts one judgement together; `published` holds the groups of rows that counts were given for."""

    model: Model
    rows: HeldOut
    least: int
    level: float
    published: list[Array] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows, n = self.rows, len(self.rows.y)
        self.time, self.event = times_of(rows.y)
        self.f = self.model.decision(rows.x)[:, 0]
        self.site = np.zeros(n, np.int64) if rows.site is None else rows.site
        self.kinds = self.event.astype(np.int64)
        self.at, self.survival, self.null = self._predicted()

    def _predicted(self) -> tuple[Array, Array, Array]:
        """Times, and the chance of each row to survive them: by the model, and if nothing is known of it."""
        baseline: Baseline | None = self.rows.baseline
        n, last = len(self.time), float(self.time.max(initial=0.0))
        at = np.zeros(0) if baseline is None else baseline.of[ALL].ends
        at = at[at < last]
        model, null = np.zeros((n, len(at))), np.zeros((n, len(at)))
        if baseline is None:
            return at, model, null
        for k in np.unique(self.site):
            some = self.site == k
            own = baseline.at(self.rows.names[k] if self.rows.site is not None else None)
            model[some], null[some] = own.survival(self.f[some], at), own.without(at)
        return at, model, null

    def judged(self, by: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"task": TIMES, "classes": [], "level": self.level, "least": self.least}
        found["parts"] = {"all": self._part(np.arange(len(self.time)))} | self._by_site()
        found["subgroups"] = [table for name in by if (table := self._by_column(name)) is not None]
        found["groups"] = self._by_prediction()
        if not len(self.at):
            self.left_out.append("Brier scores and calibration: the training rows have too few events for hazards")
        return found | {"left_out": self.left_out}

    @property
    def horizons(self) -> list[int]:
        """Where calibration is looked at: after about a quarter, half and three quarters of the events."""
        return sorted({(k + 1) * len(self.at) // (HORIZONS + 1) for k in range(HORIZONS)}) if len(self.at) else []

    def _part(self, some: Array) -> dict[str, Any]:
        sampled = Sampled.of(len(some), None, self.site[some], self.level)
        time, event, f = self.time[some], self.event[some], self.f[some]
        scores = {"c_index": survival_scores.c_index_of(time, event, f, sampled)}
        if len(self.at) > 1:
            scores |= self._brier(some, sampled)
        found = {"rows": len(some), "events": int(event.sum())}
        told = {"horizons": [self._horizon(some, k) for k in self.horizons]}
        return found | {"scores": {name: score.to_json() for name, score in scores.items()}} | told

    def _brier(self, some: Array, sampled: Sampled) -> dict[str, Estimate]:
        """Integrated over time; the weights of rows are those of their site."""
        parts = []
        for survival in (self.survival, self.null):
            each = np.zeros((len(some), len(self.at)))
            for site in np.unique(self.site[some]):
                own = self.site[some] == site
                there = some[own]
                each[own] = survival_scores.brier(self.time[there], self.event[there], survival[there], self.at)
            parts.append(survival_scores.integrated(each, self.at))
        return {
            "integrated_brier": mean(parts[0], sampled, least=0.0),
            "brier_of_no_model": Estimate(float(parts[1].mean())),
            "brier_gain": mean(parts[1] - parts[0], sampled),
        }

    def _horizon(self, some: Array, k: int) -> dict[str, Any]:
        """Events by a time: expected and come."""
        came = survival_scores.observed(self.time[some], self.event[some], float(self.at[k]), self.level)
        expected = float(1.0 - self.survival[some, k].mean())
        return {"time": float(self.at[k]), "expected": expected, "observed": came.to_json()}

    def _by_site(self) -> dict[str, Any]:
        names, site = self.rows.names, self.rows.site
        if site is None or len(names) < 2:
            return {}
        groups = joined(self._counts(site, len(names)), self.least, len(names))
        if groups is None or len(groups) < 2:
            self.left_out.append(f"scores by site: no two groups of sites have {self.least} rows with an event, and "
                                 "as many without")  # fmt: skip
            return {}
        self._may(_joint(site, groups))
        if any(len(group) > 1 for group in groups):
            self.left_out.append(f"scores of each of {' and '.join(names[k] for k in groups[-1])}: together they have "
                                 "enough rows with an event, and without")  # fmt: skip
        return {", ".join(names[k] for k in own): self._part(np.flatnonzero(np.isin(site, own))) for own in groups}

    def _by_column(self, column: str) -> dict[str, Any] | None:
        words, group = subgroups(self.model, self.rows.x, column)
        groups = joined(self._counts(group, len(words)), self.least)
        if groups is None or len(groups) < 2:
            self.left_out.append(f"subgroups of {column}: no two groups have {self.least} rows with an event, and as "
                                 "many without")  # fmt: skip
            return None
        if not self._may(_joint(group, groups)):
            self.left_out.append(f"subgroups of {column}: beside another table they would tell of few rows")
            return None
        named = [(" or ".join(words[k] for k in some), np.flatnonzero(np.isin(group, some))) for some in groups]
        return {"column": column, "groups": [{"group": name, **self._part(some)} for name, some in named]}

    def _by_prediction(self) -> list[dict[str, Any]]:
        """Rows in groups by their expected events at the middle time: expected and come."""
        if not self.horizons:
            return []
        k = self.horizons[len(self.horizons) // 2]
        rank = np.argsort(np.argsort(self.survival[:, k], kind="stable"), kind="stable")
        for number in range(GROUPS, 1, -1):
            group = rank * number // len(rank)
            counts = self._counts(group, number)
            if (counts >= self.least).all() and self._may(group):
                return [{"rows": int(counts[g].sum()), **self._horizon(np.flatnonzero(group == g), k)}
                        for g in range(number - 1, -1, -1)]  # fmt: skip
        self.left_out.append("calibration by prediction: groups would tell of few rows")
        return []

    def _counts(self, group: Array, groups: int) -> Array:
        found = np.zeros((groups, 2), np.int64)
        np.add.at(found, (group, self.kinds), 1)
        return found

    def _may(self, groups: Array) -> bool:
        """Whether counts by these groups may be told beside those that were; if so, they count as told."""
        _, groups = np.unique(groups, return_inverse=True)
        if any(differences_tell(groups, other, self.kinds, self.least) for other in self.published):
            return False
        self.published.append(groups)
        return True


def _joint(group: Array, groups: Sequence[Sequence[int]]) -> Array:
    """The joined group of each row."""
    found = np.zeros(len(group), np.int64)
    for k, some in enumerate(groups):
        found[np.isin(group, some)] = k
    return found
