"""For the statistician: how well the model fits rows that it was not trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ffgb.report.axes import axis_for
from ffgb.report.curves import Curve, plot
from ffgb.report.judged import Calls, Judged, Part, Score, Series
from ffgb.report.past import Past
from ffgb.report.pieces import folded, grid, section, side_by_side, tabular
from ffgb.report.words import KINDS, escaped, figure_text, plural

NAMES = {
    "c_index": "c-index",
    "integrated_brier": "integrated Brier score",
    "brier_of_no_model": "the same without a model",
    "brier_gain": "less than without",
    "auc": "AUC",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "r2": "R²",
    "mean_absolute_error": "mean absolute error",
    "bias": "predicted − observed",
    "brier": "Brier score",
    "loss": "loss",
    "average_precision": "average precision",
    "base_rate": "observed",
    "expected": "predicted",
    "calibration_intercept": "calibration intercept",
    "calibration_slope": "calibration slope",
}
"""Scores in the order of columns."""
OF_TIMES = ("c_index", "integrated_brier", "brier_of_no_model", "brier_gain")
SHARES = (*OF_TIMES, "auc", "accuracy", "base_rate", "expected", "average_precision")
SENTENCES = {
    "roc": "True positives by false positives: how well the model ranks. The dashed line is chance.",
    "precision_recall": "The share of calls that are right, by the share of positives called. Dashed: the base rate.",
    "calibration": "What came, by what was predicted, with intervals. On the dashed line, predictions are right.",
    "decision": "The worth of acting above a threshold, in hits a row; a wrong call costs what the threshold says. "
    "Dashed: acting on all rows.",
}


NAMES_OF_CURVES = {"roc": "ROC curve", "precision_recall": "Precision and recall", "decision_curve": "Net benefit"}


def fit(past: Past) -> str:
    """Scores with intervals, curves, calls and subgroups; or why there are none."""
    judged = past.judged
    if judged is None:
        return section("How well it fits", note=_why_not(past))
    drawn = "rows" if judged.totals else "sites as they are and their rows"
    note = (
        f"On {plural(judged.whole.rows, 'row')} that the model was not trained on, with intervals of "
        f"{100 * judged.level:g} % that take {drawn} as drawn. "
        f"Counts of fewer than {judged.least} rows{' of a class' * judged.two} are not shown."
        f"{' The c-index compares rows of one site.' * judged.times}{_by_totals(judged)}"
    )
    parts = [
        tabular("Scores", *_scores([judged.whole, *judged.sites], "part")),
        _horizons(judged),
        grid(_figures(judged)),
        _numbers(judged),
        _calls(judged),
        _residuals(judged),
        *(
            f"<h3>By {escaped(column, 60)}</h3>{tabular(f'By {escaped(column, 60)}', *_scores(groups, 'group'))}"
            for column, groups in judged.subgroups
        ),
        _left_out(judged.left_out),
    ]
    return section("How well it fits", *parts, note=note)


def _by_totals(judged: Judged) -> str:
    """How scores came about, if rows stayed at their sites."""
    if judged.totals is None:
        return ""
    said = " Rows stayed at their sites: these scores are computed from sums over the held-out rows of all sites. "
    said += "There are none by site or by subgroup; each site has its own."
    if not judged.classes:
        return said
    said += f" Rows were counted in {plural(judged.totals.cells, 'interval')} of the probability"
    if judged.totals.auc_error is None:
        return f"{said}."
    return f"{said}; by that the AUC is off by {judged.totals.auc_error:.2g} at most, and as a rule by far less."


def _residuals(judged: Judged) -> str:
    """Quantiles of errors of numbers."""
    if not judged.residuals:
        return ""
    rows = [(f"{100 * level:g} %", figure_text(value)) for level, value in judged.residuals]
    title = "Errors (predicted − observed)"
    return f"<h3>{title}</h3>" + tabular(title, ("share of rows below", "error"), rows)


def _horizons(judged: Judged) -> str:
    """How many events were expected by a time, and how many came."""
    if not judged.horizons:
        return ""
    rows = [
        [
            escaped("all rows" if name == "all" else name, 60),
            f"{events:,}",
            figure_text(time),
            f"{expected:.3f}",
            _shown("accuracy", came),
        ]
        for name, events, time, expected, came in judged.horizons
    ]
    head = ("part", "rows with an event", "until", "expected share of events", "came (Kaplan and Meier)")
    return f"<h3>Events by a time</h3>{tabular('Events by a time', head, rows)}"


def _why_not(past: Past) -> str:
    if past.config.get("data") == ["sites"]:
        return (
            "Rows that were held out are at the sites, and only sums of loss and score left them. So there are no "
            "curves and no intervals here. Each site can score the model on its own rows: <code>ffgb evaluate</code>."
        )
    if past.summary is None:
        return "This run has not ended."
    return (
        "No rows were held out, or this run is of an older version. <code>ffgb evaluate RUN --data FILE</code> scores "
        "rows of a file."
    )


def _scores(parts: Sequence[Part], first: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of scores."""
    names = [name for name in NAMES if any(name in part.scores for part in parts)]
    rows = [
        [
            escaped("all rows" if part.name == "all" else part.name, 60),
            f"{part.rows:,}",
            *(_shown(name, part.scores.get(name)) for name in names),
        ]
        for part in parts
    ]
    return [first, "rows", *(NAMES[name] for name in names)], rows


def _shown(name: str, score: Score | None) -> str:
    """A score with its interval below it."""
    if score is None:
        return "–"
    shown = shown_as(name)
    ends = "" if score.low is None or score.high is None else f"{shown(score.low)} to {shown(score.high)}"
    return f'{shown(score.value)}<br/><span class="few">{ends or "–"}</span>'


def shown_as(name: str) -> Callable[[float], str]:
    """How a score is written."""
    if name in SHARES or name in ("brier", "loss"):
        return lambda v: f"{v:.3f}"
    if name.startswith("calibration") or name == "r2":
        return lambda v: f"{v:.2f}"
    return figure_text


def _figures(judged: Judged) -> list[str]:
    share, found = KINDS["share"], list[str]()
    whole = axis_for(share, [0.0, 1.0])
    if (roc := judged.curves.get("roc")) is not None:
        curves = [_curve("model", roc, "false_positive_rate", "true_positive_rate"), _dashed("chance", 0.0, 1.0)]
        found.append(plot("ROC curve", whole, whole, curves, SENTENCES["roc"]))
    if (pr := judged.curves.get("precision_recall")) is not None:
        base = judged.whole.scores["base_rate"].value
        curves = [_curve("model", pr, "recall", "precision"), _dashed("base rate", base, base)]
        found.append(plot("Precision by recall", whole, whole, curves, SENTENCES["precision_recall"]))
    if judged.calibration:
        found.append(_calibration(judged))
    if (decision := judged.curves.get("decision_curve")) is not None and len(decision["threshold"]) > 1:
        nothing = tuple(0.0 for _ in decision["threshold"])
        everyone = tuple(max(v, -0.05) if v is not None else None for v in decision["all"])
        y = axis_for(KINDS["value"], [0.0, *(v for v in (*decision["model"], *everyone) if v is not None)], widen=True)
        curves = [
            _curve("model", decision, "threshold", "model"),
            Curve("all", decision["threshold"], everyone, "train", run=None),
            Curve("none", decision["threshold"], nothing, "other", run=None),
        ]
        found.append(plot("Net benefit by threshold", whole, y, curves, SENTENCES["decision"]))
    return found


def _calibration(judged: Judged) -> str:
    predicted = tuple(p for _, p, _ in judged.calibration)
    bars = tuple((s.low, s.high) for _, _, s in judged.calibration)
    came = Curve("model", predicted, tuple(s.value for _, _, s in judged.calibration), "test", run=None, bars=bars)
    if judged.classes or judged.times:
        axis = axis_for(KINDS["share"], [0.0, 1.0])
        curves = [came, _dashed("right", 0.0, 1.0)]
        if (line := _line(judged)) is not None:
            curves = [dataclasses.replace(came, name="groups", joined=False), line, curves[1]]
        return plot("Observed by predicted", axis, axis, curves, SENTENCES["calibration"])
    ends = [*predicted, *(v for _, _, s in judged.calibration for v in (s.low, s.high) if v is not None)]
    kind = dataclasses.replace(KINDS["value"], log=min(ends) > 0)  # what is not positive would be cut off
    axis = axis_for(kind, ends, widen=True)
    right = Curve("right", (axis.low, axis.high), (axis.low, axis.high), "train", run=None)
    return plot("Observed by predicted", axis, axis, [came, right], SENTENCES["calibration"])


def _line(judged: Judged) -> Curve | None:
    """The line of log odds that calibration is judged by, as a curve."""
    scores = judged.whole.scores
    intercept, slope = scores.get("calibration_intercept"), scores.get("calibration_slope")
    if intercept is None or slope is None:
        return None
    x = [j / 40 for j in range(1, 40)]
    odds = (intercept.value + slope.value * math.log(p / (1.0 - p)) for p in x)
    y = tuple(1.0 / (1.0 + math.exp(-max(min(z, 700.0), -700.0))) for z in odds)
    return Curve("model", tuple(x), y, "test", run=None)


def _curve(name: str, columns: Mapping[str, Series], x: str, y: str) -> Curve:
    return Curve(name, columns[x], columns[y], "test", run=None)


def _dashed(name: str, first: float, last: float) -> Curve:
    return Curve(name, (0.0, 1.0), (first, last), "train", run=None)


def _numbers(judged: Judged) -> str:
    """The numbers that the curves are drawn by."""
    tables = []
    if judged.calibration:
        rows = [(f"{p:.4g}", f"{n:,}", *_ends(s)) for n, p, s in judged.calibration]
        tables.append(tabular("Calibration", ("predicted", "rows", "observed", "from", "to"), rows))
    for name, head in (
        ("roc", ("threshold", "false positives", "true positives")),
        ("precision_recall", ("threshold", "recall", "precision")),
        ("decision_curve", ("threshold", "model", "all rows")),
    ):
        if (curve := judged.curves.get(name)) is not None:
            cells = ([_text(v) for v in row] for row in zip(*curve.values(), strict=True))
            tables.append(tabular(NAMES_OF_CURVES[name], head, cells))
    return folded("The numbers behind these curves", side_by_side(*tables)) if tables else ""


def _ends(score: Score) -> Iterable[str]:
    return (_text(v) for v in (score.value, score.low, score.high))


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _calls(judged: Judged) -> str:
    """Right and wrong calls at the threshold, and at the one where both rates are largest together."""
    found = ""
    if judged.calls and judged.threshold is not None:
        found += _table_of_calls(judged, judged.threshold, judged.calls, "")
    if judged.best is not None and judged.best[0] != judged.threshold:
        threshold, calls = judged.best
        found += _table_of_calls(judged, threshold, [calls], ", where sensitivity + specificity is largest here")
    return found


def _table_of_calls(judged: Judged, threshold: float, calls: Sequence[Calls], more: str) -> str:
    counts = {
        "true_positives": "called, and right", "false_positives": "called, and wrong",
        "false_negatives": "missed", "true_negatives": "rightly not called",
    }  # fmt: skip
    shares = {
        "sensitivity": "sensitivity", "specificity": "specificity",
        "positive_predictive_value": "called ones that are right",
        "negative_predictive_value": "others that are right",
    }  # fmt: skip
    rows = [
        [
            escaped("all rows" if part.name == "all" else part.name, 60),
            *(f"{part.counts[name]:,}" for name in counts),
            *(_shown("accuracy", part.shares.get(name)) for name in shares),
        ]
        for part in calls
    ]
    title = f"Calls of {escaped(judged.classes[1], 40)} from a probability of {threshold:.3g}{more}"
    return f"<h3>{title}</h3>" + tabular(title, ("part", *counts.values(), *shares.values()), rows)


def _left_out(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escaped(sentence, 300)}</li>" for sentence in sentences[:20])
    return f'<p class="say">Left out, because too few rows would be told of:</p><ul class="say">{items}</ul>'
