"""Step sizes, number by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ffgb.core.schedules import Constant, Power, Schedule, Theorem, capped, make_schedule
from ffgb.errors import FFGBError


def test_the_theorems_steps() -> None:
    # 2/(μ(tK+k+1)): t = 0, k = 1 gives 1/μ
    assert Theorem(mu=0.5)(k=1, t=0, K=3) == 2.0
    assert Theorem(mu=0.5)(k=2, t=4, K=3) == pytest.approx(2 / (0.5 * 15))
    assert Theorem(mu=0.5, numerator=4)(k=2, t=4, K=3) == pytest.approx(4 / (0.5 * 15))


def test_the_papers_and_the_authors_steps() -> None:
    paper, authors = Power(20.0), Power(20.0, offset="t+1")
    assert [paper(k, 0, 2) for k in (1, 2)] == [20 / 2, 20 / 3]
    assert [paper(k, 3, 2) for k in (1, 2)] == [20 / 8, 20 / 9]
    # η₀/((t+1)K + k' + 1) with k' = k − 1 from 0
    assert [authors(k, 0, 2) for k in (1, 2)] == [20 / 3, 20 / 4]
    assert Power(20.0, p=0.5)(1, 1, 2) == pytest.approx(20 / 2.0)


def test_the_cap_keeps_the_decay_from_turning_negative() -> None:
    eta = Theorem(mu=0.1, numerator=4)(k=1, t=0, K=1)
    assert eta == pytest.approx(20.0)
    assert capped(eta, mu=0.1) == 10.0
    assert capped(eta, mu=0.0) == eta
    assert Constant(0.3)(k=7, t=9, K=11) == 0.3


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(FFGBError, match="μ > 0"):
        Theorem(mu=0.0)
    for make in (Constant, Power):
        with pytest.raises(FFGBError, match="positive"):
            make(0.0)
        with pytest.raises(FFGBError, match="positive"):
            make(float("nan"))


@pytest.mark.parametrize(
    ("settings", "schedule"),
    [
        ({"schedule": "theorem1"}, Theorem(0.5, 2.0)),
        ({"schedule": "theorem2"}, Theorem(0.5, 4.0)),
        ({"schedule": "power"}, Power(3.0, 0.75)),
        ({"schedule": "power", "step_offset": "t+1"}, Power(3.0, 0.75, "t+1")),
        ({"schedule": "constant"}, Constant(3.0)),
        ({"schedule": "search"}, Constant(3.0)),
    ],
)
def test_settings_name_a_schedule(settings: dict[str, str], schedule: Schedule) -> None:
    config: Any = SimpleNamespace(**{"mu": 0.5, "step_size": 3.0, "step_power": 0.75, "step_offset": "t", **settings})
    assert make_schedule(config) == schedule
