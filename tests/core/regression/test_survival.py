"""Partial likelihoods, residuals and concordance at one site, against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index

from ffgb.core.concordance import c_index, concordance
from ffgb.core.regression.survival import Stratum, Ties
from ffgb.core.types import Array


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
