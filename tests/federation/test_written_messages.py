"""What servers and clients say in small trainings is as it was written down (written_messages.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.federation.written_messages import FILE, TRAININGS, written

WRITTEN = json.loads(FILE.read_text())


def alike(found: Any, expected: Any, place: str) -> None:
    """The same, and numbers up to the rounding of single precision."""
    match expected:
        case dict():
            assert found.keys() == expected.keys(), place
            for name, value in expected.items():
                alike(found[name], value, f"{place}/{name}")
        case list():
            assert len(found) == len(expected), place
            for k, (one, other) in enumerate(zip(found, expected, strict=True)):
                alike(one, other, f"{place}/{k}")
        case float():
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), place
        case _:
            assert found == expected, place


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_as_written(name: str) -> None:
    found = json.loads(json.dumps(written(name)))
    assert found["notes"] == WRITTEN[name]["notes"]
    alike(found, WRITTEN[name], name)
