"""Nothing that arrives is ever run: no pickle and no eval in the source, and none while models travel."""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted(path for folder in ("src", "experiments") for path in (ROOT / folder).rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}


def dangers(tree: ast.AST) -> Iterator[str]:
    """What could run what arrived: unpickling under any of its names, or evaluating text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"from {node.module} import …"
        elif isinstance(node, ast.Call):
            given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield f"{node.func.id}(…)"
            if given.get("allow_pickle") or given.get("shell") or given.get("weights_only") is False:
                yield f"{ast.unparse(node.func)} with {given}"
            if isinstance(node.func, ast.Attribute):
                name, of = node.func.attr, ast.unparse(node.func.value)
                if name == "load" and of in ("np", "numpy") and given.get("allow_pickle") is not False:
                    yield f"{of}.load without allow_pickle=False"
                if name in ("read_pickle", "to_pickle"):
                    yield f"{of}.{name}(…)"
                if (name, of) == ("load", "torch") or (name in ("send", "recv") and not node.keywords):
                    yield f"{of}.{name}(…), which unpickles"  # a Connection's send and recv do, send_bytes does not


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_can_run_what_arrives(path: Path) -> None:
    assert list(dangers(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from joblib import load", "eval(text)", "np.load(f)", "np.load(f, allow_pickle=True)",
     "torch.load(f)", "pd.read_pickle(f)", "connection.recv()", "subprocess.run(x, shell=True)"],
)  # fmt: skip
def test_the_search_finds_them(line: str) -> None:
    assert len(list(dangers(ast.parse(line)))) >= 1


def test_nothing_is_unpickled_in_a_training() -> None:
    """Python itself tells when something is: in the workers, where messages arrive, and where a model is loaded."""
    code = """
import sys
def hook(event, arguments):
    if event == "pickle.find_class":
        print("unpickled", arguments, flush=True)
sys.addaudithook(hook)
import pickle
pickle.loads(pickle.dumps(sys.exit))  # it does tell
from ffgb import Config, Model, train
result = train(Config(data="wine", clients=3, rounds=2, learner="mlp", oracle_steps=5), sys.argv[1], workers=2)
Model.load(sys.argv[1])
train(Config(data="wine", clients=3, rounds=2, learner="features"), workers=0)
"""
    with tempfile.TemporaryDirectory() as folder:
        # a worker process sets the hook, too: Python runs sitecustomize in each
        hook = code.split("import pickle")[0].replace("flush=True", "file=sys.stderr, flush=True")
        (Path(folder) / "sitecustomize.py").write_text(hook)
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(folder) / "run")],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "", "PYTHONPATH": folder},
        )
    told = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("unpickled")]
    # ours alone, heard by both hooks
    assert len(told) == 2, told
    assert all("exit" in line for line in told)
