"""Multilayer perceptrons in plain NumPy, fitted by Adam.

The paper's learner on MNIST is 784-32-32-10 with leaky ReLU 0.01, fitted by Adam, 1000 steps at rate 0.005
(appendix B).  Nets this small spend their time in the overhead of a framework rather than in arithmetic, so the
gradient is written out here and every array of the loop is allocated before it; `benchmarks/oracle.py` says what
that is worth.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np

from ffgb.core.capabilities import Chance, Fit, Slope, Walk
from ffgb.core.functions import LARGEST_IN_A_NET, Family, OpenFamily
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.settings import LEARNER, Setting, Values

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants: Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015, and torch's defaults."""

# How the largest error is made small (`anneal`), as digits and MNIST with 72 to 1,071 points liked it best.
PLAIN = 0.3
"""The share of the steps that are least squares; what is fitted well by then needs little care later."""
POWER = 8.0
"""The p of the p-norm that the last steps minimise.  A larger one listens to too few points."""
DRAWING_POWER = 2.0
"""Points are drawn in proportion to this power of their largest error."""
FADING, LAST_RATE = 0.5, 0.1
"""In this share of the steps, the last ones, the learning rate goes down to this part of itself."""
INTERVAL = 32
"""Steps between two looks at all points, unless there are very many."""

TINY = float(np.finfo(np.float32).tiny)


@final
@dataclass(frozen=True)
class MLP(OpenFamily):
    """A fully connected net on features of the points: leaky ReLU after every layer but the last.

    (The authors' code applies it to the output too; the paper does not say so, and nor do we: outputs are to fit
    residuals of both signs.)

    Weights are named, shaped and initialised as in torch's `nn.Linear`: layer l has "l.weight" (units, inputs) and
    "l.bias" (units), uniform in ±1/√inputs.
    """

    name: ClassVar[str] = "mlp"
    # the paper's steps on MNIST
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden": (32, 32), "oracle_steps": 200, "learning_rate": 0.005, "batch": 128,
        "rounds": 8, "local_steps": 2, "schedule": "power", "step_size": 20.0, "parametric_step": 0.3,
    }  # fmt: skip

    features: FeatureMap
    outputs: int
    hidden: tuple[int, ...] = (32, 32)
    slope: float = 0.01
    steps: int = 1000
    learning_rate: float = 0.005
    batch: int = 128

    def __post_init__(self) -> None:
        if not 0.0 <= self.slope <= 1.0:
            raise FFGBError(f"the slope of a leaky ReLU lies in [0, 1], not {self.slope}")
        if min(self.outputs, self.batch, *self.hidden) < 1 or self.steps < 0:
            raise FFGBError("an MLP needs at least one output, one unit in each layer and one point in a batch")

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run."""
        return cls(inputs.scaled(), inputs.outputs, config.hidden or (), **fitted_by(config))

    @property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        return layers(self.features.dimension, self.hidden, self.outputs)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return dense_spec(self._layers)

    def largest(self, name: str) -> float:
        return LARGEST_IN_A_NET

    def members(self, stack: Parameters, z: Array) -> Array:
        # Columns are points, so that the weights are used as they lie in memory.  The members share their input:
        # their first layers, one under the other, are a single tall matrix.
        first = stack["0.weight"]
        m, units, inputs = first.shape
        h = np.matmul(first.reshape(m * units, inputs), z.T).reshape(m, units, len(z))
        h += stack["0.bias"][:, :, None]
        for layer in range(1, len(self._layers)):
            np.maximum(h, np.float32(self.slope) * h, out=h)
            h = np.matmul(stack[f"{layer}.weight"], h)
            h += stack[f"{layer}.bias"][:, :, None]
        return np.ascontiguousarray(h.transpose(0, 2, 1))

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """A random member, as `nn.Linear` starts."""
        parameters = {}
        for layer, (units, inputs) in enumerate(self._layers):
            bound = np.float32(1.0 / math.sqrt(inputs))
            for name, shape in ((f"{layer}.weight", (units, inputs)), (f"{layer}.bias", (units,))):
                parameters[name] = (2.0 * rng.random(shape, dtype=np.float32) - 1.0) * bound
        return parameters

    def walk(self, z: Array, batch: int) -> Walk:
        return _Walk(self, z, batch)

    def least_squares(self, z: Array) -> Fit:
        """Adam on the mean over a batch of ‖h(x) − φ(x)‖², from a random start.

        In torch: `((h - phi) ** 2).sum(1).mean()`.  Batches are cut from shuffled epochs laid end to end, so all have
        one size and no point is seen more than once more often than another; up to `batch` points are one full batch.
        The result is a function of z, φ and the generator's state, given one BLAS thread, which engines see to.
        """
        data = _Inputs.of(z)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            # Whatever diverges is returned as it is: oracles check what they get.
            with np.errstate(all="ignore"):
                descent = _Descent(self, data, phi, rng)
                for _ in range(self.steps):
                    descent.step()
                return descent.member()

        return fit

    def minimax(self, z: Array) -> Fit:
        """The same steps, turned to the points and outputs that are fitted worst (`anneal`)."""
        data = _Inputs.of(z)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            with np.errstate(all="ignore"):
                descent = _Descent(self, data, phi, rng)
                anneal(descent, self.steps)
                return descent.member()

        return fit


@final
class _Walk(Walk):
    """An MLP to be moved.  Nets for batches of other sizes share its parameters and gradient."""

    def __init__(self, family: MLP, z: Array, batch: int) -> None:
        self._family, self._data = family, _Inputs.of(z)
        self._nets: dict[int, tuple[Array, _Net]] = {}
        # The net's own parameters come first; then the weights of idle inputs, which have no gradient, but which a
        # method may move all the same.
        width = self._data.table.shape[1]
        self._shapes = _shapes(family.hidden, width, family.outputs)
        self._end = sum(units * inputs for units, inputs in self._shapes)
        self._idle = np.setdiff1d(np.arange(z.shape[1]), self._data.active)
        size = self._end + self._shapes[0][0] * len(self._idle)
        self.vector, self.gradient = aligned((size,)), aligned((size,))
        self._net(min(batch, len(z)))

    def differentiate(self, rows: Array, slope: Slope, chance: Chance = None) -> None:
        x, net = self._net(len(rows))
        self._data.table.take(rows, axis=0, out=x, mode="clip")
        with np.errstate(all="ignore"):  # what diverges is found by who asked; 0/0 is meant
            net.forward()
            np.multiply(slope(net.errors.T, rows).T, np.float32(1.0 / len(rows)), out=net.errors)
            net.backward()

    def pack(self, parameters: Parameters) -> Array:
        packed = aligned(self.vector.shape)
        _load(_cut(packed[: self._end], self._shapes), parameters, self._data.active)
        packed[self._end :] = parameters["0.weight"][:, self._idle].ravel()
        return packed

    def unpack(self, vector: Array) -> dict[str, Array]:
        parameters = {name: np.empty(shape, np.float32) for name, (shape, _) in self._family.spec.items()}
        _store(_cut(vector[: self._end], self._shapes), parameters, self._data.active)
        parameters["0.weight"][:, self._idle] = vector[self._end :].reshape(self._shapes[0][0], -1)
        return parameters

    def _net(self, size: int) -> tuple[Array, _Net]:
        if size not in self._nets:
            x, y = aligned((size, self._data.table.shape[1])), aligned((self._family.outputs, size))
            flat = self.vector[: self._end], self.gradient[: self._end]
            self._nets[size] = x, _Net(self._family.hidden, self._family.slope, x, y, flat)
        return self._nets[size]


def layers(inputs: int, hidden: tuple[int, ...], outputs: int) -> tuple[tuple[int, int], ...]:
    """(units, inputs) of each layer."""
    return tuple((units, inputs) for inputs, units in pairwise((inputs, *hidden, outputs)))


def dense_spec(layers: tuple[tuple[int, int], ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Parameters of dense layers, named as in torch's `nn.Linear`."""
    return {
        name: (shape, "float32")
        for layer, (units, inputs) in enumerate(layers)
        for name, shape in ((f"{layer}.weight", (units, inputs)), (f"{layer}.bias", (units,)))
    }


def batches(n: int, size: int, rng: np.random.Generator) -> Iterator[Array]:
    """Rows of one batch after another, without end: shuffled epochs laid end to end, cut into pieces of size ≤ n."""
    rows = rng.permutation(n)
    while True:
        if len(rows) < size:
            rows = np.concatenate((rows, rng.permutation(n)))
        yield rows[:size]
        rows = rows[size:]


class Descent(ABC):
    """A fit under way, by steps of batches of points."""

    parameters: Array
    """All that is fitted, as one vector: the steps write to it, and so may others."""

    interval: int
    """How many steps should lie between two looks, for what a look costs."""

    @abstractmethod
    def step(self, power: float = 2.0, rate: float = 1.0) -> None:
        """One step down Σ |error|^power over the next batch, at a part of the learning rate."""

    @abstractmethod
    def look(self) -> float:
        """The largest error at any point, of any output; and have what is fitted badly in more of the next batches."""


def anneal(descent: Descent, steps: int) -> None:
    """Make the largest error small, in as many steps as least squares would take.

    Least squares come first.  Then the power of the error that is minimised grows, and what is fitted badly is seen
    more often.  The power alone would not do: most batches would miss the few points that matter.  Of all that was
    looked at, the best is kept.
    """
    first, best, kept = round(PLAIN * steps), math.inf, None
    for step in range(steps + 1):
        if step == steps or (step >= first and (step - first) % descent.interval == 0):
            largest = descent.look()
            if largest < best:
                best, kept = largest, descent.parameters.copy()
        if step < steps:
            descent.step(power_at(step, steps), rate_at(step, steps))
    if kept is not None:
        descent.parameters[:] = kept


def interval(n: int, size: int) -> int:
    """Steps between two looks at n points: two epochs at least, so that looking takes a sixth of the time at most."""
    return max(INTERVAL, -(-2 * n // size))


def power_at(step: int, steps: int) -> float:
    """From 2, while least squares are minimised, to POWER, by a constant factor a step."""
    return 2.0 * math.pow(POWER / 2.0, max(0.0, (step / steps - PLAIN) / (1.0 - PLAIN)))


def rate_at(step: int, steps: int) -> float:
    """1, and at the end down to LAST_RATE: the largest error is made by the noise of the steps as well."""
    return 1.0 - (1.0 - LAST_RATE) * max(0.0, (step / steps - (1.0 - FADING)) / FADING)


def drawn(shares: Array, size: int, count: int, rng: np.random.Generator) -> Iterator[Array]:
    """Rows of `count` batches, each row as often as its share of the whole says, rounded up or down."""
    total = np.cumsum(shares, dtype=np.float64)
    if not 0.0 < total[-1] < math.inf:
        total = np.arange(1.0, len(shares) + 1.0)
    places = (np.arange(count * size) + rng.random()) * (total[-1] / (count * size))
    rows = np.minimum(np.searchsorted(total, places), len(shares) - 1)
    rng.shuffle(rows)
    return iter(rows.reshape(count, size))


def emphasise(errors: Array, power: float, sizes: Array | None = None) -> None:
    """From the gradient of Σ e² to the direction of that of Σ |e|^power; all errors together keep their norm.

    Adam goes by the length of gradients long past, so they should not become shorter as the power grows.  The sizes
    |e| are those of the entries, or given: then of some entries together.
    """
    if power > 2.0:
        before = float(np.vdot(errors, errors))
        weights = np.abs(errors) if sizes is None else sizes.copy()
        weights *= 1.0 / max(float(weights.max()), TINY)
        errors *= np.power(weights, power - 2.0, out=weights)
        errors *= math.sqrt(before / max(float(np.vdot(errors, errors)), TINY))


def aligned(shape: tuple[int, ...], fill: float = 0.0) -> Array:
    """An array that begins a cache line.  NumPy promises 16 bytes; products of matrices run twice as fast from 64."""
    size = math.prod(shape)
    memory = np.full(size + 16, fill, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + size].reshape(shape)


def _with_ones(z: Array) -> Array:
    """[z, 1, 0 …]: the column of ones makes the bias a weight, and the zeros make each row begin a cache line."""
    n, inputs = z.shape
    table = aligned((n, -(-(inputs + 1) // 16) * 16))
    table[:, :inputs] = z
    table[:, inputs] = 1.0
    return table


@final
@dataclass(frozen=True, eq=False)
class _Inputs:
    """What depends on the points alone."""

    table: Array
    active: Array

    @staticmethod
    def of(z: Array) -> _Inputs:
        # An input that is 0 at all these points has gradient 0, and Adam leaves its weights where they started, so
        # it takes no part.  On MNIST that is a fifth of the pixels of a client with 1,071 images.
        active = np.flatnonzero(z.any(axis=0))
        return _Inputs(_with_ones(z[:, active] if len(active) < z.shape[1] else z), active)


@final
class _Descent(Descent):
    """An MLP on its way, from a random start."""

    def __init__(self, family: MLP, data: _Inputs, phi: Array, rng: np.random.Generator) -> None:
        self._member, self._data, self._rate, self._rng = family.initial(rng), data, family.learning_rate, rng
        n, width = data.table.shape
        size = min(n, family.batch)
        self._target = aligned((family.outputs, n))
        self._target[:] = phi.T
        self._whole = size == n
        self._x, self._y = (
            (data.table, self._target) if self._whole else (aligned((size, width)), aligned((family.outputs, size)))
        )
        self._net = _Net(family.hidden, family.slope, self._x, self._y)
        _load(self._net.weights, self._member, data.active)
        self._adam = Adam(self._net.parameters, self._net.gradient, family.learning_rate, 2.0 / size)
        self._rows = batches(n, size, rng)
        self.parameters, self.interval = self._net.parameters, interval(n, size)

    def step(self, power: float = 2.0, rate: float = 1.0) -> None:
        if not self._whole:
            self._take(next(self._rows))
        self._net.forward()
        emphasise(self._net.errors, power)
        self._net.backward()
        self._adam.learning_rate = rate * self._rate
        self._adam.step()

    def look(self) -> float:
        n, size = len(self._data.table), len(self._x)
        worst = np.empty(n, np.float32)
        for start in range(0, n, size):
            if not self._whole:
                self._take(np.arange(start, start + size))  # beyond the end, the last point again and again
            self._net.forward()
            worst[start : start + size] = np.abs(self._net.errors).max(axis=0)[: n - start]
        self._rows = drawn(worst**DRAWING_POWER, size, self.interval, self._rng)
        return float(worst.max())

    def member(self) -> Parameters:
        _store(self._net.weights, self._member, self._data.active)
        return self._member

    def _take(self, batch: Array) -> None:
        # mode="clip" because it is the mode that writes straight into out, three times as fast.
        self._data.table.take(batch, axis=0, out=self._x, mode="clip")
        self._target.take(batch, axis=1, out=self._y, mode="clip")


@final
class _Net:
    """Parameters, their gradient, and the arrays of a forward and a backward pass on one batch.

    x (n, inputs + 1 …) and y (outputs, n) are overwritten from outside when the next batch comes.  Inside, points are
    columns.  Each layer's weights and bias are one matrix (units, inputs + 1), and its input has a last row of ones.
    These matrices are views of one flat vector, and so are their gradients, so that Adam sees two vectors.
    """

    def __init__(
        self, hidden: tuple[int, ...], slope: float, x: Array, y: Array, flat: tuple[Array, Array] | None = None
    ) -> None:
        points, width = x.shape
        shapes = _shapes(hidden, width, len(y))
        size = sum(units * inputs for units, inputs in shapes)
        self.parameters, self.gradient = flat or (aligned((size,)), aligned((size,)))
        self.weights, gradients = _cut(self.parameters, shapes), _cut(self.gradient, shapes)

        # The values before and after the leaky ReLU, and its derivative: one array each, so that one call serves all
        # layers.  Under each layer lies a row of ones, which ends the next layer's input.
        heights = [units + 1 for units in hidden]
        self._before, self._after, self._derivative, self._slopes = (
            aligned((sum(heights), points), fill) for fill in (1.0, 1.0, 1.0, slope)
        )
        rows = [(height, points) for height in heights]
        inputs = _cut(self._after.reshape(-1), rows)
        slopes = [d[:-1] for d in _cut(self._derivative.reshape(-1), rows)]
        sums = [*(b[:-1] for b in _cut(self._before.reshape(-1), rows)), aligned((len(y), points))]
        # The error of the output is written over the output itself.
        deltas = [*(aligned(s.shape) for s in sums[:-1]), sums[-1]]

        self._slope, self.errors, self._target = np.float32(slope), sums[-1], y
        self._first = _by_points(self.weights[0], x, sums[0])
        self._up = list(zip(sums, (i[:-1] for i in inputs), self.weights[1:], inputs, sums[1:], strict=False))
        self._down = [
            (deltas[k + 1], inputs[k].T, gradients[k + 1], self.weights[k + 1][:, :-1].T, deltas[k], slopes[k])
            for k in reversed(range(len(hidden)))
        ]
        self._last = _by_units(deltas[0], x, gradients[0])

    def differentiate(self) -> None:
        """The gradient of ½ Σ ‖h(x) − y‖² over the batch."""
        self.forward()
        self.backward()

    def forward(self) -> None:
        """The errors h(x) − y."""
        for w, x, s in self._first:
            np.matmul(w, x, out=s)
        for s, a, w, x, above in self._up:
            np.multiply(s, self._slope, out=a)
            np.maximum(s, a, out=a)
            np.dot(w, x, out=above)
        np.subtract(self.errors, self._target, out=self.errors)

    def backward(self) -> None:
        """The gradient of a loss of h, whose gradient by h is in the place of the errors."""
        # The derivative is the ratio, 1 or the slope; fmax turns 0/0 into the slope.  No other way of choosing between
        # two numbers (sign, where, copyto) is as fast in NumPy.
        np.divide(self._after, self._before, out=self._derivative)
        np.fmax(self._derivative, self._slopes, out=self._derivative)
        for d, x, g, w, below, slope in self._down:
            np.dot(d, x, out=g)
            np.dot(w, d, out=below)
            np.multiply(below, slope, out=below)
        for d, x, g in self._last:
            np.matmul(d, x, out=g)


def _shapes(hidden: tuple[int, ...], width: int, outputs: int) -> list[tuple[int, int]]:
    """Of the matrices of a net on inputs of this width: each holds a layer's weights and bias."""
    return list(zip((*hidden, outputs), (width, *(units + 1 for units in hidden)), strict=True))


def _load(weights: Sequence[Array], member: Parameters, active: Array) -> None:
    """The matrices of this member, of whose inputs only the active ones are present."""
    for layer, w in enumerate(weights):
        weight = member[f"{layer}.weight"]
        used = weight[:, active] if layer == 0 else weight
        w[:, : used.shape[1]] = used
        w[:, used.shape[1]] = member[f"{layer}.bias"]


def _store(weights: Sequence[Array], member: Parameters, active: Array) -> None:
    """Write the matrices into this member; weights of inputs that are not active stay."""
    for layer, w in enumerate(weights):
        weight = member[f"{layer}.weight"]
        columns = active if layer == 0 else np.arange(weight.shape[1])
        weight[:, columns] = w[:, : len(columns)]
        member[f"{layer}.bias"][:] = w[:, len(columns)]


def _cut(flat: Array, shapes: Sequence[tuple[int, int]]) -> list[Array]:
    """Consecutive pieces of a vector, as matrices."""
    ends = np.cumsum([rows * columns for rows, columns in shapes], dtype=int)
    return [flat[end - r * c : end].reshape(r, c) for end, (r, c) in zip(ends, shapes, strict=True)]


# OpenBLAS has kernels for small matrices that read their operands in place, where the usual ones copy them first: on
# AVX-512 they are half as fast again.  They serve products of up to 10⁶ multiplications, and of the kind w·xᵀ up to
# 1200 results.  The two products with the inputs are too big, so they are handed over in pieces.  (Elsewhere that
# changes little.)
SMALL_PRODUCT, SMALL_RESULT = 10**6, 1200


def _by_points(w: Array, x: Array, s: Array) -> list[tuple[Array, Array, Array]]:
    """The products that make s = w xᵀ, a few points at a time."""
    (units, inputs), points = w.shape, len(x)
    few = min(SMALL_RESULT // units, SMALL_PRODUCT // (units * inputs)) // 8 * 8
    if not 0 < few < points:
        return [(w, x.T, s)]
    groups = points // few
    end = groups * few
    x_groups = x[:end].reshape(groups, few, inputs).transpose(0, 2, 1)
    s_groups = s[:, :end].reshape(units, groups, few).transpose(1, 0, 2)
    return [(w, x_groups, s_groups)] + [(w, x[end:].T, s[:, end:])] * (end < points)


def _by_units(d: Array, x: Array, g: Array) -> list[tuple[Array, Array, Array]]:
    """The products that make g = d x, a few units at a time."""
    (units, points), inputs = d.shape, x.shape[1]
    few = SMALL_PRODUCT // (points * inputs) // 4 * 4
    if not 0 < few < units:
        return [(d, x, g)]
    groups = units // few
    end = groups * few
    d_groups, g_groups = d[:end].reshape(groups, few, points), g[:end].reshape(groups, few, inputs)
    return [(d_groups, x, g_groups)] + [(d[end:], x, g[end:])] * (end < units)


@final
class Adam:
    """Adam on a vector of parameters, in ten passes over it.

    The moments are kept without their factors 1 − β, and the gradient comes without its scale; these, and the
    correction of the first steps, are moved into two numbers: the rate and ε of the step.
    """

    def __init__(self, parameters: Array, gradient: Array, learning_rate: float, scale: float) -> None:
        self.parameters, self.gradient = parameters, gradient
        self.learning_rate, self.scale = learning_rate, scale
        self.time = 0
        self.first, self.second = aligned(parameters.shape), aligned(parameters.shape)

    def step(self) -> None:
        """One step; the gradient is used as scratch."""
        self.time += 1
        unit = math.sqrt((1.0 - BETA2) / (1.0 - BETA2**self.time))
        rate = self.learning_rate * (1.0 - BETA1) / (1.0 - BETA1**self.time) / unit
        epsilon = EPSILON / (self.scale * unit)
        first, second, g = self.first, self.second, self.gradient
        np.multiply(first, np.float32(BETA1), out=first)
        np.add(first, g, out=first)
        np.multiply(g, g, out=g)
        np.multiply(second, np.float32(BETA2), out=second)
        np.add(second, g, out=second)
        np.sqrt(second, out=g)
        np.add(g, np.float32(epsilon), out=g)
        np.divide(first, g, out=g)
        np.multiply(g, np.float32(rate), out=g)
        np.subtract(self.parameters, g, out=self.parameters)


def fitted_by(config: Values) -> dict[str, Any]:
    """How a net is fitted, by the settings of a run."""
    return {
        "steps": config.oracle_steps,
        "learning_rate": config.learning_rate,
        "batch": max(1, int(config.batch or 1)),
    }


SETTINGS = (
    Setting("hidden", "sizes", "Hidden sizes (mlp, cnn).", LEARNER, unset="32,32; ffgb-l: 64,64"),
    Setting(
        "oracle_steps",
        "whole",
        "Adam steps of an oracle call (mlp, cnn); the paper: 1000.",
        LEARNER,
        unset="200; ffgb-l: 400",
        least=1,
    ),
    Setting(
        "learning_rate", "number", "Adam's step size (mlp, cnn).", LEARNER, unset="0.005; ffgb-l: 0.015", above=0.0
    ),
    Setting(
        "batch",
        "share",
        "Minibatch: points such as 128, or, for fedavg and the like, a share such as 0.2.",
        LEARNER,
        unset="128; 0.2",
        above=0.0,
    ),
)
