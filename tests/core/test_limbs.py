"""Numbers of any size as limbs: against Python's fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ffgb.core.limbs import exact_sum, from_limbs, to_limbs


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


def test_exact_sums_are_those_of_fractions() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400) * 2.0 ** rng.integers(-12, 80, 400).astype(float)
    values[:3] = 1.0 + 2.0**-40, 2.0**-61 * 1.5, -(2.0**-61)  # the last two are rounded to 2^-60 and to 0
    unit = Fraction(1, 2**60)
    exact = sum((Fraction(round(Fraction(value) / unit)) * unit for value in values.tolist()), Fraction(0))
    assert exact_sum(values) == exact
    parts = [exact_sum(part) for part in np.array_split(rng.permutation(values), 7)]
    assert sum(parts, Fraction(0)) == exact
    assert exact_sum(np.zeros(0)) == 0
    many = np.full(3 * 2**16, 1.0 + 2.0**-52)
    assert exact_sum(many) == Fraction(1.0 + 2.0**-52) * len(many)
