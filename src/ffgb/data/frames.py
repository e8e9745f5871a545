"""Data frames of any kind, as pandas has them: polars, pyarrow, DuckDB and whatever else hands itself over by Arrow.

They speak Arrow's PyCapsule interface (`__arrow_c_stream__`), so no library of theirs is imported here.

>>> import pyarrow as pa
>>> as_frame(pa.table({"age": [61, None], "sex": ["f", "m"]}))
    age sex
0  61.0   f
1   NaN   m
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.sparse import issparse

from ffgb.core.sparse_rows import SparseRows, as_rows
from ffgb.errors import FFGBError


def is_frame(value: Any) -> bool:
    """Is this a table with named columns?"""
    return isinstance(value, pd.DataFrame) or (_speaks_arrow(value) and _has_columns(value)) or _is_lazy(value)


def as_frame(value: Any) -> Any:
    """A table as pandas has it; anything else as it is."""
    if isinstance(value, pd.DataFrame) or not is_frame(value):
        return value
    return _pandas(as_arrow(value))


def as_values(value: Any) -> Any:
    """A column of some data frame as an array; a pandas Series and anything else as it is."""
    if isinstance(value, pd.Series | pd.DataFrame | np.ndarray):
        return value
    if is_frame(value):
        found = as_frame(value)
        return found.iloc[:, 0].to_numpy() if found.shape[1] == 1 else found.to_numpy()
    if isinstance(value, pa.Array | pa.ChunkedArray) or _speaks_arrow(value):
        column = value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.chunked_array(value)
        return _pandas(pa.table({"values": column}))["values"].to_numpy()
    return value


def as_arrow(value: Any) -> pa.Table:
    """A table as Arrow has it."""
    if isinstance(value, pd.DataFrame):
        return pa.Table.from_pandas(value, preserve_index=False)
    try:
        return pa.table(value.collect() if _is_lazy(value) else value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FFGBError(f"the data frame cannot be read by Arrow ({error}); convert it to pandas") from error


def numbers(value: Any) -> Any:
    """The points of a client: a table of numbers as an array; anything else as it is."""
    if issparse(value):
        return as_rows(SparseRows(value))
    if not is_frame(value):
        return as_values(value)
    frame = as_frame(value)
    text = [str(name) for name, values in frame.items() if not pd.api.types.is_numeric_dtype(values.dtype)]
    if text:
        raise FFGBError(
            f"the column {text[0]!r} has no numbers; tables with text are for ffgb.train(config, tables=…) and for the "
            "estimators"
        )
    return frame.to_numpy(np.float64)


def _pandas(table: pa.Table) -> pd.DataFrame:
    """Decimals become floats and days become times, which pandas computes with."""
    fields = []
    for field in table.schema:
        kind = field.type
        kind = pa.float64() if pa.types.is_decimal(kind) else pa.timestamp("us") if pa.types.is_date(kind) else kind
        fields.append(pa.field(field.name, kind))
    frame: pd.DataFrame = table.cast(pa.schema(fields)).to_pandas()
    return frame


def _speaks_arrow(value: Any) -> bool:
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def _has_columns(value: Any) -> bool:
    return hasattr(value, "columns") or hasattr(value, "column_names")


def _is_lazy(value: Any) -> bool:
    """A frame that is still to be computed, as in polars."""
    return hasattr(value, "collect") and hasattr(value, "collect_schema") and not isinstance(value, type)
