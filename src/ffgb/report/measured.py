"""What rounds noted beside their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from ffgb.report.axes import axis_for
from ffgb.report.curves import Curve, plot
from ffgb.report.past import COSTS, Past
from ffgb.report.pieces import each_round, grid, section, tabular
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
        "How well one weak learner stands for the several that a client made it of.",
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


def measured(past: Past) -> str:
    """What rounds noted beside their scores."""
    known = USUAL | {column for noted in NOTED for column in noted.columns}
    strange = [c for c in past.columns if c not in known and not c.startswith(("train_", "test_", "ensemble_"))]
    figures, sentences, says, numbers = list[str](), list[str](), list[str](), list[list[str]]()
    for noted in (*NOTED, *(Noted(escaped(column_name(c), 40), "value", {c: ""}, "") for c in strange[:COLUMNS])):
        found = {column: series for column in noted.columns if (series := past.series(column))}
        if found.get("gamma_min") == found.get("gamma_median"):
            found.pop("gamma_min", None)  # there is one a round
        values = [v for series in found.values() for v in series if v is not None]
        if not values or ("participants" in found and len(set(past.columns["participants"])) == 1):
            continue
        if noted.none and not any(values):
            sentences.append(noted.none)
            continue
        kind, rounds = KINDS[noted.kind], past.series("round")
        names = [noted.columns[column] if len(found) > 1 else "" for column in found]
        for name, series in zip(names, found.values(), strict=True):
            shown = ("–" if v is None else kind.shown(v) for v in series)
            numbers.append([f"{noted.caption}{name and f': {name}'}", *shown])
        lines = zip(names, found.values(), ("test", "train"), strict=False)
        curves = [Curve(name, rounds, series, look) for name, series, look in lines]
        say = noted.alone if noted.alone and len(found) == 1 else noted.say
        say += SHARED if say == GAMMA and past.config.get("geometry") == "shared" else ""
        says += [f'<p class="say"><b>{noted.caption}.</b> {say}</p>'] if say else []
        x, y = axis_for(KINDS["round"], rounds), axis_for(kind, values, widen=True)
        figures.append(plot(noted.caption, x, y, curves, say))
    if not figures and not sentences:
        return ""
    content = [grid(figures)]
    if past.few and numbers:
        content = [tabular("Noted", ("", *each_round(past, "")), numbers), *says]
    return section("What rounds measured", *content, note=" ".join(sentences))
