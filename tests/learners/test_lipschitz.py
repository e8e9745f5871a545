"""Lipschitz nets: both gradients against torch, jets against differences, and the bound wherever one looks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.lipschitz import Extension, Pairs
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.lipschitz import LipschitzMLP, _Net, _shortened, _size, _Sobolev, _straighten

SHAPES = [(), (6,), (16, 8), (8, 12, 6)]


def problem(n: int = 60, d: int = 4, outputs: int = 1, L: float = 1.0, seed: int = 0) -> tuple[Array, Array, Array]:
    """Points, samples, and the jet of a Lipschitz function."""
    rng = np.random.default_rng(seed)
    points, samples = rng.standard_normal((n, d)), rng.standard_normal((n, d))
    labels = np.sin(points[:, :1] + np.arange(outputs)) + 0.3 * rng.standard_normal((n, outputs))
    u = Extension(points, labels, L, "middle")
    return points, samples, np.concatenate([u(points), u.gradient(samples).reshape(-1, outputs)])


def random_member(family: LipschitzMLP, seed: int, spread: float = 1.0) -> Parameters:
    rng = np.random.default_rng(seed)
    return {name: (spread * rng.standard_normal(shape)).astype(np.float32) for name, (shape, _) in family.spec.items()}


def values(family: LipschitzMLP, member: Parameters, z: Array) -> Array:
    found: Array = family.members({name: p[None] for name, p in member.items()}, z.astype(np.float32))[0]
    return found


def forward(member: dict[str, Any], x: Any) -> Any:
    """The net in torch, written down once more; points are rows."""
    import torch

    for layer in range(len(member) // 2):
        if layer:
            upper, lower = x.chunk(2, dim=1)
            x = torch.cat((torch.maximum(upper, lower), torch.minimum(upper, lower)), dim=1)
        x = torch.nn.functional.linear(x, member[f"{layer}.weight"], member[f"{layer}.bias"])
    return x


@pytest.mark.parametrize("hidden", SHAPES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_of_values_and_derivatives_by_torch(hidden: tuple[int, ...], outputs: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    family = LipschitzMLP(Flatten(5), outputs, hidden)
    member = random_member(family, 0, 0.5)
    x, s = (rng.standard_normal((n, 5)).astype(np.float32) for n in (20, 11))
    y, slopes = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, outputs), (5, 11, outputs)))

    net = _Net(family._layers)
    net.load(member)
    trace = net.run(x)
    net.add_gradient_of_values(trace, trace.values - y.T)
    trace = net.run(s)
    below, derivatives = net.slopes(trace)
    net.add_gradient_of_slopes(trace, below, derivatives - slopes)

    tensors = {name: torch.tensor(p, dtype=torch.float64, requires_grad=True) for name, p in member.items()}
    at = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    h = forward(tensors, at)
    theirs = torch.stack([torch.autograd.grad(h[:, j].sum(), at, create_graph=True)[0] for j in range(outputs)], 2)
    error = forward(tensors, torch.tensor(x, dtype=torch.float64)) - torch.tensor(y)
    loss = 0.5 * (error**2).sum() + 0.5 * ((theirs - torch.tensor(slopes).permute(1, 0, 2)) ** 2).sum()
    loss.backward()

    np.testing.assert_allclose(derivatives.transpose(1, 0, 2), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
    ours = _Net(family._layers)
    ours.parameters[:] = net.gradient
    for layer in range(len(hidden) + 1):
        for part, gradient in (("weight", ours.weights[layer]), ("bias", ours.biases[layer])):
            expected = tensors[f"{layer}.{part}"].grad.numpy()
            np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("hidden", SHAPES)
def test_values_by_torch_one_by_one_and_stacked(hidden: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    family = LipschitzMLP(Flatten(5), 2, hidden)
    nets = [random_member(family, seed) for seed in range(4)]
    z = np.random.default_rng(0).standard_normal((23, 5)).astype(np.float32)
    stacked = family.members({name: np.stack([net[name] for net in nets]) for name in family.spec}, z)
    assert stacked.shape == (4, 23, 2)
    assert stacked.dtype == np.float32
    for net, value in zip(nets, stacked, strict=True):
        theirs = forward({name: torch.tensor(p) for name, p in net.items()}, torch.tensor(z)).numpy()
        np.testing.assert_allclose(value, theirs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(value, values(family, net, z), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", SHAPES)
@pytest.mark.parametrize("outputs", [1, 2])
def test_jets_by_finite_differences(hidden: tuple[int, ...], outputs: int) -> None:
    family = LipschitzMLP(Flatten(3), outputs, hidden)
    member = family.initial(np.random.default_rng(0))
    rng = np.random.default_rng(1)
    points, samples, step = rng.standard_normal((7, 3)), rng.standard_normal((200, 3)), 1e-3
    jet = family.jet(member, points, samples)
    assert jet.shape == (7 + 200 * 3, outputs)
    np.testing.assert_array_equal(jet[:7], values(family, member, points))
    slopes = jet[7:].reshape(200, 3, outputs)
    wrong = 0
    for axis in range(3):
        move = step * np.eye(3)[axis]
        change = (values(family, member, samples + move) - values(family, member, samples - move)) / (2 * step)
        wrong += int((np.abs(change - slopes[:, axis]).max(axis=1) > 1e-3).sum())
    assert wrong < 20  # of 600: those with a kink nearby
    assert family.jet(member, points, samples[:0]).shape == (7, outputs)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    hidden=st.lists(st.integers(1, 8).map(lambda k: 2 * k), max_size=3).map(tuple),
    outputs=st.integers(1, 3),
    spread=st.floats(0.05, 3.0),
    near=st.floats(1e-2, 10.0),
)
def test_no_pair_is_steeper_than_the_bound(
    seed: int, hidden: tuple[int, ...], outputs: int, spread: float, near: float
) -> None:
    family = LipschitzMLP(Flatten(4), outputs, hidden)
    member, rng = random_member(family, seed, spread), np.random.default_rng(seed)
    a = rng.standard_normal((300, 4)).astype(np.float32)
    b = (a + near * rng.standard_normal((300, 4))).astype(np.float32)
    bound = family.lipschitz(member)
    ha, hb = values(family, member, a), values(family, member, b)
    distance = np.linalg.norm(a.astype(np.float64) - b, axis=1)
    rounding = 1e-5 * (np.abs(ha).max() + np.abs(hb).max() + bound)
    assert (np.linalg.norm(ha - hb, axis=1) <= bound * distance + rounding).all()
    slopes = family.jet(member, a[:0], a).reshape(300, 4, outputs)
    assert np.linalg.norm(slopes, 2, axis=(1, 2)).max() <= bound * (1 + 1e-5)


@pytest.mark.parametrize("bound", [1e-6, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_fit_keeps_the_bound_everywhere(bound: float, outputs: int) -> None:
    points, samples, jet = problem(outputs=outputs)
    family = LipschitzMLP(Flatten(4), outputs, hidden=(16, 16), steps=40, batch=32)
    member = family.sobolev(points, samples).fit(jet, bound, np.random.default_rng(0))
    assert {name: (p.shape, p.dtype.name) for name, p in member.items()} == dict(family.spec)
    assert 0.0 < family.lipschitz(member) <= bound
    for layer in range(2):
        assert np.linalg.norm(member[f"{layer}.weight"].astype(np.float64), 2) <= 1 + 1e-6
    fresh = np.random.default_rng(9).standard_normal((400, 4)) * 3
    h = values(family, member, fresh)
    assert Pairs(fresh, np.random.default_rng(0)).slope(h.astype(np.float64)) <= bound * (1 + 1e-4) + 1e-5


@pytest.mark.parametrize("scale", [1.0, 1e-4, 300.0])
def test_a_fit_contracts_values_and_slopes_whatever_their_size(scale: float) -> None:
    points, samples, jet = problem(n=80)
    family = LipschitzMLP(Flatten(4), 1, hidden=(32, 32), steps=200)
    fit, own = family.sobolev(points, samples)
    pairs, phi = Pairs(points, np.random.default_rng(0)), scale * jet[:80]
    member = fit(scale * jet, pairs.slope(phi), np.random.default_rng(0))
    error = own(member)[:80] - phi
    assert np.abs(error).max() < 0.5 * np.abs(phi).max()
    assert pairs.slope(error) < 0.7 * pairs.slope(phi)


def test_slopes_help_slopes() -> None:
    points, samples, jet = problem(n=80)
    pairs = Pairs(points, np.random.default_rng(0))
    steepest = []
    for slopes in (0.0, 1.0):
        family = LipschitzMLP(Flatten(4), 1, hidden=(32, 32), steps=150, slopes=slopes)
        member = family.sobolev(points, samples).fit(jet, pairs.slope(jet[:80]), np.random.default_rng(0))
        derivatives = family.jet(member, points, samples)[80:] - jet[80:]
        steepest.append((pairs.slope(values(family, member, points) - jet[:80]), np.mean(derivatives**2)))
    assert steepest[1][0] < steepest[0][0]
    assert steepest[1][1] < steepest[0][1]


def test_what_is_left_is_the_larger_of_the_largest_error_and_the_steepest() -> None:
    """1 − γ is the larger of two ratios: the largest error to that of φ, and the steepest slope to that of φ."""
    points = np.array([[0.0], [2.0], [3.0]])
    phi = np.array([[0.0, 4.0], [-10.0, 4.0], [-5.0, 4.0]])  # at most 10, and slopes 5, 5, 5/3
    family, pairs = LipschitzMLP(Flatten(1), 2, (4,)), Pairs(points, np.random.default_rng(0))
    sobolev = _Sobolev(family, points[:0], np.zeros((0, 1, 2)), pairs, phi, np.random.default_rng(0))
    assert sobolev.look(np.array([[6.0, 0.0], [6.0, 0.0], [6.0, 0.0]]), 4) == pytest.approx(0.6)
    assert sobolev.look(np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]), 4) == pytest.approx(1.0)
    assert sobolev.look(np.array([[0.0, 0.0], [0.0, 0.0], [1.2, 1.6]]), 4) == pytest.approx(0.4)


@pytest.mark.parametrize("slopes", [1.0, 0.3])
def test_the_gradient_of_slopes_is_that_of_finite_differences(slopes: float) -> None:
    """The loss is half the mean square error of derivatives at samples and of slopes over pairs."""
    rng = np.random.default_rng(0)
    points, samples = rng.standard_normal((2, 3)), rng.standard_normal((5, 3))
    phi, wanted = rng.standard_normal((2, 2)), rng.standard_normal((5, 3, 2))
    family = LipschitzMLP(Flatten(3), 2, (6, 4), slopes=slopes)
    pairs = Pairs(points, np.random.default_rng(0))
    sobolev = _Sobolev(family, samples, wanted, pairs, phi, rng)
    sobolev.look(rng.standard_normal((2, 2)), 4)
    member = {name: p.astype(np.float64) for name, p in random_member(family, 1, 0.5).items()}

    def loss(member: Parameters) -> float:
        jet = exact_jet(member, points, samples)
        error = jet[:2] - phi
        steep = np.square(error[0] - error[1]).sum() / np.square(points[0] - points[1]).sum()
        return float(0.5 * slopes * (np.square(jet[2:] - wanted.reshape(-1, 2)).sum() / 5 + steep))

    net, gradient = _Net(family._layers), _Net(family._layers)
    net.load(member)
    sobolev.add_gradient(net, points.astype(np.float32), phi.astype(np.float32), 2.0)
    gradient.parameters[:] = net.gradient
    for layer in range(3):
        for part, found in (("weight", gradient.weights[layer]), ("bias", gradient.biases[layer])):
            name, direction = f"{layer}.{part}", rng.standard_normal(found.shape)
            up, down = (loss(member | {name: member[name] + s * 1e-6 * direction}) for s in (1, -1))
            assert np.vdot(found, direction) == pytest.approx((up - down) / 2e-6, rel=1e-3, abs=1e-4)


def exact_jet(member: Parameters, points: Array, samples: Array) -> Array:
    """Values and derivatives in float64, by the chain rule."""

    def run(x: Array) -> tuple[Array, Array]:
        h, slope = x, np.tile(np.eye(x.shape[1]), (len(x), 1, 1))  # slope[n, i, j] = ∂h_j/∂x_i
        for layer in range(len(member) // 2):
            if layer:
                half = h.shape[1] // 2
                swap = np.tile(h[:, :half] < h[:, half:], 2)
                other = np.roll(np.arange(2 * half), half)
                h, slope = np.where(swap, h[:, other], h), np.where(swap[:, None], slope[:, :, other], slope)
            h = h @ member[f"{layer}.weight"].T + member[f"{layer}.bias"]
            slope = slope @ member[f"{layer}.weight"].T
        return h, slope

    return np.concatenate([run(points)[0], run(samples)[1].reshape(-1, run(samples)[0].shape[1])])


def test_least_squares_and_minimax() -> None:
    points, _, jet = problem(n=150, L=5.0)
    z, phi = points.astype(np.float32), 3.0 * jet[:150]
    family = LipschitzMLP(Flatten(4), 1, hidden=(32, 32), batch=64)
    plain, largest = (
        values(family, fit(z)(phi, np.random.default_rng(0)), z) - phi for fit in (family.least_squares, family.minimax)
    )
    assert np.mean(plain**2) < 0.1 * np.mean(phi**2)
    assert np.abs(largest).max() < np.abs(plain).max() < 0.5 * np.abs(phi).max()


@pytest.mark.parametrize("n", [1, 2, 40])
def test_the_fit_is_a_function_of_places_jet_bound_and_randomness(n: int) -> None:
    points, samples, jet = problem(n=n)
    family = LipschitzMLP(Flatten(4), 1, hidden=(8, 6), steps=50, batch=16)
    fit = family.sobolev(points, samples).fit
    first = fit(jet, 0.7, np.random.default_rng(5))
    fit(2.0 * jet, 0.7, np.random.default_rng(6))
    again = fit(jet.copy(), 0.7, np.random.default_rng(5))
    elsewhere = (
        pickle.loads(pickle.dumps(family)).sobolev(points.copy(), samples).fit(jet, 0.7, np.random.default_rng(5))
    )
    other = fit(jet, 0.7, np.random.default_rng(6))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        np.testing.assert_array_equal(first[name], elsewhere[name])
    assert not np.array_equal(first["0.weight"], other["0.weight"])


def test_cases_at_the_edge() -> None:
    points, samples, jet = problem(n=10)
    family = LipschitzMLP(Flatten(4), 1, hidden=(8,), steps=5)
    constant = family.sobolev(points, samples).fit(jet, 0.0, np.random.default_rng(0))
    assert family.lipschitz(constant) == 0.0
    np.testing.assert_allclose(values(family, constant, points), 0.5 * (jet[:10].max() + jet[:10].min()), rtol=1e-6)
    same = family.sobolev(np.zeros((3, 4)), samples[:0]).fit(np.ones((3, 1)), 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(values(family, same, np.zeros((3, 4))), 1.0, atol=0.5)
    # What cannot be fitted is returned without a warning; oracles check what they get.
    unknown = family.sobolev(points, samples).fit(np.full_like(jet, np.nan), 1.0, np.random.default_rng(0))
    assert not np.isfinite(unknown["1.bias"]).all()


def test_matrices() -> None:
    rng = np.random.default_rng(0)
    for shape in ((12, 5), (5, 12), (8, 8)):
        q = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
        near, far = ((q[0] @ q[2] + e * rng.standard_normal(shape)).astype(np.float32) for e in (0.02, 1.0))
        for w, much in ((near, 0.02), (far, 1e-5)):
            _straighten(w)
            assert np.abs(np.linalg.svd(w, compute_uv=False) - 1.0).max() < much
        short = _shortened(far * np.float32(3.0), 2.0)
        np.testing.assert_allclose(np.linalg.svd(short, compute_uv=False), 2.0, rtol=1e-5)


def test_settings_that_make_no_sense() -> None:
    right: dict[str, Any] = {"features": Flatten(3), "outputs": 1}
    wrong_ones: list[dict[str, Any]] = [
        {"hidden": (3,)},
        {"hidden": (4, 0)},
        {"outputs": 0},
        {"batch": 0},
        {"steps": -1},
        {"slopes": -1.0},
        {"slopes": np.nan},
    ]
    for wrong in wrong_ones:
        with pytest.raises(FFGBError):
            LipschitzMLP(**(right | wrong))


def test_the_size_of_values_is_their_largest_entry_however_small() -> None:
    assert _size(np.array([[0.25, -0.5], [0.1, 0.0]])) == 0.5
    assert _size(np.zeros((2, 1))) == _size(np.zeros((0, 1))) == 1.0
