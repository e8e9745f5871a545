"""Numbers as integers of 40 bits, whose sums are exact: for numbers of which no bound is known."""

from __future__ import annotations

import fractions
from collections.abc import Iterable

import numpy as np

from ffgb.core.types import Array

LIMB, LIMBS, FINEST = 40, 4, -60
"""Bits of a limb, limbs of a number, and the power of two that limbs count in: numbers up to 2^99."""


def to_limbs(values: Iterable[float]) -> Array:
    """Numbers as limbs, (numbers, limbs): sums are exact up to 2²³ clients.

    >>> from_limbs(to_limbs([0.1]) + to_limbs([1e18])) == [10**18 + 0.1]
    array([ True])
    """
    found = []
    for value in values:
        clipped = min(max(value, -(2.0**99)), 2.0**99)
        whole, limbs = round(fractions.Fraction(clipped) * 2**-FINEST), list[int]()
        sign, whole = (-1 if whole < 0 else 1), abs(whole)
        for _ in range(LIMBS):
            limbs.append(sign * (whole & (2**LIMB - 1)))
            whole >>= LIMB
        found.append(limbs)
    return np.array(found, np.int64).reshape(-1, LIMBS)


def from_limbs(limbs: Array) -> Array:
    """The numbers, rounded once."""
    whole = [sum(int(limb) << (LIMB * k) for k, limb in enumerate(row)) for row in limbs]
    return np.array([float(fractions.Fraction(number) * fractions.Fraction(2) ** FINEST) for number in whole])
