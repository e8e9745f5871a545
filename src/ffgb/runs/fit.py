"""How well a model fits rows that it was not trained on: scores with intervals by site, curves, subgroups.

`fit` returns data for `fit.json`, the report and `ffgb evaluate`.  Counts are published by groups of enough rows of
each class only (core/disclosure.py), and no two tables together tell of fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from ffgb.core import estimates
from ffgb.core.disclosure import LEAST, MOST_TRIED, differences_tell, joined
from ffgb.core.estimates import LEVEL, Estimate, Sampled
from ffgb.core.probability_cells import ProbabilityCells
from ffgb.core.residuals import counted_errors, residual_quantiles
from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError
from ffgb.runs.fit_times import fit_times
from ffgb.runs.held_out import HeldOut, subgroups
from ffgb.runs.model import Model

Scores: TypeAlias = dict[str, Any]
CLASSES, NUMBER = "classes", "number"
CELLS = (60, 40, 25, MOST_TRIED, 8, 5, 3)
"""Cells that curves are drawn from, at most: fewer if more would tell of few rows beside other tables."""
CONFUSIONS = 6
"""Groups of sites that have tables of confusion, at most."""
THRESHOLD = 0.5


def fit(
    model: Model,
    rows: HeldOut,
    *,
    by: Sequence[str] = (),
    threshold: float = THRESHOLD,
    least: int = LEAST,
    level: float = LEVEL,
) -> dict[str, Any]:
    """Scores, curves and tables of a model, as data.

    Parameters
    ----------
    model
        Of two classes, of more, or of numbers.
    rows
        What it is judged by.
    by
        Columns whose subgroups are told apart.
    threshold
        The probability from which a row is called positive (two classes).
    least
        Rows of a group and class, at least.
    level
        Of confidence intervals.

    Returns
    -------
    dict
        `parts`: scores with intervals, of all rows and by site; `curves`; `confusion`; `subgroups`; `left_out`:
        sentences on what few rows forbid.
    """
    if not 0.0 < threshold < 1.0:
        raise SettingError("threshold", f"is a probability between 0 and 1, not {threshold:g}")
    if not model.job.loss.alone:
        return fit_times(model, rows, by=by, least=least, level=level)
    return _Judge(model, rows, threshold, least, level).judged(by)


@final
@dataclass(eq=False)
class _Judge:
    """Puts one judgement together; `published` holds the groups of rows that counts were given for."""

    model: Model
    rows: HeldOut
    threshold: float
    least: int
    level: float
    published: list[Array] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows, model = self.rows, self.model
        self.f = model.decision(rows.x)
        self.site = np.zeros(len(rows.y), np.int64) if rows.site is None else rows.site
        self.mass = np.ones(len(rows.y)) if rows.weights is None else np.asarray(rows.weights, np.float64)
        self.p = model.probability(self.f) if model.classes else None
        self.two = len(model.classes) == 2
        self.classes = rows.y if model.classes else np.zeros(len(rows.y), np.int64)

    def judged(self, by: Sequence[str]) -> dict[str, Any]:
        kind = {"task": CLASSES if self.model.classes else NUMBER, "classes": list(self.model.classes)}
        found: dict[str, Any] = {**kind, "level": self.level, "least": self.least}
        # what a user names comes before what is drawn anyway: the later ones give way
        found["parts"] = {"all": self._scores(np.arange(len(self.rows.y)))} | self._by_site()
        found["subgroups"] = [table for name in by if (table := self._subgroups(name)) is not None]
        if self.two:
            found["confusion"] = self._confusion()
        if (errors := self._residuals()) is not None:
            found["residuals"] = errors
        return found | {"curves": self._curves(), "left_out": self.left_out}

    def _scores(self, some: Array) -> Scores:
        """Scores of some rows, each with its interval."""
        sampled = Sampled(self.mass[some], self.site[some], self.level)
        y, f = self.rows.y[some], self.f[some]
        if not sampled.mass.sum() > 0:
            raise FFGBError("all rows to score have the weight 0; name others")
        found = {"rows": len(some)}
        scores = self._of_numbers(f, y, sampled) if self.p is None else self._of_classes(self.p[some], f, y, sampled)
        return found | {"scores": {name: score.to_json() for name, score in scores.items()}}

    def _of_classes(self, p: Array, f: Array, y: Array, rows: Sampled) -> dict[str, Estimate]:
        found = {
            "accuracy": estimates.share(p.argmax(axis=1) == y, rows),
            "loss": estimates.mean(self.model.losses(f, y), rows, least=0.0),
            "brier": estimates.mean(
                np.square(p - np.eye(p.shape[1])[y]).sum(axis=1) / (2.0 if self.two else 1.0), rows, least=0.0
            ),
        }
        if not self.two:
            return found
        base = estimates.share(y == 1, rows)
        found = {"base_rate": base, "auc": estimates.area(p[:, 1], y, rows)} | found
        if 0.0 < base.value < 1.0:
            found["average_precision"] = estimates.precision_area(p[:, 1], y, rows)
            expected = float(rows.mass @ p[:, 1] / rows.mass.sum())
            found["expected"] = Estimate(expected)
            line = estimates.calibration_line(p[:, 1], y, rows)
            if line is not None:
                found["calibration_intercept"], found["calibration_slope"] = line
        return found

    def _of_numbers(self, f: Array, y: Array, rows: Sampled) -> dict[str, Estimate]:
        values = self.model.job.predicted(f)
        error = values - y.reshape(values.shape)
        squares = np.square(error).sum(axis=1)
        found = {
            "rmse": estimates.root_mean(squares, rows),
            "mean_absolute_error": estimates.mean(np.abs(error).sum(axis=1), rows, least=0.0),
            "bias": estimates.mean(error.sum(axis=1), rows),
        }
        if values.shape[1] != 1:
            return found
        whole, mass = y.reshape(-1), rows.mass / rows.mass.sum()
        spread = np.square(whole - mass @ whole)
        if mass @ spread > 0:
            r2 = 1.0 - float(mass @ squares / (mass @ spread))
            derivative = -(squares - (1.0 - r2) * spread) / (rows.mass @ spread)
            found["r2"] = rows.around(r2, rows.error(derivative))
        line = estimates.straight_line(values[:, 0], whole, rows)
        if line is not None:
            found["calibration_intercept"], found["calibration_slope"] = line
        return found

    def _by_site(self) -> dict[str, Scores]:
        """Scores of each site; sites of few rows together."""
        names, site = self.rows.names, self.rows.site
        if site is None or len(names) < 2:
            return {}
        kinds = self.classes if self.two else np.zeros(len(site), np.int64)
        groups = joined(_counts(site, kinds, len(names), 2 if self.two else 1), self.least, len(names))
        if groups is None or len(groups) < 2:
            self.left_out.append(f"scores by site: no two groups of sites have {self.least} rows{self._each}")
            return {}
        self.published.append(_group_of(site, groups, len(names)))
        if any(len(group) > 1 for group in groups):
            some = " and ".join(names[k] for k in groups[-1])
            self.left_out.append(f"scores of each of {some}: together they have enough rows{self._each}")
        return {
            ", ".join(names[k] for k in group): self._scores(np.flatnonzero(np.isin(site, group))) for group in groups
        }

    @property
    def _each(self) -> str:
        return " of each class" if self.two else ""

    def _curves(self) -> dict[str, Any] | None:
        """What is drawn: of two classes by probability; of more, whether the most probable class is right."""
        if self.p is None:
            return self._by_prediction()
        if self.two:
            for most in CELLS:
                cells = self._cells(self.p[:, 1], self.rows.y, most)
                if cells.holds(self.least) and not self._tell(cells):
                    return cells.to_json(self.level)
        else:
            right = (self.p.argmax(axis=1) == self.rows.y).astype(np.int64)
            cells = self._cells(self.p.max(axis=1), right, CELLS[0])
            if cells.holds(self.least):
                return {"calibration": cells.calibration(self.level)}
        self.left_out.append(f"curves: some of their cells would have fewer than {self.least} rows of a kind")
        return None

    def _tell(self, cells: ProbabilityCells) -> bool:
        """Would the cells of either class, beside tables that were published, tell of few rows?"""
        assert self.p is not None
        for kind, own in enumerate(cells.kinds):
            some = self.rows.y == kind
            groups, alike = own.cell_of(self.p[some, 1]), np.zeros(int(some.sum()), np.int64)
            if any(differences_tell(groups, other[some], alike, self.least) for other in self.published):
                return True
        return False

    def _cells(self, p: Array, kinds: Array, most: int) -> ProbabilityCells:
        threshold = self.threshold if self.two else THRESHOLD
        return ProbabilityCells.of(p, kinds, self.rows.weights, least=self.least, threshold=threshold, most=most)

    def _by_prediction(self) -> dict[str, Any] | None:
        """Of numbers: what was predicted and what came, in groups of equally many rows."""
        values = self.model.job.predicted(self.f)
        if values.shape[1] != 1 or len(values) < 2 * self.least:
            return None
        order = np.argsort(values[:, 0], kind="stable")
        found = []
        for some in np.array_split(order, min(10, len(order) // self.least)):
            sampled = Sampled(self.mass[some], self.site[some], self.level)
            if sampled.mass.sum() > 0:
                observed = estimates.mean(self.rows.y.reshape(-1)[some], sampled)
                predicted = float(np.average(values[some, 0], weights=sampled.mass))
                found.append({"rows": len(some), "predicted": predicted, "observed": observed.to_json()})
        return {"calibration": found}

    def _residuals(self) -> list[dict[str, float]] | None:
        """Quantiles of errors of numbers; rows that have weights have none."""
        job = self.model.job
        if self.p is not None or job.loss.outputs != 1 or self.rows.weights is not None:
            return None
        scale = 1.0 if job.target is None else float(job.target.scale[0])
        error = (job.predicted(self.f)[:, 0] - self.rows.y.reshape(-1)) / scale
        return residual_quantiles(counted_errors(error), scale, self.least)

    def _confusion(self) -> dict[str, Any] | None:
        """Right and wrong calls at the threshold, of all rows and by site."""
        assert self.p is not None
        called = (self.p[:, 1] >= self.threshold).astype(np.int64)
        kinds = 2 * self.rows.y + called
        if (np.bincount(kinds, minlength=4) < self.least).any() or not self._may(called):
            self.left_out.append(f"calls at {self.threshold:g}: fewer than {self.least} rows are right, or wrong")
            return None
        found: dict[str, Any] = {"threshold": self.threshold, "parts": {"all": self._called(kinds)}}
        names, site = self.rows.names, self.rows.site
        if site is None or len(names) < 2:
            return found
        groups = joined(_counts(site, kinds, len(names), 4), self.least, CONFUSIONS)
        if groups is None or len(groups) < 2:
            return found
        group = _group_of(site, groups, len(names))
        if self._may(2 * group + called):
            for k, members in enumerate(groups):
                found["parts"][", ".join(names[i] for i in members)] = self._called(kinds[group == k])
        return found

    def _called(self, kinds: Array) -> dict[str, Any]:
        return calls_of(np.bincount(kinds, minlength=4).tolist(), self.level)

    def _subgroups(self, column: str) -> dict[str, Any] | None:
        """Scores of the subgroups of a column; those of few rows together."""
        words, group = subgroups(self.model, self.rows.x, column)
        kinds = self.classes if self.two else np.zeros(len(group), np.int64)
        groups = joined(_counts(group, kinds, len(words), 2 if self.two else 1), self.least)
        what = f"subgroups of {column}"
        if groups is None or len(groups) < 2:
            self.left_out.append(f"{what}: no two groups have {self.least} rows{self._each}")
            return None
        if not self._may(_group_of(group, groups, len(words))):
            self.left_out.append(f"{what}: beside another table they would tell of fewer than {self.least} rows")
            return None
        named = [(" or ".join(words[k] for k in some), np.isin(group, some)) for some in groups]
        return {"column": column, "groups": [{"group": name, **self._scores(np.flatnonzero(r))} for name, r in named]}

    def _may(self, groups: Array) -> bool:
        """Whether counts by these groups may be told beside those that were; if so, they count as told."""
        _, groups = np.unique(groups, return_inverse=True)
        kinds = self.classes if self.two else np.zeros(len(groups), np.int64)
        if any(differences_tell(groups, other, kinds, self.least) for other in self.published):
            return False
        self.published.append(groups)
        return True


def calls_of(counts: Sequence[int], level: float = LEVEL) -> dict[str, Any]:
    """Right and wrong calls (rightly not called, wrongly called, missed, rightly called), and the shares they give."""
    tn, fp, fn, tp = counts
    z = Sampled.of(0, level=level).z
    shares = {
        "sensitivity": (tp, tp + fn), "specificity": (tn, tn + fp),
        "positive_predictive_value": (tp, tp + fp), "negative_predictive_value": (tn, tn + fn),
    }  # fmt: skip
    named = {"true_positives": tp, "false_negatives": fn, "false_positives": fp, "true_negatives": tn}
    return named | {name: estimates.wilson(part / whole, whole, z).to_json() for name, (part, whole) in shares.items()}


def _counts(group: Array, kinds: Array, groups: int, number: int) -> Array:
    found = np.zeros((groups, number), np.int64)
    np.add.at(found, (group, kinds), 1)
    return found


def _group_of(group: Array, joint: Sequence[Sequence[int]], groups: int) -> Array:
    """The joined group of each row."""
    table = np.empty(groups, np.int64)
    for k, some in enumerate(joint):
        table[list(some)] = k
    return table[group]
