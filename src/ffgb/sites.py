"""Sites that see only their own file: what one says about itself, what all agree on, and how one answers.

A site is two clients: one with its training rows, and one with the rows it holds out, which only reports.  Everything
here is the same for every network; `engines/flower.py` moves it.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from threadpoolctl import threadpool_limits

from ffgb.aggregates import Statistic
from ffgb.algorithms import Algorithm
from ffgb.data import Dataset
from ffgb.data.files import Columns, describe_site, load_sites, settle
from ffgb.data.preprocess import RARE, Said, Table
from ffgb.engines import Engine
from ffgb.engines.host import Host
from ffgb.engines.local import Holding
from ffgb.errors import FFGBError
from ffgb.features import FeatureMap
from ffgb.functions import Family
from ffgb.geometry import Geometry
from ffgb.recipes import KINDS
from ffgb.wire import QUESTIONS, Expected, Message, Sent, decode, encode, what

SITES_FILE = "sites.json"
"""In the run directory: the sites that a run began with, what they agreed on, and the options that were given."""


@final
@dataclass(frozen=True)
class Site:
    """Where a site's rows are, and by what name others know it."""

    name: str
    path: Path
    target: str | None = None
    task: str | None = None
    categories: tuple[str, ...] = ()
    """Columns that are text, whatever they look like."""
    rare: int = RARE
    """Rows that it must have of a category before it names it."""

    def describe(self) -> Columns:
        """What it says about its file: how many rows, which classes, and of columns what preprocess.py says."""
        return describe_site(self.path, self.target, self.task, categories=self.categories, rare=self.rare)

    def load(self, schema: Schema, seed: int) -> Dataset:
        """Its rows, as all have agreed to see them."""
        return load_sites(
            [self.path],
            self.target,
            seed=seed,
            task=schema.task,
            classes=schema.classes or None,
            table=schema.table,
        )

    def move_in(self, schema: Schema, seed: int) -> Resident:
        """Its clients: one that trains and, if rows are held out, one that only reports."""
        i, dataset = schema.names.index(self.name), self.load(schema, seed)
        if len(dataset.x) != schema.rows[i]:
            raise FFGBError(
                f"{self.path.name} has {len(dataset.x)} training rows now and had {schema.rows[i]} when training began"
            )
        clients = {i: Holding(dataset.x, dataset.y)}
        if len(dataset.x_test):
            # those that only report come after all that train, for sites that have one
            before = sum(1 for rows in schema.test_rows[:i] if rows)
            clients[len(schema.names) + before] = Holding(dataset.x_test, dataset.y_test)
        return Resident(clients)


@final
@dataclass(frozen=True)
class Schema:
    """What all sites agree on."""

    names: tuple[str, ...]
    """Of the sites, in the order of the clients."""
    table: Table | None
    """How points come from raw columns; None if they are images."""
    classes: tuple[str, ...]
    task: str
    shape: tuple[int, ...]
    """Of a point."""
    rows: tuple[int, ...]
    """Training rows of each site."""
    test_rows: tuple[int, ...]
    outputs: int
    told: tuple[str, ...] = ()
    """What is to be told of columns that differ."""

    @staticmethod
    def of(
        described: Mapping[str, Columns], target: str | None = None, task: str | None = None, rare: int = RARE
    ) -> Schema:
        """From what sites say about themselves, by name: an FFGBError that names the site where it does not fit."""
        names = tuple(sorted(described))
        some = [described[name] for name in names]
        table, classes, task, told = settle(names, some, target, task, rare)
        shape = some[0].shape if table is None else (len(table.names),)
        rows, test_rows = (tuple(getattr(d, part) for d in some) for part in ("rows", "test_rows"))
        return Schema(names, table, classes, task, shape, rows, test_rows, some[0].outputs, told)

    def dataset(self) -> Dataset:
        """A set of this form without values, for whoever has none of the rows: of a row it says whose it is."""
        n, m = sum(self.rows), sum(self.test_rows)
        x = np.broadcast_to(np.float32(0.0), (n + m, *self.shape))
        kind = np.int64(0) if self.classes else np.float64(0.0)
        y = np.broadcast_to(kind, (n + m,) if self.outputs == 1 or self.classes else (n + m, self.outputs))
        who = np.arange(len(self.names), dtype=np.uint16 if len(self.names) < 2**16 else np.int64)
        return Dataset(
            *("sites", self.task, x[:n], y[:n], x[n:], y[n:], self.classes),
            columns=() if self.table is None else self.table.names,
            image=self.table is None,
            table=self.table,
            sites=self.names,
            site=np.repeat(who, self.rows),
            site_test=np.repeat(who, self.test_rows),
            told=self.told,
        )

    def to_json(self) -> str:
        table = None if self.table is None else self.table.to_json()
        return json.dumps({**asdict(self), "table": table}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Schema:
        try:
            values = json.loads(text)
            table = None if values["table"] is None else Table.from_json(values["table"])
            made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return Schema(**{**made, "table": table})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FFGBError(f"what the sites agreed on cannot be read ({error}); upgrade all sites") from error


@final
class Resident:
    """Clients at one place, and how they come back after the process that held them has ended."""

    def __init__(self, clients: Mapping[int, Holding]) -> None:
        self.host = Host()
        for i, holding in clients.items():
            list(self.host.answers(holding.message(i), [i]))

    def answer(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        """Its clients' answers, of those among these."""
        mine = [i for i in clients if i in self.host.clients]
        return dict(self.host.answers(data, mine))

    def snapshot(self) -> dict[str, bytes]:
        """What the clients have that is not in the file."""
        if self.host.setup is None:
            return {}
        states = {f"client {i}": encode(c.snapshot()) for i, c in self.host.clients.items() if c.version >= 0}
        return {"setup": self.host.setup, **states}

    def restore(self, kept: Mapping[str, bytes]) -> None:
        if "setup" not in kept:
            return
        self.host.remember(kept["setup"])
        for i, client in self.host.clients.items():
            if (state := kept.get(f"client {i}")) is not None and self.host.job is not None:
                client.restore(self.host.job, decode(state))


def tests_of(schema: Schema) -> int:
    """How many clients only report."""
    return sum(1 for rows in schema.test_rows if rows)


def hello(site: Site) -> bytes:
    """What a site says when it is asked who it is."""
    described = asdict(site.describe())
    described["columns"] = list(described["columns"].items())  # in their order, which names in a header lose
    return encode(Message("hello", values={"name": site.name, "columns": described}))


def met(data: bytes) -> tuple[str, Columns]:
    """Who says hello, checked."""
    message = decode(data, Expected(("hello",), forms=None))
    said = message.values
    try:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said["columns"].items()}
        fields["columns"] = {str(k): Said(**v) for k, v in fields["columns"]}
        name, columns = said["name"], Columns(**fields)
        if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
            raise FFGBError("its name is none")
        columns.check()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FFGBError(f"a site described itself in a way that is not understood ({error})") from error
    return name, columns


# What a site controls


@final
class Rehearsal(Engine):
    """A site alone with itself: it answers its own questions, and writes down what would have left it."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.once: list[Sent] = []
        self.each: list[Sent] = []
        self.kinds: set[str] = set()

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        question = decode(data)
        self.kinds |= asked_for(question)
        with threadpool_limits(limits=1):
            answers = self.resident.answer(data, clients)
        for i, data in answers.items():
            sent = Sent.of(question, decode(data), held_out=i > 0)
            (self.once if sent.once else self.each).append(sent)
        return answers

    def close(self, *, at_once: bool = False) -> None:
        pass


@final
class Attendant:
    """A site that answers a server: it holds the site's clients, its owner's consent, and its log.

    Clients live as long as a run: what they know of another would be wrong in this one.
    """

    def __init__(
        self,
        site: Site,
        agreed: frozenset[str] | None = None,
        log: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Without a list of what was agreed to, everything is answered; `say` is told of every message."""
        self.site, self.agreed, self.log, self.say = site, agreed, log, say
        self.run: Any = None
        self.schema = b""
        self.resident: Resident | None = None

    def answer(self, data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What to say to a message of a server's: who this is, what it lacks to answer, or its clients' answers."""
        try:
            return self._answer(data, said)
        except FFGBError as error:
            why = str(error)
        except Exception:  # a defect: the owner sees where, the server that there was one
            self.say(traceback.format_exc())
            why = DEFECT
        self._log([_line("out", "failed", text=why)])
        return {}, {"failed": why}

    def _answer(self, data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        if said.get("hello"):
            self.say("the server asks who is here")
            said_hello = hello(self.site)
            self._log([_line("in", "who is here"), written_down(said_hello, "out")])
            return {"hello": said_hello}, {}
        if said["run"] != self.run:
            self.run, self.resident = said["run"], None
        if "schema" in data:
            self.schema = data["schema"]
            self._log([_line("in", "what all sites agreed on", bytes=len(self.schema))])
        if hashlib.sha256(self.schema).hexdigest() != said["schema"]:
            self._log([_line("out", "needs what all sites agreed on")])
            return {}, {"needs": "schema"}
        if self.resident is None:
            self.resident = self.site.move_in(Schema.from_json(self.schema.decode()), int(said["seed"]))
        clients, question = [int(i) for i in said["clients"]], decode(data["message"], QUESTIONS)
        if (strange := self._strange(question)) is None:
            with threadpool_limits(limits=1):
                answers = {
                    i: self._without_traces(a) for i, a in self.resident.answer(data["message"], clients).items()
                }
        else:
            text = f"this site has not agreed to {strange}; its owner sees what is asked for: ffgb client --dry-run"
            refusal = Message("error", question.round, values={"text": text})
            answers = {i: encode(replace(refusal, client=i)) for i in clients}
        self._log([written_down(data["message"], "in"), *(written_down(a, "out") for a in answers.values())])
        training = question.kind == "train"  # of round t it is asked when t rounds are over
        when = f"round {question.round + training}" if question.round or training else "set up"
        self.say(f"{when}: {what(question)}, {sum(map(len, answers.values())):,} bytes sent")
        return {str(i): answer for i, answer in answers.items()}, {}

    def _without_traces(self, answer: bytes) -> bytes:
        """A defect's traceback is for the owner: it has paths in it, and may have values."""
        message = decode(answer)
        if message.kind != "error" or not message.values.get("defect"):
            return answer
        self.say(str(message.values["text"]))
        return encode(replace(message, values={"text": DEFECT}))

    def _strange(self, question: Message) -> str | None:
        return None if self.agreed is None else agrees(question, self.agreed)

    def _log(self, lines: Iterable[str]) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.writelines(lines)


DEFECT = "an error at the site; its owner sees more"
MATTERS = (Statistic, Algorithm, Family, FeatureMap, Geometry)
"""What decides on what leaves a site.  The loss does not: it follows from the classes of all sites together."""


def asked_for(question: Message) -> set[str]:
    """Names of what a question is about: statistics; and the algorithm, the family and the maps of a job."""
    found: set[str] = set()

    def walk(recipe: Any) -> None:
        if isinstance(recipe, list):
            for part in recipe:
                walk(part)
        elif isinstance(recipe, dict):
            if isinstance(recipe.get("kind"), str):
                found.add(recipe["kind"])
            for part in recipe.values():
                walk(part)

    walk(question.values.get("recipe"))
    return {name for name in found if issubclass(KINDS.get(name, Statistic), MATTERS)}


def agrees(question: Message, agreed: frozenset[str]) -> str | None:
    """What a question is about that its site has not agreed to; None if it has to all of it."""
    strange = sorted(asked_for(question) - agreed)
    return strange[0] if strange else None


def written_down(data: bytes, way: str) -> str:
    """A line of a site's own log: which message came or went, and its form; never a value."""
    message = decode(data)
    arrays = {name: [str(a.dtype), list(a.shape)] for name, a in sorted(message.tensors.items())}
    return _line(way, message.kind, round=message.round, client=message.client, bytes=len(data), arrays=arrays)


def _line(way: str, kind: str, **more: Any) -> str:
    return json.dumps({"time": time.time(), "way": way, "kind": kind, **more}) + "\n"
