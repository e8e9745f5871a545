"""Who holds what, and how good the function is for whom."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ffgb.report.histogram import histogram
from ffgb.report.past import MEASURES, RISING, Held, Past
from ffgb.report.pieces import IN_NUMBERS, folded, section, side_by_side, tabular
from ffgb.report.rows import COLUMNS, WRITTEN, bar_rows, class_columns, heat_map, means_apart, some_of, target_ranges
from ffgb.report.words import KINDS, capital, column_name, escaped, plural, share_text, value_text

WORST = 20
"""Clients in the list of the worst."""
SENTENCES = 40
"""Of those that tell how columns differ."""


def who(past: Past) -> str:
    """Who holds what, and how good the function is for whom; side by side where there is room."""
    if not past.clients:
        why = "This run does not say who holds what, nor how good its function is for whom: it has no clients.json."
        return section("Clients", note=why)
    if past.secure and not any(c.points is not None or c.train for c in past.clients):
        names = ", ".join(escaped(c.name, 60) for c in past.clients)
        note = (
            f"{escaped(past.secure)} So no score or number of rows of a single one is known here. They were: {names}."
        )
        return f"{section('Clients', note=note)}{_told(past.told)}"
    held = f"<div>{_holdings(past.clients, past.classes)}{_columns(past)}{_told(past.told)}</div>"
    parts = held, _by_client(past.clients, past.sampled)
    return side_by_side(*parts) if len(past.classes) <= 2 * WRITTEN else "".join(parts)


def _holdings(clients: Sequence[Held], classes: Sequence[str]) -> str:
    if any(c.labels for c in clients):
        few = (
            f" Columns are the {COLUMNS - 1} most frequent of {len(classes):,} classes."
            if len(classes) > COLUMNS
            else ""
        )
        note = "Training points by class; the stronger the colour, the larger a class's share of a client's own points."
        note = f"{note} {_apart(clients, classes)} {some_of(clients)[1]}{few}"
        return section("Who holds what", heat_map(clients, classes), _labels_table(clients, classes), note=note)
    if targets := [c for c in clients if c.target.keys() >= {"mean", "std"}]:
        rows, left_out = some_of(targets)
        note = (
            "Targets of each client's training points: their mean, one standard deviation to either side, and how many "
        )
        note += f"there are. {left_out}"
        shown = KINDS["value"].shown
        numbers = [
            (escaped(c.name, 60), value_text("count", c.points), shown(c.target["mean"]), shown(c.target["std"]))
            for c in rows
        ]
        table = tabular("Targets by client", ("client", "points", "mean", "standard deviation"), numbers)
        return section("Who holds what", target_ranges(rows), folded(IN_NUMBERS, table), note=note)
    sized, left_out = some_of(sorted((c for c in clients if c.points is not None), key=lambda c: -(c.points or 0.0)))
    bars = [(c.name, (c.points or 0.0,), f"{c.points:,.0f}") for c in sized]
    return section("Who holds what", bar_rows("Points by client", bars, ("fill",)), note=f"Training points. {left_out}")


def _labels_table(clients: Sequence[Held], classes: Sequence[str]) -> str:
    """Points of each class at each client that the picture has."""
    total = [math.fsum(c.labels[j] for c in clients if c.labels) for j in range(len(classes))]
    columns = class_columns(classes, total)
    rows = [
        (
            escaped(c.name, 60),
            value_text("count", c.points),
            *(f"{math.fsum(c.labels[j] for j in some):,.0f}" for _, some in columns),
        )
        for c in some_of(clients)[0]
        if c.labels
    ]
    head = ("client", "points", *(escaped(name, 30) for name, _ in columns))
    return folded(IN_NUMBERS, tabular("Points by class", head, rows))


def _columns(past: Past) -> str:
    """How far apart clients' columns are, if that is known."""
    clients = past.clients or ()
    known = [
        (name, values)
        for name, values in past.apart
        if len(values) == len(clients) and any(v is not None for v in values)
    ]
    if not known:
        return ""
    note = (
        "Each dot is a client: the mean of a column at its training points, in standard deviations of all points from "
        "the mean of all. Shown are the columns that differ most, first the one that does most."
    )
    shown = KINDS["value"].shown
    some = some_of(clients)[0]
    rows = [
        (escaped(client.name, 60), *("–" if (v := values[k]) is None else shown(v) for _, values in known))
        for k, client in enumerate(clients)
        if client in some
    ]
    table = tabular("Means of columns by client", ("client", *(escaped(name, 40) for name, _ in known)), rows)
    return section("How clients differ", means_apart(known, clients), folded(IN_NUMBERS, table), note=note)


def _told(sentences: Sequence[str]) -> str:
    """What was noticed when clients' columns were put together."""
    if not sentences:
        return ""
    items = "".join(f"<li>{escaped(sentence)}</li>" for sentence in sentences[:SENTENCES])
    more = f"<li>… ({len(sentences):,} in all)</li>" if len(sentences) > SENTENCES else ""
    return section("Columns that differ", f'<ul class="say">{items}{more}</ul>')


def _apart(clients: Sequence[Held], classes: Sequence[str]) -> str:
    """How much the clients' classes differ, in a sentence."""
    told = [c.labels for c in clients if any(c.labels)]
    if not told:
        return ""
    total = [math.fsum(labels[j] for labels in told) for j in range(len(classes))]
    everything = math.fsum(total)
    variation = []
    for labels in told:
        size = math.fsum(labels)
        variation.append(math.fsum(abs(n / size - t / everything) for n, t in zip(labels, total, strict=True)) / 2)
    most = max(range(len(classes)), key=lambda j: total[j])
    return (
        f"To look like all of them together, a client would have to change the class of "
        f"{share_text(statistics.fmean(variation))} of its points on average (total variation). The most frequent "
        f"class, {escaped(classes[most], 40)}, has {share_text(total[most] / everything)} of all points."
    )


def client_scores(clients: Sequence[Held]) -> tuple[str, str, list[tuple[float, Held]]]:
    """On which points, which measure, and the clients' values, worst first."""
    part = "test" if any(c.test for c in clients) else "train"
    known = [(c.test if part == "test" else c.train, c) for c in clients]
    measure = next((m for m in (*MEASURES, "loss") if any(m in found for found, _ in known)), "loss")
    sign = 1.0 if measure in RISING else -1.0
    return part, measure, sorted(((f[measure], c) for f, c in known if measure in f), key=lambda pair: sign * pair[0])


def _by_client(clients: Sequence[Held], sampled: bool) -> str:
    part, measure, values = client_scores(clients)
    if not values:
        return section("Score by client", note="This run does not say.")
    kind, worst = KINDS[measure], values[:WORST]
    what = f"{part} {kind.text}"
    bars = []
    for value, client in worst:
        size = client.test.get("points") if part == "test" else client.points
        few = "" if size is None else f' <tspan class="few">on {size:,.0f}</tspan>'
        bars.append((client.name, (value,), f"{kind.shown(value)}{few}"))
    # Of a client's training points only its own reports tell, and it makes none while others are asked.
    when = " when it last took part" if sampled and part == "train" else ""
    note = f"The {what} on each client's own {part} points{when}, worst first"
    note += f": the worst {WORST} of {len(values):,}. " if len(values) > WORST else ". "
    median = kind.shown(statistics.median(value for value, _ in values))
    note += f"From {kind.shown(values[0][0])} to {kind.shown(values[-1][0])}, median {median}. "
    if part == "train":
        note += "No client holds test points of its own. "
    elif len(values) < len(clients):
        note += f"Left out: {plural(len(clients) - len(values), 'client')} without test points. "
    note += "A score on few points is uncertain."
    pictures = [bar_rows(f"{capital(what)} by client", bars, ("fill",), 1.0 if measure in RISING else 0.0)]
    if len(values) > WORST:
        pictures.append(histogram(f"Clients by {what}", kind, [value for value, _ in values]))
    return section(
        "Score by client", side_by_side(*pictures), _client_table([client for _, client in worst]), note=note
    )


def _client_table(clients: Sequence[Held]) -> str:
    """All that is known of some clients' scores."""
    found = [
        {f"train_{k}": v for k, v in c.train.items()} | {f"test_{k}": v for k, v in c.test.items()} for c in clients
    ]
    order = [f"{part}_{name}" for part in ("train", "test") for name in ("points", *MEASURES, "loss")]
    names = [name for name in order if any(name in scores for scores in found)]
    head = ("client", "points", *map(column_name, names))
    rows = [
        (escaped(c.name, 60), value_text("count", c.points), *(value_text(name, scores.get(name)) for name in names))
        for c, scores in zip(clients, found, strict=True)
    ]
    return folded(IN_NUMBERS, tabular("Scores by client", head, rows))
