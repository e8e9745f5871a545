"""What a family of weak learners can do besides being evaluated: one small protocol a capability.

An oracle or a method asks for the capability that it needs, and refuses a family that has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError, option

Fit: TypeAlias = Callable[[Array, np.random.Generator], Parameters]
"""What an oracle is made of: values φ at fixed points, and randomness, to the parameters of a member."""


Slope: TypeAlias = Callable[[Array, Array], Array]
"""Of a loss, by values (n, c): of these values, at these rows."""


Chance: TypeAlias = tuple[int, ...] | None
"""The seed of what is random in a step, if anything is to be."""


class JetFit(NamedTuple):
    """The same for functions known with their derivatives.

    A *jet* is a function's values at n points and its derivatives at m samples, all in R^d, as one array (n + m·d,
    c): row j < n is h(points[j]), row n + r·d + l is ∂h/∂s_l at samples[r].
    """

    fit: Callable[[Array, float, np.random.Generator], Parameters]
    """A jet, a bound on the Lipschitz constant, and randomness, to the parameters of a member."""
    jet: Callable[[Parameters], Array]
    """A member's own jet."""


class Walk(ABC):
    """A member that is moved by gradients, at fixed points: what parametric methods take their steps with.

    Parameters are one vector, in an order and with a padding of the family's own: methods only add and scale such.
    """

    vector: Array
    """Where it is, float32; write to it to go elsewhere."""
    gradient: Array
    """Of the mean loss over the rows asked for last, by the vector."""

    @abstractmethod
    def differentiate(self, rows: Array, slope: Slope, chance: Chance = None) -> None:
        """The gradient at the vector, by the slope ∇₁ℓ of the loss at these rows.

        If something is left to chance in a step, such as what dropout drops, it comes from there; without, nothing is.
        """

    @abstractmethod
    def pack(self, parameters: Parameters) -> Array:
        """Parameters as such a vector."""

    @abstractmethod
    def unpack(self, vector: Array) -> dict[str, Array]:
        """A vector as parameters."""


@runtime_checkable
class LeastSquares(Protocol):
    """It can be fitted in L²(α_i): what WO² is made of."""

    def least_squares(self, z: Array) -> Fit:
        """The least-squares fit at these points; what depends on the points alone is computed now, once."""
        ...


@runtime_checkable
class Minimax(Protocol):
    """It can be fitted in the sup norm: what WO^∞ is made of."""

    def minimax(self, z: Array) -> Fit:
        """The fit that makes the largest error small, of any entry at any of these points."""
        ...


@runtime_checkable
class Lipschitz(Protocol):
    """Its members have Lipschitz constants, and it can be fitted to values and slopes: what WO^lip is made of."""

    @property
    def metric(self) -> FeatureMap:
        """From points to s in R^d: where distances ‖s − s'‖ and derivatives are taken."""
        ...

    def sobolev(self, points: Array, samples: Array) -> JetFit:
        """The fit of values and derivatives, given where (in R^d, see `metric`)."""
        ...

    def lipschitz(self, parameters: Parameters) -> float:
        """A bound on a member's Lipschitz constant that holds everywhere, not only where it was looked at."""
        ...


@runtime_checkable
class GradientSteps(Protocol):
    """A member can be moved by gradients: what methods on parameters need."""

    def initial(self, rng: np.random.Generator) -> Parameters:
        """Where a member starts."""
        ...

    def walk(self, z: Array, batch: int) -> Walk:
        """A member to be moved at these points, by batches of at most so many."""
        ...


@runtime_checkable
class InnerProducts(Protocol):
    """It is linear over features, so that a query is known by its inner products with them: what geometries need."""

    def covector(self, z: Array, phi: Array) -> Array:
        """Inner products in L²(α_i) of φ with the D features and the constant: ([Φ, 1]'φ)/n, (D+1, c)."""
        ...


def lacks(family: object, what: str) -> FFGBError:
    """The error that a family has no such capability."""
    return FFGBError(f"{type(family).__name__} has no {what}; choose another {option('learner')}")
