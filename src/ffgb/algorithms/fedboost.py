"""FedBoost: given predictors, learn how much each should count, by mirror descent on their convex weights.

Hamer, Mohri, Suresh, "FedBoost: a communication-efficient algorithm for federated learning", ICML 2020.  Here the
predictors are the terms of a trained ensemble Σ_m w_m h_m, each times their number M, so that equal weights 1/M are the
ensemble itself; what is learnt is a re-weighting of it.  A round sends one number a predictor each way, not the
predictors: they go down once, with the job, so that sampling some of them for a round saves arithmetic and no traffic.
As in the paper the result is the mean of the weights that slopes were asked for at, the equal ones among them; the
metrics of a round are of its last ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Local, Parametric, part
from ffgb.core.capabilities import Chance, Slope, Walk
from ffgb.core.functions import Block, ClosedFamily, Family, Function, OpenSum
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError, SettingError

SLOPE, TOTAL = "g", "sum"


@final
@dataclass(frozen=True, eq=False)
class Predictions(FeatureMap):
    """What each of M predictors says at a point, all c outputs of one after the other."""

    inner: Family
    stack: tuple[Array, ...]
    """Parameters of all of them, in the order of the family's own."""
    weights: Array
    radii: Array

    @staticmethod
    def of(f: Function) -> Predictions:
        if not isinstance(f, OpenSum) or not f.terms:
            raise FFGBError("FedBoost weights the terms of an ensemble, and this model is one array")
        (block,) = f.merged().blocks
        return Predictions(f.family, tuple(block.stack[name] for name in f.family.spec), block.weights, block.radii)

    @property
    def dimension(self) -> int:
        return len(self.weights) * self.inner.outputs

    def ensemble(self, shares: Array) -> OpenSum:
        """The sum in which term m counts M·shares[m] times what it did."""
        stack = dict(zip(self.inner.spec, self.stack, strict=True))
        return OpenSum(self.inner, (Block(stack, len(shares) * shares * self.weights, self.radii),))

    def __call__(self, x: Array) -> Array:
        z, M = self.inner.features(x), len(self.weights)
        out = np.empty((len(z), M, self.inner.outputs), np.float32)
        for m in range(M):
            one = {name: a[m : m + 1] for name, a in zip(self.inner.spec, self.stack, strict=True)}
            values = self.inner.members(one, z)[0]
            out[:, m] = M * self.weights[m] * np.clip(values, -self.radii[m], self.radii[m])
        return out.reshape(len(z), -1)


@final
@dataclass(frozen=True, eq=False)
class Weighted(ClosedFamily):
    """Weighted sums of given predictors: one number each."""

    predictions: Predictions

    @property
    def features(self) -> FeatureMap:  # type: ignore[override]
        return self.predictions

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.predictions.inner.outputs

    @property
    def size(self) -> int:
        return self.predictions.inner.size

    @cached_property
    def _count(self) -> int:
        return len(self.predictions.weights)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"shares": ((self._count,), "float64")}

    def initial(self, rng: np.random.Generator) -> Parameters:
        return {"shares": np.full(self._count, 1.0 / self._count)}

    def members(self, stack: Parameters, z: Array) -> Array:
        values: Array = np.einsum("km,nmc->knc", stack["shares"], z.reshape(len(z), self._count, self.outputs))
        return values

    def walk(self, z: Array, batch: int) -> Walk:
        return _Walk(z.reshape(len(z), self._count, self.outputs))


@final
class _Walk(Walk):
    def __init__(self, z: Array) -> None:
        self._z = z
        self.vector, self.gradient = np.zeros(z.shape[1]), np.zeros(z.shape[1])

    def differentiate(self, rows: Array, slope: Slope, chance: Chance = None) -> None:
        z = self._z[rows]
        d = slope(np.einsum("m,nmc->nc", self.vector, z), rows) / len(rows)
        self.gradient[:] = np.einsum("nmc,nc->m", z, d)

    def pack(self, parameters: Parameters) -> Array:
        return np.array(parameters["shares"], np.float64)

    def unpack(self, vector: Array) -> dict[str, Array]:
        return {"shares": vector.copy()}


@final
@dataclass(frozen=True)
class FedBoost(Parametric):
    """Clients send the slope of their loss by the shares; everyone takes the step λ_m ← λ_m e^{−η g_m} / Σ."""

    arrays: ClassVar[tuple[str, ...]] = (MODEL, SLOPE, TOTAL)
    sampled: float = 1.0
    """The share of the predictors that a round looks at."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.sampled <= 1.0:
            raise SettingError("sampled", f"is a share of the learners, above 0 and up to 1, not {self.sampled:g}")

    def sends(self, t: int) -> tuple[str, ...]:
        return (SLOPE,)

    def local(self, t: int, state: Mapping[str, Array], here: Local) -> dict[str, Array]:
        shares = state[MODEL]
        if self.sampled == 1.0:
            return {SLOPE: here.gradient(shares).copy()}
        # every client looks at the same predictors, and what is looked at counts for what is not: an ensemble that is
        # the whole one in the mean, and its slopes
        looked = (np.random.default_rng([self.seed, t]).random(len(shares)) < self.sampled) / self.sampled
        return {SLOPE: here.gradient(shares * looked) * looked}

    def settle(self, state: dict[str, Array], sent: tuple[str, ...]) -> dict[str, Array]:
        shares, g = state[f"{MODEL}/shares"], state[f"{SLOPE}/shares"]
        slope = np.where(shares > 0.0, self.step * g, np.inf)  # who has no share left gets none
        grown = shares * np.exp(slope.min() - slope)
        return state | {f"{MODEL}/shares": grown / grown.sum(), f"{TOTAL}/shares": state[f"{TOTAL}/shares"] + shares}

    def project(self, f: Function) -> Function:
        family: Any = f.family
        predictions: Predictions = family.inner.predictions
        total = part(f, TOTAL)["shares"]
        if not total.any():  # before the first round
            total = part(f, MODEL)["shares"]
        return predictions.ensemble(total / total.sum())
