"""The page of one run."""

from __future__ import annotations

from ffgb.report.axes import axis_for
from ffgb.report.clients import who
from ffgb.report.costs import costs
from ffgb.report.curves import XS, Curve, plot_by
from ffgb.report.document import document
from ffgb.report.effects import effects
from ffgb.report.fit import fit
from ffgb.report.left import left
from ffgb.report.measured import measured
from ffgb.report.opening import opening
from ffgb.report.past import RISING, Past
from ffgb.report.pieces import each_round, folded, grid, rounds_table, scrolling, section, tabular
from ffgb.report.words import (
    KINDS,
    capital,
    column_name,
    escaped,
    setting_name,
    setting_value,
    value_text,
)
from ffgb.report.worth import worth

LOOKS = {"test": ("test", "test"), "train": ("train", "train"), "ensemble_test": ("ensemble", "other")}
"""Curves of a quantity: what they are called, and how they look."""


def one_run(past: Past) -> str:
    parts = (opening, fit, effects, worth, who, _curves, measured, costs, left, _configuration)
    return document(past.name, "".join(part(past) for part in parts))


def _curves(past: Past) -> str:
    """Score and loss by rounds and by costs."""
    whats = dict.fromkeys((past.score.partition("_")[2], "loss"))
    ensemble = " <b>Ensemble</b> is what a round has before one learner is made of it."
    ensemble = ensemble if past.series("ensemble_test_loss") else ""
    if past.few:
        names = [f"{part}_{what}" for what in whats for part in LOOKS if past.series(f"{part}_{what}")]
        rows = [(column_name(n), *(value_text(n, v) for v in past.series(n))) for n in names]
        note = f"{'One exchange was' if past.rounds == 1 else 'Two exchanges were'} all, so there is no curve to draw."
        return section("How it learned", tabular("Scores", ("", *each_round(past)), rows), note=note + ensemble)
    figures = [figure for what in whats for figure in _figures(past, what)]
    settled = " The last point is the result: what was chosen from the rounds before, calibrated by rows set aside."
    ensemble += settled if any(past.series("settled")) else ""
    note = f"{_last_and_best(past)} Models and bytes are one client's mean, both ways; all costs include set-up."
    return section("How it learned", grid(figures), rounds_table("Rounds in numbers", past, 0), note=note + ensemble)


def _figures(past: Past, what: str) -> list[str]:
    """A quantity by rounds and by each cost; none if no one who has it answered in any round."""
    found = [(f"{part}_{what}", *look) for part, look in LOOKS.items() if past.series(f"{part}_{what}")]
    if not found:
        return []
    y = axis_for(KINDS[what], [v for column, _, _ in found for v in past.series(column)], widen=True)
    figures = []
    for x in XS:
        curves = [Curve(label, past.series(x), past.series(column), look) for column, label, look in found]
        figures.append(plot_by(x, capital(KINDS[what].text), y, curves))
    return figures


def _last_and_best(past: Past) -> str:
    """The last score, and the best one with its round."""
    name = past.score
    column = {i: v for i, v in enumerate(past.columns[name], 1) if v is not None}
    first, word = (max, "highest") if name.endswith(RISING) else (min, "lowest")
    at = first(column, key=lambda i: column[i])
    last = max(column)
    when = "in the last round" if last == past.rounds else f"in round {last:,} (later ones have none)"
    said = f"The {column_name(name)} is {value_text(name, column[last])} {when}"
    if column[at] == column[last]:
        return f"{said}, the {word} of all."
    return f"{said}; it was {word} in round {at:,}, {value_text(name, column[at])}."


def _configuration(past: Past) -> str:
    """All settings, those first that were asked for, and the versions."""
    asked = past.config.get("asked") or ()
    groups: dict[str, list[str]] = {"asked for": [], "by default, or chosen to suit the data and the learner": []}
    (changed, others), names = groups.values(), list[str]()
    for name, value in past.settings.items():
        if name == "sha256" and not value:
            continue
        group = changed if name in asked else others
        said = past.data if name == "data" else setting_value(value)
        names += [f"{escaped(setting_name(name))} {escaped(said, 60)}"] if group is changed else []
        group.append(
            f'<tr><th scope="row">{escaped(setting_name(name))}</th><td>{escaped(setting_value(value))}</td></tr>'
        )
    table = "".join(
        f'<tbody><tr class="group"><th colspan="2" scope="rowgroup">{title}</th></tr>{"".join(rows)}</tbody>'
        for title, rows in groups.items()
        if rows
    )
    versions = ", ".join(f"{escaped(k, 40)} {escaped(v, 40)}" for k, v in past.versions.items()) or "unknown"
    note = f"Asked for: {', '.join(names[:12]) or 'nothing'}{', …' * (len(names) > 12)}. "
    note += f"Versions: {versions}."
    content = folded("All settings", scrolling("Settings", f'<table class="settings">{table}</table>'), "print")
    return section("Configuration", content, note=note)
