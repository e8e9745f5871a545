"""The page that a site keeps of a training: its own scores, the result of all sites, and what left it.

A site has no run directory: the server wrote that.  The page holds what the site itself has seen, and the totals of
all sites, which the server sent with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffgb.deployment.view import figures_of, in_words, wrapped
from ffgb.report.document import document
from ffgb.report.past import finite
from ffgb.report.pieces import folded, grid, scrolling, section, tabular
from ffgb.report.words import (
    THIN,
    bytes_text,
    capital,
    column_name,
    count_text,
    escaped,
    plural,
    setting_name,
    setting_value,
    value_text,
)
from ffgb.runs.certainty import of_accuracy
from ffgb.runs.headline import LEVEL

Scores = Mapping[str, Mapping[str, Any]]

REPORT, SCORES = "report.html", "scores.json"
"""Files in the folder of a model that a site keeps."""
FOOT = "This page is for the site's owner: it holds the site's own scores, which the server does not know."
TOTALS = (
    *("accuracy", "rmse", "concordance", "loss", "auc", "base_rate", "average_precision", "brier"),
    *("calibration_intercept", "calibration_slope", "r2", "mean_absolute_error"),
)
COSTS = {"bytes_up": "sent by a site", "bytes_down": "received by a site", "seconds_total": "time"}


def is_kept(folder: Path) -> bool:
    """Is this the folder of a model that a site has kept?"""
    return (folder / SCORES).exists() and not (folder / "metrics.jsonl").exists()


def site_report(scores: Scores, summary: Mapping[str, Any], settings: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The page as HTML.

    Parameters
    ----------
    scores
        Of the model at the site's own rows, by part: with the number of rows.
    summary
        What the server sent: scores over the rows of all sites, and costs.
    settings
        The options of the job.
    now
        A snapshot of the site's board.
    """
    parts = (
        _header(scores, summary, now),
        _own(scores),
        section("How it learned at these rows", grid(figures_of(now))) if len(now["lines"]) > 1 else "",
        _together(summary),
        _left(now),
        _refused(now),
        _job(settings),
    )
    return document(str(now["name"]), "".join(parts), kind="site report", foot=FOOT)


def _header(scores: Scores, summary: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    part = "held out" if "held out" in scores else "to train with"
    line = scores[part]
    measure = next(name for name in ("accuracy", "rmse", "concordance") if name in line)
    beside = ""
    if part == "held out" and measure == "accuracy":
        ends = of_accuracy(line[measure], line["rows"])
        low, high = (value_text(measure, ends[f"test_accuracy_{end}"]) for end in ("low", "high"))
        beside = f" ({100 * LEVEL:.0f}{THIN}% interval {low} to {high})"
    headline = f"{capital(column_name(measure))} {value_text(measure, line[measure])}{beside} on this site's own rows"
    did = "held out" if part == "held out" else "trained with"
    told = {"site": ("by", summary.get("clients")), "round": ("in", summary.get("rounds"))}
    known = [f" {word} {plural(n, name)}" for name, (word, v) in told.items() if (n := finite(v)) is not None]
    lead = (
        f"Measured on {plural(line['rows'], 'row')} that this site {did}. The model was trained"
        f"{''.join(known)}, with the server {escaped(now['server'])}."
    )
    return (
        f'<header><p class="eyebrow">ffgb site <b>{escaped(now["name"])}</b></p><h1>{headline}</h1>'
        f'<p class="lead">{lead}</p></header>'
    )


def _own(scores: Scores) -> str:
    names = [n for n in dict.fromkeys(n for line in scores.values() for n in line) if n != "rows"]
    rows = [
        [f"rows {escaped(part)}", count_text(line["rows"]), *(_value(name, line) for name in names)]
        for part, line in scores.items()
    ]
    table = tabular("Own scores", ["", "rows", *(column_name(name) for name in names)], rows)
    note = "Computed here, with the model that was kept. The server is not told, and no other site."
    return section("The model at this site's own rows", table, note=note)


def _together(summary: Mapping[str, Any]) -> str:
    """What the server says of all sites together: it comes from elsewhere."""
    rows = [
        [f"{what} rows", *(_value(f"{part}_{name}", summary) for name in TOTALS)]
        for part, what in (("test", "held-out"), ("train", "training"))
    ]
    known = [j for j in range(len(TOTALS)) if any(row[j + 1] != "–" for row in rows)]
    table = tabular(
        "Scores of all sites",
        ["", *(column_name(TOTALS[j]) for j in known)],
        [[row[0], *(row[j + 1] for j in known)] for row in rows],
    )
    costs = [
        [what, value_text(name.partition("_")[0], value)]
        for name, what in COSTS.items()
        if (value := finite(summary.get(name))) is not None
    ]
    note = "Means over the rows of all sites together, and a site's mean costs, as the server sent them."
    return section("All sites together", table, tabular("Costs", ["what a site exchanged", ""], costs), note=note)


def _left(now: Mapping[str, Any]) -> str:
    """What left this site, in the words that its owner agreed to."""
    rows, total = [], 0
    for left in now["left"]:
        first, last = escaped(left["first_when"], 60), escaped(left["last_when"], 60)
        when = first if first == last else f"{first} to {last}"
        rows.append([in_words(left["question"]), count_text(left["times"]), bytes_text(left["bytes"]), when])
        total += left["bytes"]
    rows.append(["<b>in all</b>", "", f"<b>{bytes_text(total)}</b>", ""])
    table = tabular("What left this site", ("what", "times", "bytes", "when"), rows)
    note = "All answers since the site was started, in the words of the agreement. Rows never left it."
    return section("What left this site", table, note=note)


def _refused(now: Mapping[str, Any]) -> str:
    rows = [
        [wrapped(escaped(each["question"])), count_text(each["times"]), wrapped(escaped(each["why"], 1000))]
        for each in now["refusals"]
    ]
    if not rows:
        return section("What this site refused", note="Nothing was refused.")
    return section("What this site refused", tabular("Refused", ("question", "times", "why"), rows))


def _value(name: str, line: Mapping[str, Any]) -> str:
    """A score of a line; shares in percent."""
    column = "share" if name.endswith("base_rate") else name
    return value_text(column, finite(line.get(name)))


def _job(settings: Mapping[str, Any]) -> str:
    rows = [
        f'<tr><th scope="row">{escaped(setting_name(name))}</th><td>{escaped(setting_value(value))}</td></tr>'
        for name, value in settings.items()
        if name != "data"
    ]
    table = f'<table class="settings">{"".join(rows)}</table>'
    note = "The options that this site's owner agreed to; all others are as by default."
    return section("The job", folded("All options", scrolling("Options", table), "print") if rows else "", note=note)
