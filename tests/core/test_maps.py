"""Fingerprints of feature maps: the same for the same function, and for no other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from ffgb.core.maps import FeatureMap, spectral_norm
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier

Array = np.ndarray


@final
@dataclass(frozen=True, eq=False)
class Several(FeatureMap):
    """A map with arrays in a tuple."""

    arrays: tuple[Array, ...] = field(default=())

    @property
    def dimension(self) -> int:
        return 1

    def __call__(self, x: Array) -> Array:
        return x[:, :1]


def test_every_part_counts() -> None:
    fourier = RandomFourier(Flatten(3), 8, 1.0, 0)
    both = Concatenate((Flatten(3), fourier), (1.0, 0.5))
    assert both.fingerprint == Concatenate((Flatten(3), RandomFourier(Flatten(3), 8, 1.0, 0)), (1.0, 0.5)).fingerprint
    others: list[FeatureMap] = [
        fourier,
        replace(both, factors=(1.0, 0.25)),
        replace(both, parts=(Flatten(3), replace(fourier, seed=1))),
        Concatenate((fourier, Flatten(3)), (1.0, 0.5)),
    ]
    assert len({both.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_large_arrays_count_as_a_whole() -> None:
    """Not as they are printed: numpy leaves the middle of a large array out."""
    one, two = np.zeros(5000), np.zeros(5000)
    two[2500] = 1.0
    assert repr(one) == repr(two)
    maps = [Several((one, one)), Several((one, two)), Several((two, one)), Several((one.astype(np.float32), one))]
    assert len({each.fingerprint for each in maps}) == 4
    assert Several((one.copy(), two.copy())).fingerprint == maps[1].fingerprint
    assert Several((np.zeros((2, 3)),)).fingerprint != Several((np.zeros((3, 2)),)).fingerprint


def test_spectral_norms() -> None:
    assert spectral_norm(np.diag([1.0, -3.0, 2.0])) == 3.0
    assert spectral_norm(np.zeros((0, 2))) == 0.0
