"""Who takes part, what clients weigh, and when too few are left."""

from __future__ import annotations

import logging
import math

import pytest

from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.participants import Participants, sample


def test_one_client_may_be_sampled_and_one_may_be_enough() -> None:
    clients = Participants([5, 7, 9], participation=1, minimum=1)
    seen = {i for t in range(60) for i in clients.sample(0, t)}
    assert seen == {0, 1, 2}
    assert all(len(clients.sample(0, t)) == 1 for t in range(10))
    clients.enough([2], "answered")
    with pytest.raises(FFGBError, match="only 0 of 1 clients answered, and a round needs 1"):
        clients.enough([], "answered")


@pytest.mark.parametrize(("m", "minimum"), [(0, None), (4, None), (3, 0), (2, 3)])
def test_numbers_that_cannot_be_are_refused(m: int, minimum: int | None) -> None:
    with pytest.raises(FFGBError):
        Participants([5, 7, 9], participation=m, minimum=minimum)


def test_samples_are_of_those_that_were_not_refused() -> None:
    clients = Participants([5] * 6, 6, participation=3, minimum=2, owners=range(6))
    clients.refuse(1, "lies")
    clients.refuse(4, "lies too")
    assert clients.everyone == [0, 2, 3, 5]
    assert clients.tests == [6, 8, 9, 11]  # a refused client's rows that are held out go with it
    for t in range(20):
        S = clients.sample(7, t)
        assert len(S) == 3
        assert sorted(S) == S
        assert set(S) <= {0, 2, 3, 5}
    assert sample(7, 0, 4, 9) == [0, 1, 2, 3]
    for i in (0, 2):
        clients.refuse(i, "is gone")
    with pytest.raises(FFGBError, match=r"only 1 of 6 clients are left, and 2 must answer; refused: client 1 lies; "):
        clients.refuse(3, "is gone")


def test_weights_and_shares_by_hand() -> None:
    by_size = Participants([10, 30, 60], by_size=True)
    assert by_size.weights([0, 2]) == [10.0, 60.0]
    assert by_size.share([0, 2]) == 0.7
    assert by_size.share([0, 1, 2]) == 1.0
    alike = Participants([10, 30, 60], by_size=False)
    assert alike.weights([0, 2]) == [1.0, 1.0]
    assert alike.share([0, 2]) == pytest.approx(2 / 3)
    # every row is to count the same: by rows, whatever is set
    assert alike.weighting([0, 1, 2], by_rows=True).part(30.0) == 0.3
    assert alike.weighting([0, 1, 2]).part(30.0) == pytest.approx(1 / 3)
    capped = Participants([10, 10, 80], by_size=True, largest_weight=0.5)
    weights = capped.weights([0, 1, 2])
    assert weights[2] / math.fsum(weights) == pytest.approx(0.5)
    heavy = Participants([2, 2], by_size=True, sizes=[1.0, 3.0])
    assert heavy.weights([0, 1]) == [1.0, 3.0]  # by what rows weigh


def test_the_part_of_a_mean_that_came() -> None:
    clients = Participants([10, 30, 60], by_size=True)
    weighting = clients.weighting([0, 1, 2])
    assert clients.part_of(weighting, [0, 1, 2], [0, 1, 2]) == 1.0
    assert clients.part_of(weighting, [0, 1, 2], [0, 2]) == pytest.approx(0.7)


def test_where_everyone_must_answer_an_error_keeps_its_kind() -> None:
    clients = Participants([1, 1], names=["east", "west"])
    with pytest.raises(DivergedError, match="client west diverged"):
        clients.leave_out(1, DivergedError("diverged"))
    with pytest.raises(FFGBError, match="client east is slow"):
        clients.leave_out(0, FFGBError("is slow"))


def test_a_missing_part_of_the_test_set_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    clients = Participants([1, 1], 1, minimum=1)
    with caplog.at_level(logging.WARNING, "ffgb"):
        clients.leave_out(2, FFGBError("is slow"))
        assert not caplog.records
        clients.leave_out(1, FFGBError("is slow"))
    assert "client 1 is left out of this round: it is slow" in caplog.text


def test_who_is_absurdly_far_from_the_others_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clients = Participants([10, 30, 60, 20], minimum=3, by_size=True)
    fine = {0: (1.0, 0.0), 1: (2.0, 0.0), 2: (3.0, 0.0)}
    assert clients.comparable(fine, "square") == [0, 1, 2]
    with caplog.at_level(logging.WARNING, "ffgb"):
        assert clients.comparable({**fine, 3: (1e6, 0.0)}, "square") == [0, 1, 2]
    assert "client 3 is left out of this round: it sent a square of 1e+06, absurdly larger" in caplog.text
    # weighed with its share, a sixth of the rows
    assert clients.comparable({**fine, 3: (1.4e4, 0.0)}, "square") == [0, 1, 2, 3]
    assert clients.comparable({**fine, 3: (1.6e4, 0.0)}, "square") == [0, 1, 2]
    # the largest floor is that of all
    assert clients.comparable({**fine, 3: (1e6, 1e3)}, "square") == [0, 1, 2, 3]
    assert clients.comparable({}, "square") == []
