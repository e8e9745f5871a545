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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what takes longest, and mostly waits: real servers.  Another process then has all the rest to do."""
    items.sort(key=lambda item: "deployment/test_real" not in item.nodeid)


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
