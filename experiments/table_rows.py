"""A table's rows as every method sees them: which site holds which row, and which rows are for testing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from ffgb.core.seeds import stream
from ffgb.data.dataset import HOLDOUT, hold_out
from ffgb.data.partition import similarity
from table_list import Entry

Array = np.ndarray[Any, Any]

SITES, ROWS_A_SITE, ALIKE = 20, 50, 0.1
"""Without natural sites: at most so many sites, of at least so many rows; this share is dealt out evenly, the rest by
label."""


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """One table, its sites and its test rows."""

    entry: Entry
    seed: int
    x: pd.DataFrame
    y: Array
    """Values, or indices of classes."""
    classes: tuple[str, ...]
    site: Array
    """The number of the site that holds each row."""
    test: Array
    """Is it a test row?"""
    rows_published: int

    @property
    def sites(self) -> int:
        return int(self.site.max()) + 1

    def train(self) -> tuple[pd.DataFrame, Array]:
        return self.x[~self.test], self.y[~self.test]

    def truth(self) -> Array:
        """The targets of the test rows, site by site."""
        return self.y[self.order()]

    def order(self) -> Array:
        """The test rows, site by site."""
        return np.concatenate([np.flatnonzero(self.test & (self.site == i)) for i in range(self.sites)])

    def write(self, folder: Path) -> tuple[list[Path], Path]:
        """A file of each site, with its training and test rows, and one of all test rows without their targets."""
        table = self.x.assign(target=np.asarray(self.classes, object)[self.y] if self.classes else self.y)
        files = []
        for i in range(self.sites):
            files.append(folder / f"site{i:03}.parquet")
            table[self.site == i].reset_index(drop=True).to_parquet(files[-1])
        test = folder / "test.parquet"
        self.x.iloc[self.order()].reset_index(drop=True).to_parquet(test)
        return files, test


def rows_of(entry: Entry, seed: int, most: int) -> Rows:
    """A table with at most `most` rows.  Each site holds out a fifth of its rows, as `ffgb train` does."""
    table = entry.frame()
    published = len(table)
    rng = np.random.default_rng(seed)
    table = table.iloc[rng.permutation(published)[:most]].reset_index(drop=True)
    classes: tuple[str, ...] = ()
    y: Array = table["target"].to_numpy()
    if entry.task != "regression":
        names, counts = np.unique(y.astype(str), return_counts=True)
        table = table[table["target"].isin(names[counts >= 2])].reset_index(drop=True)
        found, y = np.unique(table["target"].to_numpy().astype(str), return_inverse=True)
        classes = tuple(str(name) for name in found)
    site = _sites(table, y, seed)
    test = np.zeros(len(y), bool)
    for i in range(int(site.max()) + 1):
        own = np.flatnonzero(site == i)
        test[own[_held_out(y[own], entry.task, seed)]] = True
    x = table.drop(columns=["target", *(["site"] if "site" in table else [])])
    return Rows(entry, seed, x, y, classes, site, test, published)


def _sites(table: pd.DataFrame, y: Array, seed: int) -> Array:
    if "site" in table:
        return np.unique(table["site"].astype(str), return_inverse=True)[1]
    site = np.zeros(len(y), np.int64)
    number = max(2, min(SITES, len(y) // ROWS_A_SITE))
    for i, rows in enumerate(similarity(y, number, ALIKE, stream(seed, "partition"))):
        site[rows] = i
    return site


def _held_out(y: Array, task: str, seed: int) -> Array:
    """The rows that `ffgb train` holds out of a file with these targets (`data/files.py`)."""
    kinds = np.unique(y)
    if task != "regression" or (len(kinds) <= 20 and np.all(kinds == np.round(kinds))):
        y = np.searchsorted(kinds, y).astype(np.int64)
    return hold_out(y, HOLDOUT if len(y) >= 5 else 0.0, stream(seed, "holdout"))[1]
