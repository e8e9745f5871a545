"""What rounds noted beside their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ffgb.report.axes import axis_for
from ffgb.report.curves import Curve, plot
from ffgb.report.past import COSTS, Past, Values
from ffgb.report.pieces import IN_NUMBERS, each_round, folded, grid, section, tabular
from ffgb.report.rows import COLUMNS
from ffgb.report.words import KINDS, column_name, escaped


@final
@dataclass(frozen=True)
class Noted:
    """What rounds may have noted: its columns, with a name for each, and what there is to say about it."""

    caption: str
    kind: str
    columns: Mapping[str, str]
    say: str
    none: str = ""
    """What to say instead if all are 0."""
    alone: str = ""
    """What to say instead if only the first column is known."""


GAMMA = (
    "γ says how well weak learners fit what they are asked for: γ = 1 − ‖h − φ‖/‖φ‖ for an answer h to φ. At 1 the fit "
    "is perfect, at 0 no better than none. The theory wants it above 0. It often falls when little is left to fit."
)
SHARED = " In a shared geometry there is one a round: that of all clients' mean answer, at all their points."
NOTED = (
    Noted("γ of the weak learners", "gamma", {"gamma_median": "median", "gamma_min": "least"}, GAMMA),
    Noted(
        "What a step explains",
        "share",
        {"explained": "gradient", "noise": "noise"},
        "How much of the gradient lies along the step, and how much of pure noise would. Where noise is well above, "
        "there is nothing left to learn.",
        alone="How much of the gradient lies along the step.",
    ),
    Noted(
        "Effective parameters",
        "count",
        {"freedom": "of an output"},
        "How many weights the rows determine, under the prior with the largest evidence. The others stay near 0.",
    ),
    Noted(
        "What a step changes",
        "ratio",
        {"remaining": "change"},
        "In squares of the standard deviations that the rows leave open, for each effective parameter. Below 0.1 "
        "training ends.",
    ),
    Noted(
        "Residual that is left",
        "ratio",
        {"residual": "residual"},
        "What local steps have not explained yet, which is carried into the next one: its length over the gradient's, "
        "on average over clients. The larger, the weaker the learners.",
    ),
    Noted(
        "γ in the two norms",
        "gamma",
        {"gamma_sup": "values", "gamma_lip": "slopes"},
        "The least γ in the two norms of FFGB.L: of values at points, and of slopes between pairs of them.",
    ),
    Noted(
        "Steepest weak learner",
        "value",
        {"lipschitz": "L"},
        "The largest Lipschitz constant among the weak learners of a round.",
    ),
    Noted(
        "γ of distillation",
        "gamma",
        {"gamma_distilled": "least"},
        "How well one weak learner stands for those that it was made of.",
    ),
    Noted(
        "Clipped values",
        "count",
        {"clipped": "learner", "clipped_residual": "residual"},
        "Values at clients' own points that FFGB.C cut off. By the paper's lemma there are none as long as γ is what "
        "the oracle achieves.",
        "No value at a client's own points was clipped, as the paper's lemma has it: clips act elsewhere.",
    ),
    Noted(
        "Calls that did not contract",
        "count",
        {"uncovered": "calls"},
        "Calls of the oracle with γ ≤ 0 in the norm of the theorem, which says nothing about them.",
        "Every call of the oracle contracted, in the norm of the theorem.",
    ),
    Noted(
        "Learners before distillation",
        "count",
        {"ensemble_learners": "learners"},
        "Weak learners of a round's ensemble, before one is made of them.",
    ),
    Noted("Clients that took part", "count", {"participants": "clients"}, "Those whose answers a round is made of."),
)
USUAL = {
    *("round", "seconds", "setup_seconds", *COSTS),
    *(f"{cost}_{way}" for cost in (*COSTS, "wire") for way in ("up", "down")),
}


@final
@dataclass(frozen=True, eq=False)
class _Found:
    """The columns of a note that a run has, each with its name; a column alone needs none."""

    noted: Noted
    columns: Sequence[tuple[str, Values]]

    @property
    def values(self) -> list[float]:
        return [v for _, series in self.columns for v in series if v is not None]

    @property
    def nothing(self) -> str:
        """What there is to say if all values are 0; nothing if some are not."""
        return "" if any(self.values) else self.noted.none

    def say(self, past: Past) -> str:
        noted = self.noted
        say = noted.alone if noted.alone and len(self.columns) == 1 else noted.say
        return say + SHARED if say == GAMMA and past.config.get("geometry") == "shared" else say

    def paragraph(self, past: Past) -> str:
        say = self.say(past)
        return f'<p class="say"><b>{self.noted.caption}.</b> {say}</p>' if say else ""

    def figure(self, past: Past) -> str:
        rounds, kind = past.series("round"), KINDS[self.noted.kind]
        lines = zip(self.columns, ("test", "train"), strict=False)
        curves = [Curve(name, rounds, series, look) for (name, series), look in lines]
        x, y = axis_for(KINDS["round"], rounds), axis_for(kind, self.values, widen=True)
        return plot(self.noted.caption, x, y, curves, self.say(past))

    def rows(self) -> Iterator[list[str]]:
        """The same as rows of a table, with a cell a round."""
        shown = KINDS[self.noted.kind].shown
        for name, series in self.columns:
            cells = ("–" if v is None else shown(v) for v in series)
            yield [f"{self.noted.caption}{name and f': {name}'}", *cells]


def _find(past: Past, noted: Noted) -> _Found | None:
    """What a run has of a note; None if that says nothing."""
    series = {column: values for column in noted.columns if (values := past.series(column))}
    if series.get("gamma_min") == series.get("gamma_median"):
        series.pop("gamma_min", None)  # there is one a round
    if not series or ("participants" in series and len(set(past.columns["participants"])) == 1):
        return None
    found = _Found(noted, [(noted.columns[c] if len(series) > 1 else "", values) for c, values in series.items()])
    return found if found.values else None


def _own_notes(past: Past) -> list[Noted]:
    """Notes that are not ours: columns of an algorithm of the user's own."""
    known = USUAL | {column for noted in NOTED for column in noted.columns}
    strange = [c for c in past.columns if c not in known and not c.startswith(("train_", "test_", "ensemble_"))]
    return [Noted(escaped(column_name(c), 40), "value", {c: ""}, "") for c in strange[:COLUMNS]]


def _once(notes: Sequence[_Found]) -> str:
    """What a single round has noted is no curve."""
    shown = [f"{found.noted.caption} {KINDS[found.noted.kind].shown(found.values[0])}" for found in notes]
    return f'<p class="say">Noted once: {"; ".join(shown)}.</p>' if shown else ""


def _table(past: Past, drawn: Sequence[_Found]) -> str:
    """The numbers that curves are drawn by."""
    columns = [row for found in drawn for row in found.rows()]
    if not columns:
        return ""
    head = ("round", *(column[0] for column in columns))
    rounds = (f"{t:,.0f}" for t in past.series("round") if t is not None)
    rows = ([t, *cells] for t, *cells in zip(rounds, *(column[1:] for column in columns), strict=True))
    return folded(IN_NUMBERS, tabular("What rounds measured", head, rows))


def measured(past: Past) -> str:
    """What rounds noted beside their scores."""
    every = [found for noted in (*NOTED, *_own_notes(past)) if (found := _find(past, noted))]
    if not every:
        return ""
    some = [found for found in every if not found.nothing]
    if past.few and some:
        rows = [row for found in some for row in found.rows()]
        content = [tabular("Noted", ("", *each_round(past, "")), rows), *(found.paragraph(past) for found in some)]
    else:
        once = [found for found in some if all(sum(v is not None for v in s) < 2 for _, s in found.columns)]
        drawn = [found for found in some if found not in once]
        content = [grid([found.figure(past) for found in drawn]), _once(once), _table(past, drawn)]
    return section("What rounds measured", *content, note=" ".join(f.nothing for f in every if f.nothing))
