"""The server: sampling, catch-up, weights, costs, set-up — the same result as the paper's formulas by other means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.algorithms.ffgb import FFGB
from ffgb.core.functions import ClosedFamily, Function, OnPoints
from ffgb.core.losses import CrossEntropy, Square
from ffgb.core.moments import MAGNITUDES, moments_of
from ffgb.core.oracles import WO2
from ffgb.core.schedules import Constant, Power
from ffgb.core.seeds import stream
from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten, Standardize
from ffgb.federation.host import Holding
from ffgb.federation.participants import sample
from ffgb.federation.server import Server
from ffgb.learners.linear import Linear
from ffgb.learners.trees import Tree
from ffgb.protocol.codec import Message, decode, encode
from ffgb.runs.training import federate as run

Part = tuple[np.ndarray, np.ndarray]


def parts(clients: int = 4, seed: int = 0) -> list[Part]:
    """Clients of unequal size."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 3, n)) for n in rng.integers(8, 20, clients)
    ]


FAMILIES = [Linear(Flatten(3), 3, ridge=0.01), Tree(Flatten(3), 3, depth=2)]


def by_formula(
    some: list[Part], family: Linear | Tree, algorithm: FFGB, T: int, m: int, weights: list[float]
) -> Function:
    """Algorithm 1 with whole functions and no messages: every client gets f^t and evaluates it anew."""
    f: Function = family.zero()
    loss = Square(3)
    for t in range(T):
        chosen = sample(0, t, len(some), m)
        total = sum(weights[i] for i in chosen)
        mean: Function = family.zero()
        for i in chosen:
            x, y = some[i]
            z = family.features(x)
            at = OnPoints(1.0, family.zero(), f.evaluate(z))
            rng = stream(0, "client", t, i)
            g, _ = algorithm.client(t, at, y, loss, WO2(family, z), rng)
            mean = mean + (f * g.decay + g.increment) * (weights[i] / total)
        f = mean
    return f


@pytest.mark.parametrize(
    "family", [Linear(Flatten(1), 3, ridge=0.01), Tree(Flatten(1), 3, depth=2)], ids=["closed", "open"]
)
@pytest.mark.parametrize("m", [4, 2])
@pytest.mark.parametrize("by_size", [False, True])
def test_increments_and_caches_equal_whole_functions(family: Linear | Tree, m: int, by_size: bool) -> None:
    # One column and real targets: else splits of trees tie, and the last bit of f decides between them.
    rng = np.random.default_rng(1)
    some: list[Part] = [(x[:, :1], rng.standard_normal((len(x), 3))) for x, _ in parts()]
    algorithm = FFGB(Power(1.0), K=2, mu=0.1)
    state, _ = run(some, family, Square(3), algorithm, 5, participation=m, by_size=by_size)
    weights = [float(len(y)) if by_size else 1.0 for _, y in some]
    expected = by_formula(some, family, algorithm, 5, m, weights)
    x = np.concatenate([x for x, _ in some])
    np.testing.assert_allclose(state.f(x), expected(x), atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=["closed", "open"])
def test_a_sampled_client_pays_for_what_it_missed(family: Linear | Tree) -> None:
    some, K, T, m, N = parts(), 3, 6, 2, 4
    state, lines = run(some, family, CrossEntropy(3), FFGB(Constant(0.5), K), T, participation=m)
    up, down, version = 0, 0, dict.fromkeys(range(N), 0)
    for t in range(T):
        for i in sample(0, t, N, m):
            if isinstance(
                family, ClosedFamily
            ):  # the newest f when it is sampled, its answer, and nothing else: FedAvg's traffic
                up, down = up + 1, down + (version[i] < t)
                version[i] = t
            else:  # everything it missed, and the others' part of this round
                up, down = up + K, down + (t - version[i]) * m * K + (m - 1) * K
                version[i] = t + 1
    assert lines[-1]["models_up"] == pytest.approx(up / N)
    assert lines[-1]["models_down"] == pytest.approx(down / N)
    assert state.delivered == tuple(version.values())


def test_full_participation_costs_what_the_paper_says() -> None:
    some, K = parts(5), 2
    _, lines = run(some, FAMILIES[1], CrossEntropy(3), FFGB(Constant(0.5), K), 3)
    assert [line["models_up"] + line["models_down"] for line in lines] == [5 * K, 2 * 5 * K, 3 * 5 * K]  # NK a round
    _, lines = run(some, FAMILIES[0], CrossEntropy(3), FFGB(Constant(0.5), K), 3)
    assert [line["models_up"] + line["models_down"] for line in lines] == [2, 4, 6]  # FedAvg's traffic
    assert lines[-1]["parameters_up"] == 3 * 4 * 3
    assert lines[-1]["bytes_up"] > 4 * lines[-1]["parameters_up"]


@pytest.mark.parametrize("by_size", [False, True])
def test_the_loss_that_is_reported_is_weighted_as_the_mean_is(by_size: bool) -> None:
    """By size it is the mean over all rows, and otherwise the mean of the clients' means."""
    rng = np.random.default_rng(0)
    some: list[Part] = [
        (rng.standard_normal((n, 1)).astype(np.float32), shift + rng.standard_normal(n))
        for n, shift in ((5, 0.0), (20, 3.0), (45, 9.0))
    ]
    state, lines = run(some, Linear(Flatten(1), 1), Square(), FFGB(Constant(0.3)), 2, by_size=by_size)
    losses = [Square().value(state.f(x), y) for x, y in some]
    expected = np.concatenate(losses).mean() if by_size else np.mean([loss.mean() for loss in losses])
    assert lines[-1]["train_loss"] == pytest.approx(expected, rel=1e-6)


@given(st.integers(0, 100), st.integers(0, 50), st.integers(1, 40), st.integers(1, 40))
def test_sampling_is_without_replacement_and_repeatable(seed: int, t: int, N: int, m: int) -> None:
    chosen = sample(seed, t, N, m)
    assert chosen == sorted(set(chosen)) == sample(seed, t, N, m)
    assert len(chosen) == min(m, N)
    assert set(chosen) <= set(range(N))


def test_sampling_is_uniform() -> None:
    counts = np.bincount([i for t in range(3000) for i in sample(1, t, 10, 3)], minlength=10)
    assert np.abs(counts / 900 - 1).max() < 0.15


def test_moments_are_aggregated_and_targets_scaled_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)) * [1, 10, 100] + 5
    y = 1000.0 + 50.0 * (x[:, 0] - x[:, 1])
    holdings = [Holding(x[:20].astype(np.float32), y[:20]), Holding(x[20:].astype(np.float32), y[20:])]
    with InProcess(holdings) as engine:
        server = Server(engine, [20, 40])
        state = server.start(
            FFGB(Constant(1.0)),
            lambda ask: (Linear(Standardize.by(moments_of(ask, Flatten(3)), Flatten(3)), 1, ridge=1e-9), None),
            Square(),
            scale_target=True,
        )
        features, target = state.job.family.features, state.job.target
        assert isinstance(features, Standardize)
        assert target is not None
        np.testing.assert_allclose(features.mean, x.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(target.mean, y.mean())
        np.testing.assert_allclose(target.scale, y.std())
        # set-up: orders of magnitude and two moments of x and y go up; with the questions centres and bounds come down,
        # and then mean and scale of x and y
        assert state.costs.parameters_up == 2 * (3 + 1) * (len(MAGNITUDES) + 2)
        assert state.costs.parameters_down == 2 * (3 + 1) * (1 + 2 + 2)
        for after, line in server.rounds(state, 40):
            state, last = after, line
    assert last["train_rmse"] < 0.01 * y.std()


def test_memory_does_not_grow_with_rounds_in_a_closed_family() -> None:
    state, _ = run(parts(), FAMILIES[0], CrossEntropy(3), FFGB(Constant(0.5), 2), 12)
    assert state.updates == ()
    assert state.f.terms == 1


@pytest.mark.parametrize("m", [0, 5])
def test_impossible_participation_is_refused(m: int) -> None:
    with pytest.raises(FFGBError, match="choose 1 … 4"):
        run(parts(), FAMILIES[0], CrossEntropy(3), FFGB(Constant(0.5)), 1, participation=m)


def test_a_client_without_points_or_with_too_few_targets_is_refused() -> None:
    for x, y in ((np.zeros((0, 3)), np.zeros(0, np.int64)), (np.zeros((3, 3)), np.zeros(2, np.int64))):
        with pytest.raises(FFGBError, match=r"no points|3 points and 2 targets"):
            run([*parts(2), (x, y)], FAMILIES[0], CrossEntropy(3), FFGB(Constant(0.5)), 1)


def test_a_loss_that_becomes_infinite_ends_the_run() -> None:
    some: list[Part] = [(x, y.astype(float) * 1e200) for x, y in parts()]
    with pytest.raises(FFGBError, match=r"infinite in round \d+; choose a smaller --step-size|diverged"):
        run(some, Linear(Flatten(3), 1), Square(), FFGB(Constant(1e120)), 5)


def test_an_error_names_the_client() -> None:
    some = [*parts(2), (np.zeros((3, 3), np.float32), np.array([0, 1, 7]))]
    with pytest.raises(FFGBError, match="client 2 says: class labels must lie in 0 … 2"):
        run(some, FAMILIES[0], CrossEntropy(3), FFGB(Constant(0.5)), 1)


def test_repeated_messages_change_nothing_and_early_ones_are_answered_with_resync() -> None:
    some = parts(2)
    with InProcess([Holding(x, y) for x, y in some]) as engine:
        server = Server(engine, [len(y) for _, y in some])
        assert decode(engine.exchange(encode(Message("train", 0)), [0])[0]).values == {"version": -1}
        state = server.start(FFGB(Constant(0.5)), lambda ask: (FAMILIES[1], None), CrossEntropy(3))
        states = [s for s, _ in server.rounds(state, 2)]
        update = encode(states[1].updates[1].message())
        first = engine.exchange(update, [0, 1])
        assert first == engine.exchange(update, [0, 1])
        old = encode(states[0].updates[0].message())
        assert decode(engine.exchange(old, [0])[0]).values == {"version": 2}
        late = decode(engine.exchange(encode(Message("train", 5)), [1])[1])
        assert (late.kind, late.values) == ("resync", {"version": 2})


def test_who_was_to_take_part_and_did_not_is_told() -> None:
    server: Any = SimpleNamespace(
        clients=SimpleNamespace(called=["east", "north", "west"]), setup_absent={"the Gram": ["west"]}
    )
    done: Any = SimpleNamespace(answered=[0, 1], S=[0])
    first = Server._absences(server, 0, [2, 0, 1], done)
    assert first == {"absent": ["west"], "absent_from_step": ["north"], "setup_absent": {"the Gram": ["west"]}}
    assert Server._absences(server, 1, [0, 1], done) == {"absent_from_step": ["north"]}
