"""Configuration files with mistakes: no traceback, and each error names the setting, the line and what is allowed."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.data.schema_file import SchemaFile
from ffgb.deployment.job_file import read_job
from ffgb.deployment.policy import Policy
from ffgb.errors import FFGBError
from ffgb.runs.config import SETTINGS, Config, read_settings
from ffgb.toml_files import read_toml

MARK = "4e4a:2ff5:d1eb:7784:15b9:d97b:b61c:70db"
WRONG: dict[str, tuple[str | bytes, str]] = {
    "a word for a number": ('target = "y"\nrounds = "ten"\n', "line 2: rounds is a whole number from 1.*, not 'ten'"),
    "a fraction for a whole number": ("rounds = 2.5\n", "line 1: rounds is a whole number from 1 on.*, not 2.5"),
    "too small": ("\n\nrounds = 0\n", "line 3: rounds is a whole number from 1 on, not 0"),
    "a number for text": ("target = 5\n", "line 1: target is a name, or None, not 5"),
    "a number for a switch": ("stop = 1\n", "line 1: stop is True or False.*, not 1"),
    "a switch for a number": ("seed = true\n", "line 1: seed is a whole number from 0 on, not True"),
    "no choice": ('task = "regresion"\n', "line 1: task is classification or regression, not 'regresion'"),
    "a number in names": ("categories = [1, 2]\n", r"line 1: categories is names such as \['age'\], not \(1, 2\)"),
    "a table": ("[rounds]\nmost = 5\n", "line 1: rounds is a whole number from 1 on"),
    "a table of options": ("[training]\nrounds = 5\n", "line 1, has 'training', which is no option; see: "),
    "a misspelt name": (
        "# ours\nronds = 5\n", r"line 2, has 'ronds', which is no option \(did you mean 'rounds'\?\)"),
    "the same by two names": ("local-steps = 2\nlocal_steps = 3\n", "line 2: local_steps is given twice; remove one"),
    "the same name twice": ("rounds = 2\nrounds = 3\n", r"Cannot overwrite a value \(at line 2, column"),
    "text without quotes": ("rounds = 3\ntarget = outcome\n", 'line 2.*; put quotes around text: target = "…"'),
    "no value": ("rounds =\n", "Invalid value .at line 1"),
    "no TOML": ("rounds: 3\n", "at line 1"),
    "infinite": ("ridge = inf\n", "line 1: ridge "),
    "a date": ("target = 2020-01-01\n", r"line 1: target is a name, or None, not datetime\.date"),
    "lists in lists": ('drop = [["a"]]\n', "line 1: drop is names"),
    "another encoding": ('target = "Größe"\n'.encode("latin-1"), "line 1, cannot be read as TOML: it is not UTF-8"),
    "a spreadsheet": (b"PK\x03\x04\n\xff\xfe\x00", "line 2, cannot be read as TOML"),
    "too long": (b"#" * 2**21, "more than 1,048,576 bytes"),
    "a step backwards": ('seed = 1\nstep_size = -1.0\n', "line 2: step_size is a number above 0, not -1"),
    "no concentration": ("alpha = 0\n", "line 1: alpha is a number above 0, not 0"),
    "more than all put aside": ("trim = 0.6\n", "line 1: trim is a number from 0 below 0.5, not 0.6"),
    "no such mark": ('sep = "##"\n', "line 1: sep is comma or semicolon or tab or bar, not '##'"),
    "no sizes": ("hidden = []\n", r"line 1: hidden is whole numbers such as \(32, 32\), or None, not \(\)"),
    "a flag of the command": ('out = "x"\n', "line 1, has 'out', which is no option; see: ffgb train --help-all"),
    "nested": ("drop = " + "[" * 5000, "cannot be read as TOML: it is nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings(tmp_path: Path, name: str) -> None:
    content, words = WRONG[name]
    file = tmp_path / "run.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FFGBError) as caught:
        read_settings(file)
    assert str(caught.value).startswith(str(file))
    assert re.search(words, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("least_rows = 10\nleast_cell = 0\n", "line 2: least_cell is at least 1, not 0"),
        ('secure = "yes"\n', "line 1: secure is true or false, not 'yes'"),
        ("least_sites = 2\n", "line 1: least_sites is at least 3"),
        ("lest_sites = 5\n", r"line 1, has 'lest_sites', which is no rule \(did you mean 'least_sites'\?\)"),
        ("\n[participants]\nnorth = 5\n", "line 3: participants has 5 for 'north', which is no fingerprint"),
        (
            '[participants]\nwest = "4e4a:2ff5"\n',
            "line 2: participants has '4e4a:2ff5' for 'west', .* eight groups of four",
        ),
        (f'least_sites = 5\n[participants]\nwest = "{MARK}"\n', "line 2: participants names 1 other sites, and least"),
        (
            '\nrefuse = ["Gram"]\n',
            r"line 2: refuse has 'Gram', .* \(did you mean 'GramOf'\?\); kinds are BelowEdges",
        ),
        ('refuse = "GramOf"\n', "line 1: refuse is a list of names, not 'GramOf'"),
        ("delta = 2\n", "line 1: delta is a number from 0 below 1, not 2"),
        ("epsilon = nan\n", "line 1: epsilon is a number from 0 to 50, not nan"),
        ("trainings = 0\n", "line 1: trainings is at least 1, not 0"),
        ("least = 5.0\n", "line 1: least is a whole number, not 5.0"),
        ("parameters_per_row = true\n", "line 1: parameters_per_row is a number, not True"),
        ('participants = ["west"]\n', "line 1: participants is a table of names and fingerprints"),
        ("secure = True\n", "Invalid value .at line 1.*; put quotes"),
        ("secure: true\n", "Expected '=' .* .at line 1"),
        ("reopen = 1\n", "line 1: reopen is true or false, not 1"),
        ("[secure]\nall = 1\n", "line 1: secure is true or false"),
        ("colluders = 0\n", "line 1: colluders is at least 1, not 0"),
        ("[participants]\n[least_rows]\n", "line 2: least_rows is a whole number"),
    ],
)
def test_wrong_rules(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(content)
    with pytest.raises(FFGBError, match=words):
        Policy.read(file)


SCHEMAS: dict[str, tuple[str, str]] = {
    "nothing in it": ("", "has no columns; each has a table such as"),
    "another part": ("target = 'a'\ncolumn.a = 1\n", r"line 2, has 'column', .* \(did you mean 'columns'\?\)"),
    "a number as target": ("target = 5\n[columns.a]\n", "line 1: target is the name of a column, not 5"),
    "a number as missing": ("missing = -999\n[columns.a]\n", r"line 1: missing is a list of texts"),
    "numbers as missing": ("missing = [-999]\n[columns.a]\n", "line 1: missing is a list of texts"),
    "no table": ("[columns]\na = 'number'\n", r"line 2: a column is a table such as \[columns.age\], not 'number'"),
    "a list of tables": ("\n[[columns.a]]\ntype = 'number'\n", "line 2: a column is a table"),
    "no type": ("[columns.a]\ntype = 'int'\n", "line 2: type of 'a' is one of number, category, date, drop, not 'int'"),
    "a misspelt part": ("[columns.a]\ntyp = 'date'\n", r"line 2, has 'typ', .* \(did you mean 'type'\?\); parts are"),
    "bounds the wrong way": ("[columns.a]\nbounds = [5, 1]\n", "line 2: bounds of 'a' is the least and the largest"),
    "one bound": ("[columns.a]\nbounds = [5]\n", "line 2: bounds of 'a'"),
    "bounds as text": ("[columns.a]\nbounds = ['0', '9']\n", "line 2: bounds of 'a'"),
    "no end": ("[columns.a]\nbounds = [0, inf]\n", "line 2: bounds of 'a'"),
    "bounds of a category": ("[columns.a]\ntype = 'category'\nbounds = [0, 1]\n", "line 3: bounds is for .* number"),
    "numbers as categories": ("[columns.a]\ntype = 'category'\ncategories = [1]\n", "line 3: categories of 'a'"),
    "a category twice": ("[columns.a]\ntype = 'category'\ncategories = ['f', 'f']\n", "line 3: .* different texts"),
    "no categories": ("[columns.a]\ntype = 'category'\ncategories = []\n", "line 3: categories of 'a'"),
    "no order": ("[columns.a]\ntype = 'date'\norder = 'ydm'\n", "line 3: order of 'a' is one of dmy, mdy, not 'ydm'"),
    "an order of numbers": ("[columns.a]\norder = 'dmy'\n", "line 2: order is for columns of the type date"),
    "a target that is dropped": ("target = 'a'\n[columns.a]\ntype = 'drop'\n", "line 2: the target 'a' is a number or"),
    "a column twice": ("[columns.a]\n[columns.a]\n", "twice .at line 2"),
    "text without quotes": ("[columns.a]\ntype = number\n", "line 2.*put quotes around text: type"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_wrong_schemas(tmp_path: Path, name: str) -> None:
    content, words = SCHEMAS[name]
    file = tmp_path / "schema.toml"
    file.write_text(content)
    with pytest.raises(FFGBError, match=words) as caught:
        SchemaFile.read(file)
    assert str(caught.value).startswith(str(file))


JOBS: dict[str, tuple[str, str]] = {
    "a word for a number": ("rounds = 'x'", "the server's job: rounds is a whole number from 1 on"),
    "a number for a name": ("target = 5", "the server's job: target is a name, or None, not 5"),
    "no choice": ("secure = 'maybe'", "the server's job: secure is on or off, not 'maybe'"),
    "too small": ("ridge = -1", "the server's job: ridge is a number from 0 on, not -1"),
    "a file's own option": ("sep = ';'", "has 'sep', which this site does not know as a part of a job"),
    "files": ("data = ['a']", "has 'data', which this site does not know"),
    "no option": ("x = 1", "has 'x', which this site does not know"),
    "code": ("learner = 'my.module:X'", "names code, my.module:X: no site should run code for another"),
    "a model": ("start = 'model'", "names a file, start, which must be here too: .* --config"),
    "a map": ("map = 'a.onnx'", "names a file, a.onnx, which must be here too"),
    "no TOML": ("rounds =", "cannot be read; the server and this site need the same version"),
}


@pytest.mark.parametrize("name", JOBS)
def test_wrong_jobs(name: str) -> None:
    content, words = JOBS[name]
    with pytest.raises(FFGBError, match=words):
        read_job(content)


VALUES = st.sampled_from(
    ["5", "-1", "1.5", "'x'", "true", "[]", "[1]", "['a', 2]", "{a = 1}", "nan", "inf", "2020-01-01", "[[1]]", "''"]
)


@given(name=st.sampled_from(sorted(SETTINGS)), value=VALUES)
def test_any_value_of_any_setting_is_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: str
) -> None:
    file = tmp_path_factory.mktemp("any") / "run.toml"
    file.write_text(f"{name} = {value}\n")
    with suppress(FFGBError):
        Config(**read_settings(file))


def test_lines_and_values(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b'\xef\xbb\xbfa = 1\r\n"b c" = [\r\n  "x",\r\n]\r\n\r\n[t]\r\nd = 2\r\n[t."e f"]\r\ng = 3\r\n')
    found = read_toml(file)
    assert found.values == {"a": 1, "b c": ["x"], "t": {"d": 2, "e f": {"g": 3}}}
    keys = (("a",), ("b c",), ("t",), ("t", "d"), ("t", "e f"), ("t", "e f", "g"), ("t", "gone"), ("gone",))
    ends = [found.at(*key).removeprefix(str(file)) for key in keys]
    assert ends == [", line 1", ", line 2", ", line 6", ", line 7", ", line 8", ", line 9", ", line 6", ""]
