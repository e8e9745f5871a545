"""Pictures with a row a client, as wide as there is room: places are in percent, heights in pixels."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ffgb.report.axes import Axis, axis_for
from ffgb.report.past import Held, Values
from ffgb.report.pieces import scrolling
from ffgb.report.words import KINDS, NAME, escaped, plural, shortened

ROWS, COLUMNS = 60, 40
"""Clients and classes of a picture."""
WRITTEN = 12
"""Up to so many classes, counts are written into the picture."""
LINE = 18
"""Height of a row."""
END = 88.0
"""Where they end, in percent; what is written after them stands beyond."""
NARROW = 320
"""Pixels that a picture has on a narrow screen: there, too, no text is cut."""


def _picture(title: str, height: float, content: str, least: float = 0.0) -> str:
    style = f' style="min-width:{least:.0f}px"' if least else ""
    size = f'width="100%" height="{height:.0f}"{style}'
    return scrolling(title, f'<svg class="rows" role="img" {size}><title>{title}</title>{content}</svg>')


def _at(share: float, left: float, right: float) -> str:
    """A place between two others, in percent of the width."""
    return f"{left + (right - left) * share:.2f}".rstrip("0").rstrip(".") + "%"


def _begin(names: Iterable[str]) -> float:
    """Where rows begin, in percent: after the longest name, on a narrow screen."""
    return round(min(NAME, max(map(len, names), default=0)) * 1.9 + 3.5, 1)


def _end(left: float, texts: Iterable[str]) -> float:
    """Where the longest bar ends, in percent: before the longest text after one, on a narrow screen."""
    letters = max((len(html.unescape(re.sub("<.*?>", "", text))) for text in texts), default=0)
    return round(max(left + 10, min(80.0, 100 - (letters * 6.6 + 8) / NARROW * 100)), 1)


def _row_name(name: str, left: float, y: float, look: str = "") -> str:
    full = f"<title>{escaped(name)}</title>" if len(name) > NAME else ""
    at = f'x="{left - 1.5:g}%" y="{y:.0f}" text-anchor="end"'
    return f'<text class="who{look}" {at}>{full}{escaped(shortened(name))}</text>'


def _row_end(client: Held, y: float) -> str:
    points = "" if client.points is None else f"{client.points:,.0f}"
    return f'<text class="tick" x="99.5%" y="{y:.0f}" text-anchor="end">{points}</text>'


def some_of(clients: Sequence[Held]) -> tuple[Sequence[Held], str]:
    """As many clients as there is room for, from the largest to the smallest, and a word on those left out."""
    if len(clients) <= ROWS:
        return clients, ""
    order = sorted(clients, key=lambda c: -(c.points or 0.0))
    chosen = [order[round(j * (len(order) - 1) / (ROWS - 1))] for j in range(ROWS)]
    return chosen, f"Shown are {ROWS} of {len(clients):,} clients, at even steps from the largest to the smallest."


def heat_map(clients: Sequence[Held], classes: Sequence[str]) -> str:
    """A row a client, a column a class; a strong colour is much of what the client has."""
    total = tuple(math.fsum(c.labels[j] for c in clients if c.labels) for j in range(len(classes)))
    columns = class_columns(classes, total)
    rows = [Held("all clients", math.fsum(total), {}, {}, total, {}), *some_of(clients)[0]]
    left, heads = _begin(c.name for c in rows), [name for name, _ in columns]
    middle = [_at((j + 0.5) / len(heads), left, END) for j in range(len(heads))]
    top, texts = _class_heads(heads, middle)
    darkest, cells = _largest_share(rows), list[_Cell]()
    for i, client in enumerate(rows):
        y = LINE * i + (6 if i else 0)
        texts.append(_row_name(client.name, left, top + y + 12, "" if i else " all") + _row_end(client, top + y + 12))
        row = list(_row_cells(client, columns, y, darkest))
        cells += row
        if len(heads) <= WRITTEN:
            texts += [cell.written(middle[cell.column], top) for cell in row]
    height = LINE * len(rows) + 6
    box = f'x="{left}%" y="{top}" width="{END - left:.4g}%" height="{height}" viewBox="0 0 {len(heads)} {height}"'
    content = f'<svg class="cells" {box} preserveAspectRatio="none">{_coloured(cells)}</svg>{"".join(texts)}'
    title = f"Points of {plural(len(rows) - 1, 'client')} by {plural(len(classes), 'class', 'classes')}"
    width = 6.1 * len(f"{max(total):.0f}") + 3 if len(heads) <= WRITTEN else 15.0
    return _picture(title, top + height, content, 100 * width * len(heads) / (END - left))


@final
@dataclass(frozen=True)
class _Cell:
    """A client's points of a class, or of the several classes that share a column."""

    column: int
    y: int
    count: float
    look: str
    level: int
    """How strong its colour is, from 1 to 12."""

    def written(self, x: str, top: float) -> str:
        """Its count, to be written into it."""
        look = "count on" if self.level > 7 else "count"
        return f'<text class="{look}" x="{x}" y="{top + self.y + 12}">{self.count:.0f}</text>'


def _coloured(cells: Iterable[_Cell]) -> str:
    """One path for all cells that are alike: a rectangle each would be most of the page."""
    paths = dict[tuple[str, int], str]()
    for cell in cells:
        alike = (cell.look, cell.level)
        paths[alike] = paths.get(alike, "") + f"M{cell.column} {cell.y}h1v16h-1z"
    return "".join(f'<path class="{k}" fill-opacity="{v / 12:.2g}" d="{d}"/>' for (k, v), d in sorted(paths.items()))


def _largest_share(rows: Iterable[Held]) -> float:
    """The largest share that a class has of a client's points."""
    shares = [label / math.fsum(c.labels) for c in rows if any(c.labels) for label in c.labels]
    return max(shares, default=1.0)


def class_columns(classes: Sequence[str], total: Sequence[float]) -> list[tuple[str, Sequence[int]]]:
    """A column a class, with its name; the rarest share the last one if there are many."""
    if len(classes) <= COLUMNS:
        return [(name, [j]) for j, name in enumerate(classes)]
    order = sorted(range(len(classes)), key=lambda j: -total[j])
    return [*((classes[j], [j]) for j in sorted(order[: COLUMNS - 1])), ("others", order[COLUMNS - 1 :])]


def _class_heads(heads: Sequence[str], middle: Sequence[str]) -> tuple[int, list[str]]:
    """The names above the columns, tilted if they are long, and how much height they take."""
    tilted = max(map(len, heads)) * 6.5 > 200 / len(heads)
    top = 56 if tilted else 20
    texts = [f'<text class="tick" x="99.5%" y="{top - 7}" text-anchor="end">points</text>']
    for name, x in zip(heads, middle, strict=True):
        if tilted:  # a text at a percentage can be turned only in a place of its own
            text = f'<text class="tick turned">{escaped(name, 9)}</text>'
            texts.append(f'<svg class="open" x="{x}" y="{top - 6}">{text}</svg>')
        else:
            texts.append(f'<text class="tick" text-anchor="middle" x="{x}" y="{top - 7}">{escaped(name)}</text>')
    return top, texts


def _row_cells(client: Held, columns: Sequence[tuple[str, Sequence[int]]], y: int, darkest: float) -> Iterator[_Cell]:
    """The cells of a client that has points there; the largest share of all is the darkest."""
    size = math.fsum(client.labels)
    for j, (_, group) in enumerate(columns if client.labels else ()):
        if count := math.fsum(client.labels[k] for k in group):
            look, most = ("rest", 1.0) if len(group) > 1 else ("heat", darkest)
            yield _Cell(j, y, count, look, max(1, round(12 * count / size / most)))


def _ticks(axis: Axis, left: float, height: float) -> list[str]:
    """Lines down a picture, with their values under it."""
    parts = []
    for tick in axis.ticks:
        x = _at(axis.at(tick), left, END)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{height}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{height + 14}">{axis.kind.short(tick)}</text>'
        )
    return parts


def target_ranges(rows: Sequence[Held]) -> str:
    """A row a client: the mean of its targets, and a standard deviation to either side."""
    plain = dataclasses.replace(KINDS["value"], log=False)
    spans = [tuple(c.target["mean"] + way * c.target["std"] for way in (-1, 0, 1)) for c in rows]
    axis = axis_for(plain, [value for span in spans for value in span], widen=True)
    left, height = _begin(c.name for c in rows), LINE * len(rows) + 4
    parts = _ticks(axis, left, height)
    for i, (client, span) in enumerate(zip(rows, spans, strict=True)):
        y = LINE * i + 9
        low, mean, high = (_at(axis.at(value), left, END) for value in span)
        parts.append(_row_name(client.name, left, y + 4) + _row_end(client, y + 4))
        parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="fill" cx="{mean}" cy="{y}" r="3.5"/>')
    return _picture(f"Targets of {plural(len(rows), 'client')}", height + 20, "".join(parts))


def means_apart(columns: Sequence[tuple[str, Values]], clients: Sequence[Held]) -> str:
    """A row a column: a dot a client, where its mean is."""
    plain = dataclasses.replace(KINDS["value"], log=False)
    axis = axis_for(plain, [value for _, values in columns for value in values], widen=True)
    left, height = _begin(name for name, _ in columns), LINE * len(columns) + 4
    parts = _ticks(axis, left, height)
    for i, (name, values) in enumerate(columns):
        y = LINE * i + 9
        parts.append(_row_name(name, left, y + 4))
        for client, value in zip(clients, values, strict=True):
            if value is not None:
                at = f'cx="{_at(axis.at(value), left, END)}" cy="{y}"'
                who = f"<title>{escaped(client.name)}: {value:.2f}</title>"
                parts.append(f'<circle class="fill" fill-opacity=".45" {at} r="3.5">{who}</circle>')
    return _picture(f"Means of {plural(len(columns), 'column')} by client", height + 20, "".join(parts))


def bar_rows(
    title: str, rows: Sequence[tuple[str, Sequence[float], str]], looks: Sequence[str], top: float = 0.0
) -> str:
    """A row a bar: its name, the lengths of its parts, and what is written at its end.  The longest is `top` long."""
    left = _begin(name for name, _, _ in rows)
    end, parts = _end(left, (said for _, _, said in rows)), list[str]()
    top = top or max((math.fsum(lengths) for _, lengths, _ in rows), default=0.0) or 1.0
    for i, (name, lengths, said) in enumerate(rows):
        y, x = LINE * i, 0.0
        parts.append(_row_name(name, left, y + 13))
        for look, length in zip(looks, lengths, strict=True):
            at = f'x="{_at(x / top, left, end)}" width="{_at(length / top, 0, end - left)}"'
            parts.append(f'<rect class="{look}" {at} y="{y + 3}" height="12"/>')
            x += length
        parts.append(f'<text class="tick end" x="{_at(x / top, left, end)}" y="{y + 13}">{said}</text>')
    return _picture(title, LINE * len(rows) + 2, "".join(parts))


def stacked_bars(title: str, rows: Sequence[tuple[str, Sequence[float], str]], parts: Sequence[str]) -> str:
    """Bars whose parts are named above them."""
    keys = "".join(f'<span><i class="part{j}"></i>{name}</span>' for j, name in enumerate(parts))
    bars = bar_rows(title, rows, [f"part{j}" for j in range(len(parts))])
    return f'<figure class="wide"><figcaption>{title}</figcaption><p class="keys">{keys}</p>{bars}</figure>'
