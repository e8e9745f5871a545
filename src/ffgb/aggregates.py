"""What clients send before training, to be added up: statistics of all points together, never of anyone's rows.

A `Statistic` is a question.  The server asks it of every client; each answers with arrays that are sums or means over
its points, and only their total over clients is used.  A learner that needs scales, quantiles, a dictionary or a Gram
matrix asks for what it needs (`Ask`), one exchange a question, and each exchange is counted as traffic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import numpy as np

from ffgb.errors import FFGBError
from ffgb.functions import Array

if TYPE_CHECKING:
    from ffgb.features import FeatureMap, Points

Tensors: TypeAlias = Mapping[str, Array]


class Statistic(ABC):
    """A question about all clients' points: a final, frozen dataclass that implements these names."""

    what: ClassVar[str]
    """What is asked for, in words that progress is shown with."""

    @property
    @abstractmethod
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array in an answer: what does not fit is refused before it is used."""

    @abstractmethod
    def of(self, points: Points) -> Tensors:
        """One client's answer."""

    @abstractmethod
    def total(self, parts: Iterable[tuple[float, Tensors]]) -> Any:
        """All answers together, in the order given, each with its client's weight.

        Parts come one at a time and are not kept; a fault in one is raised as an FFGBError while it is read.
        """

    def check(self, part: Tensors) -> None:
        """Raise an FFGBError if an answer is not made as `spec` says, of finite numbers."""
        if part.keys() != self.spec.keys():
            raise FFGBError(f"it has the arrays {sorted(part)}, expected {sorted(self.spec)}")
        for name, (shape, dtype) in self.spec.items():
            array = part[name]
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise FFGBError(f"its {name} should be {dtype} of shape {shape}, and is {array.dtype} of {array.shape}")
            if not np.isfinite(array).all():
                raise FFGBError(f"its {name} has values that are not finite")

    @property
    def size(self) -> int:
        """Bytes in one answer."""
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.spec.values())


Ask: TypeAlias = Callable[[Statistic], Any]
"""Put a question to all clients and get the total of their answers."""


def weighted_mean(parts: Iterable[tuple[float, Tensors]]) -> dict[str, Array]:
    """Σ_i p_i a_i / Σ_i p_i of every array, in float64, in the order given."""
    weight, total = 0.0, dict[str, Array]()
    for p, part in parts:
        weight += p
        for name, array in part.items():
            scaled = p * array.astype(np.float64)
            total[name] = total[name] + scaled if name in total else scaled
    return {name: array / weight for name, array in total.items()}


def plain_sum(parts: Iterable[tuple[float, Tensors]]) -> dict[str, Array]:
    """Σ_i a_i of every array, in float64, in the order given: for counts, where every point weighs the same."""
    total = dict[str, Array]()
    for _, part in parts:
        for name, array in part.items():
            total[name] = total[name] + array if name in total else array.astype(np.float64)
    return total


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of each column: what scales are set by.

    Deviations from the mean, rather than plain squares, because those cancel: of a column near 1e8 nothing would stay.
    """

    count: float
    mean: Array
    deviations: Array

    @staticmethod
    def of(x: Array) -> Moments:
        flat = np.asarray(x, np.float64).reshape(len(x), -1)
        mean = flat.mean(axis=0)
        return Moments(float(len(x)), mean, np.square(flat - mean).sum(axis=0))

    @staticmethod
    def total(parts: Iterable[Moments]) -> Moments:
        """The moments of all points together, in the order given.

        Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American Statistician 37, 1983.
        """
        count, mean, deviations = 0.0, np.zeros(()), np.zeros(())
        for part in parts:
            shift, both = part.mean - mean, count + part.count
            deviations = deviations + part.deviations + shift**2 * (count * part.count / both)
            mean = mean + shift * (part.count / both)
            count = both
        return Moments(count, mean, deviations)

    @property
    def variance(self) -> Array:
        variance: Array = self.deviations / self.count
        return variance

    @property
    def constant(self) -> Array:
        """Which columns are the same at all points, up to float32."""
        constant: Array = np.sqrt(self.variance) <= 1e-6 * np.abs(self.mean)
        return constant


@final
@dataclass(frozen=True)
class MomentsOf(Statistic):
    """The moments of a map's features at all points, or of the targets if there is no map."""

    what: ClassVar[str] = "moments"
    features: FeatureMap | None
    columns: int

    @staticmethod
    def map(features: FeatureMap) -> MomentsOf:
        return MomentsOf(features, features.dimension)

    @staticmethod
    def targets(outputs: int) -> MomentsOf:
        return MomentsOf(None, outputs)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"count": ((1,), "float64"), **dict.fromkeys(("mean", "deviations"), ((self.columns,), "float64"))}

    def of(self, points: Points) -> Tensors:
        moments = Moments.of(points.y if self.features is None else points.features(self.features))
        return {"count": np.array([moments.count]), "mean": moments.mean, "deviations": moments.deviations}

    def total(self, parts: Iterable[tuple[float, Tensors]]) -> Moments:
        return Moments.total(_moments(part) for _, part in parts)


def _moments(part: Tensors) -> Moments:
    if not part["count"][0] >= 1 or (part["deviations"] < 0).any():
        raise FFGBError("its moments are of no points, or have a negative variance")
    return Moments(float(part["count"][0]), part["mean"], part["deviations"])
