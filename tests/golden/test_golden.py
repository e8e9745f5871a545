"""The models of many small jobs are what they were when they were written down (record.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from tests.golden.jobs import AS_PROCESSES, JOBS, NAMES, ON_LOOPBACK, SAME
from tests.golden.perform import COSTS, SCORES, perform
from tests.golden.record import ROUNDED, apart, difference, read, read_told, tolerance

ORDERS, CENTRES = 21, 3
"""What is asked more than when the jobs were written down: for each column one of so many orders of magnitude, and with
the questions come so many numbers a column: where it is centred, twice, and how far it reaches."""
LESS = range(4)
"""How often moments were asked for: they came with a count, which is not needed any more."""
BESIDE = {"digits-patches": 2 * 32}
"""Of features that know their bounds, the two without orders of magnitude."""
BYTES = {"bytes_up": 450, "bytes_down": 2000}
"""Of messages around such arrays, and what rows weigh in reports."""

Done = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def record() -> dict[str, dict[str, Any]]:
    return read()


@pytest.fixture(scope="module")
def told() -> dict[str, list[float]]:
    return read_told()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What a job comes to now; each is done once."""
    base, found = tmp_path_factory.mktemp("golden"), dict[str, dict[str, Any]]()

    def of(name: str) -> dict[str, Any]:
        where = JOBS[name].where if name in JOBS else ""
        for needed in {AS_PROCESSES: ("flwr", "ray"), ON_LOOPBACK: ("flwr",)}.get(where, ()):
            pytest.importorskip(needed)
        if name not in found:
            found[name] = perform(name, base)
        return found[name]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_a_job_comes_to_what_is_written(
    name: str, record: dict[str, dict[str, Any]], told: dict[str, list[float]], done: Done
) -> None:
    before, now = record[name], done(name)
    assert now["totals"] == before["totals"]
    assert difference(before["predictions"], now["predictions"]) <= tolerance(name)
    for kind in SCORES:
        if before["metrics"].get(kind) is not None:  # a private training does not look at its rows
            was, found = before["metrics"][kind], now["metrics"][kind]
            assert apart(was, found) <= tolerance(name), f"{kind} was {was}, and is {found}"
    if name not in ROUNDED:
        expected = told[name]
        assert len(now["told"]) == len(expected)
        for (place, found), was in zip(now["told"].items(), expected, strict=True):
            close = 0.01 if "/wire_" in place else 1e-4  # names of files and numbers of nodes have other lengths
            assert math.isclose(found, was, rel_tol=close, abs_tol=1e-6), f"{place} was {was}, and is {found}"


@pytest.mark.parametrize("name", NAMES)
def test_a_job_costs_what_is_written_and_some_questions(
    name: str, record: dict[str, dict[str, Any]], done: Done
) -> None:
    """To a number, what rounds cost is what they did; the set-up costs whole columns of orders of magnitude more."""
    if record[name]["totals"]:  # how totals travel has changed
        return
    before, now = record[name]["metrics"], done(name)["metrics"]
    more = {cost: now[cost] - before[cost] for cost in COSTS}
    columns = math.ceil(more["parameters_up"] / ORDERS)
    assert ORDERS * columns - more["parameters_up"] in LESS
    assert more["parameters_down"] == pytest.approx(CENTRES * columns + BESIDE.get(name, 0))
    for way in ("up", "down"):
        of_models = now[f"models_{way}"] / before[f"models_{way}"]
        assert of_models == pytest.approx(now[f"parameters_{way}"] / before[f"parameters_{way}"])
    sent = {"bytes_up": 4 * ORDERS * columns, "bytes_down": 8 * more["parameters_down"]}
    for cost, most in BYTES.items():
        # a job's description is without f^0's share, 16 bytes, which f^0 says itself
        assert -16 <= more[cost] - sent[cost] <= (most if columns else 64), cost


@pytest.mark.parametrize(("name", "other"), SAME.items())
def test_a_job_comes_to_the_model_of_another(name: str, other: str, done: Done) -> None:
    assert done(name)["sha256"] == done(other)["sha256"]


def test_every_job_is_written_down(record: dict[str, dict[str, Any]]) -> None:
    assert list(record) == NAMES
    assert any(job["totals"] for job in record.values())
    assert {name for name, job in record.items() if job["totals"]} >= {n for n in NAMES if n.startswith("shared-")}
