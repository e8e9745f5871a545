"""FFGB: by hand on two clients, against scikit-learn's gradient boosting, and against the paper's lemmas."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.datasets import load_diabetes, load_wine, make_friedman1
from sklearn.ensemble import GradientBoostingRegressor

from ffgb.algorithms.ffgb import FFGB
from ffgb.core.functions import ClosedSum, OnPoints, OpenSum
from ffgb.core.losses import CrossEntropy, Logistic, Square
from ffgb.core.oracles import Answer, Oracle, contraction
from ffgb.core.schedules import Constant, Power, Theorem
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.features.basic import Flatten, Standardize
from ffgb.learners.linear import Linear
from ffgb.learners.trees import Tree
from ffgb.runs.training import federate as run
from tests.features.clients import moments

values_family = Linear(Flatten(3), 3)  # carries no meaning where only values at points are looked at


@final
class ExactGamma(Oracle):
    """h = γφ: it contracts by exactly 1 − γ, in every norm."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.queries: list[Array] = []

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, phi: Array, rng: np.random.Generator) -> Answer:
        self.queries.append(phi)
        h = self.gamma * phi
        return Answer(OnPoints(0.0, values_family.zero(), h), h, contraction(h, phi))


def test_two_clients_of_two_points_by_hand() -> None:
    # One feature, f(x) = w x, square loss, no ridge: the oracle projects (φ₁, φ₂) onto multiples of (x₁, x₂).
    # Client 0: x = (1, 2), y = (1, 1).  Client 1: x = (1, 1), y = (3, 5).  η = 1/2, μ = 1/5, K = 2.
    parts = [
        (np.array([[1.0], [2.0]], np.float32), np.array([1.0, 1.0])),
        (np.array([[1.0], [1.0]], np.float32), np.array([3.0, 5.0])),
    ]
    algorithm = FFGB(Constant(0.5), K=2, mu=0.2)
    state, (line,) = run(parts, Linear(Flatten(1), 1, ridge=0.0, intercept=0.0), Square(), algorithm, 1)

    def project(x: list[float], phi: list[float]) -> float:
        return sum(a * b for a, b in zip(x, phi, strict=True)) / sum(a * a for a in x)

    # Client 0, k = 1: gradient (−1, −1), h = −3/5; g = 0.9·0 + 0.5·3/5 = 0.3; Δ = (−1 + 0.6, −1 + 1.2) = (−0.4, 0.2)
    h = project([1, 2], [-1, -1])
    assert h == pytest.approx(-0.6)
    # k = 2: gradient (0.3 − 1, 0.6 − 1) = (−0.7, −0.4); query (−1.1, −0.2); h = (−1.1 − 0.4)/5 = −0.3
    w0 = 0.9 * 0.3 + 0.5 * 0.3
    # Client 1, k = 1: gradient (−3, −5), h = −4, g = 2, Δ = (1, −1); k = 2: gradient (−1, −3), query (0, −4), h = −2
    w1 = 0.9 * 2.0 + 0.5 * 2.0
    assert isinstance(state.f, ClosedSum)
    assert state.f.parameters["weight"][0, 0] == pytest.approx((w0 + w1) / 2)
    assert algorithm.decay(0) == pytest.approx(0.81)
    w = (w0 + w1) / 2
    losses = [0.5 * ((w - 1) ** 2 + (2 * w - 1) ** 2) / 2, 0.5 * ((w - 3) ** 2 + (w - 5) ** 2) / 2]
    assert line["train_loss"] == pytest.approx(sum(losses) / 2)
    # what is left of the query, of the last gradient: Δ² = (−0.8, 0.4) of (−0.7, −0.4), and (2, −2) of (−1, −3)
    assert line["residual"] == pytest.approx((np.sqrt(0.8 / 0.65) + np.sqrt(8 / 10)) / 2)
    # without the residual the second query is the gradient alone
    state, _ = run(
        parts, Linear(Flatten(1), 1, ridge=0.0, intercept=0.0), Square(), FFGB(Constant(0.5), 2, 0.2, residual=False), 1
    )
    w0, w1 = 0.9 * 0.3 - 0.5 * project([1, 2], [-0.7, -0.4]), 0.9 * 2.0 - 0.5 * project([1, 1], [-1, -3])
    assert isinstance(state.f, ClosedSum)
    assert state.f.parameters["weight"][0, 0] == pytest.approx((w0 + w1) / 2)


@final
class SameTies(np.random.RandomState):
    """Gives scikit-learn the numbers that our trees draw.

    They decide nothing but ties: between splits that divide the training points alike and other points differently.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(0)
        self.ours, self.t = seed, 0

    def randint(self, *args: Any, **more: Any) -> Any:
        ours = int(stream(self.ours, "client", self.t, 0).integers(2**31))
        self.t += 1
        return np.random.RandomState(ours).randint(*args, **more)


@pytest.mark.parametrize("name", ["diabetes", "wine", "friedman"])
def test_one_client_with_trees_is_scikit_learns_gradient_boosting(name: str) -> None:
    if name == "friedman":
        x, y = make_friedman1(400, random_state=0)
    else:
        x, y = {"diabetes": load_diabetes, "wine": load_wine}[name](return_X_y=True)
    if name == "wine":
        x, y = x[:, 1:], x[:, 0]  # predict the alcohol content
    x = x.astype(np.float32)
    train = np.arange(len(y)) % 4 != 0
    rounds, rate, depth = 60, 0.1, 3
    state, lines = run(
        [(x[train], y[train])],
        Tree(Flatten(x.shape[1]), 1, depth=depth),
        Square(),
        FFGB(Constant(rate), K=1, mu=0.0, residual=False),
        rounds,
        tests=[(x[~train], y[~train])],
    )
    boosting = GradientBoostingRegressor(
        init="zero", learning_rate=rate, max_depth=depth, n_estimators=rounds, random_state=SameTies(0)
    ).fit(x[train], y[train])
    scale = np.abs(y).max()
    np.testing.assert_allclose(state.f(x)[:, 0] / scale, boosting.predict(x) / scale, atol=1e-6, rtol=0)
    for line, staged in zip(lines, boosting.staged_predict(x[~train]), strict=True):
        assert line["test_rmse"] == pytest.approx(np.sqrt(np.mean((staged - y[~train]) ** 2)), rel=1e-6)


def test_the_increment_has_the_weights_of_the_closed_form() -> None:
    # increment = − Σ_k η^k Π_{κ>k} (1 − μη^κ) · h^k
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 3, 20)
    algorithm = FFGB(Power(1.0), K=3, mu=0.3)
    state, _ = run([(x, y)], Tree(Flatten(4), 3, depth=2), CrossEntropy(3), algorithm, 2)
    eta = [algorithm.eta(k, 1) for k in (1, 2, 3)]
    expected = np.array([-eta[k] * np.prod([1 - 0.3 * e for e in eta[k + 1 :]]) for k in range(3)])
    increment = state.updates[1].increment
    assert isinstance(increment, OpenSum)
    np.testing.assert_allclose(increment.blocks[0].weights, expected)
    assert state.updates[1].decay == pytest.approx(np.prod([1 - 0.3 * e for e in eta]))
    assert state.f.terms == 6


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0), st.integers(1, 12), st.integers(0, 5))
def test_residual_and_iterates_stay_within_the_lemmas_bounds(seed: int, gamma: float, K: int, t: int) -> None:
    rng = np.random.default_rng(seed)
    loss, y, mu = CrossEntropy(3), rng.integers(0, 3, 8), 0.1
    oracle = ExactGamma(gamma)
    G = loss.bound  # ‖·‖_α is the root of the mean over points of ‖·‖₂², so G bounds it too

    def norm(v: Array) -> float:
        return float(np.sqrt(np.square(v).sum(axis=1).mean()))

    f = rng.standard_normal((8, 3))
    f *= min(1.0, 2 * G / (gamma * mu) / norm(f))
    g, notes = FFGB(Theorem(mu), K, mu).client(t, OnPoints(1.0, values_family.zero(), f), y, loss, oracle, rng)
    assert norm(g.values) <= 2 * G / (gamma * mu) * (1 + 1e-9)
    for query in oracle.queries:
        # Δ^k = (1 − γ) · query^k, and query^k = Δ^{k-1} + gradient
        assert norm((1 - gamma) * query) <= (1 - gamma) / gamma * G * (1 + 1e-9)
    np.testing.assert_allclose(notes["gamma"], gamma, atol=1e-9)


def test_with_the_residual_ffgb_finds_the_minimum_and_without_it_another_function() -> None:
    # Semi-heterogeneous: ten clients hold the same points with different labels (Theorem 1's setting).
    rng = np.random.default_rng(0)
    clients, points, mu, gamma, T = 10, 5, 0.1, 0.3, 200
    labels, loss = rng.integers(0, 3, (clients, points)), CrossEntropy(3)

    def objective(flat: Array) -> tuple[float, Array]:
        f = flat.reshape(points, 3)
        value = sum(loss.value(f, y).sum() for y in labels) / clients + mu / 2 * np.square(f).sum()
        gradient = sum(loss.gradient(f, y) for y in labels) / clients + mu * f
        return float(value), gradient.ravel()

    best = minimize(
        objective, np.zeros(points * 3), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
    )
    f_star = best.x.reshape(points, 3)
    errors = {}
    for residual in (True, False):
        algorithm, oracle = FFGB(Theorem(mu), K=14, mu=mu, residual=residual), ExactGamma(gamma)
        f = np.zeros((points, 3))
        for t in range(T):
            at = OnPoints(1.0, values_family.zero(), f)
            f = np.mean([algorithm.client(t, at, y, loss, oracle, rng)[0].values for y in labels], axis=0)
        errors[residual] = float(np.square(f - f_star).sum(axis=1).mean())
    assert errors[True] < 0.01
    assert errors[False] > 20 * errors[True]


def test_a_distilled_client_returns_the_function_of_its_k_steps() -> None:
    """If the oracle is exact, the distilled function has the same values and the same share of f^t."""
    rng = np.random.default_rng(0)
    at, y = OnPoints(1.0, values_family.zero(), rng.standard_normal((8, 3))), rng.integers(0, 3, 8)
    plain, one = (
        FFGB(Power(2.0), K=3, mu=0.3, distill=distill).client(1, at, y, CrossEntropy(3), ExactGamma(1.0), rng)[0]
        for distill in (False, True)
    )
    assert one.decay == pytest.approx(plain.decay)
    np.testing.assert_allclose(one.values, plain.values, atol=1e-12)


def test_steps_are_capped_at_one_over_mu() -> None:
    algorithm = FFGB(Theorem(0.5, numerator=4.0), K=1, mu=0.5)
    assert algorithm.eta(1, 0) == 2.0  # uncapped it would be 4
    assert algorithm.decay(0) == 0.0


def test_labels_that_the_features_do_not_explain_are_met_by_the_intercept() -> None:
    rng = np.random.default_rng(0)
    clients = []
    for share in (0.5, 0.99, 0.99):  # nine in ten of all labels are 0, but not at every client
        x, y = rng.standard_normal((400, 8)), (rng.random(400) > share).astype(int)
        clients.append((x, y))
    family = Linear(Standardize.by(moments([x for x, _ in clients]), Flatten(8)), 1)
    _, lines = run(clients, family, Logistic(), FFGB(Constant(4.0), K=2), 30)
    assert lines[-1]["train_accuracy"] == pytest.approx(np.mean([(y == 0).mean() for _, y in clients]), abs=0.02)
