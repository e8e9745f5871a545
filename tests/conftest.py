"""Shared by all tests: where the real data is, and a small family whose sums are exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared and busy: how long an example takes says nothing.  Examples are the same in every run, so that a
# change is judged by what it changed; `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("ffgb", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("ffgb")

ROOT = Path(__file__).parents[1]

LONGEST = (
    "engines/test_flower_jobs",
    "deployment/test_real",
    "test_examples",
    "federation/test_totals",
    "runs/test_directory",
    "studies/test_compare_steps",
    "cli/test_models",
    "golden/test_golden",
    "cli/test_paper",
    "federation/test_shared",
    "studies/test_compare_budgets",
    "federation/test_lies_in_set_up",
    "cli/test_signals",
    "engines/test_flower",
    "engines/test_local",
    "federation/test_lies_in_rounds",
    "test_readme",
    "cli/test_algorithms",
    "cli/test_safety",
    "test_sklearn_checks",
    "deployment/test_federation",
)
"""Files that take more than twenty seconds, by how long they take."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the files that take longest: no process then begins one when the others are done."""
    places = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))


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
