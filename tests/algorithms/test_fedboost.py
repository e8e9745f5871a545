"""FedBoost: by hand, as a step of mirror descent, and on an ensemble that some terms of spoil."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.algorithms.fedboost import FedBoost, Predictions, Weighted
from ffgb.algorithms.parametric import part
from ffgb.core.functions import OpenSum
from ffgb.core.losses import CrossEntropy, Square
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear
from ffgb.learners.trees import Tree
from ffgb.runs.training import federate


def lines(slopes: list[float], radius: float = 100.0) -> OpenSum:
    """An ensemble Σ_m (1/M) · slope_m x, each clipped."""
    family = Linear(Flatten(1), 1)
    total: OpenSum = OpenSum(family, ())
    for slope in slopes:
        one = family.member({"weight": np.array([[slope], [0.0]])}).clip(radius)
        total = total + one * (1.0 / len(slopes))  # type: ignore[assignment]
    return total


def test_a_step_by_hand() -> None:
    # predictors x and 3x, one point x = 1, y = 1, half the squared error: f = 2, the slopes are 1·1 and 1·3
    f = lines([1.0, 3.0])
    family = Weighted(Predictions.of(f))
    clients = [(np.ones((1, 1), np.float32), np.ones(1))]
    state, (line,) = federate(clients, family, Square(), FedBoost(step=0.5), 1)
    shares = part(state.f, "x")["shares"]
    expected = np.exp([-0.5, -1.5])
    np.testing.assert_allclose(shares, expected / expected.sum(), rtol=1e-6)
    np.testing.assert_allclose(state.result(np.ones((1, 1))), 2.0, rtol=1e-6)  # slopes were asked for at equal weights
    assert isinstance(state.result, OpenSum)
    assert line["parameters_up"] == 2  # one number a predictor


def test_the_result_is_the_mean_of_the_weights_that_were_tried() -> None:
    family = Weighted(Predictions.of(lines([1.0, 3.0])))
    clients = [(np.ones((1, 1), np.float32), np.ones(1))]
    tried, slopes = [np.array([0.5, 0.5])], np.array([1.0, 3.0])
    for _ in range(3):
        moved = tried[-1] * np.exp(-0.5 * (tried[-1] @ slopes - 1.0) * slopes)
        tried.append(moved / moved.sum())
    state, _ = federate(clients, family, Square(), FedBoost(step=0.5), 3)
    np.testing.assert_allclose(part(state.f, "x")["shares"], tried[-1], rtol=1e-6)
    np.testing.assert_allclose(state.result(np.ones((1, 1))), np.mean(tried[:3], axis=0) @ slopes, rtol=1e-6)


def test_sampled_predictors_by_hand() -> None:
    # x, 3x and 6x at x = 1, y = 1: those of a round that are looked at stand for all, so they count twice
    family, M = Weighted(Predictions.of(lines([1.0, 3.0, 6.0]))), 3
    clients = [(np.ones((1, 1), np.float32), np.ones(1))]
    expected, slopes = np.full(M, 1.0 / M), np.array([1.0, 3.0, 6.0])
    seen = set()
    for t in range(6):
        looked = (np.random.default_rng([5, t]).random(M) < 0.5) * 2.0
        seen.add(int((looked > 0).sum()))
        error = (expected * looked) @ slopes - 1.0
        expected = expected * np.exp(-0.1 * error * slopes * looked)
        expected /= expected.sum()
    state, _ = federate(clients, family, Square(), FedBoost(step=0.1, sampled=0.5, seed=5), 6)
    np.testing.assert_allclose(part(state.f, "x")["shares"], expected, rtol=1e-6)
    assert len(seen) > 1


@pytest.mark.parametrize("sampled", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_a_share(sampled: float) -> None:
    with pytest.raises(FFGBError, match="--sampled"):
        FedBoost(step=0.1, sampled=sampled)


def test_steps_that_are_far_too_long_leave_the_best_predictor() -> None:
    family = Weighted(Predictions.of(lines([1.0, 3.0])))
    clients = [(np.ones((1, 1), np.float32), np.ones(1))]
    state, _ = federate(clients, family, Square(), FedBoost(step=1e9), 3)
    np.testing.assert_array_equal(part(state.f, "x")["shares"], [1.0, 0.0])


def test_equal_shares_are_the_ensemble() -> None:
    f = lines([1.0, -2.0, 4.0])
    family = Weighted(Predictions.of(f))
    x = np.random.default_rng(0).standard_normal((7, 1)).astype(np.float32)
    np.testing.assert_allclose(family.member(family.initial(np.random.default_rng(0)))(x), f(x), rtol=1e-5)


def test_predictors_keep_their_clips_and_weights() -> None:
    """FedBoost keeps the clip and the weight of each term when it starts from equal shares."""
    f = lines([1.0, -2.0, 4.0], radius=1.5) * 1.0 + lines([3.0], radius=0.5) * 2.0
    assert isinstance(f, OpenSum)
    family, x = Weighted(Predictions.of(f)), np.linspace(-3, 3, 13, dtype=np.float32)[:, None]
    expected = sum(np.clip(s * x, -1.5, 1.5) for s in (1.0, -2.0, 4.0)) / 3 + 2.0 * np.clip(3.0 * x, -0.5, 0.5)
    np.testing.assert_allclose(f(x), expected, atol=1e-6)
    np.testing.assert_allclose(family.member(family.initial(np.random.default_rng(0)))(x), expected, atol=1e-5)
    # the first round asks at equal weights, and so its result is the ensemble as it was
    state, _ = federate([(x, np.zeros(13))], family, Square(), FedBoost(step=0.1), 1)
    np.testing.assert_allclose(state.result(x), expected, atol=1e-5)


def test_predictors_that_spoil_an_ensemble_lose_their_weight() -> None:
    rng = np.random.default_rng(0)

    def blobs(n: int) -> tuple[Array, Array]:
        y = rng.integers(0, 2, n)
        return (rng.standard_normal((n, 3)) + 2.0 * y[:, None]).astype(np.float32), y

    family = Tree(Flatten(3), 2, depth=2)
    terms: OpenSum = OpenSum(family, ())
    for k in range(12):
        x, y = blobs(60)
        labels = y if k < 6 else rng.integers(0, 2, 60)  # half of them learnt nothing but noise
        values = np.where(np.eye(2)[labels] > 0, 2.0, -2.0)
        one = family.member(family.least_squares(x)(values, np.random.default_rng(k)))
        terms = terms + one * (1.0 / 12)  # type: ignore[assignment]
    clients = [blobs(80) for _ in range(4)]
    weighted = Weighted(Predictions.of(terms))
    for sampled in (1.0, 0.5):
        state, metrics = federate(clients, weighted, CrossEntropy(2), FedBoost(step=1.0, sampled=sampled), 60)
        shares = part(state.f, "x")["shares"]
        assert shares.sum() == pytest.approx(1.0)
        assert shares[:6].sum() > (0.9 if sampled == 1.0 else 0.8)  # a half of them say less about each
        assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
    again, _ = federate(clients, weighted, CrossEntropy(2), FedBoost(step=1.0, sampled=0.5), 60, workers=2)
    np.testing.assert_array_equal(part(again.f, "x")["shares"], shares)


def test_a_model_that_is_one_array_has_nothing_to_weight() -> None:
    with pytest.raises(FFGBError, match="one array"):
        Predictions.of(Linear(Flatten(1), 1).zero())
