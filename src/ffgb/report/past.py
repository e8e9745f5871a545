"""What is read: runs as they were written down."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias, final

from ffgb.errors import FFGBError, command
from ffgb.report.judged import Judged

Values: TypeAlias = Sequence[float | None]

POINTS, POINTS_OF_ALL = 160, 480
"""Rounds that are drawn of a run, about, and of all runs of a comparison."""
MEASURES = ("accuracy", "rmse", "concordance")
"""What models are judged by beside their losses."""
RISING = ("accuracy", "concordance")
"""Of these, the more the better."""
COSTS = ("parameters", "models", "bytes")


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
    told: tuple[str, ...]
    """How clients' columns differ, in sentences."""
    apart: tuple[tuple[str, Values], ...]
    """Columns whose means differ most between clients, and those means, in standard deviations of all rows."""
    secure: str = ""
    """What masks have hidden, in a sentence; empty if nothing."""
    sent: tuple[Mapping[str, Any], ...] = ()
    """Every kind of message that a client sent."""
    judged: Judged | None = None
    """How well the model fits rows that were held out, if they were here."""
    effects: Mapping[str, Any] | None = None
    """What `ffgb explain` found."""
    worth: Mapping[str, Any] | None = None
    """What `ffgb worth` found."""

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
    def used(self) -> float:
        """Rounds without those at the end that changed nothing."""
        used = finite((self.summary or {}).get("rounds_used"))
        return self.rounds if used is None else used

    @property
    def few(self) -> bool:
        """So few rounds that a table says more than curves."""
        return self.rounds <= 2

    @property
    def planned(self) -> int | None:
        """Exchanges that were asked for."""
        if isinstance(exchanges := self.config.get("exchanges"), int):
            return exchanges
        return rounds if isinstance(rounds := self.config.get("rounds"), int) else None

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", "ffgb"))

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, without folders: they are this machine's, and the page may go elsewhere."""
        found = {
            name: value
            for name, value in self.config.items()
            if name not in ("versions", "asked", "because", "exchanges")
        }
        if isinstance(data := found.get("data"), list):
            found["data"] = [_file(name) for name in data]
        if isinstance(hashes := found.get("sha256"), dict):
            found["sha256"] = [f"{_file(name)} {str(value)[:12]}" for name, value in hashes.items()]
        return found

    @property
    def data(self) -> str:
        """What it was trained on: the name of a set, or names of files."""
        names = self.settings.get("data")
        if not isinstance(names, list):
            return _file(names)
        return f"{len(names):,} files ({', '.join(names[:2])}, …)" if len(names) > 3 else ", ".join(names)

    @property
    def files(self) -> str:
        """The same where there is little room."""
        names = self.settings.get("data")
        return f"{len(names):,} files" if isinstance(names, list) and len(names) > 1 else self.data

    @property
    def hashes(self) -> list[str]:
        """Of the files it was trained on, in any order; nothing if they are not all known."""
        names, found = self.config.get("data"), self.config.get("sha256")
        if not isinstance(names, list) or not isinstance(found, dict) or not all(name in found for name in names):
            return []
        return sorted(str(found[name]) for name in names)

    @property
    def rows(self) -> tuple[str, ...]:
        """The same for runs of the same data: files count by their content, whatever they are called."""
        return (str(self.config.get("target")), *(self.hashes or [str(self.config.get("data"))]))

    @property
    def versions(self) -> dict[str, Any]:
        found = self.config.get("versions")
        return found if isinstance(found, dict) else {}

    @property
    def score(self) -> str:
        """The column that says how good the function is: on test rows, if there are any."""
        names = (*(f"{part}_{name}" for part in ("test", "train") for name in MEASURES), "test_loss")
        return next((name for name in names if self.last(name) is not None), "train_loss")

    @property
    def sampled(self) -> bool:
        """Not all clients take part in a round."""
        return self.config.get("participation") not in (None, self.config.get("clients"))

    @property
    def seconds(self) -> float | None:
        total = finite((self.summary or {}).get("seconds_total"))
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


def read(path: Path, name: str, most: int) -> Past:
    config = _content(path / "config.json")
    if config is None:
        raise FFGBError(f"{path} holds no run; name a folder that {command('train', out=True)} has written")
    lines = _lines(path)
    columns = _columns(lines)
    summary = _content(path / "summary.json")
    if summary is not None and summary.get("rounds") != len(lines):
        summary = None  # more rounds were asked for since
    known, found = _clients(path), dict[str, Any]()
    if summary is not None:
        found = {"effects": _content(path / "effects.json"), "worth": _content(path / "worth.json")}
        found["judged"] = Judged.read(path)
    return Past(name, config, columns, _drawn(columns, most), summary, *known, **found)


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """The columns of metrics.jsonl, with costs and seconds as `Past` has them."""
    names = dict.fromkeys(key for line in lines for key in line)  # some notes are not made in every round
    columns: dict[str, Values] = {key: [finite(line.get(key)) for line in lines] for key in names}
    for key in COSTS:
        nothing = [None] * len(lines)
        both = zip(columns.get(f"{key}_up", nothing), columns.get(f"{key}_down", nothing), strict=True)
        columns[key] = [None if up is None or down is None else up + down for up, down in both]
    columns["round"] = [float(t) for t in range(1, len(lines) + 1)]
    setup = finite(lines[0].get("setup_seconds")) or 0.0
    taken = (finite(line.get("seconds")) or 0.0 for line in lines)
    columns["seconds"] = list(accumulate(taken, initial=setup))[1:]
    return columns


def _content(file: Path) -> dict[str, Any] | None:
    """What a file of the run says; None if there is none."""
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error
    if not isinstance(content, dict):
        raise FFGBError(f"{file} was not written by ffgb")
    return content


def _lines(path: Path) -> list[dict[str, Any]]:
    file = path / "metrics.jsonl"
    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    except FileNotFoundError:
        lines = []
    except (OSError, ValueError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error
    if not lines:
        raise FFGBError(
            f"the run in {path} has no finished round to report on; go on with: {command('train', resume=True)}"
        )
    if not all(isinstance(line, dict) for line in lines):
        raise FFGBError(f"{file} was not written by ffgb")
    return lines


def _clients(
    path: Path,
) -> tuple[
    tuple[str, ...], tuple[Held, ...] | None, tuple[str, ...], tuple[tuple[str, Values], ...], str, tuple[Any, ...]
]:
    """Names of classes, what is known of each client (None if nothing was written down), how columns differ, what
    masks have hidden, and what clients sent: as `Past` has them."""
    file = path / "clients.json"
    if not file.exists():
        return (), None, (), (), "", ()
    try:
        content = json.loads(file.read_text())
        classes = tuple(str(c) for c in content["classes"])
        clients = tuple(_held(client, len(classes)) for client in content["clients"])
        apart = tuple((str(c["name"]), tuple(finite(v) for v in c["means"])) for c in content.get("columns") or ())
        told = tuple(str(sentence) for sentence in content.get("told") or ())
        sent = tuple(dict(message) for message in content.get("sent") or ())
        return classes, clients, told, apart, str(content.get("secure") or ""), sent
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error


def _held(client: Mapping[str, Any], classes: int) -> Held:
    def numbers(name: str) -> dict[str, float]:
        found = {key: finite(value) for key, value in (client.get(name) or {}).items()}
        return {key: value for key, value in found.items() if value is not None}

    labels = tuple(finite(n) or 0.0 for n in client.get("labels") or ())
    fits = classes > 0 and len(labels) == classes
    name, points = str(client["name"]), finite(client.get("points"))
    return Held(name, points, numbers("train"), numbers("test"), labels if fits else (), numbers("target"))


def _file(name: object) -> str:
    """A file's name without its folder."""
    return Path(str(name)).name


def finite(value: object) -> float | None:
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


def run_names(runs: Sequence[Path]) -> list[str]:
    """Folders' names, with those above them where that is needed to tell runs apart.

    >>> run_names([Path("/a/ffgb/0"), Path("/a/fedavg/0")])
    ['ffgb/0', 'fedavg/0']
    """
    parts = [path.resolve().parts[1:] or ("/",) for path in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            break
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]
