"""Axes, and the frame of a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from ffgb.report.words import Kind

WIDTH, HEIGHT = 290.0, 176.0
"""Of a plot, in units that are pixels where four of them stand in a row."""
LOG = 30.0
"""An axis is logarithmic if its largest value is so many times its least."""
DECADES = 1e-5
"""What is smaller than this share of the largest value is drawn at the edge of a logarithmic axis."""


@final
@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`."""

    kind: Kind
    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    cut: bool = False
    """Some values are too small for it, and drawn at its edge."""

    def at(self, value: float) -> float:
        """How far along the axis, from 0 to 1."""
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        return math.log(v / low) / math.log(high / low) if self.log else (v - low) / (high - low)


def axis_for(kind: Kind, values: Iterable[float | None], *, widen: bool = False) -> Axis:
    """An axis for values; one that is widened ends at ticks, or a little beyond the values."""
    known = [v for v in values if v is not None]
    least = min((v for v in known if v > 0), default=0.0)
    if kind.log and least > 0 and max(known) / least >= LOG:
        return _log_axis(kind, known, least, widen=widen)
    low, high = _range(kind, min(known), max(known))
    step = _step(kind, low, high)
    if widen:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        low, high = max(low, kind.limits[0]), min(high, kind.limits[1])
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(kind, low, high, False, tuple(j * step for j in range(first, last + 1)))


def _log_axis(kind: Kind, known: Sequence[float], least: float, *, widen: bool) -> Axis:
    """A logarithmic axis from the least positive value, or an edge that cuts smaller ones off."""
    high = max(known)
    edge = max(least, high * DECADES)
    spare = (high / edge) ** 0.04 if widen else 1.0
    ticks = _log_ticks(kind, edge / spare, high * spare)
    return Axis(kind, edge / spare, high * spare, True, ticks, cut=min(known) < edge)


def _range(kind: Kind, low: float, high: float) -> tuple[float, float]:
    """From where to where an axis runs that is not logarithmic: from 0 if that wastes little, and never no way."""
    if kind.zero and (low <= high / 2 or low < 0 or kind.limits[1] <= 1):
        low = min(low, 0.0)
    if high - low > 1e-9 * max(abs(high), abs(low)):
        return low, high
    spare = max(abs(high) / 10, kind.least) or 1.0  # all values are the same
    return max(low - (spare if low else 0.0), kind.limits[0]), min(high + spare, kind.limits[1])


def _step(kind: Kind, low: float, high: float) -> float:
    """Between ticks, such that there are about five."""
    unit = max((u for u in kind.units if high - low >= 3 * u), default=1.0)
    rough = (high - low) / unit / 5
    steps = (1.0, 2.0, 5.0, 10.0) if kind.least else (1.0, 2.0, 2.5, 5.0, 10.0)
    power = 10.0 ** math.floor(math.log10(rough))
    return max(next(m for m in steps if m * power >= rough * (1 - 1e-9)) * power, kind.least) * unit


def _log_ticks(kind: Kind, low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, and what is between them if those are few."""
    ticks: list[float] = []
    for between in ((1.0,), (1.0, 3.0), (1.0, 2.0, 3.0, 5.0, 7.0)):
        every = sorted({m * t for t in kind.decades for m in between})
        ticks = [t for t in every if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(ticks) >= 3:
            break
    return tuple(ticks[:: math.ceil(len(ticks) / 6)] if ticks else ())


def px(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def framed(caption: str, note: str, title: str, content: str, say: str = "") -> str:
    return (
        f'<figure><figcaption>{caption} <span class="note">{note}</span></figcaption>'
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">'
        f"<title>{caption}: {title}</title>{content}</svg>"
        f"{say and f'<p>{say}</p>'}</figure>"
    )


def tick_room(y: Axis) -> float:
    """The room that the ticks of an axis need."""
    return 10 + 5.8 * max((len(y.kind.short(t)) for t in y.ticks), default=2)


def y_ticks(axis: Axis, left: float, right: float, top: float, down: float) -> str:
    heights = [(tick, top + down * (1 - axis.at(tick))) for tick in axis.ticks]
    grid = "".join(f"M{px(left)} {px(h)}H{px(right)}" for _, h in heights)
    texts = "".join(
        f'<text class="tick" text-anchor="end" x="{px(left - 5)}" y="{px(h + 3.5)}">{axis.kind.short(t)}</text>'
        for t, h in heights
    )
    return f'<path class="grid" d="{grid}"/>{texts}' if grid else ""


def x_ticks(axis: Axis, left: float, across: float, foot: float) -> str:
    """The axis, and as many of its ticks as have room."""
    parts, free = [f'<path class="axis" d="M{px(left)} {px(foot)}h{px(across)}"/>'], -math.inf
    for tick in axis.ticks:
        text, at = axis.kind.short(tick), left + across * axis.at(tick)
        half = 3.0 * len(text)
        middle = min(at, WIDTH - half)
        if middle - half < free + 6:
            continue
        free = middle + half
        parts.append(f'<path class="axis" d="M{px(at)} {px(foot)}v3"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{px(middle)}" y="{px(foot + 14)}">{text}</text>')
    return "".join(parts)
