"""FedAvg, FedProx, SCAFFOLD and Mime: by hand, against the pseudocode written down once more, and as plain SGD."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.fedprox import FedProx
from ffgb.algorithms.mime import Mime
from ffgb.algorithms.parametric import Copies, Parametric, part
from ffgb.algorithms.scaffold import Scaffold
from ffgb.core.functions import ClosedSum, Family
from ffgb.core.losses import CrossEntropy, Logistic, Square
from ffgb.core.types import Array
from ffgb.engines.local import LocalEngine
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.participants import sample
from ffgb.federation.server import Server
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.runs.training import federate

Clients = list[tuple[Array, Array]]
LINE = Linear(Flatten(1), 1)


def clients(count: int = 3, seed: int = 0, each: int = 8, inputs: int = 1) -> Clients:
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(count):
        x = (rng.standard_normal((each, inputs)) + i).astype(np.float32)
        parts.append((x, x.sum(axis=1) * (1.0 + i) + rng.standard_normal(each)))
    return parts


def weights(state: Any, name: str = "x") -> Array:
    return part(state.f, name)["weight"][:, 0]


# By hand: f(x) = w x + b, half the squared error, full batches.


def test_fedavg_by_hand() -> None:
    # client 0: x = 1, y = 2; client 1: x = 2, y = 2.  η = 1/10, K = 2, from w = b = 0.
    # client 0: gradient (−2, −2) → (0.2, 0.2); then f = 0.4, error −1.6 → (0.36, 0.36)
    # client 1: error −2, gradient (−4, −2) → (0.4, 0.2); f = 1, error −1, gradient (−2, −1) → (0.6, 0.3)
    parts = [(np.array([[1.0]], np.float32), np.array([2.0])), (np.array([[2.0]], np.float32), np.array([2.0]))]
    state, (line,) = federate(parts, LINE, Square(), FedAvg(0.1, K=2), 1)
    np.testing.assert_allclose(weights(state), [(0.36 + 0.6) / 2, (0.36 + 0.3) / 2], rtol=1e-6)
    assert (line["models_up"], line["models_down"], line["gamma_min"]) == (1.0, 1.0, None)
    # with momentum 1/2 the second step adds half of the first
    state, _ = federate(parts, LINE, Square(), FedAvg(0.1, K=2, momentum=0.5), 1)
    np.testing.assert_allclose(weights(state), [(0.36 + 0.1 + 0.6 + 0.2) / 2, (0.36 + 0.1 + 0.3 + 0.1) / 2], rtol=1e-6)
    # a pull of 1 adds (y − x) = (0.2, 0.2) and (0.4, 0.2) to the second gradients
    state, _ = federate(parts, LINE, Square(), FedProx(0.1, K=2, prox=1.0), 1)
    np.testing.assert_allclose(weights(state), [(0.34 + 0.56) / 2, (0.34 + 0.28) / 2], rtol=1e-6)


def test_scaffold_by_hand() -> None:
    # the same clients, one local step a round: c_i is the gradient where the round began, c their mean
    parts = [(np.array([[1.0]], np.float32), np.array([2.0])), (np.array([[2.0]], np.float32), np.array([2.0]))]
    state, _ = federate(parts, LINE, Square(), Scaffold(0.1, K=1), 1)
    np.testing.assert_allclose(weights(state), [0.3, 0.2], rtol=1e-6)
    np.testing.assert_allclose(weights(state, "c"), [-3.0, -2.0], rtol=1e-6)
    np.testing.assert_allclose(state.memory[0][1]["weight"][:, 0], [-2.0, -2.0], rtol=1e-6)
    np.testing.assert_allclose(state.memory[1][1]["weight"][:, 0], [-4.0, -2.0], rtol=1e-6)
    # round 2, from (0.3, 0.2).  Client 0: f = 0.5, gradient (−1.5, −1.5), minus c_0, plus c: (−2.5, −1.5).
    # Client 1: f = 0.8, error −1.2, gradient (−2.4, −1.2), minus c_1, plus c: (−1.4, −1.2).
    state, (_, line) = federate(parts, LINE, Square(), Scaffold(0.1, K=1), 2)
    np.testing.assert_allclose(weights(state), [0.3 + 0.195, 0.2 + 0.135], rtol=1e-5)
    np.testing.assert_allclose(weights(state, "c"), [-1.95, -1.35], rtol=1e-5)
    assert (line["models_up"], line["models_down"]) == (4.0, 4.0)  # twice FedAvg's


def test_mime_by_hand() -> None:
    # the same clients; full batches make the correction exact: y ← y − η((1−β)(g_i(y) − g_i(x) + c) + βs)
    parts = [(np.array([[1.0]], np.float32), np.array([2.0])), (np.array([[2.0]], np.float32), np.array([2.0]))]
    algorithm = Mime(0.1, K=2, momentum=0.5)
    state, lines = federate(parts, LINE, Square(), algorithm, 2)
    c = np.array([-3.0, -2.0])
    np.testing.assert_allclose(weights(state, "c"), c)
    # both clients: first step −0.1 · c/2 = (0.15, 0.1).  Client 0: f = 0.25, gradient changes by 0.25 (1, 1);
    # second step −0.05 (−2.75, −1.75).  Client 1: f = 0.4, gradient changes by 0.4 (2, 1); −0.05 (−2.2, −1.6).
    np.testing.assert_allclose(weights(state), [0.15 + (0.1375 + 0.11) / 2, 0.1 + (0.0875 + 0.08) / 2], rtol=1e-5)
    np.testing.assert_allclose(weights(state, "s"), c / 2, rtol=1e-6)
    assert [(line["models_up"], line["models_down"]) for line in lines] == [(1.0, 1.0), (2.0, 2.0)]


# The pseudocode once more, in float64, on a linear model with full batches.


def gradient(w: Array, x: Array, y: Array) -> Array:
    z = np.c_[x, np.ones(len(x))].astype(np.float64)
    mean: Array = z.T @ (z @ w - y) / len(y)
    return mean


Chosen = Callable[[int], list[int]]
"""Round to clients."""


def everyone(parts: Clients) -> Chosen:
    return lambda t: list(range(len(parts)))


def fedavg(parts: Clients, T: int, K: int, eta: float, prox: float = 0.0) -> Array:
    w = np.zeros(parts[0][0].shape[1] + 1)
    for _ in range(T):
        ends = []
        for x, y in parts:
            v = w.copy()
            for _ in range(K):
                v = v - eta * (gradient(v, x, y) + prox * (v - w))
            ends.append(v)
        w = np.average(ends, axis=0, weights=[len(y) for _, y in parts])
    return w


def scaffold(parts: Clients, T: int, K: int, eta: float, chosen: Chosen) -> tuple[Array, Array]:
    w = np.zeros(parts[0][0].shape[1] + 1)
    c, own, n = np.zeros_like(w), [np.zeros_like(w) for _ in parts], [len(y) for _, y in parts]
    for t in range(T):
        moves = []
        for i in chosen(t):
            v = w.copy()
            for _ in range(K):
                v = v - eta * (gradient(v, *parts[i]) - own[i] + c)
            own[i] = own[i] - c + (w - v) / (K * eta)
            moves.append(v - w)
        w = w + np.average(moves, axis=0, weights=[n[i] for i in chosen(t)])
        c = np.average(own, axis=0, weights=n)  # what line 17 keeps c at, where clients count alike
    return w, c


def mime(parts: Clients, T: int, K: int, eta: float, beta: float, chosen: Chosen) -> Array:
    w = np.zeros(parts[0][0].shape[1] + 1)
    s, n = np.zeros_like(w), [len(y) for _, y in parts]
    for t in range(T):
        S = chosen(t)
        c = np.average([gradient(w, *parts[i]) for i in S], axis=0, weights=[n[i] for i in S])
        ends = []
        for i in S:
            v = w.copy()
            for _ in range(K):
                g = gradient(v, *parts[i]) - gradient(w, *parts[i]) + c
                v = v - eta * ((1 - beta) * g + beta * s)
            ends.append(v)
        w, s = np.average(ends, axis=0, weights=[n[i] for i in S]), (1 - beta) * c + beta * s
    return w


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (3, 8, 1, 40)], ids=["alike", "by size"])
def test_many_rounds_are_those_of_the_pseudocode(sizes: tuple[int, ...]) -> None:
    family, T, K, eta = Linear(Flatten(3), 1), 6, 5, 0.02
    parts = [(x[:n], y[:n]) for n, (x, y) in zip(sizes, clients(4, inputs=3, each=40), strict=True)]
    for algorithm, expected, rounds in (
        (FedAvg(eta, K), fedavg(parts, T, K, eta), T),
        (FedProx(eta, K, prox=0.7), fedavg(parts, T, K, eta, 0.7), T),
        (Scaffold(eta, K), scaffold(parts, T, K, eta, everyone(parts))[0], T),
        (Mime(eta, K, momentum=0.6), mime(parts, T, K, eta, 0.6, everyone(parts)), 2 * T),
    ):
        state, _ = federate(parts, family, Square(), algorithm, rounds, by_size=True)
        np.testing.assert_allclose(weights(state), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8, 8), (3, 8, 1, 40, 5)], ids=["alike", "by size"])
def test_sampled_clients_are_those_of_the_pseudocode(sizes: tuple[int, ...]) -> None:
    """SCAFFOLD's c stays the mean of all clients' c_i; Mime's two exchanges are with the same clients."""
    family, T, K, eta = Linear(Flatten(2), 1), 7, 3, 0.02
    parts = [(x[:n], y[:n]) for n, (x, y) in zip(sizes, clients(5, inputs=2, each=40), strict=True)]

    def chosen(t: int) -> list[int]:
        return sample(0, t, 5, 2)

    how: dict[str, Any] = {"participation": 2, "by_size": True}
    state, lines = federate(parts, family, Square(), Scaffold(eta, K), T, **how)
    w, c = scaffold(parts, T, K, eta, chosen)
    np.testing.assert_allclose(weights(state), w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weights(state, "c"), c, rtol=1e-3, atol=1e-4)
    assert lines[-1]["models_up"] == pytest.approx(2 * T * 2 / 5)
    state, lines = federate(parts, family, Square(), Mime(eta, K, momentum=0.6), 2 * T, **how)
    np.testing.assert_allclose(weights(state), mime(parts, T, K, eta, 0.6, chosen), rtol=1e-3, atol=1e-4)
    assert lines[-1]["models_up"] == pytest.approx(2 * T * 2 / 5)


@pytest.mark.parametrize("batch", [10, 4, 3, 1])
def test_mimes_full_gradient_is_the_mean_over_all_points_whatever_the_batch(batch: int) -> None:
    """A last batch that is smaller than the others counts for as many points as it has."""
    parts = clients(2, inputs=2, each=10)
    state, _ = federate(parts, Linear(Flatten(2), 1), Square(), Mime(0.1, batch=batch), 1)
    expected = np.mean([gradient(np.zeros(3), x, y) for x, y in parts], axis=0)
    np.testing.assert_allclose(weights(state, "c"), expected, rtol=1e-5)


def test_fully_corrected_methods_find_the_minimum_that_fedavg_misses() -> None:
    parts, family = clients(3, inputs=2, each=20), Linear(Flatten(2), 1)
    z = np.concatenate([np.c_[x, np.ones(len(x))] for x, _ in parts])
    best = np.linalg.lstsq(z, np.concatenate([y for _, y in parts]), rcond=None)[0]
    errors = {}
    for algorithm in (FedAvg(0.05, 10), Scaffold(0.05, 10), Mime(0.05, 10, momentum=0.0)):
        state, _ = federate(parts, family, Square(), algorithm, 400 * algorithm.phases)
        errors[type(algorithm)] = np.abs(weights(state) - best).max()
    for corrected in (Scaffold, Mime):
        assert errors[corrected] < 2e-3
        assert errors[FedAvg] > 20 * errors[corrected]


def families() -> list[Any]:
    return [
        pytest.param(Linear(Flatten(6), 3), id="linear"),
        pytest.param(MLP(Flatten(6), 3, hidden=(8, 5)), id="mlp"),
    ]


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(0.3, batch=50), FedProx(0.3, batch=50), Scaffold(0.3, batch=50), Mime(0.3, batch=50, momentum=0.0)],
    ids=lambda a: type(a).__name__,
)
def test_one_client_with_one_step_is_plain_gradient_descent_to_the_bit(
    family: Linear | MLP, algorithm: Parametric
) -> None:
    rng = np.random.default_rng(0)
    x, y, loss = rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 3, 20), CrossEntropy(3)
    rounds = 5 * algorithm.phases
    state, _ = federate([(x, y)], family, loss, algorithm, rounds)
    walk = family.walk(x, 20)
    start = algorithm.start(Copies(family, algorithm.arrays), 0)
    walk.vector[:] = walk.pack(part(start, "x"))
    order = np.arange(20)
    for t in range(5):
        rows = order if isinstance(algorithm, Mime) else None
        if rows is None:  # the batch is all points, in the order in which they are drawn
            from ffgb.core.seeds import stream
            from ffgb.learners.mlp import batches

            rows = next(batches(20, 20, stream(0, "client", t, 0)))
        walk.differentiate(rows, lambda values, rows: loss.gradient(values, y[rows]))
        walk.vector -= np.float32(0.3) * walk.gradient
    for name, array in walk.unpack(walk.vector).items():
        np.testing.assert_array_equal(part(state.f, "x")[name].astype(np.float32), array)


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_gradients_by_parameters_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    y, loss = rng.integers(0, 3, 30), CrossEntropy(3)
    family: Family
    if name == "cnn":
        family, z = Net((1, 16, 16), 3), rng.standard_normal((30, 256)).astype(np.float32)
    else:
        z = rng.standard_normal((30, 6)).astype(np.float32)
        family = MLP(Flatten(6), 3, hidden=(8, 5)) if name == "mlp" else Linear(Flatten(6), 3)
    start = {n: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for n, (shape, _) in family.spec.items()}
    walk = family.walk(z, 16)
    walk.vector[:] = walk.pack(start)
    for rows in (rng.permutation(30)[:16], np.arange(30), np.array([4])):
        walk.differentiate(rows, lambda values, rows: loss.gradient(values, y[rows]))
        p = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
        x = torch.tensor(z[rows])
        if name == "linear":
            h = x @ p["weight"][:-1] + p["weight"][-1]
        elif name == "mlp":
            h = x
            for layer in range(3):
                h = h @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]
                h = torch.nn.functional.leaky_relu(h, 0.01) if layer < 2 else h
        else:
            image = x.reshape(-1, 1, 16, 16)
            h = torch.relu(torch.nn.functional.max_pool2d(_conv(torch, image, p, 1), 2))
            h = torch.relu(torch.nn.functional.max_pool2d(_conv(torch, h, p, 2), 2)).flatten(1)
            h = torch.relu(h @ p["fc1.weight"].T + p["fc1.bias"])
            h = torch.relu(h @ p["fc2.weight"].T + p["fc2.bias"]) @ p["fc3.weight"].T + p["fc3.bias"]
        torch.nn.functional.cross_entropy(h, torch.tensor(y[rows])).backward()
        for n, g in walk.unpack(walk.gradient).items():
            np.testing.assert_allclose(g, p[n].grad.numpy(), rtol=1e-3, atol=1e-6)


def _conv(torch: Any, x: Any, p: Any, layer: int) -> Any:
    return torch.nn.functional.conv2d(x, p[f"conv{layer}.weight"], p[f"conv{layer}.bias"])


@pytest.mark.parametrize(
    "algorithm", [FedAvg(0.1, 3, 4), Scaffold(0.1, 3, 4), Mime(0.1, 3, 4)], ids=lambda a: type(a).__name__
)
def test_workers_that_die_are_restored_with_what_they_kept(algorithm: Parametric) -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal((9, 4)).astype(np.float32), rng.integers(0, 2, 9)) for _ in range(4)]
    family, loss = MLP(Flatten(4), 1, hidden=(5,)), Logistic()
    whole, _ = federate(parts, family, loss, algorithm, 6)
    with LocalEngine([Holding(x, y) for x, y in parts], 2) as engine:
        server = Server(engine, [9] * 4)
        state = server.start(algorithm, lambda ask: (family, None), loss)
        for t, (after, _) in enumerate(server.rounds(state, 6)):
            state = after
            if t in (1, 2):
                os.kill(engine.pids[t % 2], signal.SIGKILL)
    assert isinstance(state.f, ClosedSum)
    assert isinstance(whole.f, ClosedSum)
    for name, array in whole.f.parameters.items():
        np.testing.assert_array_equal(state.f.parameters[name], array)


def test_what_cannot_be_moved_by_gradients_is_refused() -> None:
    with pytest.raises(FFGBError, match="no gradient by its parameters"):
        federate(clients(1), Tree(Flatten(1), 1, depth=2), Square(), FedAvg(0.1), 1)
    for bad in ({"step": 0.0}, {"step": 0.1, "K": 0}, {"step": 0.1, "batch": 0.0}):
        with pytest.raises(FFGBError):
            FedAvg(**bad)  # type: ignore[arg-type]
    with pytest.raises(FFGBError, match="pull"):
        FedProx(0.1, prox=-1.0)
    with pytest.raises(FFGBError, match="momentum"):
        Mime(0.1, momentum=1.0)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, Scaffold, Mime])
@pytest.mark.parametrize("wrong", [{"step": 0.0}, {"step": np.inf}, {"K": 0}, {"epochs": -1}, {"batch": 0.0}])
def test_settings_that_cannot_be_are_refused_by_every_method(kind: type[Parametric], wrong: dict[str, Any]) -> None:
    kind(step=0.1, K=1)
    with pytest.raises(FFGBError):
        kind(**{"step": 0.1, "K": 1, **wrong})


def test_batches_can_be_shares_and_rounds_epochs() -> None:
    parts = clients(2, each=40)
    seen = []
    for algorithm in (FedAvg(0.01, K=5, batch=0.2), FedAvg(0.01, epochs=2, batch=16)):
        oracle = algorithm.tools(Copies(LINE, ("x",)), _points(parts[0]), None, np.random.default_rng(0))
        from ffgb.algorithms.parametric import Local

        here = Local(oracle, parts[0][1], Square(), np.random.default_rng(0))
        seen.append((oracle.size, algorithm.steps(here)))
    assert seen == [(8, 5), (16, 6)]


def _points(client: tuple[Array, Array]) -> Any:
    from ffgb.core.points import Points

    return Points(0, *client)


@pytest.mark.parametrize(("batch", "expected"), [(None, 1.0), (0.2, 0.2), (32, 32.0)])
def test_settings_of_a_run_are_those_of_the_method(batch: Any, expected: float) -> None:
    config: Any = SimpleNamespace(step_size=0.1, local_steps=3, batch=batch, local_epochs=2, momentum=0.5, prox=0.3)
    common: dict[str, Any] = {"step": 0.1, "K": 3, "batch": expected, "epochs": 2}
    assert FedAvg.configured(config) == FedAvg(**common, momentum=0.5)
    assert FedProx.configured(config) == FedProx(**common, momentum=0.5, prox=0.3)
    assert Scaffold.configured(config) == Scaffold(**common)
