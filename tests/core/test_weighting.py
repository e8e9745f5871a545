"""What clients weigh: shares add up to one, and no client has more than it may."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.weighting import Weighting, cap
from ffgb.errors import FFGBError

SIZES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20)


@given(SIZES, st.booleans(), st.one_of(st.none(), st.floats(0.01, 1.0)))
def test_parts_add_up_to_one(sizes: list[float], by_size: bool, share: float | None) -> None:
    weighting = Weighting.of(sizes, by_size=by_size, largest_share=share)
    assert math.fsum(map(weighting.part, sizes)) == pytest.approx(1.0)
    for size in sizes:  # and so do those of its rows
        assert weighting.share(size) * size == pytest.approx(weighting.part(size))
        assert weighting.weight(size) <= (size if by_size else 1.0)


@given(SIZES, st.floats(0.01, 1.0))
def test_no_client_weighs_more_than_its_share(sizes: list[float], share: float) -> None:
    weighting = Weighting.of(sizes, largest_share=share)
    most = max(share, 1.0 / len(sizes))  # of fewer than 1/share clients all weigh the same
    assert max(map(weighting.part, sizes)) <= most * (1.0 + 1e-9)
    ordered = sorted(sizes)
    parts = [weighting.part(size) for size in ordered]
    assert parts == sorted(parts)  # a larger client never weighs less
    if max(sizes) / math.fsum(sizes) <= share:
        assert [weighting.weight(size) for size in sizes] == sizes  # nothing is lowered without need


@given(st.lists(st.floats(0.01, 1e6), min_size=3, max_size=20), st.floats(0.4, 0.9))
def test_the_cap_is_met_by_the_largest(sizes: list[float], share: float) -> None:
    if max(sizes) / math.fsum(sizes) <= share:
        assert cap(sizes, share) >= max(sizes) * (1.0 - 1e-12)
    else:
        lowered = [min(size, cap(sizes, share)) for size in sizes]
        assert max(lowered) / math.fsum(lowered) == pytest.approx(share)


@pytest.mark.parametrize(("total", "level"), [(0.0, 1.0), (math.inf, 1.0), (3.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_weights_that_cannot_be_are_refused(total: float, level: float) -> None:
    with pytest.raises(FFGBError, match="clients cannot weigh"):
        Weighting(total, True, level)


def test_by_hand() -> None:
    by_size = Weighting.of([10.0, 30.0])
    assert (by_size.part(10.0), by_size.part(30.0)) == (0.25, 0.75)
    assert by_size.share(10.0) == by_size.share(30.0) == 1 / 40  # every row counts the same
    alike = Weighting.of([10.0, 30.0], by_size=False)
    assert (alike.part(10.0), alike.part(30.0)) == (0.5, 0.5)
    assert (alike.share(10.0), alike.share(30.0)) == (1 / 20, 1 / 60)
    assert cap([1.0, 1.0, 8.0], 0.5) == 2.0
    capped = Weighting.of([1.0, 1.0, 8.0], largest_share=0.5)
    assert [capped.part(size) for size in (1.0, 1.0, 8.0)] == [0.25, 0.25, 0.5]
    assert cap([1.0, 2.0, 4.0], 0.2) == 1.0  # too few for such a share
