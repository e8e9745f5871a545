"""A loss of one's own: its class in an estimator, and what is wrong with it in words."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from ffgb import FFGBRegressor
from ffgb.core.losses import Loss
from ffgb.core.losses.base import as_columns
from ffgb.core.types import Array


def squares(weight: float) -> type[Loss]:
    """A class as a cell of a notebook defines it, again and again under one name."""

    def value(self: Any, f: Array, y: Array) -> Array:
        values: Array = weight * 0.5 * np.square(f - as_columns(y)).sum(axis=1)
        return values

    def gradient(self: Any, f: Array, y: Array) -> Array:
        return weight * (f - as_columns(y))

    def curvature(self: Any, f: Array, y: Array) -> Array:
        return np.full(f.shape, weight)

    body = {
        "__annotations__": {"outputs": int}, "outputs": 1, "value": value, "gradient": gradient, "curvature": curvature,
        "bound": property(lambda self: np.inf), "entry_bound": property(lambda self: np.inf),
        "smoothness": property(lambda self: weight), "check": lambda self, y: None, "least": 0.0,
        "__module__": "notebook",
    }  # fmt: skip
    return dataclass(frozen=True)(types.new_class("Mine", (Loss,), {}, lambda space: space.update(body)))


def test_an_estimator_takes_the_class_also_after_a_cell_was_run_again() -> None:
    x, y = load_diabetes(return_X_y=True)
    clients = np.arange(len(y)) % 3

    def fitted(**more: Any) -> FFGBRegressor:
        return FFGBRegressor(learner="linear", rounds=2, **more).fit(x, y, clients=clients)

    ours, theirs = fitted(loss=squares(1.0)), fitted(loss="square")
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), rtol=1e-5)
    again = fitted(loss=squares(3.0))
    assert again.history_[-1]["train_loss"] == pytest.approx(3.0 * ours.history_[-1]["train_loss"], rel=1e-3)


def test_a_method_with_a_wrong_shape_is_named() -> None:
    x, y = load_diabetes(return_X_y=True)
    kind = squares(1.0)
    kind.value = lambda self, f, y: np.square(f - y)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"method value of the loss notebook:Mine gives the shape \(3, 1\) for f of"):
        FFGBRegressor(loss=kind).fit(x, y)
    kind.value = lambda self, f, y: f @ y  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"the method value of the loss notebook:Mine fails for f of shape \(3, 1\)"):
        FFGBRegressor(loss=kind).fit(x, y)
    with pytest.raises(ValueError, match="is no loss: it should be a subclass of"):
        FFGBRegressor(loss=dict).fit(x, y)
