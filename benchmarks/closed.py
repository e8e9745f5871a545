"""What a shared geometry costs: the way to an accuracy against FedAvg, and how cost grows with clients and features.

    python benchmarks/closed.py [--quick] [--json FILE] [--data mnist|cifar10] [--only bar clients features]

**bar**: seconds and models until a test accuracy is first reached, by `ffgb.train` as it is by default, by FedAvg of a
linear softmax over the very same features, and by FedAvg of the paper's CNN.  All three have two worker processes with
one thread each, and the same rows at the same clients.  What is uneven is in favour of FedAvg: its learning rate is
the best of a grid by the accuracy on a tenth of the training rows, found beforehand at no charge; the making of the
feature map, which the softmax is given, and the start of its processes are not charged either.  A *model* is 17,090
numbers, the size of the CNN on CIFAR-10, sent or received by one client.  The peak memory is that of the run of
`ffgb.train`: the sum of the peaks of its processes, interpreters and data included.

**clients**: 10 … 10,000 clients with 10 points each, of which 10 are sampled.  **features**: 20 clients with 200 points
each, all in every round.  Both on random data, in turns with the smallest size, so that a busy machine slows both; the
first row of a table is the smallest beside itself, and says how much of a ratio is noise.  The methods of **bar** run
one after the other: let nothing else run beside them.

Seconds a round are medians without the first round.  Memory is read from /proc, so on Linux.  Nothing fails if it is
slow; read the ratios.
"""

from __future__ import annotations

import os

from ffgb.algorithms.ffgb_shared import FFGBShared

# Before NumPy and torch are imported, which read them once.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import math
import multiprocessing
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from scipy.special import softmax

from ffgb import Config, train
from ffgb.core.functions import Family
from ffgb.core.geometry import Geometry
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.maps import FeatureMap
from ffgb.core.moments import moments_of
from ffgb.core.questions import Ask
from ffgb.core.schedules import Constant
from ffgb.core.types import Array
from ffgb.data import Dataset, partition
from ffgb.engines.local import LocalEngine
from ffgb.features.basic import Flatten
from ffgb.features.fourier import RandomFourier, bandwidth
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.linear import Linear
from ffgb.learners.nets import Net
from ffgb.runs.config import load_data

if TYPE_CHECKING:
    import torch  # imported by the workers that need it only: it would count as memory

WORKERS = 2
MODEL = 17_090
BARS = {"mnist": 0.98, "cifar10": 0.75}
LINEAR_RATES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""The features' variances add up to 1, so no direction is steep."""
CNN_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
INPUTS, OUTPUTS = 16, 10  # of the random data
SECTIONS = ("bar", "clients", "features")


@dataclass(frozen=True)
class Way:
    """One method's way to the bar: what had been spent after each round."""

    name: str
    setup: float
    seconds: list[float]
    """Since the start, set-up included."""
    models: list[float]
    accuracy: list[float]
    rate: float | None = None
    edge: bool = False
    """The learning rate is the first or the last of its grid."""
    tuning: float = 0.0
    """Seconds, charged to no one."""

    @property
    def round(self) -> float:
        """The median of the rounds but the first."""
        times = [after - before for before, after in pairwise([self.setup, *self.seconds])]
        return statistics.median(times[1:] or times)

    def reached(self, bar: float) -> int | None:
        """After how many rounds."""
        return next((t for t, a in enumerate(self.accuracy, 1) if a >= bar), None)


@dataclass(frozen=True)
class Memory:
    """Peak bytes of the run of `ffgb.train`."""

    parent: int
    workers: int
    rows: int
    rows_test: int
    features: int

    def multiple(self, *, tests: bool) -> float:
        """Of the bytes of the features."""
        rows = self.rows + (self.rows_test if tests else 0)
        return (self.parent + self.workers) / (4 * self.features * rows)


@dataclass(frozen=True)
class Size:
    """A federation on random data."""

    clients: int
    points: int
    """A client's."""
    features: int
    gram: str = "exact"
    sampled: int | None = None
    """Clients in a round; None means all, and a search for the step, as by default."""


@dataclass(frozen=True)
class Cost:
    """Of a federation; `times` are ratios to the smallest one, which ran beside it."""

    size: Size
    setup: float
    setup_times: float
    setup_bytes: float
    """What one client sent and received, on average."""
    first: float
    round: float
    round_times: float
    peak: int
    """Bytes during the rounds, of all processes together."""
    growth: int
    """Of these, what was not there before the rounds."""


@dataclass(frozen=True)
class Federation:
    """One that is set up."""

    setup: float
    setup_bytes: float
    workers: list[int]
    rounds: Iterator[float]
    """Seconds of one round after the other."""


# Memory


def status(name: str, pids: Sequence[int]) -> int:
    """The sum over processes of VmRSS (now) or VmHWM (the peak since it was forgotten), in bytes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def forget_peak(pids: Sequence[int]) -> None:
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def children() -> list[int]:
    return [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]


# FedAvg


class Side(ABC):
    """A client's side of FedAvg, for one kind of model, whose weights are one vector."""

    @abstractmethod
    def start(self) -> Array: ...

    @abstractmethod
    def prepare(self, x: Array) -> Array:
        """What is computed from the points once."""

    @abstractmethod
    def local(self, weights: Array, z: Array, y: Array, batches: Iterator[Array], rate: float) -> Array:
        """The weights after a step of SGD on the cross entropy of each batch."""

    @abstractmethod
    def scores(self, weights: Array, z: Array) -> Array: ...


@final
@dataclass(frozen=True)
class Softmax(Side):
    """Linear over features.  Its constant feature is as small as the others, or no large rate would be stable."""

    features: FeatureMap
    outputs: int

    def start(self) -> Array:
        return np.zeros((self.features.dimension + 1) * self.outputs, np.float32)

    def prepare(self, x: Array) -> Array:
        return self.features(x)

    def local(self, weights: Array, z: Array, y: Array, batches: Iterator[Array], rate: float) -> Array:
        w, one = weights.reshape(-1, self.outputs).copy(), self._one
        for rows in batches:
            some = z[rows]
            gradient = softmax(some @ w[:-1] + one * w[-1], axis=1)
            gradient[np.arange(len(rows)), y[rows]] -= 1.0
            gradient *= np.float32(rate / len(rows))
            w[:-1] -= some.T @ gradient
            w[-1] -= one * gradient.sum(axis=0)
        return w.ravel()

    def scores(self, weights: Array, z: Array) -> Array:
        w = weights.reshape(-1, self.outputs)
        scores: Array = z @ w[:-1] + self._one * w[-1]
        return scores

    @property
    def _one(self) -> np.float32:
        return np.float32(1.0 / math.sqrt(self.features.dimension))


@final
@dataclass(frozen=True)
class Convolutional(Side):
    """The library's CNN with torch's own SGD."""

    shape: tuple[int, ...]
    outputs: int

    @cached_property
    def _module(self) -> torch.nn.Module:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        return Net(self.shape, self.outputs)._build()

    def start(self) -> Array:
        return np.concatenate([p.detach().numpy().ravel() for p in self._module.parameters()])

    def prepare(self, x: Array) -> Array:
        return np.ascontiguousarray(cast(Any, self._module).arrange(x))

    def local(self, weights: Array, z: Array, y: Array, batches: Iterator[Array], rate: float) -> Array:
        import torch

        self._load(weights)
        sgd = torch.optim.SGD(self._module.parameters(), lr=rate)
        x, target = torch.from_numpy(z), torch.from_numpy(y)
        for rows in batches:
            some = torch.from_numpy(rows)
            sgd.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(self._module(x[some]), target[some]))
            sgd.step()
        return self.start()

    def scores(self, weights: Array, z: Array) -> Array:
        import torch

        self._load(weights)
        with torch.inference_mode():
            parts = [self._module(torch.from_numpy(z[a : a + 128])).numpy() for a in range(0, len(z), 128)]
        return np.concatenate(parts)

    def _load(self, weights: Array) -> None:
        import torch

        torch.nn.utils.vector_to_parameters(torch.tensor(weights), self._module.parameters())


@final
class Part:
    """A client's points, or some test points; a tenth of them, drawn once, is for validation."""

    def __init__(self, i: int, x: Array, y: Array) -> None:
        self.i, self.z, self.y = i, x, y
        order = np.random.default_rng([1, i]).permutation(len(y))
        self.validation, self.rest = order[: len(y) // 10], order[len(y) // 10 :]


@final
class Worker:
    """Some of the clients, and some of the test points."""

    def __init__(self, side: Side, epochs: int, batch: int) -> None:
        self.side, self.epochs, self.batch = side, epochs, batch
        self.clients: list[Part] = []
        self.tests: list[Part] = []

    def start(self) -> Array:
        return self.side.start()

    def hold(self, i: int, x: Array, y: Array, test: bool) -> None:
        (self.tests if test else self.clients).append(Part(i, x, y))

    def prepare(self) -> None:
        for part in (*self.clients, *self.tests):
            part.z = self.side.prepare(part.z)

    def round(self, t: int, weights: Array, rate: float, tuning: bool) -> tuple[int, Array]:
        """Points, and the sum over clients of their weights after local steps, times their points."""
        points, total = 0, np.zeros(len(weights))
        for part in self.clients:
            rows = part.rest if tuning else np.arange(len(part.y))
            batches = self._batches(rows, np.random.default_rng([2, t, part.i]))
            with np.errstate(all="ignore"):  # a rate that is too large
                total += len(rows) * self.side.local(weights, part.z, part.y, batches, rate).astype(np.float64)
            points += len(rows)
        return points, total

    def right(self, weights: Array, validation: bool) -> tuple[int, int]:
        """Correct predictions at the test points or the clients' validation points, and how many these are."""
        right, points = 0, 0
        for part in self.clients if validation else self.tests:
            rows = part.validation if validation else slice(None)
            z, y = part.z[rows], part.y[rows]
            with np.errstate(all="ignore"):
                right += int((self.side.scores(weights, z).argmax(axis=1) == y).sum())
            points += len(y)
        return right, points

    def _batches(self, rows: Array, rng: np.random.Generator) -> Iterator[Array]:
        for _ in range(self.epochs):
            yield from np.array_split(rng.permutation(rows), math.ceil(len(rows) / self.batch))


def serve(pipe: Connection, worker: Worker) -> None:
    """In a process of its own: method names and arguments come in, results go out, until None comes."""
    while (message := pipe.recv()) is not None:
        name, *arguments = message
        pipe.send(getattr(worker, name)(*arguments))


@final
class Pool:
    """Worker processes, all asked at once."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self.pipes = pipes

    def __call__(self, name: str, *arguments: object) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((name, *arguments))
        return [pipe.recv() for pipe in self.pipes]

    def hold(self, parts: Sequence[tuple[Array, Array]], *, test: bool) -> None:
        """Deal parts out in turn."""
        for i, (x, y) in enumerate(parts):
            pipe = self.pipes[i % len(self.pipes)]
            pipe.send(("hold", i, x, y, test))
            pipe.recv()

    def average(self, t: int, weights: Array, rate: float, *, tuning: bool) -> Array:
        """A round of FedAvg: the mean of the clients' weights, by their points."""
        answers = self("round", t, weights, rate, tuning)
        mean = sum(total for _, total in answers) / sum(points for points, _ in answers)
        return cast(Array, mean.astype(np.float32))

    def accuracy(self, weights: Array, *, validation: bool) -> float:
        answers = self("right", weights, validation)
        return float(sum(right for right, _ in answers) / sum(points for _, points in answers))


@contextmanager
def pool(worker: Worker) -> Iterator[Pool]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, worker), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    yield Pool(pipes)  # what raises here ends this process, and daemons with it
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()


def fedavg(
    name: str,
    side: Side,
    rates: Sequence[float],
    parts: Sequence[tuple[Array, Array]],
    tests: Sequence[tuple[Array, Array]],
    rounds: int,
    bar: float,
    options: argparse.Namespace,
) -> Way:
    """FedAvg until it reaches the bar, for at most so many rounds."""
    with pool(Worker(side, options.epochs, options.batch)) as workers:
        start = workers("start")[0]  # whatever the workers import is there now
        began = time.perf_counter()
        workers.hold(parts, test=False)
        workers.hold(tests, test=True)
        workers("prepare")
        setup = time.perf_counter() - began

        began, found = time.perf_counter(), []
        for rate in rates:
            weights = start
            for t in range(options.tuning_rounds):
                weights = workers.average(t, weights, rate, tuning=True)
            found.append(workers.accuracy(weights, validation=True))
        best = int(np.argmax(found))
        tuning = time.perf_counter() - began

        way = Way(name, setup, [], [], [], rates[best], best in (0, len(rates) - 1), tuning)
        weights, began = start, time.perf_counter()
        for t in range(rounds):
            weights = workers.average(t, weights, rates[best], tuning=False)
            way.accuracy.append(workers.accuracy(weights, validation=False))
            way.seconds.append(setup + time.perf_counter() - began)
            way.models.append(2 * (t + 1) * len(weights) / MODEL)
            if way.accuracy[-1] >= bar:
                break
    return way


# To the bar


def ours(config: Config) -> tuple[Way, Memory, FeatureMap, int]:
    """`ffgb.train`, timed from when the data are loaded; its memory and features, and the parameters of a learner."""
    own, began, setup, workers = [os.getpid()], 0.0, 0.0, 0
    way = Way("ffgb.train", 0.0, [], [], [])
    rows = (0, 0)
    forget_peak(own)

    def on_start(config: Config, dataset: Dataset) -> None:
        nonlocal began, rows
        began, rows = time.perf_counter(), (len(dataset.x), len(dataset.x_test))

    def on_round(metrics: dict[str, Any]) -> None:
        nonlocal setup, workers
        way.seconds.append(time.perf_counter() - began)
        way.models.append((metrics["parameters_up"] + metrics["parameters_down"]) / MODEL)
        way.accuracy.append(metrics["test_accuracy"])
        workers = status("VmHWM", children())
        if len(way.seconds) == 1:
            setup = way.seconds[0] - metrics["seconds"]

    result = train(config, workers=WORKERS, on_start=on_start, on_round=on_round)
    family = result.model.job.family
    memory = Memory(status("VmHWM", own), workers, *rows, family.features.dimension)
    return Way(way.name, setup, way.seconds, way.models, way.accuracy), memory, family.features, family.size


def to_the_bar(options: argparse.Namespace) -> dict[str, Any]:
    bar = BARS[options.data] if options.bar is None else options.bar
    config = Config(
        data=(options.data,), clients=options.clients, similarity=options.similarity, features=options.map_features
    )
    first, memory, features, size = ours(config)
    print(
        f"{options.data}, {options.clients} clients, similarity {options.similarity:g}, {features.dimension:,} features"
        f" ({size:,} parameters); until {100 * bar:g} % of the test rows are right:"
    )
    print(f"  {'':22}{'set-up':>8}{'a round':>9}{'rounds':>8}{'seconds':>9}{'models':>8}{'seconds':>10}{'models':>9}")
    ways = [first]
    show(first, first, bar)
    dataset = load_data(config)
    rows = partition(dataset, "similarity", options.clients, similarity=options.similarity, seed=config.seed)
    parts = [(dataset.x[r], dataset.y[r]) for r in rows]
    halves = np.array_split(np.arange(len(dataset.y_test)), WORKERS)
    tests = [(dataset.x_test[h], dataset.y_test[h]) for h in halves]
    outputs = dataset.outputs
    shape = dataset.x.shape[1:]
    first_rate, step = (1, 2) if options.quick else (0, 1)
    sides: list[tuple[str, Side, Sequence[float], int]] = [
        ("FedAvg, same features", Softmax(features, outputs), LINEAR_RATES[first_rate::step], options.linear_rounds),
        ("FedAvg, CNN", Convolutional(shape, outputs), CNN_RATES[first_rate::step], options.cnn_rounds),
    ]
    for name, side, rates, rounds in sides:
        ways.append(fedavg(name, side, rates, parts, tests, rounds, bar, options))
        show(ways[-1], first, bar)
    print(
        "  Last two columns: times ours.  A round is the median without the first.  FedAvg: "
        f"local epochs {options.epochs}, batches of {options.batch}."
    )
    for way in ways[1:]:
        edge = ", at the edge of the grid" if way.edge else ""
        print(f"  {way.name}: learning rate {way.rate:g}{edge}, tuned in {way.tuning:.0f} s that are not counted.")
    print(
        f"  Peak memory of ffgb.train: {(memory.parent + memory.workers) / 1e6:,.0f} MB "
        f"({memory.parent / 1e6:,.0f} server and data, {memory.workers / 1e6:,.0f} workers), "
        f"{memory.multiple(tests=False):.2f} times the features of the training rows, "
        f"{memory.multiple(tests=True):.2f} times those of all rows.\n"
    )
    return {
        "data": options.data,
        "clients": options.clients,
        "similarity": options.similarity,
        "bar": bar,
        "ways": [{**asdict(way), "round": way.round, "reached": way.reached(bar)} for way in ways],
        "memory": {**asdict(memory), "multiple": memory.multiple(tests=False), "all": memory.multiple(tests=True)},
    }


def show(way: Way, first: Way, bar: float) -> None:
    """A row of the table.  What the bar was not reached with is a lower bound."""
    reached, base = way.reached(bar), first.reached(bar)
    start = f"  {way.name:22}{way.setup:8.1f}{way.round:9.2f}"
    at = (reached or len(way.seconds)) - 1
    sign = "" if reached else ">"
    ratios = (
        ""
        if base is None
        else "".join(
            f"{f'{sign}{mine[at] / theirs[base - 1]:.2f}x':>{width}}"
            for mine, theirs, width in ((way.seconds, first.seconds, 10), (way.models, first.models, 9))
        )
    )
    spent = f"{reached or '-':>8}{sign + format(way.seconds[at], '.1f'):>9}{sign + format(way.models[at], '.1f'):>8}"
    missed = "" if reached else f"   not reached in {len(way.seconds)} rounds ({100 * max(way.accuracy):.2f} %)"
    print(f"{start}{spent}{ratios}{missed}", flush=True)


# Growth


@contextmanager
def federation(size: Size) -> Iterator[Federation]:
    """The server and its engine as `ffgb.federate` has them."""
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((INPUTS, OUTPUTS))
    x = rng.standard_normal((size.clients * size.points, INPUTS), dtype=np.float32)
    y = (x @ teacher).argmax(axis=1)
    holdings = [Holding(x, y, slice(a, a + size.points)) for a in range(0, len(y), size.points)]
    began = 0.0

    def learner(ask: Ask) -> tuple[Family, Geometry]:
        nonlocal began
        moments_of(ask, Flatten(INPUTS))  # once this is answered, workers run and have their data
        began = time.perf_counter()
        features = RandomFourier(Flatten(INPUTS), size.features, bandwidth(np.ones(INPUTS)), 0)
        return Linear(features, OUTPUTS), share_geometry(ask, features, size.gram, 1.0 / len(y))

    with LocalEngine(holdings, WORKERS) as engine:
        server = Server(engine, [size.points] * size.clients, participation=size.sampled)
        # few of many clients say little of all points: short steps
        algorithm = FFGBShared(Constant(2.0 if size.sampled is None else 0.2), search=size.sampled is None)
        state = server.start(algorithm, learner, CrossEntropy(OUTPUTS))
        setup = time.perf_counter() - began
        setup_bytes = (state.costs.bytes_up + state.costs.bytes_down) / size.clients
        yield Federation(
            *(setup, setup_bytes, engine.pids), (metrics["seconds"] for _, metrics in server.rounds(state, 10**6))
        )


def cost(size: Size, smallest: Size, rounds: int) -> Cost:
    """Rounds in turn with those of the smallest, so that a busy machine slows both."""
    with federation(smallest) as base, federation(size) as it:
        pids = [os.getpid(), *it.workers]
        forget_peak(pids)
        before = status("VmRSS", pids)
        turns = [(next(it.rounds), next(base.rounds)) for _ in range(rounds)]
        peak = status("VmHWM", pids)
    return Cost(
        size,
        it.setup,
        it.setup / base.setup,
        it.setup_bytes,
        turns[0][0],
        statistics.median(mine for mine, _ in turns[1:]),
        statistics.median(mine / theirs for mine, theirs in turns[1:]),
        peak,
        peak - before,
    )


def against_clients(options: argparse.Namespace) -> list[dict[str, Any]]:
    counts = (10, 100, 1_000) if options.quick else (10, 100, 1_000, 10_000)
    print("N clients with 10 points each, 10 sampled a round, 256 Fourier features, exact Gram:")
    header = f"{'set-up':>9}{'times':>8}{'ms a round':>12}{'times':>8}{'growth, MB':>12}{'peak, MB':>10}{'times':>8}"
    print(f"  {'N':>7}{header}")
    costs: list[Cost] = []
    for N in counts:
        c = cost(Size(N, 10, 256, sampled=10), Size(10, 10, 256, sampled=10), options.rounds)
        costs.append(c)
        print(
            f"  {N:7,}{c.setup:9.2f}{c.setup_times:7.1f}x{1e3 * c.round:12.1f}{c.round_times:7.2f}x"
            f"{c.growth / 1e6:12.1f}{c.peak / 1e6:10.0f}{c.peak / costs[0].peak:7.2f}x",
            flush=True,
        )
    print("  Times those of N = 10, which ran beside each.  Growth is during the rounds, the peak is of them.\n")
    return [asdict(c) for c in costs]


def against_features(options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = (256, 1024) if options.quick else (256, 1024, 4096)
    print("D Fourier features, 20 clients with 200 points each, all in every round:")
    header = f"{'set-up':>9}{'times':>8}{'set-up, MB':>12}{'times':>8}{'1st round':>11}{'ms a round':>12}{'times':>8}"
    print(f"  {'gram':8}{'D':>6}{header}")
    costs: list[Cost] = []
    for gram in ("exact", "nystrom"):
        for D in sizes:
            c = cost(Size(20, 200, D, gram), Size(20, 200, sizes[0], gram), options.rounds)
            costs.append(c)
            smallest = next(other for other in costs if other.size.gram == gram)
            print(
                f"  {gram:8}{D:6,}{c.setup:9.2f}{c.setup_times:7.1f}x{c.setup_bytes / 1e6:12.2f}"
                f"{c.setup_bytes / smallest.setup_bytes:7.1f}x{c.first:11.2f}{1e3 * c.round:12.1f}"
                f"{c.round_times:7.2f}x",
                flush=True,
            )
    print("  Times those of D = 256, which ran beside each.  MB are one client's.  Nyström has rank 256.\n")
    return [asdict(c) for c in costs]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a shared geometry costs, against FedAvg and as it grows.")
    parser.add_argument("--quick", action="store_true", help="fewer features, rounds and sizes: about two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="only these parts")
    parser.add_argument("--data", choices=BARS, default="mnist")
    parser.add_argument("--clients", type=int, default=56)
    parser.add_argument("--similarity", type=float, default=0.1)
    parser.add_argument("--bar", type=float, help="the test accuracy to reach: 0.98 on mnist, 0.75 on cifar10")
    parser.add_argument("--map-features", type=int, help="ffgb.train's --features")
    parser.add_argument("--linear-rounds", type=int, help="of FedAvg over the same features, at most: 50")
    parser.add_argument("--cnn-rounds", type=int, help="of FedAvg of the CNN, at most: 30")
    parser.add_argument("--tuning-rounds", type=int, default=3, help="for each learning rate")
    parser.add_argument("--epochs", type=int, default=1, help="of a client in a round of FedAvg")
    parser.add_argument("--batch", type=int, default=32, help="of FedAvg's local steps")
    parser.add_argument("--rounds", type=int, help="on random data: 30")
    options = parser.parse_args()
    defaults: dict[str, tuple[object, object]] = {  # full, quick
        "map_features": (None, 512),
        "linear_rounds": (50, 10),
        "cnn_rounds": (30, 5),
        "rounds": (30, 20),
    }
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
    parts: dict[str, Callable[[argparse.Namespace], object]] = {
        "bar": to_the_bar,
        "clients": against_clients,
        "features": against_features,
    }
    results = {name: parts[name](options) for name in SECTIONS if name in options.only}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
