"""Regression trees: scikit-learn's multi-output CART, stored so that every tree of a family has the same shape.

A tree of depth d becomes a perfect binary tree: node j has children 2j+1 and 2j+2, and goes left when
x[feature_j] ≤ threshold_j.  A branch that ends early sends every point left.  The fixed shape is what makes trees
stack, and lets a receiver check a message before it trusts it; a weak learner is shallow, so the padding is small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ffgb.core.capabilities import Fit
from ffgb.core.functions import LARGEST, Family, OpenFamily
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.settings import LEARNER, Setting, Values

MAX_DEPTH = 12


@final
@dataclass(frozen=True)
class Tree(OpenFamily):
    """Multi-output regression trees of a fixed depth."""

    name: ClassVar[str] = "tree"
    # trees overfit unless their step is shrunk, as everywhere
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 30, "local_steps": 2, "schedule": "constant", "shrinkage": 0.3,
    }  # fmt: skip

    features: FeatureMap
    outputs: int
    depth: int = 4
    min_leaf: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise FFGBError(f"a weak learner's tree has depth 1 … {MAX_DEPTH}, not {self.depth}")

    @classmethod
    def configured(cls, config: Values, inputs: Any) -> Family:
        """With the settings of a run."""
        return cls(Flatten(math.prod(inputs.shape)), inputs.outputs, config.depth)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        leaves = 2**self.depth
        return {
            "feature": ((leaves - 1,), "int32"),
            # float64, as CART computes them, which no --precision rounds: a threshold decides where points go, and
            # boosting equals scikit-learn's to the last bit.  Values in float32 would decide ties between splits that
            # divide the training points alike, and others not.
            "threshold": ((leaves - 1,), "float64"),
            "value": ((leaves, self.outputs), "float64"),
        }

    def largest(self, name: str) -> float:
        return math.inf if name == "threshold" else LARGEST  # a branch that ends early sends everything left

    def check(self, parameters: Parameters) -> None:
        feature = parameters["feature"]
        if feature.size and not (feature.min() >= 0 and feature.max() < self.features.dimension):
            raise FFGBError(f"its trees look at features other than 0 … {self.features.dimension - 1}")

    def members(self, stack: Parameters, z: Array) -> Array:
        m = len(stack["feature"])
        out = np.empty((m, len(z), self.outputs))
        for tree in range(m):
            out[tree] = stack["value"][tree][self._leaves(stack["feature"][tree], stack["threshold"][tree], z)]
        return out

    def least_squares(self, z: Array) -> Fit:
        from sklearn.tree import DecisionTreeRegressor  # here, because it takes a second to import

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            cart = DecisionTreeRegressor(
                max_depth=self.depth, min_samples_leaf=self.min_leaf, random_state=int(rng.integers(2**31))
            )
            return self._perfect(cart.fit(z, phi).tree_)

        return fit

    def minimax(self, z: Array) -> Fit:
        """The same tree, each leaf in the middle of the range of φ in it: of all values for a leaf, the one whose
        largest error is least."""
        grow = self.least_squares(z)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            tree = dict(grow(phi, rng))
            leaf = self._leaves(tree["feature"], tree["threshold"], z)
            low, high = np.full(tree["value"].shape, np.inf), np.full(tree["value"].shape, -np.inf)
            np.minimum.at(low, leaf, phi)
            np.maximum.at(high, leaf, phi)
            empty = low > high  # leaves that no point reaches
            low[empty], high[empty] = 0.0, 0.0
            tree["value"] = 0.5 * (low + high)
            return tree

        return fit

    def _leaves(self, feature: Array, threshold: Array, z: Array) -> Array:
        """The leaf of a perfect tree that each point falls into."""
        rows, node = np.arange(len(z)), np.zeros(len(z), np.intp)
        for _ in range(self.depth):
            # not (x <= t), rather than x > t: NaN goes right, as in scikit-learn's own comparison
            node = 2 * node + 1 + ~(z[rows, feature[node]] <= threshold[node])
        return node - len(feature)

    def _perfect(self, tree: object) -> Parameters:
        """scikit-learn's arrays of nodes as a perfect tree."""
        left: Array = tree.children_left  # type: ignore[attr-defined]
        right: Array = tree.children_right  # type: ignore[attr-defined]
        inner = 2**self.depth - 1
        feature, threshold = np.zeros(inner, np.int32), np.full(inner, np.finfo(np.float64).max)
        at = np.zeros(1, np.intp)  # which of scikit-learn's nodes stands at each place of this level
        for level in range(self.depth):
            split = left[at] >= 0
            places = np.arange(2**level - 1, 2 ** (level + 1) - 1)[split]
            feature[places] = tree.feature[at[split]]  # type: ignore[attr-defined]
            threshold[places] = tree.threshold[at[split]]  # type: ignore[attr-defined]
            at = np.stack([np.where(split, left[at], at), np.where(split, right[at], at)], axis=1).ravel()
        value = tree.value[at, :, 0]  # type: ignore[attr-defined]
        return {"feature": feature, "threshold": threshold, "value": value}


SETTINGS = (Setting("depth", "whole", "Depth of trees (tree).", LEARNER, 4, least=1),)
