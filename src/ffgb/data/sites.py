"""Sites that see only their own file: what one says about itself, what all agree on, and how one answers.

A site is two clients: one with its training rows, and one with the rows it holds out, which only reports.  Everything
here is the same for every network; `engines/flower.py` moves it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core.survey import Surveyed
from ffgb.data import Dataset
from ffgb.data.files import Bounded, Columns, describe_site, label_counts, load_sites, settle
from ffgb.data.preprocess import NUMBER, RARE, Said, Table
from ffgb.data.reading import PLAIN, Reading
from ffgb.data.schema_file import CATEGORY, SchemaFile
from ffgb.data.survey import Counts, even, surveyed, without_counts
from ffgb.errors import FFGBError
from ffgb.features.tables import LEAST
from ffgb.federation.host import Holding, Resident
from ffgb.files import content_hash
from ffgb.privacy.identity import Identity
from ffgb.protocol.codec import Expected, Message, decode, encode

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
    """Rows that all sites together must have of a category to name it."""
    reading: Reading = PLAIN
    """How its file is read."""
    bounded: Bounded | None = None
    """Rows as a private training needs them; None: it is none."""
    content: str | None = None
    """The hash of the file that its owner agreed to send sums of; None: whatever is in the file."""

    def describe(self) -> Columns:
        """What it knows of its file: how many rows, which classes, and of columns what preprocess.py says."""
        said = describe_site(
            *(self.path, self.target, self.task),
            categories=self.categories,
            reading=self.reading,
            bounded=self.bounded,
        )
        schema = self.reading.schema
        return said if self.bounded is None or schema is None else by_schema(said, schema, self.target)

    def labels(self) -> dict[str, int]:
        """Rows of each class; none if the target is a number to predict."""
        return label_counts(self.path, self.target, self.task, self.reading)

    def load(self, schema: Schema, seed: int) -> Dataset:
        """Its rows, as all have agreed to see them."""
        found = load_sites(
            [self.path],
            self.target,
            seed=seed,
            task=schema.task,
            classes=schema.classes or None,
            table=schema.table,
            reading=self.reading,
            quiet=True,
            bounded=self.bounded,
        )
        self._refuse_change()
        return found

    def _refuse_change(self) -> None:
        """Refuse rows that the owner has not agreed to: this follows the reading of the file."""
        if self.content is not None and content_hash(self.path) != self.content:
            raise FFGBError(
                f"{self.path.name} has changed since its owner agreed; start ffgb client again, and agree to the file "
                "as it is now"
            )

    def move_in(
        self,
        schema: Schema,
        seed: int,
        identity: Callable[[int], Identity] | None = None,
        secret: bytes = b"",
    ) -> Resident:
        """Its clients: one that trains and, if rows are held out, one that only reports.

        Draws of rows depend on the site's secret.
        """
        i, dataset = schema.names.index(self.name), self.load(schema, seed)
        if schema.counted and len(dataset.x) != schema.rows[i]:
            raise FFGBError(
                f"{self.path.name} has {len(dataset.x)} training rows now and had {schema.rows[i]} when training began"
            )
        clients = {i: Holding(dataset.x, dataset.y)}
        if len(dataset.x_test):
            # those that only report come after all that train, for sites that have one
            before = sum(1 for rows in schema.test_rows[:i] if rows)
            clients[len(schema.names) + before] = Holding(dataset.x_test, dataset.y_test)
        return Resident(clients, identity, secret)

    def surveyed(self, said: Columns | None = None, least: int = LEAST) -> Surveyed:
        """What it answers from, when sites are asked about their files."""
        found = surveyed(said or self.describe(), self.labels(), self.rare, least)
        self._refuse_change()
        return found


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
    counted: bool = True
    """The rows of each site are known; otherwise only their sums are, which are dealt out evenly."""

    def with_counts(self, counts: Counts) -> Schema:
        """Where only the sums of rows are known."""
        holding = [bool(rows) for rows in self.test_rows]
        test = iter(even(counts.test_rows, max(sum(holding), 1)))
        tests = tuple(next(test) if some else 0 for some in holding)
        return replace(self, rows=even(counts.rows, len(self.names)), test_rows=tests, counted=False)

    @staticmethod
    def of(
        described: Mapping[str, Columns],
        target: str | None = None,
        task: str | None = None,
        rare: int = RARE,
        least: int = LEAST,
    ) -> Schema:
        """From what sites say about themselves, by name: an FFGBError that names the site where it does not fit."""
        names = tuple(sorted(described))
        some = [described[name] for name in names]
        table, classes, task, told = settle(names, some, target, task, rare, least)
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


def by_schema(said: Columns, schema: SchemaFile, target: str | None) -> Columns:
    """The same with nothing that follows from rows, but how many there are: kinds and classes are those of the schema.

    Whether all values of a column are missing, or those of a target are whole, would tell of a single row.
    """
    kinds, rule = schema.kinds, schema.columns.get(target or schema.target or "")
    columns = {name: Said(kinds.get(name, NUMBER), 0, 0, 0.0, {}) for name in said.columns}
    if rule is not None and rule.type == CATEGORY:
        return replace(said, columns=columns, kind="text", classes=tuple(sorted(rule.categories)))
    return replace(said, columns=columns, kind="numbers", classes=())


def tests_of(schema: Schema) -> int:
    """How many clients only report."""
    return sum(1 for rows in schema.test_rows if rows)


@final
@dataclass(frozen=True)
class Met:
    """What a site has said of itself."""

    columns: Columns
    private: bool = False
    """Without its numbers of rows: it takes part in secure totals alone."""
    labelled: bool = False
    """Its target may be a class."""
    key: str = ""
    """Its public key (DER), in hexadecimal digits."""


def hello(site: Site, said: Columns | None = None, *, private: bool = False, key: str = "") -> bytes:
    """What a site says when it is asked who it is: of its rows how many there are, or, if it is `private`, nothing."""
    columns = said or site.describe()
    described = asdict(without_counts(columns, rows=not private))
    described["columns"] = list(described["columns"].items())  # in their order, which names in a header lose
    more = {"private": private, "labelled": bool(columns.classes), "key": key}
    return encode(Message("hello", values={"name": site.name, "columns": described, **more}))


def met(data: bytes) -> tuple[str, Met]:
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
    private, labelled, key = (said.get(word) for word in ("private", "labelled", "key"))
    if type(private) is not bool or type(labelled) is not bool or not isinstance(key, str) or len(key) > 1000:
        raise FFGBError("a site described itself in a way that is not understood; upgrade all sites")
    return name, Met(columns, private, labelled, key)
