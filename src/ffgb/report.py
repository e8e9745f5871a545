"""The page a person looks at: one run, or several side by side, as one HTML file that needs nothing else.

Plots are SVG that is written here, complete without any script; the script adds a read-out under the pointer.  Names of
clients, classes and columns come from outside: every text is escaped, and the page forbids all scripts but its own.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, final

from ffgb._version import __version__
from ffgb.config import Config
from ffgb.errors import FFGBError
from ffgb.runs import Run

Values: TypeAlias = Sequence[float | None]

WIDTH, HEIGHT = 290.0, 176.0
"""Of a plot, in units that are pixels where four of them stand in a row."""
POINTS, POINTS_OF_ALL = 160, 480
"""Rounds that are drawn of a run, about, and of all runs of a comparison."""
ROWS, COLUMNS, WORST = 60, 40, 20
"""Clients and classes of a picture, and clients in the list of the worst."""
WRITTEN = 12
"""Up to so many classes, counts are written into the picture."""
NAME = 16
"""Letters of a name that there is room for beside a plot."""
LOG = 30.0
"""An axis is logarithmic if its largest value is so many times its least."""
DECADES = 1e-5
"""What is smaller than this share of the largest value is drawn at the edge of a logarithmic axis."""
NAMES = {
    "ffgb": "FFGB", "ffgb-c": "FFGB.C", "ffgb-l": "FFGB.L",
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "mime": "Mime",
}  # fmt: skip
COSTS = ("parameters", "models", "bytes")


# What is on the page


def write(runs: Sequence[Path], out: Path) -> None:
    """The page of a run, or of several side by side, in a file."""
    content = page(runs).encode()
    temporary = out.with_name(out.name + ".tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FFGBError(f"{out} cannot be written ({error.strerror}); name a file in a folder that is there") from error


def page(runs: Sequence[Path]) -> str:
    """The page as HTML."""
    if not runs:
        raise FFGBError("there is no run to report on; name one run directory, or several to compare")
    most = POINTS if len(runs) == 1 else max(30, POINTS_OF_ALL // len(runs))
    pasts = [_read(path, name, most) for path, name in zip(runs, _names(runs), strict=True)]
    return _one(pasts[0]) if len(pasts) == 1 else _several(pasts)


# What is read


@final
@dataclass(frozen=True, eq=False)
class Held:
    """What is known of a client."""

    name: str
    points: float | None
    train: Mapping[str, float]
    test: Mapping[str, float]
    labels: tuple[float, ...]
    """How many of each class; nothing if that is unknown."""
    target: Mapping[str, float]


@final
@dataclass(frozen=True, eq=False)
class Past:
    """A run as it was written down.

    `columns` holds what metrics.jsonl says of all rounds, by name; costs are both ways together under `parameters`,
    `models` and `bytes`, and `seconds` are all until then, set-up included.
    """

    name: str
    config: Mapping[str, Any]
    columns: Mapping[str, Values]
    drawn: Sequence[int]
    """The rounds that curves are drawn by."""
    summary: Mapping[str, Any] | None
    """None if the run has not ended."""
    classes: tuple[str, ...]
    clients: tuple[Held, ...] | None

    def series(self, name: str) -> tuple[float | None, ...]:
        """A column in the rounds that are drawn; nothing if nothing is known."""
        column = self.columns.get(name, ())
        return tuple(column[i] for i in self.drawn) if any(v is not None for v in column) else ()

    def last(self, name: str) -> float | None:
        """The last value that is known: where all test rows are at sites that did not answer, a round has no score."""
        return next((v for v in reversed(self.columns.get(name, ())) if v is not None), None)

    @property
    def rounds(self) -> int:
        return len(self.columns["round"])

    @property
    def planned(self) -> int | None:
        """Exchanges that were asked for."""
        if not isinstance(rounds := self.config.get("rounds"), int):
            return None
        return Config(rounds=rounds, algorithm=self.algorithm, one_round=bool(self.config.get("one_round"))).exchanges

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", "ffgb"))

    @property
    def data(self) -> str:
        """What it was trained on: the name of a set, or names of files without their folders."""
        data = self.config.get("data")
        names = [Path(str(name)).name for name in (data if isinstance(data, list) else [data])]
        return f"{len(names):,} files ({', '.join(names[:2])}, …)" if len(names) > 3 else ", ".join(names)

    @property
    def versions(self) -> dict[str, Any]:
        found = self.config.get("versions")
        return found if isinstance(found, dict) else {}

    @property
    def score(self) -> str:
        """The column that says how good the function is: on test rows, if there are any."""
        names = ("test_accuracy", "test_rmse", "train_accuracy", "train_rmse", "test_loss")
        return next((name for name in names if self.last(name) is not None), "train_loss")

    @property
    def sampled(self) -> bool:
        """Not all clients take part in a round."""
        return self.config.get("participation") not in (None, self.config.get("clients"))

    @property
    def seconds(self) -> float | None:
        total = _float((self.summary or {}).get("seconds_total"))
        return self.last("seconds") if total is None else total

    @property
    def model(self) -> float | None:
        """Parameters of one model."""
        parameters, models = self.last("parameters"), self.last("models")
        return parameters / models if parameters and models else None

    def setup(self, name: str) -> float | None:
        """What set-up cost, as far as it can be told: what the first round cost more than the median of the others."""
        column = [v for v in self.columns.get(name, ()) if v is not None]
        # Who is sampled now and then is sent f when its turn comes, which in the first round is nobody's.
        if len(column) < 2 or (self.sampled and not name.endswith("_up")):
            return None
        return max(0.0, column[0] - statistics.median(b - a for a, b in pairwise(column)))


def _read(path: Path, name: str, most: int) -> Past:
    run = Run.open(path)
    config = run.config
    lines = _lines(path)
    names = dict.fromkeys(key for line in lines for key in line)  # some notes are not made in every round
    columns: dict[str, Values] = {key: [_float(line.get(key)) for line in lines] for key in names}
    for key in COSTS:
        nothing = [None] * len(lines)
        both = zip(columns.get(f"{key}_up", nothing), columns.get(f"{key}_down", nothing), strict=True)
        columns[key] = [None if up is None or down is None else up + down for up, down in both]
    columns["round"] = [float(t) for t in range(1, len(lines) + 1)]
    seconds, before = list[float | None](), _float(lines[0].get("setup_seconds")) or 0.0
    for line in lines:
        before += _float(line.get("seconds")) or 0.0
        seconds.append(before)
    columns["seconds"] = seconds
    summary = run.summary if (path / "summary.json").exists() else None
    if summary is not None and summary.get("rounds") != len(lines):
        summary = None  # more rounds were asked for since
    classes, clients = _clients(path)
    return Past(name, config, columns, _drawn(columns, most), summary, classes, clients)


def _lines(path: Path) -> list[dict[str, Any]]:
    file = path / "metrics.jsonl"
    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    except FileNotFoundError:
        lines = []
    except (OSError, ValueError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error
    if not lines:
        raise FFGBError(f"the run in {path} has no finished round to report on; go on with: ffgb train --resume")
    if not all(isinstance(line, dict) for line in lines):
        raise FFGBError(f"{file} was not written by ffgb")
    return lines


def _clients(path: Path) -> tuple[tuple[str, ...], tuple[Held, ...] | None]:
    """Names of classes, and what is known of each client; None if nothing was written down."""
    file = path / "clients.json"
    if not file.exists():
        return (), None
    try:
        content = json.loads(file.read_text())
        classes = tuple(str(c) for c in content["classes"])
        return classes, tuple(_held(client, len(classes)) for client in content["clients"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error


def _held(client: Mapping[str, Any], classes: int) -> Held:
    def numbers(name: str) -> dict[str, float]:
        found = {key: _float(value) for key, value in (client.get(name) or {}).items()}
        return {key: value for key, value in found.items() if value is not None}

    labels = tuple(_float(n) or 0.0 for n in client.get("labels") or ())
    fits = classes > 0 and len(labels) == classes
    name, points = str(client["name"]), _float(client.get("points"))
    return Held(name, points, numbers("train"), numbers("test"), labels if fits else (), numbers("target"))


def _float(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _drawn(columns: Mapping[str, Values], most: int) -> list[int]:
    """Which rounds to draw: as many early ones as late ones, for axes of either kind, all extremes, and the last."""
    n = len(columns["round"])
    if n <= most:
        return list(range(n))
    half = most // 2
    chosen = {round(j * (n - 1) / (half - 1)) for j in range(half)}
    chosen |= {round(n ** (j / (half - 1))) - 1 for j in range(half)}
    for column in columns.values():
        known = [i for i, v in enumerate(column) if v is not None]
        for extreme in (min, max) if known else ():
            chosen.add(extreme(known, key=lambda i: column[i] or 0.0))
    return sorted(chosen)


def _names(runs: Sequence[Path]) -> list[str]:
    """Folders' names, with those above them where that is needed to tell runs apart.

    >>> _names([Path("/a/ffgb/0"), Path("/a/fedavg/0")])
    ['ffgb/0', 'fedavg/0']
    """
    parts = [path.resolve().parts[1:] or ("/",) for path in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            break
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


# How numbers and texts are written

THIN = "\N{NO-BREAK SPACE}"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _text(value: object, most: int = 200) -> str:
    """A text from outside as it may stand on the page.

    >>> _text("<b>&\\n")
    '&lt;b&gt;&amp; '
    """
    text = "".join(c if c.isprintable() else " " for c in str(value)[: most + 1])
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def _plural(count: float, one: str, more: str = "") -> str:
    return f"{count:,.0f} {one if count == 1 else more or one + 's'}"


def _figure(value: float) -> str:
    """Four figures.

    >>> [_figure(v) for v in (0.0, 0.107618, 63.547, 1924545.0, 9.17e-15)]
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


def _share(value: float) -> str:
    """A share in percent, and only what is all of it as 100."""
    if 0.99 < value < 1:
        return f"&gt;{THIN}99{THIN}%"
    return f"{100 * value:.0f}{THIN}%" if value >= 0.01 else f"&lt;{THIN}1{THIN}%"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if round(count, 1) < 1000:
            return f"{count:.0f}{THIN}{unit}" if unit == "B" else f"{count:.1f}{THIN}{unit}"
        count /= 1000
    return f"{count:,.1f}{THIN}GB"


def _seconds(value: float) -> str:
    """
    >>> [_seconds(s).replace(THIN, " ") for s in (0.026, 4.02, 75.0, 754.0, 40000.0)]
    ['26 ms', '4.0 s', '75 s', '12.6 min', '11.1 h']
    """
    if value < 0.1:
        return f"{1000 * value:.0f}{THIN}ms"
    if value < 180:
        return f"{value:.1f}{THIN}s" if value < 10 else f"{value:.0f}{THIN}s"
    return f"{value / 60:.1f}{THIN}min" if value < 10800 else f"{value / 3600:,.1f}{THIN}h"


def _models(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _count(value: float) -> str:
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
        return _figure(value).removeprefix("1·")
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


def _setting(value: object) -> str:
    """A value of a configuration, as text that is not escaped yet."""
    if isinstance(value, list | tuple):
        some = ", ".join(str(v) for v in value[:8])
        return f"{some}, … ({len(value):,} in all)" if len(value) > 8 else some or "none"
    if isinstance(value, dict):
        return _setting([f"{k} {str(v)[:12]}" for k, v in value.items()])
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
    shown: Callable[[float], str] = _figure
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
    "round": Kind("rounds", _count, least=1.0),
    "parameters": Kind("parameters", _count, zero=True),
    "models": Kind("models", _models, zero=True),
    "bytes": Kind("bytes", _bytes, _bytes_on_axis, zero=True),
    "seconds": Kind("time", _seconds, _seconds_on_axis, zero=True, units=(1.0, 60.0, 3600.0), decades=MINUTES),
    "accuracy": Kind("accuracy", _percent, lambda v: f"{100 * v:.6g}{THIN}%", log=False, limits=(0.0, 1.0)),
    "rmse": Kind("RMSE"),
    "loss": Kind("loss"),
    "gamma": Kind("γ", lambda v: f"{v:.3f}", log=False, zero=True, limits=(-math.inf, 1.0)),
    "share": Kind("share", _percent, lambda v: f"{100 * v:.6g}{THIN}%", log=False, zero=True, limits=(0.0, 1.0)),
    "count": Kind("count", _count, log=False, zero=True, least=1.0),
    "value": Kind("value"),
}


def _kind(column: str) -> Kind:
    """The quantity that a column of metrics.jsonl holds."""
    if column in KINDS:
        return KINDS[column]
    if column.startswith("gamma"):
        return KINDS["gamma"]
    for ending in ("accuracy", "rmse", "loss", "seconds"):
        if column.endswith(ending):
            return KINDS[ending]
    for start in COSTS:
        if column.startswith(start):
            return KINDS[start]
    return KINDS["value"]


def _said(column: str) -> str:
    """What a column of metrics.jsonl is called.

    >>> _said("test_rmse"), _said("gamma_min")
    ('test RMSE', 'least γ')
    """
    known = {"seconds": "time", "gamma_min": "least γ", "gamma_median": "median γ"}
    return known.get(column) or column.replace("_", " ").replace("rmse", "RMSE").replace("gamma", "γ")


def _words(name: str) -> str:
    """What a setting is called."""
    return name.replace("_", " ")


def _shown(column: str, value: float | None) -> str:
    return "–" if value is None else _kind(column).shown(value)


# Axes and curves


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


def _axis(kind: Kind, values: Iterable[float | None], *, widen: bool = False) -> Axis:
    """An axis for values; one that is widened ends at ticks, or a little beyond the values."""
    known = [v for v in values if v is not None]
    low, high = min(known), max(known)
    least = min((v for v in known if v > 0), default=0.0)
    if kind.log and least > 0 and high / least >= LOG:
        edge = max(least, high * DECADES)
        spare = (high / edge) ** 0.04 if widen else 1.0
        return Axis(kind, edge / spare, high * spare, True, _log_ticks(kind, edge / spare, high * spare), low < edge)
    if kind.zero and (low <= high / 2 or low < 0 or kind.limits[1] <= 1):
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # all the same
        spare = abs(high) / 10 or 1.0
        low, high = low - (spare if low else 0.0), high + spare
        low, high = max(low, kind.limits[0]), min(high, kind.limits[1])
    step = _step(kind, low, high)
    if widen:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        low, high = max(low, kind.limits[0]), min(high, kind.limits[1])
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(kind, low, high, False, tuple(j * step for j in range(first, last + 1)))


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


def _c(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def _plot(caption: str, x: Axis, y: Axis, curves: Sequence[Curve], say: str = "") -> str:
    """A figure with curves, each named at its end, and a sentence under it."""
    curves = [c for c in curves if any(a is not None and b is not None for a, b in zip(c.x, c.y, strict=True))]
    if not curves:
        return ""
    names = [_text(c.name, NAME) for c in curves]
    left = _left(y)
    right, top, bottom = 9 + 6.0 * max(len(html.unescape(name)) for name in names), 8.0, 22.0
    across, down, edge = WIDTH - left - right, HEIGHT - top - bottom, WIDTH - right

    def place(a: float | None, b: float | None) -> tuple[float, float] | None:
        return None if a is None or b is None else (left + across * x.at(a), top + down * (1 - y.at(b)))

    counts = y.kind is KINDS["count"]  # they go up and down: points say more than the lines between them
    parts, ends = [_y_ticks(y, left, edge, top, down), _x_ticks(x, left, across, top + down)], []
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
        d = "".join(f"M{_c(a)} {_c(b)}{MARKS[curve.mark]}" for a, b in marked)
        parts.append(f'<path class="mark {curve.look}" d="{d}"/>')
        if counts:
            spots = "".join(f"M{_c(a)} {_c(b)}h0" for _, (a, b) in known)
            parts.append(f'<path class="spots {curve.look}" d="{spots}"/>')
        ends.append(known[-1][1])
    heights = _spread([b for _, b in ends], 11.0, top + 3, top + down)
    for curve, name, (a, b), height in zip(curves, names, ends, heights, strict=True):
        if edge - a > 8:
            parts.append(f'<path class="lead {curve.look}" d="M{_c(a + 4)} {_c(b)}L{_c(edge + 2)} {_c(height)}"/>')
        parts.append(f'<text class="name {curve.look}" x="{_c(edge + 6)}" y="{_c(height + 3.5)}">{name}</text>')
    notes = [f"axis from {x.kind.shown(x.low)}"] if not x.log and x.kind.zero and x.low > 0 else []
    notes += [f"cut at {_figure(float(f'{y.low:.1g}'))}"] if y.cut else []
    ways = (f"{_text(c.name)} from {_first(c.y, y.kind)} to {_first(c.y[::-1], y.kind)}" for c in curves)
    return _framed(caption, f"({'; '.join(notes)})" if notes else "", "; ".join(ways), "".join(parts), say)


def _framed(caption: str, note: str, title: str, content: str, say: str = "") -> str:
    return (
        f'<figure><figcaption>{caption} <span class="note">{note}</span></figcaption>'
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">'
        f"<title>{caption}: {title}</title>{content}</svg>"
        f"{say and f'<p>{say}</p>'}</figure>"
    )


def _left(y: Axis) -> float:
    """The room that the ticks of an axis need."""
    return 10 + 5.8 * max((len(y.kind.short(t)) for t in y.ticks), default=2)


def _first(values: Values, kind: Kind) -> str:
    return next(kind.shown(v) for v in values if v is not None)


def _y_ticks(axis: Axis, left: float, right: float, top: float, down: float) -> str:
    heights = [(tick, top + down * (1 - axis.at(tick))) for tick in axis.ticks]
    grid = "".join(f"M{_c(left)} {_c(h)}H{_c(right)}" for _, h in heights)
    texts = "".join(
        f'<text class="tick" text-anchor="end" x="{_c(left - 5)}" y="{_c(h + 3.5)}">{axis.kind.short(t)}</text>'
        for t, h in heights
    )
    return f'<path class="grid" d="{grid}"/>{texts}' if grid else ""


def _x_ticks(axis: Axis, left: float, across: float, foot: float) -> str:
    """The axis, and as many of its ticks as have room."""
    parts, free = [f'<path class="axis" d="M{_c(left)} {_c(foot)}h{_c(across)}"/>'], -math.inf
    for tick in axis.ticks:
        text, at = axis.kind.short(tick), left + across * axis.at(tick)
        half = 3.0 * len(text)
        middle = min(at, WIDTH - half)
        if middle - half < free + 6:
            continue
        free = middle + half
        parts.append(f'<path class="axis" d="M{_c(at)} {_c(foot)}v3"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{_c(middle)}" y="{_c(foot + 14)}">{text}</text>')
    return "".join(parts)


def _path(places: Sequence[tuple[float, float] | None]) -> str:
    """Lines from point to point, with gaps where there is none."""
    d, drawing = "", False
    for place in places:
        if place is not None:
            d += f"{' ' if drawing else 'M'}{_c(place[0])} {_c(place[1])}"
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


# Pictures with a row a client, as wide as there is room: places are in percent, heights in pixels

LINE = 18
"""Height of a row."""
END = 88.0
"""Where they end, in percent; what is written after them stands beyond."""


def _picture(title: str, height: float, content: str, least: float = 0.0) -> str:
    style = f' style="min-width:{least:.0f}px"' if least else ""
    size = f'width="100%" height="{height:.0f}"{style}'
    return _scrolling(title, f'<svg class="rows" role="img" {size}><title>{title}</title>{content}</svg>')


def _at(share: float, left: float, right: float) -> str:
    """A place between two others, in percent of the width."""
    return f"{left + (right - left) * share:.2f}".rstrip("0").rstrip(".") + "%"


def _begin(names: Iterable[str]) -> float:
    """Where rows begin, in percent: after the longest name, on a narrow screen."""
    return round(min(NAME, max(map(len, names), default=0)) * 1.9 + 3.5, 1)


def _row_name(name: str, left: float, y: float, look: str = "") -> str:
    full = f"<title>{_text(name)}</title>" if len(name) > NAME else ""
    at = f'x="{left - 1.5:g}%" y="{y:.0f}" text-anchor="end"'
    return f'<text class="who{look}" {at}>{full}{_text(_shortened(name))}</text>'


def _row_end(client: Held, y: float) -> str:
    points = "" if client.points is None else f"{client.points:,.0f}"
    return f'<text class="tick" x="99.5%" y="{y:.0f}" text-anchor="end">{points}</text>'


def _shortened(name: str) -> str:
    """A name that fits; it is often the end that tells names apart.

    >>> _shortened("hospital-north-02")
    'hospita…north-02'
    """
    return name if len(name) <= NAME else f"{name[: NAME // 2 - 1]}…{name[-NAME // 2 :]}"


def _some(clients: Sequence[Held]) -> tuple[Sequence[Held], str]:
    """As many clients as there is room for, from the largest to the smallest, and a word on those left out."""
    if len(clients) <= ROWS:
        return clients, ""
    order = sorted(clients, key=lambda c: -(c.points or 0.0))
    chosen = [order[round(j * (len(order) - 1) / (ROWS - 1))] for j in range(ROWS)]
    return chosen, f"Shown are {ROWS} of {len(clients):,} clients, at even steps from the largest to the smallest."


def _heat(clients: Sequence[Held], classes: Sequence[str]) -> str:
    """A row a client, a column a class; dark is much of what the client has."""
    total = tuple(math.fsum(c.labels[j] for c in clients if c.labels) for j in range(len(classes)))
    columns, heads = [[j] for j in range(len(classes))], list(classes)
    if len(classes) > COLUMNS:
        order = sorted(range(len(classes)), key=lambda j: -total[j])
        kept = sorted(order[: COLUMNS - 1])
        columns, heads = [*([j] for j in kept), order[COLUMNS - 1 :]], [*(classes[j] for j in kept), "others"]
    rows = [Held("all clients", math.fsum(total), {}, {}, total, {}), *_some(clients)[0]]
    left = _begin(c.name for c in rows)
    middle = [_at((j + 0.5) / len(heads), left, END) for j in range(len(heads))]
    tilted = max(map(len, heads)) * 6.5 > 200 / len(heads)
    top = 56 if tilted else 20
    shares = [c.labels[j] / math.fsum(c.labels) for c in rows if any(c.labels) for j in range(len(classes))]
    darkest, cells = max(shares, default=1.0), dict[tuple[str, int], str]()
    texts = [f'<text class="tick" x="99.5%" y="{top - 7}" text-anchor="end">points</text>']
    for name, x in zip(heads, middle, strict=True):
        if tilted:  # a text at a percentage can be turned only in a place of its own
            texts.append(
                f'<svg class="open" x="{x}" y="{top - 6}"><text class="tick turned">{_text(name, 9)}</text></svg>'
            )
        else:
            texts.append(f'<text class="tick" text-anchor="middle" x="{x}" y="{top - 7}">{_text(name)}</text>')
    for i, client in enumerate(rows):
        y = LINE * i + (6 if i else 0)
        texts.append(_row_name(client.name, left, top + y + 12, "" if i else " all") + _row_end(client, top + y + 12))
        size = math.fsum(client.labels)
        for j, group in enumerate(columns):
            if not client.labels or not (count := math.fsum(client.labels[k] for k in group)):
                continue
            look, most = ("rest", 1.0) if len(group) > 1 else ("heat", darkest)
            level = max(1, round(12 * count / size / most))
            # one path for all cells that are alike: a rectangle each would be most of the page
            cells[look, level] = cells.get((look, level), "") + f"M{j} {y}h1v16h-1z"
            if len(heads) <= WRITTEN:
                look = "count on" if level > 7 else "count"
                texts.append(f'<text class="{look}" x="{middle[j]}" y="{top + y + 12}">{count:.0f}</text>')
    height = LINE * len(rows) + 6
    box = f'x="{left}%" y="{top}" width="{END - left:.4g}%" height="{height}" viewBox="0 0 {len(heads)} {height}"'
    paths = "".join(f'<path class="{k}" fill-opacity="{v / 12:.2g}" d="{d}"/>' for (k, v), d in sorted(cells.items()))
    content = f'<svg class="cells" {box} preserveAspectRatio="none">{paths}</svg>{"".join(texts)}'
    title = f"Points of {_plural(len(rows) - 1, 'client')} by {_plural(len(classes), 'class', 'classes')}"
    width = 6.1 * len(f"{max(total):.0f}") + 3 if len(heads) <= WRITTEN else 15.0
    return _picture(title, top + height, content, 100 * width * len(heads) / (END - left))


def _ranges(clients: Sequence[Held]) -> str:
    """A row a client: from its least target to its greatest, and the mean."""
    rows, _ = _some([c for c in clients if c.target.keys() >= {"mean", "min", "max"}])
    plain = dataclasses.replace(KINDS["value"], log=False)
    axis = _axis(plain, [c.target[name] for c in rows for name in ("min", "max")], widen=True)
    left, height, parts = _begin(c.name for c in rows), LINE * len(rows) + 4, []
    for tick in axis.ticks:
        x = _at(axis.at(tick), left, END)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{height}"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{x}" y="{height + 14}">{plain.short(tick)}</text>')
    for i, client in enumerate(rows):
        y = LINE * i + 9
        low, mean, high = (_at(axis.at(client.target[name]), left, END) for name in ("min", "mean", "max"))
        parts.append(_row_name(client.name, left, y + 4) + _row_end(client, y + 4))
        parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="fill" cx="{mean}" cy="{y}" r="3.5"/>')
    return _picture(f"Least, mean and greatest target of {_plural(len(rows), 'client')}", height + 20, "".join(parts))


def _bars(title: str, rows: Sequence[tuple[str, Sequence[float], str]], looks: Sequence[str], top: float = 0.0) -> str:
    """A row a bar: its name, the lengths of its parts, and what is written at its end.  The longest is `top` long."""
    left, end, parts = _begin(name for name, _, _ in rows), 74.0, []
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


def _stacked(title: str, rows: Sequence[tuple[str, Sequence[float], str]], parts: Sequence[str]) -> str:
    """Bars whose parts are named above them."""
    keys = "".join(f'<span><i class="part{j}"></i>{name}</span>' for j, name in enumerate(parts))
    bars = _bars(title, rows, [f"part{j}" for j in range(len(parts))])
    return f'<figure class="wide"><figcaption>{title}</figcaption><p class="keys">{keys}</p>{bars}</figure>'


def _histogram(caption: str, kind: Kind, values: Sequence[float]) -> str:
    """How many values lie where."""
    x = _axis(dataclasses.replace(kind, log=False), values, widen=True)
    bins = [0] * 24
    for value in values:
        bins[min(int(x.at(value) * len(bins)), len(bins) - 1)] += 1
    y = _axis(KINDS["count"], [0.0, float(max(bins))], widen=True)
    left, top, edge, down, d = _left(y), 8.0, WIDTH - 14, HEIGHT - 30, ""
    width = (edge - left) / len(bins)
    for i, count in enumerate(bins):
        if count:
            height = _c(down * y.at(count))
            d += f"M{_c(left + width * i + 0.5)} {_c(top + down)}v-{height}h{_c(width - 1)}v{height}z"
    median = statistics.median(values)
    middle = f"M{_c(left + (edge - left) * x.at(median))} {_c(top)}v{_c(down)}"
    content = (
        f'{_y_ticks(y, left, edge, top, down)}<path class="fill" d="{d}"/>{_x_ticks(x, left, edge - left, top + down)}'
        f'<path class="line train" d="{middle}"/>'
    )
    title = f"{_plural(len(values), 'value')} from {kind.shown(min(values))} to {kind.shown(max(values))}"
    return _framed(caption, f"(dashed: the median, {kind.shown(median)})", title, content)


# Pieces of a page; texts in them are escaped already


def _section(title: str, *content: str, note: str = "") -> str:
    said = f'<p class="say">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{said}{''.join(content)}</section>"


def _folded(title: str, content: str, look: str = "") -> str:
    return f'<details class="{look}"><summary>{title}</summary>{content}</details>'


def _scrolling(title: str, content: str) -> str:
    """What may be too wide scrolls in a box of its own, which can be reached by keyboard."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{title}">{content}</div>'


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]], attributes: str = "") -> str:
    heads, body = "".join(f'<th scope="col">{cell}</th>' for cell in head), []
    for first, *others in rows:
        body.append(f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>')
    content = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return _scrolling(title, f"<table{attributes}>{content}</table>")


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="grid4">{"".join(figures)}</div>' if figures else ""


def _pair(*parts: str) -> str:
    return f'<div class="pair">{"".join(parts)}</div>'


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rounds_table(title: str, past: Past, run: int, name: str = "") -> str:
    """The numbers that curves are drawn by.  The script reads them here, too."""
    scores = [f"{part}_{what}" for what in ("accuracy", "rmse", "loss") for part in ("test", "train")]
    models = "parameters" if name else "models"  # runs side by side may have models of different sizes
    wanted = (*scores, models, "bytes", "seconds", "gamma_median", "gamma_min")
    columns = ["round", *(column for column in wanted if past.series(column))]
    rows = zip(*([_shown(column, v) for v in past.series(column)] for column in columns), strict=True)
    some = f", {len(past.drawn)} of {past.rounds:,}" if len(past.drawn) < past.rounds else ""
    attributes = f' id="rounds{run}" data-name="{name}"'
    return _folded(f"{title}{some}", _table("Rounds in numbers", map(_said, columns), rows, attributes))


def _method(past: Past) -> str:
    """Algorithm, learner and geometry in words."""
    geometry = " in a shared geometry" if past.config.get("geometry") == "shared" else ""
    algorithm = NAMES.get(past.algorithm, past.algorithm)
    return f"{_text(algorithm, 40)} with {_text(past.config.get('learner', 'features'), 60)}{geometry}"


def _split(config: Mapping[str, Any]) -> str:
    """How points came to clients."""
    match config.get("split"):
        case "similarity":
            by = f" by {_text(config['by'], 40)}" if config.get("by") else ""
            return f"dealt out sorted{by}, similarity s{THIN}={THIN}{_text(config.get('similarity'))}"
        case "dirichlet":
            return f"dealt out by a Dirichlet law, α{THIN}={THIN}{_text(config.get('alpha'))}"
        case "labels":
            return f"dealt out with {_text(config.get('labels'))} classes a client"
        case "iid":
            return "dealt out evenly"
    return "as clients hold them"


# One run


def _one(past: Past) -> str:
    parts = (_header, _curves, _who, _measured, _costs, _configuration)
    return _document(past.name, "".join(part(past) for part in parts))


def _header(past: Past) -> str:
    """The result in a sentence, and in a few big numbers."""
    score, models, traffic, seconds = past.last(past.score), past.last("models"), past.last("bytes"), past.seconds
    count = _float(past.config.get("clients"))
    clients = "" if count is None else f" with {_plural(count, 'client')}"
    headline = (
        f"{_capital(_said(past.score))} {_shown(past.score, score)} after {_plural(past.rounds, 'round')}{clients}"
    )
    cost = []
    if models is not None and traffic is not None:
        cost.append(
            f"each client sent and received {_models(models)} models ({_bytes(traffic)}) in all, set-up included"
        )
    if seconds is not None:
        cost.append(f"the {'run' if past.summary else 'rounds so far'} took {_seconds(seconds)}")
    lead = f"{_capital('; '.join(cost))}. {_method(past)} on {_text(past.data)}, {_split(past.config)}."
    numbers = {
        _said(past.score): _shown(past.score, score),
        "rounds": _count(past.rounds),
        "clients": "–" if count is None else _count(count),
        "models a client": _shown("models", models),
        "traffic a client": _shown("bytes", traffic),
        "time": _shown("seconds", seconds),
    }
    big = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers.items())
    return (
        f'<header><p class="eyebrow">ffgb run <b>{_text(past.name)}</b></p><h1>{headline}</h1>'
        f'<p class="lead">{lead}</p>{_ended(past)}<dl class="numbers">{big}</dl></header>'
    )


def _ended(past: Past) -> str:
    """A word if the run has not ended, or ended of itself."""
    of = "" if past.planned is None else f" of {past.planned:,}"
    if past.summary is None:
        return (
            f'<p class="warn">This run has not ended: it has {past.rounds:,}{of} rounds, and no model yet. '
            "<code>--resume</code> goes on from here.</p>"
        )
    if past.config.get("stop") and past.planned is not None and past.rounds < past.planned:
        return (
            f'<p class="say">It ended of itself after {past.rounds:,}{of} rounds: a further step would have fitted '
            "more noise than there was left to learn.</p>"
        )
    return ""


XS = ("round", "models", "bytes", "seconds")


def _curves(past: Past) -> str:
    """Score and loss by rounds and by costs."""
    name = past.score
    whats = dict.fromkeys((name.partition("_")[2], "loss"))
    if past.rounds == 1:
        names = [f"{part}_{what}" for what in whats for part in ("test", "train")]
        rows = [(_said(n), _shown(n, past.last(n))) for n in names if past.last(n) is not None]
        table = _table("Scores", ("", "after the only round"), rows)
        return _section("How it learned", table, note="One exchange was all, so there is no curve to draw.")
    looks = {"test": ("test", "test"), "train": ("train", "train"), "ensemble_test": ("ensemble", "other")}
    parts = []
    for what in whats:
        found = [(f"{part}_{what}", *look) for part, look in looks.items() if past.series(f"{part}_{what}")]
        y = _axis(KINDS[what], [v for column, _, _ in found for v in past.series(column)], widen=True)
        for x in XS:
            curves = [Curve(label, past.series(x), past.series(column), look) for column, label, look in found]
            parts.append(_by(x, _capital(KINDS[what].text), y, curves))
    column = {i: v for i, v in enumerate(past.columns[name], 1) if v is not None}
    first, word = (max, "highest") if name.endswith("accuracy") else (min, "lowest")
    at = first(column, key=lambda i: column[i])
    last = max(column)
    when = "in the last round" if last == past.rounds else f"in round {last:,} (later ones have none)"
    note = f"The {_said(name)} is {_shown(name, column[last])} {when}"
    if column[at] == column[last]:
        note += f", the {word} of all. "
    else:
        note += f"; it was {word} in round {at:,}, {_shown(name, column[at])}. "
    note += "Models and bytes are one client's mean, both ways; all costs include set-up."
    if past.series("ensemble_test_loss"):
        note += " <b>Ensemble</b> is what a round has before one learner is made of it."
    return _section("How it learned", _grid(parts), _rounds_table("Rounds in numbers", past, 0), note=note)


def _by(x: str, what: str, y: Axis, curves: Iterable[Curve], say: str = "") -> str:
    """A plot of something by rounds or by a cost, if that is known."""
    known = [curve for curve in curves if curve.x]
    axis = _axis(KINDS[x], [v for curve in known for v in curve.x]) if known else None
    return "" if axis is None else _plot(f"{what} by {KINDS[x].text}", axis, y, known, say)


def _who(past: Past) -> str:
    """Who holds what, and how good the function is for whom; side by side where there is room."""
    if not past.clients:
        why = "This run does not say who holds what, nor how good its function is for whom: it has no clients.json."
        return _section("Clients", note=why)
    parts = _holdings(past.clients, past.classes), _by_client(past.clients, past.sampled)
    return _pair(*parts) if len(past.classes) <= 2 * WRITTEN else "".join(parts)


def _holdings(clients: Sequence[Held], classes: Sequence[str]) -> str:
    _, left_out = _some(clients)
    if any(c.labels for c in clients):
        few = (
            f" Columns are the {COLUMNS - 1} most frequent of {len(classes):,} classes."
            if len(classes) > COLUMNS
            else ""
        )
        note = "Training points by class; the darker, the larger a class's share of a client's own points."
        note = f"{note} {_apart(clients, classes)} {left_out}{few}"
        return _section("Who holds what", _heat(clients, classes), note=note)
    if any(c.target.keys() >= {"mean", "min", "max"} for c in clients):
        note = f"Targets of each client's training points: least, mean and greatest, and how many there are. {left_out}"
        return _section("Who holds what", _ranges(clients), note=note)
    sized, _ = _some(sorted((c for c in clients if c.points is not None), key=lambda c: -(c.points or 0.0)))
    bars = [(c.name, (c.points or 0.0,), f"{c.points:,.0f}") for c in sized]
    return _section("Who holds what", _bars("Points by client", bars, ("fill",)), note=f"Training points. {left_out}")


def _apart(clients: Sequence[Held], classes: Sequence[str]) -> str:
    """How much the clients' classes differ, in a sentence."""
    told = [c.labels for c in clients if any(c.labels)]
    if not told:
        return ""
    total = [math.fsum(labels[j] for labels in told) for j in range(len(classes))]
    everything = math.fsum(total)
    variation = []
    for labels in told:
        size = math.fsum(labels)
        variation.append(math.fsum(abs(n / size - t / everything) for n, t in zip(labels, total, strict=True)) / 2)
    most = max(range(len(classes)), key=lambda j: total[j])
    return (
        f"To look like all of them together, a client would have to change the class of "
        f"{_share(statistics.fmean(variation))} of its points on average (total variation). The most frequent class, "
        f"{_text(classes[most], 40)}, has {_share(total[most] / everything)} of all points."
    )


def _scores(clients: Sequence[Held]) -> tuple[str, str, list[tuple[float, Held]]]:
    """On which points, which measure, and the clients' values, worst first."""
    part = "test" if any(c.test for c in clients) else "train"
    known = [(c.test if part == "test" else c.train, c) for c in clients]
    measure = next((m for m in ("accuracy", "rmse", "loss") if any(m in found for found, _ in known)), "loss")
    sign = 1.0 if measure == "accuracy" else -1.0
    return part, measure, sorted(((f[measure], c) for f, c in known if measure in f), key=lambda pair: sign * pair[0])


def _by_client(clients: Sequence[Held], sampled: bool) -> str:
    part, measure, values = _scores(clients)
    if not values:
        return _section("Score by client", note="This run does not say.")
    kind, worst = KINDS[measure], values[:WORST]
    what = f"{part} {kind.text}"
    bars = []
    for value, client in worst:
        size = client.test.get("points") if part == "test" else client.points
        few = "" if size is None else f' <tspan class="few">on {size:,.0f}</tspan>'
        bars.append((client.name, (value,), f"{kind.shown(value)}{few}"))
    # Of a client's training points only its own reports tell, and it makes none while others are asked.
    when = " when it last took part" if sampled and part == "train" else ""
    note = f"The {what} on each client's own {part} points{when}, worst first"
    note += f": the worst {WORST} of {len(values):,}. " if len(values) > WORST else ". "
    median = kind.shown(statistics.median(value for value, _ in values))
    note += f"From {kind.shown(values[0][0])} to {kind.shown(values[-1][0])}, median {median}. "
    if part == "train":
        note += "No client holds test points of its own. "
    elif len(values) < len(clients):
        note += f"Left out: {_plural(len(clients) - len(values), 'client')} without test points. "
    note += "A score on few points is uncertain."
    pictures = [_bars(f"{_capital(what)} by client", bars, ("fill",), 1.0 if measure == "accuracy" else 0.0)]
    if len(values) > WORST:
        pictures.append(_histogram(f"Clients by {what}", kind, [value for value, _ in values]))
    return _section("Score by client", _pair(*pictures), _client_table([client for _, client in worst]), note=note)


def _client_table(clients: Sequence[Held]) -> str:
    """All that is known of some clients' scores."""
    found = [
        {f"train_{k}": v for k, v in c.train.items()} | {f"test_{k}": v for k, v in c.test.items()} for c in clients
    ]
    order = [f"{part}_{name}" for part in ("train", "test") for name in ("points", "accuracy", "rmse", "loss")]
    names = [name for name in order if any(name in scores for scores in found)]
    head = ("client", "points", *map(_said, names))
    rows = [
        (_text(c.name, 60), _shown("count", c.points), *(_shown(name, scores.get(name)) for name in names))
        for c, scores in zip(clients, found, strict=True)
    ]
    return _folded("The same in numbers", _table("Scores by client", head, rows))


@final
@dataclass(frozen=True)
class Noted:
    """What rounds may have noted: its columns, with a name for each, and what there is to say about it."""

    caption: str
    kind: str
    columns: Mapping[str, str]
    say: str
    none: str = ""
    """What to say instead if all are 0."""


GAMMA = (
    "γ says how well weak learners fit what they are asked for: γ = 1 − ‖h − φ‖/‖φ‖ for an answer h to φ. At 1 the fit "
    "is perfect, at 0 no better than none. The theory wants it above 0. It often falls when little is left to fit."
)
SHARED = " In a shared geometry there is one a round: that of all clients' mean answer, at all their points."
NOTED = (
    Noted("γ of the weak learners", "gamma", {"gamma_median": "median", "gamma_min": "least"}, GAMMA),
    Noted(
        "What a step explains",
        "share",
        {"explained": "gradient", "noise": "noise"},
        "How much of the gradient lies along the step, and how much of pure noise would. Where noise is well above, "
        "there is nothing left to learn.",
    ),
    Noted(
        "γ in the two norms",
        "gamma",
        {"gamma_sup": "values", "gamma_lip": "slopes"},
        "The least γ in the two norms of FFGB.L: of values at points, and of slopes between pairs of them.",
    ),
    Noted(
        "Steepest weak learner",
        "value",
        {"lipschitz": "L"},
        "The largest Lipschitz constant among the weak learners of a round.",
    ),
    Noted(
        "γ of distillation",
        "gamma",
        {"gamma_distilled": "least"},
        "How well one weak learner stands for the several that a client made it of.",
    ),
    Noted(
        "Clipped values",
        "count",
        {"clipped": "learner", "clipped_residual": "residual"},
        "Values at clients' own points that FFGB.C cut off. By the paper's lemma there are none as long as γ is what "
        "the oracle achieves.",
        "No value at a client's own points was clipped, as the paper's lemma has it: clips act elsewhere.",
    ),
    Noted(
        "Calls that did not contract",
        "count",
        {"uncovered": "calls"},
        "Calls of the oracle with γ ≤ 0 in the norm of the theorem, which says nothing about them.",
        "Every call of the oracle contracted, in the norm of the theorem.",
    ),
    Noted(
        "Learners before distillation",
        "count",
        {"ensemble_learners": "learners"},
        "Weak learners of a round's ensemble, before one is made of them.",
    ),
    Noted("Clients that took part", "count", {"participants": "clients"}, "Those whose answers a round is made of."),
)
USUAL = {"round", "seconds", "setup_seconds", *COSTS, *(f"{cost}_{way}" for cost in COSTS for way in ("up", "down"))}


def _measured(past: Past) -> str:
    """What rounds noted beside their scores."""
    known = USUAL | {column for noted in NOTED for column in noted.columns}
    strange = [c for c in past.columns if c not in known and not c.startswith(("train_", "test_", "ensemble_"))]
    figures, sentences, numbers = [], [], list[tuple[str, str]]()
    for noted in (*NOTED, *(Noted(_text(_said(c), 40), "value", {c: ""}, "") for c in strange[:COLUMNS])):
        found = {column: series for column in noted.columns if (series := past.series(column))}
        if found.get("gamma_min") == found.get("gamma_median"):
            found.pop("gamma_min", None)  # there is one a round
        values = [v for series in found.values() for v in series if v is not None]
        if not values or ("participants" in found and len(set(past.columns["participants"])) == 1):
            continue
        if noted.none and not any(values):
            sentences.append(noted.none)
            continue
        kind, rounds = KINDS[noted.kind], past.series("round")
        names = [noted.columns[column] if len(found) > 1 else "" for column in found]
        for name, series in zip(names, found.values(), strict=True):
            numbers.append((f"{noted.caption}{name and f': {name}'}", _first(series[::-1], kind)))
        lines = zip(names, found.values(), ("test", "train"), strict=False)
        curves = [Curve(name, rounds, series, look) for name, series, look in lines]
        shared = SHARED if noted.say == GAMMA and past.config.get("geometry") == "shared" else ""
        x, y = _axis(KINDS["round"], rounds), _axis(kind, values, widen=True)
        figures.append(_plot(noted.caption, x, y, curves, noted.say + shared))
    if not figures and not sentences:
        return ""
    content = _table("Noted", ("", "the only round"), numbers) if past.rounds == 1 and numbers else _grid(figures)
    return _section("What rounds measured", content, note=" ".join(sentences))


def _costs(past: Past) -> str:
    rows = []
    for name in (name for name in COSTS if past.last(name) is not None):
        row = [name, *(_shown(name, past.last(column)) for column in (f"{name}_up", f"{name}_down", name))]
        for column in (f"{name}_up", f"{name}_down"):
            setup, whole = past.setup(column), past.last(column)
            row.append(_shown(name, setup) + (f" ({_share(setup / whole)})" if setup and whole else ""))
        rows.append(row)
    table = _table("Costs", ("a client's mean", "up", "down", "both", "set-up, up", "set-up, down"), rows)
    note = []
    if past.model is not None:
        note.append(f"One model has {_plural(round(past.model), 'parameter')}.")
    if past.rounds > 1:
        note.append("Set-up is what the first round cost more than the median of the others.")
    return _section("What it cost", table, _bars_of_costs([past], ["all"]), note=" ".join(note))


def _bars_of_costs(pasts: Sequence[Past], names: Sequence[str]) -> str:
    """Bytes and seconds, and what they were for."""
    traffic, time = [], []
    for name, past in zip(names, pasts, strict=True):
        up, down, setup = past.last("bytes_up"), past.last("bytes_down"), past.last("setup_seconds") or 0.0
        if up is not None and down is not None:
            before = past.setup("bytes_up") or 0.0, past.setup("bytes_down") or 0.0
            traffic.append((name, (sum(before), up - before[0], down - before[1]), _bytes(up + down)))
        rounds, total = past.last("seconds"), past.seconds
        if rounds is not None and total is not None:
            time.append((name, (setup, rounds - setup, max(0.0, total - rounds)), _seconds(total)))
    return _pair(
        _stacked("Bytes a client", traffic, ("set-up", "rounds, up", "rounds, down")),
        _stacked("Time", time, ("set-up", "rounds", "loading, starting, saving")),
    )


def _configuration(past: Past) -> str:
    """All settings, those first that are not as by default, and the versions."""
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    groups: dict[str, list[str]] = {
        "not as by default": [], "given, or chosen to suit the data and the learner": [], "as by default": [],
    }  # fmt: skip
    (changed, chosen, plain), names = groups.values(), list[str]()
    for name, value in past.config.items():
        if name == "versions" or (name == "sha256" and not value):
            continue
        default = defaults.get(name)
        same = (tuple(value) if isinstance(value, list) else value) == default
        # What is None or auto by default has been filled in by now, and nobody can tell by whom.
        group = plain if same else chosen if default in (None, "auto") else changed
        said = past.data if name == "data" else _setting(value)
        names += [f"{_text(_words(name))} {_text(said, 60)}"] if group is changed else []
        group.append(f'<tr><th scope="row">{_text(_words(name))}</th><td>{_text(_setting(value))}</td></tr>')
    table = "".join(
        f'<tbody><tr class="group"><th colspan="2" scope="rowgroup">{title}</th></tr>{"".join(rows)}</tbody>'
        for title, rows in groups.items()
        if rows
    )
    versions = ", ".join(f"{_text(k, 40)} {_text(v, 40)}" for k, v in past.versions.items()) or "unknown"
    note = f"Not as by default: {', '.join(names[:12]) or 'nothing'}{', …' * (len(names) > 12)}. "
    note += f"Versions: {versions}."
    content = _folded("All settings", _scrolling("Settings", f'<table class="settings">{table}</table>'), "print")
    return _section("Configuration", content, note=note)


# Several runs


def _look(run: int) -> str:
    return f"k{run % COLOURS} d{run % DASHES}"


def _swatch(run: int) -> str:
    return (
        f'<svg class="swatch" aria-hidden="true" viewBox="0 0 34 10"><path class="line {_look(run)}" d="M1 5H33"/>'
        f'<path class="mark {_look(run)}" d="M17 5{MARKS[run % len(MARKS)]}"/></svg>'
    )


def _several(pasts: Sequence[Past]) -> str:
    short = max(len(past.name) for past in pasts) <= 10  # names that fit beside curves; else curves are numbered
    labels = [past.name if short else str(run) for run, past in enumerate(pasts, 1)]
    keys = [f"{_swatch(run)}{'' if short else f'{run + 1} · '}{_text(past.name, 60)}" for run, past in enumerate(pasts)]
    tables = [
        _rounds_table(key, past, run, _text(past.name)) for run, (key, past) in enumerate(zip(keys, pasts, strict=True))
    ]
    body = (
        _results(pasts, keys),
        _overlaid(pasts, labels, keys),
        _differences(pasts, labels),
        _costs_of_all(pasts, keys),
        _section("Rounds in numbers", *tables),
    )
    return _document(f"{len(pasts)} runs", "".join(body))


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
    from ffgb.compare import UNITS  # not above: it imports training, which may want to write reports

    sizes = {round(past.model) for past in pasts if past.model is not None}
    if len(sizes) == 1:
        return float(sizes.pop()), "one weak learner of these runs"
    return float(UNITS["mlp"]), "the paper's MLP, for the runs' own weak learners differ"


def _results(pasts: Sequence[Past], keys: Sequence[str]) -> str:
    best, (unit, what) = _best(pasts), _unit(pasts)
    order = ("test_accuracy", "test_rmse", "train_accuracy", "train_rmse")
    names = [name for name in order if any(past.score == name for past in pasts)]
    names += [name for name in ("test_loss", "train_loss") if any(past.last(name) is not None for past in pasts)]
    alike = len({str(past.config.get("data")) for past in pasts}) == 1
    told = any(past.clients for past in pasts)
    rows = []
    for run, past in enumerate(pasts):
        row = [keys[run], _method(past) if alike else f"{_method(past)} on {_text(past.data, 60)}"]
        for name in names:
            shown = _shown(name, past.last(name))
            row.append(f"<b>{shown}</b>" if run == best and name == past.score else shown)
        row += [_worst(past)] if told else []
        row += [_text(past.config.get("clients")), f"{past.rounds:,}{'' if past.summary else ' so far'}"]
        parameters = past.last("parameters")
        row.append("–" if parameters is None else _models(parameters / unit))
        rows.append([*row, _shown("bytes", past.last("bytes")), _shown("seconds", past.seconds)])
    head = ["run", "method", *map(_said, names), *(["worst client"] if told else [])]
    head += ["clients", "rounds", "models", "bytes", "time"]
    lead = (
        f"Models and bytes are a client's mean, both ways, set-up included; a model is {unit:,.0f} parameters: {what}."
    )
    if best is None:
        headline = f"{len(pasts)} runs side by side"
        lead = f"They are not of the same data, or not scored alike, so none is called the best. {lead}"
    else:
        score = pasts[best].score
        headline = f"Best of {len(pasts)} runs: {_text(pasts[best].name, 60)}, "
        headline += f"{_said(score)} {_shown(score, pasts[best].last(score))}"
    going = sum(past.summary is None for past in pasts)
    more = f'<p class="warn">{_plural(going, "run has", "runs have")} not ended.</p>' if going else ""
    on = f" on <b>{_text(pasts[0].data)}</b>" if alike else ""
    said = f'<p class="eyebrow">ffgb comparison{on}</p><h1>{headline}</h1><p class="lead">{lead}</p>{more}'
    return f"<header>{said}</header>" + _section("Results", _table("Results", head, rows, ' class="words"'))


def _worst(past: Past) -> str:
    _, measure, values = _scores(past.clients or ())
    return f"{KINDS[measure].shown(values[0][0])} ({_text(_shortened(values[0][1].name))})" if values else "–"


def _overlaid(pasts: Sequence[Past], labels: Sequence[str], keys: Sequence[str]) -> str:
    """The same curves of all runs: scores and losses by all costs, then what there is by rounds."""
    unit, _ = _unit(pasts)

    def plots(title: str, column: str, xs: Iterable[str], say: str = "") -> list[str]:
        found = [(run, past) for run, past in enumerate(pasts) if past.series(column)]
        values = [v for _, past in found for v in past.series(column)]
        y = _axis(_kind(column), values, widen=True) if values else None
        return [] if y is None else [_by(x, title, y, curves(column, x, found), say) for x in xs]

    def curves(column: str, x: str, found: Iterable[tuple[int, Past]]) -> Iterable[Curve]:
        for run, past in found:
            costs = past.series(x)
            if x == "models":
                costs = tuple(None if v is None else v / unit for v in past.series("parameters"))
            yield Curve(labels[run], costs, past.series(column), _look(run), run, run % len(MARKS))

    parts = [f'<p class="keys">{"".join(f"<span>{key}</span>" for key in keys)}</p>']
    for column in ("test_accuracy", "test_rmse", "test_loss"):
        parts.append(_grid(plots(_capital(_said(column)), column, XS)))
    parts.append(_grid([*plots("Train loss", "train_loss", XS[:1]), *plots("Median γ", "gamma_median", XS[:1], GAMMA)]))
    losses = {past.config.get("loss") for past in pasts}
    note = "The runs minimise different losses, whose values do not compare." if len(losses) > 1 else ""
    return _section("How they learned", *parts, note=note)


def _differences(pasts: Sequence[Past], labels: Sequence[str]) -> str:
    """Settings and versions that are not the same in all runs."""
    settings: list[dict[str, Any]] = []
    for past in pasts:
        flat = {_words(name): value for name, value in past.config.items() if name != "versions"}
        settings.append(flat | {f"version of {name}": value for name, value in past.versions.items()})
    rows = []
    for name in dict.fromkeys(name for flat in settings for name in flat):
        values = [flat.get(name) for flat in settings]
        if any(value != values[0] for value in values):
            cells = [_text(_setting(value), 60) for value in values]
            marked = [c if v == values[0] else f"<mark>{c}</mark>" for c, v in zip(cells, values, strict=True)]
            rows.append((_text(name, 60), *marked))
    if not rows:
        return _section("What differs", note="All settings and versions are the same.")
    note = "Settings that are not the same in all runs; marked is what is not as in the first. All others are the same."
    head = ("setting", *(f"{_swatch(run)}{_text(label)}" for run, label in enumerate(labels)))
    return _section("What differs", _table("Settings that differ", head, rows), note=note)


def _costs_of_all(pasts: Sequence[Past], keys: Sequence[str]) -> str:
    columns = [f"{name}_{way}" for name in COSTS for way in ("up", "down")]
    rows = []
    for key, past in zip(keys, pasts, strict=True):
        costs = [_shown(name, past.last(name)) for name in (*columns, "setup_seconds")]
        rows.append([key, "–" if past.model is None else _count(past.model), *costs, _shown("seconds", past.seconds)])
    head = ("run", "its model", *map(_said, columns), "set-up time", "time")
    note = (
        "Here models are of each run's own weak learner. Set-up is what the first round cost more than the median one."
    )
    bars = _bars_of_costs(pasts, [past.name for past in pasts])
    return _section("What they cost", _table("Costs", head, rows), bars, note=note)


# The document

STYLE = """
:root{color-scheme:light dark;--paper:#fcfbf8;--ink:#1c2024;--muted:#5c646c;--rule:#d8d4cb;--grid:#e9e6df;
--test:#0a5c9e;--train:#6f6a63;--other:#a83f7d;--on:#fff;--warn:#8a4b00;--warnback:#fff3df;
--p0:#b9b2a6;--p1:#0a5c9e;--p2:#74a9d6;
--k0:#0067a8;--k1:#c14a00;--k2:#007a5a;--k3:#a83f7d;--k4:#856600;--k5:#2a2f36;--k6:#4d86bd;--k7:#8c5a3c}
@media screen and (prefers-color-scheme:dark){:root{--paper:#15181b;--ink:#e8e5df;--muted:#a3a9af;--rule:#3a3f45;
--grid:#272b30;--test:#6cb4f5;--train:#a49d93;--other:#f08cc4;--on:#0c1116;--warn:#ffc57a;
--warnback:#33270f;--p0:#6d675e;--p1:#6cb4f5;--p2:#2f6ea6;
--k0:#58a9f0;--k1:#ff8f4d;--k2:#3cc9a0;--k3:#f08cc4;--k4:#e2c04b;--k5:#e8e5df;--k6:#a9d3fb;--k7:#d0a184}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue","Liberation Sans",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1280px;margin:0 auto;padding:40px 20px 56px}
h1,h2{line-height:1.2;text-wrap:balance}
h1{font:600 clamp(1.7rem,1.1rem + 2.4vw,2.7rem)/1.12 "Iowan Old Style","Palatino Linotype",Palatino,"Book Antiqua",
Georgia,"Liberation Serif",serif;letter-spacing:-.012em;margin:0 0 .5em;max-width:26em;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:0 0 .35em}
section{border-top:1px solid var(--rule);margin-top:40px;padding-top:18px;min-width:0}
header:has(.numbers)+section{border-top:0;margin-top:20px}
p{margin:0 0 .8em}
.eyebrow{color:var(--muted);font-size:.875rem;margin-bottom:.7em;overflow-wrap:anywhere}
.eyebrow b{color:var(--ink)}
.lead{font-size:1.06rem;max-width:64ch;overflow-wrap:anywhere}
.say{color:var(--muted);font-size:.925rem;max-width:76ch;overflow-wrap:anywhere}
.say b{color:var(--ink)}
.warn{color:var(--warn);background:var(--warnback);border-left:3px solid;padding:.6em .9em;max-width:76ch}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
.numbers{display:grid;grid-template-columns:repeat(2,1fr);margin:26px 0 0;border-top:2px solid var(--ink)}
.numbers div{padding:10px 14px 8px 0;border-bottom:1px solid var(--rule)}
.numbers dt{font-size:.8rem;color:var(--muted)}
.numbers dd{margin:0;font-size:1.6rem;font-weight:600;letter-spacing:-.015em;line-height:1.25}
.numbers div:first-child dd{color:var(--test)}
.grid4{display:grid;grid-template-columns:1fr;gap:18px 22px;margin:.5em 0 1em}
.pair{display:grid;grid-template-columns:minmax(0,1fr);column-gap:48px}
@media (min-width:600px){main{padding-inline:32px}.numbers{grid-template-columns:repeat(3,1fr)}
.grid4{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media (min-width:860px){.numbers{grid-template-columns:repeat(6,auto)}}
@media (min-width:1060px){.grid4{grid-template-columns:repeat(4,minmax(0,1fr))}
.pair{grid-template-columns:repeat(2,minmax(0,1fr))}.pair .pair{grid-template-columns:minmax(0,1fr)}}
figure{margin:0;min-width:0}
figure.wide{margin-top:18px}
.pair>figure{max-width:560px}
.pair .pair>figure{max-width:400px;margin-top:18px}
figcaption{font-size:.85rem;font-weight:600;margin-bottom:2px}
.note{font-weight:400;color:var(--muted)}
figure p{font-size:.83rem;color:var(--muted);margin:.3em 0 0}
svg{display:block;max-width:100%}
svg.plot{width:100%;height:auto;overflow:visible}
svg.rows{max-width:none}
svg.open{overflow:visible}
svg text{font-size:10.5px;fill:var(--ink)}
svg.rows text{font-size:12px}
svg .tick,svg .few{fill:var(--muted)}
svg.rows .tick,svg.rows .few{font-size:11.5px}
svg .end{transform:translateX(5px)}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--rule);fill:none}
.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.mark{fill:currentColor;stroke:var(--paper);stroke-width:.6}
path.lead{fill:none;stroke:currentColor;stroke-opacity:.45;stroke-width:.8;stroke-dasharray:1 2}
svg .name{fill:currentColor;font-weight:600}
.test{color:var(--test)}.train{color:var(--train)}.other{color:var(--other)}
.fill{fill:var(--test)}
.line.train{stroke-width:1.4;stroke-dasharray:4 3}
.line.other{stroke-width:1.4;stroke-dasharray:1 3}
.line.faint{stroke-opacity:.25;stroke-width:1}
.spots{stroke:currentColor;stroke-width:3;stroke-linecap:round}
.range{stroke:var(--test);stroke-opacity:.4;stroke-width:5;stroke-linecap:round}
.heat{fill:var(--test)}.rest{fill:var(--train)}
svg.rows .count{text-anchor:middle;font-size:10.5px}
.turned{transform:rotate(-45deg)}
svg .on{fill:var(--on)}
svg .all{font-weight:600}
.part0{fill:var(--p0);background:var(--p0)}
.part1{fill:var(--p1);background:var(--p1)}
.part2{fill:var(--p2);background:var(--p2)}
.keys{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:.85rem;color:var(--muted);margin:.2em 0 .5em}
.keys span{overflow-wrap:anywhere;display:inline-flex;align-items:center;gap:6px}
.keys .swatch{margin:0}
.keys i{width:12px;height:12px;border-radius:2px}
.swatch{width:34px;max-width:none;height:10px;display:inline-block;vertical-align:middle;margin-right:6px;flex:none}
.k0{color:var(--k0)}.k1{color:var(--k1)}.k2{color:var(--k2)}.k3{color:var(--k3)}
.k4{color:var(--k4)}.k5{color:var(--k5)}.k6{color:var(--k6)}.k7{color:var(--k7)}
.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}.d4{stroke-dasharray:4 2}
.mark{stroke-dasharray:none}
.scroll{overflow-x:auto;overflow-y:hidden;max-width:100%;scrollbar-width:thin}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--test);outline-offset:2px}
table{border-collapse:collapse;font-size:.875rem;margin:.6em 0}
th,td{padding:5px 14px 5px 0;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,.settings td,.words td:nth-child(2),.words th:nth-child(2){text-align:left}
thead th{color:var(--muted);font-weight:400;border-bottom:1px solid var(--rule)}
tbody th{font-weight:400}
.settings td{white-space:normal;overflow-wrap:anywhere}
.group th{padding-top:14px;font-weight:600}
mark{background:var(--warnback);color:var(--warn);padding:1px 5px;border-radius:3px}
details{margin-top:12px}
summary{cursor:pointer;font-size:.925rem;color:var(--test);width:fit-content}
footer{margin-top:48px;border-top:1px solid var(--rule);padding-top:12px;font-size:.83rem;color:var(--muted)}
.dot{fill:var(--paper);stroke:currentColor;stroke-width:1.8}
#tip{position:fixed;z-index:2;pointer-events:none;background:var(--ink);color:var(--paper);font-size:.8rem;line-height:1.4;
padding:7px 10px;border-radius:5px;max-width:min(280px,90vw)}
#tip b{display:block;overflow-wrap:anywhere}
#tip span{display:flex;justify-content:space-between;gap:14px}
@media print{:root{--paper:#fff}body{font-size:11px}main{max-width:none;padding:0}section{margin-top:18px}
.numbers{grid-template-columns:repeat(6,1fr)}.numbers dd{font-size:1.3rem}figure,tr,.numbers{break-inside:avoid}
h2{break-after:avoid}.grid4{grid-template-columns:repeat(2,minmax(0,1fr))}
.scroll{overflow:visible}details:not(.print){display:none}
rect,path,i{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
# No "<" and no "&", so that the page is XML, too.
SCRIPT = """
(() => {
  const lines = [], tip = document.createElement("div"), dots = [];
  tip.id = "tip"; tip.hidden = true; document.body.append(tip);
  for (const svg of document.querySelectorAll("svg")) {  // a title would pop up over the read-out
    const title = svg.querySelector(":scope > title");
    if (title) { svg.setAttribute("aria-label", title.textContent); title.remove(); }
  }
  for (const path of document.querySelectorAll("path.line[data-k]")) {
    const at = new Map(), n = path.getAttribute("d").match(/[0-9.]+/g).map(Number);
    const i = path.dataset.i ? path.dataset.i.split(" ").map(Number) : null;
    for (let j = 0; n.length > 2 * j; j++) at.set(i ? i[j] : j, [n[2 * j], n[2 * j + 1]]);
    lines.push({svg: path.closest("svg"), k: path.dataset.k, at, look: path.classList[1]});
  }
  const clear = () => { tip.hidden = true; for (const dot of dots.splice(0)) dot.remove(); };
  const show = (event, k, i) => {
    clear();
    for (const line of lines) if (line.k === k) if (line.at.has(i)) {
      const [x, y] = line.at.get(i), dot = document.createElementNS(line.svg.namespaceURI, "circle");
      const values = {cx: x, cy: y, r: 3.4, class: "dot " + line.look};
      for (const name in values) dot.setAttribute(name, values[name]);
      line.svg.append(dot); dots.push(dot);
    }
    const table = document.getElementById("rounds" + k);
    if (!table) return;
    const row = table.tBodies[0].rows[i], head = table.tHead.rows[0].cells, name = document.createElement("b");
    name.textContent = (table.dataset.name ? table.dataset.name + ", " : "") + "round " + row.cells[0].textContent;
    tip.replaceChildren(name);
    for (let j = 1; row.cells.length > j; j++) {
      const pair = document.createElement("span");
      for (const cell of [head[j], row.cells[j]]) {
        const text = document.createElement("span");
        text.textContent = cell.textContent; pair.append(text);
      }
      tip.append(pair);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), w = document.documentElement.clientWidth, h = window.innerHeight;
    const right = event.clientX + 16, below = event.clientY + 12;
    tip.style.left = Math.max(4, right + box.width > w ? event.clientX - 16 - box.width : right) + "px";
    tip.style.top = Math.max(4, Math.min(below, h - box.height - 4)) + "px";
  };
  for (const svg of new Set(lines.map(line => line.svg))) {
    svg.addEventListener("pointermove", event => {
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = null, least = Infinity;
      for (const line of lines) if (line.svg === svg) for (const [i, [x, y]] of line.at) {
        const far = Math.hypot(x - p.x, (y - p.y) / 2);
        if (least > far) { least = far; best = [line.k, i]; }
      }
      if (best) show(event, ...best);
    });
    svg.addEventListener("pointerleave", clear);
  }
  addEventListener("scroll", clear, {passive: true});
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details.print")) d.open = true; });
})();
"""


def _document(title: str, body: str) -> str:
    """The page around its parts.  The policy allows our own script, by its hash, and nothing from anywhere else."""
    own = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><link rel="icon" href="data:,"/>'
        f"<title>{_text(title)} – ffgb report</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}<footer>Written by ffgb {__version__}. This page is one file: it loads nothing, and can be "
        f"mailed or printed.</footer></main><script>{SCRIPT}</script></body></html>\n"
    )
