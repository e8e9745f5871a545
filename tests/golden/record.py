"""`python -m tests.golden.record` writes down what all jobs come to; with --check it says what has become of that.

What the runs say beside that is in told.json: --told writes it anew, and nothing else.

For each job it says whether all bits of the model are as written, or else by how much predictions differ at most, in
parts of the largest of them, and which numbers of the metrics are others.  Names of jobs may follow.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.jobs import NAMES
from tests.golden.perform import COSTS, perform

RECORD = Path(__file__).with_name("record.json")
TOLD = Path(__file__).with_name("told.json")
"""All numbers that runs say of rounds, clients and scores, in their order (perform.numbers)."""
TOLERANCE = 1e-6
"""Of predictions, and of scores.  Learners travel in single precision: on a processor that rounds otherwise, jobs come
to within 6e-7."""
ROUNDED = {"shared-float16": 2e-3, "shared-int8": 2e-2}
"""When these two were written down the clients' covectors travelled in that precision.  Sums are added up as integers
now, and of a round only the step is rounded so: models differ by about the error of that rounding."""
LEAST = 1e-9
"""Of a probability: what is left of 1 − p has no more digits than that."""


def tolerance(name: str) -> float:
    """Of this job's predictions and scores."""
    return ROUNDED.get(name, TOLERANCE)


def read() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def read_told() -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(TOLD.read_text())
    return found


def write_told(found: Mapping[str, Mapping[str, Any]], before: Mapping[str, list[float]]) -> None:
    """One job a line, seven digits a number."""
    new = {name: [float(f"{number:.7g}") for number in job["told"].values()] for name, job in found.items()}
    short = {**before, **new}
    some = [name for name in NAMES if name in short]
    lines = (f"{json.dumps(name)}: {json.dumps(short[name], separators=(',', ':'))}" for name in some)
    TOLD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write(found: Mapping[str, Mapping[str, Any]]) -> None:
    """One job a line."""
    some = [name for name in NAMES if name in found]
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], allow_nan=False)}" for name in some)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def difference(before: Sequence[Sequence[float]], now: Sequence[Sequence[float]]) -> float:
    """The largest between predictions, in parts of the largest of them; of probabilities, between their logarithms."""
    a, b = (np.array(values, np.float64) for values in (before, now))
    if a.shape != b.shape:
        return float("inf")
    if a.shape[1] > 1 and a.min() >= 0 and np.allclose(a.sum(axis=1), 1.0, atol=1e-6):
        a, b = (np.log(np.maximum(values, LEAST)) for values in (a, b))
    return float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))


def apart(before: float, now: float) -> float:
    """How far two numbers are apart, in parts of the first."""
    return abs(before - now) / max(1.0, abs(before))


def _told(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    if before is None:
        return "is new"
    d = difference(before["predictions"], now["predictions"])
    same = before["sha256"] == now["sha256"] if before["sha256"] else before["predictions"] == now["predictions"]
    told = ["bits agree" if same else f"bits differ, predictions by {d:.1e}"]
    if same and d:
        told.append(f"predictions differ by {d:.1e}")
    for name, value in before["metrics"].items():
        after = now["metrics"].get(name)
        if after is None or (after != value and (same or name in COSTS or apart(value, after) > 1e-12)):
            told.append(f"{name} {value} is {after}")
    return ", ".join(told + (["of totals"] if now["totals"] else []))


def _wrong(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """Totals may be rounded otherwise than they were, those of the set-up too; nothing else may change."""
    return before is not None and difference(before["predictions"], now["predictions"]) > tolerance(name)


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 if --check finds a job that fails, or a model that has changed by more than it may."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is written, and write nothing")
    parser.add_argument("--told", action="store_true", help="write what runs say, and nothing else")
    parser.add_argument("jobs", nargs="*", help="these alone")
    given = parser.parse_args(arguments)
    before = read() if RECORD.exists() else {}
    found, changed = ({} if given.check or given.told or not given.jobs else dict(before)), 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as base:
        for name in given.jobs or NAMES:
            start = time.perf_counter()
            try:
                found[name] = perform(name, Path(base))
            except Exception as error:
                told, changed = f"fails: {error}", changed + 1
            else:
                told = _told(before.get(name), found[name])
                changed += _wrong(name, before.get(name), found[name])
            print(f"{name:30} {time.perf_counter() - start:5.1f} s  {told}", flush=True)
    if given.told:
        write_told(found, read_told() if given.jobs else {})
    elif not given.check:
        write({name: {key: value for key, value in job.items() if key != "told"} for name, job in found.items()})
    print(f"{len(given.jobs or NAMES)} jobs, {time.perf_counter() - began:.0f} s; {changed} have changed or fail")
    return int(bool(given.check and changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
