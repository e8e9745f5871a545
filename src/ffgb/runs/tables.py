"""Training on data frames in memory: each client's table takes the way that its file would take."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ffgb.data.frames import as_arrow, is_frame
from ffgb.errors import FFGBError
from ffgb.runs.config import Config


@contextmanager
def as_files(config: Config, tables: Mapping[str, Any]) -> Iterator[Config]:
    """The settings with the tables as Parquet files, which are gone afterwards."""
    if not tables:
        raise FFGBError("tables is empty; give one table for each client, by its name")
    if config.given().keys() & {"data"}:
        raise FFGBError("the settings name data, and tables are given too; leave out one of them")
    with tempfile.TemporaryDirectory(prefix="ffgb-") as folder:
        paths = []
        for name, table in tables.items():
            if not is_frame(table):
                raise FFGBError(
                    f"the table of {name!r} is {type(table).__name__}, which is no data frame; arrays are for "
                    "ffgb.federate"
                )
            path = Path(folder, f"{_file_name(name)}.parquet")
            pq.write_table(as_arrow(table), path)
            paths.append(str(path))
        yield dataclasses.replace(config, data=tuple(paths))


def _file_name(name: object) -> str:
    """A client's name, if it can be a file's."""
    text = str(name)
    if not text or any(c in '/\\:*?"<>|.' or not c.isprintable() for c in text):
        raise FFGBError(f"a table is called {text!r}; name clients by letters, digits, - and _")
    return text
