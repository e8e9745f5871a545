"""Partial likelihoods, residuals and concordance at one site, against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index

from ffgb.core.concordance import c_index, concordance
from ffgb.core.regression.cox import ConcordantPairs, EventCounts, _check_events
from ffgb.core.regression.design import Records, Variable
from ffgb.core.regression.survival import Stratum, Survival, Ties
from ffgb.core.types import Array
from ffgb.errors import FFGBError


def loglik(time: Array, event: Array, x: Array, beta: Array, ties: Ties) -> float:
    """As the textbook has it."""
    w, total = np.exp(x @ beta), 0.0
    for t in np.unique(time[event]):
        died = event & (time == t)
        for k in range(int(died.sum())):
            left = k / died.sum() if ties == "efron" else 0.0
            total -= np.log(w[time >= t].sum() - left * w[died].sum())
        total += (x[died] @ beta).sum()
    return float(total)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 25))
def test_score_and_information_are_derivatives(ties: Ties, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    time, event = rng.integers(0, 8, n) * 1.0, rng.random(n) < 0.6
    x, beta = rng.normal(size=(n, 3)), rng.normal(size=3)
    found = Stratum.of(time, event, x, beta, ties)
    assert found.loglik == pytest.approx(loglik(time, event, x, beta, ties), abs=1e-9)
    h = 1e-5
    steps = [h * np.eye(3)[k] for k in range(3)]
    slope = [loglik(time, event, x, beta + d, ties) - loglik(time, event, x, beta - d, ties) for d in steps]
    np.testing.assert_allclose(found.score, np.array(slope) / (2 * h), atol=1e-6)
    curved = [Stratum.of(time, event, x, beta + d, ties).score for d in steps]
    back = [Stratum.of(time, event, x, beta - d, ties).score for d in steps]
    np.testing.assert_allclose(found.information, -(np.array(curved) - back) / (2 * h), atol=1e-5)
    np.testing.assert_allclose(found.residuals.sum(axis=0), found.score, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 4)), max_size=30))
def test_concordance_counts_pairs(rows: list[tuple[int, bool, int]]) -> None:
    time, event, risk = (np.array([row[k] for row in rows]) for k in range(3))
    expected = np.zeros(3, int)
    for i, j in product(range(len(rows)), repeat=2):
        if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
            expected += [risk[i] > risk[j], risk[i] == risk[j], 1]
    found = concordance(time * 1.0, event.astype(bool), risk * 1.0)
    assert found == tuple(expected)
    if found[2]:
        assert c_index(found) == pytest.approx(concordance_index(time, -risk, event))
    else:
        assert c_index(found) is None


def test_strata_are_combinations_of_categories() -> None:
    codes = {"a": (np.array([0, 1, 1, 0, 2]), ("x", "y", "z")), "b": (np.array([1, 0, 1, 1, 0]), ("u", "v"))}
    records = Records({"t": np.arange(5.0), "d": np.array([1.0, 0.0, 1.0, 0.0, 1.0])}, codes, 5)
    survival = Survival(Variable("t"), Variable("d"), ("a", "b"))
    assert [rows.tolist() for rows in survival.groups(records)] == [[0, 3], [1], [2], [4]]
    assert [rows.tolist() for rows in replace(survival, strata=("b",)).groups(records)] == [[1, 4], [0, 2, 3]]
    assert [rows.tolist() for rows in replace(survival, strata=()).groups(records)] == [[0, 1, 2, 3, 4]]
    time, event = survival.of(records)
    assert (time.tolist(), event.tolist()) == ([0.0, 1.0, 2.0, 3.0, 4.0], [True, False, True, False, True])
    with pytest.raises(FFGBError, match="no column 'c' of categories"):
        list(replace(survival, strata=("c",)).groups(records))
    for name, values, words in (
        ("t", [-1.0], "values below 0"),
        ("t", [np.inf], "below 0"),
        ("d", [2.0], "other than"),
    ):
        wrong = Records({**records.numbers, name: np.array([*values, 1.0, 0.0, 0.0, 0.0])}, codes, 5)
        with pytest.raises(FFGBError, match=words):
            survival.of(wrong)


def test_counts_of_events_and_pairs_that_cannot_be_are_refused() -> None:
    events = EventCounts(Survival(Variable("t"), Variable("d")))
    events.check({"counts": np.array([3.0, 0.0, 3.0])}, 3)
    for wrong in ([3.0, 0.0, 4.0], [3.0, -1.0, 1.0], [3.0, 0.0, -1.0]):
        with pytest.raises(FFGBError, match="rows and events are none"):
            events.check({"counts": np.array(wrong)}, 3)
    pairs = ConcordantPairs(None, events.survival, np.zeros(1), 2)  # type: ignore[arg-type]
    pairs.check({"pairs": np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])}, 3)
    for row in ([2.0, 2.0, 3.0], [-1.0, 0.0, 3.0]):
        with pytest.raises(FFGBError, match="counts of pairs are none"):
            pairs.check({"pairs": np.array([[0.0, 0.0, 0.0], row])}, 3)


def test_too_few_events_are_refused() -> None:
    _check_events(10, 9, 10, 0.0)
    _check_events(10, 99, 10, 0.1)
    for events, p, words in ((0, 1, "no row of any site"), (9, 1, "have 9 events"), (10, 10, "10 events for 10 coef")):
        with pytest.raises(FFGBError, match=words):
            _check_events(events, p, 10, 0.0)
