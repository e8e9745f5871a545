"""Steps a second of the iterative oracles, against the plain torch loop that most people would write.

    python benchmarks/oracle.py [--quick] [--json FILE]

Both sides take the same steps on the same random data of MNIST's (CIFAR-10's) shape, one thread each, in turns, so
that a busy machine slows both.  The last column is the part of the speed of a large product of float32 matrices,
measured in the same run, that the useful arithmetic of the net (one forward and one backward pass) amounts to.
Nothing fails if it is slow; read the ratio beside its bar.
"""

from __future__ import annotations

import os

from ffgb.core.capabilities import LeastSquares

# Before NumPy and torch are imported, which read them once.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ffgb.core.functions import Family
from ffgb.core.types import Array
from ffgb.features.basic import Flatten
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net

POINTS, BATCH, OUTPUTS = 1071, 128, 10


@dataclass(frozen=True)
class Case:
    """One learner: ours, torch's, and the arithmetic of a step."""

    name: str
    family: Callable[[int], Family]
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: int
    bar: float
    megaflop: float


@dataclass(frozen=True)
class Result:
    """Medians over the repetitions; the ratio is the median of the ratios of neighbours in time."""

    name: str
    ours: float
    torch: float
    ratio: float
    bar: float
    gigaflops: float
    part_of_peak: float


def perceptron() -> nn.Module:
    relu = nn.LeakyReLU(0.01)
    return nn.Sequential(nn.Linear(784, 32), relu, nn.Linear(32, 32), relu, nn.Linear(32, OUTPUTS))


def tutorial() -> nn.Module:
    """The PyTorch tutorial's net as the tutorial has it, with hidden sizes 32, 32."""
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    convolutions = (nn.Conv2d(3, 6, 5), relu, pool, nn.Conv2d(6, 16, 5), relu, pool, nn.Flatten())
    return nn.Sequential(*convolutions, nn.Linear(400, 32), relu, nn.Linear(32, 32), relu, nn.Linear(32, OUTPUTS))


def megaflop(layers: list[tuple[int, int, int]]) -> float:
    """Of layers (places, inputs, units): forward, by the weights, and, but in the first layer, by the inputs."""
    return sum(2 * BATCH * p * i * u * (2 if k == 0 else 3) for k, (p, i, u) in enumerate(layers)) / 1e6


HEAD = [(1, 32, 32), (1, 32, OUTPUTS)]
CASES = [
    Case(
        "mlp 784-32-32-10",
        lambda steps: MLP(Flatten(784), OUTPUTS, steps=steps, batch=BATCH),
        perceptron,
        (784,),
        500,
        4.5,
        megaflop([(1, 784, 32), *HEAD]),
    ),
    Case(
        "cnn 3x32x32",
        lambda steps: Net((3, 32, 32), OUTPUTS, steps=steps, batch=BATCH),
        tutorial,
        (3, 32, 32),
        60,
        1.2,
        megaflop([(28 * 28, 75, 6), (10 * 10, 150, 16), (1, 400, 32), *HEAD]),
    ),
]


def plain(case: Case, x: torch.Tensor, phi: torch.Tensor) -> None:
    """The loop that most people would write."""
    net = case.module()
    adam = torch.optim.Adam(net.parameters(), lr=0.005)
    done = 0
    while done < case.steps:
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            adam.zero_grad()
            loss = ((net(x[rows]) - phi[rows]) ** 2).sum(1).mean()
            loss.backward()
            adam.step()
            done += 1
            if done == case.steps:
                break


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak() -> float:
    """GFLOP/s of a large product."""
    a = np.ones((1024, 1024), np.float32)
    return 2 * 1.024**3 / min(seconds(lambda: a @ a) for _ in range(3))


def measure(case: Case, repetitions: int) -> Result:
    rng = np.random.default_rng(0)
    x: Array = rng.random((POINTS, *case.shape), dtype=np.float32)
    phi = rng.standard_normal((POINTS, OUTPUTS))
    family = case.family(case.steps)
    assert isinstance(family, LeastSquares)
    fit = family.least_squares(family.features(x))
    x_torch, phi_torch = torch.tensor(x), torch.tensor(phi, dtype=torch.float32)
    turns = [
        (seconds(lambda: fit(phi, np.random.default_rng(0))), seconds(lambda: plain(case, x_torch, phi_torch)), peak())
        for _ in range(repetitions + 1)
    ]
    ours, theirs, peaks = zip(*turns[1:], strict=True)  # the first is for warming up
    speed = case.steps / statistics.median(ours)
    gigaflops = speed * case.megaflop / 1e3
    return Result(
        case.name,
        speed,
        case.steps / statistics.median(theirs),
        statistics.median(t / o for o, t in zip(ours, theirs, strict=True)),
        case.bar,
        gigaflops,
        gigaflops / statistics.median(peaks),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps a second of the iterative oracles, against plain torch.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'learner':18}{'ours/s':>9}{'torch/s':>9}{'ratio':>8}{'bar':>6}{'GFLOP/s':>9}{'of peak':>9}")
    results = []
    for case in CASES:
        r = measure(case, 3 if arguments.quick else 9)
        results.append(r)
        print(
            f"{r.name:18}{r.ours:9.0f}{r.torch:9.0f}{r.ratio:7.2f}x{r.bar:5.1f}x"
            f"{r.gigaflops:9.1f}{100 * r.part_of_peak:8.0f}%"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
