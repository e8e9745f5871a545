"""Data frames of any kind are read as pandas would have them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, final

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ffgb.data.frames import as_frame, as_values, is_frame, numbers
from ffgb.errors import FFGBError

TABLE = pa.table(
    {
        "age": pa.array([61, None, 40], pa.int64()),
        "price": pa.array([Decimal("1.50"), Decimal("2.25"), None], pa.decimal128(10, 2)),
        "sex": pa.array(["f", "m", None]).dictionary_encode(),
        "day": pa.array([0, 1, 2], pa.int32()).cast(pa.date32()),
    }
)


@final
class Capsule:
    """A frame of a library that no one has heard of."""

    columns = ("age", "price", "sex", "day")

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


@final
class Lazy:
    """A frame that is still to be computed."""

    def collect(self) -> Any:
        return TABLE

    def collect_schema(self) -> Any:
        return TABLE.schema


@pytest.mark.parametrize("make", [lambda: TABLE, Capsule, Lazy, lambda: duckdb.from_arrow(TABLE)])
def test_a_frame_of_any_kind_is_one_of_pandas(make: Any) -> None:
    frame = as_frame(make())
    assert is_frame(make())
    assert list(frame) == ["age", "price", "sex", "day"]
    assert frame["age"].dtype.kind == "f"
    assert frame["age"].isna().tolist() == [False, True, False]
    assert frame["price"].dtype == np.float64
    assert frame["price"].tolist()[:2] == [1.5, 2.25]
    assert frame["sex"].tolist()[:2] == ["f", "m"]
    assert frame["day"].dtype.kind == "M"


def test_what_is_no_frame_stays_as_it_is() -> None:
    for value in (np.ones((2, 2)), [[1.0]], pd.DataFrame({"a": [1]}), "text", None):
        assert as_frame(value) is value
        assert as_values(value) is value


def test_columns_become_arrays() -> None:
    for column in (
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        duckdb.sql("SELECT unnest(['a', 'b']) AS y"),
    ):
        assert as_values(column).tolist() == ["a", "b"]
    assert as_values(pa.array([1, 2])).dtype == np.int64


def test_points_are_numbers() -> None:
    x = numbers(pa.table({"a": [1.0, 2.0], "b": [3, 4]}))
    np.testing.assert_array_equal(x, [[1.0, 3.0], [2.0, 4.0]])
    with pytest.raises(FFGBError, match="the column 'sex' has no numbers; tables with text are for"):
        numbers(TABLE.select(["age", "sex"]))
