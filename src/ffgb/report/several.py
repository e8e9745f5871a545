"""The page of several runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ffgb.protocol.costs import UNITS
from ffgb.report.axes import axis_for
from ffgb.report.clients import client_scores
from ffgb.report.costs import bars_of_costs
from ffgb.report.curves import COLOURS, DASHES, MARKS, XS, Curve, plot_by
from ffgb.report.document import document
from ffgb.report.measured import GAMMA
from ffgb.report.past import COSTS, Past
from ffgb.report.pieces import grid, method, rounds_table, section, tabular
from ffgb.report.words import (
    KINDS,
    capital,
    column_name,
    count_text,
    escaped,
    kind_of,
    models_text,
    plural,
    setting_name,
    setting_value,
    shortened,
    value_text,
)

_PARTS = {"test": "test", "train": "training"}


def several_runs(pasts: Sequence[Past]) -> str:
    short = max(len(past.name) for past in pasts) <= 10  # names that fit beside curves; else curves are numbered
    labels = [past.name if short else str(run) for run, past in enumerate(pasts, 1)]
    keys = [
        f"{_swatch(run)}{'' if short else f'{run + 1} · '}{escaped(past.name, 60)}" for run, past in enumerate(pasts)
    ]
    tables = [
        rounds_table(key, past, run, escaped(past.name))
        for run, (key, past) in enumerate(zip(keys, pasts, strict=True))
    ]
    body = (
        _results(pasts, keys),
        _overlaid(pasts, labels, keys),
        _differences(pasts, labels),
        _costs_of_all(pasts, keys),
        section("Rounds in numbers", *tables),
    )
    return document(f"{len(pasts)} runs", "".join(body))


def _look(run: int) -> str:
    return f"k{run % COLOURS} d{run % DASHES}"


def _swatch(run: int) -> str:
    return (
        f'<svg class="swatch" aria-hidden="true" viewBox="0 0 34 10"><path class="line {_look(run)}" d="M1 5H33"/>'
        f'<path class="mark {_look(run)}" d="M17 5{MARKS[run % len(MARKS)]}"/></svg>'
    )


def _best(pasts: Sequence[Past]) -> int | None:
    """The run with the best score, if they have the same score on the same data."""
    if len({(past.score, str(past.config.get("data"))) for past in pasts}) > 1:
        return None
    name = pasts[0].score
    scores = {run: value for run, past in enumerate(pasts) if (value := past.last(name)) is not None}
    first = max if name.endswith("accuracy") else min
    return first(scores, key=lambda run: scores[run]) if scores else None


def _unit(pasts: Sequence[Past]) -> tuple[float, str]:
    """Parameters that models are counted in, and whose they are: the runs' own learner's, if it is one and the same."""
    sizes = {round(past.model) for past in pasts if past.model is not None}
    if len(sizes) == 1:
        return float(sizes.pop()), "one weak learner of these runs"
    return float(UNITS["mlp"]), "the paper's MLP, for the runs' own weak learners differ"


def _results(pasts: Sequence[Past], keys: Sequence[str]) -> str:
    best, (unit, what) = _best(pasts), _unit(pasts)
    order = ("test_accuracy", "test_rmse", "train_accuracy", "train_rmse")
    names = [name for name in order if any(past.score == name for past in pasts)]
    scores = len(names)  # they come first: a narrow screen shows little more
    names += [name for name in ("test_loss", "train_loss") if any(past.last(name) is not None for past in pasts)]
    alike = len({str(past.config.get("data")) for past in pasts}) == 1
    parts = {
        _PARTS[part] for past in pasts if past.clients for part, _, values in [client_scores(past.clients)] if values
    }
    rows = []
    for run, past in enumerate(pasts):
        cells = [value_text(name, past.last(name)) for name in names]
        if run == best:
            cells = [f"<b>{c}</b>" if name == past.score else c for name, c in zip(names, cells, strict=True)]
        means = method(past) if alike else f"{method(past)} on {escaped(past.files, 60)}"
        row = [_wrapped(keys[run]), *cells[:scores], _wrapped(means), *cells[scores:]]
        row += [_worst(past, len(parts) > 1)] if parts else []
        row += [escaped(past.config.get("clients")), f"{past.rounds:,}{'' if past.summary else ' so far'}"]
        parameters = past.last("parameters")
        row.append("–" if parameters is None else models_text(parameters / unit))
        rows.append([*row, value_text("bytes", past.last("bytes")), value_text("seconds", past.seconds)])
    heads = [column_name(name) for name in names]
    head = ["run", *heads[:scores], _wrapped("method"), *heads[scores:]]
    head += [_wrapped(f"worst client, {''.join(parts)}" if len(parts) == 1 else "worst client")] if parts else []
    head += ["clients", "rounds", "models", "bytes", "time"]
    lead = (
        f"Models and bytes are a client's mean, both ways, set-up included; a model is {unit:,.0f} parameters: {what}."
    )
    if best is None:
        headline = f"{len(pasts)} runs side by side"
        lead = f"They are not of the same data, or not scored alike, so none is called the best. {lead}"
    else:
        score = pasts[best].score
        headline = f"Best of {len(pasts)} runs: {escaped(pasts[best].name, 60)}, "
        headline += f"{column_name(score)} {value_text(score, pasts[best].last(score))}"
    going = sum(past.summary is None for past in pasts)
    more = f'<p class="warn">{plural(going, "run has", "runs have")} not ended.</p>' if going else ""
    on = f" on <b>{escaped(pasts[0].data)}</b>" if alike else ""
    said = f'<p class="eyebrow">ffgb comparison{on}</p><h1>{headline}</h1><p class="lead">{lead}</p>{more}'
    return f"<header>{said}</header>" + section("Results", tabular("Results", head, rows))


def _wrapped(text: str) -> str:
    """A text in a cell that may have several lines."""
    return f'<span class="wrap">{text}</span>'


def _worst(past: Past, say: bool) -> str:
    """The worst client's score, and on which points if that is to be said here."""
    part, measure, values = client_scores(past.clients or ())
    if not values:
        return "–"
    name = f"{escaped(shortened(values[0][1].name))}{f', {_PARTS[part]}' * say}"
    return _wrapped(f"{KINDS[measure].shown(values[0][0])} ({name})")


def _overlaid(pasts: Sequence[Past], labels: Sequence[str], keys: Sequence[str]) -> str:
    """The same curves of all runs: scores and losses by all costs, then what there is by rounds."""
    if all(past.few for past in pasts):
        note = "No run has more than two rounds, so there are no curves to draw: all rounds are below in numbers."
        return section("How they learned", note=note)
    unit, _ = _unit(pasts)

    def plots(title: str, column: str, xs: Iterable[str], say: str = "") -> list[str]:
        found = [(run, past) for run, past in enumerate(pasts) if past.series(column)]
        values = [v for _, past in found for v in past.series(column)]
        y = axis_for(kind_of(column), values, widen=True) if values else None
        return [] if y is None else [plot_by(x, title, y, curves(column, x, found), say) for x in xs]

    def curves(column: str, x: str, found: Iterable[tuple[int, Past]]) -> Iterable[Curve]:
        for run, past in found:
            costs = past.series(x)
            if x == "models":
                costs = tuple(None if v is None else v / unit for v in past.series("parameters"))
            yield Curve(labels[run], costs, past.series(column), _look(run), run, run % len(MARKS))

    parts = [f'<p class="keys">{"".join(f"<span>{key}</span>" for key in keys)}</p>']
    for column in ("test_accuracy", "test_rmse", "test_loss"):
        parts.append(grid(plots(capital(column_name(column)), column, XS)))
    parts.append(grid([*plots("Train loss", "train_loss", XS[:1]), *plots("Median γ", "gamma_median", XS[:1], GAMMA)]))
    losses = {past.config.get("loss") for past in pasts}
    note = "The runs minimise different losses, whose values do not compare." if len(losses) > 1 else ""
    return section("How they learned", *parts, note=note)


def _other_rows(past: Past, first: Past) -> bool:
    """By the hashes of their files, if both have noted them."""
    return bool(past.hashes and first.hashes) and past.hashes != first.hashes


def _differences(pasts: Sequence[Past], labels: Sequence[str]) -> str:
    """Settings and versions that are not the same in all runs."""
    settings: list[dict[str, Any]] = []
    for past in pasts:
        flat = {setting_name(name): value for name, value in past.settings.items() if name != "sha256"}
        flat |= {f"version of {name}": value for name, value in past.versions.items()}
        if flat.get("data") == pasts[0].settings.get("data") and _other_rows(past, pasts[0]):
            flat["data"] = "files of the same names with other rows"
        settings.append(flat)
    rows = []
    for name in dict.fromkeys(name for flat in settings for name in flat):
        values = [flat.get(name) for flat in settings]
        if any(value != values[0] for value in values):
            shown = [
                past.data if name == "data" and isinstance(value, list) else setting_value(value)
                for past, value in zip(pasts, values, strict=True)
            ]
            cells = [escaped(text, 80) for text in shown]
            marked = [c if v == values[0] else f"<mark>{c}</mark>" for c, v in zip(cells, values, strict=True)]
            rows.append((escaped(name, 60), *map(_wrapped, marked)))
    if not rows:
        return section("What differs", note="All settings and versions are the same.")
    note = "Settings that are not the same in all runs; marked is what is not as in the first. All others are the same."
    head = ("setting", *(_wrapped(f"{_swatch(run)}{escaped(label)}") for run, label in enumerate(labels)))
    return section("What differs", tabular("Settings that differ", head, rows), note=note)


def _costs_of_all(pasts: Sequence[Past], keys: Sequence[str]) -> str:
    columns = [f"{name}_{way}" for name in COSTS for way in ("up", "down")]
    rows = []
    for key, past in zip(keys, pasts, strict=True):
        costs = [value_text(name, past.last(name)) for name in (*columns, "setup_seconds")]
        rows.append(
            [key, "–" if past.model is None else count_text(past.model), *costs, value_text("seconds", past.seconds)]
        )
    head = ("run", "its model", *map(column_name, columns), "set-up time", "time")
    note = (
        "Here models are of each run's own weak learner. Set-up is what the first round cost more than the median one."
    )
    bars = bars_of_costs(pasts, [past.name for past in pasts])
    return section("What they cost", tabular("Costs", head, rows), bars, note=note)
