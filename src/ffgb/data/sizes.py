"""Files that would not fit into memory are refused before they are read: a small file can unpack to a huge table.

What a file says about itself is checked as far as it can be without unpacking it.
"""

from __future__ import annotations

import gzip
import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ffgb.errors import FFGBError
from ffgb.hardware import available

MOST_COLUMNS, MOST_ROWS = 100_000, 10**8
"""Of a site."""
LONGEST_LINE = 16 * 2**20
"""Characters of the header and the first row of a CSV file."""
PACKED, RATIO = 100 * 2**20, 200
"""An array of more than so many bytes may not unpack to more than so many times its size."""
CELL = 8
"""Bytes of a number in a table."""
_BLOCK = 2**20


def check_npz(path: Path, names: Collection[str]) -> None:
    """The arrays of these names fit into memory, and are as large as they say.

    A file that is no NPZ raises a ValueError, or what zipfile raises.
    """
    need = 0
    with path.open("rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it holds a single array")
        with zipfile.ZipFile(file) as archive:
            members = [m for m in archive.infolist() if m.filename.removesuffix(".npy") in names]
            for member in members:
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
                    raise ValueError(f"{member.filename} is packed in a way that numpy does not know")
                name, packed = member.filename.removesuffix(".npy"), min(member.compress_size, path.stat().st_size)
                if member.file_size > PACKED and member.file_size > RATIO * packed:
                    raise FFGBError(
                        f"{path}: the array {name} unpacks to {member.file_size:,} bytes, more than {RATIO} times its "
                        "size in the file; if you trust it, save it unpacked, with numpy.savez"
                    )
                need += member.file_size
            must_fit(path, need)
            for member in members:
                need += CELL * _entries(archive, member)
    must_fit(path, need)


def _entries(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """How many numbers an array has, by a header that must agree with the bytes after it."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:  # only names of fields need it
            raise ValueError(f"{member.filename} holds no plain numbers")
        entries, follow = math.prod(shape), member.file_size - file.tell()
    if not dtype.hasobject and entries * dtype.itemsize != follow:  # objects are refused when they are read
        raise ValueError(f"{member.filename} promises {entries * dtype.itemsize:,} bytes, and {follow:,} follow")
    return entries


def check_parquet(path: Path) -> None:
    """The table fits into memory, by the file's own account of it.  Raises as pyarrow does."""
    about = pq.read_metadata(path)
    check_columns(path, about.num_columns)
    if about.num_rows > MOST_ROWS:
        raise FFGBError(f"{path} has {about.num_rows:,} rows, and a site may have {MOST_ROWS:,}; give fewer")
    need, text = CELL * about.num_rows * about.num_columns, dict[int, int]()
    for group in map(about.row_group, range(about.num_row_groups)):
        for j in range(about.num_columns):
            chunk, kind = group.column(j), about.schema.column(j)
            # values that are alike are stored once, and take their full size in memory each
            need += max(chunk.total_uncompressed_size, chunk.num_values * max(kind.length, 0))
            need += CELL * max(0, chunk.num_values - group.num_rows)  # of lists
            if kind.physical_type == "BYTE_ARRAY":
                text[j] = text.get(j, 0) + chunk.num_values * chunk.total_uncompressed_size
    must_fit(path, need)
    for j, bound in text.items():
        if need + bound > available():  # it may be much less
            kind = about.schema.column(j)
            bound = bound if kind.max_repetition_level else _text(path, kind.path)
            must_fit(path, need + bound)
            need += bound


def _text(path: Path, column: str) -> int:
    """Bytes of a column of text, from the different texts in it and how often each stands there."""
    total = 0
    for chunk in pq.read_table(path, columns=[column], read_dictionary=[column]).column(0).chunks:
        if isinstance(chunk, pa.DictionaryArray):
            lengths = np.asarray(pc.binary_length(chunk.dictionary).fill_null(0), np.int64)
            total += int(lengths[np.asarray(chunk.indices.drop_null())].sum())
        else:
            total += chunk.nbytes
    return total


def check_csv(path: Path, columns: int) -> None:
    """A table of so many columns and all lines of the file fits into memory: short lines are filled up."""
    check_columns(path, columns)
    size, lines = path.stat().st_size, 1
    must_fit(path, size)
    with unpacked(path) as file:
        while block := file.read(_BLOCK):
            lines += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
    must_fit(path, max(size, CELL * lines * columns))


def is_gzip(path: Path) -> bool:
    """Is the file packed by gzip, whatever its name is?"""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a text file, unpacked if it is packed by gzip."""
    with path.open("rb") as raw:
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_gzip(path) else raw


def check_gzip(path: Path) -> None:
    """What is packed fits into memory, and is not much larger than the file.  Raises as gzip does."""
    size, packed = 0, path.stat().st_size
    with unpacked(path) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            if size > PACKED and size > RATIO * packed:
                raise FFGBError(
                    f"{path} unpacks to more than {RATIO} times its size; if you trust it, unpack it first, with gunzip"
                )
            must_fit(path, size)


def check_columns(path: Path, columns: int) -> None:
    if columns >= MOST_COLUMNS:
        raise FFGBError(
            f"{path} has {columns:,} columns, and a table must have fewer than {MOST_COLUMNS:,}; give fewer"
        )


def short_lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a text file, none of them endless."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise FFGBError(f"{path} has a line of more than {LONGEST_LINE:,} characters; is it a table?")
        yield line


def must_fit(path: Path, need: int) -> None:
    """Raise an FFGBError if so many bytes are not free."""
    if need > (have := available()):
        raise FFGBError(
            f"{path} fills {need / 1e9:,.1f} GB of memory or more when it is read, and {have / 1e9:,.1f} GB are free; "
            "give a smaller file"
        )
