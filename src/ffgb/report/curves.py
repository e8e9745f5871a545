"""Plots with curves."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from ffgb.report.axes import HEIGHT, WIDTH, Axis, axis_for, framed, px, tick_room, x_ticks, y_ticks
from ffgb.report.past import Values
from ffgb.report.words import KINDS, NAME, Kind, escaped, figure_text

_Place: TypeAlias = tuple[float, float]


@final
@dataclass(frozen=True)
class Curve:
    """A line in a plot, and how it looks: the class of its colour and dashes, and the shape of its marks."""

    name: str
    x: Values
    y: Values
    look: str
    run: int | None = 0
    """The table of rounds that a pointer reads at the curve; None: it is not by rounds."""
    mark: int = 0
    bars: Sequence[tuple[float | None, float | None]] = ()
    """Intervals of the values."""
    joined: bool = True
    """Whether there are lines between the points."""


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


@final
@dataclass(frozen=True)
class _Canvas:
    """Where things stand in a plot: its axes, and the box between them."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float = 8.0
    bottom: float = HEIGHT - 22.0

    @property
    def across(self) -> float:
        return self.right - self.left

    @property
    def down(self) -> float:
        return self.bottom - self.top

    def places(self, curve: Curve) -> list[_Place | None]:
        """A curve's points; None where there is none."""
        return [
            None
            if a is None or b is None
            else (self.left + self.across * self.x.at(a), self.top + self.down * (1 - self.y.at(b)))
            for a, b in zip(curve.x, curve.y, strict=True)
        ]

    def bars(self, curve: Curve) -> str:
        """Upright lines over the intervals of a curve's values."""
        d = ""
        for x, (low, high) in zip(curve.x, curve.bars, strict=False):
            if x is not None and low is not None and high is not None:
                top, foot = (self.top + self.down * (1 - self.y.at(v)) for v in (high, low))
                d += f"M{px(self.left + self.across * self.x.at(x))} {px(top)}V{px(foot)}"
        return d and f'<path class="bar {curve.look}" d="{d}"/>'

    def ticks(self) -> str:
        y = y_ticks(self.y, self.left, self.right, self.top, self.down)
        return y + x_ticks(self.x, self.left, self.across, self.bottom)

    def notes(self) -> str:
        """Where an axis is not as one would expect."""
        x, y = self.x, self.y
        notes = [f"axis from {x.kind.shown(x.low)}"] if not x.log and x.kind.zero and x.low > 0 else []
        notes += [f"cut at {figure_text(float(f'{y.low:.1g}'))}"] if y.cut else []
        return f"({'; '.join(notes)})" if notes else ""


def plot(caption: str, x: Axis, y: Axis, curves: Sequence[Curve], say: str = "") -> str:
    """A figure with curves, each named at its end, and a sentence under it."""
    curves = [c for c in curves if any(a is not None and b is not None for a, b in zip(c.x, c.y, strict=True))]
    if not curves:
        return ""
    names = [escaped(c.name, NAME) for c in curves]
    room = 9 + 6.0 * max(len(html.unescape(name)) for name in names)
    canvas = _Canvas(x, y, tick_room(y), WIDTH - room)
    counts = y.kind is KINDS["count"]  # they go up and down: points say more than the lines between them
    parts, ends = [canvas.ticks()], list[_Place]()
    for curve in curves:
        places = canvas.places(curve)
        parts.append(canvas.bars(curve))
        parts.append(_line(curve, places, few_marks=len(curves) <= 3, spots=counts))
        ends.append(next(place for place in reversed(places) if place is not None))
    parts += _names_at(canvas, curves, names, ends)
    ways = (f"{escaped(c.name)} from {first_shown(c.y, y.kind)} to {first_shown(c.y[::-1], y.kind)}" for c in curves)
    return framed(caption, canvas.notes(), "; ".join(ways), "".join(parts), say)


def _line(curve: Curve, places: Sequence[_Place | None], *, few_marks: bool, spots: bool) -> str:
    """A curve with its marks: one at each point, or at six of many, or at the last alone.

    With spots, each point is shown, and the line between them is faint.
    """
    known = [(i, place) for i, place in enumerate(places) if place is not None]
    # the script must know which rounds there are, if not all
    rounds = "" if len(known) == len(places) else f' data-i="{" ".join(str(i) for i, _ in known)}"'
    read = "" if curve.run is None else f' data-k="{curve.run}"{rounds}'
    line = f'<path class="line {curve.look}{" faint" * spots}"{read} d="{_path(places)}"/>' if curve.joined else ""
    marked = [place for _, place in known]
    if len(marked) > 16 and curve.joined:
        marked = marked[-1:] if few_marks else [marked[round(j * (len(marked) - 1) / 5)] for j in range(6)]
    shapes = "".join(f"M{px(a)} {px(b)}{MARKS[curve.mark]}" for a, b in marked)
    line += f'<path class="mark {curve.look}" d="{shapes}"/>'
    if spots:
        dots = "".join(f"M{px(a)} {px(b)}h0" for _, (a, b) in known)
        line += f'<path class="spots {curve.look}" d="{dots}"/>'
    return line


def _names_at(canvas: _Canvas, curves: Sequence[Curve], names: Sequence[str], ends: Sequence[_Place]) -> Iterator[str]:
    """The curves' names beside their ends, with a line to those that end early."""
    edge = canvas.right
    heights = _spread([b for _, b in ends], 11.0, canvas.top + 3, canvas.bottom)
    for curve, name, (a, b), height in zip(curves, names, ends, heights, strict=True):
        if edge - a > 8:
            yield f'<path class="lead {curve.look}" d="M{px(a + 4)} {px(b)}L{px(edge + 2)} {px(height)}"/>'
        yield f'<text class="name {curve.look}" x="{px(edge + 6)}" y="{px(height + 3.5)}">{name}</text>'


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
