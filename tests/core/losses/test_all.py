"""Losses: gradients against finite differences, bounds that hold and are reached, targets that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Soft, Square
from ffgb.core.losses.base import scaled_by_mean
from ffgb.core.statistics import Moments
from ffgb.errors import FFGBError

LOSSES: list[Loss] = [
    CrossEntropy(4),
    Logistic(),
    Square(1),
    Square(3),
    Huber(1),
    Huber(3, delta=0.5),
    Soft(4),
    Soft(1),
]


def targets(loss: Loss, n: int, rng: np.random.Generator) -> np.ndarray:
    if loss.classification:
        return rng.integers(0, 2 if isinstance(loss, Logistic) else loss.outputs, n)
    if isinstance(loss, Soft):
        return rng.dirichlet(np.ones(loss.outputs), n) if loss.outputs > 1 else rng.random((n, 1))
    return rng.standard_normal((n, loss.outputs)) if loss.outputs > 1 else rng.standard_normal(n)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_smoothness_is_reached(loss: Loss) -> None:
    """The Lipschitz constant of the gradient is reached: where two classes are even, or near the target."""
    rng, step = np.random.default_rng(0), 1e-4
    y = targets(loss, 1, rng)
    if loss.classification or isinstance(loss, Soft):
        f = np.where(np.arange(loss.outputs) < 2, 0.0, -50.0)[None]
    else:
        f = np.reshape(y, (1, -1))
    direction = np.zeros(loss.outputs)
    direction[:2] = [1.0] if loss.outputs == 1 else [math.sqrt(0.5), -math.sqrt(0.5)]
    change = loss.gradient(f + step * direction, y) - loss.gradient(f - step * direction, y)
    assert np.linalg.norm(change) / (2 * step) == pytest.approx(loss.smoothness, rel=1e-4)


def test_soft_labels_that_are_certain_are_classes() -> None:
    """With probabilities 0 and 1 the soft loss equals cross entropy and the logistic loss."""
    rng = np.random.default_rng(0)
    f, y = rng.standard_normal((20, 4)), rng.integers(0, 4, 20)
    np.testing.assert_allclose(Soft(4).value(f, np.eye(4)[y]), CrossEntropy(4).value(f, y))
    np.testing.assert_allclose(Soft(4).gradient(f, np.eye(4)[y]), CrossEntropy(4).gradient(f, y), atol=1e-12)
    f, y = f[:, :1], y % 2
    np.testing.assert_allclose(Soft(1).value(f, y[:, None]), Logistic().value(f, y))
    np.testing.assert_allclose(Soft(1).gradient(f, y[:, None]), Logistic().gradient(f, y))


FLAGS: dict[str, tuple[bool, bool, bool, bool, str, bool]] = {
    "CrossEntropy": (True, False, True, True, "accuracy", False),
    "Logistic": (True, False, True, True, "accuracy", False),
    "Square": (False, True, True, True, "rmse", True),
    "Huber": (False, True, True, True, "rmse", True),
}


@pytest.mark.parametrize("loss", [each for each in LOSSES if type(each).__name__ in FLAGS], ids=repr)
def test_what_a_loss_says_of_itself(loss: Loss) -> None:
    classes, dispersed, alone, smooth, name, root = FLAGS[type(loss).__name__]
    assert (loss.classification, loss.dispersed, loss.alone, loss.smooth) == (classes, dispersed, alone, smooth)
    assert (loss.measure.name, loss.measure.root, loss.temperature) == (name, root, 1.0)
    assert loss.measure.of(0.25) == (0.5 if root else 0.25)
    assert loss.start_level is None
    assert loss.robust == isinstance(loss, Huber)


def test_targets_are_standardised_whatever_their_size() -> None:
    moments = Moments(np.array([3.0, -1.0, 5.0]), np.array([0.25, 4.0, 0.0]))
    found = Square(3).scaling(moments)
    assert found is not None
    assert found[0].tolist() == [3.0, -1.0, 5.0]
    assert found[1].tolist() == [0.5, 2.0, 1.0]
    with pytest.raises(FFGBError, match="targets of column 2 have a mean of -1"):
        scaled_by_mean(moments, "gamma")
    mean, scale = scaled_by_mean(Moments(np.array([0.5]), np.array([9.0])), "gamma")
    assert (mean.tolist(), scale.tolist()) == ([0.0], [0.5])
    with pytest.raises(FFGBError, match="have a mean of 0"):
        scaled_by_mean(Moments(np.array([0.0]), np.array([9.0])), "gamma")


def test_scores_are_in_the_users_units_and_by_weight() -> None:
    f, y, weights = np.array([[1.0], [2.0]]), np.array([0.5, 4.0]), np.array([3.0, 0.5])
    assert Square(1).scores(f, y) == {"squared_error": 4.25}
    assert Square(1).scores(f, y, np.array([7.0]), np.array([2.0]), weights) == {"squared_error": 3.0 + 8.0}
    p = np.log(np.array([[0.2, 0.8], [0.5, 0.5], [0.6, 0.4]]))
    assert CrossEntropy(2).scores(p, np.array([1, 0, 1])) == {"correct": 2.0}  # of two alike the first
    three = np.array([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])
    assert CrossEntropy(3).scores(three, np.array([1, 2]), None, None, np.array([0.25, 4.0])) == {"correct": 0.25}
    assert Square(1).unscaled(f, np.array([7.0]), np.array([2.0])).ravel().tolist() == [9.0, 11.0]
    assert Square(1).unscaled(f).ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.array([0, 3]), r"must lie in 0 … 2, found 0 … 3"),
        (np.array([-1, 2]), r"must lie in 0 … 2, found -1 … 2"),
        (np.array([0.0, 1.0]), "one integer a row, not float64"),
        (np.array([[0], [1]]), r"one integer a row, not int64 of shape \(2, 1\)"),
    ],
)
def test_labels_that_are_none_are_refused(y: np.ndarray, words: str) -> None:
    CrossEntropy(3).check(np.array([0, 2], np.uint8))
    CrossEntropy(3).check(np.array([], int))
    with pytest.raises(FFGBError, match=words):
        CrossEntropy(3).check(y)


def test_numbers_that_are_none_are_refused() -> None:
    Square(2).check(np.zeros((4, 2)))
    Square(1).check(np.zeros(4, int))
    for y, words in (
        (np.zeros((4, 3)), "must be 2 number"),
        (np.full((4, 2), "a"), "must be 2 number"),
        (np.array([[0.0, np.nan], [np.inf, 1.0]]), "2 target value.s. are missing or infinite"),
    ):
        with pytest.raises(FFGBError, match=words):
            Square(2).check(y)


def test_a_loss_of_another_task_is_refused() -> None:
    with pytest.raises(FFGBError, match="square does not fit classification"):
        Square.of(3, 1)
    with pytest.raises(FFGBError, match="cross-entropy does not fit regression"):
        CrossEntropy.of(0, 1)
    assert Square.of(0, 2).outputs == 2
    assert CrossEntropy.of(3, 1).outputs == 3
