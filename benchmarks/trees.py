"""Boosted trees from totals against central histogram boosting, in one run: seconds a tree, ratios, peak memory.

    python benchmarks/trees.py [--rows 1000000] [--columns 11] [--clients 4] [--trees 40] [--json FILE]

**ours** is `federate` with clients in this process; **ours, NumPy** is the same without numba; **central** is
scikit-learn's HistGradientBoostingClassifier on all rows.  All have one thread, the same rows, bins, leaves, learning
rate and trees, one tree after the other, best first, all columns.  **side by side** is how `ffgb train` grows trees
by default: five at a time, each with a few of the columns, level by level.

Each way has a process of its own, so that peaks of memory are its own, and the ways take turns.  Data are made in the
process from a seed and are in the peak.  Seconds are of the processor, and so do not count others' work.  Start-up is
in none of them; numba has kept the compiled loops from a small run before.  Nothing fails if it is slow; read the
ratios.
"""

from __future__ import annotations

import os

# Before NumPy is imported, which reads them once.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from ffgb.algorithms.trees_shared import TreesShared
from ffgb.core import kernels
from ffgb.core.losses import Logistic
from ffgb.core.questions import Ask
from ffgb.core.tree_growth import Growth
from ffgb.core.types import Array
from ffgb.features.bins import bins_of
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.training import federate

BINS, LEAVES, RATE, LEAST, RIDGE = 100, 31, 0.1, 20, 1.0
TESTS = 20_000
WAYS = ("central", "ours", "ours, NumPy", "side by side")


@dataclass(frozen=True)
class Measured:
    """One way, once."""

    way: str
    setup: float
    """Processor seconds of a run without trees, or with one: binning."""
    tree: float
    """Processor seconds a tree."""
    total: float
    wall: float
    peak: float
    """Bytes, data included."""
    auc: float


def data(rows: int, columns: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows with interactions and noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    f = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3])
    return x, (f + rng.standard_normal(rows, dtype=np.float32) > 0).astype(np.int64)


def central(x: Array, y: Array, trees: int) -> tuple[float, float, float, Array]:
    """Seconds until there is one tree and in all, those of the wall, and scores of the test rows."""
    tests = data(TESTS, x.shape[1], 1)[0]

    def fitted(number: int) -> tuple[float, float, HistGradientBoostingClassifier]:
        began, wall = time.process_time(), time.perf_counter()
        model = HistGradientBoostingClassifier(
            learning_rate=RATE,
            max_iter=number,
            max_leaf_nodes=LEAVES,
            max_bins=BINS,
            min_samples_leaf=LEAST,
            l2_regularization=RIDGE,
            early_stopping=False,
        ).fit(x, y)
        return time.process_time() - began, time.perf_counter() - wall, model

    first, _, _ = fitted(1)
    total, wall, model = fitted(trees)
    return first, total, wall, model.decision_function(tests)


def ours(x: Array, y: Array, trees: int, clients: int, *, side_by_side: bool) -> tuple[float, float, float, Array]:
    """The same of a federation in this process."""

    def learner(ask: Ask) -> tuple[BoostedTrees, None]:
        return BoostedTrees(bins_of(ask, (), x.shape[1], BINS, LEAST), 1, LEAVES), None

    if side_by_side:
        growth = Growth(LEAVES, 6, LEAST, 1e-3, RIDGE, by_level=True)
        algorithm, rounds = TreesShared(0.8, 5, 0.3, 4, growth), max(1, trees // 5)
    else:
        algorithm, rounds = TreesShared(RATE, growth=Growth(LEAVES, 32, LEAST, 1e-3, RIDGE)), trees
    ends = np.linspace(0, len(y), clients + 1).astype(int)
    parts = [(x[a:b], y[a:b]) for a, b in pairwise(ends)]

    def run(number: int) -> tuple[float, float, Array]:
        began, wall = time.process_time(), time.perf_counter()
        state, _ = federate(parts, learner, Logistic(), algorithm, number)
        seconds = time.process_time() - began, time.perf_counter() - wall
        return *seconds, state.f(data(TESTS, x.shape[1], 1)[0])[:, 0]

    first, _, _ = run(1)
    total, wall, scores = run(rounds)
    return first, total, wall, scores


def measure(way: str, rows: int, columns: int, clients: int, trees: int) -> Measured:
    """In this process."""
    if way == "ours, NumPy":
        kernels.COMPILED_ROWS = sys.maxsize
    x, y = data(rows, columns)
    if way == "central":
        first, total, wall, scores = central(x, y, trees)
    else:
        ours(*data(5000, columns), 2, 1, side_by_side=way == "side by side")  # the loops are compiled, or read
        first, total, wall, scores = ours(x, y, trees, clients, side_by_side=way == "side by side")
    in_first = 5 if way == "side by side" else 1
    tree = (total - first) / max(1, trees - in_first)
    peak = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    auc = float(roc_auc_score(data(TESTS, columns, 1)[1], scores))
    return Measured(way, first - in_first * tree, tree, total, wall, peak, auc)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trees from totals against central histogram boosting, in one run.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=11)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--trees", type=int, default=40, help="a multiple of five")
    parser.add_argument("--turns", type=int, default=1, help="how often each way is measured; the fastest counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = options.rows, options.columns, options.clients, options.trees
    if options.way:
        print(json.dumps(asdict(measure(options.way, *size))))
        return
    found: dict[str, Measured] = {}
    for _ in range(options.turns):
        for way in WAYS:
            names = ("rows", "columns", "clients", "trees")
            arguments = [word for name, value in zip(names, size, strict=True) for word in (f"--{name}", str(value))]
            command = [sys.executable, __file__, "--way", way, *arguments]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            now = Measured(**json.loads(lines[-1]))
            if way not in found or now.total < found[way].total:
                found[way] = now
    base = found["central"]
    print(f"{options.rows:,} rows × {options.columns} columns, {options.clients} clients, {options.trees} trees")
    print(
        f"  {'':14}{'set-up, s':>10}{'s a tree':>10}{'times':>7}{'total, s':>10}{'times':>7}{'peak, GB':>10}{'AUC':>8}"
    )
    for way, m in found.items():
        times = m.tree / base.tree, m.total / base.total
        print(
            f"  {way:14}{m.setup:10.2f}{m.tree:10.3f}{times[0]:7.2f}{m.total:10.1f}{times[1]:7.2f}"
            f"{m.peak / 1e9:10.2f}{m.auc:8.4f}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(m) for m in found.values()], indent=2) + "\n")


if __name__ == "__main__":
    main()
