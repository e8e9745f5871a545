"""The sampler against the probabilities that it is to have, and shares of noise against noise of one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from ffgb.errors import FFGBError
from ffgb.privacy.noise import Words, discrete_gaussian, happens, laplace, noise_of

KEY = b"k" * 32


def fits(found: np.ndarray, weight: np.ndarray, values: np.ndarray) -> float:
    """The p-value of a chi-squared test that these values have probabilities in proportion to these weights."""
    counts = np.array([(found == v).sum() for v in values], float)
    expected = weight / weight.sum() * counts.sum()
    some = expected > 5
    return float(stats.chisquare(counts[some], expected[some] * counts[some].sum() / expected[some].sum()).pvalue)


@pytest.mark.parametrize("deviation", [1, 2, 7])
def test_discrete_gaussian_has_its_probabilities(deviation: int) -> None:
    found = discrete_gaussian(deviation, 60_000, Words(KEY))
    values = np.arange(-6 * deviation, 6 * deviation + 1)
    assert fits(found, np.exp(-(values**2) / (2 * deviation**2)), values) > 1e-4
    # the test would notice a deviation that is a tenth off
    assert fits(found, np.exp(-(values**2) / (2 * (1.1 * deviation) ** 2)), values) < 1e-4


def test_a_number_drawn_alone_has_its_probabilities_in_the_tails() -> None:
    """Few numbers are tried at a time, so that the farthest of them are no rarer than they should be, nor likelier."""
    words, draws = Words(KEY), 3000
    found = np.concatenate([discrete_gaussian(1, 1, words) for _ in range(draws)])
    weight = {y: math.exp(-(y**2) / 2) for y in range(-9, 10)}
    far = sum(w for y, w in weight.items() if abs(y) >= 3) / sum(weight.values())
    assert stats.binomtest(int((np.abs(found) >= 3).sum()), draws, far).pvalue > 1e-3
    assert stats.binomtest(int((np.abs(found) >= 3).sum()), draws, 2.0 * far).pvalue < 1e-3  # it would be noticed


def test_laplace_has_its_probabilities() -> None:
    found, values = laplace(3, 60_000, Words(KEY)), np.arange(-30, 31)
    assert fits(found, np.exp(-np.abs(values) / 3), values) > 1e-4


def test_events_have_their_probabilities() -> None:
    for a, b in ((0, 5), (1, 3), (2, 2), (123, 1000)):
        found = happens(np.full(40_000, a), b, Words(KEY)).mean()
        p = math.exp(-a / b)
        assert abs(found - p) < 5 * math.sqrt(p * (1 - p) / 40_000) + 1e-12


def test_large_deviations_are_exact_too() -> None:
    found = discrete_gaussian(2**22, 20_000, Words(KEY))
    assert stats.kstest(found / 2**22, "norm").pvalue > 1e-4
    # the last bits are uniform: nothing was rounded
    assert stats.chisquare(np.bincount(found & 15)).pvalue > 1e-4


def test_deviations_that_cannot_be_are_refused() -> None:
    for deviation in (0, -3, 2**22 + 1):
        with pytest.raises(FFGBError, match="deviation"):
            discrete_gaussian(deviation, 3, Words(KEY))


def test_uniform_numbers_are_below_their_bound() -> None:
    found = Words(KEY).below(10, 50_000)
    assert stats.chisquare(np.bincount(found, minlength=10)).pvalue > 1e-4
    assert found.max() == 9


def test_noise_repeats_for_the_same_question_and_differs_for_others() -> None:
    shapes = {"a": (3, 2), "b": (4,)}
    first, again = (noise_of(KEY, b"question", 1000, shapes) for _ in range(2))
    assert all((first[name] == again[name]).all() for name in shapes)
    for secret, question in ((b"l" * 32, b"question"), (KEY, b"another")):
        other = noise_of(secret, question, 1000, shapes)
        assert (first["a"] != other["a"]).any()
    assert {name: array.shape for name, array in first.items()} == shapes


def test_shares_add_up_to_the_noise_of_one_curator() -> None:
    """Mean, variance and Kolmogorov–Smirnov, of shares for all but one of 5 clients."""
    clients, deviation = 5, 2000
    share = math.ceil(deviation / math.sqrt(clients - 1))
    shares = [noise_of(bytes([i]) * 32, b"q", share, {"x": (40_000,)})["x"] for i in range(clients)]
    for some, least in ((shares, clients / (clients - 1)), (shares[1:], 1.0)):
        total = np.sum(some, axis=0) / (deviation * math.sqrt(least))
        assert abs(total.mean()) < 5 / math.sqrt(40_000)
        assert abs(total.var() - 1) < 5 * math.sqrt(2 / 40_000)
        assert stats.kstest(total, "norm").pvalue > 1e-4
