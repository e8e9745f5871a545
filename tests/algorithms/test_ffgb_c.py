"""FFGB.C: by hand, the lemmas behind its clips, and its sums of clipped terms through the real server."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC, least_ball, radii
from ffgb.core.functions import Block, Clipped, Family, Function, OnPoints, OpenSum
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.core.oracles import Answer, Oracle, contraction, sup
from ffgb.core.points import Points
from ffgb.core.schedules import Constant, Power, Theorem
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.finite import Finite
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.learners.trees import Tree
from ffgb.protocol.codec import Message
from ffgb.runs.training import federate
from ffgb.studies.theory import ExactGamma
from tests.engines.faults import Faulty, changed, with_tensors, with_values


def run(
    algorithm: FFGBC, oracle: Any, y: Array, loss: Loss, f: Array, t: int = 0
) -> tuple[Array, dict[str, list[float]]]:
    at = OnPoints(1.0, ExactGamma.nothing, f)
    g, notes = algorithm.client(t, at, y, loss, oracle, np.random.default_rng(0))
    return g.values, notes


def test_one_client_by_hand() -> None:
    # Huber with δ = 1 (G = 1), y = (3, 0), f = 0, h = φ/2, μ = 1/10, η = 1/2, K = 2; G¹ = 1, G² = 3.
    algorithm = FFGBC(Constant(0.5), K=2, mu=0.1, gamma=0.5)
    values, notes = run(algorithm, ExactGamma(0.5), np.array([3.0, 0.0]), Huber(), np.zeros((2, 1)))
    # k = 1: gradient (−1, 0), h = (−1/2, 0), g = (1/4, 0), Δ = (−1/2, 0)
    # k = 2: gradient (−1, 1/4 − 1/4 …): at the second point g = 0, gradient 0; query (−3/2, 0), h = (−3/4, 0)
    np.testing.assert_allclose(values[:, 0], [0.95 * 0.25 + 0.5 * 0.75, 0.0])
    nothing = [0.0, 0.0]
    assert notes == {"gamma": [0.5, 0.5], "clipped": nothing, "clipped_residual": nothing, "uncovered": nothing}


def test_clips_that_bite_by_hand() -> None:
    # γ is claimed to be 0.9, and is 0.5: G¹ = 1/9, G² = 11/9.  Δ¹ = −1/2 is clipped to −1/9.
    algorithm = FFGBC(Constant(0.5), K=2, mu=0.1, gamma=0.9)
    values, notes = run(algorithm, ExactGamma(0.5), np.array([3.0]), Huber(), np.zeros((1, 1)))
    np.testing.assert_allclose(values[0, 0], 0.95 * 0.25 + 0.5 * 0.5 * (1 + 1 / 9))
    assert notes["clipped_residual"] == [1.0, 1.0]
    assert notes["clipped"] == [0.0, 0.0]


@final
class Multiples(Oracle):
    """h is one multiple of the query after another; γ is what that contracts by."""

    def __init__(self, *multiples: float) -> None:
        self.multiples, self.queries = list(multiples), list[Array]()

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        self.queries.append(query)
        h = self.multiples.pop(0) * query
        return Answer(OnPoints(0.0, ExactGamma.nothing, h), h, contraction(h, query, sup))


def test_the_residual_is_what_h_leaves_before_it_is_clipped() -> None:
    """The residual is the query less the oracle's own h, and only the step uses the clipped h (lines 5 and 6)."""
    # As long as |query| ≤ G/γ both residuals are equal: an h beyond G² leaves more than G¹ either way.  A first call
    # that promises nothing has no radii, so its residual is not clipped and the second query may be larger than G/γ.
    oracle = Multiples(0.0, 1.05, 1.0)
    algorithm = FFGBC(Constant(0.5), K=3, mu=0.1)
    values, notes = run(algorithm, oracle, np.array([3.0]), Huber(), np.zeros((1, 1)))
    # k = 1: gradient −1, h = 0, γ = 0; g = 0, Δ = −1
    # k = 2: gradient −1, query −2, h = −2.1, γ = 0.95: G¹ = 1/19, G² = 21/19; g = 21/38; −2 + 2.1 > 0, so Δ = G¹
    # k = 3: gradient −1, query −1 + 1/19 = h
    np.testing.assert_allclose(np.ravel(oracle.queries), [-1.0, -2.0, -18 / 19], rtol=1e-8)
    np.testing.assert_allclose(values[0, 0], 0.95 * 21 / 38 + 0.5 * 18 / 19, rtol=1e-8)
    assert (notes["clipped"], notes["clipped_residual"]) == ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0])


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0), st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_lemmas_of_the_exact_oracle(seed: int, gamma: float, K: int, t: int, given_gamma: bool) -> None:
    rng = np.random.default_rng(seed)
    mu, y, loss = 0.1, rng.integers(0, 3, 8), CrossEntropy(3)
    G = loss.entry_bound
    ball = least_ball(mu, G, gamma)
    f = np.clip(rng.standard_normal((8, 3)) * ball, -ball, ball)
    algorithm = FFGBC(Theorem(mu, 4.0), K, mu, gamma if given_gamma else None)
    values, notes = run(algorithm, ExactGamma(gamma), y, loss, f, t)
    assert sum(notes["clipped"]) == sum(notes["clipped_residual"]) == 0  # the two clips change nothing
    assert np.abs(values).max() <= ball * (1 + 1e-9)  # ‖g‖_∞ ≤ 2G/(μγ)
    # without clips, to the bit: so these steps are FFGB's
    plain = FFGB(Theorem(mu, 4.0), K, mu)
    at = OnPoints(1.0, ExactGamma.nothing, f)
    same, _ = plain.client(t, at, y, loss, ExactGamma(gamma), np.random.default_rng(0))
    np.testing.assert_array_equal(values, same.values)


def families() -> list[Any]:
    return [
        pytest.param(Linear(Flatten(4), 3, ridge=1e-3), id="linear"),
        pytest.param(Tree(Flatten(4), 3, depth=3), id="tree"),
        pytest.param(MLP(Flatten(4), 3, hidden=(8,), steps=60, batch=16), id="mlp"),
    ]


@pytest.mark.parametrize("family", families())
@given(seed=st.integers(0, 2**32 - 1), K=st.integers(1, 5))
def test_clips_change_nothing_at_a_clients_points_if_gamma_is_what_was_measured(
    family: Family, seed: int, K: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y, loss, mu = rng.standard_normal((12, 4)).astype(np.float32), rng.integers(0, 3, 12), CrossEntropy(3), 0.1
    algorithm = FFGBC(Power(4.0), K, mu)
    oracle = algorithm.oracle(family, Points(0, x, y), None, rng)
    at = OnPoints(1.0, OpenSum(family, ()), np.zeros((12, 3)))
    g, notes = algorithm.client(0, at, y, loss, oracle, rng)
    positive = [gamma for gamma in notes["gamma"] if gamma > 0]
    if len(positive) == len(notes["gamma"]):
        assert sum(notes["clipped"]) == sum(notes["clipped_residual"]) == 0
    if positive:  # every term is within G² anywhere, and so is the sum within G²/μ
        _, G2 = radii(min(positive), 1.0)
        far = 100.0 * rng.standard_normal((50, 4)).astype(np.float32)
        assert np.abs(g.increment.evaluate(family.features(far))).max() <= G2 / mu * (1 + 1e-6)


def test_a_closed_family_keeps_its_clipped_terms() -> None:
    rng = np.random.default_rng(0)
    clients = [
        (x, (x[:, 0] + shift > 0).astype(int))
        for shift, x in zip((0.5, -0.5), rng.standard_normal((2, 40, 3)), strict=True)
    ]
    algorithm = FFGBC(Constant(2.0), K=2, mu=0.01, B=5.0)
    state, lines = federate(clients, Linear(Flatten(3), 1), Logistic(), algorithm, 4)
    assert isinstance(state.f, OpenSum)
    assert state.f.terms == 4 * 2 * 2
    (block,) = state.f.merged().blocks
    assert np.isfinite(block.radii).all()
    assert {"clipped", "clipped_residual", "gamma_min"} <= lines[-1].keys()
    assert lines[-1]["train_accuracy"] > 0.8
    far = 1e4 * rng.standard_normal((30, 3))
    bound = max(block.radii) / algorithm.mu
    assert np.abs(state.f(far)).max() <= bound
    assert isinstance(state.result, Clipped)
    assert np.abs(state.result(far)).max() <= 5.0
    # what travelled and was kept is what a sum written out gives
    z = np.asarray(far[:5], np.float32)
    slow = sum(
        w * np.clip(z @ weight[:-1] + weight[-1], -r, r)
        for w, weight, r in zip(block.weights, block.stack["weight"].astype(np.float32), block.radii, strict=True)
    )
    np.testing.assert_allclose(state.f(far[:5]), slow, rtol=1e-5)


def test_on_a_finite_set_that_all_clients_hold_it_finds_the_minimum() -> None:
    rng = np.random.default_rng(1)
    x, loss, mu = np.arange(5, dtype=np.float32)[:, None], CrossEntropy(3), 0.1
    clients = [(x, rng.integers(0, 3, 5)) for _ in range(4)]
    from ffgb.studies.theory import minimiser, square_error

    rows, y = np.tile(np.arange(5), 4), np.concatenate([y for _, y in clients])
    best = minimiser(loss, mu, 5, rows, y, np.ones(20))
    state, lines = federate(clients, Finite(5, 3, 0.5), loss, FFGBC(Theorem(mu, 4.0), 8, mu), 40)
    assert square_error(state.f(x), best) < 5e-3
    assert all(line["clipped"] == line["clipped_residual"] == 0.0 for line in lines)
    assert all(line["gamma_min"] == pytest.approx(0.5) for line in lines)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"K": 0}, "at least one local step"),
        ({"mu": 0.0}, "μ > 0"),
        ({"gamma": 0.0}, r"γ lies in \(0, 1\]"),
        ({"gamma": 1.5}, r"γ lies in \(0, 1\]"),
        ({"B": -1.0}, "must be positive"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FFGBError, match=message):
        FFGBC(Constant(1.0), **settings)


def test_a_loss_whose_gradient_has_no_bound_is_refused() -> None:
    clients = [(np.zeros((3, 1)), np.arange(3.0))]
    with pytest.raises(FFGBError, match="huber"):
        federate(clients, Linear(Flatten(1), 1), Square(), FFGBC(Constant(1.0)), 1)


def test_radii_without_a_contraction_are_infinite() -> None:
    assert radii(0.0, 1.0) == (math.inf, math.inf)
    np.testing.assert_allclose(radii(1.0, 2.0), (0.0, 2.0), atol=1e-8)


def test_where_nothing_contracts_it_still_learns_and_says_so() -> None:
    # the same point with both labels: the best answer in the sup norm is 0, and that of least squares is the majority's
    x, y = np.ones((10, 1), np.float32), np.array([1] * 8 + [0] * 2)
    state, lines = federate([(x, y)], Linear(Flatten(1), 1), Logistic(), FFGBC(Constant(4.0), K=2, mu=0.01), 5)
    assert lines[0]["uncovered"] > 0
    assert lines[0]["gamma_min"] <= 0.0
    assert state.f(x)[0, 0] > 0.5
    (block,) = state.f.merged().blocks  # type: ignore[attr-defined]
    assert np.isfinite(block.radii).all()


def test_scores_are_those_of_the_projected_function() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    y = 3.0 * x[:, 0]
    clients = [(x[:30], y[:30]), (x[30:], y[30:])]
    state, lines = federate(clients, Linear(Flatten(2), 1), Huber(), FFGBC(Constant(1.0), K=2, mu=0.01, B=0.5), 8)
    error = state.result(x)[:, 0] - y
    assert lines[-1]["train_rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-4)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings about the ball since the last call."""
    said = [record.getMessage() for record in caplog.records if "2G/(μγ)" in record.getMessage()]
    caplog.clear()
    return said


@pytest.mark.parametrize("gamma", [0.5, None], ids=["given", "measured"])
def test_a_ball_that_is_too_small_for_the_theorem_is_warned_of_once(
    gamma: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    # cross entropy has G = 1, and the oracle γ = 1/2: 2G/(μγ) = 40
    rng = np.random.default_rng(0)
    clients = [(np.arange(5, dtype=np.float32)[:, None], rng.integers(0, 3, 5)) for _ in range(3)]
    for B, expected in ((39.0, 1), (40.0, 0), (math.inf, 0)):
        algorithm = FFGBC(Theorem(0.1, 4.0), 3, 0.1, gamma, B)
        federate(clients, Finite(5, 3, 0.5), CrossEntropy(3), algorithm, 4)
        said = warned(caplog)
        assert len(said) == expected
        assert all(
            words in text for text in said for words in ("--bound 39 is less", "γ = 0.5", "raise --bound to 40,")
        )


def test_a_ball_becomes_too_small_in_the_round_whose_gamma_needs_a_larger(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = FFGBC(Constant(1.0), mu=0.1, B=100.0).prepared(Any, Any, Logistic(), np.zeros(1), np.ones(1))  # type: ignore[arg-type]
    assert isinstance(algorithm, FFGBC)
    family = Tree(Flatten(1), 1, depth=1)

    def terms(*gammas: float) -> OpenSum:
        found = np.array([radii(gamma, 1.0)[1] for gamma in gammas])
        return OpenSum(family, (Block({}, np.ones(len(found)), found),))

    f: Function = OpenSum(family, ())
    for gammas, needed in (((0.5, 0.9), None), ((0.8, 0.1), "200"), ((0.05,), None), ((0.5,), None)):
        mean = terms(*gammas)
        assert algorithm.pooled(f, mean, 1.0) is mean
        said = warned(caplog)
        assert len(said) == (needed is not None)
        assert needed is None or (f"2G/(μγ) = {needed}," in said[0] and "γ = 0.1" in said[0])
        f = f * 0.5 + mean
    algorithm.pooled(OpenSum(family, ()), terms(0.0), 1.0)  # γ ≤ 0 promises nothing that a ball could keep
    assert not warned(caplog)


def refusal(change: Callable[[Message], Message], K: int = 1) -> str:
    """What a run of three clients ends with, if client 1's answers are changed on their way."""
    rng = np.random.default_rng(0)
    holdings = [Holding(rng.standard_normal((9, 2)).astype(np.float32), np.arange(9) % 2) for _ in range(3)]
    with Faulty(holdings, changed(1, "answer", change)) as engine:
        server = Server(engine, [9] * 3)
        state = server.start(FFGBC(Constant(1.0), K=K, mu=0.1), lambda ask: (Linear(Flatten(2), 1), None), Logistic())
        with pytest.raises(FFGBError, match="client 1 sent") as refused:
            next(server.rounds(state, 1))
    return str(refused.value)


@pytest.mark.parametrize(
    ("radii", "words"),
    [
        (np.array([np.nan]), "radii that are not finite"),
        (np.array([-1.0]), "positive number a term"),
        (np.array([1.0, 2.0]), "radii as float64 of shape (2,)"),
        (np.ones((1, 1)), "radii as float64 of shape (1, 1)"),
        (np.array([np.inf]), "radii that are not finite"),
        (None, "has the arrays"),
    ],
)
def test_radii_that_are_none_are_refused(radii: Array | None, words: str) -> None:
    assert words in refusal(lambda m: with_tensors(m, radii=radii))


def test_more_terms_than_steps_are_refused() -> None:
    def more(message: Message) -> Message:
        twice = {name: np.concatenate([a, a]) for name, a in message.tensors.items()}
        return replace(message, tensors=twice)

    assert "has 2 terms, expected up to 1" in refusal(more)


@pytest.mark.parametrize(
    "notes",
    [None, [], {"gamma": 0.5}, {"gamma": [None]}, {"gamma": [float("nan")]}, {"gamma": [0.5] * 9}, {"other": []}],
)
def test_notes_that_are_none_are_refused_with_the_clients_name(notes: Any) -> None:
    assert "refused" in refusal(lambda m: with_values(m, notes=notes), K=2)
