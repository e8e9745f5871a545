"""Shared geometry: what all clients' sums come to is the central ridge solution, whatever the split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from ffgb.algorithms import Searched
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.functions import ClosedSum
from ffgb.core.geometry import SHIFT, Blocks, Geometry, Nystrom, Spectrum, pack, unpack
from ffgb.core.gradients import LENGTHS, best_length
from ffgb.core.grams import GramOf, SketchOf, random_basis, share_geometry
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.core.maps import FeatureMap
from ffgb.core.moments import MAGNITUDES, moments_of
from ffgb.core.oracles import SharedWO2
from ffgb.core.questions import Ask
from ffgb.core.schedules import Constant
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.federation.host import Holding
from ffgb.federation.server import Learner, Server
from ffgb.learners.linear import Linear
from ffgb.protocol.codec import Message
from ffgb.runs.training import federate
from tests.engines.faults import Faulty, changed, with_tensors, with_values
from tests.features.clients import asked, own

Array = np.ndarray
Part = tuple[Array, Array]


def split(n: int, clients: int, rng: np.random.Generator) -> list[Array]:
    """Rows of each client: any split at all, of unequal sizes."""
    return np.split(rng.permutation(n), np.sort(rng.choice(np.arange(1, n), clients - 1, replace=False)))


def solution(x: Array, phi: Array, ridge: float) -> tuple[Array, Array]:
    """scikit-learn's ridge regression with an intercept on all rows, λ relative to the total variance."""
    level = ridge * float(x.var(axis=0).sum())
    model = Ridge(alpha=level * len(x)).fit(x.astype(np.float64), phi)
    return model.coef_.reshape(-1, x.shape[1]).T, model.intercept_


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.sampled_from([1e-3, 1e-1]))
@settings(max_examples=40, deadline=None)
def test_the_mean_of_shared_answers_is_the_central_ridge_solution(seed: int, clients: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    n, d = 60, 7
    x = (rng.standard_normal((n, d)) * rng.uniform(0.2, 3, d) + rng.uniform(-2, 2, d)).astype(np.float32)
    phi = rng.standard_normal((n, 3)) + 1.0
    rows = split(n, clients, rng)
    family = Linear(Flatten(d), 3)
    geometry = share_geometry(asked([x[r] for r in rows], by_size=True), family.features, "exact", ridge)
    mean = np.zeros((d + 1, 3))
    for r in rows:
        oracle = SharedWO2(family, x[r], geometry)
        h, seen, gamma, _ = oracle(oracle.sees(phi[r]), rng)
        assert isinstance(h.increment, ClosedSum)
        mean += len(r) / n * h.increment.parameters["weight"]
        np.testing.assert_allclose(seen, geometry.apply(h.increment.parameters["weight"]))
        assert gamma is not None
        assert 0.0 < gamma <= 1.0
        np.testing.assert_allclose(oracle.sees(phi[r]), family.covector(x[r], phi[r]))
    weight, intercept = solution(x, phi, ridge)
    np.testing.assert_allclose(mean[:-1], weight, atol=1e-5)
    np.testing.assert_allclose(mean[-1], intercept, atol=1e-5)


def learner(d: int, outputs: int, gram: str = "exact", ridge: float = 1e-2) -> Learner:
    def make(ask: Ask) -> tuple[Linear, Geometry]:
        features = Flatten(d)
        return Linear(features, outputs, ridge), share_geometry(ask, features, gram, ridge, rank=3)

    return make


LOSSES: list[tuple[Loss, int]] = [(CrossEntropy(3), 3), (Logistic(), 1), (Square(), 1), (Huber(), 1)]


@given(st.integers(0, 2**32 - 1), st.sampled_from(range(len(LOSSES))), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_trained_function_does_not_depend_on_the_split(seed: int, which: int, sorted_by_label: bool) -> None:
    loss, c = LOSSES[which]
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((48, 5)).astype(np.float32)
    values = x @ rng.standard_normal(5) + rng.standard_normal(48)
    y = {"CrossEntropy": np.digitize(values, [-1, 1]), "Logistic": (values > 0).astype(int)}.get(
        type(loss).__name__, values
    )
    order = np.argsort(y, kind="stable") if sorted_by_label else np.arange(48)
    found = []
    for parts in ([np.arange(48)], np.split(order, 6), split(48, 5, rng)):
        clients = [(x[r], y[r]) for r in parts]
        state, _ = federate(
            clients, learner(5, c), loss, FFGBShared(Constant(1.0 / loss.smoothness), search=True), 4, by_size=True
        )
        found.append(state.f(x))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5 * max(1.0, np.abs(found[0]).max()))


def test_with_equal_clients_uniform_weights_do_as_well() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    order = np.argsort(y, kind="stable")
    results = [
        federate(
            [(x[r], y[r]) for r in np.split(order, k)], learner(4, 3), CrossEntropy(3), FFGBShared(Constant(2.0)), 5
        )[0]
        for k in (1, 4, 8)
    ]
    for state in results[1:]:
        np.testing.assert_allclose(state.f(x), results[0].f(x), atol=1e-5)


def test_one_step_of_the_square_loss_is_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 6)).astype(np.float32)
    y = x @ rng.standard_normal(6) + 3.0
    clients = [(x[r], y[r]) for r in np.array_split(np.argsort(x[:, 0]), 7)]
    state, (line,) = federate(clients, learner(6, 1), Square(), FFGBShared(Constant(1.0)), 1, by_size=True)
    weight, intercept = solution(x, y[:, None], 1e-2)
    np.testing.assert_allclose(state.f.tensors()["parameters/weight"][:-1], weight, atol=1e-5)
    np.testing.assert_allclose(state.f.tensors()["parameters/weight"][-1], intercept, atol=1e-5)
    # γ in L²(α), as the server measures it from three numbers, is what one sees with all points at hand
    h = state.f(x)
    assert line["gamma_min"] == pytest.approx(1 - np.linalg.norm(h[:, 0] - y) / np.linalg.norm(y), abs=1e-5)


def test_local_steps_in_a_shared_geometry_leave_the_exact_residual() -> None:
    # two steps: ρ ← ρ + b − Gw in feature space, checked by hand with the Gram of all points
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((30, 3)).astype(np.float32), rng.standard_normal(30)
    z = np.hstack([x, np.ones((30, 1))]).astype(np.float64)
    geometry = share_geometry(asked([x]), Flatten(3), "exact", 0.3)
    (state, _) = federate([(x, y)], learner(3, 1, ridge=0.3), Square(), FFGB(Constant(0.5), K=2), 1)
    assert isinstance(state.job.geometry, Blocks)  # more than one step: clients have the geometry
    assert state.geometry is None
    b = z.T @ (-y[:, None]) / 30
    w1 = geometry.solve(b)
    rho = b - z.T @ z / 30 @ w1
    g1 = -0.5 * w1
    w2 = geometry.solve(rho + z.T @ (z @ g1 - y[:, None]) / 30)
    np.testing.assert_allclose(state.f.tensors()["parameters/weight"], g1 - 0.5 * w2, atol=1e-6)


def dense(geometry: Geometry, d: int) -> tuple[Array, Array]:
    """(G + λI)⁻¹ and G on centred features, as matrices."""
    eye = np.vstack([np.eye(d), np.zeros(d)])
    return geometry.solve(eye)[:-1], geometry.apply(eye)[:-1]


@pytest.mark.parametrize("kind", ["exact", "blocks", "tied", "nystrom"])
def test_solve_and_apply_belong_to_one_matrix(kind: str) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 6)).astype(np.float32) @ rng.standard_normal((6, 6)) for n in (40, 25, 3)]
    x = np.concatenate(parts).astype(np.float32)
    x -= x.mean(axis=0)
    parts = np.split(x, [40, 65])
    geometry = share_geometry(asked(parts, by_size=True), TwoGroups(), kind, 0.05, rank=4)
    inverse, gram = dense(geometry, 6)
    level = geometry.ridge  # type: ignore[attr-defined]
    np.testing.assert_allclose(inverse @ (gram + level * np.eye(6)), np.eye(6), atol=1e-6)
    true = x.astype(np.float64).T @ x / len(x)
    assert level == pytest.approx(0.05 * np.trace(true), rel=1e-5)
    expected = {
        "exact": true,
        "blocks": np.block([[true[:3, :3], np.zeros((3, 3))], [np.zeros((3, 3)), true[3:, 3:]]]),
        "tied": np.kron(np.eye(2), (true[:3, :3] + true[3:, 3:]) / 2),
    }
    if kind in expected:
        np.testing.assert_allclose(gram, expected[kind], atol=1e-5)
    else:  # the variances are exact, and what the sketch saw is too
        np.testing.assert_allclose(np.diag(gram), np.diag(true), atol=1e-4)


@final
@dataclass(frozen=True)
class TwoGroups(FeatureMap):
    """Six inputs in two groups."""

    sizes: tuple[int, ...] = (3, 3)

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.sizes

    def __call__(self, x: Array) -> Array:
        return x


def test_tied_groups_have_each_their_means_and_all_the_same_variances() -> None:
    """The variance of a column is the mean over groups, repeated group by group."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((50, 6)) * [1, 2, 3, 4, 5, 6] + np.arange(6)).astype(np.float32)
    moments = moments_of(asked([x]), TwoGroups())
    root = np.sqrt(moments.variance.reshape(2, 3).mean(axis=0)) * 1.01
    question = GramOf(TwoGroups(), (3,), 2, moments.mean.astype(np.float32).astype(float), root)
    mean, variance = question.spread(own(question, x))
    np.testing.assert_allclose(mean, x.mean(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, np.tile(x.var(axis=0).reshape(2, 3).mean(axis=0), 2), rtol=1e-5)


def test_a_tied_gram_is_centred_whatever_it_was_summed_about() -> None:
    """Each group's own mean is taken off, and the groups are averaged."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((50, 6)) + np.arange(6)).astype(np.float32)
    root = np.sqrt(np.square(x.astype(float)).mean(axis=0).reshape(2, 3).mean(axis=0)) * 1.01
    question = GramOf(TwoGroups(), (3,), 2, np.zeros(6), root)
    mean, (block,) = question.total(own(question, x))
    np.testing.assert_allclose(mean, x.mean(axis=0), rtol=1e-6)
    first, second = (np.cov(group, rowvar=False, bias=True) for group in (x[:, :3], x[:, 3:]))
    np.testing.assert_allclose(block, (first + second) / 2, atol=1e-4)


def test_tied_groups_keep_the_bounds_of_their_features_in_the_mean() -> None:
    """The mean square over tied groups cannot exceed the squared bound of the feature."""
    waves = Concatenate((RandomFourier(Flatten(2), 4, 1.0, 0), RandomFourier(Flatten(2), 4, 1.0, 1)), (1.0, 1.0))
    question = GramOf(waves, (4,), 2, np.zeros(8), np.ones(4))
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    question.check(own(question, x), 30)
    first = np.arange(8) % 4 == 0  # of either group; b² = 1/2
    square = np.where(np.arange(10) == 0, 1.0, 0.0)  # about the centre, 0: the mean's square is in it
    question.check({"mean": np.where(first, 0.7, 0.0), "gram": 0.49 * square}, 30)
    for part in (
        {"mean": np.where(first, 0.8, 0.0), "gram": 0.64 * square},
        {"mean": np.zeros(8), "gram": 0.6 * square},
    ):
        with pytest.raises(FFGBError, match=r"its feature 0 has a mean of .*, and is never beyond 0\.707"):
            question.check(part, 30)


def test_a_sketch_of_full_rank_is_the_exact_geometry() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 5)).astype(np.float32)
    exact = share_geometry(asked([x]), Flatten(5), "exact", 0.01)
    sketch = share_geometry(asked([x[:10], x[10:]], by_size=True), Flatten(5), "nystrom", 0.01, rank=5)
    b = rng.standard_normal((6, 2))
    np.testing.assert_allclose(sketch.solve(b), exact.solve(b), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sketch.apply(b), exact.apply(b), atol=1e-5)


def test_weights_of_clients_weight_the_gram() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 3)).astype(np.float32) for n in (5, 50)]
    geometry = share_geometry(asked(parts), Flatten(3), "exact", 1e-3)
    z = [np.hstack([x, np.ones((len(x), 1))]).astype(np.float64) for x in parts]
    full = sum(a.T @ a / len(a) for a in z) / 2
    np.testing.assert_allclose(geometry.apply(np.eye(4)), full, atol=1e-6)


def test_halves_hold_all_there_is() -> None:
    a = np.random.default_rng(0).standard_normal((5, 5))
    half = pack(a)
    assert len(half) == 15
    np.testing.assert_array_equal(unpack(half, 5), np.tril(a))


def test_the_freedom_is_that_of_the_hat_matrix() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 4)).astype(np.float32)
    geometry = share_geometry(asked([x]), Flatten(4), "exact", 0.2)
    z = np.hstack([x, np.ones((50, 1))]).astype(np.float64)
    h = z @ geometry.solve(z.T) / 50
    assert geometry.freedom is not None
    assert geometry.freedom == pytest.approx(np.trace(h) ** 2 / np.trace(h @ h), rel=1e-4)
    # and that is how much of pure noise an answer explains
    phi = rng.standard_normal((50, 4000))
    phi -= phi.mean(axis=0)
    answer = (h - 1 / 50) @ phi
    explained = np.square((answer * phi).sum(axis=0)) / (np.square(answer).sum(axis=0) * np.square(phi).sum(axis=0))
    assert explained.mean() == pytest.approx((geometry.freedom - 1) / 49, rel=0.1)


def test_training_on_noise_stops() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 30)).astype(np.float32), rng.integers(0, 2, 60)
    with InProcess([Holding(x[:30], y[:30]), Holding(x[30:], y[30:])]) as engine:
        server = Server(engine, [30, 30], by_size=True)
        state = server.start(FFGBShared(Constant(4.0), search=True), learner(30, 1, ridge=1 / 60), Logistic())
        lines = [line for _, line in server.rounds(state, 20, stop=True)]
    assert len(lines) < 5
    assert lines[-1]["noise"] - lines[-1]["explained"] > 0.05
    assert len(lines) == 1 or lines[-1]["train_loss"] == lines[-2]["train_loss"]  # the last step was not taken


# The search for a length


@given(st.floats(0.01, 500), st.floats(0.1, 10))
def test_the_search_is_exact_on_parabolas(best: float, curvature: float) -> None:
    found = best_length(curvature * (np.array(LENGTHS) - best))
    assert found == pytest.approx(min(best, LENGTHS[-1]), rel=1e-9)


def test_a_line_that_does_not_descend_is_not_followed() -> None:
    assert best_length(np.ones(len(LENGTHS))) == 0.0
    assert best_length(-np.ones(len(LENGTHS))) == LENGTHS[-1]


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_a_searched_step_minimises_the_objective_along_the_line(mu: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 4)).astype(np.float32), rng.integers(0, 3, 90)
    clients = [(x[r], y[r]) for r in np.array_split(np.argsort(y, kind="stable"), 4)]
    loss = CrossEntropy(3)
    one, _ = federate(clients, learner(4, 3), loss, FFGBShared(Constant(2.0), mu=mu, search=True), 1, by_size=True)
    two, _ = federate(clients, learner(4, 3), loss, FFGBShared(Constant(2.0), mu=mu, search=True), 2, by_size=True)
    f, change = one.f(x), two.f(x) - one.f(x)
    objective = [
        float(loss.value(f + s * change, y).mean()) + mu / 2 * float(np.square(f + s * change).sum(axis=1).mean())
        for s in (0.0, 0.9, 1.0, 1.1)
    ]
    assert objective[2] <= objective[0]
    assert objective[2] <= min(objective[1], objective[3]) + 1e-4


def test_the_search_works_for_open_families_too() -> None:
    from ffgb.learners.trees import Tree

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 3)).astype(np.float32), rng.standard_normal(80)
    clients = [(x[:50], y[:50]), (x[50:], y[50:])]
    searched, lines = federate(
        clients, Tree(Flatten(3), 1, depth=2), Square(), FFGB(Constant(0.01), length=Searched()), 3
    )
    assert [line["train_loss"] for line in lines] == sorted((line["train_loss"] for line in lines), reverse=True)
    assert lines[-1]["train_loss"] < 0.35
    np.testing.assert_allclose(
        np.mean([np.square(searched.f(x)[:, 0] - y)[r].mean() / 2 for r in (slice(50), slice(50, None))]),
        lines[-1]["train_loss"],
        rtol=1e-6,
    )


# What a round costs


def test_one_local_step_costs_one_array_each_way_and_the_gram_once() -> None:
    rng = np.random.default_rng(0)
    d, c, N, T = 5, 3, 4, 3
    clients = [(rng.standard_normal((20, d)).astype(np.float32), rng.integers(0, c, 20)) for _ in range(N)]
    _, lines = federate(clients, learner(d, c), CrossEntropy(c), FFGBShared(Constant(2.0), search=True), T)
    first = d * len(MAGNITUDES) + 2 * d  # orders of magnitude, and moments
    gram = d * (d + 1) // 2 + d  # half the Gram, and the mean
    covector, slopes = (d + 1) * c + 1, len(LENGTHS) + 1  # each with a mean square
    assert lines[-1]["parameters_up"] == first + gram + T * (covector + slopes)
    about = d + 2 * d + 2 * d  # where those three are centred, and how far features reach
    assert lines[-1]["parameters_down"] == about + T * ((d + 1) + (d + 1) * c)  # scales, h; no part of the Gram
    _, lines = federate(clients, learner(d, c, "nystrom"), CrossEntropy(c), FFGBShared(Constant(2.0)), T)
    assert lines[-1]["parameters_up"] == first + d * 3 + 2 * d + T * covector
    _, lines = federate(clients, learner(d, c), CrossEntropy(c), FFGB(Constant(2.0), K=2), T)
    assert lines[-1]["parameters_down"] == about + gram + T * (d + 1) * c  # two steps: the factor comes down


# Bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: with_values(m, points=3), "it is of 3 points, and the client has 20"),
        (lambda m: with_tensors(m, gram=lambda g: np.full(10, np.nan)), "gram as float64"),
        (
            lambda m: with_tensors(m, gram=lambda g: g[:-1]),
            r"gram as int32 of shape \(9,\), expected .* shape \(10\)",
        ),
        (lambda m: with_tensors(m, gram=lambda g: g.astype(np.int64)), "gram as int64"),
        (lambda m: with_tensors(m, gram=lambda g: -g), "negative variance"),
        (
            lambda m: with_tensors(m, gram=lambda g: np.where(np.arange(10) == 1, 2 * np.abs(g).max(), g)),
            "no Gram of any points",
        ),
        (lambda m: with_tensors(m, mean=None), "has the arrays"),
        (lambda m: with_tensors(m, rows=np.zeros((20, 4))), "has the arrays"),
    ],
    ids=["fewer points", "not finite", "size", "dtype", "negative", "no Gram", "missing", "too much"],
)
def test_a_part_that_cannot_be_is_refused_by_name(change: Callable[[Message], Message], words: str) -> None:
    rng = np.random.default_rng(0)
    holdings = [Holding(rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 2, 20)) for _ in range(3)]

    def of_the_gram(message: Message) -> Message:
        return change(message) if "gram" in message.tensors else message

    with Faulty(holdings, changed(1, "part", of_the_gram)) as engine:
        server = Server(engine, [20] * 3)
        with pytest.raises(FFGBError, match=f"client 1 sent .* refused: .*{words}"):
            server.start(FFGBShared(Constant(1.0)), learner(4, 1), Logistic())


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "not finite"),
        (np.ones((2, 3)), "square matrix"),
        (np.eye(3), "has 3 features, their mean 2"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "not positive definite"),
    ],
)
def test_a_matrix_that_is_no_gram_is_refused(gram: Array, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        Blocks.of(np.zeros(2), [gram], 0.0)


def test_a_gram_that_parts_made_slightly_indefinite_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """By as much as a single part may be, and still pass for a Gram."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 6))
    q, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    gram = q @ np.diag([5.0, 3.0, 1.0, 0.7, 0.3, -5e-5]) @ q.T
    geometry = Blocks.of(np.zeros(6), [gram], 1e-9)
    assert "not positive definite; λ is 0.0001 of its trace" in caplog.text
    assert geometry.ridge == pytest.approx(1e-4 * 9.99995)
    assert np.isfinite(geometry.solve(rng.standard_normal((7, 2)))).all()
    omega = random_basis(6, 6, 0)
    sketched = Nystrom.of(x.mean(axis=0), gram @ omega, omega, np.abs(np.diag(gram)), 1e-3)
    assert np.isfinite(sketched.solve(rng.standard_normal((7, 2)))).all()
    gram -= 0.1 * np.outer(q[:, 5], q[:, 5])
    with pytest.raises(FFGBError, match="the sketch of the Gram is not positive definite"):
        Nystrom.of(x.mean(axis=0), gram @ omega, omega, np.abs(np.diag(gram)), 1e-3)


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        (np.full(len(LENGTHS), np.inf), "sent what is refused: .* slopes as float64"),
        (np.full(len(LENGTHS), 2**62), "its slopes has a value of .*, beyond its bound"),
        (-np.arange(len(LENGTHS)) * 2**40, "sent slopes that do not increase"),
        (np.arange(len(LENGTHS)) * 2**40, "sent slopes from 0 to .*, and its increment is"),
    ],
    ids=["no integers", "too large", "concave", "too steep"],
)
def test_slopes_that_cannot_be_are_refused_by_name(slopes: Array, words: str) -> None:
    rng = np.random.default_rng(0)
    holdings = [Holding(rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 2, 20)) for _ in range(3)]

    fault = changed(2, "part", lambda m: with_tensors(m, slopes=slopes) if "slopes" in m.tensors else m)
    with Faulty(holdings, fault) as engine:
        server = Server(engine, [20] * 3)
        state = server.start(FFGBShared(Constant(1.0), search=True), learner(4, 1), Logistic())
        with pytest.raises(FFGBError, match=f"client 2 {words}"):
            next(server.rounds(state, 1))


def test_an_unknown_kind_of_gram_and_groups_that_differ_are_refused() -> None:
    x = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    with pytest.raises(FFGBError, match="no geometry 'magic'"):
        share_geometry(asked([x]), Flatten(5), "magic", 0.1)
    groups = TwoGroups((2, 3))
    with pytest.raises(FFGBError, match="cannot be tied"):
        share_geometry(asked([x]), groups, "tied", 0.1)


def test_an_open_family_has_no_geometry_to_share() -> None:
    from ffgb.learners.trees import Tree

    x = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)

    def make(ask: Ask) -> tuple[Tree, Geometry]:
        return Tree(Flatten(3), 1), share_geometry(ask, Flatten(3), "exact", 0.1)

    with pytest.raises(FFGBError, match="only a closed family"):
        federate([(x, x[:, 0])], make, Square(), FFGBShared(Constant(1.0)), 1)


def test_questions_say_how_large_their_answers_are() -> None:
    assert GramOf(Flatten(10), (10,), 1, np.zeros(10), np.ones(10)).size == 4 * 55 + 8 * 10
    assert SketchOf(Flatten(10), 3, 0, np.zeros(10), np.ones(10)).size == 4 * 30 + 4 * 10 + 8 * 10
    omega = random_basis(10, 3, 0)
    np.testing.assert_allclose(omega.T @ omega, np.eye(3), atol=1e-12)
    assert isinstance(Nystrom.of(np.zeros(10), omega, omega, np.ones(10), 0.1), Nystrom)


def test_a_sketch_has_no_scale_of_its_own() -> None:
    """A Gram that is a millionth of another has a millionth of its low rank and of its rest."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 8)) * np.geomspace(1.0, 0.05, 8)
    gram, omega = np.cov(x.T), rng.standard_normal((8, 4))
    large, small = (Nystrom.of(np.zeros(8), c * gram @ omega, omega, c * np.diag(gram), 1e-3) for c in (1.0, 1e-6))
    np.testing.assert_allclose(1e6 * small.basis @ small.basis.T, large.basis @ large.basis.T, atol=1e-9)
    np.testing.assert_allclose(1e6 * small.rest, large.rest, atol=1e-9)
    assert small.ridge == pytest.approx(1e-6 * large.ridge)


def test_directions_at_the_level_of_rounding_are_not_free() -> None:
    """Of the trace: the mean of the eigenvalues has nothing to do with it."""
    values = np.array([1.0, 2.0 * SHIFT, 0.5 * SHIFT, 0.5 * SHIFT, *np.zeros(6)])
    assert Spectrum(np.zeros(10), values, np.eye(10)).freedom == 3.0  # two, and the intercept
