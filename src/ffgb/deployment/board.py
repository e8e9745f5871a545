"""Boards of a server and of a site: they collect what is going on, for the status page.

Many threads write to a board, and a page reads it (`snapshot`).  A board stays small, however many messages there are:
it counts by question, thins rounds out and keeps the last events.  Texts come from outside, so it shortens them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, final

from ffgb.protocol.codec import shown
from ffgb.report.past import POINTS, finite

EVENTS = 200
"""Events that a board keeps."""
ENTRIES = 200
"""Different questions and refusals that a board keeps, each."""
SITES = 1000
ARRAYS = 50
"""Arrays of a message whose form is kept."""
OTHERS = "others"
"""Stands for all names beyond those that a board keeps."""
COLUMNS = (
    "round", "train_loss", "test_loss", "train_accuracy", "test_accuracy", "train_rmse", "test_rmse",
    "train_concordance", "test_concordance", "participants", "seconds",
)  # fmt: skip
"""The columns of metrics.jsonl that a board keeps."""

PARTS: Mapping[str, str] = {"to train with": "train", "held out": "test"}
"""A site's own rows, and what the columns of metrics.jsonl call them."""
SCORES = ("loss", "accuracy", "rmse", "concordance")

Entry = TypeVar("Entry")


@final
@dataclass(slots=True)
class _Site:
    fingerprint: str = ""
    rows: int | None = None
    heard: float | None = None
    away: str | None = None


@final
@dataclass(slots=True)
class _Asked:
    """A question that a server asked."""

    times: int = 0
    sites: int = 0
    """How many sites it was asked the last time."""
    bytes_down: int = 0
    bytes_up: int = 0
    last: float = 0.0


@final
@dataclass(slots=True)
class _Received:
    """A question that a site was asked."""

    times: int = 0
    when: str = ""
    bytes: int = 0
    last: float = 0.0


@final
@dataclass(slots=True)
class _Left:
    """Answers to a question that left a site."""

    times: int = 0
    first_when: str = ""
    last_when: str = ""
    arrays: list[dict[str, Any]] = field(default_factory=list)
    """Name, type and shape of each in the last answer."""
    more_arrays: int = 0
    smallest: int = 0
    largest: int = 0
    bytes: int = 0
    last: float = 0.0


@final
class _Diary:
    """What goes on now, the last events, and refusals: each once, with a count.  Its board holds the lock."""

    def __init__(self) -> None:
        self._began = self._since = time.time()
        self._state = "starting"
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._refusals: dict[tuple[str, ...], tuple[int, float]] = {}
        self._refused = 0

    def state(self, text: str) -> None:
        text = shown(text)
        if text != self._state:
            self._state, self._since = text, time.time()
            self.event(text)

    def event(self, text: str) -> None:
        self._events.append((time.time(), text))

    def refused(self, *texts: str) -> None:
        key = tuple(map(shown, texts))
        times, _ = self._refusals.pop(key, (0, 0.0))
        if not times:
            self.event(f"refused: {': '.join(key)}")
        self._refusals[key] = times + 1, time.time()
        self._refused += 1
        if len(self._refusals) > ENTRIES:
            del self._refusals[next(iter(self._refusals))]  # the one that has not come for longest

    def snapshot(self, *names: str) -> dict[str, Any]:
        """The texts of a refusal get these names."""
        refusals = [
            {**dict(zip(names, texts, strict=True)), "times": times, "last": last}
            for texts, (times, last) in reversed(self._refusals.items())
        ]
        return {
            "time": time.time(),
            "began": self._began,
            "state": self._state,
            "since": self._since,
            "refused": self._refused,
            "refusals": refusals,
            "events": [{"time": when, "text": text} for when, text in self._events],
        }


@final
class _Rounds:
    """Lines of rounds.  Once there are many, every other one is dropped, again and again: curves need no more."""

    def __init__(self) -> None:
        self._kept: list[dict[str, float | None]] = []
        self._last: dict[str, float | None] = {}
        self._every = 1
        self.count = 0

    def add(self, line: Mapping[str, Any]) -> None:
        self._last = {name: finite(line.get(name)) for name in COLUMNS}
        if self.count % self._every == 0:
            self._kept.append(self._last)
        self.count += 1
        if len(self._kept) > 2 * POINTS:
            del self._kept[1::2]
            self._every *= 2

    def lines(self) -> list[dict[str, float | None]]:
        """Those that are kept, and always the last."""
        return [*self._kept, self._last] if self._kept and self._kept[-1] is not self._last else [*self._kept]


@final
class ServerBoard:
    """What goes on at a server.

    >>> board = ServerBoard("runs/federation", 3)
    >>> board.site("north", rows=120)
    >>> board.state("round 1 of 10")
    >>> snapshot = board.snapshot()
    >>> snapshot["state"], snapshot["sites"][0]["rows"]
    ('round 1 of 10', 120)
    """

    def __init__(self, out: str, clients: int) -> None:
        self._out, self._clients = out, clients
        self._lock = threading.Lock()
        self._diary, self._rounds = _Diary(), _Rounds()
        self._sites: dict[str, _Site] = {}
        self._asked: dict[str, _Asked] = {}

    def state(self, text: str) -> None:
        """What is going on now, in a few words."""
        with self._lock:
            self._diary.state(text)

    def event(self, text: str) -> None:
        """Something happened that is no refusal."""
        with self._lock:
            self._diary.event(shown(text))

    def site(self, name: str, fingerprint: str = "", rows: int | None = None) -> None:
        """A site is known: the fingerprint of its key and its number of rows, as far as they are."""
        with self._lock:
            site = self._site(name)
            site.fingerprint, site.rows = (
                shown(fingerprint) or site.fingerprint,
                site.rows if rows is None else int(rows),
            )

    def heard(self, name: str) -> None:
        """A site was heard now.  This is called for every request, so a known site takes no lock."""
        site = self._sites.get(name)
        if site is None:
            with self._lock:
                site = self._site(name)
        site.heard = time.time()

    def away(self, name: str, why: str) -> None:
        """The training goes on without this site."""
        with self._lock:
            site = self._site(name)
            if site.away is None:
                self._diary.event(f"{shown(name)} is away: {shown(why)}")
            site.away = shown(why)

    def back(self, name: str) -> None:
        """A site that was away takes part again."""
        with self._lock:
            site = self._site(name)
            if site.away is not None:
                site.away = None
                self._diary.event(f"{shown(name)} is back")

    def asked(self, question: str, sites: int, bytes_down: int, bytes_up: int) -> None:
        """So many sites were asked a question: bytes sent to all of them, and bytes of all answers."""
        with self._lock:
            asked = _entry(self._asked, question, _Asked)
            asked.times, asked.sites, asked.last = asked.times + 1, sites, time.time()
            asked.bytes_down, asked.bytes_up = asked.bytes_down + int(bytes_down), asked.bytes_up + int(bytes_up)

    def measured(self, line: Mapping[str, Any]) -> None:
        """A round is over: its line of metrics.jsonl."""
        with self._lock:
            self._rounds.add(line)

    def refused(self, text: str) -> None:
        """The server refused something, and warned of it."""
        with self._lock:
            self._diary.refused(text)

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON would have it.  Times are seconds since the epoch."""
        with self._lock:
            return {
                **self._diary.snapshot("text"),
                "out": self._out,
                "clients": self._clients,
                "sites": [{"name": name, **asdict(site)} for name, site in self._sites.items()],
                "asked": [{"question": question, **asdict(asked)} for question, asked in self._asked.items()],
                "rounds": self._rounds.count,
                "lines": self._rounds.lines(),
            }

    def _site(self, name: str) -> _Site:
        before = len(self._sites)
        site = _entry(self._sites, name, _Site, SITES)
        if len(self._sites) > before:
            self._diary.event(f"{shown(name)} is here for the first time")
        return site


@final
class SiteBoard:
    """What goes on at a site: above all, what left it.

    >>> board = SiteBoard("north", "ffgb.example.org:9443")
    >>> board.left("increment", "round 1", [("weights", "float32", (40, 3))], 1200)
    >>> board.snapshot()["left"][0]["bytes"]
    1200
    """

    def __init__(self, name: str, server: str) -> None:
        self._name, self._server = shown(name), shown(server)
        self._lock = threading.Lock()
        self._diary = _Diary()
        self._connected = False
        self._asked: dict[str, _Received] = {}
        self._left: dict[str, _Left] = {}
        self._own: dict[str, Mapping[str, Any]] = {}
        self._own_rounds: dict[int, dict[str, float | None]] = {}

    def state(self, text: str) -> None:
        """What is going on now, in a few words."""
        with self._lock:
            self._diary.state(text)

    def own(self, scores: Mapping[str, Mapping[str, Any]]) -> None:
        """How good the model is at this site's own rows, which only its owner is shown."""
        with self._lock:
            self._own = {name: dict(line) for name, line in scores.items()}
            for name, line in scores.items():
                self._note(PARTS[name], line)

    def _note(self, part: str, line: Mapping[str, Any]) -> None:
        """A line of the own scores of a round; rounds after it were of another training, or are done again.

        Of very many rounds the last ones are kept.
        """
        t = int(line["round"])
        for later in [other for other in self._own_rounds if other > t]:
            del self._own_rounds[later]
        columns = self._own_rounds.setdefault(t, dict.fromkeys(COLUMNS, None) | {"round": float(t)})
        columns |= {f"{part}_{what}": finite(line[what]) for what in SCORES if what in line}
        if len(self._own_rounds) > 2 * POINTS:
            del self._own_rounds[min(self._own_rounds)]

    def connected(self, connected: bool) -> None:
        """The server is reached, or is not."""
        with self._lock:
            if connected != self._connected:
                self._connected = connected
                self._diary.event("connected" if connected else "not connected any more")

    def asked(self, question: str, when: str, bytes_in: int) -> None:
        """The server asked a question: before the first round or in one (`when`), in so many bytes."""
        with self._lock:
            asked = _entry(self._asked, question, _Received)
            asked.times, asked.when, asked.last = asked.times + 1, shown(when), time.time()
            asked.bytes += bytes_in

    def left(self, question: str, when: str, arrays: Sequence[tuple[str, str, Sequence[int]]], size: int) -> None:
        """An answer left this site: name, type and shape of its arrays, and its size in bytes."""
        forms = [{"name": shown(name), "dtype": shown(dtype), "shape": [*map(int, shape)]}
                 for name, dtype, shape in arrays[:ARRAYS]]  # fmt: skip
        with self._lock:
            left = _entry(self._left, question, _Left)
            left.smallest = min(left.smallest, size) if left.times else size
            left.largest = max(left.largest, size)
            left.first_when, left.last_when = left.first_when if left.times else shown(when), shown(when)
            left.arrays, left.more_arrays = forms, max(len(arrays) - ARRAYS, 0)
            left.times, left.bytes, left.last = left.times + 1, left.bytes + size, time.time()
            self._diary.event(f"{shown(when)}: {shown(question)}, {size:,} bytes left this site")

    def refused(self, question: str, why: str) -> None:
        """This site did not answer a question."""
        with self._lock:
            self._diary.refused(question, why)

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON would have it.  Times are seconds since the epoch."""
        with self._lock:
            return {
                **self._diary.snapshot("question", "why"),
                "name": self._name,
                "server": self._server,
                "own": {name: dict(line) for name, line in self._own.items()},
                "lines": [dict(self._own_rounds[t]) for t in sorted(self._own_rounds)],
                "connected": self._connected,
                "asked": [{"question": question, **asdict(asked)} for question, asked in self._asked.items()],
                "left": [{"question": question, **asdict(left)} for question, left in self._left.items()],
            }


def _entry(table: dict[str, Entry], name: str, new: Callable[[], Entry], most: int = ENTRIES) -> Entry:
    """The entry of a name in a table; names beyond `most` share one."""
    name = shown(name)
    if name not in table and len(table) >= most:
        name = OTHERS
    return table[name] if name in table else table.setdefault(name, new())
