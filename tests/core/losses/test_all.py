"""Losses: gradients against finite differences, bounds that hold and are reached, targets that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Soft, Square

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
