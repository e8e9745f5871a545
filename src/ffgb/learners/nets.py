"""Weak learners from torch modules: the paper's convolutional net, and nets of your own.

This is the only file that uses torch, and it imports torch when a net is first built, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import numpy as np

from ffgb.core.capabilities import Chance, Fit, Slope, Walk
from ffgb.core.functions import LARGEST_IN_A_NET, Family, OpenFamily
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError, missing_extra
from ffgb.features.basic import Flatten
from ffgb.learners.mlp import DRAWING_POWER, Descent, anneal, batches, drawn, emphasise, fitted_by, interval, layers
from ffgb.settings import LEARNER, Setting, Values
from ffgb.user_code import named

if TYPE_CHECKING:
    import torch

Factory: TypeAlias = "Callable[[tuple[int, ...], int], torch.nn.Module]"
"""(shape of a point, outputs) to a module that maps (n, *shape) to (n, outputs)."""

SHIFT = 4
"""Pixels, as is usual for photographs of 32 × 32."""
POINTS_IN_A_PASS = 128
"""Points evaluated at a time: what the layers of a small net pass on then stays in the cache."""


@final
@dataclass(frozen=True)
class Net(OpenFamily):
    """A torch module on points of one shape, fitted by Adam.

    "cnn" is the net of the PyTorch tutorial on CIFAR-10, with hidden sizes 32, 32 as in the paper's appendix B; it
    takes images (channels, height, width) of 16 × 16 pixels or more.  Other modules must be made known (user_code.py).
    Their parameters travel by the names torch gives them, as float32.  Modules with buffers (the running means of a
    BatchNorm) are refused: buffers are no parameters, and what should a sum of functions do with them.

    A module may have a method `arrange` of NumPy arrays; then it is fed arrange(x), computed once, in place of x.
    """

    name: ClassVar[str] = "cnn"
    # the paper's steps on CIFAR-10
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden": (32, 32), "oracle_steps": 200, "learning_rate": 0.005, "batch": 128,
        "rounds": 8, "local_steps": 4, "schedule": "power", "step_size": 10.0, "parametric_step": 0.05,
    }  # fmt: skip

    shape: tuple[int, ...]
    outputs: int
    module: str = "cnn"
    steps: int = 1000
    learning_rate: float = 0.005
    batch: int = 128
    scaled: FeatureMap | None = None
    """What scales the inputs, for tables; images come scaled."""
    augment: bool = False
    """Images are shifted by up to SHIFT pixels and mirrored at random, anew whenever a gradient method sees them."""
    hidden: tuple[int, ...] = (32, 32)
    """Sizes of the layers between the convolutions and the outputs (cnn); other modules have their own."""

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run; a module of the user's own is named by the setting itself."""
        if config.learner != cls.name:
            return cls(
                inputs.shape,
                inputs.outputs,
                config.learner,
                scaled=inputs.scaled(),
                augment=config.augment,
                **fitted_by(config),
            )
        if not inputs.image:
            raise FFGBError("the learner cnn needs images, and these are tables; choose features, linear, mlp or tree")
        return cls(
            inputs.shape,
            inputs.outputs,
            cls.name,
            hidden=config.hidden or (),
            augment=config.augment,
            **fitted_by(config),
        )

    @property
    def features(self) -> FeatureMap:  # type: ignore[override]
        return self.scaled or Flatten(math.prod(self.shape))

    @cached_property
    def _spec(self) -> dict[str, tuple[tuple[int, ...], str]]:
        with _sealed(0):
            return {name: (tuple(p.shape), "float32") for name, p in self._build().named_parameters()}

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return self._spec

    def largest(self, name: str) -> float:
        return LARGEST_IN_A_NET

    def members(self, stack: Parameters, z: Array) -> Array:
        with _sealed(0):
            import torch

            module = self._build().eval()
            points = _arranged(module, z.reshape(len(z), *self.shape))
            values = np.empty((len(next(iter(stack.values()))), len(z), self.outputs), np.float32)
            with torch.inference_mode():
                # Copies of everything: torch aligns its own memory, and rounding may depend on alignment.
                nets = [{name: torch.tensor(p[k]) for name, p in stack.items()} for k in range(len(values))]
                for start in range(0, len(z), POINTS_IN_A_PASS):
                    rows = slice(start, start + POINTS_IN_A_PASS)
                    x = torch.tensor(points[rows])
                    for k, net in enumerate(nets):
                        values[k, rows] = torch.func.functional_call(module, net, (x,)).numpy()
            return values

    def least_squares(self, z: Array) -> Fit:
        """Adam on the mean over a batch of ‖h(x) − φ(x)‖², as `MLP.least_squares` does it."""

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            with _sealed(int(rng.integers(2**63))):
                descent = _Descent(self, z, phi, rng)
                for _ in range(self.steps):
                    descent.step()
                return descent.member()

        return fit

    def minimax(self, z: Array) -> Fit:
        """The same steps, turned to the points and outputs that are fitted worst, as `MLP.minimax` does it."""

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            with _sealed(int(rng.integers(2**63))), np.errstate(all="ignore"):
                descent = _Descent(self, z, phi, rng)
                anneal(descent, self.steps)
                return descent.member()

        return fit

    def initial(self, rng: np.random.Generator) -> Parameters:
        """A random member, as torch starts it."""
        with _sealed(int(rng.integers(2**63))):
            return {name: p.detach().numpy().copy() for name, p in self._build().named_parameters()}

    def walk(self, z: Array, batch: int) -> Walk:
        if self.augment and len(self.shape) != 3:
            raise FFGBError(f"images (channels, height, width) can be shifted and mirrored, not points of {self.shape}")
        with _sealed(0):
            return _Walk(self, z)

    def _build(self) -> torch.nn.Module:
        """A freshly initialised module, in float32."""
        factory = _cnn(self.hidden) if self.module == "cnn" else named(self.module, "learner")
        try:
            module = factory(self.shape, self.outputs).float()
        except FFGBError:
            raise
        except Exception as error:  # a user's own factory may fail in any way at all
            raise FFGBError(
                f"the module {self.module!r} cannot be built by factory(shape, outputs): {error}"
            ) from error
        if next(module.buffers(), None) is not None:
            raise FFGBError(
                f"the module {self.module!r} has buffers, as BatchNorm does; weak learners have only parameters"
            )
        return module


@final
class _Descent(Descent):
    """A module on its way, from a random start."""

    def __init__(self, family: Net, z: Array, phi: Array, rng: np.random.Generator) -> None:
        import torch

        n, size = len(z), min(len(z), family.batch)
        self._module = family._build().train()
        self._points = torch.from_numpy(_arranged(self._module, z.reshape(n, *family.shape)))
        self._target = torch.tensor(phi, dtype=torch.float32)
        self._x, self._y = torch.empty((size, *self._points.shape[1:])), torch.empty((size, family.outputs))
        self._flat = _flattened(self._module)
        self._adam = torch.optim.Adam([self._flat], lr=family.learning_rate, fused=True)
        self._rate, self._rng, self._rows = family.learning_rate, rng, batches(n, size, rng)
        self.parameters, self.interval = self._flat.numpy(), interval(n, size)
        self._whole = size == n
        if self._whole:
            self._take(np.arange(n))

    def step(self, power: float = 2.0, rate: float = 1.0) -> None:
        if not self._whole:
            self._take(next(self._rows))
        assert self._flat.grad is not None
        self._flat.grad.zero_()
        h = self._module(self._x)
        errors = h.detach() - self._y
        emphasise(errors.numpy(), power)
        # By h, the gradient of ((h - y) ** 2).sum(1).mean(), if nothing is emphasised.
        h.backward(errors.mul_(2.0 / len(errors)))
        self._adam.param_groups[0]["lr"] = rate * self._rate
        self._adam.step()

    def look(self) -> float:
        import torch

        self._module.eval()  # as members are evaluated
        pieces = zip(*(torch.split(all_, POINTS_IN_A_PASS) for all_ in (self._points, self._target)), strict=True)
        with torch.no_grad():
            worst = torch.cat([(self._module(x) - y).abs().amax(1) for x, y in pieces]).numpy()
        self._module.train()
        self._rows = drawn(worst**DRAWING_POWER, len(self._x), self.interval, self._rng)
        return float(worst.max())

    def member(self) -> Parameters:
        return {name: p.detach().numpy().copy() for name, p in self._module.named_parameters()}

    def _take(self, batch: Array) -> None:
        import torch

        # index_select into a buffer takes a third of the time of points[batch].
        rows = torch.from_numpy(batch)
        torch.index_select(self._points, 0, rows, out=self._x)
        torch.index_select(self._target, 0, rows, out=self._y)


@final
class _Walk(Walk):
    """A module to be moved; the vector is its parameters, one after the other."""

    def __init__(self, family: Net, z: Array) -> None:
        import torch

        self._spec = family.spec
        self._module = family._build().train()
        images = z.reshape(len(z), *family.shape)
        self._augment = family.augment
        # what is varied is arranged when it was
        self._points = torch.from_numpy(_writable(images) if family.augment else _arranged(self._module, images))
        flat = _flattened(self._module)
        assert flat.grad is not None
        self.vector, self.gradient = flat.numpy(), flat.grad.numpy()

    def differentiate(self, rows: Array, slope: Slope, chance: Chance = None) -> None:
        rng = np.random.default_rng(0 if chance is None else chance)
        with _sealed(int(rng.integers(2**63))):
            import torch

            self.gradient[:] = 0.0
            x = torch.index_select(self._points, 0, torch.from_numpy(rows))
            if self._augment:
                x = x if chance is None else _varied(x, rng)
                x = torch.from_numpy(_arranged(self._module, x.numpy()))
            h = self._module.train(chance is not None)(x)
            d = slope(h.detach().numpy(), rows) / len(rows)
            h.backward(torch.from_numpy(d.astype(np.float32)))

    def pack(self, parameters: Parameters) -> Array:
        return np.concatenate([np.asarray(parameters[name], np.float32).reshape(-1) for name in self._spec])

    def unpack(self, vector: Array) -> dict[str, Array]:
        ends = np.cumsum([math.prod(shape) for shape, _ in self._spec.values()])
        pieces = np.split(vector, ends[:-1])
        return {
            name: piece.reshape(shape).copy()
            for piece, (name, (shape, _)) in zip(pieces, self._spec.items(), strict=True)
        }


@contextmanager
def _sealed(seed: int) -> Iterator[None]:
    """One thread, and randomness from this seed; both are put back, so that nobody else's torch notices.

    With one thread the order of summation, and so the result, is the same in every process.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "neural", "a learner that is a torch module") from error
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for other devices first, each time
            yield
    finally:
        torch.set_num_threads(threads)


def _arranged(module: torch.nn.Module, z: Array) -> Array:
    """The points as the module wants them; torch warns of arrays that it could not write to."""
    arrange: Callable[[Array], Array] | None = getattr(module, "arrange", None)
    return _writable(z if arrange is None else arrange(z))


def _writable(z: Array) -> Array:
    return np.require(z, requirements=["C", "W"])


def _varied(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images, each shifted up or down and to a side by up to SHIFT pixels and, every other time, mirrored.

    What comes in at an edge is what was there, reflected.
    """
    import torch

    n, channels, height, width = x.shape
    i, j = (
        np.pad(np.arange(side), SHIFT, "reflect")[rng.integers(2 * SHIFT + 1, size=(n, 1)) + np.arange(side)]
        for side in (height, width)
    )
    mirrored = rng.random(n) < 0.5
    j[mirrored] = j[mirrored, ::-1]
    pixels = torch.from_numpy(width * i[:, :, None] + j[:, None, :]).view(n, 1, -1).expand(n, channels, -1)
    return x.view(n, channels, -1).gather(2, pixels).view_as(x)


def _flattened(module: torch.nn.Module) -> torch.Tensor:
    """The module's parameters moved into one vector, and their gradients into its gradient: one tensor for Adam."""
    import torch

    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    flat.grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in parameters]
    for p, values, gradient in zip(parameters, torch.split(flat, sizes), torch.split(flat.grad, sizes), strict=True):
        p.data, p.grad = values.view_as(p), gradient.view_as(p)
    return flat


def _blocks(x: Array, s: int) -> Array:
    """(n, channels, height, width) to (n, height / s, width / s, s · s · channels)."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // s, s, w // s, s).transpose(0, 2, 4, 3, 5, 1).reshape(n, h // s, w // s, s * s * c)


def _shifted(shape: tuple[int, ...], s: int) -> Array:
    """Where each entry of the shifted kernels is in those of this shape, counted from 1; 0 where they are zero."""
    places = np.arange(1, math.prod(shape) + 1).reshape(shape)
    # The 2×2 places of one maximum come first and the pixels of a block second, so that the maximum is over runs.
    shifts = [(i + di, j + dj) for di in (0, 1) for dj in (0, 1) for i in range(0, s, 2) for j in range(0, s, 2)]
    frames = [np.pad(places, ((0, 0), (0, 0), (i, s - 1 - i), (j, s - 1 - j))) for i, j in shifts]
    return _blocks(np.concatenate(frames), s)


@cache
def _cnn(hidden: tuple[int, ...]) -> Factory:
    """The class of the built-in net, made when torch is there.

    The net is convolution 5×5 to 6 channels, pooling, convolution 5×5 to 16, pooling, hidden layers, outputs.  Written
    down like that, it runs at a seventh of the speed of the machine: 3 and 6 channels fill no vector register, and
    pooling goes through memory pixel by pixel.  Two rearrangements, which change nothing but the order of summation,
    help.

    * Pooling takes the maximum of a convolution at 2×2 neighbouring places.  The same numbers are the channels of one
      convolution of stride 2 whose kernels are the given one, shifted to each place in a frame of zeros; the maximum
      is then one over channels.  (ReLU is monotone and can wait until after it.)
    * A convolution of stride s is one of stride 1 on the image with each s×s block of pixels laid into the channels.

    The first layer computes 2×2 pooled pixels at a time (frames of 8×8, stride 4), which is just the arrangement that
    the second (frames of 6×6, stride 2) wants to have.
    """
    import torch
    from torch import Tensor, nn

    def pooled(x: Tensor, layer: nn.Conv2d, places: Tensor) -> Tensor:
        """ReLU of the pooled convolution of x, all with channels last."""
        weight = torch.cat((layer.weight.new_zeros(1), layer.weight.reshape(-1)))
        kernels = weight.index_select(0, places.view(-1)).view_as(places).permute(0, 3, 1, 2)
        assert layer.bias is not None
        y = nn.functional.conv2d(x.permute(0, 3, 1, 2), kernels, layer.bias.repeat(len(kernels) // len(layer.bias)))
        n, c, h, w = y.shape
        # A maximum over four runs of channels, put as pooling because that has the fastest kernel.
        y = y.permute(0, 2, 3, 1).reshape(n, h * w, 4, c // 4).permute(0, 3, 1, 2)
        return nn.functional.max_pool2d(y, (1, 4)).permute(0, 2, 3, 1).reshape(n, h, w, c // 4).relu_()

    @final
    class CNN(nn.Module):
        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            if len(shape) != 3 or min(shape[1:]) < 16:
                raise FFGBError(
                    f"the cnn learner takes images (channels, height, width) from 16×16 pixels, not {shape}"
                )
            channels, *size = shape
            # What remains after two times a margin of 4 and halving; and the pixels that this depends on.
            self.height, self.width = (((side - 4) // 2 - 4) // 2 for side in size)
            self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
            for number, (units, inputs) in enumerate(layers(16 * self.height * self.width, hidden, outputs), 1):
                self.add_module(f"fc{number}", nn.Linear(inputs, units))
            layers_of = ((self.conv1, 4), (self.conv2, 2))
            self.places1, self.places2 = (torch.from_numpy(_shifted(layer.weight.shape, s)) for layer, s in layers_of)

        def arrange(self, x: Array) -> Array:
            return _blocks(x[:, :, : 4 * self.height + 12, : 4 * self.width + 12], 4)

        def forward(self, x: Tensor) -> Tensor:
            x = pooled(pooled(x, self.conv1, self.places1), self.conv2, self.places2)
            x = x.permute(0, 3, 1, 2).flatten(1)
            for number in range(1, len(hidden) + 1):
                x = nn.functional.relu(self.get_submodule(f"fc{number}")(x))
            y: Tensor = self.get_submodule(f"fc{len(hidden) + 1}")(x)
            return y

    return CNN


SETTINGS = (
    Setting(
        "augment",
        "switch",
        "Shift images by up to 4 pixels and mirror them at random in every step (cnn by fedavg and the like).",
        LEARNER,
        False,
        users=("fedavg", "fedprox", "scaffold", "mime"),
    ),
)
