"""Where the tests find published data: `FFGB_DATA`, or the folder of shared data beside the repository."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffgb.data.sources import SOURCES, VARIABLE, available

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Points FFGB_DATA at the data that is there, and skips if the set is not."""
    if not os.environ.get(VARIABLE) and SHARED.is_dir():
        monkeypatch.setenv(VARIABLE, str(SHARED))

    def need(name: str) -> str:
        if not available(name):
            pytest.skip(f"{name}: its files are not under {VARIABLE} ({SOURCES[name].origin})")
        return name

    return need
