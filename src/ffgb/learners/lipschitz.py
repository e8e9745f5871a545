"""Nets whose Lipschitz constant is known: every matrix is short, and nothing between them stretches.

The activation sorts units in pairs (MaxMin, GroupSort of pairs: Anil, Lucas & Grosse, "Sorting out Lipschitz function
approximation", ICML 2019).  It exchanges numbers and changes none, so that derivatives keep their length on the way
through, where a ReLU would lose some; and a net of orthonormal matrices can still be any 1-Lipschitz function, nearly.

What WO^lip asks for is fitted as the paper proposes, with derivatives (Czarnecki et al., "Sobolev training for neural
networks", NeurIPS 2017), and besides them with slopes over pairs of points, which its γ is measured by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from ffgb.core.capabilities import Fit, JetFit
from ffgb.core.functions import LARGEST_IN_A_NET, Family, OpenFamily
from ffgb.core.lipschitz import Pairs
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.learners.mlp import (
    DRAWING_POWER,
    Adam,
    Descent,
    aligned,
    anneal,
    batches,
    dense_spec,
    drawn,
    emphasise,
    fitted_by,
    interval,
    layers,
)
from ffgb.settings import Values

PAIR_CARE = 4.0
"""Pairs are drawn in proportion to this power of the error's slope: there are many more of them than of points."""
SPREAD, START = 0.5, 0.5
"""Hidden biases start in ±SPREAD, for standardised points, and the last matrix with a length of START."""
UNIT = 4.0
"""Without a bound, φ is fitted in units of so many times its largest entry: then START is long enough, as a rule."""


@final
@dataclass(frozen=True)
class LipschitzMLP(OpenFamily):
    """A fully connected net on features of the points: after every layer but the last, units are sorted in pairs.

    Unit i of a layer is paired with unit i + half.  Layer l has "l.weight" (units, inputs) and "l.bias" (units).
    """

    name: ClassVar[str] = "mlp"
    defaults: ClassVar[Mapping[str, Any]] = {}

    features: FeatureMap
    outputs: int
    hidden: tuple[int, ...] = (64, 64)
    steps: int = 400
    learning_rate: float = 0.015
    batch: int = 128
    slopes: float = 1.0
    """What errors of derivatives and slopes count, squared, against squared errors of values."""

    def __post_init__(self) -> None:
        if min(self.outputs, self.batch, *self.hidden) < 1 or self.steps < 0:
            raise FFGBError(
                "a Lipschitz net needs at least one output, two units in each layer and one point in a batch"
            )
        if any(units % 2 for units in self.hidden):
            raise FFGBError(f"a Lipschitz net sorts units in pairs, so its layers have even sizes, not {self.hidden}")
        if not 0.0 <= self.slopes < math.inf:
            raise FFGBError(f"the weight of slopes is 0 or a positive number, not {self.slopes}")

    @property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        return layers(self.features.dimension, self.hidden, self.outputs)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return dense_spec(self._layers)

    def largest(self, name: str) -> float:
        return LARGEST_IN_A_NET

    def members(self, stack: Parameters, z: Array) -> Array:
        # Columns are points, and the first layers are one tall matrix, as in MLP.
        first = stack["0.weight"]
        m, units, inputs = first.shape
        h = np.matmul(first.reshape(m * units, inputs), z.T).reshape(m, units, len(z))
        h += stack["0.bias"][:, :, None]
        for layer in range(1, len(self._layers)):
            upper, lower = np.split(h, 2, axis=1)
            h = np.concatenate((np.maximum(upper, lower), np.minimum(upper, lower)), axis=1)
            h = np.matmul(stack[f"{layer}.weight"], h)
            h += stack[f"{layer}.bias"][:, :, None]
        return np.ascontiguousarray(h.transpose(0, 2, 1))

    def jet(self, parameters: Parameters, points: Array, samples: Array) -> Array:
        """A member's values at points and derivatives at samples (see `JetFit`)."""
        net = _Net(self._layers)
        net.load(parameters)
        _, slopes = net.slopes(net.run(samples.astype(np.float32)))
        values = self.members({name: p[None] for name, p in parameters.items()}, points.astype(np.float32))[0]
        return np.concatenate([values, slopes.transpose(1, 0, 2).reshape(-1, self.outputs)]).astype(np.float64)

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run."""
        return cls(inputs.scaled(), inputs.outputs, config.hidden or (), **fitted_by(config))

    @property
    def metric(self) -> FeatureMap:
        return self.features

    def lipschitz(self, parameters: Parameters) -> float:
        """The product of the matrices' lengths; sorting has length 1."""
        return math.prod(_length(parameters[f"{layer}.weight"]) for layer in range(len(self._layers)))

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """A random member: orthonormal matrices, and a last one of length START."""
        parameters = {}
        for layer, (units, inputs) in enumerate(self._layers):
            last = layer == len(self.hidden)
            weight, bias = rng.standard_normal((units, inputs)), rng.uniform(-SPREAD, SPREAD, units)
            parameters[f"{layer}.weight"] = START / _length(weight) * weight if last else _polar(weight)
            parameters[f"{layer}.bias"] = np.zeros(units) if last else bias
        return {name: p.astype(np.float32) for name, p in parameters.items()}

    def least_squares(self, z: Array) -> Fit:
        """Projected Adam on the mean over a batch of ‖h(x) − φ(x)‖²; the last matrix may have any length."""

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            with np.errstate(all="ignore"):
                descent = _Descent(self, z, phi, UNIT * _size(phi), math.inf, rng)
                for _ in range(self.steps):
                    descent.step()
                return descent.member()

        return fit

    def minimax(self, z: Array) -> Fit:
        """The same steps, turned to what is fitted worst (`anneal`)."""

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            with np.errstate(all="ignore"):
                descent = _Descent(self, z, phi, UNIT * _size(phi), math.inf, rng)
                anneal(descent, self.steps)
                return descent.member()

        return fit

    def sobolev(self, points: Array, samples: Array) -> JetFit:
        """Values at points, derivatives at samples, and slopes over pairs of points, turned to what is fitted worst.

        Of what was looked at, the net is kept whose γ is largest: the lesser of the two, for values and for slopes.
        """
        n, pairs = len(points), Pairs(points, np.random.default_rng(0))

        def fit(jet: Array, bound: float, rng: np.random.Generator) -> Parameters:
            phi, slopes = jet[:n], jet[n:].reshape(*samples.shape, self.outputs)
            if not bound > 0.0:
                # Only constants are left.
                constant = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.spec.items()}
                return constant | {f"{len(self.hidden)}.bias": _middle(phi).astype(np.float32)}
            with np.errstate(all="ignore"):
                # In units of the bound a 1-Lipschitz function is fitted, whatever the size of φ.
                sobolev = _Sobolev(self, samples, slopes / bound, pairs, phi / bound, rng)
                descent = _Descent(self, points, phi, bound, 1.0, rng, sobolev)
                anneal(descent, self.steps)
                return self._within(descent.member(), bound)

        return JetFit(fit, lambda parameters: self.jet(parameters, points, samples))

    def _within(self, parameters: dict[str, Array], bound: float) -> Parameters:
        """The same net, the last bit of whose numbers is such that `lipschitz` is at most the bound, and not nearly."""
        last = f"{len(self.hidden)}.weight"
        if not all(np.isfinite(p).all() for p in parameters.values()):
            return parameters
        for layer in range(len(self.hidden)):
            weight = parameters[f"{layer}.weight"]
            weight[:] = _shortened(weight.astype(np.float64), 1.0)
        others = self.lipschitz(parameters | {last: np.ones((1, 1))})
        weight = parameters[last].astype(np.float64)
        for room in (1.0, 1.0 - 1e-7, 1.0 - 1e-6, 1.0 - 1e-4, 0.0):
            parameters[last] = _shortened(weight, room * bound / others).astype(np.float32)
            if self.lipschitz(parameters) <= bound:
                break
        return parameters


class _Trace(NamedTuple):
    """A pass through a net, points as columns."""

    inputs: list[Array]
    """Of each layer."""
    exchanged: list[Array]
    """After each layer but the last: −1, all bits set, for the pairs (half the units, points) not in order, else 0."""
    values: Array
    """(outputs, points)."""


@final
class _Net:
    """Parameters and their gradient, each one vector, and the two things that can be differentiated by them.

    Values are differentiated as ever.  The derivatives of h are products of the same matrices, transposed and in
    reverse order, and of the exchanges between them, which do not change with the parameters but for jumps.  So they
    are the values of a second, linear net with the same weights, and are differentiated as such.
    """

    def __init__(self, layers: Sequence[tuple[int, int]]) -> None:
        size = sum(units * (inputs + 1) for units, inputs in layers)
        self.parameters, self.gradient = aligned((size,)), aligned((size,))
        self.weights, self.biases = _cut(self.parameters, layers)
        self._weights, self._biases = _cut(self.gradient, layers)

    def load(self, member: Parameters) -> None:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            weight[:], bias[:] = member[f"{layer}.weight"], member[f"{layer}.bias"]

    def run(self, x: Array) -> _Trace:
        """h at the points x (n, d)."""
        inputs, exchanged = [x.T], []
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = weight @ inputs[-1]
            h += bias[:, None]
            if layer < len(self.weights) - 1:
                upper, lower = np.split(h, 2)
                exchanged.append(-(upper < lower).astype(np.int32))
                inputs.append(np.concatenate((np.maximum(upper, lower), np.minimum(upper, lower))))
        return _Trace(inputs, exchanged, h)

    def slopes(self, trace: _Trace) -> tuple[list[Array], Array]:
        """∂h/∂s (d, n, c) at the points of a trace; first, what the transposes of the layers were applied to."""
        last, n = self.weights[-1], trace.values.shape[1]
        u: Array = np.repeat(last.T[:, None, :], n, axis=1)
        below: list[Array] = []
        for weight, swap in zip(reversed(self.weights[:-1]), reversed(trace.exchanged), strict=True):
            below.insert(0, _exchange(swap[:, :, None], u))
            u = (weight.T @ _flat(below[0])).reshape(weight.shape[1], n, len(last))
        return below, u

    def add_gradient_of_values(self, trace: _Trace, cotangent: Array) -> None:
        """Add the gradient of a loss whose gradient by the values is given."""
        for layer in reversed(range(len(self.weights))):
            self._weights[layer] += cotangent @ trace.inputs[layer].T
            self._biases[layer] += cotangent.sum(axis=1)
            if layer:
                cotangent = _exchange(trace.exchanged[layer - 1], self.weights[layer].T @ cotangent)

    def add_gradient_of_slopes(self, trace: _Trace, below: Sequence[Array], cotangent: Array) -> None:
        """The same for a loss of derivatives: up the second net, whose output is at the bottom."""
        for weight, gradient, swap, v in zip(self.weights, self._weights, trace.exchanged, below, strict=False):
            gradient += _flat(v) @ _flat(cotangent).T
            cotangent = _exchange(swap[:, :, None], (weight @ _flat(cotangent)).reshape(v.shape))
        self._weights[-1] += cotangent.sum(axis=1).T

    def shorten(self, most: float) -> None:
        """Bring the matrices back to where they may be: orthonormal, nearly, and the last one at most so long."""
        for weight in self.weights[:-1]:
            _straighten(weight)
        # The Frobenius norm is at least the length, and cheap.
        if most < float(np.linalg.norm(self.weights[-1])) < math.inf:
            self.weights[-1][:] = _shortened(self.weights[-1], most)


@final
class _Descent(Descent):
    """A net on its way, from a random start: of φ divided by a unit, the last matrix at most so long."""

    def __init__(
        self,
        family: LipschitzMLP,
        points: Array,
        phi: Array,
        unit: float,
        most: float,
        rng: np.random.Generator,
        sobolev: _Sobolev | None = None,
    ) -> None:
        n, size = len(points), min(len(points), family.batch)
        self._family, self._unit, self._most, self._rng, self._sobolev = family, unit, most, rng, sobolev
        self._points, self._target = points.astype(np.float32), (phi / unit).astype(np.float32)
        self._net = _Net(family._layers)
        self._net.load(family.initial(rng))
        self._net.biases[-1][:] = _middle(self._target)
        self._adam = Adam(self._net.parameters, self._net.gradient, family.learning_rate, 2.0)
        self._size, self._rows = size, batches(n, size, rng)
        self.parameters, self.interval = self._net.parameters, interval(n, size)

    def step(self, power: float = 2.0, rate: float = 1.0) -> None:
        net = self._net
        net.gradient[:] = 0.0
        rows = slice(None) if self._size == len(self._points) else next(self._rows)
        trace = net.run(self._points[rows])
        errors = trace.values - self._target[rows].T
        emphasise(errors, power)
        net.add_gradient_of_values(trace, errors / self._size)
        if self._sobolev is not None:
            self._sobolev.add_gradient(net, self._points, self._target, power)
        self._adam.learning_rate = rate * self._family.learning_rate
        self._adam.step()
        net.shorten(self._most)

    def look(self) -> float:
        errors = self._net.run(self._points).values.T - self._target
        worst = np.abs(errors).max(axis=1)
        self._rows = drawn(worst**DRAWING_POWER, self._size, self.interval, self._rng)
        return float(worst.max()) if self._sobolev is None else self._sobolev.look(errors, self.interval)

    def member(self) -> dict[str, Array]:
        """The net, of φ again and not of φ over a unit."""
        member = {}
        for layer, (weight, bias) in enumerate(zip(self._net.weights, self._net.biases, strict=True)):
            factor = np.float32(self._unit if layer == len(self._family.hidden) else 1.0)
            member[f"{layer}.weight"], member[f"{layer}.bias"] = factor * weight, factor * bias
        return member


@final
class _Sobolev:
    """What a fit has besides values: derivatives at samples, and slopes over pairs of points.

    Derivatives say what h is to do off the points, and slopes what γ is measured by.
    """

    def __init__(
        self,
        family: LipschitzMLP,
        samples: Array,
        slopes: Array,
        pairs: Pairs,
        phi: Array,
        rng: np.random.Generator,
    ) -> None:
        m = len(samples)
        self._weight, self._batch, self._rng = np.float32(family.slopes), family.batch, rng
        self._samples, self._pairs = samples.astype(np.float32), pairs
        self._distance = pairs.distance.astype(np.float32)
        self._slopes = np.ascontiguousarray(slopes.transpose(1, 0, 2), np.float32)
        # A derivative takes as many columns as there are outputs.
        self._rows = batches(m, min(m, max(1, family.batch // family.outputs)), rng) if m else None
        self._couples: Iterator[Array] | None = None  # none before the first look: least squares come first
        self._largest, self._steepest = _size(phi), pairs.slope(phi) or 1.0

    def add_gradient(self, net: _Net, points: Array, target: Array, power: float) -> None:
        """Of half the mean of ‖∂h − ∂φ‖² over some samples, and of half the mean square of slopes over some pairs."""
        if self._weight > 0.0 and self._rows is not None:
            self._add_derivatives(net, next(self._rows), power)
        if self._weight > 0.0 and self._couples is not None:
            self._add_slopes(net, points, target, next(self._couples), power)

    def _add_derivatives(self, net: _Net, rows: Array, power: float) -> None:
        trace = net.run(self._samples[rows])
        below, slopes = net.slopes(trace)
        errors = slopes - self._slopes[:, rows]
        emphasise(errors, power, np.sqrt(np.square(errors).sum(axis=(0, 2)))[:, None])
        net.add_gradient_of_slopes(trace, below, errors * (self._weight / np.float32(len(rows))))

    def _add_slopes(self, net: _Net, points: Array, target: Array, couples: Array, power: float) -> None:
        pairs, count = self._pairs, len(couples)
        ends = pairs.rows[np.concatenate((pairs.a[couples], pairs.b[couples]))]
        distance = self._distance[couples]
        trace = net.run(points[ends])
        errors = trace.values - target[ends].T
        slopes = (errors[:, :count] - errors[:, count:]) / distance
        emphasise(slopes, power, np.sqrt(np.square(slopes).sum(axis=0)))
        slopes *= self._weight / np.float32(count) / distance
        net.add_gradient_of_values(trace, np.concatenate((slopes, -slopes), axis=1))

    def look(self, errors: Array, interval: int) -> float:
        """1 − γ, from the errors (n, c) at all points; and have pairs over which they are steep in the next batches."""
        pairs, left = self._pairs, float(np.abs(errors).max()) / self._largest
        if not len(pairs.a):
            return left
        some = errors[pairs.rows]
        slopes = np.sqrt(np.square(some[pairs.a] - some[pairs.b]).sum(axis=1)) / self._distance
        self._couples = drawn(slopes**PAIR_CARE, self._batch, interval, self._rng)
        return max(left, float(slopes.max()) / self._steepest)


def _exchange(swap: Array, h: Array) -> Array:
    """Unit i and unit i + half swapped where `swap` (half the units, …) is −1 and not 0.  It is its own transpose.

    By exclusive or of their bits: exact, and at four times the speed of a choice with np.where.
    """
    exchanged = h.copy()
    upper, lower = np.split(exchanged.view(np.int32), 2)
    change = (upper ^ lower) & swap
    upper ^= change
    lower ^= change
    return exchanged


def _flat(v: Array) -> Array:
    """(units, points, outputs) as a matrix."""
    return v.reshape(len(v), -1)


def _cut(flat: Array, layers: Sequence[tuple[int, int]]) -> tuple[list[Array], list[Array]]:
    """Consecutive pieces of a vector: matrices (units, inputs), and biases."""
    weights, biases, start = [], [], 0
    for units, inputs in layers:
        weights.append(flat[start : start + units * inputs].reshape(units, inputs))
        start += units * inputs
        biases.append(flat[start : start + units])
        start += units
    return weights, biases


def _length(matrix: Array) -> float:
    """The largest singular value, in float64."""
    return float(np.linalg.norm(matrix.astype(np.float64), 2))


def _polar(matrix: Array) -> Array:
    """The nearest matrix with orthonormal rows or columns: all singular values 1."""
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    nearest: Array = u @ v
    return nearest


def _shortened(matrix: Array, most: float) -> Array:
    """The nearest matrix of at most this length: singular values clipped."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    nearest: Array = (u * np.minimum(s, most)) @ v
    return nearest


def _straighten(w: Array) -> None:
    """Bring a matrix that was orthonormal before a small step near to the nearest that is, in place.

    Not only shortened: matrices that keep all lengths are the most that a Lipschitz net can have.  One step of
    w ← w (3 − w'w)/2 (Björck & Bowie, 1971), whose error is the square of what it was, costs a tenth of a
    singular value decomposition; that one is for long steps.
    """
    tall = w.shape[0] >= w.shape[1]
    excess = w.T @ w if tall else w @ w.T
    excess.flat[:: len(excess) + 1] -= 1.0
    if 1.0 < float(np.vdot(excess, excess)) < math.inf:
        w[:] = _polar(w)
    else:
        w -= 0.5 * (w @ excess if tall else excess @ w)


def _size(values: Array) -> float:
    """The largest entry, or 1 if all are 0."""
    return float(np.abs(values).max(initial=0.0)) or 1.0


def _middle(phi: Array) -> Array:
    """The constant (c,) that is nearest to values (n, c), by the largest error."""
    middle: Array = 0.5 * (phi.max(axis=0) + phi.min(axis=0))
    return middle
