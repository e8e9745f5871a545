"""The MLP: its gradient, its steps and its values, against finite differences and against torch."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest

from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.mlp import (
    MLP,
    POWER,
    Descent,
    _Descent,
    _load,
    _Net,
    _store,
    _with_ones,
    anneal,
    batches,
    drawn,
    emphasise,
    interval,
    power_at,
    rate_at,
)

SHAPES = [(), (7,), (32, 32), (20, 33, 5)]


def problem(n: int, inputs: int = 19, outputs: int = 3, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, inputs)).astype(np.float32), rng.standard_normal((n, outputs))


def forward(family: MLP, member: Parameters, z: Array) -> Array:
    """The net, written down once more."""
    h = z.astype(np.float64)
    for layer in range(len(family.hidden) + 1):
        h = h @ member[f"{layer}.weight"].T + member[f"{layer}.bias"]
        if layer < len(family.hidden):
            h = np.where(h > 0, h, family.slope * h)
    return h


def gradient_of(family: MLP, member: Parameters, z: Array, phi: Array) -> dict[str, Array]:
    """The gradient of ½ Σ ‖h(x) − φ(x)‖², by parameter: Adam alone would not show its length."""
    net = _Net(family.hidden, family.slope, _with_ones(z), np.ascontiguousarray(phi.T, np.float32))
    _load(net.weights, member, np.arange(z.shape[1]))
    net.differentiate()
    net.parameters[:] = net.gradient
    gradient = {name: np.zeros_like(p) for name, p in member.items()}
    _store(net.weights, gradient, np.arange(z.shape[1]))
    return gradient


def by_torch(family: MLP, z: Array, phi: Array, seed: int) -> dict[str, Array]:
    """The same fit in torch: same start, same batches, `torch.optim.Adam`."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    parameters = {name: torch.tensor(p, requires_grad=True) for name, p in family.initial(rng).items()}
    adam = torch.optim.Adam(parameters.values(), lr=family.learning_rate)
    size = min(len(z), family.batch)
    rows = batches(len(z), size, rng)
    for _ in range(family.steps):
        batch = next(rows) if size < len(z) else slice(None)
        h = torch.tensor(z[batch])
        for layer in range(len(family.hidden) + 1):
            h = torch.nn.functional.linear(h, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
            if layer < len(family.hidden):
                h = torch.nn.functional.leaky_relu(h, family.slope)
        adam.zero_grad()
        ((h - torch.tensor(phi[batch], dtype=torch.float32)) ** 2).sum(1).mean().backward()
        adam.step()
    return {name: p.detach().numpy() for name, p in parameters.items()}


def test_the_papers_net_has_26506_numbers() -> None:
    family = MLP(Flatten(784), 10)
    assert family.size == 26_506
    assert family.spec["0.weight"] == ((32, 784), "float32")
    assert family.spec["2.bias"] == ((10,), "float32")


@pytest.mark.parametrize("hidden", SHAPES)
def test_gradient_by_finite_differences(hidden: tuple[int, ...]) -> None:
    z, phi = problem(11)
    family = MLP(Flatten(19), 3, hidden=hidden, slope=0.2)
    member = family.initial(np.random.default_rng(1))
    gradient = gradient_of(family, member, z, phi)

    def loss(member: Parameters) -> float:
        return float(0.5 * np.sum((forward(family, member, z) - phi) ** 2))

    rng = np.random.default_rng(2)
    exact = {name: p.astype(np.float64) for name, p in member.items()}
    for name, p in exact.items():
        direction, step = rng.standard_normal(p.shape), 1e-6
        up, down = (loss(exact | {name: p + sign * step * direction}) for sign in (1, -1))
        assert np.sum(gradient[name] * direction) == pytest.approx((up - down) / (2 * step), rel=2e-4, abs=1e-4)


@pytest.mark.parametrize("hidden", SHAPES)
@pytest.mark.parametrize("n", [1, 5, 16, 40])
def test_gradient_by_torch(hidden: tuple[int, ...], n: int) -> None:
    torch = pytest.importorskip("torch")
    z, phi = problem(n)
    family = MLP(Flatten(19), 3, hidden=hidden)
    member = family.initial(np.random.default_rng(1))
    gradient = gradient_of(family, member, z, phi)
    tensors = {name: torch.tensor(p, requires_grad=True) for name, p in member.items()}
    h = torch.tensor(z)
    for layer in range(len(hidden) + 1):
        h = torch.nn.functional.linear(h, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"])
        h = torch.nn.functional.leaky_relu(h, family.slope) if layer < len(hidden) else h
    (0.5 * ((h - torch.tensor(phi, dtype=torch.float32)) ** 2).sum()).backward()
    for name, p in tensors.items():
        np.testing.assert_allclose(gradient[name], p.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "hidden", "steps"),
    [(1, (7,), 3), (9, (32, 32), 1), (9, (32, 32), 6), (16, (), 5), (17, (8,), 7), (50, (20, 33, 5), 9)],
)
def test_steps_are_torchs_adam(n: int, hidden: tuple[int, ...], steps: int) -> None:
    z, phi = problem(n)
    family = MLP(Flatten(19), 3, hidden=hidden, steps=steps, batch=16)
    ours = family.least_squares(z)(phi, np.random.default_rng(4))
    theirs = by_torch(family, z, phi, 4)
    assert list(ours) == list(theirs) == list(family.spec)
    for name in ours:
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=2e-6)


def test_large_enough_to_be_cut_into_pieces() -> None:
    # 600 inputs × 128 points × 37 units: both products with the inputs come in groups, with something left over.
    z, phi = problem(150, inputs=600)
    family = MLP(Flatten(600), 3, hidden=(37,), steps=3, batch=100)
    ours, theirs = family.least_squares(z)(phi, np.random.default_rng(4)), by_torch(family, z, phi, 4)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=2e-6)


def test_inputs_that_are_always_zero_keep_their_weights() -> None:
    z, phi = problem(30)
    z[:, [0, 7, 18]] = 0.0
    family = MLP(Flatten(19), 3, steps=5, batch=16)
    ours, theirs = family.least_squares(z)(phi, np.random.default_rng(4)), by_torch(family, z, phi, 4)
    start = family.initial(np.random.default_rng(4))
    np.testing.assert_array_equal(ours["0.weight"][:, [0, 7, 18]], start["0.weight"][:, [0, 7, 18]])
    np.testing.assert_allclose(ours["0.weight"], theirs["0.weight"], rtol=1e-4, atol=2e-6)
    nothing = family.least_squares(np.zeros((4, 19), np.float32))(phi[:4], np.random.default_rng(4))
    np.testing.assert_array_equal(nothing["0.weight"], start["0.weight"])


@pytest.mark.parametrize("hidden", SHAPES)
def test_members_are_the_nets_one_by_one(hidden: tuple[int, ...]) -> None:
    z, _ = problem(23)
    family = MLP(Flatten(19), 3, hidden=hidden)
    nets = [family.initial(np.random.default_rng(k)) for k in range(4)]
    stack = {name: np.stack([net[name] for net in nets]) for name in family.spec}
    values = family.members(stack, z)
    assert values.shape == (4, 23, 3)
    assert values.dtype == np.float32
    for k, net in enumerate(nets):
        np.testing.assert_allclose(values[k], forward(family, net, z), rtol=1e-4, atol=1e-5)
        alone = family.members({name: p[None] for name, p in net.items()}, z)[0]
        np.testing.assert_allclose(values[k], alone, rtol=1e-5, atol=1e-6)


def test_members_by_torch() -> None:
    torch = pytest.importorskip("torch")
    z, _ = problem(23)
    family = MLP(Flatten(19), 3, hidden=(8, 5))
    member = family.initial(np.random.default_rng(0))
    relu = torch.nn.LeakyReLU(family.slope)
    linear = [torch.nn.Linear(i, o) for i, o in itertools.pairwise((19, 8, 5, 3))]
    net = torch.nn.Sequential(linear[0], relu, linear[1], relu, linear[2])
    for layer, module in enumerate(linear):
        module.load_state_dict({k: torch.tensor(member[f"{layer}.{k}"]) for k in ("weight", "bias")})
    values = family.members({name: p[None] for name, p in member.items()}, z)[0]
    np.testing.assert_allclose(values, net(torch.tensor(z)).detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 50])
def test_the_fit_is_a_function_of_points_values_and_randomness(n: int) -> None:
    z, phi = problem(n)
    family = MLP(Flatten(19), 3, steps=12, batch=16)
    fit = family.least_squares(z)
    first = fit(phi, np.random.default_rng(5))
    fit(2.0 * phi, np.random.default_rng(6))
    again = fit(phi, np.random.default_rng(5))
    elsewhere = family.least_squares(z.copy())(phi.copy(), np.random.default_rng(5))
    other = fit(phi, np.random.default_rng(6))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        np.testing.assert_array_equal(first[name], elsewhere[name])
        assert not np.array_equal(first[name], other[name])


def test_it_learns() -> None:
    z, _ = problem(400)
    phi = np.stack([np.abs(z[:, 0]), z[:, 1] * z[:, 2], -z[:, 3]], axis=1).astype(np.float64)
    family = MLP(Flatten(19), 3, steps=1500)
    member = family.least_squares(z)(phi, np.random.default_rng(0))
    h = family.members({name: p[None] for name, p in member.items()}, z)[0]
    assert np.mean((h - phi) ** 2) < 0.02 * np.mean(phi**2)


def largest_error(family: MLP, member: Parameters, z: Array, phi: Array) -> float:
    return float(np.abs(family.members({name: p[None] for name, p in member.items()}, z)[0] - phi).max())


@pytest.mark.parametrize(("n", "batch", "steps"), [(200, 200, 200), (300, 64, 150), (300, 64, 600)])
def test_minimax_has_smaller_largest_errors_in_as_many_steps(n: int, batch: int, steps: int) -> None:
    for seed in range(3):
        z, phi = problem(n, seed=seed)
        family = MLP(Flatten(19), 3, steps=steps, batch=batch)
        plain, member = (fit(z)(phi, np.random.default_rng(seed)) for fit in (family.least_squares, family.minimax))
        assert largest_error(family, member, z, phi) < largest_error(family, plain, z, phi)


@final
class Wandering(Descent):
    """A fit that goes through given errors."""

    interval = 4

    def __init__(self, errors: list[float]) -> None:
        self.parameters, self.errors, self.seen = np.zeros(1), errors, list[tuple[float, float]]()

    def step(self, power: float = 2.0, rate: float = 1.0) -> None:
        self.seen.append((power, rate))
        self.parameters += 1.0

    def look(self) -> float:
        return self.errors[int(self.parameters[0])]


def test_the_best_of_what_was_looked_at_is_kept() -> None:
    errors = [0.0] * 6 + [5.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, np.nan, 0.0, 0.0, 0.0, 4.0, 0.0, 6.0]
    walk = Wandering(errors)  # looked at before steps 6, 10, 14, 18 of 20, and after the last
    anneal(walk, 20)
    assert walk.parameters[0] == 10
    powers, rates = (list(column) for column in zip(*walk.seen, strict=True))
    assert powers[:7] == [2.0] * 7
    assert powers == sorted(powers)
    assert 0.9 * POWER < powers[-1] < POWER
    assert rates[:11] == [1.0] * 11
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.1 < rates[-1] < 0.2
    lost = Wandering([np.nan] * 21)
    anneal(lost, 20)
    assert lost.parameters[0] == 20


def test_minimax_returns_the_best_of_what_it_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    z, phi = problem(200)
    family = MLP(Flatten(19), 3, steps=120, batch=32, learning_rate=0.1)  # too fast: the last is not the best
    looked: list[float] = []
    look = _Descent.look

    def noted(self: _Descent) -> float:
        looked.append(look(self))
        return looked[-1]

    monkeypatch.setattr(_Descent, "look", noted)
    member = family.minimax(z)(phi, np.random.default_rng(0))
    assert len(looked) == 4
    assert largest_error(family, member, z, phi) == pytest.approx(min(looked), rel=1e-4)


@pytest.mark.parametrize("n", [1, 16, 50])
def test_minimax_is_a_function_of_points_values_and_randomness(n: int) -> None:
    z, phi = problem(n)
    z[:, 3] = 0.0
    family = MLP(Flatten(19), 3, steps=40, batch=16)
    fit = family.minimax(z)
    first = fit(phi, np.random.default_rng(5))
    fit(2.0 * phi, np.random.default_rng(6))
    again = family.minimax(z.copy())(phi.copy(), np.random.default_rng(5))
    start = family.initial(np.random.default_rng(5))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    np.testing.assert_array_equal(first["0.weight"][:, 3], start["0.weight"][:, 3])


def test_minimax_at_the_edge() -> None:
    z, phi = problem(20)
    family = MLP(Flatten(19), 3, steps=0)
    start = family.initial(np.random.default_rng(0))
    np.testing.assert_array_equal(family.minimax(z)(phi, np.random.default_rng(0))["0.weight"], start["0.weight"])
    for wrong in (np.nan, 1e200, 0.0):
        for batch in (8, 128):
            replace(family, steps=5, batch=batch).minimax(z)(np.full_like(phi, wrong), np.random.default_rng(0))


def test_emphasis_is_the_gradient_of_a_power_but_for_its_norm() -> None:
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((3, 20)).astype(np.float32)
    for power in (2.0, 3.0, 8.0):
        expected = np.sign(errors) * np.abs(errors.astype(np.float64)) ** (power - 1)
        ours = errors.copy()
        emphasise(ours, power)
        np.testing.assert_allclose(ours, expected * np.linalg.norm(errors) / np.linalg.norm(expected), rtol=1e-4)
    emphasise(nothing := np.zeros(4, np.float32), 8.0)
    assert not nothing.any()


def test_the_power_grows_and_the_rate_falls() -> None:
    """Least squares for 30 % of the steps, then up to the 8th power; in the second half down to a tenth of the rate."""
    assert [power_at(step, 100) for step in (0, 15, 30)] == [2.0, 2.0, 2.0]
    assert power_at(65, 100) == pytest.approx(4.0)  # halfway between 2 and 8, by factors
    assert power_at(100, 100) == pytest.approx(8.0)
    assert [rate_at(step, 200) for step in (0, 50, 100)] == [1.0, 1.0, 1.0]
    assert [rate_at(step, 200) for step in (150, 200)] == pytest.approx([0.55, 0.1])


def test_looks_are_two_epochs_apart_and_never_close() -> None:
    assert [interval(n, 128) for n in (10, 2048, 2049, 6400, 6401)] == [32, 32, 33, 100, 101]


def test_rows_are_drawn_by_their_shares() -> None:
    shares = np.array([0.0, 1.0, 2.0, 5.0])
    rows = list(drawn(shares, 16, 5, np.random.default_rng(0)))
    assert [len(r) for r in rows] == [16] * 5
    np.testing.assert_allclose(np.bincount(np.concatenate(rows), minlength=4), 10 * shares, atol=1)
    for without in (np.zeros(4), np.full(4, np.nan), np.full(4, np.inf)):
        every = np.concatenate(list(drawn(without, 4, 3, np.random.default_rng(0))))
        assert np.bincount(every, minlength=4).tolist() == [3] * 4
    assert interval(1_000, 128) == 32
    assert interval(12_800, 128) == 200


def test_the_start_is_uniform_as_in_torch() -> None:
    member = MLP(Flatten(400), 3).initial(np.random.default_rng(0))
    for name in ("0.weight", "0.bias"):
        assert np.abs(member[name]).max() <= 1 / 20
    assert np.abs(member["0.weight"]).max() > 0.049
    assert member["0.weight"].std() == pytest.approx(1 / 20 / np.sqrt(3), rel=0.02)


def test_batches_are_epochs_end_to_end() -> None:
    rows = batches(10, 4, np.random.default_rng(0))
    order = np.concatenate([next(rows) for _ in range(5)])
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))


def test_what_diverges_is_returned_without_a_warning() -> None:
    z, phi = problem(20)
    family = MLP(Flatten(19), 3, steps=3, batch=8)
    phi[3, 1] = np.nan
    member = replace(family, batch=128).least_squares(z)(phi, np.random.default_rng(0))
    assert not np.isfinite(member["0.weight"]).all()
    family.least_squares(z)(np.full_like(phi, 1e200), np.random.default_rng(0))


def test_no_steps_and_pickling() -> None:
    z, phi = problem(20)
    family = MLP(Flatten(19), 3, steps=0)
    start = family.initial(np.random.default_rng(0))
    member = pickle.loads(pickle.dumps(family)).least_squares(z)(phi, np.random.default_rng(0))
    for name in start:
        np.testing.assert_array_equal(member[name], start[name])


def test_settings_that_make_no_sense() -> None:
    right: dict[str, Any] = {"features": Flatten(3), "outputs": 1}
    for least, most in (({"slope": 0.0}, {"slope": 1.0}), ({"batch": 1}, {"steps": 0})):
        MLP(Flatten(3), 2, **least)
        MLP(Flatten(3), 2, **most)
    for wrong in ({"slope": 2.0}, {"slope": -0.1}, {"batch": 0}, {"hidden": (3, 0)}, {"outputs": 0}, {"steps": -1}):
        with pytest.raises(FFGBError):
            MLP(**(right | wrong))


def test_idle_inputs_are_packed_moved_and_unpacked() -> None:
    """An input that is 0 at all points has no gradient, but a method may move its weights (SCAFFOLD does)."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((12, 5)).astype(np.float32)
    z[:, [1, 4]] = 0.0
    family = MLP(Flatten(5), 3, hidden=(4, 4))
    member = family.initial(rng)
    walk = family.walk(z, 6)
    vector = walk.pack(member)
    for name, array in walk.unpack(vector).items():
        np.testing.assert_array_equal(array, member[name])
    walk.vector[:] = vector
    walk.differentiate(np.arange(6), lambda values, rows: values - 1.0)
    gradient = walk.unpack(walk.gradient)
    assert not gradient["0.weight"][:, [1, 4]].any()
    assert gradient["0.weight"][:, [0, 2, 3]].all()
    full = gradient_of(family, member, z[:6], np.ones((6, 3)))
    for name, array in full.items():
        np.testing.assert_allclose(gradient[name], array / 6, rtol=1e-4, atol=1e-6)
    moved = walk.unpack(vector + np.float32(1.0))
    np.testing.assert_allclose(moved["0.weight"], member["0.weight"] + 1.0, rtol=1e-6)


def test_a_walk_has_all_parameters_also_of_inputs_that_are_always_0() -> None:
    z = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    z[:, [1, 3]] = 0.0
    family = MLP(Flatten(5), 2, (4, 3))
    walk = family.walk(z, 3)
    assert len(walk.vector) == len(walk.gradient)
    member = family.initial(np.random.default_rng(1))
    again = walk.unpack(walk.pack(member))
    for name, array in member.items():
        np.testing.assert_array_equal(again[name], array)
