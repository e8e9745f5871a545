"""How numbers and texts are written."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from ffgb.report.past import COSTS, MEASURES

THIN = "\N{NO-BREAK SPACE}"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NAME = 16
"""Letters of a name that there is room for beside a plot."""


def escaped(value: object, most: int = 200) -> str:
    """A text from outside as it may stand on the page.

    >>> escaped("<b>&\\n")
    '&lt;b&gt;&amp; '
    """
    text = "".join(c if c.isprintable() else " " for c in str(value)[: most + 1])
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def shortened(name: str) -> str:
    """A name that fits; it is often the end that tells names apart.

    >>> shortened("hospital-north-02")
    'hospita…north-02'
    """
    return name if len(name) <= NAME else f"{name[: NAME // 2 - 1]}…{name[-NAME // 2 :]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(count: float, one: str, more: str = "") -> str:
    return f"{count:,.0f} {one if count == 1 else more or one + 's'}"


STRANDS = {"deep": "deep trees", "shallow": "shallow trees", "additive": "additive model"}
"""The kinds of models in a blend, by their names in the metrics."""


def chosen_of(summary: Mapping[str, Any]) -> str:
    """Which learner was chosen, and what its parts scored; empty if someone named it.

    >>> chosen_of({"learner": "trees", "because": "a large table"})
    'Learner trees was chosen: a large table.'
    """
    said = f"Learner {summary['learner']} was chosen: {summary['because']}." if summary.get("because") else ""
    if summary.get("held_out") is None or "best_round" not in summary:
        return said
    parts = [
        f"{word} {figure_text(summary[f'held_out_{name}'])} (share {summary[f'share_{name}']:.0%})"
        for name, word in STRANDS.items()
        if f"share_{name}" in summary and f"held_out_{name}" in summary
    ]
    found = f"Loss at rows set aside: {figure_text(summary['held_out'])}; alone: {', '.join(parts)}."
    return f"{said} {found}".strip()


def figure_text(value: float) -> str:
    """Four figures.

    >>> [figure_text(v) for v in (0.0, 0.107618, 63.547, 1924545.0, 9.17e-15)]
    ['0', '0.1076', '63.55', '1,924,545', '9.2·10⁻¹⁵']
    """
    if value == 0.0 or 1e-4 <= abs(value) < 1000:
        return f"{value:.4g}"
    if 1000 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}·10{str(int(exponent)).translate(RAISED)}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}{THIN}%"


def share_text(value: float) -> str:
    """A share in percent, and only what is all of it as 100."""
    if 0.99 < value < 1:
        return f"&gt;{THIN}99{THIN}%"
    return f"{100 * value:.0f}{THIN}%" if value >= 0.01 else f"&lt;{THIN}1{THIN}%"


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if round(count, 1) < 1000:
            return f"{count:.0f}{THIN}{unit}" if unit == "B" else f"{count:.1f}{THIN}{unit}"
        count /= 1000
    return f"{count:,.1f}{THIN}GB"


def seconds_text(value: float) -> str:
    """
    >>> [seconds_text(s).replace(THIN, " ") for s in (0.026, 4.02, 75.0, 754.0, 40000.0)]
    ['26 ms', '4.0 s', '75 s', '12.6 min', '11.1 h']
    """
    if value < 0.1:
        return f"{1000 * value:.0f}{THIN}ms"
    if value < 180:
        return f"{value:.1f}{THIN}s" if value < 10 else f"{value:.0f}{THIN}s"
    return f"{value / 60:.1f}{THIN}min" if value < 10800 else f"{value / 3600:,.1f}{THIN}h"


def models_text(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def count_text(value: float) -> str:
    return f"{value:,.0f}"


def _on_axis(value: float) -> str:
    """
    >>> [_on_axis(v) for v in (0.25, 1500.0, 2e6, 1e-5)]
    ['0.25', '1.5k', '2M', '10⁻⁵']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 - 1e-9):
            return f"{value / size:,.6g}{letter}"
    if 0 < abs(value) < 1e-3:
        return figure_text(value).removeprefix("1·")
    return f"{value:.6g}"


def _bytes_on_axis(value: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * (1 - 1e-9):
            return f"{value / size:.6g}{THIN}{unit}"
    return f"{value:.6g}{THIN}B" if value else "0"


def _seconds_on_axis(value: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= size and (value / size * 2).is_integer():
            return f"{value / size:.6g}{THIN}{unit}"
    return f"{value:.6g}{THIN}s" if value >= 0.01 or not value else f"{1000 * value:.6g}{THIN}ms"


def setting_value(value: object) -> str:
    """A value of a configuration, as text that is not escaped yet."""
    if isinstance(value, list | tuple):
        some = ", ".join(str(v) for v in value[:8])
        return f"{some}, … ({len(value):,} in all)" if len(value) > 8 else some or "none"
    if isinstance(value, dict):
        return setting_value([f"{k} {str(v)[:12]}" for k, v in value.items()])
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


@final
@dataclass(frozen=True)
class Kind:
    """A quantity: what it is called, how it is written in a text and on an axis, and how its axis runs."""

    text: str
    shown: Callable[[float], str] = figure_text
    short: Callable[[float], str] = _on_axis
    log: bool = True
    """Its axis may be logarithmic."""
    zero: bool = False
    """Its axis begins at 0, unless that would waste half of it."""
    limits: tuple[float, float] = (-math.inf, math.inf)
    least: float = 0.0
    """The least step between two ticks."""
    units: tuple[float, ...] = (1.0,)
    """Ticks are round numbers of the largest of these that fits three times."""
    decades: tuple[float, ...] = tuple(10.0**j for j in range(-15, 16))


MINUTES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 360_000.0)
KINDS: Mapping[str, Kind] = {
    "round": Kind("rounds", count_text, least=1.0),
    "parameters": Kind("parameters", count_text, zero=True),
    "models": Kind("models", models_text, zero=True),
    "bytes": Kind("bytes", bytes_text, _bytes_on_axis, zero=True),
    "seconds": Kind("time", seconds_text, _seconds_on_axis, zero=True, units=(1.0, 60.0, 3600.0), decades=MINUTES),
    "accuracy": Kind("accuracy", _percent, lambda v: f"{100 * v:.6g}{THIN}%", log=False, limits=(0.0, 1.0)),
    "rmse": Kind("RMSE"),
    "concordance": Kind("c-index", lambda v: f"{v:.3f}", log=False, limits=(0.0, 1.0)),
    "loss": Kind("loss"),
    "gamma": Kind("γ", lambda v: f"{v:.3f}", log=False, zero=True, limits=(-math.inf, 1.0)),
    "share": Kind("share", _percent, lambda v: f"{100 * v:.6g}{THIN}%", log=False, zero=True, limits=(0.0, 1.0)),
    "ratio": Kind("ratio", log=False, zero=True, limits=(0.0, math.inf)),
    "count": Kind("count", count_text, log=False, zero=True, least=1.0),
    "value": Kind("value"),
}


def kind_of(column: str) -> Kind:
    """The quantity that a column of metrics.jsonl holds."""
    if column in KINDS:
        return KINDS[column]
    if column.startswith("gamma"):
        return KINDS["gamma"]
    for ending in (*MEASURES, "loss", "seconds"):
        if column.endswith(ending):
            return KINDS[ending]
    for start in COSTS:
        if column.startswith(start):
            return KINDS[start]
    return KINDS["value"]


def column_name(column: str) -> str:
    """What a column of metrics.jsonl is called.

    >>> column_name("test_rmse"), column_name("gamma_min")
    ('test RMSE', 'least γ')
    """
    known = {"seconds": "time", "gamma_min": "least γ", "gamma_median": "median γ"}
    words = {"_": " ", "rmse": "RMSE", "concordance": "c-index", "gamma": "γ"}
    return known.get(column) or functools.reduce(lambda text, pair: text.replace(*pair), words.items(), column)


def setting_name(name: str) -> str:
    """What a setting is called."""
    return name.replace("_", " ")


def value_text(column: str, value: float | None) -> str:
    return "–" if value is None else kind_of(column).shown(value)
