"""Answers, their units and the limits of what is refused are as they were written down (written_questions.py)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.core.written_questions import CASES, FILE, written

WRITTEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_question_is_answered_and_checked_as_written(name: str) -> None:
    found, expected = written(name), WRITTEN[name]
    assert found["sums"].keys() == expected["sums"].keys()
    for key, (*form, unit, bound) in expected["sums"].items():
        assert found["sums"][key][:3] == form
        assert found["sums"][key][3:] == pytest.approx([unit, bound], rel=1e-6)
    for kind, arrays in expected["told"].items():
        assert found["told"][kind].keys() == arrays.keys()
        for key, array in arrays.items():
            largest = float(np.max(np.abs(np.nan_to_num(array)), initial=0.0))
            np.testing.assert_allclose(found["told"][kind][key], array, rtol=1e-5, atol=1e-6 * largest, err_msg=key)
    for some, limits in zip(found["limits"], expected["limits"], strict=True):
        none = {way for way, limit in limits.items() if limit is None}
        assert {way for way, limit in some.items() if limit is None} == none
        for way in limits.keys() - none:
            assert some[way] == pytest.approx(limits[way], abs=0.02), way
