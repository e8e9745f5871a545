"""`ffgb data describe` and `ffgb data check`, as a site uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import ffgb.cli.schemas  # noqa: F401  (its commands)
from ffgb.cli.common import app
from ffgb.errors import FFGBError

TABLE = "age;sex;admitted;sick\n" + "".join(
    f"{30 + i % 40};{'fm'[i % 2]};{1 + i % 28:02}.05.2020;{'yes' if i % 3 else 'no'}\n" for i in range(60)
)


def run(*words: object) -> tuple[int, str, str]:
    """Exit code, output, and what went wrong."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, FFGBError):
        return 2, done.output, str(done.exception)
    return done.exit_code, done.output, ""


def test_from_a_draft_to_a_checked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(TABLE)
    assert run("data", "describe", "a.csv", "--target", "sick", "-o", "schema.toml")[0] == 0
    code, said, _ = run("data", "check", "a.csv", "--schema", "schema.toml")
    assert code == 0
    assert "a.csv: ready: 4 columns are as the schema says, 1 of them dates" in said
    assert run("data", "describe", "a.csv", "-o", "schema.toml")[2].startswith("schema.toml is there already")
    # everything that is wrong at once, in one table
    rows = TABLE.replace("\n31;m", "\n310;m").replace(";sex", ";gender").replace(";yes", ";", 1)
    Path("b.csv").write_text(rows)
    code, said, error = run("data", "check", "a.csv", "b.csv", "--schema", "schema.toml")
    assert code == 2
    assert error == "1 of 2 files does not fit schema.toml; correct the file, or the schema at all sites"
    for words in (
        "b.csv: not in the schema, and not used: gender",
        "b.csv: the column 'sex' is missing",
        "b.csv: the target 'sick' has no value in row 2; remove such rows",
        "b.csv: column 'age' has 310 in row 2, 310 in row 42; the schema allows numbers from 30 to 70",
    ):
        assert words in said


def test_a_file_that_cannot_be_read_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text("[columns.age]\n")
    code, said, _ = run("data", "check", "gone.csv", "--schema", "schema.toml")
    assert (code, said) == (2, "gone.csv: does not exist; check the path\n")
    assert run("data", "describe", "gone.csv")[2] == "gone.csv does not exist; check the path"
    Path("a.csv").write_text("age\nforty\n41\n")
    code, said, _ = run("data", "check", "a.csv", "--schema", "schema.toml")
    assert code == 2
    assert "column 'age' has text where numbers belong, 'forty' in row 1" in said
