"""What a data set is to the rest of the package, and how rows are held out for testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.types import Array
from ffgb.data.preprocess import Table

CLASSIFICATION = "classification"
REGRESSION = "regression"
TASKS = (CLASSIFICATION, REGRESSION)

HOLDOUT = 0.2


@final
@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test points with their labels, and which site each row comes from if the set knows.

    `x` is float32 (n, ...), unscaled except for images; nothing in it was computed from other rows, so that
    a row looks the same at its site as it does here.
    """

    name: str
    task: str
    """"classification" or "regression"."""
    x: Array
    y: Array
    """int64 class indices (n,), or float64 targets (n,) or (n, c)."""
    x_test: Array
    y_test: Array
    classes: tuple[str, ...] = ()
    """Names of the classes, the same for all sites; empty for regression."""
    columns: tuple[str, ...] = ()
    """Names of the features; empty for images."""
    image: bool = False
    """x has shape (n, channels, height, width), scaled by fixed public constants."""
    sites: tuple[str, ...] = ()
    """Names of the natural clients; empty if the set has none."""
    site: Array | None = None
    """Index into `sites` of each training row."""
    site_test: Array | None = None
    table: Table | None = None
    """How x comes from raw columns, for files of tables."""
    told: tuple[str, ...] = ()
    """What was said of columns that differ from site to site."""
    weights: Array | None = None
    """What each training row weighs; None: all weigh the same."""
    weights_test: Array | None = None
    group: Array | None = None
    """Whole numbers that training rows of one group have in common; None: every row stands alone."""

    def __post_init__(self) -> None:
        assert self.task in TASKS
        assert len(self.x) == len(self.y)
        assert len(self.x_test) == len(self.y_test)
        assert bool(self.classes) == (self.task == CLASSIFICATION)
        assert not self.columns or self.x.shape[1:] == (len(self.columns),)
        assert (self.site is None) == (self.site_test is None) == (not self.sites)
        assert self.site is None or len(self.site) == len(self.x)
        assert self.site_test is None or len(self.site_test) == len(self.x_test)

    @property
    def outputs(self) -> int:
        """The dimension c of a model's values: one a class, or one a target."""
        if self.task == CLASSIFICATION:
            return len(self.classes)
        return 1 if self.y.ndim == 1 else int(self.y.shape[1])


def hold_out(y: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows for training and rows for testing, both ascending; integer labels are split class by class.

    The test rows number `share` of all, and each class gives its share of them up to one row; the last row of a class
    is never taken from training.
    """
    n = len(y)
    order = rng.permutation(n)
    if not np.issubdtype(y.dtype, np.integer):
        return _sorted_parts(order, np.arange(n) < round(share * n))
    order = order[np.argsort(y[order], kind="stable")]
    counts = np.unique(y, return_counts=True)[1]
    ends = np.cumsum(counts)
    # Rounding the running total instead of each class keeps the sum right: many small classes still give 20 %.
    # The epsilon makes 0.2 · 5k, which may fall just below a half-way mark in floating point, round alike everywhere.
    taken = np.diff(np.floor(share * ends + 0.5 + 1e-9).astype(np.int64), prepend=0)
    taken = np.minimum(taken, counts - 1)
    position = np.arange(n) - np.repeat(ends - counts, counts)
    return _sorted_parts(order, position < np.repeat(taken, counts))


def hold_out_groups(group: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """The same where rows of a group stay together: groups at random, as long as at most the share is held out."""
    names, of_row, sizes = np.unique(group, return_inverse=True, return_counts=True)
    order = rng.permutation(len(names))
    taken = np.zeros(len(names), bool)
    taken[order] = np.cumsum(sizes[order]) <= share * len(group) + 0.5
    return np.flatnonzero(~taken[of_row]), np.flatnonzero(taken[of_row])


def _sorted_parts(order: Array, test: Array) -> tuple[Array, Array]:
    return np.sort(order[~test]), np.sort(order[test])
