"""What the norms of FFGB.C and FFGB.L cost: minimax fits against least squares and a linear program, extensions.

    python benchmarks/norms.py

Only ratios inside one run mean anything on shared machines.
"""

from __future__ import annotations

import os

from ffgb.core.capabilities import LeastSquares, Minimax

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from ffgb.core.capabilities import Fit
from ffgb.core.functions import Family
from ffgb.core.lipschitz import Extension
from ffgb.core.types import Array
from ffgb.data import load
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def query(y: Array) -> Array:
    """The gradient of cross entropy at f = 0: an oracle's first query."""
    return 0.1 - np.eye(10)[y]


def optimum(z: Array, phi: Array) -> float:
    """The least largest error of all outputs, each by a linear program (HiGHS)."""
    n, d = z.shape
    ones, bounds = np.ones((n, 1)), [(None, None)] * d + [(0, None)]
    matrix = np.block([[z, -ones], [-z, -ones]])
    programs = (linprog(np.r_[np.zeros(d), 1.0], matrix, np.r_[y, -y], bounds=bounds, method="highs") for y in phi.T)
    return max(float(program.fun or 0.0) for program in programs)


def largest_error(family: Family, oracle: Callable[[Array], Fit], z: Array, phi: Array) -> float:
    member = family.member(oracle(z)(phi, np.random.default_rng(0)))
    return float(np.abs(member.evaluate(z) - phi).max())


def fits(what: str, family: Family, z: Array, phi: Array) -> None:
    """The sup error and time of a minimax fit, as ratios to least squares."""
    assert isinstance(family, LeastSquares)
    assert isinstance(family, Minimax)
    plain, seconds = timed(partial(largest_error, family, family.least_squares, z, phi))
    least, longer = timed(partial(largest_error, family, family.minimax, z, phi))
    print(f"  {what}: sup error {least:.3f} against {plain:.3f}, × {least / plain:.2f}; time × {longer / seconds:.1f}")


def main() -> None:
    digits, rng = load("digits"), np.random.default_rng(0)
    x = Flatten(64)(digits.x)
    linear = Linear(Flatten(64), 10, ridge=1e-9)
    print("WO^∞, linear over 64 pixels of digits, against the linear program")
    for n in (150, 400, len(x)):
        rows = rng.permutation(len(x))[:n]
        z, phi = x[rows], query(digits.y[rows])
        best, slow = timed(partial(optimum, np.c_[z, np.ones(n)].astype(float), phi))
        error, fast = timed(partial(largest_error, linear, linear.minimax, z, phi))
        print(f"  {n} points: sup error {error / best:.3f} of the optimum {best:.3f}, in {fast / slow:.2f} of its time")
    print("minimax against least squares, the same learner, query and steps")
    rows = rng.permutation(len(x))[:300]
    fits(
        "digits, 300 points, MLP 64-32-32-10, 200 steps",
        MLP(Flatten(64), 10, steps=200),
        x[rows],
        query(digits.y[rows]),
    )
    try:
        mnist = load("mnist")
    except Exception as error:
        print(f"  MNIST is left out: {error}")
    else:
        rows = rng.permutation(len(mnist.x))[:1071]
        z = Flatten(784)(mnist.x[rows])
        for steps in (200, 1000):
            net = MLP(Flatten(784), 10, steps=steps)
            fits(f"MNIST, 1,071 points, MLP 784-32-32-10, {steps} steps", net, z, query(mnist.y[rows]))
    print("extensions: 10,000 queries, 10,000 labelled points in 20 dimensions")
    points, s = rng.standard_normal((2, 10_000, 20))
    labels = np.sin(points[:, :1])

    def distances() -> None:
        for start in range(0, len(s), 256):
            cdist(s[start : start + 256], points)

    _, floor = timed(distances)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind in ("mcshane", "middle"):
        u, check = timed(partial(Extension, points, labels, 1.0, kind))
        _, values = timed(partial(u, s))
        _, slopes = timed(partial(u.gradient, s))
        print(
            f"  {kind}: {values:.1f} s, × {values / floor:.1f} of the distances alone; "
            f"gradients × {slopes / floor:.1f}; checking the labels × {check / floor:.1f}"
        )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"  peak memory grew by {grown / 1000:.0f} MB")


if __name__ == "__main__":
    main()
