"""Numbers of any size as limbs: against Python's fractions."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.limbs import from_limbs, to_limbs


def test_limbs_by_hand() -> None:
    # in units of 2^-60: 1 is 2^60 = 2^20 · 2^40
    assert to_limbs([1.0]).tolist() == [[0, 2**20, 0, 0]]
    assert to_limbs([-1.0]).tolist() == [[0, -(2**20), 0, 0]]
    assert to_limbs([2.0**-60, 2.0**-61, 0.0]).tolist() == [[1, 0, 0, 0], [0] * 4, [0] * 4]
    assert to_limbs([2.0**99, 2.0**120, -np.inf]).tolist() == [[0, 0, 0, 2**39]] * 2 + [[0, 0, 0, -(2**39)]]
    assert to_limbs([]).shape == (0, 4)


@pytest.mark.parametrize("value", [0.1, -12345.678, 1e18 + 2.0**10, 2.0**98 - 2.0**50, -(2.0**-59)])
def test_a_number_survives(value: float) -> None:
    assert from_limbs(to_limbs([value]))[0] == pytest.approx(value, rel=1e-16, abs=2.0**-61)


def test_sums_of_limbs_are_exact() -> None:
    values = [1e20, 1.0, -1e20, 2.0**-40]
    assert from_limbs(to_limbs(values).sum(axis=0, keepdims=True))[0] == 1.0 + 2.0**-40
