"""What a run cost."""

from __future__ import annotations

from collections.abc import Sequence

from ffgb.report.past import COSTS, Past
from ffgb.report.pieces import IN_NUMBERS, folded, section, side_by_side, tabular
from ffgb.report.rows import stacked_bars
from ffgb.report.words import bytes_text, escaped, plural, seconds_text, share_text, value_text


def costs(past: Past) -> str:
    rows = []
    for name in (name for name in COSTS if past.last(name) is not None):
        row = [name, *(value_text(name, past.last(column)) for column in (f"{name}_up", f"{name}_down", name))]
        for column in (f"{name}_up", f"{name}_down"):
            setup, whole = past.setup(column), past.last(column)
            row.append(value_text(name, setup) + (f" ({share_text(setup / whole)})" if setup and whole else ""))
        rows.append(row)
    table = tabular("Costs", ("a client's mean", "up", "down", "both", "set-up, up", "set-up, down"), rows)
    note = []
    if past.model is not None:
        note.append(f"One model has {plural(round(past.model), 'parameter')}.")
    if past.rounds > 1:
        note.append("Set-up is what the first round cost more than the median of the others.")
    return section("What it cost", table, bars_of_costs([past], ["all"]), note=" ".join(note))


def bars_of_costs(pasts: Sequence[Past], names: Sequence[str]) -> str:
    """Bytes and seconds, and what they were for."""
    traffic, time = [], []
    for name, past in zip(names, pasts, strict=True):
        up, down, setup = past.last("bytes_up"), past.last("bytes_down"), past.last("setup_seconds") or 0.0
        if up is not None and down is not None:
            before = past.setup("bytes_up") or 0.0, past.setup("bytes_down") or 0.0
            traffic.append((name, (sum(before), up - before[0], down - before[1]), bytes_text(up + down)))
        rounds, total = past.last("seconds"), past.seconds
        if rounds is not None and total is not None:
            time.append((name, (setup, rounds - setup, max(0.0, total - rounds)), seconds_text(total)))
    ways, stages = ("set-up", "rounds, up", "rounds, down"), ("set-up", "rounds", "loading, starting, saving")
    pictures = (stacked_bars("Bytes a client", traffic, ways), stacked_bars("Time", time, stages))
    tables = [
        tabular(title, (title.lower(), *parts), [(escaped(n, 60), *map(shown, values)) for n, values, _ in bars])
        for title, parts, shown, bars in (
            ("Bytes a client", ways, bytes_text, traffic),
            ("Time", stages, seconds_text, time),
        )
        if bars
    ]
    return side_by_side(*pictures) + (folded(IN_NUMBERS, side_by_side(*tables)) if tables else "")
