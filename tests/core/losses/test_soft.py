"""Cross entropy to probabilities: against finite differences, torch and the losses of labels; lessons; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.losses import LOSSES, CrossEntropy, Logistic, Soft
from ffgb.core.losses.links import Logit, Softmax
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from tests.core.losses import checks

EACH = pytest.mark.parametrize("loss", [Soft(1), Soft(3)], ids=repr)
SEEDS = st.integers(0, 2**32 - 1)


def targets(loss: Soft) -> checks.Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        return rng.uniform(size=(n, 1)) if loss.outputs == 1 else rng.dirichlet(np.ones(loss.outputs), n)

    return draw


def sample(loss: Soft, n: int = 50) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, loss.outputs)), targets(loss)(rng, n)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 10))
def test_gradient_equals_finite_differences(loss: Soft, seed: int, scale: float) -> None:
    checks.gradient_equals_finite_differences(loss, targets(loss), seed, scale)


@EACH
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_bounds_hold_and_the_loss_is_convex(loss: Soft, seed: int, scale: float) -> None:
    checks.bounded(loss, targets(loss), seed, scale)
    checks.convex(loss, targets(loss), seed, scale)


@EACH
def test_the_bound_is_reached(loss: Soft) -> None:
    """Certain of one class, and wrong: the gradient is e_k − e_y, or 1 where there is one output."""
    f = np.full((1, loss.outputs), -50.0)
    f[0, 0] = 50.0
    y = np.zeros((1, loss.outputs))
    y[0, 1:2] = 1.0
    assert np.linalg.norm(loss.gradient(f, y)) == pytest.approx(loss.bound)


@EACH
def test_curvature_equals_second_differences(loss: Soft) -> None:
    checks.curvature_equals_second_differences(loss, *sample(loss))


@EACH
def test_it_equals_torch(loss: Soft) -> None:
    def value(torch: Any, f: Any, y: Any) -> Any:
        if loss.outputs == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y[:, 0], reduction="none")
        return torch.nn.functional.cross_entropy(f, y, reduction="none")

    checks.equals_torch(loss, *sample(loss), value)


def test_certain_probabilities_are_labels() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.standard_normal((20, 3)), rng.integers(0, 3, 20)
    np.testing.assert_allclose(Soft(3).value(f, np.eye(3)[y]), CrossEntropy(3).value(f, y))
    np.testing.assert_allclose(Soft(3).gradient(f, np.eye(3)[y]), CrossEntropy(3).gradient(f, y))
    one, label = f[:, :1], (y > 0).astype(int)
    np.testing.assert_allclose(Soft(1).value(one, label[:, None]), Logistic().value(one, label))
    np.testing.assert_allclose(Soft(1).gradient(one, label[:, None]), Logistic().gradient(one, label))


@EACH
def test_the_gradient_vanishes_at_its_own_lessons(loss: Soft) -> None:
    f, _ = sample(loss)
    lessons = loss.lessons(f)
    loss.check(lessons)
    np.testing.assert_allclose(loss.gradient(f / loss.temperature, lessons), 0.0, atol=1e-15)


@EACH
def test_link_scaling_and_scores_are_those_of_probabilities(loss: Soft) -> None:
    f, y = sample(loss)
    assert loss.link == (Logit() if loss.outputs == 1 else Softmax())
    checks.link_equals_onnx(loss.link, f)
    assert loss.scaling(Moments.of(y)) is None
    np.testing.assert_array_equal(loss.unscaled(f), loss.mean(f))
    assert loss.scores(f, y) == {"squared_error": pytest.approx(np.square(loss.mean(f) - y).sum())}
    checks.weights_repeat_rows(loss, f, y)


def test_users_cannot_choose_it() -> None:
    assert Soft not in LOSSES.values()


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(FFGBError, match="between 0 and 1"):
        Soft(2).check(np.array([[0.5, 1.5]]))
    with pytest.raises(FFGBError, match="2 number"):
        Soft(2).check(np.zeros(3))
