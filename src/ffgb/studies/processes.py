"""Processes that do one job after another: one begins when none is free, and all end with the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO, final

from ffgb.errors import FFGBError

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@final
class Processes:
    """`python -m MODULE`, whose last act is `serve`, as often as jobs are done at a time; for any number of threads."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._idle: list[tuple[subprocess.Popen[str], TextIO]] = []
        self._all: list[tuple[subprocess.Popen[str], TextIO]] = []
        self._lock = threading.Lock()

    def do(self, job: Mapping[str, Any]) -> Any:
        """What the job comes to; an FFGBError if it comes to one, or if its process ends before."""
        with self._lock:
            process, errors = self._idle.pop() if self._idle else self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            process.wait()
            errors.seek(0)
            said = errors.read().strip().splitlines()[-1:] or ["it ended without a word"]
            raise FFGBError(said[0].removeprefix("ffgb: "))
        with self._lock:
            self._idle.append((process, errors))
        found = json.loads(answer)
        if "error" in found:
            raise FFGBError(found["error"])
        return found["done"]

    def _begin(self) -> tuple[subprocess.Popen[str], TextIO]:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._all.append((begin(self.module, errors), errors))
        return self._all[-1]

    def terminate(self) -> None:
        """End all, at any moment."""
        with self._lock:
            for process, _ in self._all:
                process.terminate()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, errors in self._all:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            errors.close()


def begin(module: str, errors: TextIO) -> subprocess.Popen[str]:
    """Such a process, which writes what it says to a file."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **THREADS},
        process_group=0,  # Ctrl-C in the terminal is for the parent, which ends them
    )


def serve(do: Callable[[dict[str, Any]], Any]) -> None:
    """In such a process: do each job that comes, until none do.  What a job prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            found: dict[str, Any] = {"done": do(json.loads(line))}
        except FFGBError as error:
            found = {"error": str(error)}
        print(json.dumps(found), file=answers, flush=True)
