"""Configuration files with mistakes: no traceback, and each error names the setting, the line and what is allowed."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.deployment.policy import Policy
from ffgb.errors import FFGBError
from ffgb.runs.config import SETTINGS, Config, read_settings
from ffgb.toml_files import read_toml

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
        ("\n[participants]\nnorth = 5\n", "names"),
        ("[participants]\n[least_rows]\n", "line 2: least_rows is a whole number"),
    ],
)
def test_wrong_rules(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(content)
    with pytest.raises(FFGBError, match=words):
        Policy.read(file)


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
