"""Errors name settings, and each front end has its own word for them."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffgb.errors import FFGBError, SettingError, as_parameter, command, option
from ffgb.federation.participants import Participants
from tests.conftest import ROOT

SOURCES = [
    path for path in sorted((ROOT / "src/ffgb").rglob("*.py")) if path.relative_to(ROOT / "src/ffgb").parts[0] != "cli"
]
FLAG = re.compile(r"(^|[ (])--[a-z]")


def flags(tree: ast.AST) -> Iterator[str]:
    """Texts with flags in what is raised, or made to be raised."""
    errors = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"))
    ]
    for node in (part for error in errors for part in ast.walk(error)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value):
            yield node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_spells_a_flag(path: Path) -> None:
    """Write `option("rounds")` for a setting, and `command("train", resume=True)` for a command to type."""
    assert list(flags(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    ['raise FFGBError("choose another --map")', 'raise FFGBError(f"{x}; use --map {y}")', 'raise E("--by is x") from e',
     'return FFGBError("a thing (--distill clients)")', 'raise missing_extra("ray", "x", "--engine flower")'],
)  # fmt: skip
def test_the_search_finds_them(line: str) -> None:
    assert list(flags(ast.parse(line)))


def test_each_front_end_has_its_own_words() -> None:
    error = FFGBError(f"use {option('step_size')}, {option('geometry', 'local')} or {option('ridge', 0.5)}")
    assert str(error) == "use --step-size, --geometry local or --ridge 0.5"
    assert error.worded(as_parameter) == "use step_size, geometry='local' or ridge=0.5"
    assert str(SettingError("by", "is server or clients")) == "--by is server or clients"
    assert command("train", resume=True, out=Path("a/b")) == "ffgb train --resume --out a/b"


def test_a_refusal_that_is_logged_is_worded(caplog: pytest.LogCaptureFixture) -> None:
    clients = Participants([1, 1], minimum=1)
    with caplog.at_level(logging.WARNING, "ffgb"):
        clients.refuse(0, FFGBError(f"diverged; choose a smaller {option('step_size')}").raw)
    assert "choose a smaller --step-size" in caplog.text
