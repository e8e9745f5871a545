"""FFGB.L: its one-round form, the lemmas that keep it Lipschitz, and how L is found."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from ffgb.algorithms import Task
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.core.functions import OnPoints
from ffgb.core.lipschitz import Extension
from ffgb.core.losses import Logistic, Square
from ffgb.core.oracles import Answer, Oracle, WOLip
from ffgb.core.points import Points
from ffgb.core.questions import Question
from ffgb.core.schedules import Constant, Theorem
from ffgb.core.steepness import Steepness, SteepnessOf
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.trees import Tree
from ffgb.runs.training import federate
from ffgb.studies.theory import ExactGamma

SMOOTH = Concatenate((Flatten(3), RandomFourier(Flatten(3), 40, 1.0, 0)), (1.0, 1.0))


def regression(seed: int, clients: int = 3, each: int = 30, outputs: int = 1) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(clients):
        x = (rng.standard_normal((each, 3)) + 0.5 * i).astype(np.float32)
        y = np.stack([np.sin(x @ rng.standard_normal(3) / 2) for _ in range(outputs)], axis=1)
        out.append((x, y))
    return out


class Scripted(Oracle):
    """Answers 1, with the γ of a list."""

    def __init__(self, gammas: list[float | None]) -> None:
        self.gammas, self.queries = gammas, list[Array]()

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        self.queries.append(query)
        one = np.ones_like(query)
        h = OnPoints(0.0, Linear(Flatten(3), 1).zero(), one)
        measured = {"gamma_sup": 0.5, "gamma_lip": 0.25, "lipschitz": 2.0}
        return Answer(h, one, self.gammas[len(self.queries) - 1], measured)


def test_a_round_notes_what_its_oracle_measures() -> None:
    """An answer that does not contract is counted as uncovered; one whose query is 0 is not.  Δ is that of line 6."""
    gammas: list[float | None] = [0.5, -0.2, 0.0, None]
    oracle, y = Scripted(gammas), np.array([[3.0], [5.0]])
    f = OnPoints(1.0, Linear(Flatten(3), 1).zero(), np.zeros((2, 1)))
    g, notes = FFGBL(1.0, K=4, rounds=1).client(0, f, y, Square(), oracle, np.random.default_rng(0))
    assert notes["uncovered"] == [0.0, 1.0, 1.0, 0.0]
    assert notes["gamma"][:3] == gammas[:3]
    assert np.isnan(notes["gamma"][3])
    assert (notes["gamma_sup"], notes["gamma_lip"], notes["lipschitz"]) == ([0.5] * 4, [0.25] * 4, [2.0] * 4)
    for k, query in enumerate(oracle.queries, start=1):  # u − Δ, Δ = (k − 1)(1 − u)
        np.testing.assert_allclose(query, y - (k - 1) * (1.0 - y))
    np.testing.assert_allclose(g.values, 1.0)  # a convex combination of answers, without f


def test_coefficients_are_those_of_line_5_step_by_step() -> None:
    algorithm = FFGBL(1.0, K=3, rounds=4)
    rng = np.random.default_rng(0)
    f, h = rng.standard_normal(5), rng.standard_normal((3, 5))
    g = f
    for t in range(4):
        for k in (1, 2, 3):
            eta = min(4.0 / (t * 3 + k + 1), 1.0)
            assert algorithm.eta(k, t) == eta
            g = g - eta * (g - h[k - 1])
    decay, weights = algorithm.coefficients(0)
    np.testing.assert_allclose(decay * f + weights @ h, g)
    assert decay + weights.sum() == pytest.approx(1.0)  # a convex combination, since no step is above 1
    assert (weights >= 0).all()
    assert decay == algorithm.decay(0) == 0.0  # the first step is capped at 1


@pytest.mark.parametrize("schedule", [Theorem(1.0, 4.0), Constant(0.2)])
def test_the_one_round_form_is_the_many_round_form(schedule: Any) -> None:
    clients, T = regression(0), 7
    family = Linear(SMOOTH, 1)
    many, lines = federate(clients, family, Square(), FFGBL(2.0, 3, 1, schedule, "middle"), T)
    once, (line,) = federate(clients, family, Square(), FFGBL(2.0, 3, T, schedule, "middle"), 1)
    x = np.random.default_rng(1).standard_normal((50, 3))
    np.testing.assert_allclose(once.f(x), many.f(x), atol=2e-6)  # arrays travel as float32 in each round
    for name in ("gamma_min", "gamma_median", "gamma_sup", "gamma_lip", "lipschitz"):
        assert len({late[name] for late in lines} | {line[name]}) == 1  # the sequence h is the same in every round
    assert line["parameters_up"] < lines[-1]["parameters_up"]


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0), st.integers(1, 10), st.integers(1, 6))
def test_lemmas_of_the_exact_oracle(seed: int, gamma: float, K: int, T: int) -> None:
    rng = np.random.default_rng(seed)
    places, own = rng.uniform(-1, 1, (30, 2)), 10
    y = np.sin(places[:own].sum(axis=1))[:, None]
    L, B = np.sqrt(2.0), float(np.abs(y).max())
    oracle = ExactGamma(gamma, places, L)
    seen: list[Array] = []

    class Watched(type(oracle)):  # type: ignore[misc]
        def __call__(self, query: Array, rng: np.random.Generator) -> Any:
            seen.append(query)
            return super().__call__(query, rng)

    watched = Watched(gamma, places, L)
    at = OnPoints(1.0, ExactGamma.nothing, np.zeros((30, 1)))
    g, _ = FFGBL(L, K, T).client(0, at, y, Square(), watched, rng)
    u = oracle.sees(y)
    for query in seen:
        residual = u - query  # Δ^{k−1} = u − query
        assert np.abs(residual[:own]).max() <= (1 - gamma) / gamma * B + 1e-9
        assert np.abs(gamma * query[:own]).max() <= B / gamma + 1e-9
    assert (pdist(g.values) <= L / gamma * pdist(places) * (1 + 1e-9) + 1e-12).all()
    assert np.abs(g.values[:own]).max() <= B / gamma + 1e-9
    # Σ_k h^k = K u + Δ^K: the residual makes the mean of the weak learners right
    total = gamma * np.sum(seen, axis=0)
    assert np.abs(total - K * u)[:own].max() <= (1 - gamma) / gamma * B + 1e-9


def nets() -> list[Any]:
    return [
        pytest.param(Linear(SMOOTH, 1), id="linear"),
        pytest.param(Linear(Flatten(3), 1), id="inputs"),
        pytest.param(LipschitzMLP(Flatten(3), 1, hidden=(8, 8), steps=60), id="net"),
    ]


@pytest.mark.parametrize("family", nets())
@given(seed=st.integers(0, 2**16))
@settings(max_examples=8)
def test_iterates_are_no_steeper_than_promised_on_fresh_points(family: Any, seed: int) -> None:
    clients, K, rng = regression(seed), 3, np.random.default_rng(seed)
    x, y = clients[0]
    algorithm = FFGBL(1.5, K, 5, extension="middle")
    oracle = algorithm.oracle(family, Points(0, x, y), None, rng)
    assert isinstance(oracle, WOLip)
    at = OnPoints(1.0, family.zero(), np.zeros((len(x), 1)))
    g, notes = algorithm.client(0, at, y, Square(), oracle, rng)
    fresh = np.concatenate([x, 3.0 * rng.standard_normal((200, 3)), x + 1e-3 * rng.standard_normal(x.shape)])
    s = family.metric(fresh).astype(np.float64)
    values = g.increment(fresh)
    steepest = float((pdist(values) / np.maximum(pdist(s), 1e-2)).max())
    assert steepest <= max(notes["lipschitz"]) * 1.01 + 1e-3  # by construction, whatever γ is; values are float32
    gamma = min(notes["gamma"])
    if gamma > 0:
        assert max(notes["lipschitz"]) <= 1.5 / gamma * (1 + 1e-6)
    np.testing.assert_allclose(family.features(x) is not None and g.values, g.increment(x), atol=1e-4)


def test_the_first_answer_is_no_steeper_than_the_query_at_pairs() -> None:
    (x, y), *_ = regression(3)
    family, rng = Linear(SMOOTH, 1), np.random.default_rng(0)
    oracle = WOLip(family, Points(0, x, y), 1.5, "middle", rng)
    query = oracle.sees(y)
    u = Extension(x, y, 1.5, "middle")
    np.testing.assert_allclose(query[: len(x)], u(x.astype(np.float64)))
    answer = oracle(query, rng)
    assert answer.measured["lipschitz"] <= oracle.pairs.slope(query[: len(x)]) * (1 + 1e-6)
    assert answer is oracle(query.copy(), rng)  # computed once
    assert answer.gamma == min(answer.measured["gamma_sup"], answer.measured["gamma_lip"])
    assert answer.gamma > 0
    # the jet is that of the function: values at the points, derivatives at the samples
    h, step = answer.h.increment, 1e-2
    np.testing.assert_allclose(answer.seen[: len(x)], h(x), atol=1e-4)
    numeric = [(h(oracle.samples + step * e) - h(oracle.samples - step * e)) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(answer.seen[len(x) :].reshape(len(x), 3), np.concatenate(numeric, axis=1), atol=2e-2)


def test_vector_labels_are_extended_one_coordinate_at_a_time() -> None:
    clients = regression(2, outputs=2)
    state, lines = federate(clients, Linear(SMOOTH, 2), Square(2), FFGBL("auto", 4, 10), 1)
    assert lines[-1]["train_rmse"] < np.sqrt(sum(np.var(y, axis=0).sum() for _, y in clients) / 3)
    assert isinstance(state.job.algorithm, FFGBL)
    assert state.job.algorithm.extension == "middle"


def test_l_is_found_from_the_data(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    family = Linear(Flatten(1), 1)

    def found(noise: float, L: Any, extension: str | None = None) -> FFGBL:
        clients = []
        for _ in range(3):
            x = rng.uniform(-2, 2, (80, 1)).astype(np.float32)
            clients.append((x, np.sin(2 * x[:, 0]) + noise * rng.standard_normal(80)))
        state, _ = federate(clients, family, Square(), FFGBL(L, 1, 1, extension=extension), 1)
        assert isinstance(state.job.algorithm, FFGBL)
        return state.job.algorithm

    assert pytest.approx(2.0, rel=0.1) == found(0.0, "max").L
    assert found(0.0, "max").extension == "mcshane"
    assert not caplog.records
    auto = found(0.3, "auto")
    assert isinstance(auto.L, float)
    assert (auto.extension, auto.L <= 4.0) == ("middle", True)
    with caplog.at_level(logging.WARNING):
        found(0.3, "max")
    assert "labels look noisy" in caplog.text
    assert "pairs of points exceed" in caplog.text


@pytest.mark.parametrize(("steepest", "noisy"), [(9.0, False), (11.0, True)])
def test_labels_are_called_noisy_ten_times_above_the_best_slope(
    steepest: float, noisy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning starts at ten times the slope that predicts labels best, and not before."""
    said = Steepness((1.0, 16.0), (7, 0), steepest, 0, 1.0, 1.0)

    def ask(question: Question) -> Any:
        return said if isinstance(question, SteepnessOf) else np.array([1.0])

    one = FFGBL("max").prepared(ask, Linear(Flatten(1), 1), Square(), np.zeros(1), np.ones(1))
    assert isinstance(one, FFGBL)
    assert steepest == one.L
    assert ("labels look noisy" in caplog.text) == noisy


def clash() -> list[tuple[Array, Array]]:
    x = np.array([[0.0], [0.0], [1.0], [2.0]], np.float32)
    return [(x, np.array([0.0, 1.0, 2.0, 3.0]))]


def test_bad_labels_and_settings_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    family, good = Linear(Flatten(1), 1), [(np.arange(4, dtype=np.float32)[:, None], np.array([0.0, 1.0, 2.0, 3.0]))]
    for L in ("max", 5.0):
        with pytest.raises(FFGBError, match="1 pairs of equal points have different labels"):
            federate(clash(), family, Square(), FFGBL(L), 1)
    with caplog.at_level(logging.WARNING):
        federate(clash(), family, Square(), FFGBL("auto"), 1)  # a repair that is stated
    assert "goes between them" in caplog.text
    with pytest.raises(FFGBError, match=r"L = 0.5 is too small: 6 pairs"):
        federate(good, family, Square(), FFGBL(0.5), 1)
    federate(good, family, Square(), FFGBL(0.5, extension="middle"), 1)
    with pytest.raises(FFGBError, match=r"3 in size, beyond --bound 2"):
        federate(good, family, Square(), FFGBL("max", B=2.0), 1)
    with pytest.raises(FFGBError, match="for regression"):
        federate([(good[0][0], np.array([0, 1, 0, 1]))], family, Logistic(), FFGBL(1.0), 1)
    with pytest.raises(FFGBError, match="Tree has no Lipschitz fit"):
        federate(good, Tree(Flatten(1), 1, depth=2), Square(), FFGBL(1.0), 1)
    wrong: list[dict[str, Any]] = [{"L": 0.0}, {"L": "min"}, {"K": 0}, {"rounds": 0}, {"extension": "upper"}]
    for bad in wrong:
        with pytest.raises(FFGBError):
            FFGBL(**({"L": 1.0} | bad))


def test_settings_that_ffgb_l_has_no_use_for_are_refused() -> None:
    values: dict[str, Any] = {"mu": None, "one_round": True, "validation": 0.0, "local_epochs": 0, "batch": None}
    numbers, sampled = Task("cars", 0, sampled=False), Task("cars", 0, sampled=True)
    fine: Any = SimpleNamespace(**values)
    FFGBL.check(fine, numbers)
    FFGBL.check(SimpleNamespace(**{**values, "mu": 1.0}), numbers)  # type: ignore[arg-type]
    FFGBL.check(SimpleNamespace(**{**values, "one_round": False}), sampled)  # type: ignore[arg-type]
    for change, task, words in (
        ({}, sampled, "no rounds to sample clients in"),
        ({}, Task("wines", 3, sampled=False), "wines has classes"),
        ({"mu": 0.5}, numbers, "ffgb-l has μ = 1"),
        ({"validation": 0.2}, numbers, "leave it out"),
        ({"local_epochs": 1}, numbers, "are for parametric methods"),
        ({"batch": 0.5}, numbers, "are for parametric methods"),
    ):
        with pytest.raises(FFGBError, match=words):
            FFGBL.check(SimpleNamespace(**{**values, **change}), task)  # type: ignore[arg-type]
    unset: Any = SimpleNamespace(one_round=None)
    assert FFGBL.suits(unset, sampled) == {"one_round": False}
    assert FFGBL.suits(unset, numbers) == {"one_round": True}
    assert FFGBL.suits(fine, numbers) == {}
