"""Do the tests notice a defect?  Defects are made in the core, one at a time, and the tests that execute the line run.

python benchmarks/mutation.py [--mutants 200] [--seed 0] [--seconds 3600] [--only losses questions] [--json FILE]

First the tests run once with a tracer, which says which tests execute which line, and how long each takes.  Then each
defect is written into a copy of src/, and the tests of its line run, the fastest first, until one fails.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("src/ffgb/core")
TESTS = (
    "tests/core",
    "tests/data/test_survey.py",
    "tests/algorithms",
    "tests/features/test_bins.py",
    "tests/learners/test_linear.py",
    "tests/learners/test_linear_minimax.py",
    "tests/federation/test_server.py",
    "tests/federation/test_setup.py",
)
LONGEST = 60.0
"""Seconds of tests, in the traced run, that a defect may take."""
MANY = 60
"""How many tests may run for a defect."""
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Where: TypeAlias = tuple[int, int]


@final
@dataclass(frozen=True)
class Defect:
    """A place of a file, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  →  {self.after}"


COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
}
CALLED = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "log": "log1p",
    "log1p": "log",
    "exp": "expm1",
    "expm1": "exp",
    "mean": "sum",
    "sum": "mean",
    "float64": "float32",
    "left": "right",
    "argmax": "argmin",
    "argmin": "argmax",
}


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What may stand in the place of a node of the syntax tree."""
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARED:
            others = [COMPARED[type(operator)](), *node.ops[1:]]
            yield node, ast.unparse(ast.Compare(node.left, others, node.comparators))
        case ast.BinOp() if type(node.op) in COMPUTED:
            yield node, ast.unparse(ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right))
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield node, ast.unparse(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, ast.unparse(node.operand)
        case ast.IfExp():
            yield node, ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Constant(value=bool()):
            yield node, repr(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield node, repr(number + 1)
        case ast.Attribute() if node.attr in CALLED:
            yield node, ast.unparse(ast.Attribute(node.value, CALLED[node.attr], ast.Load()))
        case ast.Name(id=name) if name in CALLED:
            yield node, CALLED[name]
        case ast.AugAssign() if type(node.op) in COMPUTED:
            yield node, ast.unparse(ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value))
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield test, f"not {ast.unparse(test)}"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"


def spared(node: ast.AST) -> bool:
    """Parts of a file that say nothing about what it computes: annotations, texts of errors, what cannot happen."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walked(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not spared(child):
                yield from walked(child)


def defects(file: Path) -> list[Defect]:
    """All that can be made in a file."""
    text = (ROOT / file).read_text()
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    for node in walked(ast.parse(text)):
        for place, after in changes(node):
            assert isinstance(place, ast.expr | ast.stmt)
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            start, end = lines[place.lineno - 1] + place.col_offset, lines[place.end_lineno - 1] + place.end_col_offset
            statement = isinstance(place, ast.stmt)
            before = text.encode()[start:end].decode()
            found.append(Defect(str(file), place.lineno, start, end, before, after if statement else f"({after})"))
    return found


@final
@dataclass(frozen=True)
class Traced:
    """Which tests execute a line, and how many seconds each test takes."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    @staticmethod
    def of(folder: Path, tests: Sequence[str]) -> Traced:
        """Run the tests once."""
        import coverage

        data, report = folder / "coverage", folder / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--cov={ROOT / CORE}"]
        command += ["--cov-context=test", "--cov-report=", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=ROOT, env=environment(ROOT) | {"COVERAGE_FILE": str(data)}, check=False)
        seconds = {}
        for case in ElementTree.parse(report).iter("testcase"):  # of the run above
            if not list(case):  # it neither failed nor was skipped
                name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
                seconds[name] = float(case.get("time", 0.0))
        read = coverage.CoverageData(str(data))
        read.read()
        lines = {}
        for file in read.measured_files():
            by_line = read.contexts_by_lineno(file)
            names = {n: sorted({c.rpartition("|")[0] for c in by_line[n]} & set(seconds)) for n in by_line}
            lines[str(Path(file).relative_to(ROOT))] = names
        return Traced(lines, seconds)

    def tests(self, defect: Defect) -> list[str]:
        """Those that execute a defect's line, the fastest first; for a line of a module or a class, all of its file."""
        by_line = self.lines.get(defect.file, {})
        if defect.line not in by_line:
            return []
        chosen = by_line[defect.line] or sorted({name for names in by_line.values() for name in names})
        own = f"test_{Path(defect.file).stem}.py"
        chosen.sort(key=lambda name: self.seconds[name] * (0.2 if own in name else 1.0))
        few: list[str] = []
        total = 0.0
        for name in chosen[:MANY]:
            total += self.seconds[name]
            if few and total > LONGEST:
                break
            few.append(name)
        return few


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, **THREADS, "PYTHONPATH": str(root / "src")}


def in_a_fork(source: Path, tests: Sequence[str], seconds: float) -> str:
    """Run tests with another copy of the package: "failed", "passed" or "late"."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", *tests])))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "late"


def tried(defect: Defect, source: Path, traced: Traced) -> str:
    """What the tests say of a defect: "failed", "passed", "late", or "unseen" if none executes its line."""
    tests = traced.tests(defect)
    if not tests:
        return "unseen"
    file = source.parent / defect.file
    text, times = file.read_bytes(), file.stat()
    compiled = Path(importlib.util.cache_from_source(str(file)))
    kept = compiled.read_bytes()
    compiled.unlink()
    file.write_bytes(text[: defect.start] + defect.after.encode() + text[defect.end :])
    try:
        return in_a_fork(source, tests, 30.0 + 4.0 * sum(traced.seconds[name] for name in tests))
    finally:
        file.write_bytes(text)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        compiled.write_bytes(kept)


def prepared() -> None:
    """What every test loads is loaded once, before the forks; the package itself is not."""
    import numpy as np
    import pandas as pd
    import pytest
    import scipy.special
    import scipy.stats
    import sklearn.datasets
    import sklearn.linear_model
    import sklearn.tree

    assert np
    assert pd
    assert pytest
    assert scipy.special
    assert scipy.stats
    assert sklearn.datasets
    assert sklearn.linear_model
    assert sklearn.tree
    assert "ffgb" not in sys.modules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no defect after so many seconds")
    parser.add_argument("--only", nargs="*", default=[], help="files of the core, by parts of their names")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.update(THREADS)
    os.chdir(ROOT)
    files = sorted(f.relative_to(ROOT) for f in (ROOT / CORE).rglob("*.py"))
    files = [f for f in files if not given.only or any(part in str(f) for part in given.only)]
    every = [defect for file in files for defect in defects(file)]
    chosen = random.Random(given.seed).sample(every, min(given.mutants, len(every)))
    print(f"{len(every):,} defects can be made in {len(files)} files; {len(chosen)} are tried", flush=True)
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        traced = Traced.of(Path(folder), given.tests)
        print(f"traced {len(traced.seconds):,} tests, {sum(traced.seconds.values()):.0f} s", flush=True)
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(source, quiet=1)
        sys.path = [path for path in sys.path if Path(path) != ROOT / "src"]
        sys.path.insert(0, str(ROOT))
        prepared()
        until = time.monotonic() + given.seconds
        for defect in chosen:
            if time.monotonic() > until:
                break
            result = tried(defect, source, traced)
            said.append({**asdict(defect), "result": result})
            if result not in ("failed", "late"):
                print(f"{result}  {defect}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(said, indent=1))
    caught = sum(one["result"] in ("failed", "late") for one in said)
    print(f"{caught} of {len(said)} defects were noticed ({caught / max(len(said), 1):.1%})")


if __name__ == "__main__":
    main()
