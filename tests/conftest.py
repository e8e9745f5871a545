"""Shared by all tests: where the real data is, and a small family whose sums are exact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# Machines are shared and busy: how long an example takes says nothing.  Examples are the same in every run, so that a
# change is judged by what it changed; `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("ffgb", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("ffgb")

ROOT = Path(__file__).parents[1]

LONGEST = (
    "deployment/test_real",
    "cli/test_paper",
    "engines/test_flower",
    "test_examples",
    "deployment/test_real_trees",
    "privacy/test_leaks",
    "deployment/test_first_hour",
    "test_readme",
    "golden/test_golden",
    "cli/test_signals",
    "engines/test_flower_jobs",
    "federation/test_shared",
    "test_sklearn_checks",
    "privacy/test_leaks_totals",
    "algorithms/test_blended",
    "federation/test_liars",
    "federation/test_lies_in_set_up",
    "federation/test_lies_in_rounds",
    "engines/test_local",
    "federation/test_totals",
    "cli/test_models",
    "cli/test_algorithms",
    "runs/test_directory",
    "studies/test_compare_steps",
    "studies/test_compare_budgets",
    "studies/test_compare",
    "cli/test_safety",
    "test_sklearn",
    "deployment/test_federation",
)
"""Files that take long, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the files that take longest: no process then begins one when the others are done."""
    places = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))


@pytest.fixture(autouse=True)
def numpy_warns() -> Iterator[None]:
    """Lifelines has NumPy divide by zero in silence from its first fit on: that ends with the test."""
    with np.errstate():
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with real data; tests that need it are skipped where there is none."""
    for folder in (os.environ.get("FFGB_DATA", ""), str(ROOT.parent / "shared" / "data")):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("no real data here: set FFGB_DATA")


@pytest.fixture
def real_data(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FFGB_DATA is set, for this process and those it starts."""
    monkeypatch.setenv("FFGB_DATA", str(data_folder))
    return data_folder


@pytest.fixture
def real_workers() -> None:
    """Worker processes begin as a user's do."""


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere they are forks that begin at once (forks.py)."""
    if "real_workers" not in request.fixturenames:
        from tests import forks  # which imports this file

        monkeypatch.setattr("ffgb.engines.local.begin", forks.work_in_forks)
        monkeypatch.setattr("ffgb.studies.processes.begin", forks.study_in_forks)
