"""Plots with curves."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from ffgb.report.axes import HEIGHT, WIDTH, Axis, axis_for, framed, px, tick_room, x_ticks, y_ticks
from ffgb.report.past import Values
from ffgb.report.words import KINDS, NAME, Kind, escaped, figure_text


@final
@dataclass(frozen=True)
class Curve:
    """A line in a plot, and how it looks: the class of its colour and dashes, and the shape of its marks."""

    name: str
    x: Values
    y: Values
    look: str
    run: int = 0
    mark: int = 0


# Shapes around a point: lines that are told apart without colours.
MARKS = (
    "m-2.4 0a2.4 2.4 0 1 0 4.8 0a2.4 2.4 0 1 0-4.8 0z",
    "m-2.2-2.2h4.4v4.4h-4.4z",
    "m0-3l2.8 5h-5.6z",
    "m0-3.3l3 3.3-3 3.3-3-3.3z",
    "m0 3l2.8-5h-5.6z",
    "m-2.8-.8h2v-2h1.6v2h2v1.6h-2v2h-1.6v-2h-2z",
)
COLOURS, DASHES = 8, 5
XS = ("round", "models", "bytes", "seconds")


def plot(caption: str, x: Axis, y: Axis, curves: Sequence[Curve], say: str = "") -> str:
    """A figure with curves, each named at its end, and a sentence under it."""
    curves = [c for c in curves if any(a is not None and b is not None for a, b in zip(c.x, c.y, strict=True))]
    if not curves:
        return ""
    names = [escaped(c.name, NAME) for c in curves]
    left = tick_room(y)
    right, top, bottom = 9 + 6.0 * max(len(html.unescape(name)) for name in names), 8.0, 22.0
    across, down, edge = WIDTH - left - right, HEIGHT - top - bottom, WIDTH - right

    def place(a: float | None, b: float | None) -> tuple[float, float] | None:
        return None if a is None or b is None else (left + across * x.at(a), top + down * (1 - y.at(b)))

    counts = y.kind is KINDS["count"]  # they go up and down: points say more than the lines between them
    parts, ends = [y_ticks(y, left, edge, top, down), x_ticks(x, left, across, top + down)], []
    for curve in curves:
        places = [place(a, b) for a, b in zip(curve.x, curve.y, strict=True)]
        known = [(i, p) for i, p in enumerate(places) if p is not None]
        # the script must know which rounds there are, if not all
        rounds = "" if len(known) == len(places) else f' data-i="{" ".join(str(i) for i, _ in known)}"'
        look = f"{curve.look}{' faint' * counts}"
        parts.append(f'<path class="line {look}" data-k="{curve.run}"{rounds} d="{_path(places)}"/>')
        marked = [p for _, p in known]
        if len(marked) > 16:
            marked = [marked[round(j * (len(marked) - 1) / 5)] for j in range(6)] if len(curves) > 3 else marked[-1:]
        d = "".join(f"M{px(a)} {px(b)}{MARKS[curve.mark]}" for a, b in marked)
        parts.append(f'<path class="mark {curve.look}" d="{d}"/>')
        if counts:
            spots = "".join(f"M{px(a)} {px(b)}h0" for _, (a, b) in known)
            parts.append(f'<path class="spots {curve.look}" d="{spots}"/>')
        ends.append(known[-1][1])
    heights = _spread([b for _, b in ends], 11.0, top + 3, top + down)
    for curve, name, (a, b), height in zip(curves, names, ends, heights, strict=True):
        if edge - a > 8:
            parts.append(f'<path class="lead {curve.look}" d="M{px(a + 4)} {px(b)}L{px(edge + 2)} {px(height)}"/>')
        parts.append(f'<text class="name {curve.look}" x="{px(edge + 6)}" y="{px(height + 3.5)}">{name}</text>')
    notes = [f"axis from {x.kind.shown(x.low)}"] if not x.log and x.kind.zero and x.low > 0 else []
    notes += [f"cut at {figure_text(float(f'{y.low:.1g}'))}"] if y.cut else []
    ways = (f"{escaped(c.name)} from {first_shown(c.y, y.kind)} to {first_shown(c.y[::-1], y.kind)}" for c in curves)
    return framed(caption, f"({'; '.join(notes)})" if notes else "", "; ".join(ways), "".join(parts), say)


def plot_by(x: str, what: str, y: Axis, curves: Iterable[Curve], say: str = "") -> str:
    """A plot of something by rounds or by a cost, if that is known."""
    known = [curve for curve in curves if curve.x]
    axis = axis_for(KINDS[x], [v for curve in known for v in curve.x]) if known else None
    return "" if axis is None else plot(f"{what} by {KINDS[x].text}", axis, y, known, say)


def first_shown(values: Values, kind: Kind) -> str:
    return next(kind.shown(v) for v in values if v is not None)


def _path(places: Sequence[tuple[float, float] | None]) -> str:
    """Lines from point to point, with gaps where there is none."""
    d, drawing = "", False
    for place in places:
        if place is not None:
            d += f"{' ' if drawing else 'M'}{px(place[0])} {px(place[1])}"
        drawing = place is not None
    return d


def _spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The same places, moved apart as far as names need.

    >>> _spread([50.0, 52.0, 20.0], 10.0, 0.0, 100.0)
    [46.0, 56.0, 20.0]
    """
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    groups: list[tuple[list[int], float]] = []  # who stands together, and where the first of them does
    for i in sorted(range(len(places)), key=lambda i: places[i]):
        members, start = [i], min(max(places[i], low), high)
        while groups and groups[-1][1] + gap * len(groups[-1][0]) > start:
            before, first = groups.pop()
            start = (first * len(before) + (start - gap * len(before)) * len(members)) / (len(before) + len(members))
            members = before + members
            start = min(max(start, low), high - gap * (len(members) - 1))
        groups.append((members, start))
    found = {i: start + gap * j for members, start in groups for j, i in enumerate(members)}
    return [found[i] for i in range(len(places))]
