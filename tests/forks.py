"""Commands of ffgb in processes of their own that begin at once: forks of one process that has imported the package.

Python and its packages take a second or two to begin, and the tests give hundreds of commands, most of which start
worker processes: these are forks, too, and so are the processes of comparisons.  What depends on how a process begins
(signals, terminals, imports, servers, sites and workers that die) is tested with processes that begin as a user's do.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import math
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast, final

from ffgb.engines import local, private, worker
from ffgb.errors import FFGBError
from ffgb.hardware import one_blas_thread
from ffgb.studies import processes
from tests.conftest import ROOT

IMPORTED = (
    *("ffgb.cli", "ffgb.data.files", "ffgb.data.sources", "ffgb.deployment.attendant", "ffgb.deployment.keys"),
    *("ffgb.report", "ffgb.runs.card", "ffgb.runs.training", "ffgb.sklearn", "ffgb.studies.compare"),
    *("pandas", "rich.console", "rich.table", "sklearn.datasets", "sklearn.tree", "scipy.stats"),
)
EXTRAS = ("httpx", "numba", "torch", "uvicorn")
"""Of servers and sites, large tables and nets, where they are installed."""
_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None


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

    stdin: TextIO
    stdout: TextIO

    def __init__(
        self, words: Sequence[str], streams: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None
    ) -> None:
        """Standard input, output and error are files, named by their paths."""
        environment = dict(os.environ if env is None else env)
        asked = {"arguments": words, "cwd": str(cwd or Path.cwd()), "environment": environment, "streams": streams}
        self._is(int(_asked({"begin": asked})))

    def _is(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    @classmethod
    def at(cls, fd: int) -> Forked:
        """A worker that answers at a socket."""
        forked = cls.__new__(cls)
        forked._is(int(_asked({"work": None}, [fd])))
        return forked

    @classmethod
    def of(cls, module: str, errors: TextIO) -> Forked:
        """A process that does the jobs of a module, with pipes as `subprocess.Popen` would make them."""
        forked, (asked, asking), (answering, answer) = cls.__new__(cls), os.pipe(), os.pipe()
        forked._is(int(_asked({"work": module}, [asked, answer, errors.fileno()])))
        os.close(asked)
        os.close(answer)
        forked.stdin, forked.stdout = os.fdopen(asking, "w"), os.fdopen(answering)
        return forked

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

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@final
class Child:
    """A fork of this process, as `subprocess.Popen` would have it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        last = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if timeout is None else os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > last:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
            else:
                time.sleep(0.002)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def work_in_forks(fd: int, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """In place of `ffgb.engines.local.begin`: a fork of the process that commands are forks of."""
    return _begin(fd, modules) if modules else cast("subprocess.Popen[bytes]", Forked.at(fd))


def study_in_forks(module: str, errors: TextIO) -> subprocess.Popen[str]:
    """In place of `ffgb.studies.processes.begin`."""
    return cast("subprocess.Popen[str]", Forked.of(module, errors))


def _work_in_children(fd: int, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """The same for a command that is a fork itself: its workers are its own."""
    if modules:  # the user's code, which a worker imports itself
        return _begin(fd, modules)
    pid = os.fork()
    if pid == 0:
        work(fd)
    return cast("subprocess.Popen[bytes]", Child(pid))


_begin = local.begin
_lock = threading.Lock()


def _asked(question: Mapping[str, Any], fds: Sequence[int] = ()) -> str:
    with _lock:
        _, control = _started()
        socket.send_fds(control, [json.dumps(question).encode() + b"\n"], list(fds))
        answer = b""
        while not answer.endswith(b"\n"):
            more = control.recv(2**16)
            assert more, "the process that commands are forks of has ended"
            answer += more
    return answer.decode()


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process that commands are forks of, and the socket at which it is asked; it ends with this one."""
    global _server
    if _server is None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        ours, theirs = socket.socketpair()
        with theirs:
            begin, env = [sys.executable, "-m", "tests.forks"], os.environ | {"PYTHONPATH": path}
            _server = subprocess.Popen(begin, cwd=ROOT, stdin=theirs.fileno(), env=env), ours
        atexit.register(_end, *_server)
    return _server


def _end(server: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    server.wait()


def serve() -> None:
    """Answer each line of standard input: fork, or say whether a fork has ended and how."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("ffgb.cli.lazily").load_train()
    with suppress(ImportError, FFGBError):
        private.names(private.MESSAGES, private.REQUESTS, private.SITE, private.SERVER)
        for name in EXTRAS:
            importlib.import_module(name)
    local.begin = _work_in_children
    gc.freeze()
    control, parent = socket.socket(fileno=0), os.getppid()
    while True:
        line, fds, _, _ = socket.recv_fds(control, 2**16, 3)
        while line and not line.endswith(b"\n"):
            line += control.recv(2**16)
        if not line:
            return
        question = json.loads(line)
        if {"begin", "work"} & question.keys():
            answer: int | None = os.fork()
            if answer == 0:
                _be(question, fds, parent)
            for fd in fds:
                os.close(fd)
        elif "end" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["end"], 0)[1])
        else:
            pid, status = os.waitpid(question["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        control.sendall(f"{json.dumps(answer)}\n".encode())


def _be(question: Mapping[str, Any], fds: Sequence[int], parent: int) -> NoReturn:
    """Be what was asked for."""
    if "begin" in question:
        end(become(question["begin"]))
    if question["work"] is None:
        work(*fds)
    os.getppid = functools.partial(int, parent)  # who asked, and not who forked
    study(question["work"], fds)


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


def work(fd: int) -> NoReturn:
    """Be a worker that answers at a socket: of what the process had open, nothing else is."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(fd, 3)
    _alone(4, lambda: worker.main(3, []))


def study(module: str, fds: Sequence[int]) -> NoReturn:
    """Be a process that does the jobs of a module: standard input, output and error are these."""
    for stream, fd in enumerate(fds):
        os.dup2(fd, stream)
    _alone(3, lambda: processes.serve(importlib.import_module(module)._do))


def _alone(first: int, do: Callable[[], None]) -> NoReturn:
    """Do something in a group of its own; what is open from `first` on is closed."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        with one_blas_thread():
            do()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def end(code: int) -> NoReturn:
    """As Python ends, but for taking apart every object: the system does that faster."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
