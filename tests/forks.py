"""Commands of ffgb in processes of their own that begin at once: forks of one process that has imported the package.

Python and its packages take a second or two to begin, and the tests give hundreds of commands.  What depends on how a
process begins (signals, terminals, imports, servers and sites) is tested with processes that begin as a user's do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.conftest import ROOT

IMPORTED = (
    *("ffgb.cli", "ffgb.data.files", "ffgb.data.sources", "ffgb.deployment.attendant", "ffgb.deployment.keys"),
    *("ffgb.report", "ffgb.runs.card", "ffgb.runs.training", "ffgb.sklearn", "ffgb.studies.compare"),
    *("pandas", "rich.console", "rich.table", "sklearn.datasets", "sklearn.tree", "scipy.stats"),
)
_server: subprocess.Popen[bytes] | None = None


def command(
    arguments: Sequence[str | Path | float], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -m ffgb` with these arguments says, and its exit code."""
    words = [str(a) for a in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        asked = {
            "arguments": words,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "streams": [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, error)],
        }
        server = _started()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the process that commands are forks of has ended"
        said = []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(words, int(answer), *said)


def _started() -> subprocess.Popen[bytes]:
    """The process that commands are forks of; it ends with this one."""
    global _server
    if _server is None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        begin = [sys.executable, "-m", "tests.forks"]
        pipe = subprocess.PIPE
        _server = subprocess.Popen(begin, cwd=ROOT, stdin=pipe, stdout=pipe, env=os.environ | {"PYTHONPATH": path})
        atexit.register(_end, _server)
    return _server


def _end(server: subprocess.Popen[bytes]) -> None:
    server.communicate()


def serve() -> None:
    """Fork for each line of standard input, and say with which code the fork ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("ffgb.cli.lazily").load_train()
    gc.freeze()
    while line := os.read(0, 2**16):
        while not line.endswith(b"\n"):
            line += os.read(0, 2**16)
        pid = os.fork()
        if pid == 0:
            end(become(json.loads(line)))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(1, f"{code}\n".encode())


def become(asked: Mapping[str, Any]) -> int:
    """Be a command, with its streams, its folder and its environment: its exit code."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(asked["streams"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path = [str(asked["cwd"]), *(p for p in given if p and p not in sys.path), *sys.path[1:]]
    sys.argv[1:] = asked["arguments"]
    try:
        runpy.run_module("ffgb", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> NoReturn:
    """As Python ends, but for taking apart every object: the system does that faster."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
