"""Nets of torch: the built-in one against the same net written plainly, the fit against a plain loop, and manners."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ffgb import user_code as trust
from ffgb.algorithms.parametric import Copies, FirstOrder, Local
from ffgb.core.losses import Square
from ffgb.core.seeds import stream
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.learners import nets
from ffgb.learners.mlp import batches
from ffgb.learners.nets import Net

if TYPE_CHECKING:
    import torch
    from torch import nn
else:
    torch = pytest.importorskip("torch")
    nn = torch.nn

SMALL = (2, 18, 16)


def problem(n: int, shape: tuple[int, ...] = SMALL, outputs: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, *shape)).astype(np.float32), rng.standard_normal((n, outputs))


def plain(
    shape: tuple[int, ...], outputs: int, member: Parameters | None = None, hidden: tuple[int, ...] = (32, 32)
) -> nn.Sequential:
    """The tutorial's net, as the tutorial has it."""
    c, h, w = shape
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    flat = 16 * (((h - 4) // 2 - 4) // 2) * (((w - 4) // 2 - 4) // 2)
    u, v = hidden
    layers = [nn.Conv2d(c, 6, 5), nn.Conv2d(6, 16, 5), nn.Linear(flat, u), nn.Linear(u, v), nn.Linear(v, outputs)]
    a, b, d, e, f = layers
    if member is not None:
        for name, layer in zip(("conv1", "conv2", "fc1", "fc2", "fc3"), layers, strict=True):
            layer.load_state_dict({k: torch.tensor(member[f"{name}.{k}"]) for k in ("weight", "bias")})
    return nn.Sequential(a, relu, pool, b, relu, pool, nn.Flatten(), d, relu, e, relu, f)


def start(family: Net, seed: int) -> Parameters:
    x, phi = problem(1, family.shape, family.outputs)
    return Net(family.shape, family.outputs, family.module, steps=0).least_squares(x)(phi, np.random.default_rng(seed))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own."""
    monkeypatch.setattr(trust, "_known", {})

    def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 5), nn.Tanh(), nn.Linear(5, outputs))

    trust.register("mine:tiny", build)
    return "mine:tiny"


def test_the_papers_net_has_17090_numbers() -> None:
    family = Net((3, 32, 32), 10)
    assert family.size == 17_090
    assert family.spec["conv1.weight"] == ((6, 3, 5, 5), "float32")
    assert family.spec["fc1.weight"] == ((32, 400), "float32")
    assert Net((1, 28, 28), 10).spec["fc1.weight"] == ((32, 256), "float32")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 16, 16), (1, 17, 19), (4, 23, 34), (3, 30, 29)])
def test_values_are_those_of_the_plain_net(shape: tuple[int, ...]) -> None:
    x, _ = problem(150, shape)
    family = Net(shape, 3)
    nets_ = [start(family, seed) for seed in range(3)]
    values = family.members({name: np.stack([net[name] for net in nets_]) for name in family.spec}, family.features(x))
    assert values.shape == (3, 150, 3)
    assert values.dtype == np.float32
    for value, net in zip(values, nets_, strict=True):
        reference = plain(shape, 3, net)(torch.tensor(x)).detach().numpy()
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5)
        alone = family.members({name: p[None] for name, p in net.items()}, x)[0]
        np.testing.assert_array_equal(value, alone)


def test_hidden_sizes_are_those_asked_for() -> None:
    # NIID-Bench's net: 120 and 84
    family, (x, _) = Net((3, 32, 32), 10, hidden=(120, 84)), problem(9, (3, 32, 32))
    assert family.size == 6 * 76 + 16 * 151 + 401 * 120 + 121 * 84 + 85 * 10
    net = family.initial(np.random.default_rng(0))
    values = family.members({name: p[None] for name, p in net.items()}, x)[0]
    reference = plain(family.shape, 10, net, family.hidden)(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(values, reference, rtol=1e-4, atol=1e-5)
    assert Net((1, 16, 16), 2, hidden=()).spec["fc1.weight"] == ((2, 16), "float32")


@pytest.mark.parametrize("n", [1, 7, 8, 9, 21])
@pytest.mark.parametrize("module", ["cnn", "mine:tiny"])
def test_steps_are_those_of_a_plain_loop(n: int, module: str, tiny: str) -> None:
    x, phi = problem(n)
    family = Net(SMALL, 3, module, steps=4, batch=8)
    ours = family.least_squares(x)(phi, np.random.default_rng(3))
    net = plain(SMALL, 3, start(family, 3)) if module == "cnn" else trust._known[tiny](SMALL, 3)
    if module != "cnn":
        net.load_state_dict({name: torch.tensor(p) for name, p in start(family, 3).items()})
    adam = torch.optim.Adam(net.parameters(), lr=family.learning_rate)
    rng = np.random.default_rng(3)
    rng.integers(2**63)  # the seed of the start
    rows = batches(n, min(n, 8), rng)
    for _ in range(4):
        batch = next(rows) if n > 8 else np.arange(n)
        adam.zero_grad()
        target = torch.tensor(phi[batch], dtype=torch.float32)
        ((net(torch.tensor(x[batch])) - target) ** 2).sum(1).mean().backward()
        adam.step()
    assert list(ours) == list(family.spec)
    for value, p in zip(ours.values(), net.parameters(), strict=True):
        # Adam divides by the size of the gradient, so rounding shows where the gradient is nearly 0: a few entries.
        difference = np.abs(value - p.detach().numpy())
        assert np.quantile(difference, 0.95) < 1e-5
        assert difference.max() < 4 * 2 * family.learning_rate


def test_pooling_hands_the_gradient_to_one_of_equals() -> None:
    # On a blank image the four convolutions under a maximum are equal; a gradient counted four times would show here.
    family = Net((1, 16, 16), 2, steps=1)
    x, phi = np.zeros((4, 1, 16, 16), np.float32), np.ones((4, 2))
    ours = family.least_squares(x)(phi, np.random.default_rng(0))
    net = plain((1, 16, 16), 2, start(family, 0))
    adam = torch.optim.Adam(net.parameters(), lr=family.learning_rate)
    ((net(torch.tensor(x)) - 1.0) ** 2).sum(1).mean().backward()
    module = family._build()
    module.load_state_dict({name: torch.tensor(p) for name, p in start(family, 0).items()})
    arrange: Any = module.arrange
    ((module(torch.tensor(arrange(x))) - 1.0) ** 2).sum(1).mean().backward()
    for ours_, theirs in zip(module.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours_.grad, theirs.grad)
    adam.step()
    np.testing.assert_allclose(ours["conv1.bias"], dict(net.named_parameters())["0.bias"].detach().numpy(), atol=1e-6)


def test_the_fit_is_a_function_of_points_values_and_randomness() -> None:
    x, phi = problem(40)
    family = Net(SMALL, 3, steps=6, batch=16)
    fit = family.least_squares(x)
    first = fit(phi, np.random.default_rng(5))
    fit(2.0 * phi, np.random.default_rng(6))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    again = family.least_squares(x.copy())(phi, np.random.default_rng(5))
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], start(family, 5)[name])


def largest_error(family: Net, member: Parameters, x: Array, phi: Array) -> float:
    return float(np.abs(family.members({name: p[None] for name, p in member.items()}, x)[0] - phi).max())


@pytest.mark.parametrize("module", ["cnn", "mine:tiny"])
def test_minimax_has_smaller_largest_errors_in_as_many_steps(module: str, tiny: str) -> None:
    x, phi = problem(120)
    family = Net(SMALL, 3, module, steps=100, batch=32)
    plain, member, again = (
        fit(x)(phi, np.random.default_rng(1)) for fit in (family.least_squares, family.minimax, family.minimax)
    )
    assert list(member) == list(family.spec)
    assert largest_error(family, member, x, phi) < 0.95 * largest_error(family, plain, x, phi)
    for name in member:
        np.testing.assert_array_equal(member[name], again[name])


def test_minimax_keeps_what_members_are_best_at(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    # Dropout is for steps only: the nets that are compared are those that will be evaluated.
    trust.register(
        "mine:drop", lambda shape, outputs: nn.Sequential(trust._known[tiny](shape, outputs), nn.Dropout(0.5))
    )
    x, phi = problem(30)
    family = Net(SMALL, 3, "mine:drop", steps=100, batch=16, learning_rate=0.1)
    looked: list[float] = []
    look = nets._Descent.look

    def noted(self: nets._Descent) -> float:
        looked.append(look(self))
        return looked[-1]

    monkeypatch.setattr(nets._Descent, "look", noted)
    member = family.minimax(x)(phi, np.random.default_rng(1))
    assert len(looked) == 4
    assert largest_error(family, member, x, phi) == pytest.approx(min(looked), rel=1e-4)
    family.minimax(x)(np.full_like(phi, np.nan), np.random.default_rng(1))


def test_images_are_shifted_and_mirrored() -> None:
    n, rng = 400, np.random.default_rng(0)
    x = rng.standard_normal((n, *SMALL)).astype(np.float32)
    varied = nets._varied(torch.from_numpy(x), rng).numpy()
    around, (_, h, w), seen = np.pad(x, ((0, 0), (0, 0), (4, 4), (4, 4)), "reflect"), SMALL, set()
    for image, frame in zip(varied, around, strict=True):
        (where,) = [
            (i, j, mirrored)
            for i in range(9)
            for j in range(9)
            for mirrored in (False, True)
            if np.array_equal(image, frame[:, i : i + h, j : j + w][..., :: -1 if mirrored else 1])
        ]
        seen.add(where)
    assert len(seen) > 0.9 * 162  # of all there are, 400 times one of 162


@pytest.mark.parametrize("module", ["cnn", "mine:tiny"])
def test_a_step_with_varied_images_is_one_at_those_images(module: str, tiny: str) -> None:
    x, target = problem(12)
    family, rows, chance = Net(SMALL, 3, module, augment=True), np.array([3, 0, 7, 11, 5]), (1, 2, 3)
    rng = np.random.default_rng(chance)
    rng.integers(2**63)  # torch's own
    images = nets._varied(torch.from_numpy(x[rows]), rng).numpy()
    found = []
    for net, points, which, seed in ((family, x, rows, chance), (Net(SMALL, 3, module), images, np.arange(5), None)):
        walk = net.walk(points.reshape(len(points), -1), 5)
        walk.vector[:] = walk.pack(start(net, 1))
        walk.differentiate(which, lambda values, _: values - target[rows], seed)
        found.append(walk.gradient.copy())
    np.testing.assert_array_equal(found[0], found[1])
    # without chance they are as they are: the gradient of all points is no random one
    walk, plain = family.walk(x.reshape(12, -1), 5), Net(SMALL, 3, module).walk(x.reshape(12, -1), 5)
    for each in (walk, plain):
        each.vector[:] = each.pack(start(family, 1))
        each.differentiate(rows, lambda values, _: values - target[rows])
    np.testing.assert_array_equal(walk.gradient, plain.gradient)


def test_the_gradient_of_all_points_is_of_varied_images_too() -> None:
    # else Mime's c were that of another loss than its steps descend
    x, target = problem(12)
    found = {}
    for augment in (False, True):
        family = Net(SMALL, 3, augment=augment)
        oracle = FirstOrder(Copies(family, ("x",)), x.reshape(12, -1), 5)
        at = oracle.walk.pack(start(family, 1))
        found[augment] = [
            Local(oracle, target, Square(3), stream(0, "client", t, 0)).gradient(at).copy() for t in (0, 0, 1)
        ]
    np.testing.assert_array_equal(found[True][0], found[True][1])  # the same whoever asks
    assert not np.array_equal(found[True][0], found[True][2])  # and others in another round
    np.testing.assert_array_equal(found[False][0], found[False][2])
    assert not np.array_equal(found[True][0], found[False][0])


def test_only_images_are_varied(tiny: str) -> None:
    with pytest.raises(FFGBError, match="can be shifted and mirrored, not points of"):
        Net((784,), 3, tiny, augment=True).walk(np.zeros((2, 784), np.float32), 2)


def test_dropout_drops_something_else_in_every_step(tiny: str) -> None:
    def drop(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(trust._known[tiny](shape, outputs), nn.Dropout(0.5))

    trust.register("mine:drop", drop)
    x, target = problem(12)
    rows, loss, family = np.arange(12), Square(3), Net(SMALL, 3, "mine:drop")
    oracle = FirstOrder(Copies(family, ("x",)), x.reshape(12, -1), 12)
    here = Local(oracle, target, loss, stream(0, "client", 0, 0))
    at = oracle.walk.pack(start(family, 1))
    found = [[here.gradient(at, rows).copy() for _ in range(2)] for _ in here.batches(3)]
    for twice in found:  # both of one batch are alike, which is what Mime's differences are about
        np.testing.assert_array_equal(twice[0], twice[1])
    assert not np.array_equal(found[0][0], found[1][0])
    assert not np.array_equal(found[1][0], found[2][0])
    again = Local(oracle, target, loss, stream(0, "client", 0, 0))
    for (first, _), _ in zip(found, again.batches(3), strict=True):
        np.testing.assert_array_equal(first, again.gradient(at, rows))


def test_where_nothing_is_left_to_chance_nothing_is_dropped(tiny: str) -> None:
    """Without a seed the gradient is taken of the net as it is evaluated."""

    def drop(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(trust._known[tiny](shape, outputs), nn.Dropout(0.5))

    trust.register("mine:drop", drop)
    x, target = problem(12)
    family = Net(SMALL, 3, "mine:drop")
    z = x.reshape(12, -1)
    walk, member = family.walk(z, 12), start(family, 1)
    walk.vector[:] = walk.pack(member)
    seen: list[Array] = []

    def slope(values: Array, rows: Array) -> Array:
        seen.append(values.copy())
        return Square(3).gradient(values, target[rows])

    walk.differentiate(np.arange(12), slope)
    evaluated = family.members({name: p[None] for name, p in member.items()}, z)[0]
    np.testing.assert_allclose(seen[0], evaluated, rtol=1e-5, atol=1e-6)
    walk.differentiate(np.arange(12), slope, (1, 2))
    assert (seen[1] == 0.0).mean() == pytest.approx(0.5, abs=0.3)


def test_another_process_gets_the_same_bits() -> None:
    code = """
import sys, numpy as np
from ffgb.learners.nets import Net
rng = np.random.default_rng(40)
x, phi = rng.standard_normal((40, 2, 18, 16)).astype(np.float32), rng.standard_normal((40, 3))
member = Net((2, 18, 16), 3, steps=3, batch=16).least_squares(x)(phi, np.random.default_rng(5))
sys.stdout.write(b"".join(p.tobytes() for p in member.values()).hex())
"""
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    x, phi = problem(40)
    member = Net(SMALL, 3, steps=3, batch=16).least_squares(x)(phi, np.random.default_rng(5))
    assert elsewhere == b"".join(p.tobytes() for p in member.values()).hex()


def test_torchs_own_randomness_is_left_alone() -> None:
    x, phi = problem(5)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    family = Net(SMALL, 3, steps=1)
    member = family.least_squares(x)(phi, np.random.default_rng(0))
    family.members({name: p[None] for name, p in member.items()}, x)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_importing_the_module_does_not_import_torch() -> None:
    code = "import sys, ffgb.learners.nets as n; n.Net((3, 32, 32), 10); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FFGBError, match=r"ffgb\[neural\]"):
        _ = Net(SMALL, 3).spec


def test_a_name_alone_imports_nothing() -> None:
    for name in ("os:getcwd", "torch.nn:Identity", "resnet"):
        with pytest.raises(FFGBError, match="if you trust it"):
            _ = Net(SMALL, 3, name).spec


def test_a_name_has_one_meaning(tiny: str) -> None:
    trust.register(tiny, trust._known[tiny])
    for name in (tiny, "cnn"):
        with pytest.raises(FFGBError, match="already"):
            trust.register(name, lambda shape, outputs: nn.Linear(1, outputs))


def test_buffers_are_refused(tiny: str) -> None:
    trust.register("mine:normal", lambda shape, outputs: nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten()))
    with pytest.raises(FFGBError, match="buffers"):
        _ = Net(SMALL, 3, "mine:normal").spec


@pytest.mark.parametrize("shape", [(784,), (3, 15, 32), (3, 32, 8)])
def test_images_must_be_large_enough(shape: tuple[int, ...]) -> None:
    with pytest.raises(FFGBError, match="16×16"):
        _ = Net(shape, 3).spec


def test_arrays_that_cannot_be_written_to_and_pickling(tiny: str) -> None:
    x, phi = problem(5)
    for array in (x, phi):
        array.flags.writeable = False
    for module in ("cnn", tiny):
        family = pickle.loads(pickle.dumps(Net(SMALL, 3, module, steps=2)))
        member = family.least_squares(family.features(x))(phi, np.random.default_rng(0))
        for p in member.values():
            p.flags.writeable = False
        stack = {name: p[None] for name, p in member.items()}
        for p in stack.values():
            p.flags.writeable = False
        assert pickle.loads(pickle.dumps(family)).members(stack, x).shape == (1, 5, 3)


WRITTEN = [
    ("squares", 16, [6.0332, 25.37976, 57.40968]),
    ("squares", 64, [5.936718, 30.94656, 49.34669]),
    ("minimax", 16, [-1.110156, 22.77773, 62.38368]),
    ("minimax", 64, [2.736346, 26.2635, 55.90711]),
]


def test_values_of_fitted_nets_are_as_written(tiny: str) -> None:
    """Sums over all values after some steps: of least squares, and of steps that turn to what is fitted worst."""
    x, phi = problem(40, (3, 4), 2)
    for way, batch, expected in WRITTEN:
        family = Net((3, 4), 2, tiny, steps=40, batch=batch)
        fit = family.minimax(x) if way == "minimax" else family.least_squares(x)
        values = family.member(fit(phi, np.random.default_rng(3))).evaluate(x)
        found = [float(values.sum()), float(np.abs(values).sum()), float(np.square(values - phi).sum())]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
