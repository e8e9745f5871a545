"""How many values lie where."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from ffgb.report.axes import HEIGHT, WIDTH, axis_for, framed, px, tick_room, x_ticks, y_ticks
from ffgb.report.words import KINDS, Kind, plural


def histogram(caption: str, kind: Kind, values: Sequence[float]) -> str:
    """How many values lie where."""
    x = axis_for(dataclasses.replace(kind, log=False), values, widen=True)
    bins = [0] * 24
    for value in values:
        bins[min(int(x.at(value) * len(bins)), len(bins) - 1)] += 1
    y = axis_for(KINDS["count"], [0.0, float(max(bins))], widen=True)
    left, top, edge, down, d = tick_room(y), 8.0, WIDTH - 14, HEIGHT - 30, ""
    width = (edge - left) / len(bins)
    for i, count in enumerate(bins):
        if count:
            height = px(down * y.at(count))
            d += f"M{px(left + width * i + 0.5)} {px(top + down)}v-{height}h{px(width - 1)}v{height}z"
    median = statistics.median(values)
    middle = f"M{px(left + (edge - left) * x.at(median))} {px(top)}v{px(down)}"
    content = (
        f'{y_ticks(y, left, edge, top, down)}<path class="fill" d="{d}"/>{x_ticks(x, left, edge - left, top + down)}'
        f'<path class="line train" d="{middle}"/>'
    )
    title = f"{plural(len(values), 'value')} from {kind.shown(min(values))} to {kind.shown(max(values))}"
    return framed(caption, f"(dashed: the median, {kind.shown(median)})", title, content)
