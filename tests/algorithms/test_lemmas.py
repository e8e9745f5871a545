"""Lemmas and identities of the paper's proofs, for any oracle that keeps its word: what it answers is random but for
that, and off a client's points it is as bad as it likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist, pdist

from ffgb.algorithms import Functional
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC, least_ball
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.core.functions import ClosedFamily, ClosedSum, Function, OnPoints, average
from ffgb.core.lipschitz import Extension
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.core.maps import FeatureMap
from ffgb.core.oracles import Answer, Oracle, contraction, l2, sup
from ffgb.core.schedules import Power, Schedule, Theorem
from ffgb.core.types import Array, Parameters
from ffgb.data.heterogeneity import total_variation, wasserstein
from ffgb.features.basic import Flatten
from ffgb.learners.finite import Indicators
from ffgb.studies.theory import ExactGamma, sampling

seeds = st.integers(0, 2**32 - 1)
gammas = st.floats(0.05, 1.0)
ROUNDED = 1.0 + 1e-9


@final
@dataclass(frozen=True)
class Table(ClosedFamily):
    """All functions on n places, as a table of their values; a point is the number of its place."""

    features: FeatureMap
    outputs: int

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"value": ((self.features.dimension, self.outputs), "float64")}

    def members(self, stack: Parameters, z: Array) -> Array:
        return z.astype(np.float64) @ stack["value"]


@final
class Wayward(Oracle):
    """‖h − φ‖ = (1 − γ)‖φ‖ at the client's points, in a random direction; elsewhere anything, up to `wild`."""

    def __init__(self, family: Table, own: Array, gamma: float, norm: str, wild: float, seed: int) -> None:
        self.family, self.own, self.gamma, self.wild = family, own, gamma, wild
        self.norm = {"l2": l2, "sup": sup}[norm]
        self.rng = np.random.default_rng(seed)
        self.queries: list[Array] = []
        self.answers: list[Array] = []

    def sees(self, phi: Array) -> Array:
        return phi

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        error = self.rng.standard_normal(query.shape)
        values = query + (1.0 - self.gamma) * self.norm(query) / max(self.norm(error), 1e-300) * error
        table = self.wild * self.rng.uniform(-1.0, 1.0, (self.family.features.dimension, query.shape[1]))
        table[self.own] = values
        self.queries.append(query)
        self.answers.append(values)
        h = OnPoints(0.0, self.family.member({"value": table}), values)
        return Answer(h, values, min(contraction(values, query, self.norm), self.gamma))


def one_hot(places: int, own: Array) -> Array:
    return np.eye(places, dtype=np.float32)[own]


def labels(loss: Loss, rng: np.random.Generator, n: int) -> Array:
    if loss.classification:
        return rng.integers(0, max(loss.outputs, 2), n)
    return 3.0 * rng.standard_normal((n, loss.outputs))


LOSSES: tuple[Loss, ...] = (CrossEntropy(3), Logistic(), Huber(2, 0.7))
SCHEDULES: tuple[Schedule, ...] = (Theorem(0.2), Theorem(0.2, 4.0), Power(3.0))


@dataclass(frozen=True)
class Step:
    """One local step, seen from outside."""

    g: Array
    gradient: Array
    h: Array
    residual: Array
    """Δ^k, after the step."""


def steps(algorithm: FFGB, t: int, f: Array, y: Array, loss: Loss, oracle: Wayward) -> tuple[list[Step], Array]:
    """g^k, ∇R[g^k], h^k and Δ^k of Algorithm 2, found from the oracle's queries and answers alone; and g^{K+1}."""
    at = OnPoints(1.0, oracle.family.zero(), f)
    result, _ = algorithm.client(t, at, y, loss, oracle, np.random.default_rng(0))
    g, found = f, list[Step]()
    for k, (query, h) in enumerate(zip(oracle.queries, oracle.answers, strict=True), 1):
        found.append(Step(g, loss.gradient(g, y), h, query - h))
        g = g - algorithm.eta(k, t) * (h + algorithm.mu * g)
    np.testing.assert_allclose(result.values, g, rtol=1e-9, atol=1e-9)
    return found, g


@given(seeds, gammas, st.integers(1, 8), st.integers(0, 4), st.sampled_from(LOSSES), st.sampled_from(SCHEDULES))
def test_the_residual_telescopes(seed: int, gamma: float, K: int, t: int, loss: Loss, schedule: Schedule) -> None:
    # Theorem 1's proof, eq. residual_cancel.  What the weak learners sum up to is the sum of gradients, but for Δ^K:
    #     Σ_k h^k = Σ_k ∇R[g^k] − Δ^K,
    # and against any function f*, with the whole step h + μg where the paper writes h,
    #     Σ_k ⟨f* − g^k, h^k − ∇R[g^k]⟩ = −⟨f* − g^K, Δ^K⟩ + Σ_{k<K} η^k ⟨h^k + μg^k, Δ^k⟩
    rng = np.random.default_rng(seed)
    n, c, mu = 6, loss.outputs, 0.2
    oracle = Wayward(Table(Indicators(n), c), np.arange(n), gamma, "l2", 0.0, seed)
    algorithm = FFGB(schedule, K, mu)
    f, star = rng.standard_normal((2, n, c))
    found, _ = steps(algorithm, t, f, labels(loss, rng, n), loss, oracle)
    left = sum(s.h for s in found) - sum(s.gradient for s in found)
    np.testing.assert_allclose(left, -found[-1].residual, atol=1e-9)
    inner = sum(float(np.vdot(star - s.g, s.h - s.gradient)) for s in found)
    by_parts = -float(np.vdot(star - found[-1].g, found[-1].residual))
    for k, s in enumerate(found[:-1], 1):
        by_parts += algorithm.eta(k, t) * float(np.vdot(s.h + mu * s.g, s.residual))
    assert inner == pytest.approx(by_parts, rel=1e-8, abs=1e-8)


@given(seeds, gammas, st.integers(1, 8), st.integers(0, 4), st.sampled_from(LOSSES))
def test_bounds_of_theorem_1_hold_for_any_oracle(seed: int, gamma: float, K: int, t: int, loss: Loss) -> None:
    rng = np.random.default_rng(seed)
    n, c, mu, G = 6, loss.outputs, 0.2, loss.bound

    def norm(values: Array) -> float:
        return float(np.sqrt(np.square(values).sum(axis=1).mean()))

    oracle = Wayward(Table(Indicators(n), c), np.arange(n), gamma, "l2", 0.0, seed)
    algorithm, ball = FFGB(Theorem(mu), K, mu), least_ball(mu, G, gamma)
    f = rng.standard_normal((n, c))
    f *= ball / norm(f)  # on the edge of the ball
    found, last = steps(algorithm, t, f, labels(loss, rng, n), loss, oracle)
    moved = 0.0
    for k, s in enumerate(found, 1):
        assert norm(s.residual) <= (1.0 - gamma) / gamma * G * ROUNDED + 1e-12
        assert norm(s.h) <= (2.0 - gamma) / gamma * G * ROUNDED
        assert norm(s.g) <= ball * ROUNDED
        assert norm(s.h + mu * s.g) <= 4.0 * G / gamma * ROUNDED
        assert norm(s.g - f) <= moved * ROUNDED + 1e-12  # the drift from f^t
        moved += algorithm.eta(k, t) * 4.0 * G / gamma
    assert norm(last) <= ball * ROUNDED


def rounds(
    algorithm: Functional,
    family: Table,
    owns: Sequence[Array],
    ys: Sequence[Array],
    loss: Loss,
    oracles: Sequence[Oracle],
    f: Function,
    T: int,
) -> tuple[Function, list[list[Function]]]:
    """Algorithm 1, written out: f^T, and what f^t and the clients' g were on the way."""
    zs = [one_hot(family.features.dimension, own) for own in owns]
    seen = list[list[Function]]()
    for t in range(T):
        increments, decay = list[Function](), algorithm.decay(t)
        for z, y, oracle in zip(zs, ys, oracles, strict=True):
            at = OnPoints(1.0, algorithm.zero(family), f.evaluate(z))
            g, _ = algorithm.client(t, at, y, loss, oracle, np.random.default_rng(0))
            assert g.decay == pytest.approx(decay, abs=1e-12)
            increments.append(g.increment)
        seen.append([f * decay + s for s in increments])
        f = algorithm.after(f, decay, average(increments, [1.0] * len(increments)), 1.0)
    return f, seen


@given(seeds, gammas, st.integers(1, 5), st.integers(1, 3), st.sampled_from(LOSSES), st.booleans())
@settings(deadline=None)
def test_no_function_of_ffgb_c_leaves_the_ball_anywhere(
    seed: int, gamma: float, K: int, T: int, loss: Loss, known: bool
) -> None:
    # Theorem 2's lemmas: two clients that share one place of five, and answers of a million where they do not look
    rng = np.random.default_rng(seed)
    family, mu, G = Table(Indicators(5), loss.outputs), 0.3, loss.entry_bound
    owns = [np.array([0, 1, 2]), np.array([2, 3])]
    oracles = [Wayward(family, own, gamma, "sup", 1e6, seed + i) for i, own in enumerate(owns)]
    algorithm = FFGBC(Theorem(mu, 4.0), K, mu, gamma if known else None)
    ball = least_ball(mu, G, gamma)
    start = np.clip(2.0 * ball * rng.standard_normal((5, loss.outputs)), -ball, ball)
    everywhere = one_hot(5, np.arange(5))
    f, seen = rounds(
        algorithm,
        family,
        owns,
        [labels(loss, rng, len(own)) for own in owns],
        loss,
        oracles,
        family.member({"value": start}),
        T,
    )
    for g in [f, *(g for gs in seen for g in gs)]:
        assert np.abs(g.evaluate(everywhere)).max() <= ball * ROUNDED
    for oracle in oracles:  # and where a client looks, clips changed nothing: its queries stay within G/γ
        for query, h in zip(oracle.queries, oracle.answers, strict=True):
            assert sup(query) <= G / gamma * ROUNDED
            assert sup(h) <= (2.0 - gamma) / gamma * G * ROUNDED


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from(LOSSES))
def test_averaging_functions_is_averaging_arrays(seed: int, N: int, K: int, T: int, loss: Loss) -> None:
    # In a closed family the server's decay · f + mean of increments is the mean of the clients' functions, everywhere
    rng = np.random.default_rng(seed)
    family, places = Table(Indicators(4), loss.outputs), one_hot(4, np.arange(4))
    owns = [rng.permutation(4)[: rng.integers(1, 5)] for _ in range(N)]
    oracles = [Wayward(family, own, 0.5, "l2", 2.0, seed + i) for i, own in enumerate(owns)]
    ys = [labels(loss, rng, len(own)) for own in owns]
    start = family.member({"value": rng.standard_normal((4, loss.outputs))})
    f, seen = rounds(FFGB(Theorem(0.2), K, 0.2), family, owns, ys, loss, oracles, start, T)
    assert isinstance(f, ClosedSum)
    mean = np.mean([g.evaluate(places) for g in seen[-1]], axis=0)
    np.testing.assert_allclose(f.evaluate(places), mean, atol=1e-9)
    arrays = np.mean([g.parameters["value"] for g in seen[-1] if isinstance(g, ClosedSum)], axis=0)
    np.testing.assert_allclose(f.parameters["value"], arrays, atol=1e-9)


@given(seeds, st.integers(2, 6), st.data())
def test_sampling_clients_without_replacement_has_the_lemmas_variance(seed: int, N: int, data: st.DataObject) -> None:
    # E‖f^{t+1} − ḡ‖² = (N−m)/(N−1) · 1/m · mean ‖g_i − ḡ‖², and f^{t+1} is unbiased: over all subsets, one by one
    m = data.draw(st.integers(1, N))
    g = np.random.default_rng(seed).standard_normal((N, 7))
    means = np.array([g[list(members)].mean(axis=0) for members in combinations(range(N), m)])
    np.testing.assert_allclose(means.mean(axis=0), g.mean(axis=0), atol=1e-12)
    spread = float(np.square(g - g.mean(axis=0)).sum(axis=1).mean())
    found = float(np.square(means - g.mean(axis=0)).sum(axis=1).mean())
    assert found == pytest.approx(sampling(N, m) * spread, rel=1e-9, abs=1e-12)


def shares(rng: np.random.Generator, places: int, clients: int) -> Array:
    """α_i on so many places, row by row, some of them without any share."""
    p = rng.random((clients, places)) * (rng.random((clients, places)) < 0.7)
    p[:, 0] += 1e-3
    p /= p.sum(axis=1, keepdims=True)
    return p


@given(seeds, st.integers(2, 7), st.integers(1, 4))
def test_inner_products_of_clients_differ_by_total_variation(seed: int, n: int, N: int) -> None:
    # eq. change_inner_product_TV
    rng = np.random.default_rng(seed)
    places, alphas, (f, g) = rng.standard_normal((n, 2)), shares(rng, n, N), rng.standard_normal((2, n))
    alpha = alphas.mean(axis=0)
    for alpha_i in alphas:
        apart = abs(float((alpha - alpha_i) @ (f * g)))
        assert apart <= 2.0 * sup(f) * sup(g) * total_variation(places, places, alpha, alpha_i) * ROUNDED + 1e-12


@given(seeds, st.integers(2, 7), st.integers(1, 4))
@settings(deadline=None)
def test_inner_products_of_clients_differ_by_wasserstein(seed: int, n: int, N: int) -> None:
    # eq. W1_variational_formulation
    pytest.importorskip("ot")
    rng = np.random.default_rng(seed)
    places, alphas, (f, g) = rng.standard_normal((n, 2)), shares(rng, n, N), rng.standard_normal((2, n))
    alpha = alphas.mean(axis=0)

    def lip(values: Array) -> float:
        return float((pdist(values[:, None]) / pdist(places)).max())

    slope = lip(f) * sup(g) + lip(g) * sup(f)
    for alpha_i in alphas:
        apart = abs(float((alpha - alpha_i) @ (f * g)))
        assert apart <= slope * wasserstein(places, places, p=alpha, q=alpha_i) * ROUNDED + 1e-12


@given(seeds, st.floats(0.1, 5.0))
def test_a_projection_onto_the_ball_brings_nothing_in_it_further_away(seed: int, B: float) -> None:
    rng = np.random.default_rng(seed)
    family, places = Table(Indicators(6), 2), one_hot(6, np.arange(6))
    table, alpha = 4.0 * rng.standard_normal((6, 2)), shares(rng, 6, 1)[0]
    star = np.clip(4.0 * rng.standard_normal((6, 2)), -B, B)
    f: Function = family.member({"value": table})
    projected = FFGBC(Theorem(0.1, 4.0), mu=0.1, B=B).project(f).evaluate(places)

    def distance(values: Array) -> float:
        return float(alpha @ np.square(values - star).sum(axis=1))

    assert distance(projected) <= distance(table) * ROUNDED
    assert np.abs(projected).max() <= B * ROUNDED


def squared_w2(a: Array, b: Array) -> float:
    """W2² between two clouds of as many points: a matter of pairing them."""
    cost = cdist(a, b, "sqeuclidean")
    return float(cost[linear_sum_assignment(cost)].mean())


@final
class WaywardExtension(Oracle):
    """WO^lip on a finite set of places, of which the first are the client's: h = φ + e, where e is a random function
    with ‖e‖_lip ≤ (1 − γ)‖φ‖_lip and ‖e‖ ≤ (1 − γ)‖φ‖ at the client's places, shrunk until ‖h‖_lip ≤ ‖φ‖_lip too."""

    def __init__(self, places: Array, own: int, L: float, gamma: float, seed: int) -> None:
        self.places, self.own, self.L, self.gamma = places, own, L, gamma
        self.rng = np.random.default_rng(seed)
        self.queries: list[Array] = []
        self.answers: list[Array] = []

    def sees(self, phi: Array) -> Array:
        return Extension(self.places[: self.own], phi, self.L, "mcshane")(self.places)

    def slope(self, values: Array) -> float:
        return float((pdist(values) / pdist(self.places)).max())

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        ripple = np.sin(self.places @ self.rng.standard_normal((self.places.shape[1], 1)) + self.rng.uniform(0, 6))
        room = min(
            self.slope(query) / self.slope(ripple), sup(query[: self.own]) / max(sup(ripple[: self.own]), 1e-300)
        )
        # γφ is an answer, and any between it and another that contracts too; all are no steeper than φ
        other = self.gamma * query + 0.5 * (1.0 - self.gamma) * room * ripple
        h = other / max(1.0, self.slope(other) / self.slope(query))
        if self.slope(h - query) > (1.0 - self.gamma) * self.slope(query) or sup(h[: self.own] - query[: self.own]) > (
            1.0 - self.gamma
        ) * sup(query[: self.own]):
            h = self.gamma * query
        self.queries.append(query)
        self.answers.append(h)
        measured = {"gamma_sup": self.gamma, "gamma_lip": self.gamma, "lipschitz": self.slope(h)}
        return Answer(OnPoints(0.0, NOTHING, h), h, self.gamma, measured)


NOTHING = ClosedSum(Table(Flatten(0), 1), {"value": np.zeros((0, 1))})


@given(seeds, st.floats(0.1, 1.0), st.integers(1, 6), st.integers(1, 4), st.integers(2, 3))
@settings(deadline=None)
def test_functions_of_ffgb_l_stay_lipschitz_and_bounded(seed: int, gamma: float, K: int, T: int, N: int) -> None:
    # Theorem 3's lemmas, of clients at places of their own, averaged over T rounds one by one
    rng = np.random.default_rng(seed)
    each, L = 5, 1.3
    places = rng.uniform(-1.0, 1.0, (N * each, 2)) + np.repeat(np.arange(N), each)[:, None] * np.array([0.7, 0.0])
    label = np.sin(places.sum(axis=1, keepdims=True)) * L / np.sqrt(2.0)
    B = float(np.abs(label).max())
    orders = [
        np.r_[np.arange(i * each, (i + 1) * each), np.delete(np.arange(N * each), np.s_[i * each : (i + 1) * each])]
        for i in range(N)
    ]
    oracles = [WaywardExtension(places[order], each, L, gamma, seed + i) for i, order in enumerate(orders)]
    D = max(
        float(cdist(places[i * each : (i + 1) * each], places[j * each : (j + 1) * each]).min(axis=1).max())
        for i in range(N)
        for j in range(N)
    )
    clouds = [places[i * each : (i + 1) * each] for i in range(N)]
    algorithm, f = FFGBL(L, K), np.zeros((N * each, 1))
    for t in range(T):
        gs = np.empty((N, N * each, 1))
        for i, (order, oracle) in enumerate(zip(orders, oracles, strict=True)):
            at = OnPoints(1.0, NOTHING, f[order])
            g, _ = algorithm.client(t, at, label[order[:each]], Square(), oracle, rng)
            gs[i][order] = g.values
            u = oracle.sees(label[order[:each]])
            for query, h in zip(oracle.queries[-K:], oracle.answers[-K:], strict=True):
                residual = u - query  # Δ^{k−1}
                assert oracle.slope(residual) <= (1.0 - gamma) / gamma * L * ROUNDED + 1e-9
                assert oracle.slope(query) <= L / gamma * ROUNDED + 1e-9
                assert oracle.slope(h) <= L / gamma * ROUNDED + 1e-9
                assert sup(residual[:each]) <= (1.0 - gamma) / gamma * B * ROUNDED + 1e-9
                assert sup(h[:each]) <= B / gamma * ROUNDED + 1e-9
            assert oracle.slope(g.values) <= L / gamma * ROUNDED + 1e-9
            assert t > 0 or sup(g.values[:each]) <= B / gamma * ROUNDED + 1e-9  # for t > 0 see the next test
            assert sup(g.values) <= (L * D + B) / gamma * ROUNDED + 1e-9
        f = gs.mean(axis=0)
        assert (pdist(f) <= L / gamma * pdist(places) * ROUNDED + 1e-9).all()
        for s, cloud in enumerate(clouds):  # ‖f^{t+1}‖²_{α_s} ≤ (2L²/(Nγ²)) Σ_i W2²(α_s, α_i) + 2B²/γ²
            W2 = float(np.mean([squared_w2(cloud, other) for other in clouds]))
            mean = float(np.square(f[s * each : (s + 1) * each]).mean())
            assert mean <= (2.0 * L**2 * W2 + 2.0 * B**2) / gamma**2 * ROUNDED


def test_after_the_first_round_a_client_of_ffgb_l_exceeds_the_bound_that_the_paper_gives_it() -> None:
    # The lemma ‖g_i^{k,t}‖_{α_i,∞} ≤ B/γ starts its induction from g¹ = f^t, which other clients made as well.  Two
    # clients at 0 and 2, both with the label 1 = B; L = γ = 1, so that h_i = u_i, which is 3 at the other's point.
    f, algorithm = np.zeros((2, 1)), FFGBL(1.0)
    for t in range(4):
        gs = []
        for places in (np.array([[0.0], [2.0]]), np.array([[2.0], [0.0]])):
            order = (places[:, 0] / 2).astype(int)
            at = OnPoints(1.0, NOTHING, f[order])
            oracle = ExactGamma(1.0, places, 1.0)
            g, _ = algorithm.client(t, at, np.array([[1.0]]), Square(), oracle, np.random.default_rng(0))
            gs.append(g.values[order])
        own = [abs(float(gs[i][i, 0])) for i in (0, 1)]
        assert own == ([1.0, 1.0] if t < 3 else pytest.approx([1.2, 1.2]))  # η is capped at 1 before
        f = np.mean(gs, axis=0)
        np.testing.assert_allclose(f, 2.0)  # within (LD+B)/γ = 3
