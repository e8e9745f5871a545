"""Exact against estimated distances between clients: what they cost, and how far the estimates are from known truth.

    python benchmarks/heterogeneity.py [--quick] [--json FILE]

Times are of 56 clients with 1,000 points each of MNIST (random points of its shape if it is not there), in one thread.
Exact W₁ is timed on a few pairs, one before and one after the estimate in turn, and multiplied up to all 1,540.
Errors are of samples of 1,000 points a client: noise of the sample is in them, for exact distances as well.
"""

from __future__ import annotations

import os

# Before NumPy is imported, which reads them once.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from ffgb.core.types import Array
from ffgb.data import available, load, partition
from ffgb.data.heterogeneity import classifier_tv, farthest, measure, sliced_w1, total_variation, wasserstein

N, POINTS, SHAPE = 56, 1_000, 784


@dataclass(frozen=True)
class Case:
    """Two distributions, how to draw from them, and their distances; None if there is no formula."""

    name: str
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]
    tv: float | None
    w1: float | None


def clients() -> tuple[str, list[Array]]:
    rng = np.random.default_rng(0)
    if not available("mnist"):
        means = rng.standard_normal((N, 1, SHAPE))
        return "random points", list(means + rng.standard_normal((N, POINTS, SHAPE)))
    dataset = load("mnist")
    parts = partition(dataset, "similarity", N)
    return "MNIST", [dataset.x[rng.permutation(rows)[:POINTS]].reshape(-1, SHAPE) for rows in parts]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def times(pairs: int) -> dict[str, float]:
    name, samples = clients()
    rng = np.random.default_rng(1)
    chosen = [tuple(map(int, rng.choice(N, 2, replace=False))) for _ in range(pairs)]
    wasserstein(samples[0][:9], samples[1][:9])  # POT is imported
    exact = [seconds(lambda: wasserstein(samples[i], samples[j])) for i, j in chosen[::2]]  # noqa: B023
    sliced, (estimates, _) = seconds(lambda: sliced_w1(samples))
    exact += [seconds(lambda: wasserstein(samples[i], samples[j])) for i, j in chosen[1::2]]  # noqa: B023
    found = [estimates[i, j] for i, j in chosen[::2] + chosen[1::2]]
    each, total = float(np.median([s for s, _ in exact])), N * (N - 1) // 2
    share = float(np.mean([e / value for e, (_, value) in zip(found, exact, strict=True)]))
    tv, _ = seconds(lambda: classifier_tv(samples))
    D, _ = seconds(lambda: farthest(samples))
    everything, _ = seconds(lambda: measure([x.reshape(-1, 1, 28, 28) for x in samples]))
    print(f"{N} clients with {POINTS:,} points of {name} each, {total:,} pairs; in one thread, seconds:")
    print(f"  exact W₁, all pairs      {each * total:8.1f}   extrapolated from {pairs} pairs, {each:.2f} each")
    print(f"  sliced W₁, all pairs     {sliced:8.1f}   and to the mixture; {each * total / sliced:.0f} times as fast")
    print(f"  classifier's TV          {tv:8.1f}")
    print(f"  D                        {D:8.1f}")
    print(f"  all of `measure`         {everything:8.1f}")
    print(f"  sliced W₁ is {share:.2f} of the exact one of these samples, on the average over those pairs\n")
    return {
        "exact": each * total,
        "sliced": sliced,
        "ratio": each * total / sliced,
        "classifier": tv,
        "D": D,
        "measure": everything,
        "sliced / exact": share,
    }


def shifted(d: int, shift: float) -> Case:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n, d))
        return x, y + shift / math.sqrt(d)

    return Case(f"N(0, 1), shifted by {shift:g}, d = {d}", draw, float(2 * norm.cdf(shift / 2) - 1), shift)


def scaled(d: int, scale: float) -> Case:
    r2 = 2 * d * math.log(scale) * scale**2 / (scale**2 - 1)  # the first is denser inside this ball
    tv = float(chi2.cdf(r2, d) - chi2.cdf(r2 / scale**2, d))
    norms = math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))  # E‖Z‖

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n, d))
        return x, scale * y

    return Case(f"N(0, 1), scaled by {scale:g}, d = {d}", draw, tv, (scale - 1) * norms)


def finite(points: int, d: int) -> Case:
    """Two mixtures of the same points."""
    rng = np.random.default_rng(points)
    support = rng.standard_normal((points, d))
    p, q = rng.dirichlet(np.full(points, 0.5), 2)

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        return support[rng.choice(points, n, p=p)], support[rng.choice(points, n, p=q)]

    tv, w1 = total_variation(support, support, p, q), wasserstein(support, support, 1, p, q)
    return Case(f"mixtures of {points} points, d = {d}", draw, tv, w1)


CASES = (
    *(shifted(d, shift) for d, shift in ((2, 0.0), (2, 1.0), (10, 2.0), (50, 2.0), (784, 3.0))),
    *(scaled(d, scale) for d, scale in ((2, 2.0), (10, 1.5), (50, 1.2))),
    *(finite(points, d) for points, d in ((8, 2), (50, 10))),
)


def errors(repetitions: int) -> list[dict[str, Any]]:
    print(f"Mean ± spread of {repetitions} samples of 2 × {POINTS:,} points, and the truth:")
    print(f"  {'':34}{'TV':>7}{'classifier':>16}{'exact':>16}{'W₁':>10}{'sliced':>16}{'exact':>16}")
    rows = []
    for case in CASES:
        found = []
        for seed in range(repetitions):
            x, y = case.draw(np.random.default_rng(seed), POINTS)
            tv, w1 = classifier_tv([x, y], seed)[0][0, 1], sliced_w1([x, y], seed=seed)[0][0, 1]
            found.append((tv, total_variation(x, y), w1, wasserstein(x, y)))
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
        shown = [f"{m:9.3f} ±{s:5.3f}" for m, s in zip(mean, spread, strict=True)]
        print(f"  {case.name:34}{case.tv:7.3f}{shown[0]}{shown[1]}{case.w1:10.3f}{shown[2]}{shown[3]}", flush=True)
        names = ("classifier_tv", "exact_tv", "sliced_w1", "exact_w1")
        truth = {name: value for name, value in asdict(case).items() if name != "draw"}
        rows.append({**truth, **dict(zip(names, mean.tolist(), strict=True))})
    print("  Exact TV of samples of a continuous distribution is 1, and exact W₁ of samples is too large in many")
    print("  dimensions: both are exact for the points at hand, not for what they were drawn from.")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What exact and estimated distances between clients cost and miss.")
    parser.add_argument("--quick", action="store_true", help="fewer pairs and repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    options = parser.parse_args()
    results = {"times": times(4 if options.quick else 16), "errors": errors(2 if options.quick else 8)}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
