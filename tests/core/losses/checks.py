"""What the tests of all losses have in common: each function asserts one property of a loss at random values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from scipy.optimize import check_grad

from ffgb.core.losses import Loss
from ffgb.core.losses.links import Link
from ffgb.core.statistics import Moments
from ffgb.core.types import Array

Draw: TypeAlias = Callable[[np.random.Generator, int], Array]
"""Random targets, so many rows."""

STEP = 1e-5
"""Of central differences."""


def gradient_equals_finite_differences(loss: Loss, draw: Draw, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    y = draw(rng, 1)
    f = scale * rng.standard_normal(loss.outputs)

    def value(v: Array) -> float:
        return float(loss.value(v[None], y)[0])

    def gradient(v: Array) -> Array:
        row: Array = loss.gradient(v[None], y)[0]
        return row

    assert check_grad(value, gradient, f, epsilon=1e-6) < 1e-4 * (1 + scale)


def curvature_equals_second_differences(loss: Loss, f: Array, y: Array) -> None:
    """The diagonal of the second derivative, by central differences of the gradient."""
    curvature = loss.curvature(f, y)
    assert curvature.shape == f.shape
    assert (curvature >= 0).all()
    for k in range(loss.outputs):
        step = STEP * np.eye(loss.outputs)[k]
        slope = (loss.gradient(f + step, y) - loss.gradient(f - step, y))[:, k] / (2 * STEP)
        np.testing.assert_allclose(curvature[:, k], slope, rtol=1e-6, atol=1e-8)


def convex(loss: Loss, draw: Draw, seed: int, scale: float) -> None:
    """The gradient is monotone, chords lie above the loss, and tangents below it."""
    rng = np.random.default_rng(seed)
    y = draw(rng, 20)
    f, g = scale * rng.standard_normal((2, 20, loss.outputs))
    at_f, at_g = loss.value(f, y), loss.value(g, y)
    slack = 1e-9 * (1 + np.abs(at_f) + np.abs(at_g))
    assert (np.einsum("ij,ij->i", loss.gradient(f, y) - loss.gradient(g, y), f - g) >= -slack).all()
    share = rng.uniform()
    between = loss.value(share * f + (1 - share) * g, y)
    assert (between <= share * at_f + (1 - share) * at_g + slack).all()
    assert (at_g >= at_f + np.einsum("ij,ij->i", loss.gradient(f, y), g - f) - slack).all()


def bounded(loss: Loss, draw: Draw, seed: int, scale: float) -> None:
    """`bound`, `entry_bound`, `least` and, if the loss is smooth, `smoothness` hold."""
    rng = np.random.default_rng(seed)
    y = draw(rng, 20)
    f, g = scale * rng.standard_normal((2, 20, loss.outputs))
    gradient = loss.gradient(f, y)
    assert gradient.shape == f.shape
    assert loss.value(f, y).shape == (20,)
    assert np.linalg.norm(gradient, axis=1).max() <= loss.bound * (1 + 1e-12)
    assert np.abs(gradient).max() <= loss.entry_bound * (1 + 1e-12)
    assert loss.value(f, y).min() >= loss.least
    if loss.smooth:
        change = gradient - loss.gradient(g, y)
        distance = np.linalg.norm(f - g, axis=1)
        assert (np.linalg.norm(change, axis=1) <= loss.smoothness * distance * (1 + 1e-9) + 1e-12).all()
        assert loss.curvature(f, y).max() <= loss.smoothness * (1 + 1e-9)


def equals_torch(loss: Loss, f: Array, y: Array, value: Callable[[Any, Any, Any], Any]) -> None:
    """Value and gradient are those of torch; `value` takes the module torch, f and y, and returns losses of rows."""
    torch = pytest.importorskip("torch")
    other = torch.tensor(f, requires_grad=True)
    values = value(torch, other, torch.tensor(y))
    values.sum().backward()
    np.testing.assert_allclose(loss.value(f, y), values.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss.gradient(f, y), other.grad.numpy(), rtol=1e-12, atol=1e-14)


def link_equals_onnx(link: Link, f: Array) -> None:
    """A graph of the one node that the link names gives what `mean` gives."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    helper, double = onnx.helper, onnx.TensorProto.DOUBLE
    operator, attributes = link.onnx
    graph = helper.make_graph(
        [helper.make_node(operator, ["f"], ["mean"], **attributes)],
        "link",
        [helper.make_tensor_value_info("f", double, ["n", f.shape[1]])],
        [helper.make_tensor_value_info("mean", double, ["n", f.shape[1]])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (mean,) = runtime.InferenceSession(model.SerializeToString()).run(None, {"f": f})
    np.testing.assert_allclose(link.mean(f), mean, rtol=1e-12, atol=1e-15)


def scaled(loss: Loss, y: Array) -> tuple[Array, Array, Array]:
    """Targets in training units, with the mean and the scale that made them so."""
    scaling = loss.scaling(Moments.of(y))
    assert scaling is not None
    mean, scale = scaling
    return (y.reshape(len(y), -1) - mean) / scale, mean, scale


def zero_is_the_best_constant(loss: Loss, y: Array) -> None:
    """In training units the gradient vanishes at f = 0, and other constants are worse."""
    targets, mean, scale = scaled(loss, y)
    f = np.zeros(targets.shape)
    np.testing.assert_allclose(loss.gradient(f, targets).mean(axis=0), 0.0, atol=1e-13)
    least = loss.value(f, targets).mean()
    assert all(loss.value(f + shift, targets).mean() > least for shift in (-0.1, -1e-3, 1e-3, 0.1))
    np.testing.assert_allclose(loss.unscaled(f, mean, scale), np.broadcast_to(y.reshape(f.shape).mean(axis=0), f.shape))
    assert loss.start_level is None


def weights_repeat_rows(loss: Loss, f: Array, y: Array, mean: Array | None = None, scale: Array | None = None) -> None:
    """A weight of 3 counts a row three times, and a weight of 1 changes nothing."""
    times = np.arange(len(y)) % 4
    often = loss.scores(f.repeat(times, axis=0), y.repeat(times, axis=0), mean, scale)
    assert loss.scores(f, y, mean, scale, times.astype(float)) == pytest.approx(often, rel=1e-12)
    assert loss.scores(f, y, mean, scale, np.ones(len(y))) == loss.scores(f, y, mean, scale)
