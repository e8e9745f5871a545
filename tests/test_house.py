"""A rule of the house that no linter checks: functions are short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 60
"""Lines of a function, without its docstring."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "ffgb")))
def test_functions_are_short(path: Path) -> None:
    long = {f.name: length(f) for f in functions(ast.parse(path.read_text())) if length(f) > LONGEST}
    assert not long, f"functions with more than {LONGEST} lines: {long}"
