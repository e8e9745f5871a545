"""Rows of a table that are mostly 0, kept as scipy's CSR: they become an array a few rows at a time.

Feature maps take blocks of rows through NumPy's protocol (`__array__`), so what is computed has the bits that full rows
give.  Sums by column (bins, counts) are computed from the entries that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, cast, final

import numpy as np
import scipy.sparse

from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option

LARGEST = 2**29
"""Bytes of rows that become an array at a time; more would be the full table, which someone asked for in vain."""
NAMES = ("x entries", "x columns", "x starts", "x shape")
"""Of the arrays of a message."""


class Entries(NamedTuple):
    """A column's entries that are there."""

    rows: Array
    """Ascending."""
    values: Array


@final
class SparseRows:
    """It stands where an array of rows (n, columns) in float32 stands."""

    def __init__(self, rows: Any) -> None:
        """`rows` is anything that scipy makes a CSR matrix of."""
        self._csr = scipy.sparse.csr_matrix(rows, dtype=np.float32)
        if not self._csr.has_canonical_format:  # a cell that is there twice is a sum
            self._csr = self._csr.copy()
            self._csr.sum_duplicates()
        self.shape: tuple[int, int] = self._csr.shape
        self.ndim, self.dtype = 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Of the entries that are there."""
        return int(self._csr.data.nbytes + self._csr.indices.nbytes + self._csr.indptr.nbytes)

    def reshape(self, *shape: int) -> SparseRows:
        """The same: rows of single numbers have their shape."""
        if shape != (len(self), -1):
            raise FFGBError("sparse rows are a table, and cannot have another shape")
        return self

    def __getitem__(self, rows: slice | Array) -> SparseRows:
        return SparseRows(self._csr[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows, columns = self.shape
        if (need := 4 * rows * columns) > LARGEST:
            raise FFGBError(
                f"{rows:,} sparse rows of {columns:,} columns in full need {need / 1e9:,.1f} GB; choose "
                f"{option('learner', 'linear')} or trees, which keep them sparse, or fewer columns"
            )
        full: Array = self._csr.toarray()
        return full if dtype is None else full.astype(dtype, copy=False)

    @cached_property
    def _by_column(self) -> Any:
        return self._csr.tocsc()

    def entries(self, column: int) -> Entries:
        """A column's entries; all others are 0."""
        csc = self._by_column
        some = slice(csc.indptr[column], csc.indptr[column + 1])
        return Entries(csc.indices[some], csc.data[some])

    def column(self, j: int) -> Array:
        """A column in full, (n,)."""
        full = np.zeros(len(self), np.float32)
        rows, values = self.entries(j)
        full[rows] = values
        return full

    def tensors(self) -> Tensors:
        """As arrays of a message."""
        csr = self._csr
        found = csr.data, csr.indices.astype(np.int64), csr.indptr.astype(np.int64), np.array(self.shape, np.int64)
        return dict(zip(NAMES, found, strict=True))

    @staticmethod
    def read(tensors: Tensors) -> SparseRows:
        """The inverse of `tensors`; scipy checks that they fit together."""
        entries, columns, starts, shape = (tensors[name] for name in NAMES)
        return SparseRows(scipy.sparse.csr_matrix((entries, columns, starts), shape=tuple(shape.tolist())))


def as_rows(x: SparseRows) -> Array:
    """Sparse rows under the name of the array whose place they take: its users slice it, and read some rows."""
    return cast(Array, x)


def sparse(x: object) -> SparseRows | None:
    """The rows, if they are sparse."""
    return x if isinstance(x, SparseRows) else None


def tensors_of(x: Array) -> dict[str, Array]:
    """Rows as arrays of a message."""
    rows = sparse(x)
    return {"x": x} if rows is None else dict(rows.tensors())


def rows_in(tensors: Mapping[str, Array]) -> Array:
    """The inverse of `tensors_of`."""
    return tensors["x"] if "x" in tensors else as_rows(SparseRows.read(tensors))
