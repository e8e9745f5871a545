"""Costs against privacy loss distributions of dp-accounting, and against the discrete Gaussian itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from ffgb.core.private_question import MARGIN, SMALLEST_DEVIATION
from ffgb.errors import SettingError
from ffgb.privacy.accountant import composed, delta_of, epsilon_of, mu_of


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.1422), (1, 0.2681), (2, 0.5016), (4, 0.9249), (8, 1.666)])
def test_published_costs(epsilon: float, mu: float) -> None:
    assert mu_of(epsilon, 1e-5) == pytest.approx(mu, abs=6e-5)
    assert epsilon_of(mu_of(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_composition_is_that_of_privacy_loss_distributions() -> None:
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    costs = [0.3 * 0.8**k for k in range(9)]
    accountant = pld.PLDAccountant()
    for mu in costs:
        accountant.compose(accounting.GaussianDpEvent(1.0 / mu))
    assert epsilon_of(composed(costs), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_the_margin_covers_the_grid() -> None:
    """δ of a discrete Gaussian of the coarsest kind, for one coordinate, is below that of the price that is paid."""
    for mu in (0.02, 0.3):
        sensitivity = round(SMALLEST_DEVIATION * mu)
        deviation = math.ceil(sensitivity * math.sqrt(MARGIN) / (sensitivity / SMALLEST_DEVIATION))
        price = sensitivity * math.sqrt(MARGIN) / deviation
        y = np.arange(-14 * deviation, 14 * deviation + 1)
        p = np.exp(-(y**2) / (2 * deviation**2))
        p /= p.sum()
        loss = sensitivity * (2 * y + sensitivity) / (2 * deviation**2)
        for epsilon in (0.01, price, 3 * price):
            exact = float(np.sum(p * np.maximum(1.0 - np.exp(np.minimum(epsilon - loss, 0.0)), 0.0)))
            assert exact <= delta_of(epsilon, price)


def test_the_margin_covers_the_grid_of_sums_of_shares() -> None:
    """Three sites' coarsest shares: their sum is exact by convolution, and is no worse than the Gaussian paid for."""
    deviation, shares = SMALLEST_DEVIATION, 3
    y = np.arange(-10 * deviation, 10 * deviation + 1)
    one = np.exp(-(y**2) / (2 * deviation**2))
    one /= one.sum()
    p = np.convolve(np.convolve(one, one), one)
    z = np.arange(len(p)) - len(p) // 2
    gauss = np.exp(-(z**2) / (2 * shares * deviation**2))
    inside = np.abs(z) <= 8 * deviation
    assert p[inside] == pytest.approx(gauss[inside] / gauss.sum(), rel=1e-9)
    for mu in (0.02, 0.3, 1.5):
        sensitivity = round(deviation * math.sqrt(shares) * mu)
        price = sensitivity * math.sqrt(MARGIN) / (deviation * math.sqrt(shares))
        shifted = np.concatenate([np.zeros(sensitivity), p])[: len(p)]  # with the row
        for epsilon in (0.01, price, 3 * price):
            exact = float(np.sum(np.maximum(shifted - math.exp(epsilon) * p, 0.0)[inside]))
            assert exact <= delta_of(epsilon, price)


@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.6, 0.8), (1.0, 0.004)])
def test_the_margin_covers_the_grid_of_two_coordinates(direction: tuple[float, float]) -> None:
    deviation = SMALLEST_DEVIATION
    y = np.arange(-7 * deviation, 7 * deviation + 1, dtype=np.float64)
    p = np.exp(-(y**2) / (2 * deviation**2))
    p /= p.sum()
    for mu in (0.05, 0.5):
        moved = [round(deviation * mu * d) for d in direction]
        square = sum(m * m for m in moved)
        price = math.sqrt(square * MARGIN) / deviation
        for epsilon in (price, 3 * price):
            exact = 0.0
            for at, weight in zip(y, p, strict=True):
                loss = (moved[0] * at + moved[1] * y + square / 2) / deviation**2
                exact += weight * float(np.sum(p * np.maximum(-np.expm1(epsilon - loss), 0.0)))
            assert exact <= delta_of(epsilon, price)


def test_delta_falls_with_epsilon_and_grows_with_mu() -> None:
    assert delta_of(1.0, 0.5) > delta_of(2.0, 0.5)
    assert delta_of(1.0, 0.6) > delta_of(1.0, 0.5)
    assert epsilon_of(0.0, 1e-5) == 0.0
    # the same by another root
    assert mu_of(1.0, 1e-6) == pytest.approx(brentq(lambda mu: delta_of(1.0, mu) - 1e-6, 1e-3, 5.0), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 0.5), (99.0, 1e-5)]
)
def test_impossible_budgets(epsilon: float, delta: float) -> None:
    with pytest.raises(SettingError):
        mu_of(epsilon, delta)
