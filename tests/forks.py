"""Commands of ffgb in processes of their own that begin at once: forks of one process that has imported the package.

Python and its packages take a second or two to begin, and the tests give hundreds of commands.  What depends on how a
process begins (signals, terminals, imports, servers and sites that die) is tested with processes that begin as a
user's do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, final

from ffgb.engines import private
from ffgb.errors import FFGBError
from tests.conftest import ROOT

IMPORTED = (
    *("ffgb.cli", "ffgb.data.files", "ffgb.data.sources", "ffgb.deployment.attendant", "ffgb.deployment.keys"),
    *("ffgb.report", "ffgb.runs.card", "ffgb.runs.training", "ffgb.sklearn", "ffgb.studies.compare"),
    *("pandas", "rich.console", "rich.table", "sklearn.datasets", "sklearn.tree", "scipy.stats"),
)
EXTRAS = ("httpx", "numba", "torch", "uvicorn")
"""Of servers and sites, large tables and nets, where they are installed."""
_server: subprocess.Popen[bytes] | None = None


def command(
    arguments: Sequence[str | Path | float], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -m ffgb` with these arguments says, and its exit code."""
    words = [str(a) for a in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        streams = [os.devnull, *(f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, error))]
        code = Forked(words, streams, cwd, env).wait()
        said = []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(words, code, *said)


@final
class Forked:
    """A command under way, as `subprocess.Popen` would have it."""

    def __init__(
        self, words: Sequence[str], streams: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None
    ) -> None:
        """Standard input, output and error are files, named by their paths."""
        environment = dict(os.environ if env is None else env)
        asked = {"arguments": words, "cwd": str(cwd or Path.cwd()), "environment": environment, "streams": streams}
        self.pid = int(_asked({"begin": asked}))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.returncode is None:
            self.returncode = json.loads(_asked({"ended": self.pid}))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and timeout is None:
            self.returncode = int(_asked({"end": self.pid}))
        last = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > last:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _asked(question: Mapping[str, Any]) -> str:
    server = _started()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(question).encode() + b"\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the process that commands are forks of has ended"
    return answer.decode()


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
    """Answer each line of standard input: fork, or say whether a fork has ended and how."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("ffgb.cli.lazily").load_train()
    with suppress(ImportError, FFGBError):
        private.names(private.MESSAGES, private.REQUESTS, private.SITE, private.SERVER)
        for name in EXTRAS:
            importlib.import_module(name)
    gc.freeze()
    while line := os.read(0, 2**16):
        while not line.endswith(b"\n"):
            line += os.read(0, 2**16)
        question = json.loads(line)
        if "begin" in question:
            answer: int | None = os.fork()
            if answer == 0:
                end(become(question["begin"]))
        elif "end" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["end"], 0)[1])
        else:
            pid, status = os.waitpid(question["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        os.write(1, f"{json.dumps(answer)}\n".encode())


def become(asked: Mapping[str, Any]) -> int:
    """Be a command, with its streams, its folder and its environment: its exit code."""
    for stream, path in enumerate(asked["streams"]):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if stream else os.O_RDONLY), stream)
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
