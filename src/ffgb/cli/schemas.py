"""`ffgb data describe` drafts a schema from a file; `ffgb data check` says if a file fits one.  Both are offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffgb.cli.common import say
from ffgb.cli.data import data_app
from ffgb.errors import FFGBError

if TYPE_CHECKING:
    from ffgb.data.schema_file import SchemaFile

Sep = Annotated[str | None, typer.Option(help="The mark between values.", show_default="found out")]
Decimal = Annotated[str | None, typer.Option(help="The decimal mark.", show_default="found out")]
Encoding = Annotated[str | None, typer.Option(help="The encoding of a text file.", show_default="found out")]
Sheet = Annotated[str | None, typer.Option(help="The sheet of a workbook.", show_default="the only one")]
Missing = Annotated[str | None, typer.Option(help="Values that stand for unknown ones: -999,unknown.")]
Drop = Annotated[str | None, typer.Option(help="Columns that are not used: patient_id,ward.")]
Target = Annotated[str | None, typer.Option(help="The column to predict.", show_default="the schema's")]


@data_app.command("describe")
def data_describe(
    file: Annotated[Path, typer.Argument(help="A site's table.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the draft here.")] = None,
    rare: Annotated[int, typer.Option(help="Rows that a category must have to be named.", min=1)] = 10,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    missing: Missing = None,
    drop: Drop = None,
) -> None:
    """Draft a schema from a file, for a person to edit and sites to share: type, bounds, categories of each column."""
    from ffgb.data.schema_file import draft
    from ffgb.files import atomic_write

    reading = _reading(sep=sep, decimal=decimal, encoding=encoding, sheet=sheet, missing=missing, drop=drop)
    raw, dates = _columns(file, reading, target)
    schema, notes = draft(raw, dates, target, rare)
    if missing is not None:
        schema = type(schema)(schema.columns, schema.target, reading.missing)
    text = f"# A draft from one site's file: read it, and change what is not so everywhere.\n{schema.to_toml(notes)}"
    if output is None:
        print(text, end="")
        return
    if output.exists():
        raise FFGBError(f"{output} is there already; choose another --output, or remove it")
    atomic_write(output, text.encode())
    say(
        f"{output}: {len(schema.columns)} columns; edit it, and then: ffgb data check {file} --schema {output}",
        error=True,
    )


@data_app.command("check")
def data_check(
    files: Annotated[list[Path], typer.Argument(help="Tables, one a site.")],
    schema: Annotated[Path, typer.Option(help="The schema that all sites share.")],
    target: Target = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Say whether files fit a schema, and name every value outside it by its row; exit code 2 if one does not."""
    from ffgb.data.schema_file import DATE, DROP, SchemaFile

    known = SchemaFile.read(schema)
    reading = _reading(sep=sep, decimal=decimal, encoding=encoding, sheet=sheet, schema=str(schema))
    failed = 0
    for file in files:
        problems = _problems(file, reading, target or known.target)
        failed += bool(problems)
        for problem in problems:
            say(f"{file}: {problem}")
        used = len(known.columns) - len(known.of_type(DROP))
        if not problems:
            say(f"{file}: ready: {used} columns are as the schema says, {len(known.of_type(DATE))} of them dates")
    if failed:
        raise FFGBError(f"{failed} of {len(files)} files do{'es' * (failed == 1)} not fit {schema}; "
                        "correct the file, or the schema at all sites")  # fmt: skip


def _problems(file: Path, reading: Any, target: str | None) -> list[str]:
    """All that keeps a file from the training that the schema is for."""
    from ffgb.data.targets import target_columns

    try:
        raw, dates = _columns(file, reading, target, quiet=False)
    except FFGBError as error:
        return [str(error).removeprefix(f"{file}: ").removeprefix(f"{file} ")]
    schema: SchemaFile = reading.schema
    there = {*raw, *dates}
    lost = [name for name, rule in schema.columns.items() if name not in there and rule.type != "drop"]
    found = [f"the column {name!r} is missing" for name in lost]
    for name in target_columns(target):
        if name not in there and name not in lost:
            found.append(f"the target {name!r} is missing")
        if name in raw and any(_unknown(value) for value in raw[name]):
            row = next(i for i, value in enumerate(raw[name]) if _unknown(value)) + 1
            found.append(f"the target {name!r} has no value in row {row}; remove such rows")
    return found + schema.violations(raw)


def _unknown(value: Any) -> bool:
    return value is None or value != value


def _columns(file: Path, reading: Any, target: str | None, *, quiet: bool = True) -> tuple[dict[str, Any], list[str]]:
    """A file's raw columns without those that dates become, and the names of dates."""
    from ffgb.data.dates import names_of, sources
    from ffgb.data.preprocess import raw as raw_column
    from ffgb.data.reading import kind_of, read_frame, refuse_unreadable
    from ffgb.data.targets import target_columns

    refuse_unreadable(file)
    if kind_of(file) == "NPZ":
        raise FFGBError(f"{file} has no columns to describe; give a table")
    frame, notes = read_frame(file, reading.kinds, reading, (), target)
    for note in notes:
        say(note, error=quiet)
    lacking = [name for name in target_columns(target) if name not in frame.columns]
    if lacking and reading.schema is None:
        raise FFGBError(
            f"{file} has no column {lacking[0]!r} to be the target; it has {', '.join(map(repr, frame.columns))}"
        )
    dates = sorted(sources(map(str, frame.columns)))
    made = {name for date in dates for name in names_of(date)}
    between = {f"{one} to {other}: days" for one in dates for other in dates}
    plain = [name for name in frame.columns if name not in made | between and name]
    return {name: raw_column(frame, name, str(file), reading.kinds.get(name)) for name in plain}, dates


def _reading(**given: str | None) -> Any:
    from ffgb.data.reading import SETTINGS, Reading

    known = {each.name: each for each in SETTINGS}
    return Reading.of({name: known[name].check(known[name].read(v)) for name, v in given.items() if v is not None})
