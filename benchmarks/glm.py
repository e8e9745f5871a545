"""Time and memory of `ffgb.glm` beside statsmodels on the pooled table, each in a process of its own.

    python benchmarks/glm.py [--rows 1000000] [--sites 20]

Both read the same Parquet files.  Seconds are those of the fit with its reading; memory is the largest resident size
above that of a process that has imported the same packages.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FORMULA = "event ~ age + bmi + pressure + glucose + sex + C(stage) + smoker:age"


def make(folder: Path, rows: int, sites: int) -> None:
    rng = np.random.default_rng(0)
    for k in range(sites):
        n = rows // sites
        frame = pd.DataFrame(rng.normal((60, 27, 130, 100), (12, 4, 18, 20), (n, 4)))
        frame.columns = pd.Index(["age", "bmi", "pressure", "glucose"])
        frame["sex"] = pd.Categorical(rng.choice(["F", "M"], n))
        frame["stage"] = rng.integers(1, 5, n)
        frame["smoker"] = rng.integers(0, 2, n)
        eta = 0.03 * (frame.age - 60) + 0.02 * (frame.pressure - 130) + 0.3 * frame.smoker + 0.1 * k - 2
        frame["event"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        frame.to_parquet(folder / f"site{k:02}.parquet")


def measure(who: str, folder: Path) -> dict[str, Any]:
    """One fit in this process."""
    files = sorted(folder.glob("*.parquet"))
    if who == "statsmodels":
        import statsmodels.api as sm
        import statsmodels.formula.api as smf

        before, began = peak(), time.perf_counter()
        frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
        fitted = smf.glm(FORMULA, frame, family=sm.families.Binomial()).fit()
        seconds, found = time.perf_counter() - began, fitted.params.to_dict()
    else:
        from ffgb.runs.glm import glm

        before, began = peak(), time.perf_counter()
        fitted = glm(files, FORMULA, family="binomial")
        seconds, found = time.perf_counter() - began, dict(zip(fitted.names, fitted.coefficients.tolist(), strict=True))
    return {"seconds": seconds, "megabytes": peak() - before, "coefficients": found}


def peak() -> float:
    """The largest resident size so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--measure", choices=("statsmodels", "ffgb"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.rows, given.sites)
        results = dict[str, dict[str, Any]]()
        for who in ("statsmodels", "ffgb", "statsmodels", "ffgb"):
            command = [sys.executable, __file__, "--measure", who, "--folder", folder]
            done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            if who not in results or done["seconds"] < results[who]["seconds"]:
                results[who] = done
    ours, theirs = results["ffgb"], results["statsmodels"]
    apart = max(abs(ours["coefficients"][k] / v - 1) for k, v in theirs["coefficients"].items())
    for who, each in results.items():
        print(f"{who:12} {each['seconds']:8.2f} s {each['megabytes']:8.0f} MB")
    print(f"ratio        {ours['seconds'] / theirs['seconds']:8.2f}   {ours['megabytes'] / theirs['megabytes']:8.2f}")
    print(f"coefficients differ by at most {apart:.1e} of their size")


if __name__ == "__main__":
    main()
