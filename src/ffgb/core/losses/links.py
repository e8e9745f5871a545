"""Links: from values of the trained function to the mean of the target.

A link also says which ONNX operator computes it, as data: this file needs no onnx.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeAlias, final

import numpy as np
from scipy.special import expit, softmax

from ffgb.core.types import Array

Node: TypeAlias = tuple[str, Mapping[str, int]]
"""An ONNX operator by its `op_type`, with its attributes: one input, one output."""

_NONE: Mapping[str, int] = MappingProxyType({})


class Link(ABC):
    """A function from values f (n, c) to the mean of the target, row by row."""

    onnx: ClassVar[Node]
    """The ONNX operator that computes `mean`."""

    @abstractmethod
    def mean(self, f: Array) -> Array:
        """Return the mean of the target in training units.

        Parameters
        ----------
        f
            Values of the trained function, (n, c).

        Returns
        -------
        Array
            Means, (n, c).
        """


@final
@dataclass(frozen=True)
class Identity(Link):
    """mean = f.

    >>> Identity().mean(np.array([[2.0]]))
    array([[2.]])
    """

    onnx = ("Identity", _NONE)

    def mean(self, f: Array) -> Array:
        return f


@final
@dataclass(frozen=True)
class Log(Link):
    """mean = exp(f), so f is the logarithm of a positive mean.  Values of f above 709 give infinity.

    >>> Log().mean(np.array([[0.0]]))
    array([[1.]])
    """

    onnx = ("Exp", _NONE)

    def mean(self, f: Array) -> Array:
        with np.errstate(over="ignore"):
            mean: Array = np.exp(f)
        return mean


@final
@dataclass(frozen=True)
class Logit(Link):
    """mean = 1/(1 + exp(−f)), so f is the log odds of a probability.

    >>> Logit().mean(np.array([[0.0]]))
    array([[0.5]])
    """

    onnx = ("Sigmoid", _NONE)

    def mean(self, f: Array) -> Array:
        mean: Array = expit(f)
        return mean


@final
@dataclass(frozen=True)
class Softmax(Link):
    """mean = exp(f)/Σ exp(f) in each row: the probabilities of c classes.

    >>> Softmax().mean(np.array([[0.0, 0.0]]))
    array([[0.5, 0.5]])
    """

    onnx = ("Softmax", MappingProxyType({"axis": 1}))

    def mean(self, f: Array) -> Array:
        mean: Array = softmax(f, axis=1)
        return mean
