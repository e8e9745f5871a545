"""The page of several runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from ffgb.protocol.costs import UNITS
from ffgb.report.axes import axis_for
from ffgb.report.clients import client_scores
from ffgb.report.costs import bars_of_costs
from ffgb.report.curves import COLOURS, DASHES, MARKS, XS, Curve, plot_by
from ffgb.report.document import document
from ffgb.report.measured import GAMMA
from ffgb.report.past import COSTS, RISING, Past
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
_Column: TypeAlias = tuple[str, Sequence[str]]
"""Of a table: its head, and a cell for each run."""


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
    if len({(past.score, past.rows) for past in pasts}) > 1:
        return None
    name = pasts[0].score
    scores = {run: value for run, past in enumerate(pasts) if (value := past.last(name)) is not None}
    first = max if name.endswith(RISING) else min
    return first(scores, key=lambda run: scores[run]) if scores else None


def _unit(pasts: Sequence[Past]) -> tuple[float, str]:
    """Parameters that models are counted in, and whose they are: the runs' own learner's, if it is one and the same."""
    sizes = {round(past.model) for past in pasts if past.model is not None}
    if len(sizes) == 1:
        return float(sizes.pop()), "one weak learner of these runs"
    return float(UNITS["mlp"]), "the paper's MLP, for the runs' own weak learners differ"


def _results(pasts: Sequence[Past], keys: Sequence[str]) -> str:
    """The best run in a sentence, and a table of all."""
    best, (unit, what) = _best(pasts), _unit(pasts)
    alike = len({past.rows for past in pasts}) == 1
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
    columns = [*_score_columns(pasts, keys, best, alike=alike), *_cost_columns(pasts, unit)]
    rows = zip(*(cells for _, cells in columns), strict=True)
    return f"<header>{said}</header>" + section("Results", tabular("Results", (head for head, _ in columns), rows))


def _score_columns(pasts: Sequence[Past], keys: Sequence[str], best: int | None, *, alike: bool) -> list[_Column]:
    """Runs and how good they are.  Scores come first: a narrow screen shows little more."""

    def values(name: str) -> _Column:
        cells = [value_text(name, past.last(name)) for past in pasts]
        if best is not None and name == pasts[best].score:
            cells[best] = f"<b>{cells[best]}</b>"
        return column_name(name), cells

    order = ("test_accuracy", "test_rmse", "test_concordance", "train_accuracy", "train_rmse")
    scores = [name for name in order if any(past.score == name for past in pasts)]
    losses = [name for name in ("test_loss", "train_loss") if any(past.last(name) is not None for past in pasts)]
    methods = [method(past) if alike else f"{method(past)} on {escaped(past.files, 60)}" for past in pasts]
    return [
        ("run", [_wrapped(key) for key in keys]),
        *map(values, scores),
        (_wrapped("method"), [_wrapped(text) for text in methods]),
        *map(values, losses),
        *_worst_clients(pasts),
    ]


def _cost_columns(pasts: Sequence[Past], unit: float) -> list[_Column]:
    """How large runs are, and what they cost; models are counted in so many parameters."""
    parameters = [past.last("parameters") for past in pasts]
    return [
        ("clients", [escaped(past.config.get("clients")) for past in pasts]),
        ("rounds", [f"{past.rounds:,}{'' if past.summary else ' so far'}" for past in pasts]),
        ("models", ["–" if count is None else models_text(count / unit) for count in parameters]),
        ("bytes", [value_text("bytes", past.last("bytes")) for past in pasts]),
        ("time", [value_text("seconds", past.seconds) for past in pasts]),
    ]


def _worst_clients(pasts: Sequence[Past]) -> list[_Column]:
    """A column with each run's worst client, if any run has scores by client."""
    found = [client_scores(past.clients) for past in pasts if past.clients]
    parts = {_PARTS[part] for part, _, values in found if values}
    if not parts:
        return []
    head = f"worst client, {''.join(parts)}" if len(parts) == 1 else "worst client"
    return [(_wrapped(head), [_worst(past, len(parts) > 1) for past in pasts])]


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
    for column in ("test_accuracy", "test_rmse", "test_concordance", "test_loss"):
        parts.append(grid(plots(capital(column_name(column)), column, XS)))
    parts.append(grid([*plots("Train loss", "train_loss", XS[:1]), *plots("Median γ", "gamma_median", XS[:1], GAMMA)]))
    losses = {past.config.get("loss") for past in pasts}
    note = "The runs minimise different losses, whose values do not compare." if len(losses) > 1 else ""
    return section("How they learned", *parts, note=note)


def _other_rows(past: Past, first: Past) -> bool:
    """By the hashes of their files, if both have noted them."""
    return bool(past.hashes and first.hashes) and past.hashes != first.hashes


def _settings(past: Past, first: Past) -> dict[str, Any]:
    """A run's settings and versions, by their names."""
    flat = {setting_name(name): value for name, value in past.settings.items() if name != "sha256"}
    flat |= {f"version of {name}": value for name, value in past.versions.items()}
    if flat.get("data") == first.settings.get("data") and _other_rows(past, first):
        flat["data"] = "files of the same names with other rows"
    elif flat.get("data") != first.settings.get("data") and past.rows == first.rows:
        flat["data"] = f"the same rows, as {past.data}"
    return flat


def _differences(pasts: Sequence[Past], labels: Sequence[str]) -> str:
    """Settings and versions that are not the same in all runs."""
    settings = [_settings(past, pasts[0]) for past in pasts]
    rows = []
    for name in dict.fromkeys(name for flat in settings for name in flat):
        values = [flat.get(name) for flat in settings]
        if any(value != values[0] for value in values):
            rows.append((escaped(name, 60), *_marked(name, values, pasts)))
    if not rows:
        return section("What differs", note="All settings and versions are the same.")
    note = "Settings that are not the same in all runs; marked is what is not as in the first. All others are the same."
    head = ("setting", *(_wrapped(f"{_swatch(run)}{escaped(label)}") for run, label in enumerate(labels)))
    return section("What differs", tabular("Settings that differ", head, rows), note=note)


def _marked(name: str, values: Sequence[Any], pasts: Sequence[Past]) -> Iterator[str]:
    """A setting's value in each run, marked where it is not as in the first."""
    for past, value in zip(pasts, values, strict=True):
        text = past.data if name == "data" and isinstance(value, list) else setting_value(value)
        cell = escaped(text, 80)
        yield _wrapped(cell if value == values[0] else f"<mark>{cell}</mark>")


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
