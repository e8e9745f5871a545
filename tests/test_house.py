"""Rules of the house that no linter checks: functions are short, constants are named, and no import hides a cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 60
"""Lines of a function's body: without its parameters and its docstring."""


WHEN_CALLED = ("cli", "__init__", "report/__init__", "core/losses/__init__")
"""Where our own modules may be imported inside a function, or for types alone, as the module says: the commands and two
packages, so that these start quickly; and the losses, which the package finds by their files."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    last = function.end_lineno
    assert last is not None
    return last - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "ffgb")))
def test_functions_are_short(path: Path) -> None:
    long = {f.name: length(f) for f in functions(ast.parse(path.read_text())) if length(f) > LONGEST}
    assert not long, f"functions with more than {LONGEST} lines: {long}"


BARE = frozenset({"MOST", "FEW", "MANY", "ENOUGH", "ONLY", "APART", "CARE", "REST", "MORE"})
"""Words that do not say of what: a constant needs a noun."""


def test_constants_have_a_noun() -> None:
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            bare = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            assert not BARE & set(bare), f"{path}:{node.lineno}"


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Our own modules that a module imports, and whether it does so when it is imported itself."""
    modules = {".".join(p.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for p in SOURCES}

    def of(node: ast.AST, *, at_once: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, at_once) for alias in child.names if alias.name in modules)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                yield from ((name if name in modules else str(child.module), at_once) for name in names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from of(child, at_once=False)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from of(child, at_once=at_once and not inside)

    return ((name, now) for name, now in of(ast.parse(path.read_text()), at_once=True) if name in modules)


def test_no_import_is_put_off() -> None:
    for path in SOURCES:
        place = path.relative_to(ROOT / "src" / "ffgb").with_suffix("").as_posix()
        if place.split("/")[0] not in WHEN_CALLED and place not in WHEN_CALLED:
            late = [name for name, at_once in imported(path) if not at_once]
            assert not late, f"{place} imports {late} inside a function, or for types alone"


def test_no_import_makes_a_cycle_wherever_it_stands() -> None:
    needs = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): {
            name for name, _ in imported(path)
        }
        for path in SOURCES
    }
    assert len(needs) > 250
    while free := [name for name, others in needs.items() if not (others - {name}) & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs, f"in cycles, or above one: {sorted(needs)}"


@pytest.mark.parametrize(
    ("arguments", "foreign"),
    [
        (("-c", "import ffgb"), {"numpy", "rich", "typer"}),
        (("-m", "ffgb", "--help"), {"scipy", "pandas", "sklearn", "pyarrow", "torch"}),
    ],
)
def test_what_starts_quickly_imports_little(arguments: tuple[str, ...], foreign: set[str]) -> None:
    """`import ffgb` takes a tenth of a second, `ffgb --help` half a second of processor at most."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "ffgb" in imported
    assert not imported & foreign
