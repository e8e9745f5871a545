"""Numbers as integers of 40 bits, whose sums are exact: for numbers of which no bound is known."""

from __future__ import annotations

import fractions
from collections.abc import Iterable

import numpy as np

from ffgb.core.types import Array

LIMB, LIMBS, FINEST = 40, 4, -60
"""Bits of a limb, limbs of a number, and the power of two that limbs count in: numbers up to 2^99."""


def exact_sum(values: Array) -> fractions.Fraction:
    """The sum of numbers, each rounded to a multiple of 2^FINEST: the same however they are dealt out to sites.

    >>> exact_sum(np.array([0.1, 1e18, -1e18])) == fractions.Fraction(0.1)
    True
    """
    values = np.asarray(values, np.float64)
    small = np.abs(values) < 2.0 ** (FINEST + 52)  # all others are multiples of 2^FINEST
    values = np.where(small, np.ldexp(np.rint(np.ldexp(values, -FINEST)), FINEST), values)
    parts, exponents = np.frexp(values)
    whole = np.ldexp(parts, 53).astype(np.int64)
    low = whole & (2**27 - 1)
    total = fractions.Fraction(0)
    for exponent in np.unique(exponents):
        here = exponents == exponent
        some = (int((whole[here] >> 27).sum()) << 27) + int(low[here].sum())
        total += some * fractions.Fraction(2) ** (int(exponent) - 53)
    return total


def to_limbs(values: Iterable[float | fractions.Fraction]) -> Array:
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
