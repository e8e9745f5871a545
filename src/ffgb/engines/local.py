"""The engine of one machine: worker processes that host the clients.

A client's data goes to its worker once; afterwards only the messages of a real deployment move.  Each worker uses one
BLAS thread (on matrices this small, more threads in one process are slower than more processes), so a client's
arithmetic, and with it every bit of the result, is the same for any number of workers and for none.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import final

from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.federation.host import Holding, Host
from ffgb.hardware import cores, one_blas_thread
from ffgb.protocol.codec import decode
from ffgb.protocol.engine import Engine

log = logging.getLogger("ffgb")

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
TRIES = 3
"""How often one exchange is tried before a worker that keeps dying ends the run."""


@final
class InProcess(Engine):
    """All clients in this process: for small jobs, for debugging, and as the reference that workers are held to."""

    def __init__(self, holdings: Sequence[Holding]) -> None:
        self._host = Host()
        for i, holding in enumerate(holdings):
            list(self._host.answers(holding.message(i), [i]))

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        with one_blas_thread():
            return dict(self._host.answers(data, clients))

    def close(self, *, at_once: bool = False) -> None:
        self._host = Host()


@final
@dataclass
class _Worker:
    """A worker process, the socket to it, and which of its clients it holds the data of by now."""

    number: int
    clients: list[int]
    process: subprocess.Popen[bytes]
    socket: Connection
    hosted: set[int] = field(default_factory=set)


@final
class LocalEngine(Engine):
    """Clients hosted by worker processes, every core busy.

    A worker that dies is named, a new one takes its clients, and they are asked again; the server brings them up to
    date when they say that they are behind.
    """

    def __init__(self, holdings: Sequence[Holding], workers: int, modules: Sequence[str] = ()) -> None:
        self._holdings = list(holdings)
        self._modules = list(modules)
        self._workers: list[_Worker] = []
        try:
            for number, clients in enumerate(_balanced([len(h) for h in holdings], workers)):
                self._start(number, clients)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [w.process.pid for w in self._workers]

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        answers: dict[int, bytes] = {}
        deaths: dict[int, int] = {}
        while waiting := [i for i in clients if i not in answers]:
            for worker in self._ask(data, waiting, answers):
                deaths[worker.number] = deaths.get(worker.number, 0) + 1
                if deaths[worker.number] == TRIES:
                    kind, first = decode(data).kind, next(i for i in waiting if i in worker.clients)
                    raise FFGBError(
                        f"the worker of client {first} died {TRIES} times in a row at the message {kind!r}; "
                        "it may have run out of memory: try fewer workers or a smaller learner"
                    )
                self._replace(worker)
        return answers

    def _ask(self, data: bytes, clients: list[int], answers: dict[int, bytes]) -> list[_Worker]:
        """Ask these clients, fill in their answers, return the workers that died on the way."""
        open_questions: dict[int, list[int]] = {}
        dead: list[_Worker] = []
        asked = set(clients)
        for worker in self._workers:
            mine = [i for i in worker.clients if i in asked]
            if not mine:
                continue
            try:
                for i in mine:
                    if i not in worker.hosted:
                        _send(worker, [], self._holdings[i].message(i))
                        worker.hosted.add(i)
                _send(worker, mine, data)
                open_questions[worker.number] = mine
            except OSError:
                dead.append(worker)
        while open_questions:
            sockets = {w.socket: w for w in self._workers if w.number in open_questions}
            for ready in wait(list(sockets)):
                worker = sockets[ready]  # type: ignore[index]
                try:
                    answer = worker.socket.recv_bytes()
                except (EOFError, OSError):
                    dead.append(worker)
                    del open_questions[worker.number]
                    continue
                # answers come in the order of the questions
                answers[open_questions[worker.number].pop(0)] = answer
                if not open_questions[worker.number]:
                    del open_questions[worker.number]
        return dead

    def _start(self, number: int, clients: list[int]) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = begin(theirs.fileno(), self._modules)
        worker = _Worker(number, clients, process, Connection(ours.detach()))
        self._workers = sorted([w for w in self._workers if w.number != number] + [worker], key=lambda w: w.number)
        return worker

    def _replace(self, worker: _Worker) -> None:
        worker.socket.close()
        try:
            code = worker.process.wait(timeout=1)  # it is gone, or about to be: let it say how
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        new = self._start(worker.number, worker.clients)
        log.warning(
            "worker %d (pid %d) died (%s); its %d clients go on in a new worker (pid %d) and repeat the round",
            *(worker.number, worker.process.pid, how, len(worker.clients), new.process.pid),
        )

    def close(self, *, at_once: bool = False) -> None:
        for worker in self._workers:
            worker.socket.close()  # an idle worker ends when it sees this
        deadline = time.monotonic() + (0.0 if at_once else 5.0)
        for worker in self._workers:
            try:
                worker.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []


def begin(fd: int, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """A worker process that answers at a socket, by its file descriptor, and may import the user's modules."""
    return subprocess.Popen(
        # -P: a file random.py in the user's folder must not be imported in place of Python's
        [sys.executable, "-P", "-m", "ffgb.engines.worker", str(fd), *modules],
        pass_fds=[fd],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in the terminal is for the server, which finishes its round
    )


def local_engine(holdings: Sequence[Holding], workers: int | None = None, modules: Sequence[str] = ()) -> Engine:
    """The engine for this machine: as many workers as cores, or as many as asked for; 0 means in this process."""
    count = cores() if workers is None else workers
    if count < 0:
        raise FFGBError(f"the number of workers must not be negative, not {count}")
    return LocalEngine(holdings, count, modules) if count else InProcess(holdings)


def in_parts(x: Array, y: Array, weights: Array | None = None, size: int = 2048) -> list[Holding]:
    """A test set in parts of fixed size, so that workers share its evaluation and sums do not depend on how many."""
    return [Holding(x, y, slice(a, a + size), weights) for a in range(0, len(y), size)]


def _send(worker: _Worker, clients: Iterable[int], data: bytes) -> None:
    worker.socket.send_bytes(json.dumps(list(clients)).encode())
    worker.socket.send_bytes(data)


def _balanced(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Clients to workers, the largest first and always to the least loaded worker."""
    heap = [(0, number) for number in range(max(1, min(workers, len(sizes))))]
    parts: list[list[int]] = [[] for _ in heap]
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, number = heapq.heappop(heap)
        parts[number].append(i)
        heapq.heappush(heap, (load + sizes[i], number))
    return [sorted(part) for part in parts]
