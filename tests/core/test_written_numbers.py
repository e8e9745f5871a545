"""Numbers of methods are as they were written down (written_numbers.py)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.core.written_numbers import CASES, FILE, written

WRITTEN = json.loads(FILE.read_text())
ROUGH = {"nets": 1e-3, "oracles": 1e-3}
"""Learners compute in single precision."""


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_as_written(name: str) -> None:
    found, close = written(name), ROUGH.get(name, 1e-5)
    assert found.keys() >= WRITTEN[name].keys()
    for key, numbers in WRITTEN[name].items():
        largest = float(np.max(np.abs(numbers), initial=0.0))
        np.testing.assert_allclose(found[key], numbers, rtol=close, atol=close * min(largest, 1.0), err_msg=key)
