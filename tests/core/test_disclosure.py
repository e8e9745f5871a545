"""No published count, and no difference of published counts, tells of few rows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.disclosure import differences_tell, joined, ordered_cells

COUNTS = st.lists(st.lists(st.integers(0, 40), min_size=2, max_size=2), min_size=1, max_size=14)


@given(counts=COUNTS, least=st.integers(1, 25))
def test_joined_groups_are_a_partition_with_enough_rows_in_every_cell(counts: list[list[int]], least: int) -> None:
    array = np.array(counts)
    groups = joined(array, least)
    if groups is None:
        assert (array.sum(axis=0) < least).any()
        return
    assert sorted(k for group in groups for k in group) == list(range(len(array)))
    assert all((array[group].sum(axis=0) >= least).all() for group in groups)
    assert len(groups) <= 9


@given(counts=COUNTS, least=st.integers(1, 25), apart=st.integers(0, 14))
def test_merged_cells_have_enough_rows_and_keep_a_threshold(counts: list[list[int]], least: int, apart: int) -> None:
    array, apart = np.array(counts), min(apart, len(counts))
    starts = ordered_cells(array, least, apart)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    if (array.sum(axis=0) >= least).all():
        ends = [*starts[1:], len(array)]
        assert all((array[a:b].sum(axis=0) >= least).all() for a, b in zip(starts, ends, strict=True))
    sides = array[:apart], array[apart:]
    if all((side.sum(axis=0) >= least).all() for side in sides) and 0 < apart < len(array):
        assert apart in starts


def _brute(first: np.ndarray, second: np.ndarray, kinds: np.ndarray, least: int) -> bool:
    """Any union of groups of one table that lies within any union of groups of the other."""
    for one, other in ((first, second), (second, first)):
        unions = [set(s) for n in range(1, 4) for s in combinations(range(3), n)]
        for a in unions:
            for b in unions:
                in_a, in_b = np.isin(one, list(a)), np.isin(other, list(b))
                if (in_b & ~in_a).any():
                    continue
                left = np.bincount(kinds[in_a & ~in_b], minlength=2)
                if left.sum() and (left < least).any():
                    return True
    return False


@settings(max_examples=150)
@given(seed=st.integers(0, 10**6), nested=st.booleans(), least=st.integers(1, 6))
def test_an_attack_by_differences_finds_what_is_refused_and_nothing_else(seed: int, nested: bool, least: int) -> None:
    rng = np.random.default_rng(seed)
    n = 60
    first, kinds = rng.permutation(np.arange(n) % 3), rng.integers(0, 2, n)
    second = np.minimum(first, 1) if nested else rng.permutation(np.arange(n) % 3)
    if nested:
        second[rng.integers(0, n, 3)] = 2
    enough = all((np.bincount(kinds[g == k], minlength=2) >= least).all() for g in (first, second) for k in set(g))
    if not enough:  # `joined` comes first
        return
    assert differences_tell(first, second, kinds, least) == _brute(first, second, kinds, least)
