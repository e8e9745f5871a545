"""Do the tests notice a defect?  Defects are made in the source, one at a time, and the tests that run its line try it.

python benchmarks/mutation.py --folder FOLDER [--mutants 200] [--seed 0] [--seconds 280] [--only losses] [--again]
                              [--named]

First each test file runs once under a tracer, which says which tests execute which lines, and how long each takes.
Then each defect is written into a copy of src/, and the tests of its line run until one fails: first those of the
module's own test file, then those of all other test files in turn.  A test that failed runs again without the defect,
so that a failure with another cause does not count.  With --named nothing is traced: a defect is tried by the test file
of its module, by a few others that name the module or what stands in it, and by written models (tests/golden).

FOLDER keeps traces and results: the same command goes on where it stopped, and several may work in one folder.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PACKAGES = ("core", "algorithms", "learners", "federation", "privacy")
"""Parts of src/ffgb in which defects are made."""
CONTRACT = "tests/runs/test_defaults.py"
"""Tests of what a module says when it is imported: they run for each defect that is in no function."""
TESTS = (
    *("tests/core", "tests/algorithms", "tests/learners", "tests/federation", "tests/privacy", "tests/features"),
    *("tests/studies/test_theory.py", "tests/runs/test_onnx.py", "tests/runs/test_glm.py", "tests/runs/test_cox.py"),
    *(
        "tests/runs/test_kaplan_meier.py",
        "tests/runs/test_starting.py",
        "tests/data/test_weights.py",
        "tests/test_sklearn.py",
    ),
    *("tests/runs/test_additive.py", "tests/data/test_survey.py", "tests/protocol/test_messages.py", CONTRACT),
)
"""The tests of these packages, and of what is built on them, as far as they run in one process."""
SLOW = ("test_leaks", "test_leaks_totals", "test_lies_in_set_up", "test_lies_in_rounds", "test_shared", "test_honest")
"""Left out, as all other tests: what these alone would notice counts as missed."""
SLOW_JOBS = (
    *("own-net", "tree-resumed", "distilled-by-clients", "reweighted", "flower", "sites", "shared-sites"),
    *("sites-here", "shared-sites-here", "shared-two-workers", "shared-photos", "fedavg-own-net"),
)
"""Written models (tests/golden) that take longer than the others."""
SHARED = ("shared",)
TREES = ("boosted", "blended", "additive")
JUDGED = ("shared-tables", "ffgb-l", "boosted", "posterior")
WRITTEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("private", "/privacy/"), ("private",)),
    **dict.fromkeys(("additive_shared", "learners/additive", "core/additive", "cell_sums"), ("additive",)),
    "blend": ("blended",),
    **dict.fromkeys(("trees_shared", "boosted", "histogram", "tree_growth", "together", "merged_cells"), TREES),
    **dict.fromkeys(("folds", "versions", "kernels", "splits", "exact_sums", "contributions"), TREES),
    **dict.fromkeys(("conformal", "estimates", "judgement", "probability_cells", "disclosure"), JUDGED),
    "learners/mlp": ("mlp", "fedavg", "ffgb-l-net"),
    "learners/nets": ("cnn",),
    **dict.fromkeys(("lipschitz", "ffgb_l", "steepness", "minimax"), ("ffgb-l",)),
    "learners/linear": ("linear", "features", "ffgb-l"),
    "learners/trees": ("tree",),
    "ffgb_c": ("ffgb-c",),
    **dict.fromkeys(("parametric", "mime", "scaffold", "fedprox", "fedavg"), ("fedavg", "mime", "scaffold", "fedprox")),
    **dict.fromkeys(("ffgb_posterior", "core/prior"), ("posterior", *SHARED)),
    **dict.fromkeys(("core/grams", "core/geometry", "ffgb_shared", "core/gradients", "core/moments"), SHARED),
    **dict.fromkeys(("core/quantiles", "core/maps", "core/cholesky"), SHARED),
}
"""Words in names of written models, by parts of the names of files that they are about.  Others get every third."""
UNWRITTEN = ("regression/", "recalibration", "masked", "survey")
"""Files that no written model is about."""
ABOUT: dict[str, tuple[str, ...]] = {
    "privacy/release": ("tests/deployment/test_private.py",),
    **dict.fromkeys(("core/baseline", "core/concordance", "core/losses/cox"), ("tests/runs/test_times.py",)),
    **dict.fromkeys(
        ("federation/", "privacy/masks", "privacy/tolerance", "privacy/secured"),
        ("tests/federation/test_written_messages.py",),
    ),
    "core/conformal": ("tests/runs/test_conformal.py",),
    "core/contributions": ("tests/runs/test_explain.py",),
    "core/recalibration": ("tests/runs/test_recalibrate.py",),
    **dict.fromkeys(("core/private_", "algorithms/additive_private", "privacy/noise"), ("tests/runs/test_private.py",)),
    "boosted_trees": ("tests/runs/test_boosted_trees.py",),
    "core/kernels": ("tests/learners/test_boosted_trees.py",),
    "core/private_question": ("tests/core/test_private_sums.py",),
    "learners/adapter": ("tests/test_sklearn.py",),
    **dict.fromkeys(
        ("federation/increments", "federation/boosting", "federation/form", "federation/state", "federation/client"),
        ("tests/federation/test_server.py", "tests/algorithms/test_parametric.py", "tests/engines/test_faults.py"),
    ),
    **dict.fromkeys(
        ("federation/conversation", "federation/participants", "federation/totals", "federation/host", "federation/s"),
        ("tests/engines/test_faults.py",),
    ),
    **dict.fromkeys(
        ("core/questions", "core/gradients", "core/grams", "core/moments"),
        ("tests/core/test_written_questions.py",),
    ),
    **dict.fromkeys(
        (
            "core/cell_sums",
            "core/merged_cells",
            "core/exact_sums",
            "core/folds",
            "core/slopes_along",
            "core/histograms",
        ),
        ("tests/core/test_written_questions.py",),
    ),
}
"""Test files that are about a file beside the one that mirrors it, by parts of the names of files."""
COMPILED = ("src/ffgb/core/kernels.py",)
"""The tracer does not see lines that numba compiled."""
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MEMORY = 4 << 30
"""Bytes that tests of a defect may take."""


@final
@dataclass(frozen=True)
class Defect:
    """A place of a file, and what stands there instead."""

    file: str
    line: int
    first: int
    last: int
    """Lines of the statement that contains the place; without those of statements inside it."""
    inside: str
    """The class and the function, as in "Blocks.solve"; empty in a module."""
    runs: bool
    """It is in the body of a function."""
    start: int
    end: int
    statement: str
    """Its text, on one line."""
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.inside}): {self.before}  →  {self.after}\n        {self.statement}"

    @property
    def name(self) -> str:
        return hashlib.sha256(f"{self.file} {self.start} {self.end} {self.before} {self.after}".encode()).hexdigest()[
            :16
        ]

    @property
    def own(self) -> str:
        """The test file that mirrors the module."""
        return f"test_{Path(self.file).stem.strip('_')}.py"


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
        case ast.Name(id=name, ctx=ast.Load()) if name in CALLED and name != "log":  # log is the logger
            yield node, CALLED[name]
        case ast.AugAssign() if type(node.op) in COMPUTED:
            yield node, ast.unparse(ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value))
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield test, f"not {ast.unparse(test)}"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"


def spared(node: ast.AST) -> bool:
    """Parts of a file that do not compute: texts of errors, assertions of what cannot happen, types."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.keyword(arg="strict"):  # zip's assertion that lengths agree
            return True
        case ast.keyword(arg="check_finite" | "overwrite_a" | "overwrite_b" | "hermitian" | "copy"):
            return True  # a matter of speed, or of the last bit
        case ast.BinOp(op=ast.BitOr(), left=ast.Name(id=name)) if name[0].isupper() and not name.isupper():
            return True  # A | B of classes: A & B is no program
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr="debug"))):
            return True
        case ast.If():
            return "TYPE_CHECKING" in ast.unparse(node.test)
    return False


def open_lengths(tree: ast.AST) -> set[ast.AST]:
    """The 1 of reshape(…, -1, …): NumPy reads any negative number so."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    shapes = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "reshape"]
    sizes = [size for call in shapes for size in call.args if isinstance(size, ast.UnaryOp)]
    return {size.operand for size in sizes if isinstance(size.operand, ast.Constant)}


@final
@dataclass(frozen=True)
class Place:
    """A node of the syntax tree and where it stands."""

    node: ast.AST
    statement: ast.AST
    inside: tuple[str, ...] = ()
    runs: bool = False


def walked(place: Place) -> Iterator[Place]:
    yield place
    node = place.node
    inside, runs = place.inside, place.runs
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        inside = (*inside, node.name)
    for name, children in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        within = runs or (isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body")
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, ast.AST) and not spared(child):
                statement = child if isinstance(child, ast.stmt) else place.statement
                yield from walked(Place(child, statement, inside, within))


def header(statement: ast.AST) -> tuple[int, int]:
    """First and last line of a statement, without the statements inside it."""
    assert isinstance(statement, ast.stmt)
    assert statement.end_lineno is not None
    body = getattr(statement, "body", None)
    first = min((d.lineno for d in getattr(statement, "decorator_list", [])), default=statement.lineno)
    if isinstance(body, list):
        return first, max(statement.lineno, body[0].lineno - 1)
    return first, statement.end_lineno


def defects(file: Path) -> list[Defect]:
    """All that can be made in a file."""
    text = (ROOT / file).read_text()
    data = text.encode()
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    tree = ast.parse(text)
    found, any_number = [], open_lengths(tree)
    for where in (place for place in walked(Place(tree, tree)) if place.node not in any_number):
        for place, after in changes(where.node):
            assert isinstance(place, ast.expr | ast.stmt)
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            start, end = lines[place.lineno - 1] + place.col_offset, lines[place.end_lineno - 1] + place.end_col_offset
            first, last = header(where.statement)
            written = " ".join(data[lines[first - 1] : lines[last]].decode().split())
            before = " ".join(data[start:end].decode().split())
            instead = after if isinstance(place, ast.stmt) else f"({after})"
            inside = ".".join(where.inside)
            at = (str(file), place.lineno, first, last, inside, where.runs, start, end)
            found.append(Defect(*at, written, before, instead))
    return found


def equivalent(defect: Defect, known: Sequence[dict[str, str]]) -> str:
    """Why a defect changes nothing that a test could notice; empty if nobody wrote that down.

    An entry gives the fields of the defects that it is about, and the reason.
    """
    fields = asdict(defect)
    for one in known:
        if all(fields[name] == value for name, value in one.items() if name != "why"):
            return one["why"]
    return ""


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, **THREADS, "PYTHONPATH": str(root / "src")}


@final
class Recorder:
    """A plugin of pytest: how long each test takes, and which one fails first."""

    def __init__(self, coverage: Any = None, failed: Path | None = None) -> None:
        self.coverage, self.failed = coverage, failed
        self.seconds: dict[str, float] = {}
        self.bad: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self.bad.add(report.nodeid)
        self.written(report)

    def pytest_collectreport(self, report: Any) -> None:
        self.written(report)

    def written(self, report: Any) -> None:
        if report.failed and self.failed is not None and not self.failed.exists():
            self.failed.write_text(report.nodeid)


def trace(test: str, out: Path) -> None:
    """Run a test file and write which of its tests execute which lines."""
    import coverage
    import pytest

    measured = coverage.Coverage(
        data_file=None, source=[str(ROOT / "src/ffgb" / name) for name in PACKAGES], config_file=False
    )
    measured.start()
    plugin = Recorder(measured)
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", f"--basetemp={out}.tmp"]
    pytest.main([*flags, test], plugins=[plugin])
    measured.stop()
    seconds = {name: time for name, time in plugin.seconds.items() if name not in plugin.bad}
    read = measured.get_data()
    lines: dict[str, dict[int, list[str]]] = {}
    for file in read.measured_files():
        by_line = read.contexts_by_lineno(file)
        kept = {line: sorted(set(contexts) & set(seconds)) for line, contexts in by_line.items()}
        lines[str(Path(file).relative_to(ROOT))] = kept
    shutil.rmtree(f"{out}.tmp", ignore_errors=True)
    part = out.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"seconds": seconds, "lines": lines}))
    part.rename(out)


def claimed(path: Path) -> bool:
    """True for one of all processes that ask, until it removes the file or ends."""
    if path.exists() and not Path(f"/proc/{path.read_text() or os.getpid()}").exists():
        path.unlink(missing_ok=True)
    with suppress(FileExistsError), path.open("x") as file:
        file.write(str(os.getpid()))
        return True
    return False


def test_files(given: Sequence[str]) -> list[str]:
    """Those of the folders and the files that are given."""
    files = []
    for name in given:
        path = ROOT / name
        files += [path] if path.is_file() else sorted(file for file in path.rglob("test_*.py") if file.stem not in SLOW)
    return [str(file.relative_to(ROOT)) for file in files]


class Choice(Protocol):
    """Which tests try a defect."""

    def groups(self, defect: Defect) -> Sequence[Sequence[str]]:
        """Tests that run together, the likeliest to notice it first."""
        ...

    def limit(self, tests: Sequence[str]) -> float:
        """Seconds after which these tests count as late."""
        ...

    def may_be_unsound(self, test: str) -> bool:
        """A test that failed may fail without the defect, too: it is tried."""
        ...


@final
@dataclass(frozen=True)
class Named:
    """Tests by what they name: nothing has to be traced."""

    tests: Sequence[str]
    most: int = 4
    """Test files that try a defect beside its module's own."""
    least: int = 3
    """If fewer than these name the module, the test files of modules that import it are added."""

    @cached_property
    def texts(self) -> dict[str, str]:
        return {test: (ROOT / test).read_text() for test in self.tests}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Of the package, by the test file that mirrors each module."""
        return {f"test_{file.stem}.py": file.read_text() for file in sorted((ROOT / "src/ffgb").rglob("*.py"))}

    @cached_property
    def jobs(self) -> list[str]:
        """Written models (tests/golden) that take a second or two each."""
        written = json.loads((ROOT / "tests/golden/record.json").read_text())
        return [name for name in written if name not in SLOW_JOBS]

    def groups(self, defect: Defect) -> list[list[str]]:
        about = {test for part, tests in ABOUT.items() if part in defect.file for test in tests}
        own = [test for test in self.tests if Path(test).name == defect.own]
        own += sorted(about - set(own))
        return [group for group in (own, self._others(defect, own), self._written(defect)) if group]

    def _others(self, defect: Defect, own: Sequence[str]) -> list[str]:
        names, package = self._names(defect), Path(defect.file).parts[2]
        word = re.compile(rf"\b{re.escape(defect.inside.split('.')[0])}\b") if defect.inside else None

        def rank(test: str) -> tuple[bool, bool, int]:
            text = self.texts[test]
            return word is None or not word.search(text), Path(test).parts[1] != package, len(text)

        rest = [test for test in self.tests if test not in own]
        direct = sorted((test for test in rest if names.search(self.texts[test])), key=rank)
        some = [*direct, *(test for test in rest if word and test not in direct and word.search(self.texts[test]))]
        some = some[: self.most]
        if len(some) < self.least:
            users = {test for test, text in self.sources.items() if names.search(text)}
            more = [test for test in rest if Path(test).name in users and test not in some]
            some += more[: self.most - len(some)]
        return some if defect.runs else [CONTRACT, *some]

    @staticmethod
    def _names(defect: Defect) -> re.Pattern[str]:
        module = ".".join(Path(defect.file).with_suffix("").parts[1:]).removesuffix(".__init__")
        package, _, name = module.rpartition(".")
        return re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")

    def _written(self, defect: Defect) -> list[str]:
        """Written models of jobs with the algorithm or the learner that the file is about."""
        if any(word in defect.file for word in UNWRITTEN):
            return []
        words = next((words for part, words in WRITTEN.items() if part in defect.file), None)
        jobs = self.jobs[::3] if words is None else [job for job in self.jobs if any(word in job for word in words)]
        return [f"tests/golden/test_golden.py::test_a_job_comes_to_what_is_written[{job}]" for job in jobs]

    def limit(self, tests: Sequence[str]) -> float:
        return 240.0

    def may_be_unsound(self, test: str) -> bool:
        return bool(test)


@final
@dataclass(frozen=True)
class Traces:
    """Which tests execute a line, and how many seconds each test takes."""

    folder: Path
    tests: Sequence[str]
    longest: float = 25.0
    """Seconds of tests, in the traced run, that a defect may take beside those of its module's own test file."""
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    """Test files whose tests share what one of them made: the line may have run in another test."""

    def path(self, test: str, source: str) -> Path:
        digest = hashlib.sha256(source.encode() + (ROOT / test).read_bytes()).hexdigest()[:12]
        return self.folder / f"{test.replace('/', '.')}.{digest}.json"

    def made(self, until: float) -> bool:
        """Trace what is not traced, and read everything; false if time is over before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        source = hashlib.sha256(b"".join(f.read_bytes() for f in sorted((ROOT / "src/ffgb").rglob("*.py")))).hexdigest()
        paths = {test: self.path(test, source) for test in self.tests}
        for test, path in paths.items():
            if path.exists() or not claimed(path.with_suffix(".claim")):
                continue
            if time.monotonic() > until:
                path.with_suffix(".claim").unlink()
                return False
            command = [sys.executable, __file__, "--trace", test, str(path)]
            subprocess.run(command, cwd=ROOT, env=environment(ROOT), check=False, stdout=subprocess.DEVNULL)
            path.with_suffix(".claim").unlink()
        while not all(path.exists() for path in paths.values()):  # another process is about to write it
            if time.monotonic() > until:
                return False
            time.sleep(1.0)
        for test, path in paths.items():
            text = (ROOT / test).read_text()
            if "scope=" in text or "cache" in text:
                self.whole.add(test)
            traced = json.loads(path.read_text())
            self.seconds.update(traced["seconds"])
            for file, by_line in traced["lines"].items():
                here = self.lines.setdefault(file, {})
                for line, names in by_line.items():
                    here.setdefault(int(line), set()).update(names)
        return True

    def limit(self, tests: Sequence[str]) -> float:
        return 30.0 + 4.0 * sum(self.seconds[name] for name in tests)

    def may_be_unsound(self, test: str) -> bool:
        return test in self.seconds

    def groups(self, defect: Defect) -> list[list[str]]:
        """The tests of the module's own test file, and others: from each test file in turn, the fastest first."""
        by_line = self.lines.get(defect.file, {})
        lines = {line for line in by_line if defect.first <= line <= defect.last}
        names = set().union(*(by_line[line] for line in lines))
        if not defect.runs or defect.file in COMPILED or (lines and not names):  # it runs when the module is imported
            names = set().union(*by_line.values())
        if not defect.runs:
            names |= {name for name in self.seconds if name.startswith(CONTRACT)}
        shared = {
            file for file in {name.split("::")[0] for name in names} & self.whole if Path(file).name == defect.own
        }
        names |= {name for name in self.seconds if name.split("::")[0] in shared}
        by_file: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: self.seconds[name]):
            by_file.setdefault(name.split("::")[0], []).append(name)
        own = [name for file in by_file if Path(file).name == defect.own for name in by_file[file]]
        others = [by_file[file] for file in by_file if Path(file).name != defect.own]
        turns = [group[i] for i in range(max(map(len, others), default=0)) for group in others if i < len(group)]
        few: list[str] = []
        total = 0.0
        for name in turns:
            total += self.seconds[name] + 0.05
            if total > self.longest:
                break
            few.append(name)
        return [group for group in (own, few) if group]


def _tested(source: Path, module: str, tests: Sequence[str], mark: Path) -> int:
    """In a process of its own: pytest's exit code, or 100 if the module cannot be imported."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    import pytest

    try:
        importlib.import_module(module)
    except BaseException:  # of any kind: the defect shows
        return 100
    flags = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    flags += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was loaded before
    flags += [f"--basetemp={source.parent / 'tmp'}", f"--rootdir={ROOT}"]
    return int(pytest.main([*flags, *tests], plugins=[Recorder(failed=mark)]))


def in_a_fork(source: Path, module: str, tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run tests with another copy of the package: "failed" (and which one), "import", "passed" or "late"."""
    mark = source.parent / "failed"
    mark.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_tested(source, module, tests, mark))
        except BaseException:
            mark.write_text(traceback.format_exc())
            os._exit(70)  # not one of pytest's
    until = time.monotonic() + seconds
    status = None
    while status is None and time.monotonic() < until:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = code if done else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
        return "late", ""
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code in (0, 100):
        return "import" if exit_code else "passed", ""
    if exit_code > 2:
        raise RuntimeError(f"pytest cannot run {tests[:3]}: exit code {exit_code} {mark.read_text()}")
    return "failed", mark.read_text() if mark.exists() else ""


@final
class Trial:
    """Tries defects in a copy of src/ of its own."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        self.choice = choice
        self.here = folder / f"copy-{os.getpid()}"
        self.source = self.here / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(self.source, quiet=1)
        self.sound: dict[str, bool] = {}

    def of(self, defect: Defect) -> tuple[str, str]:
        """What the tests say of a defect: "failed" (and which), "late", "passed", or "unseen" if none executes it."""
        groups = self.choice.groups(defect)
        if not groups:
            return "unseen", ""
        for group in groups:
            tests = [name for name in group if self.sound.get(name, True)]
            while tests:
                said, which = self.with_defect(defect, tests)
                if said == "failed" and self.choice.may_be_unsound(which) and not self.passes(which):
                    # it fails without the defect, too
                    tests = [test for test in tests if test not in (which, which.split("::")[0])]
                    continue
                if said == "late" and in_a_fork(self.source, "ffgb", tests, self.choice.limit(tests))[0] == "late":
                    break  # without the defect, too: nobody knows
                if said != "passed":
                    return said, which
                break
        return "passed", ""

    def passes(self, test: str) -> bool:
        if test not in self.sound:
            self.sound[test] = in_a_fork(self.source, "ffgb", [test], self.choice.limit([test]))[0] == "passed"
        return self.sound[test]

    def with_defect(self, defect: Defect, tests: Sequence[str]) -> tuple[str, str]:
        file = self.source.parent / defect.file
        text, times = file.read_bytes(), file.stat()
        compiled = Path(importlib.util.cache_from_source(str(file)))
        kept = compiled.read_bytes()
        compiled.unlink()
        file.write_bytes(text[: defect.start] + defect.after.encode() + text[defect.end :])
        module = ".".join(Path(defect.file).with_suffix("").parts[1:]).removesuffix(".__init__")
        try:
            return in_a_fork(self.source, module, tests, self.choice.limit(tests))
        finally:
            file.write_bytes(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            compiled.write_bytes(kept)

    def close(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)


def prepared() -> None:
    """What many tests load is loaded once, before the forks; the package itself is not."""
    for name in (
        "numpy",
        "pandas",
        "pyarrow",
        "pytest",
        "hypothesis",
        "scipy.special",
        "scipy.stats",
        "scipy.sparse.linalg",
    ):
        importlib.import_module(name)
    for name in (
        "sklearn.datasets",
        "sklearn.linear_model",
        "sklearn.tree",
        "sklearn.ensemble",
        "torch",
        "onnxruntime",
    ):
        with suppress(ImportError):
            importlib.import_module(name)
    assert "ffgb" not in sys.modules


def sample(seed: int, mutants: int, only: Sequence[str]) -> list[Defect]:
    """Defects drawn from all that can be made."""
    files = sorted(f.relative_to(ROOT) for name in PACKAGES for f in (ROOT / "src/ffgb" / name).rglob("*.py"))
    files = [f for f in files if not only or any(part in str(f) for part in only)]
    every = [defect for file in files for defect in defects(file)]
    chosen = random.Random(seed).sample(every, min(mutants, len(every)))
    print(
        f"{len(every):,} defects can be made in {len(files)} files; {len(chosen)} are drawn with seed {seed}",
        flush=True,
    )
    return chosen


def tell(chosen: Sequence[Defect], folder: Path) -> None:
    """Print the defects that no test noticed, and the score."""
    known = tomllib.loads(EQUIVALENT.read_text())["equivalent"] if EQUIVALENT.exists() else []
    tried = caught = same = 0
    for number, defect in enumerate(chosen):
        path = folder / f"{defect.name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())["result"]
        tried += 1
        if result in ("failed", "late", "import"):
            caught += 1
        elif equivalent(defect, known):
            same += 1
        else:
            print(f"{number} {result}  {defect}")
    share = caught / max(tried - same, 1)
    print(f"{tried} tried, {same} change nothing, {caught} of the other {tried - same} were noticed ({share:.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keeps traces and results")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so many seconds")
    parser.add_argument("--only", nargs="*", default=[], help="files, by parts of their names")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument(
        "--longest", type=float, default=25.0, help="seconds of other modules' tests that a defect takes"
    )
    parser.add_argument("--named", action="store_true", help="trace nothing: choose tests by what they name")
    parser.add_argument("--again", action="store_true", help="try again what no test noticed")
    parser.add_argument("--tell", action="store_true", help="print results, and try nothing")
    parser.add_argument("--trace", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.update(THREADS)
    os.chdir(ROOT)
    if given.trace:
        trace(given.trace[0], Path(given.trace[1]))
        return
    if given.folder is None:
        parser.error("give a --folder")
    until = time.monotonic() + given.seconds
    results = given.folder.resolve() / "results"
    results.mkdir(parents=True, exist_ok=True)
    chosen = sample(given.seed, given.mutants, given.only)
    if not given.tell:
        try_all(chosen, given, results, until)
    tell(chosen, results)


def _choice(given: argparse.Namespace, until: float) -> Choice | None:
    """How tests are chosen; None if traces are not complete."""
    if given.named:
        return Named(test_files(given.tests))
    traces = Traces(given.folder.resolve() / "traces", test_files(given.tests), given.longest)
    if not traces.made(until):
        return None
    print(f"traced {len(traces.seconds):,} tests, {sum(traces.seconds.values()):.0f} s", flush=True)
    return traces


def try_all(chosen: Sequence[Defect], given: argparse.Namespace, results: Path, until: float) -> None:
    choice = _choice(given, until)
    if choice is None:
        print("the trace is not complete: give the command again")
        return
    sys.path = [path for path in sys.path if Path(path) != ROOT / "src"]
    sys.path.insert(0, str(ROOT))
    prepared()
    if given.again:
        for path in (results / f"{defect.name}.json" for defect in chosen):
            if path.exists() and json.loads(path.read_text())["result"] in ("passed", "unseen"):
                path.unlink()
    trial = Trial(given.folder.resolve(), choice)
    try:
        for defect in chosen:
            path = results / f"{defect.name}.json"
            if time.monotonic() > until:
                break
            if path.exists() or not claimed(path.with_suffix(".claim")):
                continue
            try:
                began = time.monotonic()
                said, which = trial.of(defect)
                result = {"result": said, "test": which, "seconds": round(time.monotonic() - began, 1)}
                path.write_text(json.dumps({**result, **asdict(defect)}, indent=1))
            finally:
                path.with_suffix(".claim").unlink()
    finally:
        trial.close()


if __name__ == "__main__":
    main()
