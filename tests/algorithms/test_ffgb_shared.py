"""FFGB in a shared geometry, against a `ask` that has all rows at hand: what the server asks for, and its step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms import Step
from ffgb.algorithms.ffgb_shared import SLACK, FFGBShared, fit, next_gradient, spent
from ffgb.core.functions import Function
from ffgb.core.geometry import Geometry
from ffgb.core.gradients import GradientOf, SlopesOf
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy, Loss, Square
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion, ask_locally
from ffgb.core.schedules import Constant
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear

Array = np.ndarray
N, D = 200, 5


class AllRows:
    """One client that has every row: a total is its part."""

    def __init__(self, loss: Loss, x: Array, y: Array, f: Function) -> None:
        self.loss, self.points, self.y, self.f = loss, Points(0, x, y), y, f
        self.asked: list[tuple[RoundQuestion, Function | None]] = []

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any:
        self.asked.append((question, shown))
        z = self.points.x
        h = None if shown is None else shown.evaluate(z)
        here = Here(self.points, 1.0 / N, self.loss, self.y, self.f.evaluate(z), h)
        return question.total(question.part(here))

    @property
    def present(self) -> list[int]:
        return [0]

    def gradient_bound(self, of_loss: float) -> float:
        return of_loss

    def noise(self, freedom: float | None) -> float | None:
        return None


def one_round(algorithm: FFGBShared, kind: str, loss: Loss, *, start: float = 0.0) -> tuple[Step, AllRows, Geometry]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, D)).astype(np.float32)
    y = np.argmax(x[:, :3] + 0.3 * rng.standard_normal((N, 3)), axis=1) if loss.classification else x @ np.ones(D) + 1.0
    family = Linear(Flatten(D), loss.outputs)
    geometry = share_geometry(ask_locally(Points(0, x, y)), family.features, kind, 1e-3, rank=2, seed=0)
    f = family.member({"weight": np.full((D + 1, loss.outputs), start)})
    ask = AllRows(loss, x, y, f)
    return algorithm.round(0, f, geometry, loss, ask), ask, geometry


@pytest.mark.parametrize("eta", [0.5, 1.0, 2.0])
def test_the_mean_square_that_is_expected_of_an_increment_is_its_own(eta: float) -> None:
    """Clients' sizes of h are compared with this; a wrong one would name honest clients as strange, or no one."""
    step, ask, _ = one_round(FFGBShared(Constant(eta), search=True), "exact", CrossEntropy(3))
    (gradient, none), (slopes, h) = ask.asked
    assert isinstance(gradient, GradientOf)
    assert none is None
    assert isinstance(slopes, SlopesOf)
    assert h is step.h
    assert h is not None
    measured = float(np.square(h.evaluate(ask.points.x)).sum(axis=1).mean())
    assert slopes.floor == pytest.approx(measured, rel=1e-2)
    assert step.measured["gamma"] == pytest.approx(
        one_round(FFGBShared(Constant(1.0), search=True), "exact", CrossEntropy(3))[0].measured["gamma"], rel=1e-4
    )  # of the oracle's answer, whatever the step


def test_one_exact_step_of_the_square_loss_is_least_squares() -> None:
    step, ask, _ = one_round(FFGBShared(Constant(1.0)), "exact", Square())
    residual = step.h.evaluate(ask.points.x)[:, 0] - ask.y
    assert np.square(residual).mean() < 1e-4 * np.square(ask.y).mean()
    assert (step.decay, step.length, step.shown) == (1.0, 1.0, False)


def test_a_step_decays_what_was_there() -> None:
    step, _, _ = one_round(FFGBShared(Constant(0.5), mu=0.2), "exact", Square(), start=1.0)
    assert step.decay == pytest.approx(0.9)
    searched, _, _ = one_round(FFGBShared(Constant(0.5), mu=0.2, search=True), "exact", Square(), start=1.0)
    assert searched.decay == pytest.approx(1.0 - 0.1 * searched.length)


@pytest.mark.parametrize(
    ("kind", "search", "known"), [("exact", False, True), ("nystrom", False, False), ("nystrom", True, True)]
)
def test_the_next_gradient_is_bounded_where_the_size_of_h_is_known(kind: str, search: bool, known: bool) -> None:
    """The unit of the next total follows from this bound: it must hold."""
    loss = Square()  # its own gradient has no bound
    step, ask, geometry = one_round(FFGBShared(Constant(0.3), search=search), kind, loss)
    assert (geometry.freedom is not None) == (kind == "exact")
    assert math.isfinite(step.gradient_bound) == known
    f = ask.f * step.decay + step.h * step.length
    gradient = loss.gradient(f.evaluate(ask.points.x), ask.y)
    assert math.sqrt(np.square(gradient).sum(axis=1).mean()) <= step.gradient_bound * (1.0 + 1e-9)


def test_a_bound_on_the_next_gradient_by_hand() -> None:
    assert next_gradient(Square(), 9.0, 2.0, 0.0) <= SLACK * 5.0 + 1e-6
    assert next_gradient(Square(), 9.0, 2.0, 0.0) >= 5.0
    assert next_gradient(CrossEntropy(3), 9.0, 2.0, 0.0) <= SLACK * CrossEntropy(3).bound + 1e-6


@pytest.mark.parametrize(
    ("inner", "own", "size", "gamma", "explained"),
    [
        (4.0, 4.0, 4.0, 1.0, 1.0),  # h = φ
        (2.0, 1.0, 4.0, 0.5, 1.0),  # h = φ/2
        (3.0, 9.0, 1.0, 1.0, 1.0),  # h = 3φ: it does not contract, and its best multiple is φ
        (1.0, 1.0, 2.0, 1.0 - math.sqrt(0.5), 0.5),
        (2.0, 4.0, 2.0, 1.0 - math.sqrt(0.5), 0.5),  # twice as long: γ is that of the best multiple
        (0.0, 1.0, 1.0, 0.0, 0.0),  # at a right angle
        (0.0, 0.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 0.0, 1.0, 0.0),
    ],
)
def test_gamma_and_what_is_explained_by_hand(
    inner: float, own: float, size: float, gamma: float, explained: float
) -> None:
    assert fit(inner, own, size) == pytest.approx((gamma, explained))


def test_nothing_but_noise_is_left_a_twentieth_below_it() -> None:
    assert spent({"noise": 0.5, "explained": 0.44})
    assert not spent({"noise": 0.5, "explained": 0.46})
    assert not spent({"noise": None, "explained": 0.0})
    assert not spent({"explained": 0.0})
    assert not spent({"noise": 1.0, "explained": None})


def test_a_negative_regularisation_is_refused_and_none_is_fine() -> None:
    FFGBShared(Constant(1.0), mu=0.0)
    with pytest.raises(FFGBError, match="must not be negative"):
        FFGBShared(Constant(1.0), mu=-0.1)


def test_a_step_that_would_fit_noise_is_none_if_training_may_stop() -> None:
    class Noisy(AllRows):
        def noise(self, freedom: float | None) -> float | None:
            return 1.0

    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((N, D)).astype(np.float32), rng.integers(0, 3, N)  # labels that x says nothing of
    family, loss = Linear(Flatten(D), 3), CrossEntropy(3)
    geometry = share_geometry(ask_locally(Points(0, x, y)), family.features, "exact", 1e-3)
    lengths = {}
    for search in (True, False):
        for stop in (True, False):
            algorithm, ask = FFGBShared(Constant(1.0), search=search), Noisy(loss, x, y, family.zero())
            step = algorithm.round(0, family.zero(), geometry, loss, ask, stop=stop)
            lengths[search, stop] = step.length
            assert step.measured["noise"] == 1.0
    assert lengths[True, True] == 0.0
    assert lengths[True, False] > 0.0
    assert lengths[False, True] == lengths[False, False] == 1.0
