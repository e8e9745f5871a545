"""A FedAvg round on 56 clients, against the loop that most people would write in torch.

    python benchmarks/fedavg_round.py [--pfl TORCHRUN] [--json FILE]

MNIST (from FFGB_DATA): 56 clients × 1,071 images, s = 0.1, MLP 784-32-32-10, 25 local steps of SGD on 20 % of them.
Both use two processes of one thread each, and take turns, so that a busy machine is as busy for both.  The time is that
of training and averaging; evaluation, which everyone may do when they like, is left out, and shown beside it.

TORCHRUN is that of an environment of its own, made by `pip install 'pfl[pytorch]==0.6.0' torch==2.13.0`: pfl then takes
part as well.  It is spared the drawing of batches: its data sets give the same slices in every epoch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

from ffgb.algorithms.fedavg import FedAvg
from ffgb.core.losses import CrossEntropy
from ffgb.core.types import Array
from ffgb.data import load, partition
from ffgb.engines.local import LocalEngine
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.mlp import MLP
from ffgb.protocol.codec import Message, decode, encode

CLIENTS, POINTS, STEPS, SHARE, RATE, PROCESSES, TURNS = 56, 1071, 25, 0.2, 0.1, 2, 9


def data() -> list[tuple[Array, Array]]:
    mnist = load("mnist")
    parts = partition(mnist, "similarity", CLIENTS, similarity=0.1, seed=0)
    x = mnist.x.reshape(len(mnist.x), -1).astype(np.float32)
    return [(x[rows[:POINTS]], mnist.y[rows[:POINTS]]) for rows in parts]


def torch_worker(pipe: Connection, clients: list[tuple[Array, Array]]) -> None:
    """Plain torch: a module, SGD, `x[idx]`, one client after the other."""
    import torch

    torch.set_num_threads(1)
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(784, 32), nn.LeakyReLU(0.01), nn.Linear(32, 32), nn.LeakyReLU(0.01), nn.Linear(32, 10)
    )
    tensors = [(torch.tensor(x), torch.tensor(y)) for x, y in clients]
    size = round(SHARE * POINTS)
    while (start := pipe.recv()) is not None:
        total: Any = None
        for x, y in tensors:
            net.load_state_dict({k: torch.tensor(v) for k, v in start.items()})
            optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
            for _ in range(STEPS):
                idx = torch.randperm(POINTS)[:size]
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[idx]), y[idx]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            state = {k: v.detach().clone() for k, v in net.state_dict().items()}
            total = state if total is None else {k: total[k] + state[k] for k in state}
        pipe.send({k: v.numpy() / CLIENTS for k, v in total.items()})


class Torch:
    """The loop in two processes."""

    def __init__(self, clients: list[tuple[Array, Array]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for k in range(PROCESSES):
            ours, theirs = context.Pipe()
            context.Process(target=torch_worker, args=(theirs, clients[k::PROCESSES]), daemon=True).start()
            self.pipes.append(ours)
        rng = np.random.default_rng(0)
        shapes = {"0.weight": (32, 784), "0.bias": (32,), "2.weight": (32, 32), "2.bias": (32,)}
        shapes |= {"4.weight": (10, 32), "4.bias": (10,)}
        self.state = {k: rng.uniform(-0.05, 0.05, s).astype(np.float32) for k, s in shapes.items()}

    def round(self) -> float:
        began = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(self.state)
        parts = [pipe.recv() for pipe in self.pipes]
        self.state = {k: sum(part[k] for part in parts) for k in self.state}
        return time.perf_counter() - began

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


class Pfl:
    """pfl in two processes of its own environment."""

    def __init__(self, torchrun: Path, clients: list[tuple[Array, Array]], folder: Path) -> None:
        file = folder / "clients.npz"
        np.savez(file, x=np.stack([x for x, _ in clients]), y=np.stack([y for _, y in clients]).astype(np.int64))
        script, job = Path(__file__).with_name("pfl_round.py"), [str(v) for v in (STEPS, SHARE, RATE)]
        self.process = subprocess.Popen(
            [torchrun, "--standalone", "--nnodes=1", f"--nproc_per_node={PROCESSES}", script, file, *job],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip
        self._seconds()  # of its first, which evaluates

    def _seconds(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("round "):
            raise SystemExit("pfl did not run: try benchmarks/pfl_round.py by itself to see why")
        return float(line.split()[1])

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self._seconds()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Ours:
    """The real server's exchange of a round: train, average, send the mean."""

    def __init__(self, clients: list[tuple[Array, Array]]) -> None:
        self.engine = LocalEngine([Holding(x, y) for x, y in clients], PROCESSES)
        server = Server(self.engine, [POINTS] * CLIENTS)
        algorithm = FedAvg(step=RATE, K=STEPS, batch=SHARE)
        self.state = server.start(algorithm, lambda ask: (MLP(Flatten(784), 10), None), CrossEntropy(10))
        self.rounds = server.rounds(self.state, 10**6)
        self.t = 0

    def round(self) -> float:
        """Seconds of training alone: the question "train" put to all clients, and the mean of their answers."""
        began = time.perf_counter()
        answers = self.engine.exchange(encode(Message("train", self.t)), list(range(CLIENTS)))
        parts = [decode(answers[i]).tensors for i in range(CLIENTS)]
        mean = {name: sum(part[name].astype(np.float64) for part in parts) / CLIENTS for name in parts[0]}
        seconds = time.perf_counter() - began
        assert all(np.isfinite(array).all() for array in mean.values())
        return seconds

    def whole(self) -> float:
        """A round of the server as users have it, with loss and accuracy at all clients' points."""
        began = time.perf_counter()
        self.state, _ = next(self.rounds)
        self.t = self.state.t
        return time.perf_counter() - began

    def close(self) -> None:
        self.engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pfl", type=Path, metavar="TORCHRUN")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    clients = data()
    ours, torch = Ours(clients), Torch(clients)
    turns = {"ours": ours.round, "torch loop": torch.round, "ours, with evaluation": ours.whole}
    with tempfile.TemporaryDirectory() as folder:
        others: list[Torch | Pfl | Ours] = [ours, torch]
        if options.pfl:
            pfl = Pfl(options.pfl.absolute(), clients, Path(folder))
            others.append(pfl)
            turns["pfl 0.6.0"] = pfl.round
        ours.whole()
        for warm_up in turns.values():
            warm_up()
        times: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(TURNS):
            for name, turn in turns.items():
                times[name].append(turn())
        for each in others:
            each.close()
    best = {name: statistics.median(values) for name, values in times.items()}
    print(f"FedAvg, {CLIENTS} clients, {STEPS} steps each, {PROCESSES} processes; median of {TURNS} rounds")
    for name, seconds in best.items():
        print(f"  {name:22} {seconds:6.3f} s   {seconds / best['ours']:5.2f} × ours")
    if options.json:
        options.json.write_text(
            json.dumps({"seconds": times, "ratios": {n: s / best["ours"] for n, s in best.items()}})
        )


if __name__ == "__main__":
    main()
