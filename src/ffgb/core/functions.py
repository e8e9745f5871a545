"""Function space: weighted sums of weak learners, with exact algebra.

The variable that is trained is a function.  It is always a weighted sum of members of one *family*

    f = Σ_m w_m · h_m,        h_m in {h_θ : X → R^c},

and comes in two representations behind one interface:

* `ClosedSum`: the family is linear in its parameters, so any weighted sum of members is again one member.
  One parameter array, whatever was added.
* `OpenSum`: the members are kept, stacked by parameter, and evaluated many at a time.  A term may be
  clipped, w · Π_R(h), as FFGB.C needs.

`OnPoints` is a function as one client knows it: a formal sum to send, and its values at the client's own points.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError

# Evaluation proceeds in blocks that fit the cache of one core; the sizes are constants because the order of
# summation, and so the last bit of a prediction, follows from them.
POINTS_IN_A_BLOCK = 1024
MEMBERS_IN_A_BLOCK = 16


LARGEST = 1e15
"""Of a number that makes up a learner, if its family says nothing else."""
LARGEST_IN_A_NET = 1e5
"""Of a weight of a net: with five layers of the paper's widths its values are still finite in float32."""


class Family(ABC):
    """A parametrised set of functions from points to R^c: where weak learners come from.

    A final, frozen dataclass implements these names; its fields are numbers, strings, arrays or feature maps, so that
    it can be described in a file or a message (protocol/describe.py).  `features` holds everything about evaluation
    that depends on the points alone: it is computed once for a client's points and then reused.  How members are
    fitted is for the capabilities to say that a family has (core/capabilities.py).
    """

    outputs: int
    """The dimension c of the values."""

    features: FeatureMap
    """From points x (n, ...) to z (n, D), which the members are functions of."""

    @property
    @abstractmethod
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each parameter array of one member."""

    @property
    def points_in_a_block(self) -> int:
        """How many points a sum of members is evaluated at together."""
        return POINTS_IN_A_BLOCK

    @abstractmethod
    def members(self, stack: Parameters, z: Array) -> Array:
        """Values (m, n, c) of a stack of m members at points with features z."""

    def weighted_sum(self, weights: Array, stack: Parameters, z: Array) -> Array:
        """Σ_m w_m h_m at points with features z, (n, c)."""
        return np.tensordot(weights, self.members(stack, z), axes=1)

    def largest(self, name: str) -> float:
        """What no entry of this parameter of a sound member exceeds, generously: members come from elsewhere, too."""
        return LARGEST

    def check(self, parameters: Parameters) -> None:  # noqa: B027  (most need nothing more)
        """An FFGBError if arrays of the right form are no members all the same: they may come from elsewhere."""

    @property
    def size(self) -> int:
        """Numbers in one member: the paper's unit of communication, one *model*."""
        return sum(math.prod(shape) for shape, _ in self.spec.values())

    @abstractmethod
    def zero(self) -> Function:
        """The function 0, where training starts."""

    @abstractmethod
    def member(self, parameters: Parameters) -> Function:
        """One member as a function."""


class ClosedFamily(Family):
    """Linear in the parameters: a weighted sum of members is again a member."""

    def zero(self) -> Function:
        return ClosedSum(self, {name: np.zeros(shape) for name, (shape, _) in self.spec.items()})

    def member(self, parameters: Parameters) -> Function:
        return ClosedSum(self, {name: np.asarray(p, np.float64) for name, p in parameters.items()})


class OpenFamily(Family):
    """Any other: a sum keeps its members."""

    def zero(self) -> Function:
        return OpenSum(self, ())

    def member(self, parameters: Parameters) -> Function:
        return OpenSum(self, (Block.of(parameters),))


class Function(ABC):
    """A function x ↦ R^c that can be scaled, added, clipped and evaluated."""

    family: Family

    @abstractmethod
    def evaluate(self, z: Array) -> Array:
        """Values (n, c), float64, at points with features z."""

    @abstractmethod
    def __mul__(self, a: float) -> Function: ...

    @abstractmethod
    def __add__(self, other: Function) -> Function: ...

    @abstractmethod
    def clip(self, radius: float) -> Function:
        """Π_R: every entry of the value limited to [-R, R]."""

    @property
    @abstractmethod
    def terms(self) -> int:
        """How many members the representation holds."""

    @abstractmethod
    def tensors(self) -> dict[str, Array]:
        """The arrays that describe it, given its family; `from_tensors` is the inverse."""

    def __call__(self, x: Array) -> Array:
        return self.evaluate(self.family.features(x))

    def __rmul__(self, a: float) -> Function:
        return self * a

    def __sub__(self, other: Function) -> Function:
        return self + other * -1.0


@final
@dataclass(frozen=True, eq=False)
class ClosedSum(Function):
    """A weighted sum of members of a closed family: one member, exactly.

    Parameters are summed in float64; members are evaluated, and travel, in the family's own dtype.
    """

    family: Family
    parameters: Parameters

    def evaluate(self, z: Array) -> Array:
        stack = {name: p[None].astype(self.family.spec[name][1], copy=False) for name, p in self.parameters.items()}
        out = np.empty((len(z), self.family.outputs))
        for rows in _blocks(len(z), POINTS_IN_A_BLOCK):
            out[rows] = self.family.members(stack, z[rows])[0]
        return out

    def __mul__(self, a: float) -> ClosedSum:
        return ClosedSum(self.family, {name: a * p for name, p in self.parameters.items()})

    def __add__(self, other: Function) -> Function:
        _same_family(self, other)
        if isinstance(other, ClosedSum):
            return ClosedSum(self.family, {name: p + other.parameters[name] for name, p in self.parameters.items()})
        return self._opened() + other

    def clip(self, radius: float) -> Function:
        return self._opened().clip(radius)

    def _opened(self) -> OpenSum:
        return OpenSum(self.family, (Block.of(self.parameters),))

    @property
    def terms(self) -> int:
        return 1

    def tensors(self) -> dict[str, Array]:
        return {f"parameters/{name}": p for name, p in self.parameters.items()}


@final
@dataclass(frozen=True, eq=False)
class Block:
    """Members that came together (a client's K, a round's N·K): stacked parameters, weights, clipping radii."""

    stack: Parameters
    weights: Array
    radii: Array

    @staticmethod
    def of(parameters: Parameters) -> Block:
        """One member, with weight 1 and no clipping."""
        return Block({name: p[None] for name, p in parameters.items()}, np.ones(1), np.full(1, np.inf))


@final
@dataclass(frozen=True, eq=False)
class OpenSum(Function):
    """A weighted sum Σ w_m Π_{R_m}(h_m) that keeps its members.  Adding shares the blocks; it copies no parameters."""

    family: Family
    blocks: tuple[Block, ...]

    def evaluate(self, z: Array) -> Array:
        out, spec = np.zeros((len(z), self.family.outputs)), self.family.spec
        for rows in _blocks(len(z), self.family.points_in_a_block):
            for block in self.blocks:
                for some in _blocks(len(block.weights), MEMBERS_IN_A_BLOCK):
                    stack = {n: p[some].astype(spec[n][1], copy=False) for n, p in block.stack.items()}
                    weights, radii = block.weights[some], block.radii[some, None, None]
                    if np.isfinite(radii).any():
                        values = np.clip(self.family.members(stack, z[rows]), -radii, radii)
                        out[rows] += np.tensordot(weights, values, axes=1)
                    else:
                        out[rows] += self.family.weighted_sum(weights, stack, z[rows])
        return out

    def __mul__(self, a: float) -> OpenSum:
        return OpenSum(self.family, tuple(Block(b.stack, a * b.weights, b.radii) for b in self.blocks))

    def __add__(self, other: Function) -> Function:
        _same_family(self, other)
        if isinstance(other, ClosedSum):
            other = other._opened()
        if not isinstance(other, OpenSum):
            return other + self
        return OpenSum(self.family, self.blocks + other.blocks)

    def clip(self, radius: float) -> Function:
        if self.terms != 1:
            return Clipped(self, radius)
        # Π_R(w Π_r(h)) = w Π_{min(r, R/|w|)}(h): a clipped single term stays a term, and sums of it stay sums.
        (block,) = (b for b in self.blocks if len(b.weights))
        w = abs(float(block.weights[0]))
        radii = np.minimum(block.radii, radius / w if w > 0 else np.inf)
        return OpenSum(self.family, (Block(block.stack, block.weights, radii),))

    @property
    def terms(self) -> int:
        return sum(len(b.weights) for b in self.blocks)

    def merged(self) -> OpenSum:
        """The same sum in one block, as it is stored and sent."""
        if len(self.blocks) == 1:
            return self
        names = self.family.spec
        stack = {
            n: np.concatenate([b.stack[n] for b in self.blocks])
            if self.blocks
            else np.empty((0, *names[n][0]), names[n][1])
            for n in names
        }
        weights = np.concatenate([np.empty(0), *(b.weights for b in self.blocks)])
        radii = np.concatenate([np.empty(0), *(b.radii for b in self.blocks)])
        return OpenSum(self.family, (Block(stack, weights, radii),))

    def collapsed(self) -> ClosedSum:
        """The same sum as one member, where the family is linear in its parameters and no term is clipped."""
        (block,) = self.merged().blocks
        if not isinstance(self.family, ClosedFamily) or np.isfinite(block.radii).any():
            raise FFGBError("a sum of clipped terms, or of learners that do not add up, cannot be one array")
        return ClosedSum(self.family, {n: np.tensordot(block.weights, p, axes=1) for n, p in block.stack.items()})

    def tensors(self) -> dict[str, Array]:
        (block,) = self.merged().blocks
        tensors = {f"parameters/{name}": p for name, p in block.stack.items()} | {"weights": block.weights}
        if np.isfinite(block.radii).any():
            tensors["radii"] = block.radii
        return tensors


@final
@dataclass(frozen=True, eq=False)
class Clipped(Function):
    """Π_R of a sum as a whole: Proj_C at the end of Algorithm 1.  It is no sum any more and takes no part in one."""

    inner: Function
    radius: float

    @property
    def family(self) -> Family:  # type: ignore[override]
        return self.inner.family

    def evaluate(self, z: Array) -> Array:
        return np.clip(self.inner.evaluate(z), -self.radius, self.radius)

    def __mul__(self, a: float) -> Clipped:
        # a Π_R(f) = Π_{|a|R}(a f)
        return Clipped(self.inner * a, abs(a) * self.radius)

    def __add__(self, other: Function) -> Function:
        raise FFGBError("a sum that was clipped as a whole cannot be added to; clip its terms before adding them")

    def clip(self, radius: float) -> Clipped:
        return Clipped(self.inner, min(self.radius, radius))

    @property
    def terms(self) -> int:
        return self.inner.terms

    def tensors(self) -> dict[str, Array]:
        return self.inner.tensors() | {"clip": np.array([self.radius])}


def from_tensors(family: Family, tensors: Mapping[str, Array]) -> Function:
    """The function that `tensors()` described.  Arrays may come from elsewhere, so they are checked first."""
    terms = tensors["weights"].shape[:1] if "weights" in tensors else ()
    for name, (shape, dtype) in family.spec.items():
        array = tensors.get(f"parameters/{name}")
        if array is None or array.shape != (*terms, *shape) or array.dtype.kind != np.dtype(dtype).kind:
            found = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise FFGBError(f"its {name} should be {dtype} of shape {(*terms, *shape)}, and is {found}")
        if not np.isfinite(array).all():
            raise FFGBError(f"its {name} has values that are not finite")
    parameters = {name: tensors[f"parameters/{name}"] for name in family.spec}
    family.check(parameters)
    if "weights" in tensors:
        weights = np.asarray(tensors["weights"], np.float64)
        if weights.ndim != 1 or not np.isfinite(weights).all():
            raise FFGBError("its weights are not one finite number a term")
        radii = np.asarray(tensors.get("radii", np.full(len(weights), np.inf)), np.float64)
        if radii.shape != weights.shape or not (radii > 0).all():
            raise FFGBError("its clipping radii are not one positive number a term")
        f: Function = OpenSum(family, (Block(parameters, weights, radii),))
    else:
        f = ClosedSum(family, {name: np.asarray(p, np.float64) for name, p in parameters.items()})
    return Clipped(f, float(tensors["clip"][0])) if "clip" in tensors else f


def average(functions: Sequence[Function], weights: Sequence[float]) -> Function:
    """Σ_i p_i f_i / Σ_i p_i, summed in the order given."""
    total = math.fsum(weights)
    mean = functions[0] * (weights[0] / total)
    for f, p in zip(functions[1:], weights[1:], strict=True):
        mean = mean + f * (p / total)
    return mean.merged() if isinstance(mean, OpenSum) else mean


@final
@dataclass(frozen=True, eq=False)
class OnPoints:
    """A function g = a·f^t + s as client i knows it: a, s as a formal sum, and g's values at the client's points.

    Only s leaves the client (a is the same for all clients and known to the server); only the values are needed to
    go on.  The two are kept together so that the algorithms can be written in functions, as in the paper.
    """

    decay: float
    increment: Function
    values: Array

    def __rmul__(self, a: float) -> OnPoints:
        return OnPoints(a * self.decay, self.increment * a, a * self.values)

    def __sub__(self, other: OnPoints) -> OnPoints:
        return OnPoints(self.decay - other.decay, self.increment - other.increment, self.values - other.values)

    def __add__(self, other: OnPoints) -> OnPoints:
        return self - -1.0 * other

    def clip(self, radius: float) -> OnPoints:
        """Π_R of a function that has no part of f^t in it."""
        if self.decay != 0.0:
            raise FFGBError("only a weak learner can be clipped here, not a function that f^t is a part of")
        return OnPoints(0.0, self.increment.clip(radius), np.clip(self.values, -radius, radius))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _same_family(f: Function, g: Function) -> None:
    if f.family is not g.family and f.family.spec != g.family.spec:
        raise FFGBError(f"functions of two different families cannot be added: {f.family} and {g.family}")
