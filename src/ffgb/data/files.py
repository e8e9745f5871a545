"""Site files: one table, NPZ or SQL file a client, checked so that every mistake in them is named.

A table (reading.py) has a header, columns of numbers or of text, and a target column; preprocess.py makes numbers of
them.  An NPZ file has arrays `x` (n, d), or (n, channels, height, width) for images, and `y` (n,) or (n, c), and
optionally `columns`, the d names.  Rows are counted from 1 below the header.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from ffgb.core.losses.cox import targets_of, times_of
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data.dataset import CLASSIFICATION, HOLDOUT, REGRESSION, TASKS, Dataset, hold_out, hold_out_groups
from ffgb.data.formats import scaled_pixels
from ffgb.data.identifiers import identifiers, looks_like_codes
from ffgb.data.preprocess import NUMBER, RARE, TEXT, Said, Table, agree, describe
from ffgb.data.preprocess import raw as raw_column
from ffgb.data.reading import PLAIN, Reading, bare_name, kind_of, read_frame, refuse_unreadable, unreadable
from ffgb.data.sizes import MOST_COLUMNS, MOST_ROWS, check_npz
from ffgb.data.slips import plain
from ffgb.data.targets import FEW_CLASSES, class_names, encode, infer_task, is_text, target_columns, time_and_event
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.settings import DATA, Setting

log = logging.getLogger("ffgb")

# A site with fewer rows than this keeps all of them for training: a fifth of four rows is none.
TOO_FEW_TO_HOLD_OUT = 5
MOST_CLASSES, MOST_OUTPUTS = 10_000, 10_000
"""Of a site."""
MOST_PIXELS = 10**7
"""Of an image, all channels together."""
_SHOWN = 12


@final
@dataclass(frozen=True, eq=False)
class _Site:
    """One file's rows: images, or raw columns by name; and a target of text or of float64 numbers."""

    path: Path
    images: Array | None
    raw: Mapping[str, Array]
    y: Array
    notes: tuple[str, ...] = ()
    """How the file was read, where that is not plain."""
    times: bool = False
    """The target is a time until an event (core/losses/cox.py)."""

    @property
    def kinds(self) -> Array:
        """What rows are held out by: those with an event are, and those without one."""
        return times_of(self.y)[1].astype(np.float64) if self.times else self.y

    def points(self, table: Table | None) -> Array:
        """Float32 points, as the table that was agreed on makes them."""
        if self.images is not None:
            return self.images
        assert table is not None
        return table(self.raw)


@final
@dataclass(frozen=True)
class Bounded:
    """Rows as differential privacy needs them: what becomes of one does not depend on others.

    Rows are held out by their places, and no category is too rare.  Of a unit (a patient) a file's first rows are used.
    """

    unit: str | None = None
    """The column that says whose a row is."""
    rows: int = 1

    def taken(self, site: _Site) -> _Site:
        """A site without that column, and with so many rows of each unit."""
        if self.unit is None:
            return site
        raw = dict(site.raw)
        values = raw.pop(self.unit, None)
        if values is None:
            raise FFGBError(
                f"{site.path} has no column {self.unit!r}, which {option('unit')} names{_hint(self.unit, list(raw))}"
            )
        kept = pd.Series(values).groupby(values, dropna=False).cumcount().to_numpy() < self.rows
        return dataclasses.replace(site, raw={name: column[kept] for name, column in raw.items()}, y=site.y[kept])


def load_sites(
    paths: Sequence[Path],
    target: str | None = None,
    *,
    seed: int = 0,
    task: str | None = None,
    holdout: float = HOLDOUT,
    classes: Sequence[str] | None = None,
    table: Table | None = None,
    categories: Sequence[str] = (),
    rare: int = RARE,
    least: int = LEAST,
    weights: str | None = None,
    exposure: str | None = None,
    group: str | None = None,
    reading: Reading = PLAIN,
    quiet: bool = False,
    bounded: Bounded | None = None,
) -> Dataset:
    """A data set whose natural clients are the files.

    `reading` says how files are read where that is not found out; how they were read is logged, unless it is `quiet`.
    `weights` is a column that says what each row weighs.  `exposure` is a column e that targets are counts for: the
    rate y/e is learnt, and a row weighs e times as much, which for counts with a log link is an offset of log e.
    `group` is a column that says which rows of a file belong together: they are held out together, or not at all.
    `bounded`: what becomes of a row does not depend on other rows, as differential privacy needs.

    Columns and classes are what the files can agree on, unless the federation has agreed on a `table` and `classes`
    before, as sites that see only their own file must.  Each file holds out its own test rows, and which rows these are
    depends on that file and the seed alone.
    """
    paths = [Path(path) for path in paths]
    task = _task(target, task)
    _check_request(paths, task, holdout)
    task = task if classes is None else CLASSIFICATION
    agreed = () if table is None else table.names
    sites = [_read_site(path, target, task, _kinds(categories, table), reading, agreed) for path in paths]
    sites = [site if bounded is None else bounded.taken(site) for site in sites]
    notes = [note for site in sites for note in site.notes]
    _tell(notes, quiet=quiet)
    sites, masses = _weighed(sites, weights, exposure)
    sites, groups = _grouped(sites, group)
    rare = rare if bounded is None else 1
    names, told = site_names(paths), list[str]()
    if table is None:
        _refuse_no_column(categories, sites)
        _warn_of_identifiers(sites)
        said = [(name, *_form(site)) for name, site in zip(names, sites, strict=True)]
        table, told = _agreed(said, rare, least)
    else:
        _warn_of_missing(names, sites, table)
    if task is None:
        _ask_about_codes(sites, target)
    labels, targets, task = _labels(sites, target, task, classes)
    training, testing = list[_Rows](), list[_Rows]()
    for i, (site, y, mass) in enumerate(zip(sites, targets, masses, strict=True)):
        rows = _Rows(site.points(table), y, np.full(len(y), i), mass, groups[i])
        together = np.arange(len(y)) if bounded is not None else groups[i] if group else None
        train, test = _held_out(site.kinds, holdout, seed, together)
        training.append(rows.taken(train))
        testing.append(rows.taken(test))
    train_rows, test_rows = _joined(training), _joined(testing)
    return Dataset(
        "site files",
        task,
        train_rows.x,
        train_rows.y,
        test_rows.x,
        test_rows.y,
        labels,
        table.names if table is not None else (),
        image=table is None,
        sites=names,
        site=train_rows.site,
        site_test=test_rows.site,
        table=table,
        told=(*notes, *told),
        weights=train_rows.weights if weights or exposure else None,
        weights_test=test_rows.weights if weights or exposure else None,
        group=train_rows.group if group else None,
    )


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows to learn from or to test on: points, targets, the number of their site, and what they weigh."""

    x: Array
    y: Array
    site: Array
    weights: Array
    group: Array

    def taken(self, rows: Array) -> _Rows:
        return _Rows(self.x[rows], self.y[rows], self.site[rows], self.weights[rows], self.group[rows])


def _joined(parts: Sequence[_Rows]) -> _Rows:
    return _Rows(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.site for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.group for part in parts]),
    )


def _check_request(paths: Sequence[Path], task: str | None, holdout: float) -> None:
    if not paths:
        raise FFGBError("no site files were given; name one file a client")
    if task is not None and task not in TASKS:
        raise FFGBError(f"there is no task {task!r}; choose {' or '.join(TASKS)}")
    if not 0 <= holdout < 1:
        raise FFGBError(f"the share of rows held out is {holdout}; give a number from 0 up to, not including, 1")
    seen: dict[Path, Path] = {}
    for path in paths:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise FFGBError(f"{path} is given twice; every client needs a file of its own")


def _refuse_no_column(categories: Sequence[str], sites: Sequence[_Site]) -> None:
    """Refuse categories that no site has as a column."""
    known = {column for site in sites for column in site.raw}
    for name in categories:
        if name not in known:
            hint = _hint(name, sorted(known))
            raise FFGBError(f"{option('categories')} names {name!r}, which is no column to predict from{hint}")


def _warn_of_identifiers(sites: Sequence[_Site]) -> None:
    """Name columns that tell rows apart, and so say nothing about rows to come, or too much about these."""
    if found := identifiers([site.raw for site in sites]):
        several = len(found) > 1
        log.warning(
            "%s %s a different value in every row; if %s, remove %s: a model may learn rows by heart",
            _list(found),
            "have" if several else "has",
            "these are ids" if several else "this is an id",
            "them" if several else "it",
        )


def _ask_about_codes(sites: Sequence[_Site], target: str | None) -> None:
    """Refuse to guess whether many whole numbers are classes or amounts."""
    targets = [site.y for site in sites]
    if looks_like_codes(targets, FEW_CLASSES):
        values = np.unique(np.concatenate(targets))
        raise FFGBError(
            f"the target {target or 'y'!r} has {len(values)} different whole numbers, {values[0]:g} to {values[-1]:g}; "
            f"say {option('task', CLASSIFICATION)} if they are classes, or {option('task', REGRESSION)} if they are "
            "amounts"
        )


def _warn_of_missing(names: Sequence[str], sites: Sequence[_Site], table: Table) -> None:
    """Warn of sites without some columns of the table that was agreed on."""
    for name, site in zip(names, sites, strict=True):
        lacking = [c.name for c in table.columns if site.images is None and c.name not in site.raw]
        if lacking:
            log.warning("%s lacks %s; the values count as missing", name, _list(lacking))


def _weighed(sites: Sequence[_Site], weights: str | None, exposure: str | None) -> tuple[list[_Site], list[Array]]:
    """The sites without the columns of weights and exposures, and what each of their rows weighs."""
    found, masses = [], []
    for site in sites:
        mass, y, raw = np.ones(len(site.y)), site.y, dict(site.raw)
        for setting, name in (("weights", weights), ("exposure", exposure)):
            if name is None:
                continue
            values = raw.pop(name, None)
            if values is None:
                raise FFGBError(f"{site.path} has no column {name!r}, which {option(setting)} names")
            low = 0.0 if setting == "weights" else np.nextafter(0.0, 1.0)
            if is_text(values) or not (np.isfinite(values) & (values >= low)).all():
                kind = "numbers from 0 on" if setting == "weights" else "positive numbers"
                raise FFGBError(f"{site.path}: {option(setting, name)} must have {kind} in every row")
            mass = mass * values
            if setting == "exposure":
                if is_text(y):
                    raise FFGBError(f"{option('exposure')} is for counts, and the target of {site.path} is text")
                y = y / values.reshape(-1, *(1,) * (y.ndim - 1))
        found.append(dataclasses.replace(site, raw=raw, y=y))
        masses.append(mass)
    return found, masses


def _grouped(sites: Sequence[_Site], group: str | None) -> tuple[list[_Site], list[Array]]:
    """The sites without the column of groups, and the group of each of their rows: no two sites share one."""
    if group is None:
        return list(sites), [np.zeros(len(site.y), np.int64) for site in sites]
    found, groups, first = [], list[Array](), 0
    for site in sites:
        raw = dict(site.raw)
        values = raw.pop(group, None)
        if values is None:
            raise FFGBError(
                f"{site.path} has no column {group!r}, which {option('group')} names{_hint(group, list(raw))}"
            )
        gone = np.array([value is None for value in values]) if values.dtype == object else np.isnan(values)
        if gone.any():
            raise FFGBError(
                f"{site.path}: {option('group', group)} must have a value in every row; it has none in row "
                f"{int(np.argmax(gone)) + 1}"
            )
        known = {name: k for k, name in enumerate(dict.fromkeys(values.tolist()), first)}
        groups.append(np.array([known[name] for name in values.tolist()], np.int64))
        first += len(known)
        found.append(dataclasses.replace(site, raw=raw))
    return found, groups


@final
@dataclass(frozen=True)
class Columns:
    """What is known of a site's file before training: sizes, names, and which classes there are."""

    rows: int
    test_rows: int
    shape: tuple[int, ...]
    """Of an image; empty for tables."""
    columns: Mapping[str, Said]
    """What is known of each; none for images."""
    kind: str
    """Of the target: "text", "whole" numbers, or "numbers"."""
    classes: tuple[str, ...] | tuple[float, ...]
    """Its different values, if it may be a class; none if it is certainly a number to predict."""
    outputs: int

    def check(self) -> None:
        """Raise an FFGBError if no file can be like that."""
        sizes = ((self.rows, 1, MOST_ROWS), (self.test_rows, 0, MOST_ROWS), (self.outputs, 1, MOST_OUTPUTS),
                 *((n, 1, MOST_PIXELS) for n in self.shape))  # fmt: skip
        if not all(type(n) is int and low <= n <= high for n, low, high in sizes):
            raise FFGBError("a site's numbers of rows and columns are none")
        if math.prod(self.shape) > MOST_PIXELS:
            raise FFGBError("a site has images that are too large")
        if len(self.shape) != (0 if self.columns else 3) or len(self.columns) > MOST_COLUMNS:
            raise FFGBError("a site has neither images nor a table")
        if self.kind not in ("text", "whole", "numbers") or not all(isinstance(c, str) for c in self.columns):
            raise FFGBError("a site's columns have no names")
        self._check_classes()
        for said in self.columns.values():
            said.check()

    def _check_classes(self) -> None:
        text = self.kind == "text"
        named = (isinstance(c, str) and len(c) <= 1000 if text else type(c) in (int, float) for c in self.classes)
        if len(self.classes) > MOST_CLASSES or not all(named):
            raise FFGBError("a site's classes have no names, or are too many")
        if not text and not all(abs(c) <= 2**53 for c in self.classes):  # type: ignore[arg-type]
            raise FFGBError("a site's classes are no numbers that can be told apart")


def describe_site(
    path: Path,
    target: str | None = None,
    task: str | None = None,
    holdout: float = HOLDOUT,
    categories: Sequence[str] = (),
    reading: Reading = PLAIN,
    bounded: Bounded | None = None,
) -> Columns:
    """What a site knows of its file: of columns what preprocess.py says, of the target its classes."""
    task = _task(target, task)
    site = _read_site(Path(path), target, task, _kinds(categories, None), reading)
    _tell(site.notes)
    kind, known = _may_be_classes(site.y, task)
    site = site if bounded is None else bounded.taken(site)
    train, test = _held_out(site.kinds, holdout, group=None if bounded is None else np.arange(len(site.y)))
    outputs = 1 if site.y.ndim == 1 else int(site.y.shape[1])
    shape, columns = _form(site)
    return Columns(len(train), len(test), shape, columns, kind, tuple(known), outputs)


def _may_be_classes(y: Array, task: str | None) -> tuple[str, list[Any]]:
    """The kind of a target, and its different values if they may be classes."""
    kind, values = "text", np.unique(y)
    if not is_text(y):
        kind = "whole" if y.ndim == 1 and np.all(values == np.round(values)) else "numbers"
    certain = task == CLASSIFICATION or kind == "text"
    return kind, values.tolist() if kind != "numbers" and task != REGRESSION and (
        certain or len(values) <= FEW_CLASSES
    ) else []


def label_counts(
    path: Path, target: str | None = None, task: str | None = None, reading: Reading = PLAIN
) -> dict[str, int]:
    """Rows of each class in a site's file; none if its target is certainly a number to predict."""
    task = _task(target, task)
    site = _read_site(Path(path), target, task, {}, reading)
    if not _may_be_classes(site.y, task)[1]:
        return {}
    values, counts = np.unique(site.y, return_counts=True)
    return dict(zip(class_names(values), counts.tolist(), strict=True))


def _held_out(y: Array, share: float, seed: int = 0, group: Array | None = None) -> tuple[Array, Array]:
    """Rows to train with, and rows held out: value by value where they may be classes.

    A site tells how many before anyone knows what others have, so it must not depend on what is settled later.
    """
    if group is not None:
        return hold_out_groups(group, share if len(y) >= TOO_FEW_TO_HOLD_OUT else 0.0, stream(seed, "holdout"))
    kinds = np.unique(y) if y.ndim == 1 else y
    if y.ndim == 1 and (is_text(y) or (len(kinds) <= FEW_CLASSES and np.all(kinds == np.round(kinds)))):
        y = np.searchsorted(kinds, y).astype(np.int64)
    return hold_out(y, share if len(y) >= TOO_FEW_TO_HOLD_OUT else 0.0, stream(seed, "holdout"))


def settle(
    names: Sequence[str],
    described: Sequence[Columns],
    target: str | None = None,
    task: str | None = None,
    rare: int = RARE,
    least: int = LEAST,
) -> tuple[Table | None, tuple[str, ...], str, tuple[str, ...]]:
    """Table, classes and task that these sites can agree on, as `load_sites` would have read them from all files, and
    what is to be told of columns that differ."""
    task = _task(target, task)
    forms = [(name, said.shape, said.columns) for name, said in zip(names, described, strict=True)]
    table, told = _agreed(forms, rare, least)
    sites = []
    for name, said in zip(names, described, strict=True):
        # of numbers to predict no value is known: any that are certainly none of a class stand for them
        y = np.array(
            said.classes if said.classes else [0.5] if said.kind == "numbers" else np.arange(FEW_CLASSES + 1.0)
        )
        if said.outputs > 1:
            y = np.zeros((1, said.outputs))
        sites.append(_Site(Path(name), None, {}, y))
    numbers = [name for name, said in zip(names, described, strict=True) if not said.classes]
    if task is None and 0 < len(numbers) < len(names):
        log.warning("the target is a number at %s, and so it is for all; --task says otherwise", ", ".join(numbers[:5]))
    classes, _, task = _labels(sites, target, task, None)
    return table, classes, task, tuple(told)


def read_points(path: Path, table: Table | None, reading: Reading = PLAIN) -> Array:
    """A file's rows as float32 points, to predict at; columns that the table does not name are not looked at.

    Without a table the points are images, the array `x` of an NPZ file.
    """
    path = Path(path)
    refuse_unreadable(path)
    if kind_of(path) == "NPZ":
        x, names = _npz_points(_read_npz(path), path)
        if table is None:
            return x
        raw: Mapping[str, Any] = _named(x, names)
    elif table is None:
        raise FFGBError(f"{path} is a table, and the model needs images; give an NPZ file with an array x")
    else:
        kinds = {**reading.kinds, **_kinds((), table)}
        frame, notes = read_frame(path, kinds, reading, [c.name for c in table.columns])
        _tell(notes)
        raw = dict.fromkeys(frame.columns)
    missing = [c.name for c in table.columns if c.name not in raw]
    if missing:
        raise FFGBError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {_list(missing)}{_hint(missing[0], list(raw))}; "
            f"it needs all columns that the model was trained on, if only with empty cells"
        )
    if kind_of(path) == "NPZ":
        return table(raw)
    found = {c.name: raw_column(frame, c.name, str(path), kinds[c.name]) for c in table.columns}
    reading.check(path, found)
    return table(found)


def site_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Short names that tell the files apart: north.csv is north; a/data.csv and b/data.csv are a/data and b/data."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = tuple("/".join(path.with_name(bare_name(path)).parts[-depth:]) for path in paths)
        if len(set(names)) == len(names):
            return names
    return tuple(str(path) for path in paths)


# Reading


def read_table(path: Path, kinds: Mapping[str, str], reading: Reading = PLAIN) -> pd.DataFrame:
    """A table or a query as a table; columns of the kind "text" are read as they are written."""
    refuse_unreadable(path)
    if kind_of(path) == "NPZ":
        raise FFGBError(f"{path} has an array, and columns with names are needed; give a .csv or .parquet file")
    frame, notes = read_frame(path, {**reading.kinds, **kinds}, reading)
    _tell(notes)
    return frame


@final
class MissingColumnsError(FFGBError):
    """A table has not the columns that are named."""

    def __init__(self, where: str, names: Sequence[str], known: Sequence[str]) -> None:
        self.lacking = f"no column{'s' * (len(names) > 1)} {_list(names)}"
        """What it lacks, without what it has."""
        super().__init__(f"{where} has {self.lacking}{_hint(names[0], known)}; it has {_list(known)}")


def _read_site(
    path: Path,
    target: str | None,
    task: str | None,
    kinds: Mapping[str, str],
    reading: Reading = PLAIN,
    agreed: Sequence[str] = (),
) -> _Site:
    refuse_unreadable(path)
    if kind_of(path) == "NPZ":
        arrays = _read_npz(path)
        x, names = _npz_points(arrays, path)
        y = _npz_target(arrays, path, len(x), task)
        return _Site(path, None, _named(x, names), y) if names else _Site(path, x, {}, y)
    if target is None:
        raise FFGBError(
            f"{path} is a table, and no target is named; name the column to predict with {option('target')}"
        )
    kinds = {**reading.kinds, **kinds}
    frame, notes = read_frame(path, kinds, reading, agreed, target)
    named = target_columns(target)
    for name in named:
        if name not in frame.columns:
            raise FFGBError(
                f"{path} has no column {name!r} to be the target{_hint(name, frame.columns)}; "
                f"it has {_list(frame.columns)}"
            )
    features = [column for column in frame.columns if column not in named]
    if "" in features:
        position = list(frame.columns).index("") + 1
        raise FFGBError(
            f"{path}: column {position} has no name (is it a row index, or is the first line no header?); name it or "
            "remove it"
        )
    if not features:
        raise FFGBError(f"{path} has no feature columns, only the target {target!r}; add columns to predict it from")
    columns = {name: raw_column(frame, name, str(path), kinds.get(name)) for name in features}
    if len(named) == 2:
        parts = {name: _target(frame[name], path, task) for name in named}
        reading.check(path, {**columns, **parts})
        return _Site(path, None, columns, _times(path, parts), tuple(notes), times=True)
    y = _target(frame[target], path, task)
    reading.check(path, {**columns, target: y.astype(object) if is_text(y) else y})
    if task is None and is_text(y) and len(y) >= FEW_CLASSES and 2 * (found := len(np.unique(y))) > len(y):
        raise FFGBError(
            f"{path}: the target {target!r} has {found} different values in {len(y)} rows, too many for classes; "
            f"is it a name or an id? choose another {option('target')}, or say {option('task', CLASSIFICATION)}"
        )
    return _Site(path, None, columns, y, tuple(notes))


def _task(target: str | None, task: str | None) -> str | None:
    """The task; that of a time until an event is to predict a number."""
    if time_and_event(target) is None:
        return task
    if task == CLASSIFICATION:
        raise FFGBError(f"{option('target', target)} is a time and an event, and no class; leave {option('task')} out")
    return REGRESSION


def _times(path: Path, parts: Mapping[str, Array]) -> Array:
    """Times until an event as targets, negative where there was none."""
    (time_name, time), (event_name, event) = parts.items()
    if (time < 0).any():
        row = int(np.argmax(time < 0))
        raise FFGBError(
            f"{path}: the time {time_name!r} is {time[row]:g} in row {row + 1}; count times from the start of each row"
        )
    if not np.isin(event, (0.0, 1.0)).all():
        raise FFGBError(f"{path}: the event {event_name!r} has values other than 0 and 1; write 1 for an event")
    return targets_of(time, event > 0)


def _tell(notes: Sequence[str], *, quiet: bool = False) -> None:
    for note in () if quiet else notes:
        log.warning("%s", note)


def _named(x: Array, names: Sequence[str]) -> dict[str, Array]:
    return {name: x[:, j].astype(np.float64) for j, name in enumerate(names)}


def _kinds(categories: Sequence[str], table: Table | None) -> dict[str, str]:
    """Of which kind columns are whatever their values look like: those that were named, or agreed on."""
    known = {} if table is None else {c.name: NUMBER if c.categories is None else TEXT for c in table.columns}
    return known | dict.fromkeys(categories, TEXT)


def _form(site: _Site) -> tuple[tuple[int, ...], dict[str, Said]]:
    """The shape of a site's images, or what it knows about its columns."""
    return () if site.images is None else site.images.shape[1:], describe(site.raw)


def _agreed(
    sites: Sequence[tuple[str, tuple[int, ...], Mapping[str, Said]]], rare: int, least: int
) -> tuple[Table | None, list[str]]:
    """The table that sites with these columns share, None if they have images, all of one shape; and what is told."""
    first, shape, _ = sites[0]
    for name, other, _ in sites:
        if other != shape:
            said = [f"images of shape {s}" if s else "a table" for s in (other, shape)]
            raise FFGBError(f"{name} has {said[0]} and {first} has {said[1]}; give all sites the same")
    if shape:
        return None, []
    table, told = agree({name: columns for name, _, columns in sites}, rare, least)
    for line in told:
        log.warning("%s", line)
    return table, told


def _read_npz(path: Path) -> dict[str, Array]:
    names = ("x", "y", "columns")
    try:
        check_npz(path, names)
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise unreadable(path, error) from error


# Values


def _numbers(values: pd.Series[Any], path: Path, what: str) -> Array:
    """A target as finite float64 numbers."""
    if values.dtype.kind in "mMc" or isinstance(values.dtype, pd.PeriodDtype | pd.DatetimeTZDtype):
        raise FFGBError(f"{path}: {what} holds {values.dtype} values; turn them into plain numbers")
    try:
        numbers = pd.to_numeric(values.astype(object) if values.dtype == "category" else values, errors="coerce")
    except TypeError as error:  # lists and the like in a Parquet file
        raise FFGBError(f"{path}: {what} holds {values.dtype} values; replace them by plain numbers") from error
    bad = (numbers.isna() & values.notna()).to_numpy(bool)
    if bad.any():
        row = int(np.argmax(bad))
        raise FFGBError(
            f"{path}: {what} has text where numbers belong, {_value(values.iloc[row])} in row {row + 1}; "
            f"write numbers there, or leave out {option('task')} and {option('loss')} if these are classes"
        )
    result = numbers.to_numpy(np.float64, na_value=np.nan)
    _refuse_missing(result, path, what)
    return result


def _refuse_missing(numbers: Array, path: Path, what: str) -> None:
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(numbers.astype(np.float32))  # what overflows there would be infinite to every learner
    if bad.any():
        count, row = int(bad.sum()), int(np.argmax(bad))
        raise FFGBError(
            f"{path}: {what} has {count:,} missing or infinite value{'s' * (count > 1)}, the first in row {row + 1}; "
            "fill them in or remove those rows"
        )


def _target(values: pd.Series[Any], path: Path, task: str | None) -> Array:
    """The target as float64 numbers, or as text for class names (booleans are the classes False and True)."""
    what = f"the target {values.name!r}"
    missing = values.isna().to_numpy(bool)
    if missing.any():
        count, row = int(missing.sum()), int(np.argmax(missing))
        raise FFGBError(
            f"{path}: {what} has {count:,} missing value{'s' * (count > 1)}, the first in row {row + 1} (empty cells, "
            "NA, None and null count as missing); fill them in or remove those rows"
        )
    if task == REGRESSION:
        return _numbers(values, path, what)
    if pd.api.types.is_bool_dtype(values.dtype):
        return values.astype(bool).astype(str).to_numpy(str)
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if pd.api.types.is_numeric_dtype(values.dtype) or not _holds_text(values):
        return _numbers(values, path, what)
    if task is None:
        # A column of numbers with a few slips in it must not pass for one of a thousand classes.
        numeric = pd.to_numeric(values, errors="coerce").notna().to_numpy(bool)
        if numeric.all():
            return _numbers(values, path, what)
        if 2 * numeric.sum() > len(numeric):
            row = int(np.argmin(numeric))
            raise FFGBError(
                f"{path}: {what} has text among its numbers, {_value(values.iloc[row])} in row {row + 1}; "
                "write a number there, or say that the task is classification"
            )
    return np.array([plain(value) for value in values.astype(str).tolist()], str)


def _holds_text(values: pd.Series[Any]) -> bool:
    return bool(values.map(lambda value: isinstance(value, str)).any())


def _npz_points(arrays: dict[str, Array], path: Path) -> tuple[Array, tuple[str, ...]]:
    if "x" not in arrays:
        raise FFGBError(f"{path} has no array x; save it with numpy.savez(file, x=points, y=targets)")
    x = arrays["x"]
    if x.dtype.kind not in "biuf":
        raise FFGBError(f"{path}: the array x holds {x.dtype} values where numbers belong; save it as numbers")
    if x.ndim not in (2, 4) or 0 in x.shape[1:]:
        raise FFGBError(
            f"{path}: the array x has shape {x.shape}; give it shape (rows, columns), "
            "or (rows, channels, height, width) for images"
        )
    if len(x) == 0:
        raise FFGBError(f"{path} has no rows; give a file with rows in it")
    if x.ndim == 4:
        # Bytes are scaled as those of the published sets are; other pixels are taken to be scaled already.
        points = scaled_pixels(x) if x.dtype == np.uint8 else _float32(x)
        _refuse_missing(points.reshape(len(x), -1).sum(axis=1, dtype=np.float64), path, "the array x")
        return points, ()
    names = tuple(str(name) for name in arrays["columns"]) if "columns" in arrays else ()
    names = names or tuple(f"x{j}" for j in range(x.shape[1]))
    if len(set(names)) != x.shape[1]:
        raise FFGBError(
            f"{path}: the array columns names {len(set(names))} distinct columns where x has {x.shape[1]}; "
            "give one name a column"
        )
    points = _float32(x)
    for j in np.flatnonzero(np.isinf(points).any(axis=0))[:1]:
        row = int(np.argmax(np.isinf(points[:, j])))
        raise FFGBError(f"{path}: column {names[j]!r} has an infinite value in row {row + 1}; correct it")
    return points, names


def _float32(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _npz_target(arrays: dict[str, Array], path: Path, rows: int, task: str | None) -> Array:
    if "y" not in arrays:
        raise FFGBError(f"{path} has no array y; save it with numpy.savez(file, x=points, y=targets)")
    y = arrays["y"]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or len(y) != rows or 0 in y.shape:
        raise FFGBError(f"{path}: the array y has shape {y.shape} where x has {rows} rows; give one target a row")
    if y.ndim == 1:
        if y.dtype.kind not in "biufU":
            raise FFGBError(f"{path}: the array y holds {y.dtype} values; save it as numbers or as text")
        return _target(pd.Series(y, name="y"), path, task)
    if task == CLASSIFICATION or y.dtype.kind not in "biuf":
        raise FFGBError(f"{path}: the array y has shape {y.shape}; give one class a row")
    numbers = y.astype(np.float64)
    for column in numbers.T:
        _refuse_missing(column, path, "the target 'y'")
    return numbers


# All files together


def _labels(
    sites: Sequence[_Site], target: str | None, task: str | None, classes: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Array], str]:
    """Class names, each site's labels, and the task."""
    what = f"the target {target or 'y'!r}"
    targets = [site.y for site in sites]
    _refuse_unlike(sites, what)
    task = task or infer_task(targets)
    if task == REGRESSION:
        return (), targets, task
    _refuse_fractions(sites, what)
    if classes is None:
        return *_classes_of_all(targets, what), task
    return tuple(classes), _known_classes(sites, classes, what), task


def _refuse_unlike(sites: Sequence[_Site], what: str) -> None:
    """Refuse a target that is text here and a number there, or of several shapes."""
    first = sites[0]
    for site in sites[1:]:
        if is_text(site.y) != is_text(first.y):
            text, number = (site, first) if is_text(site.y) else (first, site)
            raise FFGBError(
                f"{what} is text in {text.path} ({str(text.y[0])!r} in row 1) and a number in {number.path}; "
                "write it the same way in all files"
            )
        if site.y.shape[1:] != first.y.shape[1:]:
            raise FFGBError(f"{what} has another shape in {site.path} than in {first.path}; give all sites the same")


def _refuse_fractions(sites: Sequence[_Site], what: str) -> None:
    """Refuse numbers of classes that are not whole."""
    for site in sites:
        fractions = np.zeros(1, bool) if is_text(site.y) else site.y != np.round(site.y)
        if fractions.any():
            row = int(np.argmax(fractions))
            raise FFGBError(
                f"{site.path}: {what} is to be a class and has the fraction {site.y[row]} in row {row + 1}; "
                "number the classes, or say that the task is regression"
            )


def _classes_of_all(targets: Sequence[Array], what: str) -> tuple[tuple[str, ...], list[Array]]:
    """The classes that there are in any file, and each file's labels."""
    names, labels = encode(targets)
    if len(names) == 1:
        raise FFGBError(f"{what} is {names[0]!r} in every row of all files; a classifier needs at least two classes")
    alike = sorted(names, key=lambda name: (name.casefold(), name))
    for one, other in pairwise(alike):
        if one.casefold() == other.casefold():
            log.warning("%s has the classes %r and %r; are they the same?", what, one, other)
    return names, labels


def _known_classes(sites: Sequence[_Site], classes: Sequence[str], what: str) -> list[Array]:
    """Each file's labels, where classes were agreed on before."""
    known, labels = {name: i for i, name in enumerate(classes)}, []
    for site in sites:
        names = class_names(site.y)
        strange = np.array([name not in known for name in names])
        if strange.any():
            row = int(np.argmax(strange))
            raise FFGBError(
                f"{site.path}: {what} is {names[row]!r} in row {row + 1}, which is not one of the classes agreed on, "
                f"{_list(list(classes))}; correct it or agree on the classes again"
            )
        labels.append(np.array([known[name] for name in names], np.int64))
    return labels


# Words


def _hint(name: str, names: Sequence[str] | pd.Index[Any]) -> str:
    close = difflib.get_close_matches(name.lower(), [str(other).lower() for other in names], n=1)
    match = [str(other) for other in names if close and str(other).lower() == close[0]]
    return f" (did you mean {match[0]!r}?)" if match else ""


def _list(names: Sequence[str] | pd.Index[Any]) -> str:
    shown = ", ".join(repr(str(name)) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _count(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'s' * (len(names) != 1)}"


def _value(value: object) -> str:
    text = repr(str(value))
    return text if len(text) <= 40 else f"{text[:36]}…'"


SETTINGS = (
    Setting(
        "data",
        "names",
        "A named set ('ffgb data list'), or a client's file: repeat it.",
        DATA,
        ("digits",),
        common=True,
    ),
    Setting(
        "target",
        "text",
        "The column to predict, in tables; or time,event.",
        DATA,
        unset="y",
        common=True,
    ),
    Setting(
        "task", "text", "classification or regression, for files.", DATA, unset="by the target's values", choices=TASKS
    ),
    Setting("weights", "text", "A column of files with the weight of each row.", DATA, unset="all weigh the same"),
    Setting("exposure", "text", "A column of files with the exposure of each row (poisson).", DATA, unset="1 for all"),
    Setting(
        "group",
        "text",
        "A column of files whose rows with the same value, such as a patient's, are held out together.",
        DATA,
        unset="every row stands alone",
        when="Where rows of one group look alike, a model that has seen some of them scores too well on the others.",
    ),
    Setting("categories", "names", "Columns that are categories though they look like numbers: cp,thal.", DATA, ()),
    Setting("rare", "whole", "Rows that all sites together must have of a category to name it.", DATA, RARE, least=1),
)
