"""What the model makes of its columns, as `ffgb explain` wrote it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ffgb.errors import FFGBError
from ffgb.report.axes import HEIGHT, WIDTH, axis_for, framed, px, tick_room, x_ticks, y_ticks
from ffgb.report.judged import Score
from ffgb.report.past import Past, finite
from ffgb.report.pieces import IN_NUMBERS, folded, grid, section, side_by_side, tabular
from ffgb.report.rows import bar_rows
from ffgb.report.words import KINDS, Kind, escaped, figure_text, plural

INTERACTIONS, NO_INTERACTION = 10, 1e-6
"""Pairs that are shown, and a strength that is rounding."""
SHOWN = 15
"""Columns of the picture of importance."""
STRIP = 26.0
"""Height of the distribution under a curve."""


@final
@dataclass(frozen=True)
class _Value:
    """A value of a column: in words, as a number if it is one, the mean prediction there, and rows that have it."""

    words: str
    number: float | None
    prediction: float
    rows: float


@final
@dataclass(frozen=True)
class _Shape:
    column: str
    values: tuple[_Value, ...]

    @property
    def numbers(self) -> tuple[_Value, ...]:
        return tuple(v for v in self.values if v.number is not None)


def effects(past: Past) -> str:
    """Importance of columns, and the shapes of the first ones."""
    if past.effects is None:
        note = "<code>ffgb explain RUN</code> measures how much each column matters, and adds it here."
        if past.config.get("data") == ["sites"]:
            note = "Each site can measure how much each column matters: <code>ffgb explain</code> with its own model."
        return section("What matters to the model", note=note) if past.summary and past.judged else ""
    try:
        return _effects(past, past.effects)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FFGBError(f"effects.json cannot be read ({error}); was it written by ffgb?") from error


def _effects(past: Past, content: Mapping[str, Any]) -> str:
    ranked = [(str(row["column"]), Score.of(row)) for row in content["importance"]]
    line = _line(content.get("line"))
    if not ranked:
        note = "Rows are at their sites: importance and shapes are computed there (<code>ffgb explain</code>)."
        return section("What matters to the model", line, note=note)
    shapes = [_shape(shape) for shape in content["shapes"]]
    loss = "loss" if past.classes or past.config.get("loss") == "cox" else "squared error"
    note = (
        f"How much the {loss} rises if a column is shuffled within each site, on "
        f"{'held-out' if content['held_out'] else 'training'} rows. Columns that say the same share their importance. "
    )
    bars = [(name, (max(s.value, 0.0),), figure_text(s.value)) for name, s in ranked[:SHOWN]]
    numbers = [(escaped(name, 60), *(figure_text(v) for v in _ends(s))) for name, s in ranked]
    table = folded(IN_NUMBERS, tabular("Importance", ("column", f"rise of the {loss}", "from", "to"), numbers))
    unit = escaped(content["unit"], 60)
    drawn = [_drawn(shape, probability=len(past.classes) == 2) for shape in shapes]
    told = ""
    if drawn:
        told = (
            f'<h3>Shapes</h3><p class="say">The mean {unit} if a column has a value and all others stay as they are, '
            "above how many training rows have about that value. It shows what the model does, not what would happen "
            "if someone changed the column.</p>"
        )
    return section(
        "What matters to the model",
        side_by_side(f"<div>{bar_rows('Importance', bars, ('fill',))}{table}</div>"),
        told,
        grid([figure for figure in drawn if figure]),
        folded("The numbers behind these shapes", side_by_side(*(_table(shape, unit) for shape in shapes)))
        if shapes
        else "",
        _interactions(content.get("interactions") or []),
        line,
        note=note,
    )


def _line(content: Mapping[str, Any] | None) -> str:
    """Coefficients of a line, in the units of the columns."""
    if not content:
        return ""
    outputs = [escaped(name, 40) for name in content["outputs"]]
    rows = []
    for row in content["coefficients"]:
        ends = [finite(row[end]) for end in ("low", "high")]
        shown = "" if None in ends else " to ".join(figure_text(end) for end in ends if end is not None)
        values = [float(v) for v in row["values"]]
        if len(values) != len(outputs):
            raise ValueError("coefficients are not of the outputs")
        rows.append([escaped(row["column"], 60), *(figure_text(v) for v in values), shown])
    names = ["coefficient"] if outputs == [""] else outputs
    told = (
        f'<h3>Coefficients</h3><p class="say">By how much f ({escaped(content["unit"], 60)}) rises if a column rises '
        "by one of its own units, and all others stay as they are. Beyond the ends, a column counts as at its end. "
        f"{escaped(content['errors'], 300)}</p>"
    )
    return told + tabular("Coefficients", ("column", *names, "ends"), rows)


def _interactions(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Which pairs of columns act together, and how the strongest does."""
    ranked = [(" and ".join(map(str, pair["columns"])), float(pair["strength"]), pair) for pair in pairs]
    if not ranked:
        return ""
    bars = [(name, (strength,), figure_text(strength)) for name, strength, _ in ranked[:INTERACTIONS]]
    name, strength, strongest = ranked[0]
    told = (
        '<h3>Columns that act together</h3><p class="say">How far f, with both columns set to values, is from a sum of '
        "what each of them does: a standard deviation, on the scale of f (log odds, log hazard ratios, or the target's "
        "units). Of an additive model it is 0.</p>"
    )
    if strength <= NO_INTERACTION:
        return f'{told}<p class="say">There are none among the most important columns.</p>'
    first, second = strongest["values"]
    cells = zip(first, strongest["f"], strict=True)
    rows = [[escaped(value, 40), *(figure_text(float(v)) for v in row)] for value, row in cells]
    head = [escaped(name, 80), *(escaped(value, 40) for value in second)]
    table = folded("The strongest in numbers: the mean of f", tabular("Interaction", head, rows))
    return told + side_by_side(f"<div>{bar_rows('Interactions', bars, ('fill',))}{table}</div>")


def _ends(score: Score) -> tuple[float, float, float]:
    return score.value, score.low or 0.0, score.high or 0.0


def _shape(content: Mapping[str, Any]) -> _Shape:
    values = []
    for value, rows in zip(content["values"], content["rows"], strict=True):
        prediction = finite(value["prediction"])
        if prediction is None:
            raise ValueError("a prediction is no number")
        values.append(_Value(str(value["value"]), finite(value["number"]), prediction, finite(rows) or 0.0))
    return _Shape(str(content["column"]), tuple(values))


def _drawn(shape: _Shape, *, probability: bool) -> str:
    """A curve over the distribution, or a point for each category over a bar."""
    kind = KINDS["share"] if probability else KINDS["value"]
    curve = len(shape.numbers) > 2
    values = shape.numbers if curve else shape.values
    y = axis_for(kind, [v.prediction for v in values], widen=True)
    left, right, top, foot = tick_room(y), WIDTH - 12, 8.0, HEIGHT - 22
    low = foot - STRIP - 4
    parts = [y_ticks(y, left, right, top, low - top)]
    if curve:
        x = axis_for(Kind("value", log=False), [v.number for v in values])
        left, right = left + 7, right - 7  # half a bar
        at = [left + (right - left) * x.at(v.number or 0.0) for v in values]
        parts.append(x_ticks(x, left, right - left, foot))
    else:
        step = (right - left) / len(values)
        at = [left + step * (k + 0.5) for k in range(len(values))]
        parts.append(f'<path class="axis" d="M{px(left)} {px(foot)}H{px(right)}"/>')
        middle, letters = f'class="tick" text-anchor="middle" y="{px(foot + 14)}"', max(3, int(step / 6.4))
        parts += [
            f'<text {middle} x="{px(a)}">{escaped(v.words, letters)}</text>' for a, v in zip(at, values, strict=True)
        ]
    most = max(v.rows for v in values) or 1.0
    width = min(14.0, 0.7 * (right - left) / len(values))
    bars = "".join(
        f"M{px(a - width / 2)} {px(foot)}v-{px(STRIP * v.rows / most)}h{px(width)}V{px(foot)}z"
        for a, v in zip(at, values, strict=True)
    )
    parts.append(f'<path class="rest" fill-opacity=".45" d="{bars}"/>')
    heights = [top + (low - top) * (1 - y.at(v.prediction)) for v in values]
    points = list(zip(at, heights, strict=True))
    if curve:
        line = " ".join(f"{'M' if k == 0 else ''}{px(a)} {px(b)}" for k, (a, b) in enumerate(points))
        parts.append(f'<path class="line test" d="{line}"/>')
    parts.append(f'<path class="spots test wide" d="{"".join(f"M{px(a)} {px(b)}h0" for a, b in points)}"/>')
    title = f"from {kind.shown(min(v.prediction for v in values))} to {kind.shown(max(v.prediction for v in values))}"
    rows = plural(sum(v.rows for v in values), "row")
    return framed(escaped(shape.column, 40), f"({rows})", title, "".join(parts))


def _table(shape: _Shape, unit: str) -> str:
    rows = [(escaped(v.words, 40), figure_text(v.prediction), f"{v.rows:,.0f}") for v in shape.values]
    name = escaped(shape.column, 40)
    return tabular(name, (name, f"mean {unit}", "rows"), rows)
